"""Steps: the lines that a lever or an engine puts into a pipeline file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from workbench.core.device import Device, Host
from workbench.core.json import Json
from workbench.core.model import PreparedModel
from workbench.core.recipe import Recipe

P = ParamSpec("P")
T = TypeVar("T")


def portable(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function whose source may be cut into `pipeline.py`.

    A portable function imports what it needs inside its body, takes JSON-able parameters
    beside the values that earlier steps made, and refers to no global but other portable
    functions and builtins. `workbench.engines.pipeline` checks that and cuts them together.
    """
    function.__portable__ = True  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of `build` or `load`: `writes = function(*reads, **params)`.

    `phase` ("build.convert", "load.module", …) is one of the engine's, and decides where
    the line stands. `reads` and `writes` are names of local variables; `writes` may be ""
    for a call made for its effect, or several names with commas.
    """

    phase: str
    function: Callable[..., object]
    reads: tuple[str, ...] = ()
    writes: str = ""
    params: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a lever or an engine may look at to plan its steps and to say what it offers.

    `settings` are the notebook's flags that the baseline takes over (see `Model.settings`):
    "num_threads", "float32_matmul_precision", ….
    """

    host: Host
    device: Device
    model: PreparedModel
    recipe: Recipe
    settings: dict[str, Json] = field(default_factory=dict)

    def has(self, *distributions: str) -> bool:
        """Whether every one of these distributions is installed."""
        return all(name in self.host.packages for name in distributions)
