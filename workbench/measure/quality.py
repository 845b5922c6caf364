"""A variant's outputs against the baseline's: the same, good enough, or lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from workbench.core.measurement import Quality
from workbench.core.model import Task
from workbench.measure import tasks
from workbench.measure.leaves import (
    LeafDifference,
    Leaves,
    difference,
    rows_first,
    structure_faults,
)
from workbench.measure.tasks import Metric, rows_needed

__all__ = ["compare", "rows_needed"]

# Fewer rows say nothing about a model, whatever the interval.
MIN_ROWS = 30
# No conversion is this wrong by rounding: the error is larger than the outputs themselves,
# more than predicting zero everywhere would give.
MISMATCH_ERROR = 1.0

Pair = tuple[NDArray[np.generic], NDArray[np.generic]]


def compare(
    reference: Leaves,
    outputs: Leaves,
    *,
    labels: NDArray[np.generic] | None = None,
    task: Task | None = None,
    tolerance: float = 0.01,
    is_real: bool = True,
    batch_axes: Mapping[str, int] | None = None,
    exact_reference: Leaves | None = None,
    lossless_error: float | None = None,
) -> Quality:
    """Compare outputs by dotted name with the baseline's, on the same rows.

    `batch_axes` maps an output to the axis that carries the rows (all at axis 0 where it is
    None; an output without an axis counts as one row). `tolerance` is what may be lost: of
    agreement, accuracy or overlap, as a share; of an error, relative to its scale. `labels`
    are classes (rows,), next tokens (rows, tokens) or targets. Without a task the metric is
    the relative error, or the accuracy where labels and scores of shape (rows, classes) say
    what they are. `is_real` is False for generated inputs, which decide nothing.

    `exact_reference` holds the float64 outputs of the first few rows: a loss no larger than
    the baseline's own error against it is none. `lossless_error` is the relative error that
    rounding alone can explain in a recipe which changes no arithmetic (1e-3 is generous for
    float32); above it the status is "mismatch", even where no decision changed.

    A wrong structure, an empty result, an error larger than the outputs ("mismatch") and
    values that are not finite where the baseline's are ("not_finite") win over any metric.
    """
    faults = structure_faults(reference, outputs)
    if faults:
        return Quality(status="mismatch", metric="shape", tolerance=tolerance, reasons=faults)
    pairs = {
        name: _pair(value, outputs[name], _axis(name, batch_axes))
        for name, value in reference.items()
        if value is not None and value.size
    }
    differences = [difference(name, *pair) for name, pair in pairs.items()]
    measured = [each for each in differences if _is_float(pairs[each.name][0])]
    broken = _not_finite(measured) or _mismatch(measured, lossless_error)
    if broken is not None:
        return replace(broken, tolerance=tolerance)
    metric = _metric(pairs, differences, labels, task, tolerance)
    return _judged(metric, differences, pairs, exact_reference, tolerance, is_real, batch_axes)


def _judged(
    metric: Metric,
    differences: list[LeafDifference],
    pairs: Mapping[str, Pair],
    exact_reference: Leaves | None,
    tolerance: float,
    is_real: bool,
    batch_axes: Mapping[str, int] | None,
) -> Quality:
    worst = max(differences, key=lambda each: each.relative)
    low, high = metric.interval(1.0)
    details = {
        **metric.details,
        "relative error": worst.relative,
        "mean absolute error": max(each.mean_abs for each in differences),
    }
    status = metric.status
    reasons: list[str] = []
    own = sum(each.num_reference_not_finite for each in differences)
    if own:
        reasons.append(f"the baseline itself is not finite in {own} places")
        status = "unknown"
    elif not is_real:
        reasons.insert(0, "the inputs are generated")
        status = "unknown"
    elif metric.num_rows < MIN_ROWS:
        reasons.append(f"fewer than {MIN_ROWS} rows say nothing")
        status = "unknown"
    elif status == "undecided":
        more = metric.more_rows()
        reasons.append(
            "too close to the tolerance for any number of rows"
            if more is None
            else f"{more:,} more rows would decide"
        )
    if exact_reference is not None and status in ("lost", "undecided"):
        yardstick = _against_exact(pairs, exact_reference, batch_axes)
        details.update(yardstick)
        error, own_error = yardstick["error to float64"], yardstick["baseline error to float64"]
        if metric.lower_is_better and error <= own_error:
            status = "kept"
            reasons = [
                f"no further from float64 than the baseline is ({error:.2g} and {own_error:.2g})"
            ]
    if status == "lost":
        reasons.append(worst.text)
    return Quality(
        status=status,
        metric=metric.name,
        value=_finite(metric.value),
        low=_finite(low),
        high=_finite(high),
        num_rows=metric.num_rows,
        tolerance=tolerance,
        max_abs_error=max(each.max_abs for each in differences),
        details={name: value for name, value in details.items() if math.isfinite(value)},
        worst_rows=metric.worst_rows,
        reasons=tuple(reasons),
    )


def _not_finite(differences: list[LeafDifference]) -> Quality | None:
    broken = [each for each in differences if each.num_not_finite]
    if not broken:
        return None
    num = sum(each.num_not_finite for each in broken)
    total = sum(each.num_elements for each in differences)
    first = broken[0]
    return Quality(
        status="not_finite",
        metric="finite",
        value=1 - num / total,
        num_rows=len(first.row_errors),
        reasons=(
            f"{num:,} of {total:,} outputs not finite, the first in {first.name!r} at "
            f"{list(first.bad_index or ())}",
        ),
        details={"outputs not finite": float(num), "outputs": float(total)},
        worst_rows=first.bad_index[:1] if first.bad_index else (),
    )


def _mismatch(differences: list[LeafDifference], lossless_error: float | None) -> Quality | None:
    limit = MISMATCH_ERROR if lossless_error is None else min(lossless_error, MISMATCH_ERROR)
    wrong = [each for each in differences if each.relative > limit and each.num_compared]
    if not wrong:
        return None
    worst = max(wrong, key=lambda each: each.relative)
    order = np.argsort(-worst.row_errors, kind="stable")[:5]
    return Quality(
        status="mismatch",
        metric="relative error",
        value=_finite(worst.relative),
        num_rows=len(worst.row_errors),
        max_abs_error=max(each.max_abs for each in differences),
        details={"mean absolute error": worst.mean_abs, "limit": limit},
        worst_rows=tuple(int(row) for row in order if worst.row_errors[row] > 0),
        reasons=tuple(each.text for each in wrong),
    )


def _metric(
    pairs: Mapping[str, Pair],
    differences: list[LeafDifference],
    labels: NDArray[np.generic] | None,
    task: Task | None,
    tolerance: float,
) -> Metric:
    """The task's metric on the first output that has its shape, else the relative error."""
    floats = {name: pair for name, pair in pairs.items() if _is_float(pair[0])}
    for pair in floats.values():
        fitting = labels if labels is not None and len(labels) == len(pair[0]) else None
        found = _task_metric(pair, fitting, task, tolerance)
        if found is not None:
            return found
    if floats:
        return tasks.relative_error([d for d in differences if d.name in floats], tolerance)
    return tasks.equality(*next(iter(pairs.values())), tolerance)


