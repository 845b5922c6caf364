"""What the device did in each step, and why it did nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.corpus import each_kineto_file
from tests.traces.generator import complete, kernel, launch, write
from workbench.traces.opening import open_trace
from workbench.traces.steps import Step, steps

PARTS = (
    "compute_ns",
    "communication_ns",
    "copy_ns",
    "loading_ns",
    "host_bound_ns",
    "synchronising_ns",
    "dependency_ns",
    "latency_ns",
    "unexplained_ns",
    "overhead_ns",
)
NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"


def mark(number: int, start_us: float, dur_us: float) -> dict[str, Any]:
    return complete("user_annotation", f"ProfilerStep#{number}", start_us, dur_us)


def copy(start_us: float, dur_us: float, num_bytes: int, correlation: int) -> dict[str, Any]:
    args = {"device": 0, "stream": 9, "bytes": num_bytes, "correlation": correlation}
    return complete("gpu_memcpy", "Memcpy HtoD", start_us, dur_us, pid=0, tid=9, **args)


def parts(step: Step) -> dict[str, int]:
    """The parts that are not 0, in microseconds."""
    found = {name: getattr(step, name) for name in PARTS}
    assert sum(found.values()) == step.wall_ns
    return {name: value // 1000 for name, value in found.items() if value}


def only(tmp_path: Path, events: list[dict[str, Any]]) -> Step:
    (step,) = steps(open_trace(write(tmp_path / "t.json", events)))
    return step


def test_idle_time_before_a_launch_is_the_hosts_and_after_it_latency(tmp_path: Path) -> None:
    events = [
        mark(3, 0, 100),
        launch(20, 5, correlation=1),
        kernel("a", 30, 40, correlation=1),
    ]
    step = only(tmp_path, events)
    assert (step.number, step.device, step.wall_ns) == (3, 0, 100_000)
    # 25 before the launch was done and 30 after the last work; 5 from launch to start.
    assert parts(step) == {"compute_ns": 40, "host_bound_ns": 55, "latency_ns": 5}
    assert (step.busy_ns, step.idle_ns) == (40_000, 60_000)


def test_a_kernel_that_waits_in_the_queue_costs_the_host_nothing(tmp_path: Path) -> None:
    events = [
        mark(0, 0, 50),
        launch(0, 2, correlation=1),
        launch(2, 2, correlation=2),
        kernel("a", 10, 10, correlation=1),
        kernel("b", 25, 25, correlation=2),
    ]
    step = only(tmp_path, events)
    assert parts(step) == {
        "compute_ns": 35,
        "host_bound_ns": 2,
        "latency_ns": 13,
    }
    # They waited from 2 to 10 and from 4 to 25 of 50 microseconds.
    assert step.queue_depth == pytest.approx((8 + 21) / 50)


def test_a_host_that_synchronises_is_named(tmp_path: Path) -> None:
    events = [
        mark(0, 0, 60),
        launch(0, 5, correlation=1),
        kernel("a", 5, 15, correlation=1),
        complete("cuda_runtime", "cudaDeviceSynchronize", 6, 20),
        launch(40, 5, correlation=2),
        kernel("b", 45, 15, correlation=2),
    ]
    # What it launches next comes late because it waited.
    assert parts(only(tmp_path, events)) == {
        "compute_ns": 30,
        "host_bound_ns": 5,
        "synchronising_ns": 25,
    }


def test_a_host_that_fetches_data_is_named(tmp_path: Path) -> None:
    events = [
        mark(0, 0, 60),
        complete("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 2, 20),
        launch(25, 5, correlation=1),
        kernel("a", 30, 30, correlation=1),
    ]
    assert parts(only(tmp_path, events)) == {
        "compute_ns": 30,
        "loading_ns": 20,
        "host_bound_ns": 10,
    }


def test_only_what_computation_does_not_hide_counts_as_communication_or_copy(
    tmp_path: Path,
) -> None:
    events = [
        mark(0, 0, 100),
        *(launch(n, 1, correlation=n) for n in range(3)),
        kernel("volta_sgemm_64x64_nn", 3, 47, correlation=0),
        kernel(NCCL, 40, 30, correlation=1, stream=8),
        copy(60, 40, 4096, 2),
    ]
    step = only(tmp_path, events)
    assert parts(step) == {
        "compute_ns": 47,
        "communication_ns": 20,
        "copy_ns": 30,
        "host_bound_ns": 1,
        "latency_ns": 2,
    }
    assert (step.all_communication_ns, step.all_copy_ns) == (30_000, 40_000)
    assert (step.num_kernels, step.num_copies, step.copied_bytes) == (2, 1, 4096)


def test_idle_time_before_work_without_a_launch_stays_unexplained(tmp_path: Path) -> None:
    step = only(tmp_path, [mark(0, 0, 30), kernel("a", 10, 20)])
    assert parts(step) == {"compute_ns": 20, "unexplained_ns": 10}
    assert step.queue_depth is None


def test_work_that_crosses_a_step_counts_in_both_for_its_part(tmp_path: Path) -> None:
    events = [mark(0, 0, 20), mark(1, 20, 20), launch(0, 1, correlation=1)]
    events.append(kernel("a", 1, 29, correlation=1))
    first, second = steps(open_trace(write(tmp_path / "t.json", events)))
    assert parts(first) == {"compute_ns": 19, "host_bound_ns": 1}
    assert parts(second) == {"compute_ns": 10, "host_bound_ns": 10}
    assert (first.num_kernels, second.num_kernels) == (1, 0)


def test_without_marks_the_whole_is_one_step(tmp_path: Path) -> None:
    events = [launch(10, 5, correlation=1), kernel("a", 20, 30, correlation=1)]
    step = only(tmp_path, events)
    assert (step.number, step.wall_ns) == (None, 40_000)
    assert parts(step) == {"compute_ns": 30, "host_bound_ns": 5, "latency_ns": 5}


def test_a_trace_of_the_host_alone_has_no_steps_of_a_device(tmp_path: Path) -> None:
    events = [mark(0, 0, 10), complete("cpu_op", "aten::mm", 1, 5)]
    assert steps(open_trace(write(tmp_path / "t.json", events))) == ()


@each_kineto_file()
def test_the_parts_of_every_real_step_add_up(path: Path) -> None:
    for step in steps(open_trace(path)):
        found = [getattr(step, name) for name in PARTS]
        assert min(found) >= 0
        assert sum(found) == step.wall_ns


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "hipDeviceSynchronize"])
def test_waiting_calls_of_every_kind_are_known(tmp_path: Path, name: str) -> None:
    events = [mark(0, 0, 20), complete("cuda_runtime", name, 0, 20), kernel("a", 5, 5)]
    assert parts(only(tmp_path, events))["synchronising_ns"] == 10


def test_steps_of_2021_are_written_as_operators(tmp_path: Path) -> None:
    events = [
        complete("Operator", "ProfilerStep#5", 0, 50),
        complete("Operator", "ProfilerStep#6", 50, 30),
        launch(0, 5, correlation=1),
        kernel("a", 10, 20, correlation=1),
    ]
    found = steps(open_trace(write(tmp_path / "t.json", events)))
    assert [(step.number, step.wall_ns) for step in found] == [(5, 50_000), (6, 30_000)]


@pytest.mark.parametrize("name", ["hipMemcpyWithStream", "cudaMemcpy", "cuMemcpyDtoH_v2"])
def test_a_copy_that_blocks_waits(tmp_path: Path, name: str) -> None:
    events = [
        mark(0, 0, 60),
        launch(0, 5, correlation=1),
        kernel("a", 5, 15, correlation=1),
        complete("cuda_runtime", name, 6, 20),
        launch(40, 5, correlation=2),
        kernel("b", 45, 15, correlation=2),
    ]
    assert parts(only(tmp_path, events))["synchronising_ns"] == 25


def test_a_step_number_beyond_all_reason_is_no_step(tmp_path: Path) -> None:
    events = [complete("user_annotation", "ProfilerStep#" + "9" * 5000, 0, 5), kernel("a", 0, 9)]
    assert only(tmp_path, events).number is None


def test_what_the_profiler_takes_itself_is_neither_work_nor_idle(tmp_path: Path) -> None:
    events = [
        mark(0, 0, 60),
        complete("overhead", "Activity Buffer Request", 2, 10, pid=-1, tid=0),
        launch(20, 5, correlation=1),
        kernel("a", 30, 30, correlation=1),
    ]
    step = only(tmp_path, events)
    assert parts(step) == {
        "compute_ns": 30, "host_bound_ns": 15, "latency_ns": 5, "overhead_ns": 10,
    }  # fmt: skip
    assert step.idle_ns == 20_000


def test_a_stream_that_waits_for_another_is_named(tmp_path: Path) -> None:
    waits = {"device": 0, "stream": 8, "wait_on_stream": 7}
    events = [
        mark(0, 0, 60),
        launch(0, 2, correlation=1),
        complete("cuda_sync", "Stream Wait Event", 3, 1, pid=0, tid=8, **waits),
        launch(5, 2, correlation=2),
        kernel("a", 2, 28, correlation=1),
        kernel("b", 38, 22, correlation=2, stream=8),
    ]
    assert parts(only(tmp_path, events)) == {
        "compute_ns": 50, "host_bound_ns": 2, "dependency_ns": 8,
    }  # fmt: skip
