"""Attention: which kernel computes scaled dot-product attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.levers.table import Lever, choice


@dataclass(frozen=True, kw_only=True)
class Attention(Lever):
    """One kernel of `torch.nn.functional.scaled_dot_product_attention`.

    Left alone, PyTorch picks. "math" is the plain sequence of matmul and softmax; "flash",
    "efficient" and "cudnn" never write the matrix of scores to memory.
    """

    name: ClassVar[str] = "attention"
    title: ClassVar[str] = "Attention kernel"
    help: ClassVar[str] = "The kernel that computes scaled dot-product attention."
    values: ClassVar[tuple[str, ...]] = ("math", "flash", "efficient", "cudnn")
    meanings: ClassVar[dict[str, str]] = {
        "math": "Attention as separate matmuls and a softmax.",
        "flash": "FlashAttention: tiles of the scores never leave the chip.",
        "efficient": "The memory-efficient kernel of xFormers.",
        "cudnn": "cuDNN's fused attention.",
    }

    value: str

    @classmethod
    def parse(cls, text: str) -> Attention:
        """The kernel named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))
