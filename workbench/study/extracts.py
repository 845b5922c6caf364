"""What the report's plots show, taken out of a comparison as plain records."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.core.units import format_seconds
from workbench.study import metrics
from workbench.study.choice import name
from workbench.study.comparison import Comparison, Estimate, Row
from workbench.study.markup import Markup, element, join
from workbench.study.plots import Distribution, IntervalBar, Point, StackedBar
from workbench.study.reader import StudyReader
from workbench.study.table import cell

NUM_BINS = 48
# Beyond these quantiles a few calls would squeeze all others into one bin; the tails that
# samples allow are marked all the same.
_SHOWN = (0.002, 0.998)
REQUEST_PARTS = ("preprocess", "copy in", "model", "copy out", "postprocess")
PARTS = ("build", "compile", "load", "first call")


def label(row: Row) -> Markup:
    """A row's name in a plot: its number and its recipe."""
    recipe = row.variant.recipe
    levers = ", ".join(f"{lever} {value}" for lever, value in recipe.levers)
    return join(
        element("b", f"#{row.number} "),
        recipe.engine,
        element("span", levers, class_="detail") if levers else None,
    )


def interval_bars(comparison: Comparison) -> list[IntervalBar]:
    """The rows that have a ratio, in the comparison's order."""
    bars = []
    for row in comparison.rows:
        decision = row.decision
        if not row.is_ranked or decision is None or decision.ratio is None:
            continue
        made = cell(row, "verdict")
        bars.append(
            IntervalBar(
                label=label(row),
                said=made.marked,
                tone=made.tone,
                ratio=decision.ratio,
                low=decision.low,
                high=decision.high,
            )
        )
    return bars


def distributions(reader: StudyReader, comparison: Comparison) -> list[Distribution]:
    """The calls of every measured row, binned evenly on a log axis."""
    found = []
    for row in (comparison.baseline, *comparison.rows):
        calls_s = _calls_s(reader, comparison, row)
        if row.call is None or calls_s is None or calls_s.size < 2:
            continue
        tails = row.call.tails_s
        said = [f"median {format_seconds(row.call.median_s.value)}"]
        said += [f"{tail} {format_seconds(value.value)}" for tail, value in tails.items()]
        batch = row.variant.items_per_call
        if batch and batch != 1:
            said.append(f"batch {batch}")
        low, high = (float(v) for v in np.quantile(calls_s, _SHOWN))
        edges = _edges(low, high)
        counts, _ = np.histogram(np.clip(calls_s, low, high), bins=np.array(edges))
        found.append(
            Distribution(
                label=label(row),
                said=", ".join(said),
                edges_s=edges,
                counts=tuple(int(count) for count in counts),
                median_s=row.call.median_s.value,
                tails_s=tuple(value.value for value in tails.values()),
            )
        )
    return found


def _edges(low: float, high: float) -> tuple[float, ...]:
    if high <= low:
        high = low * 1.001
    # Even steps of the whole plot would hide the shape of a narrow row; its own do not.
    return tuple(float(v) for v in np.geomspace(low * 0.9999, high * 1.0001, NUM_BINS + 1))


def _calls_s(reader: StudyReader, comparison: Comparison, row: Row) -> NDArray[np.float64] | None:
    numbers = [row.number]
    side = "variant"
    if row.variant.role == "baseline":
        # The baseline's calls are the other side of every row's rounds.
        numbers = [r.number for r in comparison.rows]
        side = "baseline"
        if comparison.control is not None:
            numbers.append(comparison.control.number)
    calls = [
        getattr(pair, side).calls_s
        for number in numbers
        for visit in reader.visits(number)
        for pair in visit.pairs
    ]
    return np.concatenate(calls) if calls else None


