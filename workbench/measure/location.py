"""A robust mean and its standard error, and the distributions that intervals need."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# A fifth of the values beyond the first five is cut from each end. Visits are heavy-tailed where
# others use the machine too: of A against A recorded on a shared two-core machine, their plain
# mean had a standard error three to four times as large, so it needs ten times the visits; on
# Gaussian visits the cut costs a tenth. The first five are spared because of a few visits all
# but one may lie in one of two states.
TRIM = 0.2
NUM_SPARED = 5


def num_cut(num: int) -> int:
    """How many of `num` values are cut from each end."""
    return int(TRIM * max(0, num - NUM_SPARED))


def trimmed_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean along the last axis without the `num_cut(n)` lowest and highest values."""
    num = values.shape[-1]
    cut = num_cut(num)
    kept = np.sort(values, axis=-1)[..., cut : num - cut]
    return np.asarray(kept.mean(axis=-1))


def trimmed_error(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard error of `trimmed_mean`, from the winsorised standard deviation.

    Needs at least two values. J. W. Tukey and D. H. McLaughlin, Less vulnerable confidence
    and significance procedures for location based on a single sample, Sankhya A 25 (1963).
    """
    num = values.shape[-1]
    assert num >= 2
    cut = num_cut(num)
    ordered = np.sort(values, axis=-1)
    if cut:
        ordered[..., :cut] = ordered[..., cut : cut + 1]
        ordered[..., num - cut :] = ordered[..., num - cut - 1 : num - cut]
    spread = ordered.std(axis=-1, ddof=1)
    return np.asarray(spread / ((1 - 2 * cut / num) * math.sqrt(num)))


def normal_quantile(probability: float) -> float:
    """Inverse of the standard normal distribution function, for 0 < probability < 1."""
    return NormalDist().inv_cdf(probability)


@cache
def student_quantile(probability: float, degrees: float) -> float:
    """Inverse of Student's distribution function, for 0.5 <= probability < 1."""
    assert 0.5 <= probability < 1
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2
    return _bisect(lambda value: student_cdf(value, degrees) - probability, low, high)


def student_cdf(value: float, degrees: float) -> float:
    """Student's distribution function for `value` >= 0."""
    return 1 - 0.5 * beta_cdf(degrees / (degrees + value * value), degrees / 2, 0.5)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Inverse of the regularised incomplete beta function."""
    return _bisect(lambda value: beta_cdf(value, a, b) - probability, 0.0, 1.0)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction.

    Abramowitz and Stegun 26.5.8; the fraction converges fast below the mean, and above it
    the symmetry I_x(a, b) = 1 - I_{1-x}(b, a) is used.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    # Evaluated from the innermost term outwards; 200 terms are far more than a, b <= 1e5 need
    # at x below the mean, except that their number grows with the square root of a and b.
    num_terms = 60 + int(5 * math.sqrt(max(a, b)))
    value = 1.0
    for m in range(num_terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + even / value
        k = m - 1
        odd = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        value = 1 + odd / value
    return 1 / value


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
