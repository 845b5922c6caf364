"""Workers as the scheduler meets them: real processes, pipelines that misbehave."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from workbench.run import protocol
from workbench.run.crew import Crew
from workbench.run.failures import (
    RowStopped,
    StageTimeout,
    WorkerFailed,
    WorkerGone,
    failure_of,
)
from workbench.run.processes import Worker

PIPELINE = """
import numpy as np

class Pipeline:
    preprocess = postprocess = None
    def place(self, inputs): return inputs
    def call(self, placed): return {{"output": placed["x"] * 2.0}}
    def fetch(self, raw): return raw
    def synchronize(self): pass
    def predict(self, inputs): return self.fetch(self.call(self.place(inputs)))
    def inspect(self, placed): return {{"executed": {{"device": "cpu"}}}}
    def memory(self): return {{}}

def build(source_dir, out_dir):
    {build}

def load(out_dir):
    {load}
    return Pipeline()
"""


def nothing() -> None:
    """No client asks for anything."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source folder with one input of eight rows."""
    folder = tmp_path / "source"
    folder.mkdir()
    spec = {"name": "x", "dtype": "float32", "shape": ["batch", 4]}
    (folder / "source.json").write_text(
        json.dumps({"inputs": [spec], "batch_axes": {"x": 0}, "output_batch_axes": {"output": 0}})
    )
    np.savez(folder / "example.npz", x=np.arange(32, dtype=np.float32).reshape(8, 4))
    return folder


class Harness:
    """A crew with one worker that has a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attend: Callable[[], None] = nothing
        self.read_fd, self.write_fd = os.pipe()
        self.crew = Crew(
            sys.executable,
            has_torch=False,
            log=folder / "crew.log",
            wake_fd=self.read_fd,
            attend=lambda: self.attend(),
        )

    def worker(self) -> Worker:
        assign = protocol.Assign(log=str(self.folder / "log.txt"))
        return self.crew.take(with_torch=False, environment={}, assign=assign)[0]

    def build(
        self, source: Path, *, build: str = "pass", load: str = "pass", limit_s: float = 30.0
    ) -> protocol.FromWorker:
        out = self.folder / "artifact"
        out.mkdir(exist_ok=True)
        (out / "pipeline.py").write_text(PIPELINE.format(build=build, load=load))
        order = protocol.Build(
            pipeline=str(out / "pipeline.py"),
            source_dir=str(source),
            out_dir=str(out),
            compile_once=False,
            batch_size=8,
        )
        return self.crew.ask(self.worker(), order, stage="build", limit_s=limit_s)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.crew.dismiss_all()
    assert not psutil.Process().children(), "a worker was left behind"


def test_crash_names_the_signal(harness: Harness, source: Path) -> None:
    """P74: a native crash ends the worker, and the row says which signal."""
    with pytest.raises(WorkerGone) as caught:
        harness.build(source, build="import ctypes; ctypes.string_at(0)")
    failure = failure_of(caught.value, "build", harness.folder / "log.txt")
    assert failure.kind == "crash"
    assert "signal 11" in failure.message


def test_exit_names_the_code(harness: Harness, source: Path) -> None:
    """P74: `os._exit(3)` in the user's code."""
    with pytest.raises(WorkerGone) as caught:
        harness.build(source, build="import os; os._exit(3)")
    failure = failure_of(caught.value, "build", harness.folder / "log.txt")
    assert failure.kind == "exit"
    assert "code 3" in failure.message


def test_exception_keeps_its_traceback_and_the_worker(harness: Harness, source: Path) -> None:
    with pytest.raises(WorkerFailed) as caught:
        harness.build(source, build="raise KeyError('weight')")
    failure = failure_of(caught.value, "build", harness.folder / "log.txt")
    assert failure.kind == "exception"
    assert failure.message == "KeyError: 'weight'"
    assert "pipeline.py" in failure.detail


def test_out_of_memory_is_told_apart(harness: Harness, source: Path) -> None:
    with pytest.raises(WorkerFailed) as caught:
        harness.build(source, build="raise MemoryError('128 GB')")
    failure = failure_of(caught.value, "build", harness.folder / "log.txt")
    assert failure.kind == "out_of_memory"
    assert "smaller batch" in failure.remedy


