"""Fusion on torch.compile: Inductor's modes, and freezing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.fusion import Fusion
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Callable


def compile_fusion_unavailable(value: str, context: Context) -> str | None:
    """Why Inductor cannot do this on the context's device."""
    device = context.device
    if device.kind == "cuda":
        return None
    if value == "reduce-overhead":
        return f"CUDA graphs need an NVIDIA GPU; this is {device.reading}"
    if value == "max-autotune-no-cudagraphs":
        return f"without CUDA graphs it is max-autotune; this is {device.reading}"
    return None


@applies(
    Fusion,
    "torch-compile",
    unavailable=compile_fusion_unavailable,
    values=("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "freezing"),
)
def plan_compile_fusion(lever: Fusion, context: Context) -> tuple[Step, ...]:
    """Freezing is a flag, the others are modes of torch.compile."""
    steps: list[Step] = []
    on_cpu = context.device.kind == "cpu"
    # On a CPU Inductor's own matmuls compete only where the weights are constants.
    if lever.value == "freezing" or (on_cpu and lever.value == "max-autotune"):
        steps.append(Step(phase="load.flags", function=set_freezing))
    if lever.value != "freezing":
        steps.append(
            Step(
                phase="load.mode",
                function=with_mode,
                reads=("options",),
                writes="options",
                params={"mode": lever.value},
            )
        )
    if lever.value in ("reduce-overhead", "max-autotune") and not on_cpu:
        steps.append(
            Step(
                phase="load.call",
                function=with_own_outputs,
                reads=("call",),
                writes="call",
            )
        )
    return tuple(steps)


@portable
def set_freezing() -> None:
    """Let Inductor treat weights as constants: fold them, and store them as kernels read them.

    The flag is global on purpose. As an option of one torch.compile call it comes too late
    (torch 2.13): the weights have become arguments of the graph by then, and nothing freezes.
    """
    from torch._inductor import config

    config.freezing = True


@portable
def with_mode(options: dict[str, Any], mode: str) -> dict[str, Any]:
    """Options of torch.compile with one of its modes."""
    return {**options, "mode": mode}


@portable
def with_own_outputs(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Hand out copies of outputs: those of a CUDA graph are overwritten by the next call.

    Three calls warm up each new shape: one compiles, one records, one replays.
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    seen = set()

    def one_call(placed: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return tree_map_only(torch.Tensor, torch.clone, call(placed))

    def own_outputs_call(placed: Any) -> Any:
        shapes = tuple(leaf.shape for leaf in tree_leaves(placed) if hasattr(leaf, "shape"))
        if shapes not in seen:
            for _ in range(3):
                one_call(placed)
            seen.add(shapes)
        return one_call(placed)

    return own_outputs_call
