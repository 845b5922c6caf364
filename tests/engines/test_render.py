"""`pipeline.py`: what is cut into it, and that it stands alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.onnx_sources import CPU, H100, context_of, host, prepared
from workbench.core.device import Device
from workbench.core.model import TensorSpec
from workbench.core.recipe import Recipe
from workbench.engines import engines, load_all
from workbench.engines.render import _cut, global_names, literal, render
from workbench.engines.table import support
from workbench.levers.step import Context, portable

load_all()
IMAGES = (TensorSpec(name="x", dtype="float32", shape=("batch", 1, 8, 8)),)
MODEL = prepared("factory", IMAGES, has_calibration=True)
EQUIPPED = replace(
    host(),
    packages={
        **host().packages,
        "torch": "2.13.0+cu130",
        "triton": "3.6.0",
        "onnxruntime-gpu": "1.32.0",
    },
    providers=(*host().providers, "CUDAExecutionProvider"),
    tools={"c++": "/usr/bin/g++"},
)


def context(spec: str, *, kind: str = "factory", device: Device = CPU) -> Context:
    model = replace(MODEL, kind=kind)  # type: ignore[arg-type]
    return replace(context_of(model, Recipe.parse(spec), device=device), host=EQUIPPED)


def available() -> list[tuple[str, str, Device]]:
    """Every recipe of one lever that can be had on a CPU or a GPU, for each kind of source."""
    found = []
    for device in (CPU, H100):
        for kind in ("factory", "exported", "torchscript", "onnx"):
            for row in support(context("engine=torch", kind=kind, device=device)):
                if row.reason is None:
                    found.append((f"engine={row.key}", kind, device))
    return found


def test_every_available_recipe_renders_to_python() -> None:
    """Every function that any plan uses is portable: a slip is an AssertionError here."""
    recipes = available()
    assert {r[0].split(",")[0] for r in recipes} == {f"engine={name}" for name in engines()}
    parsed = set()
    for spec, kind, device in recipes:
        text = render(context(spec, kind=kind, device=device))
        assert "workbench" not in text, spec
        # The engine's own lines are the same for every lever: parse them once.
        if (spec.split(",")[0], kind) in parsed:
            continue
        parsed.add((spec.split(",")[0], kind))
        tree = ast.parse(text)
        defined = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        assert {"build", "load", "Pipeline", "command_line"} <= defined, spec
        assert not global_names(text), spec


def test_the_same_context_gives_the_same_text() -> None:
    assert render(context("engine=torch,precision=bf16")) == render(
        context("engine=torch,precision=bf16")
    )


def test_the_head_of_the_file_reads_the_recipe_in_words() -> None:
    head = ast.get_docstring(ast.parse(render(context("engine=torch,precision=bf16,batch=8"))))
    assert head is not None
    assert "precision = bf16: Weights and inputs are bfloat16." in head
    assert "batch = 8" in head


@pytest.mark.parametrize(
    "text",
    ["plain", "it's", 'say "no"', "'''\n\"\"\"", "\\", "\u202e𝕏", "{x}", "__import__('os')"],
)
def test_a_string_enters_as_a_literal_whatever_it_holds(text: str) -> None:
    value = {text: [text, 1, 2.5, None, True], "long": [text] * 40}
    assert ast.literal_eval(literal(value)) == value


def test_a_function_that_is_not_portable_is_refused() -> None:
    def plain() -> None: ...

    with pytest.raises(AssertionError, match="not portable"):
        _cut([plain], {})


def test_a_function_that_closes_over_a_value_is_refused() -> None:
    def made(value: int) -> Callable[[], int]:
        @portable
        def inner() -> int:
            return value

        return inner

    with pytest.raises(AssertionError, match="closes over value"):
        _cut([made(1)], {})


def test_a_global_is_found_inside_a_nested_function() -> None:
    text = "def outer():\n    def inner():\n        return helper(1)\n    return inner\n"
    assert global_names(text) == {"helper"}


def test_what_only_looks_like_a_global_is_none() -> None:
    text = "def f(x: numpy.ndarray):\n    import json\n    return json.loads(x).helper\n"
    assert global_names(text) == set()


@pytest.mark.slow
def test_the_file_runs_where_no_workbench_can_be_imported(tmp_path: Path) -> None:
    script = tmp_path / "pipeline.py"
    script.write_text(render(context("engine=torch,precision=bf16")))
    blocker = (
        "import sys, runpy\n"
        "class Nobody:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'workbench':\n"
        "            raise ImportError('workbench is not here')\n"
        "sys.meta_path.insert(0, Nobody())\n"
        "sys.argv = ['pipeline.py', '--check']\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", blocker], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[0] == "FAIL  files: check/files.json is missing"
    assert done.returncode == 1, done.stderr
