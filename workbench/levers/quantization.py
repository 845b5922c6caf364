"""Quantization: weights, and perhaps activations, as small integers or 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.levers.table import Lever, choice


@dataclass(frozen=True, kw_only=True)
class Quantization(Lever):
    """One way to quantize.

    "int8-dynamic" stores int8 weights and finds the activations' scale in every call.
    "int8-static" takes the activations' scales from calibration rows. "int8-weights" and
    "int4-weights" quantize weights only: fewer bytes to read, the arithmetic stays in
    floating point. "fp8" stores and multiplies 8-bit floats.
    """

    name: ClassVar[str] = "quantization"
    title: ClassVar[str] = "Quantization"
    help: ClassVar[str] = "Weights, and with int8 activations too, in 8 or 4 bits."
    values: ClassVar[tuple[str, ...]] = (
        "int8-dynamic",
        "int8-static",
        "int8-weights",
        "int4-weights",
        "fp8",
    )
    meanings: ClassVar[dict[str, str]] = {
        "int8-dynamic": "int8 weights; activations are scaled to int8 anew in every call.",
        "int8-static": "int8 weights and activations, whose scales come from calibration rows.",
        "int8-weights": "Weights are stored as int8; the arithmetic stays floating.",
        "int4-weights": "Weights are stored as int4 in groups; the arithmetic is bfloat16.",
        "fp8": "Weights and activations are multiplied as 8-bit floats, scaled by row.",
    }

    value: str

    @classmethod
    def parse(cls, text: str) -> Quantization:
        """The scheme named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))

    @property
    def dtype(self) -> str:
        """The short name of the weights' format: "int8", "int4" or "fp8"."""
        return self.value.partition("-")[0]