def _task_metric(
    pair: Pair, labels: NDArray[np.generic] | None, task: Task | None, tolerance: float
) -> Metric | None:
    before, after = pair
    classes = labels if labels is not None and labels.ndim == 1 else None
    if classes is not None and classes.dtype.kind not in "iub":
        classes = None
    is_scores = before.ndim == 2 and before.shape[1] > 1
    if task == "classification" or (task is None and classes is not None):
        if is_scores:
            return tasks.classification(before, after, classes, tolerance)
        if task is not None and before.size == len(before):
            return tasks.classification(*tasks.as_two_classes(before, after), classes, tolerance)
    if task == "language-model" and before.ndim == 3:
        tokens = labels if labels is not None and labels.shape == before.shape[:2] else None
        return tasks.language_model(before, after, tokens, tolerance)
    if task == "embedding" and before.ndim == 2:
        return tasks.embedding(before, after, tolerance)
    if task == "embedding" and before.ndim == 3:
        # Vectors of single tokens are pooled, as those who search with them do.
        wide = (before.astype(np.float64), after.astype(np.float64))
        return tasks.embedding(wide[0].mean(axis=1), wide[1].mean(axis=1), tolerance)
    if task == "regression":
        return tasks.regression(before, after, labels, tolerance)
    return None


def _against_exact(
    pairs: Mapping[str, Pair],
    exact_reference: Leaves,
    batch_axes: Mapping[str, int] | None,
) -> dict[str, float]:
    """Relative errors against float64 of both sides, of the leaf where the variant's is worst."""
    worst = {"error to float64": 0.0, "baseline error to float64": 0.0}
    for name, exact in exact_reference.items():
        if exact is None or name not in pairs:
            continue
        rows = rows_first(exact, _axis(name, batch_axes))
        before, after = (side[: len(rows)] for side in pairs[name])
        error = difference(name, rows, after).relative
        if error >= worst["error to float64"]:
            worst = {
                "error to float64": error,
                "baseline error to float64": difference(name, rows, before).relative,
            }
    return worst


def _pair(before: NDArray[np.generic], after: NDArray[np.generic] | None, axis: int | None) -> Pair:
    assert after is not None
    if before.dtype.kind not in "biufc":
        # Text has no distance: it is the same or it is not.
        changed = np.asarray(before != after)
        before, after = np.zeros(before.shape, dtype=np.int8), changed.astype(np.int8)
    return rows_first(before, axis), rows_first(after, axis)


def _axis(name: str, batch_axes: Mapping[str, int] | None) -> int | None:
    return 0 if batch_axes is None else batch_axes.get(name)


def _finite(value: float) -> float | None:
    """The value, or None where it is none that a record can hold."""
    return value if math.isfinite(value) else None


def _is_float(values: NDArray[np.generic]) -> bool:
    return values.dtype.kind in "fc"
