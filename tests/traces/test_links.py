"""Which launch a kernel came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.traces.generator import complete, kernel, launch, write
from workbench.traces.enclosure import enclose
from workbench.traces.links import Origins, link, origins
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


def test_a_kernel_that_begins_before_its_launch_is_counted(tmp_path: Path) -> None:
    events = [launch(5, 2, correlation=1), kernel("early", 4, 3, correlation=1)]
    events += [launch(10, 2, correlation=2), kernel("late", 12, 3, correlation=2)]
    assert link(open_trace(write(tmp_path / "t.json", events))).num_before_launch == 1


def origins_of(tmp_path: Path, events: list[dict[str, Any]]) -> Origins:
    trace = open_trace(write(tmp_path / "t.json", events))
    return origins(trace, link(trace), enclose(trace))


def test_the_operator_is_the_closest_around_the_launch(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "aten::linear", 0, 20, External_id=1),
        complete("cpu_op", "aten::addmm", 1, 18, External_id=2),
        launch(5, 2, correlation=3),
        kernel("gemm", 9, 4, correlation=3),
    ]
    events[-1]["args"]["External id"] = 2
    found = origins_of(tmp_path, events)
    assert (found.operator.tolist(), found.num_disagreeing) == ([1], 0)


def test_an_external_id_names_the_operator_where_no_launch_was_recorded(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "aten::addmm", 1, 18, External_id=2),
        kernel("gemm", 9, 4, correlation=3),
        kernel("orphan", 19, 4, correlation=4),
    ]
    events[1]["args"]["External id"] = 2
    assert origins_of(tmp_path, events).operator.tolist() == [0, -1]


def test_an_external_id_that_the_launch_contradicts_is_counted(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "aten::relu", 0, 3, External_id=1),
        complete("cpu_op", "aten::addmm", 4, 18, External_id=2),
        launch(5, 2, correlation=3),
        kernel("gemm", 9, 4, correlation=3),
    ]
    events[-1]["args"]["External id"] = 1
    found = origins_of(tmp_path, events)
    assert found.operator.tolist() == [1]
    assert found.num_disagreeing == 1
