"""Each engine's profile of a real variant opens, and says what ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.onnx_sources import Sample, build, cnn_sample, context_of, encoder_sample
from tests.engines.torch_runs import torch_context
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.traces.difference import difference
from workbench.traces.host import host_steps
from workbench.traces.memory import curves, live
from workbench.traces.modules import module_rows
from workbench.traces.opening import open_trace
from workbench.traces.tables import operator_rows
from workbench.traces.trace import Trace
from workbench.traces.windows import windows

load_all()
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


class Recorded:
    """A trace, and what its capture said."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.path = Path(said["path"])
        found = open_trace(self.path)
        assert isinstance(found, Trace)
        self.trace = found


def record(sample: Sample, spec: str, work: Path, *options: str) -> Recorded:
    recipe = Recipe.parse(spec)
    is_torch = recipe.engine.startswith("torch")
    context = torch_context(sample, recipe) if is_torch else context_of(sample.model, recipe)
    artifact = build(sample.source, context, work)
    inputs = work / "inputs.npz"
    np.savez(inputs, **sample.inputs)
    arguments = [recipe.engine, str(artifact), str(inputs), str(work / "traces"), *options]
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.record", *arguments],
        cwd=ROOT,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(work / "caches")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Recorded(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return cnn_sample(tmp_path_factory.mktemp("cnn"))


@pytest.fixture(scope="module")
def eager(cnn: Sample, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(cnn, "engine=torch", tmp_path_factory.mktemp("eager"))


def test_an_eager_profile_has_steps_operators_operands_and_parts(eager: Recorded) -> None:
    trace = eager.trace
    assert [window.number for window in windows(trace)] == list(range(10))
    rows = {row.name: row for row in operator_rows(trace)}
    assert rows["aten::conv2d"].num == 20
    assert any("f32[" in text for text in trace.shapes)
    paths = {row.path for row in module_rows(trace)}
    assert ("first",) in paths
    assert eager.said["num_iterations"] == 10
    assert 0 < eager.said["call_s"] < eager.said["recorded_call_s"] * 2


def test_the_memory_of_a_cpu_is_recorded(eager: Recorded) -> None:
    (curve,) = curves(eager.trace)
    assert curve.device is None
    found = live(eager.trace, curve)
    assert found.blocks
    assert found.by_purpose().get("activations", 0) > 0


def test_the_steps_of_the_host_add_up(eager: Recorded) -> None:
    for step in host_steps(eager.trace):
        parts = step.loading_ns + step.waiting_ns + step.operators_ns + step.python_ns
        assert parts + step.overhead_ns == step.wall_ns
        assert step.operators_ns > 0


def test_stacks_are_recorded_on_request(cnn: Sample, tmp_path: Path) -> None:
    found = record(cnn, "engine=torch", tmp_path, "--stacks")
    assert found.trace.counts()["python"] > 10
    assert any(path.path[-1].startswith("Conv2d") for path in module_rows(found.trace))


def test_the_file_has_the_name_that_tensorboard_looks_for(eager: Recorded) -> None:
    assert eager.path.name.startswith("variant.")
    assert eager.path.name.endswith(".pt.trace.json.gz")


def test_a_compiled_profile_aligns_with_the_eager_one(
    cnn: Sample, eager: Recorded, tmp_path: Path
) -> None:
    compiled = record(cnn, "engine=torch-compile", tmp_path)
    found = difference(eager.trace, compiled.trace)
    assert found.a.unaligned_share < 0.1
    assert found.b.unaligned_share < 0.1
    assert sum(row.difference_ns for row in found.rows) == found.difference_ns


def test_onnx_runtime_profiles_the_runs_that_were_asked_for(cnn: Sample, tmp_path: Path) -> None:
    found = record(cnn, "engine=onnxruntime", tmp_path)
    assert found.trace.format == "onnxruntime"
    assert len(windows(found.trace)) == 10
    assert {"Conv", "FusedConv"} & {row.name for row in operator_rows(found.trace)}
    assert found.trace.shapes


def test_openvinos_counters_become_one_step(tmp_path: Path) -> None:
    found = record(encoder_sample(tmp_path / "sample"), "engine=openvino", tmp_path / "work")
    assert len(windows(found.trace)) == 1
    rows = {row.name for row in operator_rows(found.trace)}
    assert {"FullyConnected", "MatMul"} & rows
