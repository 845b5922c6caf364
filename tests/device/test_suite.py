"""The GPU suite, tried without a GPU: its arithmetic, its limits, and all of its code."""

from __future__ import annotations

import gzip
import json
import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.device import faults, levers, mark, peaks, rounds
from tests.device.__main__ import SECTIONS
from tests.device.stand import ROOT, Stand, Subject
from tests.device.suite import Notebook, _read
from tests.engines.onnx_sources import H100, host, prepared
from workbench.core.json import Json
from workbench.core.measurement import Pair, Round, Visit
from workbench.core.model import Model, TensorSpec
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.render import render


def suite(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.device", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def result(out: Path, section: str) -> dict[str, Any]:
    return dict(json.loads((out / f"{section}.json").read_text(encoding="utf-8")))


# The frame -----------------------------------------------------------------------------


def test_the_sections_share_the_time_and_stay_under_nine_minutes() -> None:
    assert [section.name for section in SECTIONS] == ["A", "B", "C"]
    assert sum(section.share for section in SECTIONS) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_section_runs_on_a_cpu(tmp_path: Path) -> None:
    """So that the suite does not rot where no GPU is: all of it but what needs CUDA."""
    done = suite(tmp_path, "--device", "cpu", "--quick", "--limit-s", "1200")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for section in SECTIONS:
        found = result(tmp_path, section.name)
        assert found["status"] == "done"
        assert found["torch"]
        assert found["name"]
        assert found["rows"]
        assert all(check["holds"] is not False for check in found["checks"])
        assert f"{section.name}. {section.title}: done" in done.stdout
    ran = [row for row in result(tmp_path, "B")["rows"] if row["state"] == "ran"]
    assert {row["recipe"] for row in ran} == {"torch", "torch,precision=bf16", "onnxruntime"}
    by_recipe = {row["recipe"]: row for row in ran}
    # Eight bits of mantissa against twenty-four.
    assert by_recipe["torch"]["error_max"] < 1e-5 < by_recipe["torch,precision=bf16"]["error_max"]
    assert by_recipe["torch,precision=bf16"]["precision_share"] == {"bf16": 1.0}
    # A reading that a CPU does not have is absent, and never 0.
    assert {row["event_ms"] for row in ran} == {None}
    assert {row["allocated_mb"] for row in ran} == {None}
    assert {row["energy"] for row in ran} <= {"unavailable", "RAPL counter"}
    for name in ("eager", "compiled"):
        with gzip.open(tmp_path / f"trace-{name}.json.gz", "rt", encoding="utf-8") as stream:
            assert json.load(stream)["traceEvents"]
    judged = {check["name"]: check["holds"] for check in result(tmp_path, "C")["checks"]}
    assert judged["out of memory is told as such"] is True
    assert judged["after kill -9 the memory is back"] is True
    assert judged["a stop takes less than two seconds"] is True


@pytest.mark.slow
def test_a_section_over_its_limit_is_ended_and_says_so(tmp_path: Path) -> None:
    done = suite(tmp_path, "--device", "cpu", "--quick", "--section", "C", "--limit-s", "5")
    assert done.returncode == 1
    # Looking at the machine takes a part of the five seconds.
    assert re.fullmatch(r"over its limit of [1-5] s, and ended", result(tmp_path, "C")["status"])
    assert "C. profiles and faults: over its limit" in done.stdout
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert left == []


@pytest.mark.slow
def test_a_device_that_is_not_here_is_no_cpu(tmp_path: Path) -> None:
    """P17: nothing that ran on a CPU may stand in a GPU's file."""
    done = suite(tmp_path, "--device", "cuda:63", "--section", "A")
    assert done.returncode == 1
    found = result(tmp_path, "A")
    assert found["status"].startswith("failed: there is no cuda:63 here")
    assert found["rows"] == []
    assert found["name"] is None


def test_what_was_found_before_the_end_is_kept(tmp_path: Path) -> None:
    """A process may be killed in the middle of a line."""
    path = tmp_path / "lines.jsonl"
    notebook = Notebook(path=path)
    notebook.row(what="first", ms=1.5)
    notebook.check("it holds", True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"kind": "row", "what": "cut')
    kinds = [line["kind"] for line in _read(path)]
    assert kinds == ["row", "check"]
    assert _read(tmp_path / "never-written.jsonl") == []


# A: rounds -----------------------------------------------------------------------------


def one_round(wall_s: float, event_s: float | None = None) -> Round:
    return Round(
        num_calls=1,
        num_items=1,
        wall_s=wall_s,
        calls_s=np.array([wall_s]),
        event_s=event_s,
    )


def test_a_visits_ratio_is_the_median_of_its_pairs() -> None:
    pairs = tuple(
        Pair(baseline=one_round(b), variant=one_round(v), baseline_first=True)
        for b, v in ((1.0, 2.0), (1.0, 2.0), (1.0, 40.0))
    )
    visit = Visit(number=1, started_s=0.0, pairs=pairs)
    assert rounds.log_ratio(visit) == pytest.approx(math.log(0.5))


def test_events_and_the_wall_are_told_apart() -> None:
    pair = Pair(baseline=one_round(1.0, 0.5), variant=one_round(1.0, 0.25), baseline_first=True)
    visit = Visit(number=1, started_s=0.0, pairs=(pair,))
    assert rounds.log_ratio(rounds.by_wall(visit)) == 0.0
    assert rounds.log_ratio(rounds.by_events(visit)) == pytest.approx(math.log(2.0))
    assert len(rounds.by_wall(visit).pairs[0].baseline.calls_s) == 0


def test_a_drift_is_no_spread() -> None:
    """Each round 10 % above the one before: the machine drifts, its rounds do not scatter."""
    assert rounds.spread([1.0, 1.1, 1.21, 1.331]) == pytest.approx(0.0, abs=1e-12)
    scattered = rounds.spread([1.0, 1.1, 1.0, 1.1])
    assert scattered is not None
    assert scattered == pytest.approx(math.log(1.1) * math.sqrt(2 / 3), rel=0.01)
    assert rounds.spread([1.0, 1.1]) is None


# B: levers -----------------------------------------------------------------------------


def subject_on_a_gpu(tmp_path: Path) -> tuple[Stand, Subject]:
    """A model of images, and a stand on a card that is not here."""
    load_all()
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 32, 32))
    layers: Json = {"Conv2d": 3, "BatchNorm2d": 3, "Linear": 2, "MultiheadAttention": 1}
    packages = {**host().packages, "torch": "2.13.0", "triton": "3.7", "torchao": "0.18"}
    there = replace(
        host(),
        devices=(H100,),
        packages=packages,
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        tools={"cc": "/usr/bin/cc", "c++": "/usr/bin/c++"},
    )
    stand = Stand(
        host=there, device=H100, folder=tmp_path, until_s=time.monotonic() + 60, quick=False
    )
    subject = Subject(
        name="images",
        model=Model(name="images", kind="module", folder="", inputs=(spec,), call=None),
        prepared=prepared("factory", (spec,), layers=layers, has_calibration=True),
        folder=tmp_path,
    )
    return stand, subject


