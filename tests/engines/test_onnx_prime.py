"""A primed process exports like any other, and keeps the exporter's table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.onnx_sources import cnn_sample, context_of
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.render import render

load_all()

_BUILD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pipeline", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.build(sys.argv[2], sys.argv[3])
"""
_PRIME = """
from workbench.engines.onnx_prime import prime_export
prime_export()
prime_export()
from torch.onnx._internal.exporter._registration import ONNXRegistry
before = ONNXRegistry.from_torchlib.cache_info()
"""
_COUNT = """
after = ONNXRegistry.from_torchlib.cache_info()
print(after.misses - before.misses, after.hits - before.hits)
"""


@pytest.mark.slow
def test_an_export_after_priming_builds_no_table_and_gives_the_same_graph(tmp_path: Path) -> None:
    sample = cnn_sample(tmp_path / "source")
    text = render(context_of(sample.model, Recipe(engine="onnxruntime")))
    graphs = []
    for name, code, said in (
        ("plain", _BUILD, ""),
        ("primed", _PRIME + _BUILD + _COUNT, "0 1"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pipeline.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", code, folder / "pipeline.py", sample.source, folder],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.strip() == said
        graphs.append((folder / "model.onnx").read_bytes())
    assert graphs[0] == graphs[1]
