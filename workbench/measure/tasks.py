"""Metrics by task: what a variant may lose depends on what its outputs are for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workbench.measure.intervals import (
    Interval,
    mean_interval,
    paired_difference,
    rows_for_wilson,
    share_interval,
    wilson,
)
from workbench.measure.leaves import LeafDifference

Floats = NDArray[np.float64]

NUM_NEIGHBOURS = 10
_NUM_WORST = 5
# Rows of logits, and of similarities, are widened in pieces of about this many elements.
_CHUNK_ELEMENTS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure with its 95 % interval, and the bound that it must clear.

    `interval(factor)` is the interval had there been `factor` times as many rows like these;
    `interval(1)` is the one at hand. `lower_is_better` says on which side of `limit` is good.
    `num_rows` is how many rows it rests on.
    """

    name: str
    value: float
    limit: float
    lower_is_better: bool
    num_rows: int
    interval: Callable[[float], Interval]
    worst_rows: tuple[int, ...] = ()
    details: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """ "kept" or "lost" where the whole interval says so, else "undecided"."""
        return self._judge(self.interval(1.0))

    def more_rows(self) -> int | None:
        """How many more rows like these would decide it; None where ten million would not."""
        if self.status != "undecided":
            return 0
        low, high = 1.0, 1.0
        while self._judge(self.interval(high)) == "undecided":
            low, high = high, high * 2
            if high * self.num_rows > 10_000_000:
                return None
        while (high - low) * self.num_rows > 0.5:
            middle = (low + high) / 2
            if self._judge(self.interval(middle)) == "undecided":
                low = middle
            else:
                high = middle
        return max(1, math.ceil(high * self.num_rows - 1e-6) - self.num_rows)

    def _judge(self, interval: Interval) -> str:
        low, high = interval
        if self.lower_is_better:
            return "kept" if high <= self.limit else "lost" if low > self.limit else "undecided"
        return "kept" if low >= self.limit else "lost" if high < self.limit else "undecided"


def rows_needed(tolerance: float) -> int:
    """Rows that agreement within `tolerance` takes even where not one row changes."""
    return rows_for_wilson(tolerance)


def classification(
    reference: NDArray[np.generic],
    outputs: NDArray[np.generic],
    labels: NDArray[np.generic] | None,
    tolerance: float,
) -> Metric:
    """Top-1 agreement, or with labels the difference in accuracy, of scores (rows, classes).

    The difference is the variant's accuracy minus the baseline's on the same rows.
    """
    before, after = reference.argmax(axis=1), outputs.argmax(axis=1)
    num = len(before)
    same = before == after
    num_same = int(same.sum())
    low, high = wilson(num_same, num)
    details = {
        "top-1 agreement": num_same / num,
        "top-1 agreement low": low,
        "top-1 agreement high": high,
        "KL divergence": float(_divergences(reference, outputs).mean()),
    }
    worst = tuple(int(row) for row in np.flatnonzero(~same)[:_NUM_WORST])
    if labels is None:
        return Metric(
            name="top-1 agreement",
            value=num_same / num,
            limit=1 - tolerance,
            lower_is_better=False,
            num_rows=num,
            interval=lambda factor: wilson(num_same * factor, num * factor),
            worst_rows=worst,
            details=details,
        )
    right_before, right_after = before == labels, after == labels
    counts = (
        int((right_before & right_after).sum()),
        int((right_before & ~right_after).sum()),
        int((~right_before & right_after).sum()),
        int((~right_before & ~right_after).sum()),
    )
    details["baseline accuracy"] = float(right_before.mean())
    details["accuracy"] = float(right_after.mean())
    lost = np.flatnonzero(right_before & ~right_after)

    def scaled(factor: float) -> Interval:
        both, only_before, only_after, neither = (count * factor for count in counts)
        return paired_difference(both, only_before, only_after, neither)[1:]

    return Metric(
        name="accuracy difference",
        value=details["accuracy"] - details["baseline accuracy"],
        limit=-tolerance,
        lower_is_better=False,
        num_rows=num,
        interval=scaled,
        worst_rows=tuple(int(row) for row in lost[:_NUM_WORST]) or worst,
        details=details,
    )


def as_two_classes(
    reference: NDArray[np.generic], outputs: NDArray[np.generic]
) -> tuple[Floats, Floats]:
    """One score a row as scores of two classes: a probability where all lie in [0, 1]."""
    before = reference.reshape(len(reference)).astype(np.float64)
    after = outputs.reshape(len(outputs)).astype(np.float64)
    if before.min() >= 0 and before.max() <= 1:
        return np.stack([1 - before, before], axis=1), np.stack([1 - after, after], axis=1)
    return np.stack([0 * before, before], axis=1), np.stack([0 * after, after], axis=1)