def test_every_value_that_a_gpu_has_is_tried(tmp_path: Path) -> None:
    stand, subject = subject_on_a_gpu(tmp_path)
    tried = {recipe.spec for recipe, reason in levers.recipes(stand, subject) if reason is None}
    for spec in (
        "engine=torch",
        "engine=torch,precision=tf32",
        "engine=torch,precision=fp16-autocast",
        "engine=torch,quantization=int4-weights",
        "engine=torch,fusion=cuda-graphs",
        "engine=torch,attention=flash,precision=bf16",
        "engine=torch,attention=cudnn,precision=bf16",
        "engine=torch,attention=efficient",
        "engine=torch,layout=channels-last",
        "engine=torch-compile,fusion=reduce-overhead",
        "engine=torch-compile,fusion=max-autotune",
        "engine=torch-compile,quantization=fp8",
        "engine=onnxruntime",
        "engine=onnxruntime,precision=fp16",
        "engine=onnxruntime,precision=tf32",
        "engine=onnxruntime,fusion=transformer",
    ):
        assert spec in tried
    # Threads and batch sizes are no levers of a GPU; each recipe is served at two batches.
    assert not any("threads" in spec or "batch" in spec for spec in tried)


def test_what_is_tried_can_be_rendered(tmp_path: Path) -> None:
    """Every file that the suite would build on a card compiles, and times by its events."""
    stand, subject = subject_on_a_gpu(tmp_path)
    for recipe, reason in levers.recipes(stand, subject):
        if reason is not None:
            continue
        text = render(subject.context(stand, recipe))
        compile(text, recipe.spec, "exec")
        assert 'device="cuda:0"' in text or "device_id=0" in text, recipe
        if recipe.engine != "onnxruntime":
            assert "with_events(pipeline" in text, recipe


def test_what_takes_long_comes_last() -> None:
    load_all()
    order = [
        Recipe(engine="torch", fusion="cuda-graphs"),
        Recipe(engine="torch-compile"),
        Recipe(engine="torch-compile", precision="bf16"),
        Recipe(engine="torch-compile", fusion="max-autotune"),
    ]
    assert [levers.urgency(recipe) for recipe in order] == [0, 1, 2, 3]


