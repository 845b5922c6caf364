"""A baseline and others, as plain records: what tables, plots and documents are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from workbench.core.decision import Decision
from workbench.core.device import Host
from workbench.core.errors import StudyError
from workbench.core.measurement import ColdStart, Visit
from workbench.core.model import Model, PreparedModel
from workbench.core.profile import Profile
from workbench.core.variant import Variant
from workbench.measure import statistics
from workbench.measure.verdict import MIN_CONTROL_VISITS, decide
from workbench.study.indirect import against
from workbench.study.reader import StudyReader

Goal = Literal["time-per-item", "latency", "throughput"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval; the bounds are None while visits are too few."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def inverse(self) -> Estimate:
        """One over it: items a second from seconds an item."""
        return Estimate(
            value=1 / self.value,
            low=None if self.high is None else 1 / self.high,
            high=None if self.low is None else 1 / self.low,
        )


@dataclass(frozen=True, kw_only=True)
class Call:
    """Latency of one call, in seconds: its median, and the tails that samples allow.

    `tails_s` maps "p95" and "p99" to their values; one that rests on too few calls is
    absent. `num_calls` is how many were timed.
    """

    median_s: Estimate
    tails_s: dict[str, Estimate]
    num_calls: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant in a comparison.

    `decision` is about time per item and is None where nothing was measured; `call` is the
    latency of a call, `item_s` seconds an item and `throughput` items a second of one
    stream. `baseline_batch` is the batch of the baseline's calls where it differs from this
    row's, else None. `break_even_calls` is how many calls pay for what this row costs more
    than the baseline before its first answer; None where it never does or is not known, and
    `break_even` says which. `profile` is the latest recording of its calls.
    """

    variant: Variant
    is_baseline: bool
    decision: Decision | None = None
    call: Call | None = None
    item_s: Estimate | None = None
    baseline_batch: int | None = None
    one_off_s: float | None = None
    break_even_calls: int | None = None
    break_even: str = ""
    host_load: float | None = None
    profile: Profile | None = None

    @property
    def number(self) -> int:
        """The row's number in the study."""
        return self.variant.number

    @property
    def throughput(self) -> Estimate | None:
        """Items a second, of one stream."""
        return None if self.item_s is None else self.item_s.inverse

    @property
    def unmet(self) -> tuple[str, ...]:
        """What the recipe asked for and did not get."""
        return () if self.variant.evidence is None else self.variant.evidence.unmet

    @property
    def verdict_text(self) -> str:
        """The verdict in words; of another batch size it says that it is per item."""
        if self.is_baseline:
            return "baseline"
        if self.decision is None:
            return ""
        text = self.decision.text
        if self.decision.provisional and self.decision.low is not None:
            text = f"{text.removeprefix('undecided: ')}, provisional"
        if self.baseline_batch is not None and self.decision.ratio is not None:
            items = self.variant.items_per_call
            return f"{text} per item, batch {items} vs {self.baseline_batch}"
        return text

    @property
    def is_ranked(self) -> bool:
        """Whether the row may stand in an order of speed: it answered, and finitely."""
        quality = self.variant.quality
        wrong = quality is not None and quality.status in ("not_finite", "mismatch")
        return self.decision is not None and self.decision.ratio is not None and not wrong


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """A baseline and the other rows of a study, ordered by `goal`.

    `control` is the baseline measured against itself; its `decision.floor` is what the
    machine's own noise can fake. Failed rows stand last, in the order of their numbers.
    """

    study: str
    model: Model
    prepared: PreparedModel | None
    host: Host | None
    goal: Goal
    latency_limit_s: float | None
    baseline: Row
    rows: tuple[Row, ...]
    control: Row | None
    created_s: float | None = None
    workbench: str | None = None

    @property
    def floor(self) -> float | None:
        """The control's floor as a log ratio, or None before it is known."""
        floors = [r.decision.floor for r in self.rows if r.decision and r.decision.floor]
        return max(floors, default=None)

    def row(self, number: int) -> Row:
        """The row of that number. Raises StudyError where there is none."""
        for row in (self.baseline, *self.rows):
            if row.number == number:
                return row
        raise StudyError(f"the study {self.study} has no variant {number} to compare.")

    def __rich__(self) -> object:
        from workbench.study.terminal import comparison_table

        return comparison_table(self)

    def __repr__(self) -> str:
        # What a plain prompt shows of a result is its repr: the table, as in a notebook.
        from workbench.study.terminal import as_text

        return as_text(self).rstrip("\n")

    def _repr_html_(self) -> str:
        from workbench.study.notebook import comparison_html

        return comparison_html(self)