def language_model(
    reference: NDArray[np.generic],
    outputs: NDArray[np.generic],
    labels: NDArray[np.generic] | None,
    tolerance: float,
) -> Metric:
    """Token agreement, or with labels the ratio of perplexities, of logits (rows, tokens, vocab).

    `labels` are the next tokens, shape (rows, tokens); negative ones are left out. The row is
    the unit, since the tokens of one are not independent.
    """
    same = reference.argmax(axis=2) == outputs.argmax(axis=2)
    shares = same.mean(axis=1).astype(np.float64)
    share, low, high = share_interval(shares)
    num = len(shares)
    details = {
        "token agreement": share,
        "token agreement low": low,
        "token agreement high": high,
        "KL divergence": float(_divergences(reference, outputs).mean()),
    }
    if labels is None:
        order = np.argsort(shares, kind="stable")[:_NUM_WORST]
        return Metric(
            name="token agreement",
            value=share,
            limit=1 - tolerance,
            lower_is_better=False,
            num_rows=num,
            interval=lambda factor: share_interval(shares, factor)[1:],
            worst_rows=tuple(int(row) for row in order if shares[row] < 1),
            details=details,
        )
    before, counts = _negative_log_likelihoods(reference, labels)
    after, _ = _negative_log_likelihoods(outputs, labels)
    kept = counts > 0
    rises = after[kept] - before[kept]
    weights = counts[kept] / counts[kept].mean()
    details["baseline perplexity"] = math.exp(float((before[kept] * weights).mean()))
    details["perplexity"] = math.exp(float((after[kept] * weights).mean()))
    weighted = rises * weights
    order = np.argsort(-rises, kind="stable")[:_NUM_WORST]
    rows = np.flatnonzero(kept)
    middle, half = _mean_and_half(weighted)
    return Metric(
        name="perplexity ratio",
        value=math.exp(middle),
        limit=1 + tolerance,
        lower_is_better=True,
        num_rows=len(weighted),
        interval=lambda factor: (
            math.exp(middle - half / math.sqrt(factor)),
            math.exp(middle + half / math.sqrt(factor)),
        ),
        worst_rows=tuple(int(rows[position]) for position in order if rises[position] > 0),
        details=details,
    )


def embedding(
    reference: NDArray[np.generic], outputs: NDArray[np.generic], tolerance: float
) -> Metric:
    """Neighbour overlap at 10 of vectors (rows, dimensions), with the mean cosine beside it.

    A row's overlap is the share of its ten nearest rows, by cosine, that stay among its ten
    nearest: a cosine of 0.99 can hide that one in eight has changed.
    """
    before, after = _unit(reference), _unit(outputs)
    cosines = (before * after).sum(axis=1)
    num = len(before)
    num_near = min(NUM_NEIGHBOURS, num - 1)
    overlaps = _overlaps(before, after, num_near)
    share = float(overlaps.mean())
    order = np.argsort(overlaps, kind="stable")[:_NUM_WORST]
    return Metric(
        name=f"neighbour overlap@{num_near}",
        value=share,
        limit=1 - tolerance,
        lower_is_better=False,
        num_rows=num,
        interval=lambda factor: share_interval(overlaps, factor)[1:],
        worst_rows=tuple(int(row) for row in order if overlaps[row] < 1),
        details={"mean cosine": float(cosines.mean()), "lowest cosine": float(cosines.min())},
    )


def regression(
    reference: NDArray[np.generic],
    outputs: NDArray[np.generic],
    labels: NDArray[np.generic] | None,
    tolerance: float,
) -> Metric:
    """Root mean square of the change over the targets' standard deviation, rows in front.

    The targets are the labels where there are any, else the reference.
    """
    before = reference.reshape(len(reference), -1).astype(np.float64)
    after = outputs.reshape(len(outputs), -1).astype(np.float64)
    targets = before if labels is None else labels.reshape(len(labels), -1).astype(np.float64)
    spread = float(np.sqrt(targets.var(axis=0).mean()))
    details = {"target spread": spread}
    if labels is not None and targets.shape == before.shape:
        details["baseline error"] = float(np.sqrt(np.square(before - targets).mean()))
        details["error"] = float(np.sqrt(np.square(after - targets).mean()))
    squares = np.square(after - before).mean(axis=1)
    return _root_mean("error over target spread", squares, spread**2, tolerance, details)


def relative_error(differences: Sequence[LeafDifference], tolerance: float) -> Metric:
    """Root mean square of the change over that of the reference, of the leaf where it is worst."""
    worst = max(differences, key=lambda each: each.relative)
    size = float(worst.row_sizes.mean())
    return _root_mean("relative error", worst.row_errors, size, tolerance, {})


def equality(
    reference: NDArray[np.generic], outputs: NDArray[np.generic], tolerance: float
) -> Metric:
    """Share of rows whose whole numbers (ids, masks, text) are all the same, rows in front."""
    per_row = (reference == outputs).reshape(len(reference), -1).all(axis=1)
    num, num_same = len(per_row), int(per_row.sum())
    return Metric(
        name="row agreement",
        value=num_same / num,
        limit=1 - tolerance,
        lower_is_better=False,
        num_rows=num,
        interval=lambda factor: wilson(num_same * factor, num * factor),
        worst_rows=tuple(int(row) for row in np.flatnonzero(~per_row)[:_NUM_WORST]),
    )


