"""What importing the package does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "onnx", "onnxruntime", "openvino", "transformers", "pandas", "panel", "bokeh")


def heavy_after(code: str) -> str:
    code = f"import sys\n{code}\nprint(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["workbench", "workbench.study", "workbench.cli"])
def test_a_client_imports_nothing_heavy(module: str) -> None:
    assert heavy_after(f"import {module}") == "[]"


def test_the_names_at_the_top_import_nothing_heavy() -> None:
    code = "import workbench as wb\n[getattr(wb, name) for name in wb.__all__]"
    assert heavy_after(code) == "[]"


def test_the_tables_are_filled_without_an_engines_library() -> None:
    code = "from workbench.engines import engines, load_all\nload_all(); assert engines()"
    assert heavy_after(code) == "[]"


def test_this_test_would_see_a_heavy_import() -> None:
    assert heavy_after("import onnxruntime") != "[]"
