"""Stop within two seconds inside one native call of a minute, in every stage.

Afterwards no process of the row lives and the device is free.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

import workbench as wb
from tests.run import trouble
from tests.run.living import descendants, end_scheduler, row, wait_until
from workbench.run.lock import DeviceLock
from workbench.study import Study

pytestmark = pytest.mark.slow

LIMIT_S = 2.0
CONTROL = 0
ZERO = np.array(0, dtype=np.float32)
THRESHOLD = np.float32(1e6)
QUICK = {"budget_s": 0.2, "progress": False}


@contextmanager
def study_of(model: wb.Model, folder: Path) -> Iterator[Study]:
    study = Study(model, folder)
    try:
        yield study
    finally:
        end_scheduler(study)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_IDLE_EXIT_S", "30")
    monkeypatch.syspath_prepend(trouble.FOLDER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stop_inside(study: Study, number: int, states: set[str], stuck_for_s: float) -> None:
    """Stop a row that is in one of `states`, once it has been stuck there for a while.

    What stays is warm for the next row: spares, and the baseline's server where its row has
    ended. The scheduler takes both with it, which `end_scheduler` asserts.
    """
    assert wait_until(lambda: row(study, number).state in states and open_rows_pids(study), 60)
    stuck_from_s = time.monotonic()
    while time.monotonic() - stuck_from_s < stuck_for_s:
        assert row(study, number).state in states
        time.sleep(0.05)
    busy = open_rows_pids(study)
    assert busy
    started_s = time.monotonic()
    study.stop()
    assert wait_until(lambda: row(study, number).is_final, 5)
    assert time.monotonic() - started_s < LIMIT_S
    stopped = row(study, number)
    assert stopped.state == "stopped"
    assert stopped.failure is not None
    assert stopped.failure.kind == "stopped"
    assert wait_until(lambda: not any(map(is_running, busy)), 2)
    assert wait_until(device_is_free, 2)


def is_running(pid: int) -> bool:
    """Whether a process still does something: one that only waits to be collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_rows_pids(study: Study) -> set[int]:
    return {pid for pid in descendants(study) if is_of_open_row(study, pid)}


def is_of_open_row(study: Study, pid: int) -> bool:
    """Whether a process works for a row that has not ended: no warden, scheduler or spare.

    A worker writes to its row's log once it has one; what a worker starts is no worker.
    """
    if not is_running(pid):
        return False
    try:
        command = " ".join(psutil.Process(pid).cmdline())
        log = Path(f"/proc/{pid}/fd/1").resolve()
    except (psutil.Error, OSError):
        return False
    if "workbench.run.worker" not in command:
        return "workbench.study.scheduler" not in command
    if log.name != "log.txt":
        return False
    number = int(log.parent.name)
    return number == CONTROL or not row(study, number).is_final


def device_is_free() -> bool:
    lock = DeviceLock("cpu")
    try:
        return lock.try_acquire()
    finally:
        lock.release()


def test_in_an_export(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trouble.HANG_VARIABLE, "export")
    with study_of(wb.load("trouble:make", inputs="x: f32[batch, 16]"), here / "study") as study:
        study.run(**QUICK)
        (number,) = study.run("engine=onnxruntime", wait=False, progress=False)
        stop_inside(study, number, {"building"}, 4.0)
        # The study goes on.
        study.run("engine=torch,batch=8", **QUICK)
        assert row(study, number + 1).state == "done"


