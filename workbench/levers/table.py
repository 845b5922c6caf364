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
    size). `help` is one sentence for a tooltip, `meanings` one for each value that a word
    does not explain.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    help: ClassVar[str]
    values: ClassVar[tuple[str, ...]]
    meanings: ClassVar[dict[str, str]] = {}

    @classmethod
    def parse(cls, text: str) -> Lever:
        """The lever from its text in a recipe. Raises RecipeError on an unknown value."""
        raise NotImplementedError(cls)


Plan = Callable[[Any, Context], tuple[Step, ...]]
Offer = Callable[[str, Context], str | None]
Warn = Callable[[str, Context], tuple[str, ...]]
F = TypeVar("F", bound=Plan)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One lever on one engine: how it is planned, and why a value cannot be had.

    `unavailable(value, context)` returns the reason in one sentence, naming the device,
    the engine, the model or the missing package; None where the value can run.
    `values` lists what this engine shows of the lever, in order. `warnings` returns what
    the user should know before an available value runs ("emulated on this CPU").
    """

    lever: type[Lever]
    engine: str
    plan: Plan
    unavailable: Offer
    values: tuple[str, ...]
    warnings: Warn


_CELLS: dict[tuple[str, str], Cell] = {}
_LEVERS: dict[str, type[Lever]] = {}


def no_warnings(_value: str, _context: Context) -> tuple[str, ...]:
    """Nothing to know beforehand."""
    return ()


def applies(
    lever: type[Lever],
    *engines: str,
    unavailable: Offer,
    values: tuple[str, ...] | None = None,
    warnings: Warn = no_warnings,
) -> Callable[[F], F]:
    """Register a function that plans `lever` on `engines`.

    `values` is what these engines show of the lever; absent, all that the lever lists.
    """

    def register(plan: F) -> F:
        _LEVERS[lever.name] = lever
        for engine in engines:
            assert (lever.name, engine) not in _CELLS, f"{lever.name} on {engine} twice"
            _CELLS[lever.name, engine] = Cell(
                lever=lever,
                engine=engine,
                plan=plan,
                unavailable=unavailable,
                values=lever.values if values is None else values,
                warnings=warnings,
            )
        return plan

    return register


def levers() -> dict[str, type[Lever]]:
    """Every lever by name, in the order of the table."""
    return dict(_LEVERS)


def cell(lever: str, engine: str) -> Cell | None:
    """The cell of a lever on an engine, or None where the engine has no such lever."""
    return _CELLS.get((lever, engine))


def choice(lever: type[Lever], text: str) -> str:
    """`text` where it is a value of the lever on some engine.

    Raises RecipeError, naming the values there are, where it is none.
    """
    known = list(dict.fromkeys([*lever.values, *(v for c in _cells(lever) for v in c.values)]))
    if text in known:
        return text
    close = get_close_matches(text, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise RecipeError(f"{lever.name}={text} does not exist{hint} There are {', '.join(known)}.")


def _cells(lever: type[Lever]) -> list[Cell]:
    return [cell for (name, _), cell in _CELLS.items() if name == lever.name]


def offer(lever: str, engine: str, value: str, context: Context) -> str | None:
    """Why a value of a lever cannot be had on an engine here, or None where it can.

    Unlike the cell's own function this also answers for values of other engines.
    """
    found = cell(lever, engine)
    if found is None:
        return f"{lever} is no lever of the engine {engine}"
    if value not in found.values and value in _values_elsewhere(found):
        others = sorted(c.engine for c in _cells(found.lever) if value in c.values)
        return f"{value} is a value of {', '.join(others)}, not of {engine}"
    return found.unavailable(value, context)


def _values_elsewhere(found: Cell) -> set[str]:
    return {v for c in _cells(found.lever) if c is not found for v in c.values}


def warnings(context: Context) -> tuple[str, ...]:
    """What the user should know before the context's recipe runs."""
    said: list[str] = []
    for name, text in context.recipe.levers:
        found = cell(name, context.recipe.engine)
        if found is not None:
            said.extend(found.warnings(text, context))
    return tuple(said)


def meaning(lever: type[Lever], value: str) -> str:
    """What a value does, in one sentence."""
    return lever.meanings.get(value, lever.help)


def resolve(recipe: Recipe) -> tuple[Lever, ...]:
    """The recipe's levers, parsed. Raises RecipeError on an unknown lever or value."""
    chosen = []
    for name, text in recipe.levers:
        lever = _LEVERS.get(name)
        if lever is None:
            close = get_close_matches(name, _LEVERS, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
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
        reason = offer(name, recipe.engine, text, context)
        if reason is not None:
            raise UnavailableError(f"{name}={text} is not available: {reason}.")
        found = _CELLS[name, recipe.engine]
        steps.extend(found.plan(lever, context))
    return tuple(steps)
