"""A recipe as one readable Python file.

The file is cut from the source of the portable functions that the recipe's steps call, so
there is no template that could drift from what the tests run.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType

from workbench.core.json import Json
from workbench.engines.check import command_line
from workbench.engines.engine import Engine, engine
from workbench.engines.table import check_available
from workbench.levers.step import Context, Step
from workbench.levers.table import meaning, plan, resolve

# Functions of these modules are self-contained by contract, and know no decorator of ours.
_PORTABLE_MODULES = frozenset({"workbench.core.structure"})

# What an annotation may name: nothing of it is needed when the file runs.
_ANNOTATIONS = {
    "Any": "from typing import Any",
    "Callable": "from collections.abc import Callable",
    "Iterator": "from collections.abc import Iterator",
    "ModuleType": "from types import ModuleType",
    "numpy": "import numpy",
    "torch": "import torch",
    "onnxruntime": "import onnxruntime",
    "onnx": "import onnx",
    "openvino": "import openvino",
}

_WIDTH = 100


def steps_of(context: Context) -> tuple[Step, ...]:
    """Every step of a recipe: the engine's own and its levers', in the order they run.

    Raises UnavailableError where the engine or a lever cannot be had here.
    """
    check_available(context)
    chosen = engine(context.recipe.engine)
    order = {p: i for i, p in enumerate((*chosen.build_phases, *chosen.load_phases))}
    steps = [*chosen.steps(context), *plan(context)]
    for step in steps:
        assert step.phase in order, f"{chosen.name} has no phase {step.phase}"
    return tuple(sorted(steps, key=lambda step: order[step.phase]))


def render(context: Context) -> str:
    """The text of `pipeline.py` for the context's recipe on its model.

    The same context gives the same text. Raises UnavailableError with the reason where the
    recipe cannot be had here.
    """
    chosen = engine(context.recipe.engine)
    steps = steps_of(context)
    in_build = [step for step in steps if step.phase in chosen.build_phases]
    in_load = [step for step in steps if step.phase in chosen.load_phases]
    assert in_load, f"{chosen.name} has no step in load"
    assert in_load[-1].writes == "pipeline", "the last step of load makes the pipeline"
    called = _cut([step.function for step in [*in_build, *in_load]], {})
    checking = _cut([command_line], called)
    parts = [
        _docstring(context, chosen) + "\n\n" + _preamble({**called, **checking}),
        _function(
            "build",
            "source_dir: str, out_dir: str",
            "None",
            "Convert the model in source_dir into what load() serves from out_dir.",
            in_build,
            "",
        ),
        _function(
            "load",
            "out_dir: str",
            "Pipeline",
            "Open what build() left in out_dir, ready to predict.",
            in_load,
            "return pipeline",
        ),
        _section("What build() and load() call, in that order"),
        *called.values(),
        _section("What this file does as a command"),
        *checking.values(),
        _main(chosen),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _docstring(context: Context, chosen: Engine) -> str:
    recipe = context.recipe
    lines = [f'"""Serve one model with {chosen.title}: {recipe.spec}', ""]
    lines += _paragraph(f"{chosen.title}: {chosen.help}")
    for (name, text), lever in zip(recipe.levers, resolve(recipe), strict=True):
        lines += _paragraph(f"{name} = {text}: {meaning(type(lever), text)}", hanging=True)
    lines += [
        "",
        "    pipeline = load(folder)",
        "    outputs = pipeline.predict({name: array, ...})",
        "",
        *_paragraph(
            "`python pipeline.py --check` verifies this folder: its files, its outputs, what "
            "is really executed and, where a baseline lies beside it, its speed."
        ),
        '"""',
    ]
    return "\n".join(lines)


def _paragraph(text: str, *, hanging: bool = False) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 8, subsequent_indent="    " if hanging else "")


def _preamble(sources: dict[str, str]) -> str:
    named = sorted({name for text in sources.values() for name in _annotated(text)} - set(sources))
    unknown = [name for name in named if name not in _ANNOTATIONS]
    assert not unknown, f"annotations name {unknown}, which the file cannot import"
    lines = ["from __future__ import annotations", "", "from typing import TYPE_CHECKING"]
    if named:
        imports = [_ANNOTATIONS[name] for name in named]
        imports.sort(key=lambda line: (line.startswith("import"), line))
        lines += [
            "",
            "if TYPE_CHECKING:  # for annotations; what runs is imported where it is used",
        ]
        lines += [f"    {line}" for line in imports]
    return "\n".join(lines)


def _function(
    name: str, arguments: str, returns: str, purpose: str, steps: list[Step], last: str
) -> str:
    lines = [f"def {name}({arguments}) -> {returns}:", f'    """{purpose}"""']
    lines += [textwrap.indent(_line(step), "    ") for step in steps]
    if last:
        lines.append(f"    {last}")
    return "\n".join(lines)


