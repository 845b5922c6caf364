"""Sums by key, exactly: integers stay integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Groups:
    """One entry for each key that occurs, in the keys' order."""

    key: NDArray[np.int64]
    num: NDArray[np.int64]
    total: NDArray[np.int64]
    least: NDArray[np.int64]
    most: NDArray[np.int64]


def grouped(keys: NDArray[np.integer], values: NDArray[np.int64]) -> Groups:
    """How many values each key has, their sum, and the least and the most of them.

    Both arrays have one length. A sum in float64, as `bincount` makes it, would lose
    nanoseconds beyond 104 days.
    """
    if len(keys) == 0:
        none = np.zeros(0, dtype=np.int64)
        return Groups(key=none, num=none, total=none, least=none, most=none)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    values = values[order]
    return Groups(
        key=ordered[starts].astype(np.int64),
        num=np.diff(np.append(starts, len(keys))),
        total=np.add.reduceat(values, starts),
        least=np.minimum.reduceat(values, starts),
        most=np.maximum.reduceat(values, starts),
    )
