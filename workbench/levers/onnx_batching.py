"""Batching on exported graphs: the graph takes any batch, or the one it was exported for."""

from __future__ import annotations

from workbench.levers.batching import Batching, batch_unavailable, batch_warnings
from workbench.levers.step import Context, Step
from workbench.levers.table import applies


@applies(
    Batching,
    "onnxruntime",
    "openvino",
    unavailable=batch_unavailable,
    warnings=batch_warnings,
)
def plan_batching(_lever: Batching, _context: Context) -> tuple[Step, ...]:
    """Nothing of the graph changes: the items of a call are what goes in."""
    return ()