def test_in_a_compiler_that_the_build_started(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor compiles in a process of its own, which starts a C++ compiler."""
    compiler = here / "slow-c++"
    compiler.write_text(f"#!/bin/sh\necho $$ >> {here}/compilers\nexec sleep 61\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with study_of(wb.load("trouble:make", inputs="x: f32[batch, 16]"), here / "study") as study:
        monkeypatch.setenv("CXX", str(compiler))
        study.run(**QUICK)
        (number,) = study.run("engine=torch-compile", wait=False, progress=False)
        assert wait_until((here / "compilers").exists, 60)
        stop_inside(study, number, {"building"}, 0.5)
        compilers = [int(line) for line in (here / "compilers").read_text().split()]
        assert wait_until(lambda: not any(map(is_running, compilers)), 2)


def test_in_calls(here: Path) -> None:
    """In the warm-up and in a round."""
    with study_of(wb.load("trouble:make", inputs="x: f32[batch, 16]"), here / "study") as study:
        study.run(**QUICK)
        (number,) = study.run(f"engine=torch,batch={trouble.HANG}", wait=False, progress=False)
        stop_inside(study, number, {"loading"}, 1.0)
        late = f"engine=torch,batch={trouble.HANG_LATE}"
        (number,) = study.run(late, wait=False, progress=False)
        stop_inside(study, number, {"measuring"}, trouble.LATE_S + 3.0)


def test_in_a_calibration(here: Path) -> None:
    """The calibration rows, and only they, send the graph round a loop without end."""
    rows = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    graph = save(here / "loop.onnx", looping(num_trips=10**9))
    model = wb.load(graph, inputs={"x": rows[:4]}, calibration={"x": rows + THRESHOLD})
    with study_of(model, here / "study") as study:
        study.run(**QUICK)
        recipe = "engine=onnxruntime,quantization=int8-static"
        (number,) = study.run(recipe, wait=False, progress=False)
        stop_inside(study, number, {"building"}, 4.0)


def test_in_the_creation_of_a_session(here: Path) -> None:
    """ONNX Runtime folds constants when it opens a graph: here a minute of products."""
    rows = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    graph = save(here / "folding.onnx", folding(size=3000, num_products=60))
    with study_of(wb.load(graph, inputs={"x": rows[:4]}), here / "study") as study:
        study.run(wait=False, progress=False)
        stop_inside(study, 1, {"loading"}, 2.0)


def save(path: Path, branch: onnx.GraphProto) -> Path:
    """x[batch, 16] times a weight; `branch` adds its scalar where the largest x is huge."""
    weight = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
    nothing = helper.make_graph(
        [helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(ZERO))],
        "nothing",
        [],
        [helper.make_tensor_value_info("zero", TensorProto.FLOAT, [])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "threshold"], ["is_huge"]),
        helper.make_node("If", ["is_huge"], ["more"], then_branch=branch, else_branch=nothing),
        helper.make_node("Add", ["product", "more"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "stuck",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.array(THRESHOLD / 2, dtype=np.float32), "threshold"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def looping(num_trips: int) -> onnx.GraphProto:
    """A scalar that is squared so many times."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["before", "before"], ["after"]),
            helper.make_node("Identity", ["goes_on"], ["goes_on_too"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("goes_on_too", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, []),
        ],
    )
    trips = numpy_helper.from_array(np.array(num_trips, dtype=np.int64))
    yes = numpy_helper.from_array(np.array(True))
    return helper.make_graph(
        [
            helper.make_node("Constant", [], ["num_trips"], value=trips),
            helper.make_node("Constant", [], ["yes"], value=yes),
            helper.make_node("Constant", [], ["start"], value=numpy_helper.from_array(ZERO)),
            helper.make_node("Loop", ["num_trips", "yes", "start"], ["total"], body=body),
        ],
        "looping",
        [],
        [helper.make_tensor_value_info("total", TensorProto.FLOAT, [])],
    )


def folding(size: int, num_products: int) -> onnx.GraphProto:
    """A scalar at the end of so many products of constant matrices."""
    shape = numpy_helper.from_array(np.array([size, size], dtype=np.int64))
    small = numpy_helper.from_array(np.array([1e-4], dtype=np.float32))
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=shape),
        helper.make_node("ConstantOfShape", ["shape"], ["matrix_0"], value=small),
    ]
    nodes += [
        helper.make_node("MatMul", [f"matrix_{k}", "matrix_0"], [f"matrix_{k + 1}"])
        for k in range(num_products)
    ]
    nodes.append(helper.make_node("ReduceMax", [f"matrix_{num_products}"], ["end"], keepdims=0))
    return helper.make_graph(
        nodes, "folding", [], [helper.make_tensor_value_info("end", TensorProto.FLOAT, [])]
    )
