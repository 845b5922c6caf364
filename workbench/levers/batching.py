"""Batching: how many items one call computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.errors import RecipeError
from workbench.levers.step import Context
from workbench.levers.table import Lever


@dataclass(frozen=True, kw_only=True)
class Batching(Lever):
    """The number of items in one call. Any positive number may be asked for."""

    name: ClassVar[str] = "batch"
    title: ClassVar[str] = "Batch size"
    help: ClassVar[str] = "Items in one call: more throughput, and a longer wait for each."
    values: ClassVar[tuple[str, ...]] = ("1", "8", "32")

    size: int

    @classmethod
    def parse(cls, text: str) -> Batching:
        """The size in `text`. Raises RecipeError on anything but a positive integer."""
        if not (text.isascii() and text.isdecimal() and int(text) > 0):
            raise RecipeError(f"batch={text}: a batch is a positive number of items, such as 8.")
        return cls(size=int(text))


def batch_unavailable(value: str, context: Context) -> str | None:
    """Why this batch size cannot be had, the same on every engine: a fact of the model."""
    batch = context.model.batch
    size = Batching.parse(value).size
    if batch.dynamic or size == batch.example_size:
        return None
    return batch.reason or "the model's batch is fixed"


def batch_warnings(_value: str, context: Context) -> tuple[str, ...]:
    """Says that rows depend on the batch, where they do."""
    if context.model.batch.rows_independent is False:
        return (
            "rows depend on the batch: an item's output changes with the items beside it, so "
            "another batch size gives another result",
        )
    return ()