def stacked_bars(comparison: Comparison) -> list[StackedBar]:
    """What is paid once, of every row that was built."""
    bars = []
    for row in (comparison.baseline, *comparison.rows):
        cold = row.variant.cold_start
        if cold is None or not row.one_off_s:
            continue
        compiled = cold.compile_cold_s is not None
        first_s = None if compiled else cold.first_call_s
        said = f"{format_seconds(row.one_off_s)} in all"
        if row.break_even:
            said += f"; break-even: {row.break_even}"
        bars.append(
            StackedBar(
                label=label(row),
                said=said,
                parts=(cold.build_s, cold.compile_cold_s, cold.load_s, first_s),
            )
        )
    return bars


def request_bars(comparison: Comparison) -> list[StackedBar]:
    """One request of every row that was measured, where the model brings its own processing."""
    bars = []
    for row in (comparison.baseline, *comparison.rows):
        cold = row.variant.cold_start
        if cold is None or cold.preprocess_s is None or row.call is None:
            continue
        parts = (
            cold.preprocess_s,
            cold.copy_in_s,
            row.call.median_s.value,
            cold.copy_out_s,
            cold.postprocess_s,
        )
        whole_s = sum(part or 0.0 for part in parts)
        shares = [
            f"{name} {part / whole_s:.0%}"
            for name, part in zip(REQUEST_PARTS, parts, strict=True)
            if part
        ]
        said = f"{format_seconds(whole_s)}: {', '.join(shares)}"
        bars.append(StackedBar(label=label(row), said=said, parts=parts))
    return bars


def quality_points(comparison: Comparison) -> tuple[list[Point], str]:
    """Rows with a ratio and a quality of the commonest metric, and that metric's name."""
    judged = [
        row
        for row in comparison.rows
        if row.is_ranked and row.variant.quality and row.variant.quality.value is not None
    ]
    metrics = [row.variant.quality.metric for row in judged if row.variant.quality]
    if not metrics:
        return [], ""
    metric = max(set(metrics), key=metrics.count)
    return [point for row in judged if (point := _point(row, metric))], metric


def _point(row: Row, metric: str) -> Point | None:
    quality, decision = row.variant.quality, row.decision
    assert quality is not None
    assert quality.value is not None
    assert decision is not None
    assert decision.ratio is not None
    if quality.metric != metric or not math.isfinite(quality.value):
        return None
    made = cell(row, "quality")
    return Point(
        name=f"#{row.number}",
        x=decision.ratio,
        y=Estimate(value=quality.value, low=quality.low, high=quality.high),
        tone=made.tone,
        said=f"{name(row)}: {row.verdict_text}; {metrics.write(quality.value, metric)} {metric}",
    )


def quality_bound(comparison: Comparison, metric: str) -> float | None:
    """The value that "kept" has to clear, where all rows have the same."""
    tolerances = {
        row.variant.quality.tolerance
        for row in comparison.rows
        if row.variant.quality and row.variant.quality.metric == metric
    } - {None}
    if len(tolerances) != 1:
        return None
    return metrics.bound_of(metric, float(tolerances.pop() or 0.0))


def sweeps(comparison: Comparison) -> list[tuple[str, list[Row]]]:
    """Recipes that were measured with at least three batch sizes, and their rows by size."""
    groups: dict[str, dict[int, Row]] = {}
    for row in (comparison.baseline, *comparison.rows):
        items = row.variant.items_per_call
        if items is None or row.item_s is None or row.call is None:
            continue
        spec = row.variant.recipe.replace(batch=None).spec
        groups.setdefault(spec, {}).setdefault(items, row)
    return [
        (spec, [rows[size] for size in sorted(rows)])
        for spec, rows in groups.items()
        if len(rows) >= 3
    ]


def counts(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """How many rows there are of each verdict or end, those that there are."""
    named: dict[str, int] = {}
    for row in rows:
        named[kind(row)] = named.get(kind(row), 0) + 1
    order = ("faster", "slower", "same", "undecided", "provisional")
    return sorted(
        named.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)
    )


def kind(row: Row) -> str:
    """The word a row is counted under."""
    decision = row.decision
    if row.variant.state in ("failed", "stopped-early"):
        return row.variant.state.replace("-", " ")
    if decision is not None and decision.ratio is not None:
        return "provisional" if decision.provisional else decision.verdict
    return row.variant.state
