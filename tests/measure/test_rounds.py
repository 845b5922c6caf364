"""Rounds and warm-up on clocks that the test moves."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.measure import rounds
from workbench.measure.rounds import (
    DeviceClocks,
    calls_for,
    run_round,
    time_copies,
    time_processing,
    warm_up,
)

MS = 1_000_000


class FakeClock:
    """Nanoseconds that only move when something takes time."""

    def __init__(self) -> None:
        self.now_ns = 5_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


class FakePipeline:
    """A pipeline whose n-th call takes `call_ns(n)` on the fake clock."""

    def __init__(self, clock: FakeClock, call_ns: Callable[[int], int]) -> None:
        self.clock = clock
        self.call_ns = call_ns
        self.seen: list[Any] = []
        self.order: list[str] = []
        self.gc_was_on: list[bool] = []

    def place(self, inputs: dict[str, Any]) -> Any:
        self.clock.advance(3 * MS)
        return inputs

    def call(self, placed: Any) -> Any:
        self.clock.advance(self.call_ns(len(self.seen)))
        self.seen.append(placed)
        self.order.append("call")
        self.gc_was_on.append(gc.isenabled())
        return placed

    def synchronize(self) -> None:
        self.order.append("synchronize")

    def fetch(self, raw: Any) -> dict[str, Any]:
        self.clock.advance(4 * MS)
        return {"output": raw}


class FakeGpu(FakePipeline):
    """Calls return at once; the work takes 1 ms on the device and is waited for."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, lambda _: MS // 100)
        self.device_ns = 0

    def call(self, placed: Any) -> Any:
        self.device_ns += MS
        return super().call(placed)

    def synchronize(self) -> None:
        super().synchronize()
        self.clock.now_ns = max(self.clock.now_ns, 5_000 + self.device_ns)

    def record_event(self) -> int:
        return self.device_ns

    def elapsed_s(self, earlier: int, later: int) -> float:
        return (later - earlier) * 1e-9


def quick_round(pipeline: FakePipeline, num_calls: int, **more: Any) -> Any:
    return run_round(
        pipeline,
        ["a", "b", "c"],
        num_calls=num_calls,
        items_per_call=more.pop("items_per_call", 4),
        clock=pipeline.clock,
        cpu_clock=pipeline.clock,
        **more,
    )


def test_a_round_keeps_every_call_and_the_whole() -> None:
    pipeline = FakePipeline(FakeClock(), lambda n: (n + 1) * MS)
    done = quick_round(pipeline, 4)
    assert done.calls_s.tolist() == pytest.approx([0.001, 0.002, 0.003, 0.004])
    assert done.wall_s == pytest.approx(0.010)
    assert done.cpu_s == pytest.approx(0.010)
    assert (done.num_calls, done.num_items) == (4, 16)
    assert done.item_s == pytest.approx(0.010 / 16)


def test_a_round_rotates_inputs_and_synchronises_at_both_ends() -> None:
    pipeline = FakePipeline(FakeClock(), lambda _: MS)
    quick_round(pipeline, 5)
    assert pipeline.seen == ["a", "b", "c", "a", "b"]
    assert pipeline.order == ["synchronize", *["call"] * 5, "synchronize"]


def test_garbage_collection_rests_in_a_round_and_returns() -> None:
    pipeline = FakePipeline(FakeClock(), lambda _: MS)
    assert gc.isenabled()
    quick_round(pipeline, 2)
    assert pipeline.gc_was_on == [False, False]
    assert gc.isenabled()


def test_garbage_collection_returns_after_a_call_that_raises() -> None:
    def fail(_: int) -> int:
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        quick_round(FakePipeline(FakeClock(), fail), 2)
    assert gc.isenabled()


def test_above_ten_thousand_calls_samples_are_thinned_but_all_are_run() -> None:
    pipeline = FakePipeline(FakeClock(), lambda n: 1000 + n % 3)
    done = quick_round(pipeline, 25_001)
    assert len(pipeline.seen) == 25_001
    assert len(done.calls_s) == 25_001 // 3
    assert len(done.calls_s) <= rounds.MAX_CALL_SAMPLES
    assert done.wall_s == pytest.approx(sum(1000 + n % 3 for n in range(25_001)) * 1e-9)
    # Every third call, each timed by itself and not with its neighbours.
    assert np.unique(done.calls_s).tolist() == pytest.approx([1000e-9])


def test_a_gpu_round_reports_work_and_not_launches() -> None:
    """P23: launches take 10 us here and the work 1 ms; neither figure is the launches'."""
    pipeline = FakeGpu(FakeClock())
    done = quick_round(pipeline, 8)
    assert done.wall_s == pytest.approx(0.008)
    assert done.event_s == pytest.approx(0.008)
    assert done.calls_s.tolist() == pytest.approx([0.001] * 8)


def test_events_are_sampled_at_most_256_times() -> None:
    done = quick_round(FakeGpu(FakeClock()), 600)
    assert len(done.calls_s) == 200
    assert done.event_s == pytest.approx(0.6)


def test_clocks_are_read_after_the_round() -> None:
    pipeline = FakePipeline(FakeClock(), lambda _: MS)

    def read() -> DeviceClocks:
        assert pipeline.order[-1] == "synchronize"
        return DeviceClocks(sm_clock_mhz=1410.0, throttled=("power cap",))

    done = quick_round(pipeline, 2, read_clocks=read)
    assert (done.sm_clock_mhz, done.throttled) == (1410.0, ("power cap",))


def test_what_was_not_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "resource", None)
    done = quick_round(FakePipeline(FakeClock(), lambda _: MS), 2)
    assert done.num_switches is None
    assert done.event_s is None
    assert done.sm_clock_mhz is None
    assert done.throttled is None


