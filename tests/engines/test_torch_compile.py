"""torch.compile: what it captured, where it gave up, and when it stopped compiling."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.engines.onnx_sources import torch_sample
from tests.engines.torch_runs import job, run_all, torch_context
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.render import render

load_all()
pytestmark = pytest.mark.slow

BREAKING = """
from torch import nn


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.max().item() > 0:
                x = x + 1
        return x


def make():
    return Breaking()
"""

MANY_SHAPES = """
import torch


def run():
    module = torch.nn.ReLU()
    source = {
        "call": {"args": [["tensor", "x"]], "kwargs": {}},
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "width"]}],
        "batch_axes": {"x": 0},
    }
    place = make_place(source, device="cpu")
    compiled = compile_module(module, {"dynamic": False})
    call = make_call(compiled)
    inspect = make_compiled_inspect(module, source, device="cpu")
    pipeline = Pipeline(place, call, make_fetch(), lambda: None, inspect, dict, None, None)
"""


def test_graph_breaks_have_a_file_a_line_and_a_reason(tmp_path: Path) -> None:
    """P37: breaks are counted and each is placed, in the user's own file."""
    rows = np.ones((40, 8), dtype="float32")
    sample = torch_sample(tmp_path / "made", BREAKING, {"x": rows}, ["output"])
    (found,) = run_all(tmp_path / "runs", job(sample, Recipe(engine="torch-compile")))
    assert found.evidence is not None, found.error
    breaks = found.evidence.graph_breaks
    assert breaks
    line = 1 + BREAKING.splitlines().index("            if x.max().item() > 0:")
    assert {(Path(b.file).name, b.line) for b in breaks} == {("factory.py", line)}
    assert "item()" in breaks[0].reason
    assert "forward() runs eagerly" in breaks[0].reason, "it is in a loop"
    assert found.evidence.num_compiles == 0
    assert "compiled" not in found.evidence.labels
    assert found.error_of(sample) < 1e-5


def test_a_break_outside_a_loop_leaves_two_graphs(tmp_path: Path) -> None:
    """P37: the graphs are counted as well as what separates them."""
    rows = np.ones((40, 8), dtype="float32")
    code = BREAKING.replace("for layer in self.layers:", "if True:").replace(
        "x = layer(x)", "x = self.layers[0](x)"
    )
    sample = torch_sample(tmp_path / "made", code, {"x": rows}, ["output"])
    (found,) = run_all(tmp_path / "runs", job(sample, Recipe(engine="torch-compile")))
    assert found.evidence is not None, found.error
    assert found.evidence.graph_breaks is not None
    assert len(found.evidence.graph_breaks) == 1
    assert found.evidence.num_compiles == 2
    assert "compiled" in found.evidence.labels


def test_shapes_past_the_limit_of_recompiles_are_called_eager(tmp_path: Path) -> None:
    """P36: 12 widths with dynamic=False are 8 compiles; the rest says that it fell back."""
    rows = np.ones((40, 8), dtype="float32")
    sample = torch_sample(tmp_path / "made", BREAKING, {"x": rows}, ["output"])
    text = render(torch_context(sample, Recipe(engine="torch-compile")))
    library = text[: text.index('if __name__ == "__main__"')]
    driver = (
        library
        + MANY_SHAPES
        + """
    import json, numpy
    reports = []
    for width in range(2, 14):
        placed = pipeline.place({"x": numpy.ones((3, width), "float32")})
        reports.append(pipeline.inspect(placed)["compile"])
    print(json.dumps(reports))


run()
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", driver],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reports = json.loads(done.stdout)
    assert [r["ran_compiled"] for r in reports] == [True] * 8 + [False] * 4
    assert [r["num_compiles"] for r in reports] == [*range(1, 9), 8, 8, 8, 8]
    assert reports[-1]["num_recompiles"] == 7
    assert "compiled" not in reports[-1]["labels"]
    (note,) = reports[-1]["notes"]
    assert "eager fallback for the shapes [[3, 13]]" in note
    assert "dynamic=True" in note
    assert "pad" in note


MERGING = """
from torch import nn


def make():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3),
        nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10),
    )
"""


def test_static_int8_merges_what_follows_a_layer_at_any_batch(tmp_path: Path) -> None:
    """One kernel each, quantizing and activation included, and the same answers as fp32."""
    rows = np.random.default_rng(0).standard_normal((40, 1, 8, 8)).astype("float32")
    sample = torch_sample(tmp_path / "made", MERGING, {"x": rows}, ["output"])
    recipe = Recipe(engine="torch-compile", quantization="int8-static")
    runs = run_all(tmp_path / "runs", job(sample, recipe), job(sample, recipe.replace(batch=1)))
    for found in runs:
        assert found.evidence is not None, found.error
        assert found.error_of(sample) < 0.05
        assert found.evidence.precision_share == {"int8": 1.0}
        assert found.evidence.fused["oneDNN qconv_pointwise"] == 2
        assert found.evidence.fused["oneDNN qlinear_pointwise"] == 2
        assert (found.evidence.num_layers_quantized, found.evidence.num_layers) == (4, 4)


def test_a_second_process_finds_the_compiled_code_and_shows_the_same(tmp_path: Path) -> None:
    """Evidence does not depend on whether kernels came from the cache."""
    rows = np.ones((40, 8), dtype="float32")
    plain = BREAKING.replace("            if x.max().item() > 0:\n                x = x + 1\n", "")
    sample = torch_sample(tmp_path / "made", plain, {"x": rows}, ["output"])
    wanted = [job(sample, Recipe(engine="torch-compile", fusion="freezing"))] * 2
    wanted += [job(sample, Recipe(engine="torch-compile"))] * 2
    runs = run_all(tmp_path / "runs", *wanted)
    assert not "".join(found.error for found in runs)
    for cold, cached in ((runs[0], runs[1]), (runs[2], runs[3])):
        assert cold.evidence is not None
        assert cached.evidence is not None
        assert cold.evidence.labels == cached.evidence.labels
        assert cold.evidence.fused == cached.evidence.fused
        assert cached.evidence.num_compiles == 1
