"""Batch size on the torch engines: a fact of the inputs, so nothing is planned."""

from __future__ import annotations

from workbench.levers.batching import Batching, batch_unavailable, batch_warnings
from workbench.levers.step import Context, Step
from workbench.levers.table import applies


@applies(Batching, "torch", "torch-compile", unavailable=batch_unavailable, warnings=batch_warnings)
def plan_batch(_lever: Batching, _context: Context) -> tuple[Step, ...]:
    """No step: whoever calls the pipeline hands it that many rows."""
    return ()
