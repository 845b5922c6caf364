"""Channels-last on the torch engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.layout import Layout
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def layout_unavailable(_value: str, context: Context) -> str | None:
    """Why channels-last changes nothing here: no images, or kernels that see to it themselves."""
    if context.recipe.get("quantization") == "int8-static":
        return "static int8 packs convolution weights in an order of its kernels' own"
    if not any(len(spec.shape) == 4 for spec in context.model.inputs) and not any(
        "conv2d" in kind.lower() for kind in context.model.layers
    ):
        return "channels-last is about images; this model has no four-dimensional input"
    return None


@applies(Layout, "torch", "torch-compile", unavailable=layout_unavailable)
def plan_layout(_lever: Layout, _context: Context) -> tuple[Step, ...]:
    """Rearrange convolution weights once and inputs as they are copied in."""
    return (
        Step(
            phase="load.layout",
            function=module_channels_last,
            reads=("module",),
            writes="module",
        ),
        Step(phase="load.place", function=inputs_channels_last, reads=("place",), writes="place"),
    )


@portable
def module_channels_last(module: torch.nn.Module) -> torch.nn.Module:
    """Store four-dimensional weights with the channels of one pixel side by side."""
    import torch

    return module.to(memory_format=torch.channels_last)


@portable
def inputs_channels_last(place: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Store four-dimensional inputs likewise when they are copied in."""
    import torch
    from torch.utils._pytree import tree_map_only

    def rearrange(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 4:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    def place_rearranged(inputs: dict[str, Any]) -> Any:
        return tree_map_only(torch.Tensor, rearrange, place(inputs))

    return place_rearranged
