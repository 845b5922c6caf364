"""Every lever on the torch engines: what can be had runs, and is called what it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.onnx_sources import CPU, Sample, cnn_sample, torch_sample
from tests.engines.recorded import record
from tests.engines.torch_runs import Job, Ran, job, run_all, torch_context
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.table import support
from workbench.levers.step import portable
from workbench.levers.table import plan

load_all()
pytestmark = pytest.mark.slow

ATTENDING = """
import torch
from torch import nn


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(32, 96)
        self.out = nn.Linear(32, 8)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


def make():
    return Attending()
"""

# Error over the output's largest value that a row of each kind may have.
ALLOWED = {"bf16": 0.05, "fp16": 0.01, "int8": 0.05, "int8-weights": 0.05}


@portable
def nothing(first: Any = None, *_: Any, **__: Any) -> Any:
    """What a lever's function is replaced by: it hands back what it was given."""
    return first


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return cnn_sample(tmp_path_factory.mktemp("cnn"))


@pytest.fixture(scope="module")
def attending(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    rows = np.random.default_rng(2).standard_normal((40, 12, 32)).astype("float32")
    return torch_sample(tmp_path_factory.mktemp("attending"), ATTENDING, {"x": rows}, ["output"])


def cells(engine: str, cnn: Sample, attending: Sample) -> list[Job]:
    """A variant for every value that this engine has on this CPU."""
    jobs = []
    for row in support(torch_context(cnn, Recipe(engine=engine), num_threads=2)):
        if row.engine != engine or row.reason is not None:
            continue
        sample = attending if row.lever == "attention" else cnn
        jobs.append(job(sample, Recipe.parse(f"engine={row.key}"), num_threads=2))
    return jobs


@pytest.fixture(scope="module")
def ran(
    cnn: Sample, attending: Sample, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Ran, Sample]]:
    jobs = [one for name in ("torch", "torch-compile") for one in cells(name, cnn, attending)]
    # Passive ones first: how threads wait is settled for a whole run.
    jobs.sort(key=lambda one: one.context.recipe.spec.endswith(":active"))
    active = [one for one in jobs if one.context.recipe.spec.endswith(":active")]
    passive = jobs[: len(jobs) - len(active)]
    results = run_all(tmp_path_factory.mktemp("cells"), *passive)
    results += run_all(tmp_path_factory.mktemp("active"), *active, wait="active")
    found = {r.recipe.spec: (r, j.sample) for r, j in zip(results, jobs, strict=True)}
    as_asked = [r.recipe for r in results if r.evidence is not None and not r.evidence.unmet]
    record([recipe.spec.removeprefix("engine=") for recipe in as_asked], CPU)
    return found


def evidence_of(ran: dict[str, tuple[Ran, Sample]], spec: str) -> Any:
    found = ran[spec][0]
    assert not found.error, found.error
    return found.evidence


def test_every_value_that_can_be_had_runs(ran: dict[str, tuple[Ran, Sample]]) -> None:
    assert len(ran) > 25
    failed = {spec: found.error[-800:] for spec, (found, _) in ran.items() if found.error}
    assert failed == {}


def test_every_row_answers_as_the_model_does(ran: dict[str, tuple[Ran, Sample]]) -> None:
    for spec, (found, sample) in ran.items():
        assert found.evidence is not None
        allowed = max(
            (ALLOWED.get(label.removesuffix("-autocast"), 0) for label in found.evidence.labels),
            default=0,
        )
        assert found.error_of(sample) <= (allowed or 1e-4), spec


def test_every_row_shows_what_was_asked_for(ran: dict[str, tuple[Ran, Sample]]) -> None:
    for spec, (found, _) in ran.items():
        assert found.evidence is not None
        assert found.evidence.unmet == (), spec


@pytest.mark.parametrize("engine", ["torch", "torch-compile"])
def test_labels_are_what_was_seen(engine: str, ran: dict[str, tuple[Ran, Sample]]) -> None:
    def labels(lever: str) -> set[str]:
        return set(evidence_of(ran, f"engine={engine},{lever}").labels)

    assert "bf16" in labels("precision=bf16")
    assert "fp16-autocast" in labels("precision=fp16-autocast")
    assert "int8" in labels("quantization=int8-dynamic")
    assert "int8-weights" in labels("quantization=int8-weights")
    assert "channels-last" in labels("layout=channels-last")
    assert "1 thread" in labels("threads=1")
    assert "active threads" in labels("threads=2:active")
    assert "batch 8" in labels("batch=8")
    assert "attention flash" in labels("attention=flash")
    assert "attention math" in labels("attention=math")


def test_shares_of_the_arithmetic_are_by_format(ran: dict[str, tuple[Ran, Sample]]) -> None:
    """P15: the share of time in int8 kernels is listed, not assumed."""
    mixed = evidence_of(ran, "engine=torch,quantization=int8-dynamic")
    assert mixed.share_of == "time"
    assert 0 < mixed.precision_share["int8"] < 1
    assert sum(mixed.precision_share.values()) == pytest.approx(1)
    static = evidence_of(ran, "engine=torch-compile,quantization=int8-static")
    assert static.precision_share == {"int8": 1.0}


