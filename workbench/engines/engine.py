"""What an engine is: the steps that open, convert, run and inspect a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from workbench.core.errors import RecipeError
from workbench.core.evidence import Evidence
from workbench.core.json import Json
from workbench.core.model import SourceKind
from workbench.core.profile import Tool
from workbench.levers.step import Context, Step


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One way to run a model.

    `build_phases` and `load_phases` order the steps of `build` and `load`; `steps` returns
    the engine's own. `unavailable` is the reason why the engine cannot run this model on
    this device, or None. `read_evidence` turns what `Pipeline.inspect()` returned (plain
    JSON, from the running worker) into Evidence; it must not look at the recipe except to
    say what is unmet. `serves_with_torch` says whether a worker that has imported torch may
    serve it; an engine that says no is served by a fresh interpreter without torch.
    `tool` is the profiler that records it. `serving` names the distributions that the exported
    script needs; `modules` what a serving worker imports first, so that an import is no part of
    load time or memory.
    `compiles` says that the first call after a load compiles, so that the builder makes it
    once with an empty cache (the cold compile) before a server makes it with a full one.
    """

    name: str
    title: str
    help: str
    accepts: tuple[SourceKind, ...]
    build_phases: tuple[str, ...]
    load_phases: tuple[str, ...]
    steps: Callable[[Context], tuple[Step, ...]]
    unavailable: Callable[[Context], str | None]
    read_evidence: Callable[[Json, Context], Evidence]
    serves_with_torch: bool
    builds_with_torch: bool
    tool: Tool
    serving: tuple[str, ...]
    modules: tuple[str, ...] = ()
    compiles: bool = False


_ENGINES: dict[str, Engine] = {}


def register(engine: Engine) -> Engine:
    """Add an engine to the table."""
    assert engine.name not in _ENGINES, engine.name
    _ENGINES[engine.name] = engine
    return engine


def engines() -> dict[str, Engine]:
    """Every engine by name, in the order of the table."""
    return dict(_ENGINES)


def engine(name: str) -> Engine:
    """The engine of that name. Raises RecipeError where there is none."""
    if name not in _ENGINES:
        close = get_close_matches(name, _ENGINES, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise RecipeError(f"there is no engine {name!r}{hint} There are {', '.join(_ENGINES)}.")
    return _ENGINES[name]