def _line(step: Step) -> str:
    target = f"{step.writes} = " if step.writes else ""
    head = f"{target}{step.function.__name__}("
    arguments = [*step.reads, *(f"{key}={literal(value)}" for key, value in step.params.items())]
    line = f"{head}{', '.join(arguments)})"
    if len(line) <= _WIDTH - 4 and "\n" not in line:
        return line
    return "\n".join([head, *(textwrap.indent(f"{a},", "    ") for a in arguments), ")"])


def literal(value: Json, width: int = _WIDTH - 30) -> str:
    """Python source of a JSON value. Strings are quoted by `repr`, whatever they hold."""
    if isinstance(value, str):
        text = repr(value)
        # The house's quotes, where that needs no other escape.
        plain = text[0] == "'" and '"' not in text and "\\'" not in text
        return f'"{text[1:-1]}"' if plain else text
    if isinstance(value, dict):
        parts = [f"{literal(k)}: {literal(v, width - 4)}" for k, v in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, list):
        parts = [literal(item, width - 4) for item in value]
        opening, closing = "[", "]"
    else:
        return repr(value)
    line = opening + ", ".join(parts) + closing
    if len(line) <= width and "\n" not in line:
        return line
    inner = "".join(textwrap.indent(f"{part},", "    ") + "\n" for part in parts)
    return f"{opening}\n{inner}{closing}"


def _section(title: str) -> str:
    return f"# {title} ".ljust(_WIDTH - 4, "-")


def _main(chosen: Engine) -> str:
    return "\n".join(
        [
            'if __name__ == "__main__":',
            f"    raise SystemExit(command_line(__file__, build, load, {literal(chosen.name)}))",
        ]
    )


def _cut(functions: list[Callable[..., object]], already: dict[str, str]) -> dict[str, str]:
    """Source by name of these functions and of all they call, callers first.

    What is in `already` is left out.
    """
    found: dict[str, str] = {}
    origin: dict[str, object] = {}

    def visit(thing: Callable[..., object]) -> None:
        name = thing.__name__
        if name in origin:
            assert origin[name] is thing, f"two portable functions are called {name}"
            return
        assert is_portable(thing), f"{thing.__module__}.{name} is not portable"
        origin[name] = thing
        text = source_of(thing)
        if name not in already:
            found[name] = text
        space = sys.modules[thing.__module__].__dict__
        for other in sorted(global_names(text) - {name}):
            assert other in space, f"{name} refers to {other}, which its module does not have"
            assert callable(space[other]), f"{name} refers to the global {other}"
            visit(space[other])

    for function in functions:
        visit(function)
    return found


def is_portable(thing: Callable[..., object]) -> bool:
    """Whether the source of a function or class may be cut into a file of its own."""
    return bool(getattr(thing, "__portable__", False)) or thing.__module__ in _PORTABLE_MODULES


@cache
def source_of(thing: Callable[..., object]) -> str:
    """The source of a portable function or class, without our marks on it."""
    if inspect.isfunction(thing):
        nonlocals = inspect.getclosurevars(thing).nonlocals
        assert not nonlocals, f"{thing.__name__} closes over {', '.join(nonlocals)}"
    text = textwrap.dedent(inspect.getsource(thing))
    text = text.removeprefix("@portable\n")
    assert not text.startswith("@"), f"{thing.__name__} has a decorator of its own"
    return re.sub(r"[ ]+# (?:type: ignore|noqa|mypy:).*", "", text)


@cache
def global_names(text: str) -> frozenset[str]:
    """The globals that a piece of source refers to when it runs, builtins left out."""
    code = compile(text, "<cut>", "exec", flags=__future__.annotations.compiler_flag)
    names: set[str] = set()
    stored: set[str] = set()
    for inner in _codes(code):
        for instruction in dis.get_instructions(inner):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(str(instruction.argval))
            # What the piece itself defines, and what a class body names.
            elif instruction.opname == "STORE_NAME":
                stored.add(str(instruction.argval))
    names -= stored
    return frozenset(n for n in names if not hasattr(builtins, n) and not n.startswith("__"))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@cache
def _annotated(text: str) -> frozenset[str]:
    """The names that annotations in a piece of source begin with, builtins left out."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        notes: list[ast.expr | None] = []
        if isinstance(node, ast.arg):
            notes.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            notes.append(node.returns)
        elif isinstance(node, ast.AnnAssign):
            notes.append(node.annotation)
        for note in notes:
            if note is not None:
                names |= {n.id for n in ast.walk(note) if isinstance(n, ast.Name)}
    return frozenset(name for name in names if not hasattr(builtins, name))
