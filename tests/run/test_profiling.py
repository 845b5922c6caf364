"""Profiles of a study that really runs: made after the rounds, and no row pays for one."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest

import workbench as wb
from tests.run import trouble
from tests.run.living import descendants, end_scheduler, row, rows_with_a_worker, wait_until
from tests.run.test_scheduling import QUICK, troubled
from workbench.core.errors import RunError, StudyError
from workbench.core.profile import ENDED
from workbench.run.client import Client
from workbench.study import Study
from workbench.traces.opening import open_trace
from workbench.traces.requests import request_parts
from workbench.traces.tables import operator_rows
from workbench.traces.trace import Trace
from workbench.traces.windows import windows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """A study whose rows were profiled as they ran; one of them failed."""
    with (
        pytest.MonkeyPatch.context() as patch,
        troubled(tmp_path_factory.mktemp("profiled"), patch) as study,
    ):
        study.run(
            "engine=onnxruntime,batch=16",
            f"engine=torch,batch={trouble.RAISE}",
            f"engine=torch,batch={trouble.CRASH_RECORDED}",
            profile=True,
            **QUICK,
        )
        yield study


def test_each_row_that_ran_is_profiled(profiled: Study) -> None:
    assert [len(profiled.profiles(number)) for number in (1, 2, 3, 4)] == [1, 1, 0, 0]
    eager, runtime = profiled.profiles(1)[0], profiled.profiles(2)[0]
    assert (eager.tool, runtime.tool) == ("torch", "onnxruntime")
    for profile in (eager, runtime):
        assert profile.num_iterations == 10
        assert profile.slowdown > 0
        assert profile.snapshot is None


def test_the_recordings_open_and_hold_the_calls(profiled: Study) -> None:
    for number, name, num in ((1, "aten::linear", 20), (2, "Gemm", 10), (2, "FusedGemm", 10)):
        trace = profiled.trace(number)
        assert len(windows(trace)) == 10
        rows = {one.name: one.num for one in operator_rows(trace)}
        assert rows[name] == num
    path = profiled.reader.recording(profiled.profiles(1)[0].trace)
    assert path.parent == profiled.folder / "traces" / "1-torch"
    assert path.name.endswith(".pt.trace.json.gz")


def test_a_row_keeps_its_figures_where_its_recording_fails(profiled: Study) -> None:
    """It crashed while it was recorded, long after its rounds."""
    crashed = row(profiled, 4)
    assert crashed.state == "done"
    assert crashed.failure is None
    assert profiled.visits(4)
    assert any("its profile failed" in note and "signal 11" in note for note in crashed.notes)
    with pytest.raises(RunError, match=r"#4 was not profiled: .*signal 11"):
        profiled.profile(4, progress=False)
    with pytest.raises(StudyError, match=r"#4 has not been profiled"):
        profiled.trace(4)
    # The latest failure, once.
    assert sum("its profile failed" in note for note in row(profiled, 4).notes) == 1
    assert not list((profiled.folder / "traces").glob("4-*"))


def test_what_cannot_be_profiled_is_refused(profiled: Study) -> None:
    with pytest.raises(RunError, match=r"#3 failed before it could be called"):
        profiled.profile(3, progress=False)
    with pytest.raises(RunError, match="1 iteration or more, not 0"):
        profiled.profile(1, iterations=0, progress=False)
    with pytest.raises(RunError, match=r"#2 runs on onnxruntime, whose profiler has no stacks"):
        profiled.profile(2, stacks=True, progress=False)
    with pytest.raises(StudyError, match="no variant 17"):
        profiled.profile(17, progress=False)
    with pytest.raises(RunError, match="profile #1"):
        profiled.profile(0, progress=False)
    with pytest.raises(RunError, match="1 iteration or more, not 0"):
        profiled.run("engine=torch,batch=2", profile=0, **QUICK)
    assert not any(one.recipe.get("batch") == "2" for one in profiled.variants())
    with pytest.raises(StudyError, match="is no row"):
        profiled.profile("first", progress=False)


def test_a_later_recording_is_kept_beside_the_first(profiled: Study) -> None:
    before = row(profiled, 1)
    trace = profiled.profile(1, iterations=3, stacks=True, progress=False)
    assert len(windows(trace)) == 3
    assert trace.counts()["python"] > 10
    first, *_, second = profiled.profiles(1)
    assert not first.with_stacks
    assert second.with_stacks
    assert profiled.reader.recording(first.trace).is_file()
    # Its server was another process; the row is as it was.
    assert row(profiled, 1) == before


def test_what_was_built_for_a_row_is_not_called_cached(profiled: Study) -> None:
    """It was: a row is served again, from what its own build left."""
    assert row(profiled, 2).artifact_cached is False
    assert row(profiled, 1).artifact_cached is False


def test_tensorboard_opens_the_recordings(profiled: Study) -> None:
    """By the PyTorch plugin of a real TensorBoard, which lists a row as a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["--logdir", str(profiled.folder / "traces"), "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *command, "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(what: str, **query: str) -> Any:
        address = f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler/{what}"
        try:
            with urlopen(f"{address}?{urlencode(query)}", timeout=20.0) as answer:
                return json.load(answer)
        except URLError:
            return {}

    try:
        assert wait_until(lambda: "1-torch" in ask("runs").get("runs", ()), 90.0)
        row_of = {"run": "1-torch", "view": "Operator"}
        (worker,) = ask("workers", **row_of)
        assert worker == "variant"
        # One a recording of the row.
        span, *_ = sorted(ask("spans", run="1-torch", worker=worker), key=int)
        table = ask(
            "operation/table", run="1-torch", worker=worker, span=span, group_by="Operation"
        )
        calls = {one["name"]: one["calls"] for one in table["data"]}
        assert calls["aten::linear"] == 20
    finally:
        server.terminate()
        server.wait(20.0)


def test_stop_ends_a_recording_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted profile poisons nothing: the next one has a process of its own."""
    with troubled(tmp_path, monkeypatch) as study:
        study.run(f"engine=torch,batch={trouble.HANG_RECORDED}", **QUICK)
        with Client.connect(study.folder) as client:
            client.profile([2, 1], 5)
            assert wait_until(lambda: _says(client, "recording up to 5 calls"), 60.0)
            # Into the hanging call.
            time.sleep(2.0)
            assert rows_with_a_worker(study) == [2]
            begun_s = time.monotonic()
            assert study.stop(2) == [2]
            assert wait_until(lambda: rows_with_a_worker(study) != [2], 2.0)
            assert time.monotonic() - begun_s < 2.0
            client.wait([1, 2], timeout_s=60.0)
        assert row(study, 2).state == "done"
        assert not study.profiles(2)
        assert len(study.profiles(1)) == 1
        assert not list((study.folder / "traces").glob("2-*/*.gz"))
        assert rows_with_a_worker(study) == []


def test_interrupting_a_profile_stops_nothing_else(profiled: Study) -> None:
    """Neither the rows that another client runs, nor the profiles that it asked for."""
    before = len(profiled.profiles(1))
    (running,) = profiled.run("engine=torch,batch=8", budget_s=2.0, wait=False)
    with Client.connect(profiled.folder) as ours, Client.connect(profiled.folder) as theirs:
        token = ours.profile([1], 3)
        theirs.profile([1], 4)
        assert ours.stop_profiles(token) == [1]
    profiled.wait(progress=False)
    assert row(profiled, running).state == "done"
    assert [one.num_iterations for one in profiled.profiles(1)[before:]] == [4]


def test_each_client_gets_its_own_recording(profiled: Study) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(profiled.profile, 1, iterations=n, progress=False) for n in (3, 5)]
    assert [len(windows(one.result())) for one in found] == [3, 5]


def test_a_copied_or_moved_study_is_not_worked_on_in_its_old_place(
    profiled: Study, tmp_path: Path
) -> None:
    before = len(profiled.profiles(1))
    shutil.copytree(profiled.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("*.log"))
    with Study.open(tmp_path / "copy") as copy:
        copy.profile(1, iterations=2, progress=False)
        assert (len(copy.profiles(1)), len(profiled.profiles(1))) == (before + 1, before)
        copy.folder.rename(tmp_path / "moved")
    with Study.open(tmp_path / "moved") as moved:
        try:
            assert len(windows(moved.profile(1, iterations=2, progress=False))) == 2
        finally:
            end_scheduler(moved)
    assert not (tmp_path / "copy").exists()


def test_stop_drops_the_profiles_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with troubled(tmp_path, monkeypatch) as study:
        numbers = study.run("engine=onnxruntime", profile=True, wait=False, **QUICK)
        study.stop()
        study.wait(*numbers, progress=False)
        assert not any(study.profiles(number) for number in numbers)
        assert all(row(study, number).state == "stopped" for number in numbers)
        assert descendants(study)


def _says(client: Client, message: str) -> bool:
    return any(one.message == message for one in client.events(0.1) if one.profile not in ENDED)


def test_requests_are_recorded_apart_from_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is of the row's batch; a request of what the model's own processing takes."""
    monkeypatch.setenv("WORKBENCH_IDLE_EXIT_S", "60")
    monkeypatch.syspath_prepend(trouble.FOLDER)
    monkeypatch.chdir(tmp_path)
    model = wb.load(
        "trouble:make",
        inputs="x: f32[batch, 16]",
        preprocess=trouble.preprocess,
        postprocess=trouble.postprocess,
        raw=np.arange(4 * 16).reshape(4, 16).tolist(),
    )
    with Study(model, tmp_path / "study") as study:
        try:
            study.run("engine=torch,batch=32", "engine=onnxruntime,batch=32", profile=4, **QUICK)
            for number in (2, 3):
                shapes = {one.shape for one in operator_rows(study.trace(number), by_shape=True)}
                assert any(shape and "f32[32, 16]" in shape for shape in shapes)
            assert study.profiles(3)[0].request is None
            request = study.profiles(2)[0].request
            assert request is not None
            found = open_trace(study.reader.recording(request))
            assert isinstance(found, Trace)
            parts = {part.name: part.share for part in request_parts(found)}
            assert {"preprocess", "copy in", "model", "copy out", "postprocess"} <= set(parts)
            assert sum(parts.values()) == pytest.approx(1.0)
            page = tmp_path / "report.html"
            study.report(page)
            assert "One request" in page.read_text()
        finally:
            end_scheduler(study)
