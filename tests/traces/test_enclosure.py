"""What a thread's events enclose, and what is left to each of them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.traces.corpus import each_kineto_file
from tests.traces.generator import complete, write
from workbench.traces.enclosure import enclose, nearest
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace


def by_a_stack(trace: Trace, rows: list[int]) -> dict[int, tuple[int, int]]:
    """Parent and self time of each row, one event at a time."""
    lanes = defaultdict(list)
    for row in rows:
        lanes[int(trace.lane[row])].append(row)
    found: dict[int, list[int]] = {}
    for mine in lanes.values():
        start = {row: int(trace.start_ns[row]) for row in mine}
        end = {row: start[row] + int(trace.duration_ns[row]) for row in mine}
        stack: list[int] = []
        for row in sorted(mine, key=lambda r: (start[r], -end[r])):
            while stack and end[stack[-1]] <= start[row]:
                stack.pop()
            parent = stack[-1] if stack else -1
            if stack:
                end[row] = min(end[row], end[parent])
                found[parent][1] -= end[row] - start[row]
            found[row] = [parent, end[row] - start[row]]
            stack.append(row)
    return {row: (parent, max(0, left)) for row, (parent, left) in found.items()}


def assert_as_by_a_stack(trace: Trace) -> None:
    nested = enclose(trace)
    pairs = zip(nested.parent.tolist(), nested.self_ns.tolist(), strict=True)
    rows = nested.rows.tolist()
    assert dict(zip(rows, pairs, strict=True)) == by_a_stack(trace, rows)


@each_kineto_file()
def test_real_threads_nest_as_a_stack_says(path: Path) -> None:
    assert_as_by_a_stack(open_trace(path))


@pytest.mark.parametrize("seed", range(20))
def test_any_spans_nest_as_a_stack_says(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    events = [
        complete("cpu_op", "x", int(start), int(length), tid=int(thread))
        for start, length, thread in zip(
            rng.integers(0, 100, 80), rng.integers(0, 40, 80), rng.integers(0, 3, 80), strict=True
        )
    ]
    assert_as_by_a_stack(open_trace(write(tmp_path / "t.json", events)))


def test_self_time_is_what_children_leave(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "outer", 0, 10),
        complete("cpu_op", "inner", 2, 3),
        complete("cpu_op", "innermost", 3, 1),
        complete("cpu_op", "after", 10, 4),
        complete("cpu_op", "elsewhere", 2, 9, tid=2),
    ]
    nested = enclose(open_trace(write(tmp_path / "t.json", events)))
    assert nested.parent.tolist() == [-1, 0, 1, -1, -1]
    assert nested.depth.tolist() == [0, 1, 2, 0, 0]
    assert nested.self_ns.tolist() == [7_000, 2_000, 1_000, 4_000, 9_000]
    assert nested.num_clipped == 0


def test_a_child_that_outlasts_its_parent_counts_until_its_end(tmp_path: Path) -> None:
    events = [complete("cpu_op", "parent", 0, 10), complete("cpu_op", "child", 6, 8)]
    nested = enclose(open_trace(write(tmp_path / "t.json", events)))
    assert nested.self_ns.tolist() == [6_000, 4_000]
    assert nested.num_clipped == 1


def test_the_operator_around_a_launch_is_found_through_what_lies_between(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "aten::linear", 0, 20),
        complete("cpu_op", "aten::addmm", 1, 18),
        complete("python_function", "wrapper", 2, 10),
        complete("cuda_runtime", "cudaLaunchKernel", 3, 2),
        complete("cuda_runtime", "cudaDeviceSynchronize", 30, 2),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    launches = trace.rows("runtime")
    assert nearest(trace, enclose(trace), launches, "operator").tolist() == [1, -1]
    assert nearest(trace, enclose(trace), np.array([0]), "operator").tolist() == [0]


def test_without_events_nothing_nests(tmp_path: Path) -> None:
    nested = enclose(open_trace(write(tmp_path / "t.json", [])))
    assert len(nested.rows) == len(nested.parent) == 0


def test_times_of_another_epoch_on_many_threads_still_nest(tmp_path: Path) -> None:
    now_us = 1_718_000_000_000_000
    events = [complete("cpu_op", "lost", 0, 1, tid=99)]
    for thread in range(12):
        events.append(complete("cpu_op", "outer", now_us, 10, tid=thread))
        events.append(complete("cpu_op", "inner", now_us + 2, 3, tid=thread))
        events.append(complete("cpu_op", "lost", 5, 1, tid=thread))
    trace = open_trace(write(tmp_path / "t.json", events))
    enclosure = enclose(trace)
    own = {trace.names[trace.name[row]]: ns for row, ns in
           zip(enclosure.rows.tolist(), enclosure.self_ns.tolist(), strict=True)}  # fmt: skip
    assert own == {"lost": 1_000, "outer": 7_000, "inner": 3_000}
    assert sorted(enclosure.depth.tolist()) == [0] * 25 + [1] * 12


def test_a_recursion_is_nested_to_its_end(tmp_path: Path) -> None:
    num = 2_000
    events = [complete("python_function", "f", n, 2 * (num - n)) for n in range(num)]
    events.append(complete("python_function", "after", 5 * num, 1))
    enclosure = enclose(open_trace(write(tmp_path / "t.json", events)))
    assert enclosure.depth.tolist() == [*range(num), 0]
    assert enclosure.parent.tolist() == [*range(-1, num - 1), -1]
