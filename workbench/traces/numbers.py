"""Numbers from the text of a trace, exactly.

Timestamps count microseconds since 1970 with up to three decimals. A float64 there has steps of
0.25 µs, enough to make a child seem to outlast its parent, so no time goes through a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
from numpy.typing import NDArray

NS_PER_US = 1000
_DIGITS_AFTER = 3
_LARGEST_NS = 2**63 - 1
# Microseconds since 1970 have 16 digits; as nanoseconds they fit an int64 up to 8.9e15.
_MOST_DIGITS = 16
_POWERS = np.array([10**k for k in range(_MOST_DIGITS + _DIGITS_AFTER)], dtype=np.int64)


def nanoseconds(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Nanoseconds of microseconds that are written as JSON numbers, or as strings of them.

    The second array says where there was a number; elsewhere the first holds 0. Decimals
    beyond the third round to the nearest nanosecond. Both have shape (len(texts),).
    """
    if not texts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    letters = np.frombuffer(b"\n".join(texts) + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(letters == ord("\n"))
    if len(ends) != len(texts):
        # A text with a line break in it is no number, and would shift all that follow.
        return nanoseconds([b"" if b"\n" in bytes(text) else bytes(text) for text in texts])
    starts = np.concatenate(([0], ends[:-1] + 1))
    rows = np.repeat(np.arange(len(texts)), ends - starts + 1)
    points = np.flatnonzero(letters == ord("."))
    point_of = ends.copy()
    point_of[rows[points]] = points
    plain = (letters - ord("0")) < 10
    plain[points] = True
    plain[ends] = True
    irregular = np.zeros(len(texts), dtype=np.bool_)
    irregular[rows[~plain]] = True
    irregular |= np.bincount(rows[points], minlength=len(texts)) > 1
    irregular |= (point_of == starts) | (ends - point_of > _DIGITS_AFTER + 1)
    num_whole = point_of - starts
    irregular |= num_whole > _MOST_DIGITS
    irregular |= (num_whole == _MOST_DIGITS) & (letters[starts] > ord("8"))
    exponents = point_of[rows] - np.arange(len(letters)) + _DIGITS_AFTER
    exponents[exponents > _DIGITS_AFTER] -= 1
    values = (letters - ord("0")).astype(np.int64)
    values[points] = 0
    values[ends] = 0
    found = np.add.reduceat(values * _POWERS[np.clip(exponents, 0, len(_POWERS) - 1)], starts)
    known = ~irregular
    for row in np.flatnonzero(irregular):
        one = _one(bytes(texts[int(row)]))
        known[row] = one is not None
        found[row] = one or 0
    return found, known


def _one(text: bytes) -> int | None:
    """The slow way, for signs, exponents and quotes; None where it is no finite number."""
    try:
        number = Decimal(text.strip().strip(b'"').decode("ascii"))
        if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
            return None
        nanoseconds = int((number * NS_PER_US).to_integral_value(rounding=ROUND_HALF_EVEN))
    except (ArithmeticError, UnicodeDecodeError, ValueError):
        return None
    return nanoseconds if abs(nanoseconds) <= _LARGEST_NS else None


def whole_number(value: object) -> int | None:
    """An integer that is written as a number or as a string; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_NS else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _LARGEST_NS else None
    if isinstance(value, str):
        try:
            return whole_number(int(value))
        except ValueError:
            return None
    return None
