"""Outputs compared leaf by leaf: structure, finiteness and size of the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Leaf = NDArray[np.generic] | None
Leaves = Mapping[str, Leaf]

# Rows are widened to float64 in pieces of about this many elements.
_CHUNK_ELEMENTS = 4_000_000
ZERO_ERROR = 1e-6


@dataclass(frozen=True, kw_only=True)
class LeafDifference:
    """How one output differs from the reference, over elements that are finite in both.

    `max_abs` stands at `max_index`. `error_norm` and `reference_norm` are root mean squares;
    `row_errors` and `row_sizes` are mean squares by row, shape (rows,). `num_not_finite`
    counts elements that are not finite where the reference is, the first at `bad_index`;
    `num_reference_not_finite` the other way round.
    """

    name: str
    num_elements: int
    num_compared: int
    max_abs: float
    mean_abs: float
    max_index: tuple[int, ...]
    error_norm: float
    reference_norm: float
    row_errors: NDArray[np.float64]
    row_sizes: NDArray[np.float64]
    num_not_finite: int
    bad_index: tuple[int, ...] | None
    num_reference_not_finite: int

    @property
    def relative(self) -> float:
        """Root mean square of the error over that of the reference.

        Of a reference that is zero everywhere, rounding (1e-6) counts as no error and more
        as an infinite one.
        """
        if self.reference_norm == 0:
            return 0.0 if self.error_norm <= ZERO_ERROR else float("inf")
        return self.error_norm / self.reference_norm

    @property
    def text(self) -> str:
        """Largest and mean difference, and where, in words."""
        where = f" at {list(self.max_index)}" if self.max_index else ""
        return (
            f"{self.name!r} differs by up to {self.max_abs:.3g}{where}, "
            f"{self.mean_abs:.3g} on average, from values of size {self.reference_norm:.3g}"
        )


def structure_faults(reference: Leaves, outputs: Leaves) -> tuple[str, ...]:
    """What is missing, absent, empty or of another shape, each in one sentence."""
    faults = []
    for name in reference:
        if name not in outputs:
            faults.append(f"output {name!r} is missing")
    for name, value in outputs.items():
        if name not in reference:
            faults.append(f"output {name!r} is not one of the baseline's")
            continue
        expected = reference[name]
        if (value is None) != (expected is None):
            side = "None where the baseline has a value" if value is None else "no longer None"
            faults.append(f"output {name!r} is {side}")
        elif value is not None and expected is not None:
            if value.shape != expected.shape:
                faults.append(
                    f"output {name!r} has shape {list(value.shape)}, "
                    f"the baseline's {list(expected.shape)}"
                )
            elif _is_number(value) != _is_number(expected):
                faults.append(
                    f"output {name!r} has dtype {value.dtype}, the baseline's {expected.dtype}"
                )
    present = [value for value in outputs.values() if value is not None]
    if not any(value.size for value in present):
        faults.append("there is nothing in the outputs: every one is empty or None")
    return tuple(faults)


def difference(
    name: str, reference: NDArray[np.generic], output: NDArray[np.generic]
) -> LeafDifference:
    """Compare two arrays of the same shape, rows first, in float64.

    Places where both hold the same infinity, or both NaN, count as equal: masks do that.
    """
    assert reference.shape == output.shape
    num_rows = reference.shape[0] if reference.ndim else 1
    row_errors = np.zeros(num_rows)
    row_sizes = np.zeros(num_rows)
    total_abs = 0.0
    num_compared = num_bad = num_reference_bad = 0
    max_abs = 0.0
    max_index: tuple[int, ...] = ()
    bad_index: tuple[int, ...] | None = None
    for rows in _row_chunks(reference.shape):
        before = _wide(reference[rows] if reference.ndim else reference)
        after = _wide(output[rows] if output.ndim else output)
        finite_before, finite_after = np.isfinite(before), np.isfinite(after)
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        bad = ~finite_after & ~same & finite_before
        num_bad += int(bad.sum())
        # One infinity for another is no match either: it counts with the baseline's own.
        num_reference_bad += int((~finite_before & ~same).sum())
        if bad_index is None and bad.any():
            bad_index = _index(bad, int(np.argmax(bad)), rows)
        both = finite_before & finite_after
        error = np.where(both, np.abs(np.where(both, after, 0) - np.where(both, before, 0)), 0.0)
        num_compared += int(both.sum())
        total_abs += float(error.sum())
        if error.size and float(error.max()) > max_abs:
            max_abs = float(error.max())
            max_index = _index(error, int(np.argmax(error)), rows)
        size = np.where(both, np.abs(before), 0.0)
        per_row = (error.shape[0], -1) if reference.ndim else (1, -1)
        if error.size:
            row_errors[rows] = np.square(error).reshape(per_row).mean(axis=1)
            row_sizes[rows] = np.square(size).reshape(per_row).mean(axis=1)
    return LeafDifference(
        name=name,
        num_elements=int(reference.size),
        num_compared=num_compared,
        max_abs=max_abs,
        mean_abs=total_abs / num_compared if num_compared else 0.0,
        max_index=max_index,
        error_norm=float(np.sqrt(row_errors.mean())) if num_rows else 0.0,
        reference_norm=float(np.sqrt(row_sizes.mean())) if num_rows else 0.0,
        row_errors=row_errors,
        row_sizes=row_sizes,
        num_not_finite=num_bad,
        bad_index=bad_index,
        num_reference_not_finite=num_reference_bad,
    )


def rows_first(value: NDArray[np.generic], axis: int | None) -> NDArray[np.generic]:
    """The array with its batch axis in front; one row where it has none."""
    if axis is None or value.ndim <= axis:
        return value[np.newaxis]
    return np.moveaxis(value, axis, 0)


def _row_chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    if not shape:
        yield slice(0, 1)
        return
    per_row = max(1, int(np.prod(shape[1:], dtype=np.int64)))
    step = max(1, _CHUNK_ELEMENTS // per_row)
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def _wide(values: NDArray[np.generic]) -> NDArray[np.float64]:
    if np.iscomplexobj(values):
        # Each part is compared by itself.
        return np.stack([values.real, values.imag], axis=-1).astype(np.float64)
    return values.astype(np.float64)


def _is_number(values: NDArray[np.generic]) -> bool:
    return bool(np.issubdtype(values.dtype, np.number))


def _index(values: NDArray[np.generic], flat: int, rows: slice) -> tuple[int, ...]:
    index = [int(position) for position in np.unravel_index(flat, values.shape)]
    if index:
        index[0] += rows.start
    return tuple(index)
