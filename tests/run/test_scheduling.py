"""Studies that really run: queueing, stopping, dying and going on.

Every model here runs in real workers. The trouble model fails at chosen batch sizes, so one
row fails while its neighbours must not notice.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import workbench as wb
from tests.run import trouble
from tests.run.living import (
    descendants,
    end_scheduler,
    row,
    rows_with_a_worker,
    scheduler_pid,
    wait_until,
)
from workbench.core.errors import RecipeError
from workbench.core.variant import RunOptions
from workbench.run.client import Client
from workbench.run.servers import ONE_AT_A_TIME
from workbench.study import Study
from workbench.study.reader import StudyReader

pytestmark = pytest.mark.slow

QUICK = {"budget_s": 0.2, "progress": False}


@contextmanager
def troubled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    """A study of the trouble model; its scheduler and all that came from it end with it."""
    monkeypatch.setenv("WORKBENCH_IDLE_EXIT_S", "60")
    monkeypatch.syspath_prepend(trouble.FOLDER)
    monkeypatch.chdir(folder)
    made = Study(wb.load("trouble:make", inputs="x: f32[batch, 16]"), folder / "study")
    try:
        yield made
    finally:
        pid = scheduler_pid(made)
        end_scheduler(made)
        assert pid is None or not psutil.pid_exists(pid)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    """A study that has not run yet."""
    with troubled(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """A study that has run its baseline, for tests which add rows and look at those alone."""
    with (
        pytest.MonkeyPatch.context() as patch,
        troubled(tmp_path_factory.mktemp("used"), patch) as made,
    ):
        made.run(**QUICK)
        yield made


def test_failures_of_every_kind_leave_the_other_rows_unharmed(used: Study) -> None:
    """P70, P74, P05, P24: which kind it was, what to do, and the next row still runs."""
    sizes = {
        trouble.CRASH: ("crash", "signal 11"),
        trouble.EXIT: ("exit", "code 3"),
        trouble.RAISE: ("exception", "ValueError: 44 rows are too many"),
        trouble.MEMORY: ("out_of_memory", "out of memory"),
        trouble.INFINITE: ("not_finite", "not finite"),
    }
    numbers = used.run(*(f"engine=torch,batch={size}" for size in sizes), **QUICK)
    for number, (kind, words) in zip(numbers, sizes.values(), strict=True):
        failed = row(used, number)
        assert failed.state == "failed"
        assert failed.failure is not None
        assert failed.failure.kind == kind
        assert words in failed.failure.message
        assert failed.failure.remedy
    (number,) = used.run("engine=torch,batch=16", **QUICK)
    assert row(used, number).state == "done"
    assert row(used, 1).state == "done"
    assert row(used, 1).failure is None


def test_a_row_that_failed_alone_brings_no_control_up(used: Study) -> None:
    """Nobody would be compared with it, and the device would be held meanwhile."""
    (number,) = used.run(f"engine=torch,batch={trouble.RAISE}", **QUICK)
    assert row(used, number).state == "failed"
    with Client.connect(used.folder, start=False) as client:
        assert wait_until(lambda: client.status().waiting_for_device is not None)
    before = StudyReader(used.folder).variant(0)
    (number,) = used.run(f"engine=torch,batch={trouble.RAISE}", **QUICK)
    with Client.connect(used.folder, start=False) as client:
        assert wait_until(lambda: client.status().waiting_for_device is not None)
    assert StudyReader(used.folder).variant(0) == before


def test_a_hang_ends_at_the_stage_limit(used: Study) -> None:
    (number,) = used.run(f"engine=torch,batch={trouble.HANG}", limits_s={"load": 3.0}, **QUICK)
    failure = row(used, number).failure
    assert failure is not None
    assert failure.kind == "timeout"
    assert "3.00 s" in failure.message


def test_a_crash_in_the_rounds_is_the_rows_and_not_the_baselines(used: Study) -> None:
    (number,) = used.run(f"engine=torch,batch={trouble.CRASH_LATE}", progress=False)
    failed = row(used, number)
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.stage) == ("crash", "measure")
    assert row(used, 1).state == "done"


def test_a_row_five_times_slower_stops_early_and_can_be_resumed(used: Study) -> None:
    (number,) = used.run(f"engine=torch,batch={trouble.SLOW}", **QUICK)
    early = row(used, number)
    assert early.state == "stopped-early"
    assert early.first_ratio is not None
    assert early.first_ratio < 0.2
    used.resume(number, **QUICK)
    assert row(used, number).state == "done"


def test_rows_carry_what_was_measured_beside_the_rounds(used: Study) -> None:
    (number,) = used.run("engine=torch,batch=32", **QUICK)
    done = row(used, number)
    assert done.state == "done"
    assert done.items_per_call == 32
    assert done.cold_start is not None
    assert done.cold_start.load_s is not None
    assert done.cold_start.first_call_s is not None
    assert done.memory is not None
    assert done.energy is not None
    assert done.energy.joules_per_1000_items is None or done.energy.joules_per_1000_items > 0
    assert done.evidence is not None
    assert done.evidence.device == "cpu"
    assert done.size_bytes is not None
    assert done.versions is not None
    assert "torch" in done.versions


def test_no_row_pays_for_an_earlier_one(used: Study) -> None:
    """P25, P30, P31: each serves in a process of its own, which starts at the same level."""
    numbers = used.run("engine=torch,batch=16", "engine=onnxruntime", "engine=torch", **QUICK)
    first, other, last = numbers
    processes = [{v.variant_process for v in used.visits(n)} for n in numbers]
    baselines = {v.baseline_process for n in numbers for v in used.visits(n)}
    assert not processes[0] & processes[1] | processes[1] & processes[2]
    assert not baselines & set().union(*processes)
    starts = [row(used, n).memory for n in (first, last)]
    assert starts[0] is not None
    assert starts[1] is not None
    assert starts[0].host_start_bytes is not None
    assert starts[1].host_start_bytes == pytest.approx(starts[0].host_start_bytes, rel=0.1)
    for number in (first, other, last):
        evidence = row(used, number).evidence
        assert evidence is not None
        assert evidence.num_threads is not None
    # The server of an ONNX Runtime row has not imported torch.
    versions = row(used, other).versions
    assert versions is not None
    assert "torch" not in versions


def test_an_artifact_is_built_once(used: Study) -> None:
    first, second = used.run("engine=torch,batch=12", "engine=torch,batch=12", **QUICK)
    assert row(used, first).artifact == row(used, second).artifact
    assert row(used, second).artifact_cached


def test_unknown_recipes_are_refused_before_anything_is_queued(study: Study) -> None:
    with pytest.raises(RecipeError, match="onnxruntime"):
        study.run("engine=torch,batch=16", "engine=onnxrutime", **QUICK)
    assert study.variants() == []


def test_an_unavailable_value_keeps_its_row_with_the_reason(used: Study) -> None:
    """P17: fp8 or CUDA on a CPU-only machine is said, never run as something else."""
    (number,) = used.run("engine=torch,quantization=fp8", **QUICK)
    failure = row(used, number).failure
    assert failure is not None
    assert failure.kind == "unavailable"
    assert "quantization=fp8 is not available" in failure.message


def test_a_killed_scheduler_leaves_no_worker_and_loses_nothing(study: Study) -> None:
    study.run("engine=torch,batch=16", **QUICK)
    (number,) = study.run("engine=torch,batch=64", wait=False, progress=False)
    assert wait_until(lambda: row(study, number).state == "measuring", 60)
    assert wait_until(lambda: len(study.visits(number)) > 0, 60)
    num_visits = len(study.visits(number))
    pid = scheduler_pid(study)
    family = descendants(study)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(psutil.pid_exists, family)), 5)
    assert len(study.visits(number)) >= num_visits
    study.run("engine=torch,batch=8", **QUICK)
    interrupted = row(study, number)
    assert interrupted.state == "interrupted"
    assert row(study, 2).state == "done"
    study.resume(number, **QUICK)
    assert row(study, number).state == "done"
    assert len(study.visits(number)) > num_visits


def test_a_closed_client_does_not_end_a_run(used: Study) -> None:
    numbers = used.run("engine=torch,batch=16", wait=False, **QUICK)
    again = Study.open(used.folder)
    again.wait(progress=False)
    assert all(row(again, number).state == "done" for number in numbers)


def test_two_studies_never_measure_at_once(study: Study, tmp_path: Path) -> None:
    """The device is locked across studies; the second is told its place and then runs."""
    other = Study(study.model, tmp_path / "other")
    try:
        study.run("engine=torch,batch=16", wait=False, progress=False, budget_s=3.0)
        assert wait_until(lambda: row(study, 1).state != "queued", 60)
        with Client.connect(other.folder) as client:
            numbers = client.submit([wb.Recipe(batch=16)], RunOptions(budget_s=0.2))
            seen = [p.message for p in client.events(1.0)]
            assert any("another study uses" in message for message in seen)
            client.wait(numbers)
        assert row(other, 2).state == "done"
        first_end = row(study, 2).finished_s
        assert first_end is not None
        assert min(v.started_s for v in other.visits(2)) > first_end
    finally:
        end_scheduler(other)


def test_an_idle_scheduler_leaves(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_IDLE_EXIT_S", "2")
    study.run("engine=torch,batch=16", **QUICK)
    # Asked once: a client that asks again and again keeps it.
    family = descendants(study)
    assert family
    assert wait_until(lambda: not any(map(psutil.pid_exists, family)), 30)
    assert scheduler_pid(study) is None


def test_where_two_do_not_fit_servers_take_turns(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time do two servers live, and the rows are measured and checked all the same."""
    monkeypatch.setenv(ONE_AT_A_TIME, "1")
    numbers = study.run("engine=torch,batch=16", wait=False, progress=False, budget_s=0.2)
    seen: list[list[int]] = []
    while not all(row(study, number).is_final for number in numbers):
        seen.append(rows_with_a_worker(study))
        time.sleep(0.02)
    assert max(map(len, seen)) == 1, [rows for rows in seen if len(rows) > 1]
    for number in numbers:
        assert row(study, number).state == "done", row(study, number).failure
    variant = row(study, numbers[1])
    assert study.visits(variant.number)
    assert variant.quality is not None
    assert variant.evidence is not None
