"""Threads: how many compute one call, and how they wait for work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.core.errors import RecipeError
from workbench.core.json import Json
from workbench.core.recipe import Recipe
from workbench.levers.step import Context, portable
from workbench.levers.table import Lever

Wait = Literal["passive", "active"]


@dataclass(frozen=True, kw_only=True)
class Threads(Lever):
    """The size of the pool and how an idle thread waits.

    `num` is None for "auto": the engine decides, or the notebook's number is kept. Passive
    threads sleep until there is work; active ones spin, which shortens a call on an idle
    machine and lengthens it up to ninefold on a busy one.
    """

    name: ClassVar[str] = "threads"
    title: ClassVar[str] = "Threads"
    help: ClassVar[str] = "How many threads compute a call, and whether idle ones spin."
    values: ClassVar[tuple[str, ...]] = ("1", "2", "4", "2:active")

    num: int | None
    wait: Wait

    @classmethod
    def parse(cls, text: str) -> Threads:
        """Read "2", "2:active" or "auto:active". Raises RecipeError on anything else."""
        match = re.fullmatch(r"(auto|[1-9][0-9]*)(?::(passive|active))?", text)
        if match is None:
            raise RecipeError(
                f"threads={text}: a number or auto, perhaps with how they wait, as in 2:active."
            )
        num, wait = match.groups()
        return cls(
            num=None if num == "auto" else int(num),
            wait="active" if wait == "active" else "passive",
        )


def threads_of(recipe: Recipe, settings: dict[str, Json]) -> Threads:
    """The threads a recipe runs with: its lever, else the notebook's number, passive."""
    text = recipe.get(Threads.name)
    chosen = Threads.parse(text) if text else Threads(num=None, wait="passive")
    taken_over = settings.get("num_threads")
    if chosen.num is None and isinstance(taken_over, int):
        return Threads(num=taken_over, wait=chosen.wait)
    return chosen


def is_worth_a_label(num_threads: int, context: Context) -> bool:
    """Whether so many threads are what the recipe asked for, or not what is usual here.

    Usual is the notebook's number, else every core's.
    """
    asked = context.recipe.get(Threads.name)
    if asked is not None and Threads.parse(asked).num == num_threads:
        return True
    return num_threads != context.settings.get("num_threads", context.device.num_cores)


@portable
def thread_environment(wait: str) -> dict[str, str]:
    """The variables that tell an OpenMP runtime how its idle threads wait.

    OMP_WAIT_POLICY is OpenMP's own; GOMP_SPINCOUNT is GNU's, which PyTorch's Linux wheels
    ship; KMP_BLOCKTIME (ms) is Intel's and LLVM's.
    """
    if wait == "active":
        return {
            "OMP_WAIT_POLICY": "active",
            "GOMP_SPINCOUNT": "infinite",
            "KMP_BLOCKTIME": "infinite",
        }
    return {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


@portable
def set_thread_environment(wait: str, num_threads: int | None, engine_module: str) -> None:
    """Say how threads wait, before the engine that starts them is imported.

    An OpenMP runtime reads its variables once, when it is loaded. Where the engine is here
    already they are left as they are, so that what is read back is what holds.
    """
    import os
    import sys
    import warnings

    wanted = thread_environment(wait)
    if engine_module in sys.modules:
        if any(os.environ.get(name) != value for name, value in wanted.items()):
            warnings.warn(
                f"{engine_module} was imported before load(): its threads wait as the "
                f"environment said then, not {wait}",
                RuntimeWarning,
                stacklevel=2,
            )
        return
    os.environ.update(wanted)
    if num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(num_threads)


def default_environment() -> dict[str, str]:
    """What every worker starts with: threads that sleep while they wait."""
    return thread_environment("passive")


def process_environment(recipe: Recipe, settings: dict[str, Json]) -> dict[str, str]:
    """What a worker of this recipe needs in its environment beyond `default_environment`.

    Empty where a warm spare, which has imported torch already, can serve the recipe: the
    number of threads can be set later, how they wait cannot.
    """
    wait = threads_of(recipe, settings).wait
    default = default_environment()
    return {k: v for k, v in thread_environment(wait).items() if default.get(k) != v}
