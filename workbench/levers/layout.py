"""Layout: the order in which a tensor's elements lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.levers.table import Lever, choice


@dataclass(frozen=True, kw_only=True)
class Layout(Lever):
    """One memory layout of images and convolution weights.

    Left alone, channels come before pixels (NCHW). "channels-last" stores the channels of
    one pixel side by side (NHWC), which convolution kernels for tensor cores and most CPU
    kernels read without a transposition.
    """

    name: ClassVar[str] = "layout"
    title: ClassVar[str] = "Memory layout"
    help: ClassVar[str] = "The order of channels and pixels in memory."
    values: ClassVar[tuple[str, ...]] = ("channels-last",)
    meanings: ClassVar[dict[str, str]] = {
        "channels-last": "The channels of a pixel lie side by side (NHWC).",
    }

    value: str

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))
