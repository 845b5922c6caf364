"""What importing the package does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "onnx", "onnxruntime", "openvino", "transformers", "pandas", "panel", "bokeh")


@pytest.mark.parametrize("module", ["workbench", "workbench.study", "workbench.cli"])
def test_a_client_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