def test_an_error_is_measured_over_the_reference() -> None:
    truth = {"a": np.array([2.0, -4.0]), "b": np.array([1.0])}
    outputs = {"a": np.array([2.0, -3.0]), "b": np.array([1.0])}
    largest, rms = levers.errors(outputs, truth)
    assert largest == pytest.approx(1 / 4)
    assert rms == pytest.approx(math.sqrt(1 / 21))
    assert levers.errors(truth, truth) == (0.0, 0.0)


@pytest.mark.parametrize(
    "outputs",
    [
        {"a": np.array([np.nan, 1.0])},
        {"a": np.array([np.inf, 1.0])},
        {"a": np.array([1.0])},
        {},
    ],
)
def test_an_answer_that_is_none_has_no_small_error(outputs: dict[str, Any]) -> None:
    """P05: overflow must not come out as an error of 0."""
    assert levers.errors(outputs, {"a": np.array([1.0, 1.0])}) == (math.inf, math.inf)
    assert levers.finite(math.inf) == "not finite"


def test_a_loads_memory_is_its_own_only_where_nothing_was_loaded_beside() -> None:
    turn = levers.Turn()
    with turn.alone() as is_clean:
        assert is_clean()
    with turn.alone() as is_clean, turn.outside():
        assert not is_clean()
    with turn.outside(), turn.alone() as is_clean:
        assert not is_clean()
    with turn.alone() as is_clean:
        with turn.outside():
            pass
        assert not is_clean(), "it came and went meanwhile"


def result_of_b(**changes: Any) -> dict[str, Any]:
    ran = {"state": "ran", "unmet": [], "ran_on": "cuda:0 (NVIDIA H200)", "batch": "64"}
    rows = [
        {**ran, "recipe": "torch,attention=flash,precision=bf16"},
        {**ran, "recipe": "torch,precision=tf32", "unmet": ["tf32 was asked for"]},
        {**ran, "recipe": "onnxruntime", "ran_on": "CPU (CUDA unavailable: no library)"},
        {"state": "failed: crash", "recipe": "torch,layout=channels-last", "batch": "1"},
    ]
    found = {"device": "cuda:0", "name": "NVIDIA H200", "quick": False, "rows": rows}
    return {**found, **changes}


def test_only_what_ran_as_asked_is_marked_in_the_table() -> None:
    """P17: a fallback to the CPU is no run on the GPU; a lever without effect is none either."""
    assert mark.keys_of(result_of_b()) == [
        "torch",
        "torch,attention=flash",
        "torch,batch=64",
        "torch,precision=bf16",
    ]
    for changes in ({"quick": True}, {"device": "cpu"}):
        with pytest.raises(ValueError, match="says nothing about a GPU"):
            mark.keys_of(result_of_b(**changes))


# C: faults -----------------------------------------------------------------------------

HOPPER = {
    "kept_bytes": 100_000_000,
    "allocated_bytes": 100_000_256,
    "allocator_peak_bytes": 1_000_000_000,
    "allocator_reserved_bytes": 1_002_438_656,
    "device_used_bytes": 1_520_000_000,
}


def test_three_kinds_of_memory_are_told_apart() -> None:
    """P34: 1 GB was freed and 100 MB are kept."""
    assert set(faults.judge_memory(HOPPER).values()) == {True}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allocated_bytes", 1_000_000_000),
        ("allocator_peak_bytes", 100_000_000),
        ("allocator_reserved_bytes", 100_000_000),
        ("device_used_bytes", 1_000_000_000),
    ],
)
def test_one_kind_shown_as_another_is_found(name: str, value: int) -> None:
    judged = faults.judge_memory({**HOPPER, name: value})
    assert list(judged.values()).count(False) == 1


def test_memory_that_was_not_read_is_not_judged() -> None:
    absent = dict.fromkeys(HOPPER) | {"kept_bytes": 100_000_000}
    assert set(faults.judge_memory(absent).values()) == {None}


def test_the_peak_of_a_card_is_units_times_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100: 132 multiprocessors at 1830 MHz are the 989 TFLOP/s of its data sheet. P23."""
    monkeypatch.setattr(peaks, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(peaks, "_highest_clock_hz", lambda _: 1830e6)
    peak = peaks.peak_flops(H100)
    assert peak is not None
    assert peak == pytest.approx(989e12, rel=0.01)
    shortest_s = 2 * 8192**3 / peak
    assert shortest_s == pytest.approx(1.11e-3, rel=0.01)
    assert peaks.peak_flops(replace(H100, capability=(6, 0))) is None