def test_memory_limit_makes_an_allocation_fail(harness: Harness, source: Path) -> None:
    assign = protocol.Assign(log=str(harness.folder / "log.txt"), memory_limit_bytes=600_000_000)
    worker, _ = harness.crew.take(with_torch=False, environment={}, assign=assign)
    out = harness.folder / "artifact"
    out.mkdir()
    build = "import numpy; numpy.ones(200_000_000)"
    (out / "pipeline.py").write_text(PIPELINE.format(build=build, load="pass"))
    order = protocol.Build(
        pipeline=str(out / "pipeline.py"),
        source_dir=str(source),
        out_dir=str(out),
        compile_once=False,
        batch_size=None,
    )
    with pytest.raises(WorkerFailed) as caught:
        harness.crew.ask(worker, order, stage="build", limit_s=30)
    assert caught.value.answer.kind == "out_of_memory"


def test_a_stage_has_a_time_limit(harness: Harness, source: Path) -> None:
    with pytest.raises(StageTimeout) as caught:
        harness.build(source, build="import time; time.sleep(60)", limit_s=0.3)
    failure = failure_of(caught.value, "build", harness.folder / "log.txt")
    assert failure.kind == "timeout"
    assert "build took longer than its limit of 300 ms" in failure.message


def test_a_stop_interrupts_one_native_call_within_two_seconds(
    harness: Harness, source: Path
) -> None:
    """A call that holds the interpreter's lock for a minute and cannot see a signal."""

    def stop() -> None:
        raise RowStopped("stopped")

    harness.attend = stop
    os.write(harness.write_fd, b"x")
    started_s = time.monotonic()
    with pytest.raises(RowStopped):
        harness.build(source, build="import ctypes; ctypes.PyDLL(None).sleep(60)")
    harness.crew.dismiss_all()
    assert time.monotonic() - started_s < 2.0 + 1.0, "starting the worker takes a part of it"
    assert not psutil.Process().children(recursive=True)


def test_what_a_model_prints_goes_to_the_log(harness: Harness, source: Path) -> None:
    harness.build(source, build="print('hello from build', flush=True)")
    assert "hello from build" in (harness.folder / "log.txt").read_text()


def serve(harness: Harness, source: Path, batch_size: int = 3) -> Worker:
    """A worker that has built and loaded the plain pipeline."""
    harness.build(source)
    worker = harness.worker()
    order = protocol.Load(
        folder=str(harness.folder / "artifact"),
        source_dir=str(source),
        model_folder=str(source),
        modules=["numpy"],
        batch_size=batch_size,
        warm_up_s=0.2,
    )
    loaded = harness.crew.ask(worker, order, stage="load", limit_s=30)
    assert isinstance(loaded, protocol.Loaded)
    assert loaded.items_per_call == batch_size
    return worker


def test_a_round_counts_calls_and_items(harness: Harness, source: Path) -> None:
    worker = serve(harness, source)
    done = harness.crew.ask(worker, protocol.Calls(num_calls=50), stage="measure", limit_s=30)
    assert isinstance(done, protocol.RoundDone)
    assert (done.num_calls, done.num_items) == (50, 150)
    assert len(np.frombuffer(done.calls_s, "<f8")) == 50
    assert done.wall_s > 0


def test_rows_are_the_same_whatever_the_batch(harness: Harness, source: Path) -> None:
    """Eight rows at batch 3 need a padded last call, whose padding must not be kept."""
    from workbench.run.rows import read_outputs

    worker = serve(harness, source)
    out = harness.folder / "outputs.npz"
    order = protocol.Evaluate(out=str(out), max_rows=100, max_s=10.0)
    done = harness.crew.ask(worker, order, stage="check", limit_s=30)
    assert isinstance(done, protocol.Evaluated)
    assert (done.num_rows, done.is_real) == (8, False)
    expected = np.arange(32, dtype=np.float32).reshape(8, 4) * 2
    np.testing.assert_array_equal(read_outputs(out)["output"], expected)


def test_a_late_answer_is_not_taken_for_the_next(harness: Harness, source: Path) -> None:
    worker = serve(harness, source)

    def stop() -> None:
        raise RowStopped("stopped")

    harness.attend = stop
    os.write(harness.write_fd, b"x")
    with pytest.raises(RowStopped):
        harness.crew.ask(worker, protocol.Calls(num_calls=200_000), stage="measure", limit_s=30)
    harness.attend = nothing
    done = harness.crew.ask(worker, protocol.Calls(num_calls=7), stage="measure", limit_s=30)
    assert isinstance(done, protocol.RoundDone)
    assert done.num_calls == 7


def test_a_worker_without_torch_never_imports_it(harness: Harness, source: Path) -> None:
    worker = serve(harness, source)
    answer = harness.crew.ask(worker, protocol.Inspect(), stage="measure", limit_s=30)
    assert isinstance(answer, protocol.Inspected)
    assert set(answer.versions) == {"numpy"}
    maps = Path(f"/proc/{worker.pid}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()
