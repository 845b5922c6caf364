"""Intervals at 95 % for shares, differences of shares, medians and quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.measure.location import beta_quantile, normal_quantile, student_quantile

_Z = normal_quantile(0.975)

Interval = tuple[float, float]


def wilson(num_hits: float, num: float) -> Interval:
    """Wilson's score interval of a share. E. B. Wilson, JASA 22 (1927) 209-212.

    Numbers need not be whole: see `share_interval`.
    """
    assert num > 0
    assert 0 <= num_hits <= num * (1 + 1e-12)
    share = min(1.0, num_hits / num)
    denominator = 1 + _Z**2 / num
    middle = (share + _Z**2 / (2 * num)) / denominator
    half = _Z * math.sqrt(share * (1 - share) / num + _Z**2 / (4 * num**2)) / denominator
    # At the ends the exact bounds are 0 and 1; rounding must not move them inside.
    low = 0.0 if num_hits == 0 else max(0.0, middle - half)
    high = 1.0 if num_hits >= num else min(1.0, middle + half)
    return low, high


def rows_for_wilson(tolerance: float) -> int:
    """The fewest rows with which full agreement has a lower bound of at least 1 - tolerance.

    With no disagreement Wilson's lower bound is n / (n + z^2): 381 rows for 1 %.
    """
    assert 0 < tolerance < 1
    return math.ceil(_Z**2 * (1 - tolerance) / tolerance)


def clopper_pearson(num_hits: int, num: int) -> Interval:
    """The exact interval of a share. C. J. Clopper, E. S. Pearson, Biometrika 26 (1934)."""
    low = 0.0 if num_hits == 0 else beta_quantile(0.025, num_hits, num - num_hits + 1)
    high = 1.0 if num_hits == num else beta_quantile(0.975, num_hits + 1, num - num_hits)
    return low, high


def paired_difference(
    both: float, only_first: float, only_second: float, neither: float
) -> tuple[float, float, float]:
    """Share of the second minus share of the first on the same rows, with its interval.

    R. G. Newcombe, Statistics in Medicine 17 (1998) 2635-2650, method 10: Wilson's intervals
    of the two shares, combined with the correlation between them.
    """
    num = both + only_first + only_second + neither
    assert num > 0
    first, second = (both + only_first) / num, (both + only_second) / num
    first_low, first_high = wilson(both + only_first, num)
    second_low, second_high = wilson(both + only_second, num)
    phi = _correlation(both, only_first, only_second, neither, num)
    down_second, up_second = second - second_low, second_high - second
    down_first, up_first = first - first_low, first_high - first
    down = down_second**2 - 2 * phi * down_second * up_first + up_first**2
    up = up_second**2 - 2 * phi * up_second * down_first + down_first**2
    difference = second - first
    return (
        difference,
        difference - math.sqrt(max(0.0, down)),
        difference + math.sqrt(max(0.0, up)),
    )


def _correlation(
    both: float, only_first: float, only_second: float, neither: float, num: float
) -> float:
    margins = (
        (both + only_first)
        * (only_second + neither)
        * (both + only_second)
        * (only_first + neither)
    )
    if margins == 0:
        return 0.0
    surplus = both * neither - only_first * only_second
    if surplus > 0:
        # Newcombe's continuity correction of a positive correlation.
        surplus = max(0.0, surplus - num / 2)
    return surplus / math.sqrt(margins)


def effective_number(shares: NDArray[np.float64]) -> float:
    """To how many independent trials the rows' shares, each in [0, 1], amount.

    share × (1 - share) over the squared standard error of the mean; parts of one row (tokens,
    neighbours) are not independent, so the row is the unit. Never fewer than the rows, which
    is also the number where every row has the same share.
    """
    num = len(shares)
    share = float(shares.mean())
    squared_error = float(shares.var(ddof=1)) / num if num > 1 else 0.0
    return max(num, share * (1 - share) / squared_error) if squared_error > 0 else float(num)


def share_interval(shares: NDArray[np.float64], factor: float = 1.0) -> tuple[float, float, float]:
    """Mean of rows' shares with Wilson's interval at their effective number.

    With `factor` times as many rows like these.
    """
    share = float(shares.mean())
    effective = effective_number(shares) * factor
    return (share, *wilson(share * effective, effective))


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean with Student's interval; needs at least two values."""
    num = len(values)
    assert num >= 2
    middle = float(values.mean())
    half = student_quantile(0.975, num - 1) * float(values.std(ddof=1)) / math.sqrt(num)
    return middle, middle - half, middle + half


def median_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval | None:
    """An interval of the median from two order statistics; None below six values.

    Free of any distribution: the k-th lowest and highest, for the largest k at which a fair
    coin falls on one side fewer than k times in n throws with probability 2.5 % at most.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    num = len(ordered)
    tail, k = 0.5**num, 0
    while tail <= 0.025 and k < num // 2:
        k += 1
        tail += math.comb(num, k) * 0.5**num
    if k == 0:
        return None
    return float(ordered[k - 1]), float(ordered[num - k])