def compare(
    reader: StudyReader,
    *,
    baseline: int = 1,
    goal: Goal = "time-per-item",
    latency_limit_s: float | None = None,
) -> Comparison:
    """What a study says about its variants, against one of them.

    Every row was measured against row 1; against another baseline the ratios are combined
    through it, which widens their intervals. Raises StudyError where the baseline is no row
    or the goal does not exist.
    """
    if goal not in get_args(Goal):
        raise StudyError(f"there is no goal {goal!r}; there are {', '.join(get_args(Goal))}.")
    variants = {v.number: v for v in reader.variants()}
    shown = {n: v for n, v in variants.items() if v.role != "control"}
    if baseline not in shown:
        known = ", ".join(map(str, shown)) or "none yet; run something first"
        raise StudyError(
            f"the study {reader.folder} has no variant {baseline} to compare with; "
            f"its variants are {known}."
        )
    visits = {number: reader.visits(number) for number in variants}
    control = next((v for v in variants.values() if v.role == "control"), None)
    control_visits = visits[control.number] if control else []
    decisions = {
        n: decide(visits[n], _seen_by(visits[n], control_visits), threshold=v.options.threshold)
        for n, v in variants.items()
        if visits[n]
    }
    root = next((n for n, v in variants.items() if v.role == "baseline"), None)
    base_rounds = [v for n in variants for v in visits[n]]
    made = {}
    for number, variant in variants.items():
        if number == root:
            call, item_s = _summaries(base_rounds, "baseline")
        else:
            call, item_s = _summaries(visits[number], "variant")
        decision = decisions.get(number)
        if number == baseline:
            decision = None
        elif baseline != root:
            decision = against(
                decision,
                decisions.get(baseline),
                is_root=number == root,
                threshold=variant.options.threshold,
            )
        made[number] = (variant, decision, call, item_s, _load(visits[number]))
    return _assemble(reader, made, baseline, control, goal, latency_limit_s)


def _seen_by(visits: Sequence[Visit], control: Sequence[Visit]) -> Sequence[Visit]:
    """The control up to the row's last visit: a verdict that was given stands.

    Rows of another day, beside other load, would else change it without a new measurement. All
    of the control where there was too little of it yet.
    """
    seen = [visit for visit in control if visit.started_s <= visits[-1].started_s]
    return seen if len(seen) >= MIN_CONTROL_VISITS else control


_Made = tuple[Variant, Decision | None, Call | None, Estimate | None, float | None]


