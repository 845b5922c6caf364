"""The eager engine on models that are awkward, and in a process of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.onnx_sources import (
    Sample,
    cnn_sample,
    context_of,
    prepared,
    serve,
    torch_sample,
    write_factory,
    write_source,
)
from tests.engines.torch_runs import job, run_all
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.source import checked_arrays

load_all()

CONVOLUTIONS = """
from torch import nn


def make():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
"""

WITH_LINEAR = """
from torch import nn


def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 32))
"""

TIED = """
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def make():
    return Tied()
"""

READ_TWICE = """
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.second = nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.stem(x)
        y = self.inner(self.first(x).relu())
        return self.second(y) + x


def make():
    model = Residual()
    for norm in (model.first, model.second):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return model
"""

LARGE = """
import torch
from torch import nn


def make():
    layer = nn.Linear(256, 256, bias=False)
    nn.init.constant_(layer.weight, 4.0)
    return layer
"""

IMAGES = np.random.default_rng(0).standard_normal((40, 1, 8, 8)).astype("float32")
SPECS: list[dict[str, Any]] = [
    {"name": "x", "dtype": "float32", "shape": ["batch", 2]},
    {"name": "ids", "dtype": "int64", "shape": ["batch"]},
]


def test_inputs_are_cast_where_no_value_is_lost() -> None:
    """P59: float64 arrays and int32 ids are taken."""
    arrays = checked_arrays({"ids": np.array([1, 2], "int32"), "x": np.zeros((2, 2))}, SPECS)
    assert [(name, str(array.dtype)) for name, array in arrays.items()] == [
        ("x", "float32"),
        ("ids", "int64"),
    ]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"x": np.zeros((2, 2), "int64")}, TypeError, "input x: wanted float32, got int64"),
        ({"x": np.zeros(2, "float32")}, TypeError, "input x: wanted 2 dimensions"),
        ({"ids": np.array([1.5, 2.5])}, TypeError, "input ids: wanted int64, got float64"),
        ({"ids": np.array([2**63], "uint64")}, TypeError, "values of uint64 do not fit int64"),
        ({"ids": None}, KeyError, "no input ids"),
    ],
)
def test_a_wrong_input_is_named_with_what_was_wanted(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    """P59: the message names the input, what is wanted and what came."""
    inputs = {"x": np.zeros((2, 2), "float32"), "ids": np.array([1, 2]), **given}
    kept = {name: array for name, array in inputs.items() if array is not None}
    with pytest.raises(error, match=says):
        checked_arrays(kept, SPECS)


def test_an_empty_batch_and_a_single_number_are_inputs() -> None:
    """P59: 0-d and empty arrays keep their shapes."""
    specs = [{"name": "x", "dtype": "float32", "shape": []}]
    assert checked_arrays({"x": 3.0}, specs)["x"].shape == ()
    empty = {"x": np.zeros((0, 2), "float32"), "ids": np.zeros(0, "int64")}
    assert checked_arrays(empty, SPECS)["x"].shape == (0, 2)


@pytest.mark.slow
def test_what_cannot_be_quantized_is_not_called_int8(tmp_path: Path) -> None:
    """P12: dynamic int8 of convolutions alone covers nothing; of Conv and Linear, one of two."""
    bare = torch_sample(tmp_path / "a", CONVOLUTIONS, {"x": IMAGES}, ["output"])
    mixed = torch_sample(tmp_path / "b", WITH_LINEAR, {"x": IMAGES}, ["output"])
    recipe = Recipe(quantization="int8-dynamic")
    none, one = run_all(tmp_path / "runs", job(bare, recipe), job(mixed, recipe))
    assert none.evidence is not None, none.error
    assert none.evidence.unmet == ("quantization=int8-dynamic: 0 of 2 layers, 0 % of weights",)
    assert "int8" not in none.evidence.labels
    assert one.evidence is not None, one.error
    assert "int8" in one.evidence.labels
    assert (one.evidence.num_layers_quantized, one.evidence.num_layers) == (1, 2)
    assert one.evidence.unmet == ()


@pytest.mark.slow
def test_shared_weights_stay_shared_through_a_cast(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 16, (40, 6))
    sample = torch_sample(tmp_path / "tied", TIED, {"ids": ids}, ["output"])
    recipes = (Recipe(), Recipe(precision="bf16"))
    plain, cast = run_all(tmp_path / "runs", *(job(sample, r) for r in recipes))
    assert not plain.error + cast.error
    assert plain.error_of(sample) == 0
    assert cast.error_of(sample) < 0.05
    assert cast.raw["weights"]["bytes"]["bf16"] == 2 * (16 * 8 + 8 + 8)
    assert cast.outputs["output"].dtype == np.float32, "numpy has no bfloat16"


@pytest.mark.slow
def test_a_convolution_that_others_read_is_not_folded(tmp_path: Path) -> None:
    sample = torch_sample(tmp_path / "made", READ_TWICE, {"x": IMAGES}, ["output"])
    (found,) = run_all(tmp_path / "runs", job(sample, Recipe(fusion="conv-bn")))
    assert found.evidence is not None, found.error
    assert found.evidence.fused == {"conv-bn": 1}
    assert json.loads((found.artifact / "folded.json").read_text()) == [["inner", "second"]]
    assert found.error_of(sample) < 1e-5


@pytest.mark.slow
def test_an_overflow_in_half_precision_comes_out_as_it_is(tmp_path: Path) -> None:
    """P05: fp16 gives infinities and bf16 does not; nothing hides them."""
    rows = np.full((40, 256), 100, dtype="float32")
    sample = torch_sample(tmp_path / "made", LARGE, {"x": rows}, ["output"])
    recipes = (Recipe(precision="fp16"), Recipe(precision="bf16"))
    half, brain = run_all(tmp_path / "runs", *(job(sample, r) for r in recipes))
    assert np.isinf(half.outputs["output"]).all()
    assert np.isfinite(brain.outputs["output"]).all()


def exported(sample: Sample, folder: Path) -> Sample:
    """The same model as an exported program."""
    import torch

    space: dict[str, Any] = {"__name__": "factory"}
    exec((sample.source / "factory.py").read_text(), space)
    torch.manual_seed(0)
    module = space["make"]().eval()
    rows = torch.from_numpy(sample.inputs["x"][:4])
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (rows,), dynamic_shapes=({0: batch},))
    folder.mkdir()
    torch.export.save(program, folder / "program.pt2")
    example = {"x": sample.inputs["x"][:1]}
    specs = write_source(folder, "exported", example, ["output"], calibration=sample.inputs)
    with torch.no_grad():
        reference = module(torch.from_numpy(sample.inputs["x"])).numpy()
    return Sample(
        source=folder,
        model=prepared("exported", specs, example_size=1, has_calibration=True),
        inputs=sample.inputs,
        reference={"output": reference},
    )


def scripted(sample: Sample, folder: Path) -> Sample:
    """The same model as TorchScript."""
    import torch

    module = write_factory(folder, (sample.source / "factory.py").read_text())
    rows = torch.from_numpy(sample.inputs["x"])
    torch.jit.trace(module, (rows[:4],)).save(str(folder / "module.pt"))
    for name in ("factory.py", "weights.safetensors"):
        (folder / name).unlink()
    specs = write_source(folder, "torchscript", {"x": sample.inputs["x"][:1]}, ["output"])
    return replace(sample, source=folder, model=prepared("torchscript", specs, example_size=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_kind_of_source_is_opened_cast_and_quantized(tmp_path: Path) -> None:
    made = cnn_sample(tmp_path / "factory")
    program = exported(made, tmp_path / "exported")
    script = scripted(made, tmp_path / "script")
    int8 = Recipe(quantization="int8-dynamic")
    runs = run_all(
        tmp_path / "runs",
        job(program, Recipe()),
        job(program, Recipe(precision="bf16")),
        job(program, int8),
        job(program, int8.replace(engine="torch-compile")),
        job(script, Recipe()),
        job(script, Recipe(precision="bf16")),
        job(script, Recipe(precision="bf16-autocast")),
    )
    samples = (program, program, program, program, script, script, script)
    for found, sample in zip(runs, samples, strict=True):
        assert found.evidence is not None, f"{found.recipe}: {found.error}"
        assert found.error_of(sample) < 0.05, found.recipe
        assert found.evidence.unmet == (), found.recipe
    assert runs[0].error_of(program) < 1e-5
    assert runs[4].error_of(script) < 1e-5
    compiled = runs[3].evidence
    assert compiled is not None
    assert compiled.graph_breaks == (), "the quantized weight is read inside the graph"


@pytest.mark.slow
def test_spinning_threads_are_seen_in_a_process_of_their_own(tmp_path: Path) -> None:
    """P25: how threads wait is set before torch is imported, read back, and a label."""
    sample = cnn_sample(tmp_path / "made")
    context = context_of(sample.model, Recipe(threads="2:active"))
    served = serve(sample.source, context, sample.inputs, tmp_path / "run")
    assert served.evidence.thread_wait == "active"
    assert served.evidence.num_threads == 2
    assert {"active threads", "2 threads"} <= set(served.evidence.labels)
    assert served.evidence.unmet == ()


@pytest.mark.slow
def test_the_notebooks_flags_are_taken_over_and_read_back(tmp_path: Path) -> None:
    sample = cnn_sample(tmp_path / "made")
    flags = {"num_threads": 2, "float32_matmul_precision": "high", "cudnn_benchmark": True}
    (found,) = run_all(tmp_path / "runs", job(sample, Recipe(), **flags))
    assert found.raw["threads"]["num"] == 2
    assert found.raw["flags"]["cudnn_benchmark"] is True
    assert found.raw["flags"]["fp32_precision"]["mkldnn.matmul"] == "tf32"
    assert found.evidence is not None
    assert "fp32" not in found.evidence.labels, "it is not strict fp32 that was asked for"
