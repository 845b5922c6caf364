"""The support table: what can be chosen here, why the rest cannot, and what has run where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from workbench.core.device import Device
from workbench.core.errors import UnavailableError
from workbench.core.recipe import Recipe
from workbench.engines.engine import engine, engines
from workbench.levers.step import Context
from workbench.levers.table import cell, levers, offer, warnings

# Written by the test that runs every available cell on a sample.
RAN_ON = Path(__file__).with_name("ran_on.json")


@dataclass(frozen=True, kw_only=True)
class SupportRow:
    """One value of one lever on one engine.

    `lever` and `value` are "" in the row of the engine itself. `reason` says why it cannot
    be had for this model on this device, None where it can. `warnings` is what to know
    before it runs. `ran_on` names the kinds of device on which its test has run; empty
    means never.
    """

    lever: str
    engine: str
    value: str
    reason: str | None
    ran_on: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """ "onnxruntime", or "onnxruntime,precision=fp16": the recipe's own words."""
        return f"{self.engine},{self.lever}={self.value}" if self.lever else self.engine


def support(context: Context) -> list[SupportRow]:
    """Every engine and every value of its levers: available, or the reason why not."""
    return list(_rows(context))


def _rows(context: Context) -> Iterator[SupportRow]:
    for name, one in engines().items():
        bare = replace(context, recipe=Recipe(engine=name))
        reason = one.unavailable(bare)
        yield _row("", name, "", reason, ())
        for lever in levers():
            found = cell(lever, name)
            for value in found.values if found else ():
                there = replace(context, recipe=Recipe.parse(f"engine={name},{lever}={value}"))
                why = reason or offer(lever, name, value, there)
                yield _row(lever, name, value, why, () if why else warnings(there))


def _row(
    lever: str, engine: str, value: str, reason: str | None, said: tuple[str, ...]
) -> SupportRow:
    row = SupportRow(
        lever=lever, engine=engine, value=value, reason=reason, ran_on=(), warnings=said
    )
    return replace(row, ran_on=tuple(_ran_on().get(row.key, ())))


@cache
def _ran_on() -> dict[str, list[str]]:
    return dict(json.loads(RAN_ON.read_text(encoding="utf-8"))) if RAN_ON.exists() else {}


def device_kind(device: Device) -> str:
    """A device as `ran_on` names it: "CPU (AVX2)", "NVIDIA H200"."""
    if device.kind == "cuda":
        return device.name
    best = device.reading.rpartition(" ")[2]
    return f"CPU ({best})" if best != "CPU" else "CPU"


def check_available(context: Context) -> None:
    """Raise UnavailableError with the reason where the context's recipe cannot be had here.

    Raises RecipeError where its engine, a lever or a value does not exist.
    """
    chosen = engine(context.recipe.engine)
    reason = chosen.unavailable(context)
    if reason is not None:
        raise UnavailableError(f"engine={chosen.name} is not available: {reason}.")
    for lever, value in context.recipe.levers:
        why = offer(lever, chosen.name, value, context)
        if why is not None:
            raise UnavailableError(f"{lever}={value} is not available: {why}.")
