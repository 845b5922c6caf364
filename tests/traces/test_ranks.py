"""Ranks of one job: who waited for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.corpus import ROOT, needs_corpus
from tests.traces.generator import kernel, write
from workbench.core.errors import LoadError
from workbench.traces.opening import open_trace
from workbench.traces.ranks import compare_ranks, rank_of
from workbench.traces.trace import Trace

SUM = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"


def rank(tmp_path: Path, number: int, *spans: tuple[float, float]) -> Trace:
    events = [
        kernel(SUM, start, end - start, correlation=n) for n, (start, end) in enumerate(spans)
    ]
    path = tmp_path / f"rank{number}.json"
    found = open_trace(write(path, events, distributedInfo={"rank": number, "world_size": 2}))
    assert isinstance(found, Trace)
    return found


def test_the_minimum_is_communication_and_the_rest_is_waiting(tmp_path: Path) -> None:
    # The second rank's clock is 1000 µs ahead, and it comes 40 and 20 µs later to each.
    first = rank(tmp_path, 0, (100, 150), (200, 230))
    second = rank(tmp_path, 1, (1140, 1150), (1220, 1230))
    assert (rank_of(first), rank_of(second)) == (0, 1)
    found = compare_ranks({0: first, 1: second})
    assert found.communication_ns == 20_000
    one, other = found.rows
    assert (one.total_ns, one.waiting_ns, one.late_ns) == (80_000, 60_000, 0.0)
    assert (other.total_ns, other.waiting_ns, other.late_ns) == (20_000, 0, 30_000.0)
    assert (one.offset_ns, other.offset_ns) == (0, 1_000_000)
    assert found.slowest == 1


def test_ranks_without_a_collective_in_common_are_refused(tmp_path: Path) -> None:
    one = rank(tmp_path, 0, (1, 2))
    none = rank(tmp_path, 1)
    with pytest.raises(LoadError, match="2 ranks have no collective in common"):
        compare_ranks({0: one, 1: none})
    with pytest.raises(LoadError, match="1 ranks"):
        compare_ranks({0: one})


@needs_corpus
def test_real_ranks_of_different_groups_are_told_apart() -> None:
    paths = sorted((ROOT / "kineto").glob("hta_128rank_sampled_rank*.json.gz"))
    traces = {}
    for number, path in enumerate(paths):
        found = open_trace(path)
        assert isinstance(found, Trace)
        traces[number] = found
    # These two of 128 ranks exchange with others, and end tens of milliseconds apart.
    with pytest.raises(LoadError, match="do not end together"):
        compare_ranks(traces)


def test_collectives_that_do_not_end_together_are_of_other_groups(tmp_path: Path) -> None:
    first = rank(tmp_path, 0, (0, 10), (5_000, 5_010), (9_000, 9_010))
    second = rank(tmp_path, 1, (0, 10), (20_000, 20_010), (70_000, 70_010))
    with pytest.raises(LoadError, match="do not end together"):
        compare_ranks({0: first, 1: second})
