"""Fusion: operators merged into fewer, larger ones, and launches merged into graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.levers.table import Lever, choice


@dataclass(frozen=True, kw_only=True)
class Fusion(Lever):
    """How far an engine merges operators.

    Engines have values of their own. Eager torch: "conv-bn" folds batch normalisation into
    the convolution before it, "cuda-graphs" records the launches of a call and replays
    them. torch.compile: its modes, and "freezing", which lets Inductor treat weights as
    constants. ONNX Runtime: the level of its graph optimiser ("off", "basic", "extended",
    "all"), and "transformer", its fusions for attention models.
    """

    name: ClassVar[str] = "fusion"
    title: ClassVar[str] = "Fusion"
    help: ClassVar[str] = "How far operators are merged, and launches recorded into graphs."
    values: ClassVar[tuple[str, ...]] = (
        "conv-bn",
        "cuda-graphs",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
        "freezing",
        "off",
        "basic",
        "extended",
        "all",
        "transformer",
    )

    value: str

    @classmethod
    def parse(cls, text: str) -> Fusion:
        """The degree named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))
