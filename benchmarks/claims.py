"""A claim: a figure, the bound it has to keep, and whether it does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workbench.measure.location import beta_quantile

Relation = Literal["at most", "at least"]
ABSENT = "not measured"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One line of a benchmark's document.

    `value` is None where there is no figure, and such a claim does not hold. `relation` says
    on which side of `bound` the value has to lie; `note` is the arithmetic behind it. `bound`
    is None only where a benchmark left one of its claims out.
    """

    name: str
    value: float | None
    bound: float | None
    relation: Relation
    holds: bool
    unit: str = ""
    note: str = ""


def at_most(
    name: str, value: float | None, bound: float, *, unit: str = "", note: str = ""
) -> Claim:
    """A claim that holds where there is a finite value of `bound` or less."""
    holds = value is not None and math.isfinite(value) and value <= bound
    return _claim(name, value, bound, "at most", holds, unit, note)


def at_least(
    name: str, value: float | None, bound: float, *, unit: str = "", note: str = ""
) -> Claim:
    """A claim that holds where there is a finite value of `bound` or more."""
    holds = value is not None and math.isfinite(value) and value >= bound
    return _claim(name, value, bound, "at least", holds, unit, note)


def not_held(claim: Claim, why: str) -> Claim:
    """The same figure, as a claim that does not hold, with the reason before its note."""
    return replace(claim, holds=False, note=f"{why}; {claim.note}" if claim.note else why)


def _claim(
    name: str,
    value: float | None,
    bound: float,
    relation: Relation,
    holds: bool,
    unit: str,
    note: str,
) -> Claim:
    known = value is not None and math.isfinite(value)
    return Claim(
        name=name,
        value=value if known else None,
        bound=bound,
        relation=relation,
        holds=holds,
        unit=unit,
        note=note or ("" if known else ABSENT),
    )


def complete(claims: Iterable[Claim], names: Sequence[str]) -> list[Claim]:
    """The claims in the order of `names`; one that is absent is there and does not hold."""
    found: dict[str, Claim] = {}
    for claim in claims:
        assert claim.name in names, f"{claim.name!r} is no claim of this benchmark"
        assert claim.name not in found, f"{claim.name!r} twice"
        found[claim.name] = claim
    return [
        found.get(name)
        or Claim(name=name, value=None, bound=None, relation="at most", holds=False, note=ABSENT)
        for name in names
    ]


def all_hold(claims: Sequence[Claim]) -> bool:
    """Whether there is a claim and every one holds."""
    return bool(claims) and all(claim.holds for claim in claims)


def binomial_upper(num_hits: int, num: int, confidence: float = 0.95) -> float | None:
    """One-sided upper bound on a share, from `num_hits` of `num`; None without any.

    C. J. Clopper and E. S. Pearson, The use of confidence or fiducial limits illustrated in
    the case of the binomial, Biometrika 26 (1934). 4 of 200 gives 0.0452, 5 of 200 0.0518.
    """
    assert 0 <= num_hits <= num
    if num == 0:
        return None
    if num_hits == num:
        return 1.0
    return beta_quantile(confidence, num_hits + 1, num - num_hits)
