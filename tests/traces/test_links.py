"""Which launch a kernel came from."""

from __future__ import annotations

from pathlib import Path

from tests.traces.generator import complete, kernel, launch, write
from workbench.traces.links import link
from workbench.traces.opening import open_trace


def test_a_replayed_graph_owns_all_its_kernels(tmp_path: Path) -> None:
    events = [launch(0, 5, correlation=9, name="cudaGraphLaunch")]
    events += [kernel(f"k{n}", 10 + n, 1, correlation=9) for n in range(544)]
    links = link(open_trace(write(tmp_path / "t.json", events)))
    assert len(links.work) == 544
    assert set(links.launch.tolist()) == {0}


def test_a_kernel_without_a_launch_is_unlinked_and_still_counts(tmp_path: Path) -> None:
    events = [launch(0, 1, correlation=1), kernel("a", 1, 1, correlation=1)]
    events += [kernel("b", 2, 1, correlation=2), kernel("c", 3, 1)]
    links = link(open_trace(write(tmp_path / "t.json", events)))
    assert links.launch.tolist() == [0, -1, -1]
    assert links.num_unlinked == 2


def test_of_a_runtime_call_and_the_driver_call_in_it_the_runtimes_is_taken(tmp_path: Path) -> None:
    events = [
        launch(0, 5, correlation=4),
        complete("cuda_driver", "cuLaunchKernel", 1, 3, correlation=4),
        kernel("k", 6, 1, correlation=4),
    ]
    assert link(open_trace(write(tmp_path / "t.json", events))).launch.tolist() == [0]


def test_without_any_launch_all_work_is_unlinked(tmp_path: Path) -> None:
    links = link(open_trace(write(tmp_path / "t.json", [kernel("k", 0, 1, correlation=3)])))
    assert links.num_unlinked == 1
