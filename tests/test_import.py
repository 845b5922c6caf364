"""What importing the package costs, and what it must not bring along."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

import pytest

_HEAVY = ("torch", "onnx", "onnxruntime", "openvino", "pandas", "IPython")


def _run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _loaded_after(statement: str, *names: str) -> str:
    return _run(f"import sys\n{statement}\nprint(*[n for n in {names!r} if n in sys.modules])")


def test_importing_brings_no_library() -> None:
    assert _loaded_after("import workbench", *_HEAVY, "rich", "msgspec", "numpy") == ""


def test_a_recipe_needs_no_library() -> None:
    statement = "import workbench as wb; wb.Recipe(engine='onnxruntime', batch=8)"
    assert _loaded_after(statement, *_HEAVY, "rich", "msgspec", "numpy") == ""


def test_the_command_line_starts_without_the_engines() -> None:
    statement = "from workbench.cli.parser import parser; parser()"
    assert _loaded_after(statement, *_HEAVY, "rich", "msgspec", "numpy") == ""


def test_a_study_is_reached_without_the_engines_libraries() -> None:
    assert (
        _loaded_after("import workbench as wb; wb.Study; wb.open_study; wb.open_trace", *_HEAVY)
        == ""
    )


def test_every_public_name_is_there_and_no_other() -> None:
    code = "import workbench as wb; print(*[type(getattr(wb, n)).__name__ for n in wb.__all__])"
    assert len(_run(code).split()) == 8
    assert "load" in _run("import workbench as wb; print(*dir(wb))").split()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _run("import workbench; workbench.nothing")
    assert "has no attribute 'nothing'" in caught.value.stderr


def test_importing_is_quick() -> None:
    """Below 0.15 s beyond the interpreter, timed inside it and by the median of five."""
    code = "import time; t = time.perf_counter(); import workbench; print(time.perf_counter() - t)"
    assert median(float(_run(code)) for _ in range(5)) < 0.15
