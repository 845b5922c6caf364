"""Threads on OpenVINO: how many compute a call. How they wait is the library's own affair."""

from __future__ import annotations

from typing import Any

from workbench.levers.onnx_threads import threads_unavailable as too_few_cores
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies
from workbench.levers.threads import Threads


def threads_unavailable(value: str, context: Context) -> str | None:
    """Why these threads cannot be had: too few cores, or threads that are to spin."""
    if Threads.parse(value).wait == "active":
        return "OpenVINO's threads are oneTBB's, which has no setting for how they wait"
    return too_few_cores(value, context)


@portable
def limit_threads(settings: dict[str, Any], num_threads: int) -> None:
    """How many threads compute a call, before compiling."""
    settings["INFERENCE_NUM_THREADS"] = num_threads


@applies(Threads, "openvino", unavailable=threads_unavailable)
def plan_threads(lever: Threads, _context: Context) -> tuple[Step, ...]:
    """Change the settings that the model is compiled with."""
    if lever.num is None:
        return ()
    return (
        Step(
            phase="load.threads",
            function=limit_threads,
            reads=("settings",),
            params={"num_threads": lever.num},
        ),
    )
