"""Recordings of real models: laid side by side, and looked at for what holds them back."""

from __future__ import annotations

import pytest

from tests.traces.corpus import ROOT, needs_corpus
from tests.traces.recorded import recorded
from workbench.traces.difference import difference
from workbench.traces.findings import findings
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace

COMPILE, RUNTIME = "engine=torch-compile", "engine=onnxruntime"
INT8 = ",quantization=int8-static"
DYNAMIC = ",quantization=int8-dynamic"


@pytest.mark.parametrize(
    ("sample", "a", "b"),
    [
        ("digits-cnn-wide", "engine=torch", COMPILE),
        ("digits-cnn-wide", "engine=torch", COMPILE + INT8),
        ("digits-cnn-wide", RUNTIME, RUNTIME + INT8),
        ("digits-cnn-wide", "engine=torch", RUNTIME + INT8),
        ("language-id", "engine=torch", COMPILE),
        ("language-id", "engine=torch", RUNTIME + DYNAMIC),
        ("language-id", RUNTIME, RUNTIME + DYNAMIC),
        ("language-id", "engine=torch", "engine=torch" + DYNAMIC),
        ("byte-gpt", "engine=torch", COMPILE),
        ("minilm", "engine=torch", COMPILE),
        ("minilm", RUNTIME + ",fusion=off", RUNTIME + ",fusion=transformer"),
    ],
)
def test_of_real_pairs_at_most_a_tenth_stays_unaligned(sample: str, a: str, b: str) -> None:
    found = difference(recorded(sample, a), recorded(sample, b))
    assert found.a.unaligned_share <= 0.1
    assert found.b.unaligned_share <= 0.1
    assert sum(row.difference_ns for row in found.rows) == found.difference_ns


@needs_corpus
@pytest.mark.parametrize("model", ["bertsmall_infer", "qwen05b_infer"])
def test_one_model_on_two_makers_gpus_aligns(model: str) -> None:
    a, b = (
        open_trace(ROOT / "kineto" / f"tl_{gpu}_{model}_mem.json.gz") for gpu in ("h100", "mi300")
    )
    assert isinstance(a, Trace)
    assert isinstance(b, Trace)
    found = difference(a, b)
    assert found.a.unaligned_share <= 0.1
    assert found.b.unaligned_share <= 0.1


@pytest.mark.parametrize(
    ("sample", "recipe"),
    [
        ("digits-cnn-wide", COMPILE),
        ("digits-cnn-wide", COMPILE + INT8),
        ("digits-cnn-wide", RUNTIME),
        ("digits-cnn-wide", RUNTIME + INT8),
        ("language-id", COMPILE),
        ("byte-gpt", COMPILE),
        ("minilm", COMPILE),
        ("minilm", RUNTIME + ",fusion=transformer"),
    ],
)
def test_a_healthy_recording_has_no_finding(sample: str, recipe: str) -> None:
    """Compiled or fused, of a batch that fills the cores."""
    assert findings(recorded(sample, recipe)) == ()


@pytest.mark.parametrize(
    ("sample", "recipe", "cause"),
    [
        ("language-id", "engine=torch" + DYNAMIC, "dequantising"),
        ("language-id", RUNTIME, "unfused-attention"),
        ("byte-gpt", RUNTIME, "unfused-attention"),
        ("language-id", "engine=torch", "python"),
    ],
)
def test_what_holds_a_recording_back_is_named_first(sample: str, recipe: str, cause: str) -> None:
    assert findings(recorded(sample, recipe))[0].name == cause


def test_what_recording_adds_is_no_loss_of_the_models() -> None:
    """Marks and operands take the host's time: known from the same calls unrecorded."""
    trace = recorded("language-id")
    (as_recorded, *_) = findings(trace)
    assert as_recorded.prize > 0.4
    (known, *_) = findings(trace, slowdown=1.2)
    assert known.prize < as_recorded.prize - 0.08
    assert "that recording adds to a step are taken off" in known.evidence
    assert findings(trace, slowdown=5.0) == ()
