"""What the host's thread did in a step."""

from __future__ import annotations

from pathlib import Path

from tests.traces.generator import complete, launch, write
from workbench.traces.host import HostStep, host_steps
from workbench.traces.opening import open_trace


def test_a_steps_times_add_up(tmp_path: Path) -> None:
    events = [
        complete("user_annotation", "ProfilerStep#4", 0, 100),
        complete(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 30
        ),
        # What loading calls is loading.
        complete("cpu_op", "aten::stack", 10, 20),
        complete("cpu_op", "aten::linear", 40, 20),
        complete("cpu_op", "aten::addmm", 42, 10),
        launch(65, 5, correlation=1),
        complete("cuda_runtime", "cudaDeviceSynchronize", 80, 15),
        complete("overhead", "Activity Buffer Request", 72, 4, pid=-1, tid=0),
        # Another thread's, and one that runs a backward pass for this one.
        complete("cpu_op", "aten::mul", 0, 100, tid=2),
        complete("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 97, 2, tid=3),
    ]
    (step,) = host_steps(open_trace(write(tmp_path / "t.json", events)))
    assert step == HostStep(
        number=4,
        wall_ns=100_000,
        loading_ns=30_000,
        waiting_ns=15_000,
        operators_ns=27_000,
        overhead_ns=4_000,
        python_ns=24_000,
    )


def test_without_operators_there_is_no_step(tmp_path: Path) -> None:
    events = [complete("user_annotation", "ProfilerStep#4", 0, 100)]
    assert host_steps(open_trace(write(tmp_path / "t.json", events))) == ()
