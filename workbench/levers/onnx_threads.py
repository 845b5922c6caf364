"""Threads on ONNX Runtime: the size of the session's pool, and whether it spins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies
from workbench.levers.threads import Threads, threads_of

if TYPE_CHECKING:
    import onnxruntime


def threads_unavailable(value: str, context: Context) -> str | None:
    """Why a pool of this size cannot be had: there are fewer cores."""
    num = Threads.parse(value).num
    cores = context.device.num_cores
    if num is not None and context.device.kind == "cpu" and cores is not None and num > cores:
        return f"{num} threads need as many cores; {context.device.name} has {cores} to use"
    return None


@portable
def set_threads(options: onnxruntime.SessionOptions, num_threads: int | None, wait: str) -> None:
    """Size the pool of a session that is yet to be opened, and say how idle threads wait.

    None leaves the size as it is.
    """
    if num_threads is not None:
        options.intra_op_num_threads = num_threads
    spinning = "1" if wait == "active" else "0"
    for key in ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning"):
        # Saying again what is set already makes ONNX Runtime print a warning.
        if options.get_session_config_entry(key) != spinning:
            options.add_session_config_entry(key, spinning)


@applies(Threads, "onnxruntime", unavailable=threads_unavailable)
def plan_threads(lever: Threads, context: Context) -> tuple[Step, ...]:
    """Change the options that the session is opened with."""
    chosen = threads_of(context.recipe, context.settings)
    return (
        Step(
            phase="load.threads",
            function=set_threads,
            reads=("options",),
            params={"num_threads": chosen.num, "wait": lever.wait},
        ),
    )
