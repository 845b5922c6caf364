"""Threads on the torch engines: the number is a flag, how they wait an environment."""

from __future__ import annotations

from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies
from workbench.levers.threads import Threads


def threads_unavailable(value: str, context: Context) -> str | None:
    """Why this many threads cannot be had: the container has fewer cores."""
    chosen = Threads.parse(value)
    cores = next((d.num_cores for d in context.host.devices if d.kind == "cpu"), None)
    if chosen.num is not None and cores is not None and chosen.num > cores:
        return f"{chosen.num} threads on {cores} cores would wait for each other"
    return None


@applies(Threads, "torch", "torch-compile", unavailable=threads_unavailable)
def plan_threads(lever: Threads, _context: Context) -> tuple[Step, ...]:
    """Set the number; the engine's own first step says how they wait."""
    if lever.num is None:
        return ()
    return (
        Step(
            phase="load.flags",
            function=set_num_threads,
            params={"num_threads": lever.num},
        ),
    )


@portable
def set_num_threads(num_threads: int) -> None:
    """Set how many threads compute one operator on the CPU."""
    import torch

    torch.set_num_threads(num_threads)
