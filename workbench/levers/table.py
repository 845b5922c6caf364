"""The lever table: what may be chosen, by whom it is applied, and where.

A lever is a small frozen dataclass; one plain function per engine plans its steps,
registered under (lever, engine). Everything that is offered, greyed out or documented is
derived from this table and a probe of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from workbench.core.errors import RecipeError, UnavailableError
from workbench.core.recipe import Recipe
from workbench.levers.step import Context, Step


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One choice. A subclass adds its fields and says how its text is read.

    `values` lists what is worth showing, in order; `parse` may accept more (any batch
    size). `help` is one sentence for a tooltip.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    help: ClassVar[str]
    values: ClassVar[tuple[str, ...]]

    @classmethod
    def parse(cls, text: str) -> Lever:
        """The lever from its text in a recipe. Raises RecipeError on an unknown value."""
        raise NotImplementedError(cls)


Plan = Callable[[Any, Context], tuple[Step, ...]]
Offer = Callable[[str, Context], str | None]
F = TypeVar("F", bound=Plan)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One lever on one engine: how it is planned, and why a value cannot be had.

    `unavailable(value, context)` returns the reason in one sentence, naming the device,
    the engine, the model or the missing package; None where the value can run.
    """

    lever: type[Lever]
    engine: str
    plan: Plan
    unavailable: Offer


_CELLS: dict[tuple[str, str], Cell] = {}
_LEVERS: dict[str, type[Lever]] = {}


def applies(lever: type[Lever], *engines: str, unavailable: Offer) -> Callable[[F], F]:
    """Register a function that plans `lever` on `engines`."""

    def register(plan: F) -> F:
        _LEVERS[lever.name] = lever
        for engine in engines:
            assert (lever.name, engine) not in _CELLS, f"{lever.name} on {engine} twice"
            _CELLS[lever.name, engine] = Cell(
                lever=lever, engine=engine, plan=plan, unavailable=unavailable
            )
        return plan

    return register


def levers() -> dict[str, type[Lever]]:
    """Every lever by name, in the order of the table."""
    return dict(_LEVERS)


def cell(lever: str, engine: str) -> Cell | None:
    """The cell of a lever on an engine, or None where the engine has no such lever."""
    return _CELLS.get((lever, engine))


def resolve(recipe: Recipe) -> tuple[Lever, ...]:
    """The recipe's levers, parsed. Raises RecipeError on an unknown lever or value."""
    chosen = []
    for name, text in recipe.levers:
        lever = _LEVERS.get(name)
        if lever is None:
            close = get_close_matches(name, _LEVERS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise RecipeError(f"there is no lever {name!r}{hint} There are {', '.join(_LEVERS)}.")
        chosen.append(lever.parse(text))
    return tuple(chosen)


def plan(context: Context) -> tuple[Step, ...]:
    """The steps of every lever of the context's recipe.

    Raises UnavailableError with the reason where one of them cannot be had here.
    """
    steps: list[Step] = []
    recipe = context.recipe
    for (name, text), lever in zip(recipe.levers, resolve(recipe), strict=True):
        found = _CELLS.get((name, recipe.engine))
        if found is None:
            raise UnavailableError(f"{name} is no lever of the engine {recipe.engine}.")
        reason = found.unavailable(text, context)
        if reason is not None:
            raise UnavailableError(f"{name}={text} is not available: {reason}.")
        steps.extend(found.plan(lever, context))
    return tuple(steps)
