"""Trials of the truth benchmark: what is kept of each, and the file they are appended to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from workbench.core.measurement import Visit
from workbench.measure.verdict import pair_log_ratio

State = Literal["as-is", "busy"]
STATES: tuple[State, ...] = ("as-is", "busy")
# Raw log ratios are kept in steps of this: a thousandth of a percent, far below any noise.
STEP = 1e-5


class RawVisit(msgspec.Struct, frozen=True, kw_only=True):
    """One visit: its pairs' log ratios, baseline over variant, in steps of 1e-5.

    `typical` compares undisturbed calls, as verdicts do; `mean` counts every call. `own_s` is
    the wall time of its rounds; the two numbers of `processes` tell which servers ran it.
    """

    started_s: float
    own_s: float
    typical: tuple[int, ...]
    mean: tuple[int, ...]
    processes: tuple[int, int]
    host_load: float | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """The control that a batch of trials shared."""

    batch: str
    code: str
    state: State
    setup: str
    visits: tuple[RawVisit, ...]


class Trial(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """One row of a study, compared with its baseline by `Study.run`.

    `injected` is the share of extra work (0.0: the baseline against itself), `truth` the ratio
    that it makes by construction. `verdict_at_end` is what the row ended with, `verdict` what
    the finished study says; both None where there is none. `low` and `high` bound `ratio` at
    95 %. `code` is the digest of the measuring and scheduling code.
    """

    batch: str
    code: str
    state: State
    setup: str
    injected: float
    truth: float
    row_state: str
    verdict_at_end: str | None
    verdict: str | None
    ratio: float | None
    low: float | None
    high: float | None
    threshold: float
    budget_s: float
    visits: tuple[RawVisit, ...]
    failure: str = ""

    @property
    def measured_s(self) -> float:
        """The trial's own measuring time: its rounds and the baseline's beside them."""
        return math.fsum(visit.own_s for visit in self.visits)

    @property
    def covers(self) -> bool:
        """Whether there is an interval and the truth lies in it."""
        return (
            self.low is not None and self.high is not None and self.low <= self.truth <= self.high
        )

    @property
    def is_false(self) -> bool:
        """Whether it claims a difference that is not there, or the wrong one."""
        right = "same" if self.injected == 0 else "slower"
        return any(v not in (None, "undecided", right) for v in (self.verdict_at_end, self.verdict))

    def decides_within(self, limit_s: float) -> bool:
        """Whether it ended decided, rightly and for good, in that much measuring time."""
        right = "same" if self.injected == 0 else "slower"
        return self.verdict_at_end == self.verdict == right and self.measured_s <= limit_s


Sample = Trial | Control


def true_ratio(injected: float) -> float:
    """Baseline's time over the variant's, where the variant does `injected` more work."""
    return 1 / (1 + injected)


def raw_visits(visits: Iterable[Visit]) -> tuple[RawVisit, ...]:
    """What is kept of a study's visits."""
    return tuple(_raw(visit) for visit in visits if visit.pairs)


def _raw(visit: Visit) -> RawVisit:
    means = [math.log(pair.baseline.item_s / pair.variant.item_s) for pair in visit.pairs]
    return RawVisit(
        started_s=round(visit.started_s, 3),
        own_s=round(math.fsum(p.baseline.wall_s + p.variant.wall_s for p in visit.pairs), 6),
        typical=tuple(round(pair_log_ratio(pair) / STEP) for pair in visit.pairs),
        mean=tuple(round(value / STEP) for value in means),
        processes=(visit.baseline_process, visit.variant_process),
        host_load=None if visit.host_load is None else round(visit.host_load, 4),
    )


def of_code(samples: Sequence[Sample], code: str) -> list[Sample]:
    """The samples that this measuring and scheduling code has made."""
    return [sample for sample in samples if sample.code == code]


def trials_of(
    samples: Sequence[Sample], state: State | None = None, injected: float | None = None
) -> list[Trial]:
    """Trials of one state and one amount of injected work; of all for None."""
    return [
        sample
        for sample in samples
        if isinstance(sample, Trial)
        and (state is None or sample.state == state)
        and (injected is None or math.isclose(sample.injected, injected))
    ]