def _root_mean(
    name: str, squares: Floats, scale: float, tolerance: float, details: Mapping[str, float]
) -> Metric:
    """sqrt(mean(squares) / scale), where `squares` has one value a row."""
    if scale == 0:
        scaled = np.where(squares > 0, np.inf, 0.0)
    else:
        scaled = squares / scale
    finite = bool(np.isfinite(scaled).all())
    middle, half = _mean_and_half(scaled) if finite else (math.inf, 0.0)
    order = np.argsort(-squares, kind="stable")[:_NUM_WORST]
    return Metric(
        name=name,
        value=math.sqrt(middle),
        limit=tolerance,
        lower_is_better=True,
        num_rows=len(squares),
        interval=lambda factor: (
            math.sqrt(max(0.0, middle - half / math.sqrt(factor))),
            math.sqrt(middle + half / math.sqrt(factor)),
        ),
        worst_rows=tuple(int(row) for row in order if squares[row] > 0),
        details=dict(details),
    )


def _mean_and_half(values: Floats) -> tuple[float, float]:
    """Mean and half of Student's interval; of a single value the half is infinite."""
    if len(values) < 2:
        return float(values.mean()), math.inf
    middle, low, _ = mean_interval(values)
    return middle, middle - low


def _unit(vectors: NDArray[np.generic]) -> Floats:
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(lengths > 0, lengths, 1.0))


def _overlaps(before: Floats, after: Floats, num_near: int) -> Floats:
    """Share of each row's `num_near` nearest other rows that both sides have."""
    num = len(before)
    if num_near < 1:
        return np.ones(num)
    overlaps = np.empty(num)
    step = max(1, _CHUNK_ELEMENTS // num)
    for start in range(0, num, step):
        rows = np.arange(start, min(start + step, num))
        near = []
        for side in (before, after):
            similar = side[rows] @ side.T
            similar[np.arange(len(rows)), rows] = -np.inf
            # A stable sort: of equally near rows the first come first, on both sides.
            near.append(np.argsort(-similar, axis=1, kind="stable")[:, :num_near])
        for position, row in enumerate(rows):
            common = np.intersect1d(near[0][position], near[1][position])
            overlaps[row] = len(common) / num_near
    return overlaps


def _divergences(reference: NDArray[np.generic], outputs: NDArray[np.generic]) -> Floats:
    """KL divergence of the outputs from the reference, mean over each row, in nats."""
    found = []
    probable = _are_probabilities(reference)
    for rows in _row_chunks(reference.shape):
        before = _log_probabilities(reference[rows], probable)
        after = _log_probabilities(outputs[rows], probable)
        shares = np.exp(before)
        with np.errstate(invalid="ignore"):
            parts = np.where(shares > 0, shares * (before - after), 0.0)
        found.append(parts.sum(axis=-1).reshape(len(parts), -1).mean(axis=1))
    return np.concatenate(found)


def _negative_log_likelihoods(
    logits: NDArray[np.generic], labels: NDArray[np.generic]
) -> tuple[Floats, Floats]:
    """Mean over a row's labelled tokens, and how many it has; both of shape (rows,)."""
    means, counts = [], []
    probable = _are_probabilities(logits)
    for rows in _row_chunks(logits.shape):
        targets = labels[rows].astype(np.int64)
        labelled = targets >= 0
        index = np.where(labelled, targets, 0)[..., np.newaxis]
        logs = _log_probabilities(logits[rows], probable)
        taken = np.take_along_axis(logs, index, axis=-1)[..., 0]
        count = labelled.sum(axis=1)
        means.append(-np.where(labelled, taken, 0.0).sum(axis=1) / np.maximum(count, 1))
        counts.append(count)
    return np.concatenate(means), np.concatenate(counts).astype(np.float64)


def _are_probabilities(scores: NDArray[np.generic]) -> bool:
    """Whether the first rows are distributions already, rather than logits."""
    first = scores[: max(1, min(len(scores), 16))].astype(np.float64)
    return bool(first.min() >= 0 and np.allclose(first.sum(axis=-1), 1.0, atol=1e-2))


def _log_probabilities(scores: NDArray[np.generic], probable: bool) -> Floats:
    """Log of the distributions over the last axis, from logits or from the shares themselves."""
    wide = scores.astype(np.float64)
    if probable:
        wide = np.log(np.maximum(wide, 1e-30))
    # Excluded classes have the logit -inf; where all are, nothing is left to say.
    shifted = wide - np.maximum(wide.max(axis=-1, keepdims=True), -1e300)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _row_chunks(shape: tuple[int, ...]) -> list[slice]:
    per_row = max(1, math.prod(shape[1:]))
    step = max(1, _CHUNK_ELEMENTS // per_row)
    return [slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]
