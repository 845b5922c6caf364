"""Which row is the best, or why none is."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.measurement import Quality
from workbench.study import metrics
from workbench.study.comparison import Comparison, Row, meets_limit


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best row, or None with a sentence that says why and names the nearest one."""

    row: Row | None
    nearest: Row | None
    text: str


def best(comparison: Comparison) -> Choice:
    """The fastest row that is decided faster, keeps its quality and did what was asked.

    A row that is provisional, still running, of unknown quality, or that did not execute
    what its recipe asked for never leads. Of the goal "latency" the row with the shortest
    call leads, of the others the one with the least time per item.
    """
    eligible = [row for row in comparison.rows if not _why_not(comparison, row)]
    if eligible:
        # Rows come in the order of the goal.
        row = eligible[0]
        return Choice(row=row, nearest=row, text=f"{name(row)}: {row.verdict_text}")
    nearest, text = _nearest(comparison)
    return Choice(row=None, nearest=nearest, text=text)


def name(row: Row) -> str:
    """A row as sentences call it: "variant 4 (engine=onnxruntime)"."""
    return f"variant {row.number} ({row.variant.recipe.spec})"


def _why_not(comparison: Comparison, row: Row) -> str:
    variant, decision, quality = row.variant, row.decision, row.variant.quality
    if variant.state != "done":
        return f"it is {variant.state}"
    if decision is None or decision.provisional or not row.is_ranked:
        return "it has no verdict yet"
    if comparison.goal == "latency":
        reason = _why_call_not_shorter(row)
        if reason:
            return reason
    elif decision.verdict != "faster":
        return row.verdict_text
    limit_s = comparison.latency_limit_s
    if limit_s is not None and not meets_limit(row, limit_s):
        return f"its calls take longer than {limit_s:g} s"
    if row.unmet:
        return f"it did not do what was asked: {row.unmet[0]}"
    if quality is None or quality.status != "kept":
        return f"quality {quality_words(quality)}"
    return ""


def _why_call_not_shorter(row: Row) -> str:
    # Only of equal batches does the verdict, which is per item, speak about a call too.
    if row.baseline_batch is not None:
        return "its calls do other work than the baseline's"
    assert row.decision is not None
    return "" if row.decision.verdict == "faster" else row.verdict_text


def _nearest(comparison: Comparison) -> tuple[Row | None, str]:
    ranked = [row for row in comparison.rows if row.is_ranked]
    if not ranked:
        return None, "None met it; nothing has been measured yet."
    fast = [row for row in ranked if _is_decided_faster(row)]
    judged = [row for row in fast if row.variant.quality and row.variant.quality.value is not None]
    if judged:
        row = max(judged, key=_goodness)
        quality = row.variant.quality
        assert quality is not None
        assert quality.value is not None
        value = metrics.write(quality.value, quality.metric)
        return (
            row,
            f"None met it; best {value} {quality.metric}, of {name(row)}, which is "
            f"{row.verdict_text}; {_why_not(comparison, row)}.",
        )
    row = (fast or ranked)[0]
    reason = _why_not(comparison, row)
    said = row.verdict_text if row.verdict_text == reason else f"{row.verdict_text}, {reason}"
    return row, f"None met it; best is {name(row)}: {said}."


def _is_decided_faster(row: Row) -> bool:
    decision = row.decision
    return decision is not None and decision.verdict == "faster" and not decision.provisional


def _goodness(row: Row) -> float:
    quality = row.variant.quality
    assert quality is not None
    assert quality.value is not None
    return -quality.value if metrics.is_lower_better(quality.metric) else quality.value


def quality_words(quality: Quality | None) -> str:
    """The state of a row's quality in a few words."""
    if quality is None:
        return "unknown, not compared"
    if quality.status == "unknown":
        why = f": {quality.reasons[0]}" if quality.reasons else ""
        return f"unknown, {quality.num_rows} rows{why}"
    if quality.status == "not_finite":
        return "not finite"
    if quality.status == "undecided" and quality.reasons:
        return f"undecided: {quality.reasons[0]}"
    return quality.status
