"""Quality metrics as a reader needs them: how they are written, and which side is good."""

from __future__ import annotations


def is_share(metric: str) -> bool:
    """Whether a metric is a share of rows, 1 being best."""
    return any(word in metric for word in ("agreement", "overlap"))


def is_difference(metric: str) -> bool:
    """Whether a metric is a difference of shares, 0 being no loss."""
    return metric == "accuracy difference"


def is_lower_better(metric: str) -> bool:
    """Whether less is better: errors and ratios of perplexity."""
    return not (is_share(metric) or is_difference(metric) or metric == "finite")


def bound_of(metric: str, tolerance: float) -> float:
    """The value that "kept" has to clear."""
    if is_share(metric):
        return 1.0 - tolerance
    if is_difference(metric):
        return -tolerance
    return 1.0 + tolerance if metric == "perplexity ratio" else tolerance


def write(value: float, metric: str) -> str:
    """A value as people write it: shares in per cent, their differences in points."""
    if is_share(metric) or metric == "finite":
        return f"{value * 100:.4g} %"
    if is_difference(metric):
        return f"{value * 100 + 0.0:+.2f} points"
    return f"{value:.3g}"


def write_span(value: float, low: float | None, high: float | None, metric: str) -> str:
    """A value with its interval, the unit said once."""
    if low is None or high is None:
        return write(value, metric)
    number, _, unit = write(value, metric).partition(" ")
    ends = (write(end, metric).partition(" ")[0] for end in (low, high))
    # A dash beside a sign would read as another sign.
    between = " to " if is_difference(metric) else "–"
    return f"{number} ({between.join(ends)})" + (f" {unit}" if unit else "")