def test_involuntary_switches_are_counted_where_the_system_counts_them() -> None:
    if rounds.resource is None:
        return
    done = quick_round(FakePipeline(FakeClock(), lambda _: MS), 2)
    assert done.num_switches is not None
    assert done.num_switches >= 0


def test_the_cost_of_timing_a_call_is_far_below_two_per_cent_of_a_millisecond() -> None:
    """Counted in clock readings, the one cost that scales: two for each call."""
    readings = 0
    clock = FakeClock()

    def counting() -> int:
        nonlocal readings
        readings += 1
        return clock()

    pipeline = FakePipeline(clock, lambda _: MS)
    run_round(pipeline, ["a"], num_calls=100, items_per_call=1, clock=counting)
    assert readings == 2 * 100 + 2


def test_cold_calls_stay_out_of_the_figure() -> None:
    """P24: 300 ms in the first three calls, 2 ms afterwards: ~2 ms, cold start apart."""
    clock = FakeClock()
    pipeline = FakePipeline(clock, lambda n: 300 * MS if n < 3 else 2 * MS)
    warm = warm_up(pipeline, ["a"], clock=clock)
    assert warm.first_call_s == pytest.approx(0.3)
    assert warm.call_s == pytest.approx(0.002)
    assert warm.is_stable
    assert max(warm.calls_s) == pytest.approx(0.002)
    assert quick_round(pipeline, 25).calls_s.tolist() == pytest.approx([0.002] * 25)


@pytest.mark.parametrize("num_cold", [1, 2, 5, 6, 8, 12])
def test_warm_up_ends_after_the_last_cold_call(num_cold: int) -> None:
    clock = FakeClock()
    pipeline = FakePipeline(clock, lambda n: 50 * MS if n < num_cold else 2 * MS)
    warm = warm_up(pipeline, ["a"], clock=clock)
    # From eight cold calls on nothing tells them from a slow model but more patience.
    if num_cold <= 6:
        assert warm.call_s == pytest.approx(0.002)
    assert warm.num_calls == len(pipeline.seen)


def test_warm_up_ends_where_calls_keep_getting_faster() -> None:
    clock = FakeClock()
    pipeline = FakePipeline(clock, lambda n: int(200 * MS * 0.9**n))
    warm = warm_up(pipeline, ["a"], max_s=1.0, clock=clock)
    assert not warm.is_stable
    assert warm.num_calls == len(pipeline.seen) < 10


def test_warm_up_of_a_slow_model_ends_with_its_second_call() -> None:
    clock = FakeClock()
    warm = warm_up(FakePipeline(clock, lambda _: 60_000 * MS), ["a"], max_s=10, clock=clock)
    assert warm.num_calls == 2
    assert warm.call_s == pytest.approx(60)
    assert not warm.is_stable


def test_a_first_call_that_compiles_for_long_is_not_taken_for_a_warm_one() -> None:
    """A compile of 30 s, then calls of 2 ms: the row is no 15,000 times slower."""
    clock = FakeClock()
    pipeline = FakePipeline(clock, lambda n: 30_000 * MS if n == 0 else 2 * MS)
    warm = warm_up(pipeline, ["a"], max_s=10, clock=clock)
    assert warm.first_call_s == pytest.approx(30)
    assert warm.call_s == pytest.approx(2e-3)
    assert warm.is_stable


def test_warm_up_calls_with_every_input() -> None:
    clock = FakeClock()
    pipeline = FakePipeline(clock, lambda _: 20 * MS)
    warm_up(pipeline, list("abcdefghijklmnop"), clock=clock)
    assert set(pipeline.seen) == set("abcdefghijklmnop")


def test_warm_up_is_stable_on_a_machine_that_is_not() -> None:
    """Calls 12 % apart, as rounds of a warm model were seen to be."""
    clock = FakeClock()
    noise = np.random.default_rng(0).normal(1, 0.12, 10_000)
    warm = warm_up(FakePipeline(clock, lambda n: int(MS * noise[n])), ["a"], clock=clock)
    assert warm.is_stable
    assert warm.num_calls < 400


@pytest.mark.parametrize(
    ("call_s", "target_s", "expected"), [(0.001, 0.05, 50), (0.3, 0.05, 1), (0.0003, 0.05, 167)]
)
def test_calls_fill_the_round(call_s: float, target_s: float, expected: int) -> None:
    assert calls_for(call_s, target_s) == expected


def test_calls_of_no_measurable_length_are_bounded() -> None:
    assert calls_for(0.0, 0.05) == rounds.MAX_CALL_SAMPLES


def test_copies_are_timed_apart_from_the_call() -> None:
    clock = FakeClock()
    copies = time_copies(FakePipeline(clock, lambda _: 100 * MS), [{"x": 1}], clock=clock)
    assert copies.copy_in_s == pytest.approx(0.003)
    assert copies.copy_out_s == pytest.approx(0.004)


def test_processing_is_timed_apart() -> None:
    """Preprocess and postprocess have seconds of their own, by a clock that each advances."""
    now = 0

    class Requests:
        def preprocess(self, raw: str) -> dict[str, str]:
            nonlocal now
            now += 2_000_000
            return {"x": raw}

        def predict(self, inputs: dict[str, str]) -> dict[str, str]:
            nonlocal now
            now += 50_000_000
            return inputs

        def postprocess(self, outputs: dict[str, str]) -> str:
            nonlocal now
            now += 1_000_000
            return outputs["x"]

    done = time_processing(Requests(), "text", clock=lambda: now)
    assert (done.preprocess_s, done.postprocess_s) == (pytest.approx(2e-3), pytest.approx(1e-3))
