"""Precision: the number format that matmuls and convolutions compute in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.levers.table import Lever, choice


@dataclass(frozen=True, kw_only=True)
class Precision(Lever):
    """One number format.

    "fp32" is strict ieee arithmetic everywhere. "tf32" rounds what goes into fp32 matmuls
    and convolutions to ten bits of mantissa, on tensor cores. "bf16" and "fp16" cast
    weights and inputs; with "-autocast" the weights stay fp32 and PyTorch picks the
    operators that are run in the short format.
    """

    name: ClassVar[str] = "precision"
    title: ClassVar[str] = "Precision"
    help: ClassVar[str] = "The number format that matmuls and convolutions compute in."
    values: ClassVar[tuple[str, ...]] = (
        "fp32",
        "tf32",
        "bf16",
        "fp16",
        "bf16-autocast",
        "fp16-autocast",
    )
    meanings: ClassVar[dict[str, str]] = {
        "fp32": "Every fp32 operation in full precision, tensor cores' roundings switched off.",
        "tf32": "Factors of fp32 matmuls and convolutions are rounded to tf32.",
        "bf16": "Weights and inputs are bfloat16.",
        "fp16": "Weights and inputs are float16.",
        "bf16-autocast": "Weights stay fp32; matmuls and convolutions are run in bfloat16.",
        "fp16-autocast": "Weights stay fp32; matmuls and convolutions are run in float16.",
    }

    value: str

    @classmethod
    def parse(cls, text: str) -> Precision:
        """The precision named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))

    @property
    def dtype(self) -> str:
        """The short name of the format computed in: "fp32", "tf32", "bf16", "fp16"."""
        return self.value.removesuffix("-autocast")

    @property
    def is_autocast(self) -> bool:
        """Whether weights stay fp32 and operators are cast one by one."""
        return self.value.endswith("-autocast")