def _assemble(
    reader: StudyReader,
    made: dict[int, _Made],
    baseline: int,
    control: Variant | None,
    goal: Goal,
    latency_limit_s: float | None,
) -> Comparison:
    base = made[baseline]
    rows = {}
    for number, (variant, decision, call, item_s, load) in made.items():
        calls, words = _break_even(variant, decision, item_s, base[0].cold_start, base[3])
        ours, theirs = variant.items_per_call, base[0].items_per_call
        rows[number] = Row(
            variant=variant,
            is_baseline=number == baseline,
            decision=decision,
            call=call,
            item_s=item_s,
            baseline_batch=theirs if ours and theirs and ours != theirs else None,
            one_off_s=one_off_s(variant.cold_start),
            break_even_calls=calls,
            break_even=words,
            host_load=load,
            profile=next(reversed(reader.profiles(number)), None),
        )
    others = [row for row in rows.values() if not row.is_baseline and row.variant.role != "control"]
    return Comparison(
        study=str(reader.folder),
        model=reader.model(),
        prepared=reader.prepared(),
        host=reader.host(),
        goal=goal,
        latency_limit_s=latency_limit_s,
        baseline=rows[baseline],
        rows=tuple(sorted(others, key=lambda row: _order(row, goal, latency_limit_s))),
        control=rows.get(control.number) if control else None,
        created_s=reader.created_s(),
        workbench=reader.workbench_version(),
    )


def _order(row: Row, goal: Goal, limit_s: float | None) -> tuple[int, float, int]:
    if not row.is_ranked or row.item_s is None:
        return (2 if row.variant.failure else 1, 0.0, row.number)
    late = limit_s is not None and not meets_limit(row, limit_s)
    if goal == "latency" and row.call is not None:
        return (int(late), row.call.median_s.value, row.number)
    assert row.decision is not None
    assert row.decision.ratio is not None
    return (int(late), -row.decision.ratio, row.number)


def meets_limit(row: Row, limit_s: float) -> bool:
    """Whether the row's calls stay below a latency: its p95 where known, else its median."""
    if row.call is None:
        return False
    return row.call.tails_s.get("p95", row.call.median_s).value <= limit_s


def one_off_s(cold: ColdStart | None) -> float | None:
    """Seconds before a first answer is there: build, cold compile, load and first call.

    None where none of them was measured.
    """
    if cold is None:
        return None
    parts = [cold.build_s, cold.compile_cold_s, cold.load_s]
    # A first call that compiles is in the compile column already.
    if cold.compile_cold_s is None:
        parts.append(cold.first_call_s)
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _break_even(
    variant: Variant,
    decision: Decision | None,
    item_s: Estimate | None,
    base_cold: ColdStart | None,
    base_item_s: Estimate | None,
) -> tuple[int | None, str]:
    if decision is None or decision.ratio is None or decision.provisional:
        return None, ""
    if not item_s or not base_item_s:
        return None, ""
    ours, theirs = one_off_s(variant.cold_start), one_off_s(base_cold)
    if ours is None or theirs is None or variant.items_per_call is None:
        return None, "not known"
    if decision.verdict == "slower":
        return None, "never"
    if decision.verdict != "faster":
        return None, "no gain shown"
    # The ratio comes from rounds side by side; two separate times would add drift to it.
    baseline_call_s = base_item_s.value * variant.items_per_call
    calls = statistics.break_even_calls(
        ours - theirs, baseline_call_s, baseline_call_s / decision.ratio
    )
    assert calls is not None, "a faster row wins back what it costs"
    return calls, f"{calls:,} calls" if calls else "from the first call"


def _summaries(
    visits: Sequence[Visit], side: Literal["baseline", "variant"]
) -> tuple[Call | None, Estimate | None]:
    latency = statistics.summarise(visits, side)
    if latency is None:
        return None, None
    tails = {"p95": latency.p95, "p99": latency.p99}
    call = Call(
        median_s=Estimate(value=latency.median_s, low=latency.low_s, high=latency.high_s),
        tails_s={
            name: Estimate(value=tail.value_s, low=tail.low_s, high=tail.high_s)
            for name, tail in tails.items()
            if tail is not None
        },
        num_calls=latency.num_samples,
    )
    item_s = Estimate(value=latency.item_s, low=latency.item_low_s, high=latency.item_high_s)
    return call, item_s


def _load(visits: Sequence[Visit]) -> float | None:
    loads = [visit.host_load for visit in visits if visit.host_load is not None]
    return sum(loads) / len(loads) if loads else None
