"""What events hold as columns: numbers and texts in whatever types a file has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.traces.numbers import whole_number
from workbench.traces.trace import ABSENT

_LARGEST_REAL = float(np.finfo(np.float32).max)


class Numbering(dict[Any, int]):
    """Numbers things as they come."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = number = len(self)
        return number

    def of(self, things: Iterable[Any]) -> NDArray[np.int64]:
        try:
            return np.array(list(map(self.__getitem__, things)), dtype=np.int64)
        except TypeError:
            # A list or an object where a name should be.
            return np.array([self[_hashable(thing)] for thing in things], dtype=np.int64)


def _hashable(thing: Any) -> Any:
    if isinstance(thing, tuple):
        return tuple(map(_hashable, thing))
    return str(thing) if isinstance(thing, list | dict) else thing


def renumbered(
    numbered: Numbering, text: Callable[[Any], Any]
) -> tuple[list[Any], NDArray[np.int32]]:
    """The things as text, and for each number that of its text: 5 and "5" are one."""
    texts = Numbering()
    number_of = texts.of([text(thing) for thing in numbered])
    return list(texts), number_of.astype(np.int32)


def whole_numbers(values: list[Any]) -> NDArray[np.int64]:
    """Integers of what arguments hold, -1 where one holds none."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    return np.array([whole_or_absent(value) for value in values], dtype=np.int64)


def real_numbers(values: list[Any]) -> NDArray[np.float64]:
    """Finite numbers of what arguments hold, NaN where one holds none."""
    found = np.full(len(values), np.nan)
    for place, value in enumerate(values):
        # A bool is no number here, though Python counts it as one.
        if type(value) in (int, float) and abs(value) < _LARGEST_REAL:
            found[place] = value
    return found


def whole_or_absent(value: Any) -> int:
    number = whole_number(value)
    return ABSENT if number is None else number


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


_FIRST_ROWS = 1 << 20


class Growing:
    """A column that is appended to in place, so that no part of it is ever held twice."""

    def __init__(self, kind: type[np.generic]) -> None:
        # So large that the system maps it, and gives memory page by page as it is filled.
        self._array: NDArray[Any] = np.empty(_FIRST_ROWS, dtype=kind)
        self._num = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add values, cast to the column's type."""
        needed = self._num + len(values)
        if needed > len(self._array):
            # A large array is moved by its pages, not copied; no other holds this one.
            self._array.resize(max(needed, self._num + self._num // 16), refcheck=False)
        self._array[self._num : needed] = values
        self._num = needed

    def taken(self) -> NDArray[Any]:
        """The column, as long as what was added; it is not added to afterwards."""
        self._array.resize(self._num, refcheck=False)
        return self._array
