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
    meanings: ClassVar[dict[str, str]] = {
        "conv-bn": "Batch normalisation is folded into the convolution before it.",
        "cuda-graphs": "The launches of a call are recorded once and replayed.",
        "reduce-overhead": "Generated kernels, their launches recorded as CUDA graphs.",
        "max-autotune": "Candidate kernels are timed against each other when compiling.",
        "max-autotune-no-cudagraphs": "Kernels are timed against each other; no CUDA graphs.",
        "freezing": "Weights are constants of the compiled code, folded and packed for it.",
        "off": "The graph runs as it was exported.",
        "basic": "Redundant operators are removed and constants folded.",
        "extended": "Operators are fused for the provider as well.",
        "all": "Layouts are changed for the provider as well.",
        "transformer": "Attention, layer normalisation and GELU become one operator each.",
    }

    value: str

    @classmethod
    def parse(cls, text: str) -> Fusion:
        """The degree named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))
