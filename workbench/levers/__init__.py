"""Levers: what may be chosen, one file each, and how each engine applies it."""

from workbench.levers.attention import Attention
from workbench.levers.batching import Batching
from workbench.levers.fusion import Fusion
from workbench.levers.layout import Layout
from workbench.levers.precision import Precision
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import (
    Cell,
    Lever,
    applies,
    cell,
    levers,
    offer,
    plan,
    resolve,
    warnings,
)
from workbench.levers.threads import Threads, default_environment, process_environment

__all__ = [
    "Attention",
    "Batching",
    "Cell",
    "Context",
    "Fusion",
    "Layout",
    "Lever",
    "Precision",
    "Quantization",
    "Step",
    "Threads",
    "applies",
    "cell",
    "default_environment",
    "levers",
    "offer",
    "plan",
    "portable",
    "process_environment",
    "resolve",
    "warnings",
]