def test_quantized_layers_are_counted_in_the_module(ran: dict[str, tuple[Ran, Sample]]) -> None:
    dynamic = evidence_of(ran, "engine=torch,quantization=int8-dynamic")
    assert (dynamic.num_layers_quantized, dynamic.num_layers) == (1, 3)
    assert dynamic.weights_quantized_share == pytest.approx(5120 / (16 * 9 + 4608 + 5120), 0.05)
    static = evidence_of(ran, "engine=torch-compile,quantization=int8-static")
    assert (static.num_layers_quantized, static.num_layers) == (3, 3)


def test_quantized_artifacts_are_smaller(ran: dict[str, tuple[Ran, Sample]]) -> None:
    def weights(spec: str) -> int:
        return (ran[spec][0].artifact / "weights.safetensors").stat().st_size

    plain = weights("engine=torch")
    assert weights("engine=torch,quantization=int8-weights") < 0.7 * plain
    assert weights("engine=torch,precision=bf16") < 0.6 * plain


def test_saved_weights_keep_the_models_own_names(ran: dict[str, tuple[Ran, Sample]]) -> None:
    """P78: an artifact of torch.compile loads into the plain model."""
    from safetensors import safe_open

    artifact = ran["engine=torch-compile,precision=bf16"][0].artifact
    with safe_open(artifact / "weights.safetensors", "pt") as weights:
        assert {"first.weight", "head.bias"} <= set(weights.keys())
        assert not [name for name in weights.keys() if "_orig_mod" in name]  # noqa: SIM118


def test_what_inductor_fused_is_counted(ran: dict[str, tuple[Ran, Sample]]) -> None:
    frozen = evidence_of(ran, "engine=torch-compile,fusion=freezing")
    assert frozen.fused["oneDNN convolution + relu"] == 2
    assert "freezing" in frozen.labels
    plain = evidence_of(ran, "engine=torch-compile")
    assert plain.fused["c++"] >= 1
    assert "freezing" not in plain.labels
    assert (plain.num_compiles, plain.num_recompiles, plain.graph_breaks) == (1, 0, ())
    folded = evidence_of(ran, "engine=torch,fusion=conv-bn")
    assert folded.fused == {"conv-bn": 1}


def test_no_attention_kernel_comes_out_of_another_ones_cache(
    attending: Sample, tmp_path: Path
) -> None:
    """Three rows of one study share a cache of compiled code, whichever came first."""
    recipes = [Recipe(engine="torch-compile", attention=a) for a in ("math", "flash", None)]
    math, flash, free = run_all(tmp_path, *(job(attending, recipe) for recipe in recipes))
    assert math.evidence is not None, math.error
    assert flash.evidence is not None, flash.error
    assert free.evidence is not None, free.error
    assert math.evidence.attention == "math"
    assert flash.evidence.attention == "flash"
    assert free.evidence.attention == "flash", "PyTorch's own choice"


def replaced(
    monkeypatch: pytest.MonkeyPatch, recipe: Recipe, sample: Sample, **settings: Any
) -> Job:
    """A variant whose lever's functions do nothing."""
    steps = plan(torch_context(sample, recipe, **settings))
    functions: set[Callable[..., object]] = {step.function for step in steps}
    assert functions
    with monkeypatch.context() as patch:
        for module in [m for n, m in sys.modules.items() if n.startswith("workbench.levers.")]:
            for name, value in list(vars(module).items()):
                if callable(value) and value in functions:
                    patch.setattr(module, name, nothing)
        return job(sample, recipe, **settings)


NOTEBOOK = {"num_threads": 2, "float32_matmul_precision": "high"}


def test_a_label_goes_when_its_lever_does_nothing(
    monkeypatch: pytest.MonkeyPatch, cnn: Sample, attending: Sample, tmp_path: Path
) -> None:
    """Labels are read from the run: the recipe alone earns none."""
    wanted = {
        "engine=torch,precision=fp32": "fp32",
        "engine=torch,precision=bf16": "bf16",
        "engine=torch,precision=fp16-autocast": "fp16-autocast",
        "engine=torch,quantization=int8-dynamic": "int8",
        "engine=torch,quantization=int8-weights": "int8-weights",
        "engine=torch,fusion=conv-bn": "conv-bn",
        "engine=torch,layout=channels-last": "channels-last",
        "engine=torch,threads=1": "1 thread",
        "engine=torch,attention=math": "attention math",
        "engine=torch-compile,fusion=freezing": "freezing",
        "engine=torch-compile,fusion=max-autotune": "max-autotune",
        "engine=torch-compile,quantization=int8-static": "int8",
    }
    jobs = []
    for spec in wanted:
        sample = attending if "attention" in spec else cnn
        jobs.append(replaced(monkeypatch, Recipe.parse(spec), sample, **NOTEBOOK))
    jobs.append(job(cnn, Recipe(precision="fp32"), **NOTEBOOK))
    *without, strict = run_all(tmp_path, *jobs)
    for found, label in zip(without, wanted.values(), strict=True):
        assert not found.error, found.error
        assert found.evidence is not None
        assert label not in found.evidence.labels, found.recipe
        ((lever, value),) = found.recipe.levers
        assert any(f"{lever}={value}" in words for words in found.evidence.unmet), found.recipe
    assert strict.evidence is not None
    assert "fp32" in strict.evidence.labels
