"""What operators worked on, numbered as it is written and turned into texts at the end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workbench.traces.events import NO_TEXT, Arguments
from workbench.traces.operands import (
    convolved,
    is_convolution,
    onnx_operands,
    torch_operands,
)
from workbench.traces.trace import ABSENT, Sparse
from workbench.traces.values import Numbering


class Operands:
    """Takes the arguments of events block by block; `texts` makes texts of them."""

    def __init__(self) -> None:
        # By what the file writes: operands, their types, and what tells a convolution's result.
        self._written = Numbering()

    def numbers(
        self, arguments: list[Arguments], names: NDArray[np.integer], numbering: Numbering
    ) -> NDArray[np.int64]:
        """What each event's operands are numbered as, -1 for those without.

        `names` are the events' names, as numbered by `numbering`. Of a convolution with what tells
        the result's dimensions: its strides and padding, or these themselves.
        """
        found = np.full(len(arguments), ABSENT, dtype=np.int64)
        convolutions = {
            number: name
            for name, number in numbering.items()
            if isinstance(name, str) and is_convolution(name)
        }
        for place, one in enumerate(arguments):
            if one.dims is not NO_TEXT:
                name = convolutions.get(int(names[place])) if convolutions else None
                beside = None if name is None else (name, bytes(one.scalars))
                found[place] = self._written[bytes(one.dims), bytes(one.types), beside]
            elif one.onnx_shapes is not NO_TEXT:
                name = convolutions.get(int(names[place])) if convolutions else None
                beside = None if name is None else (name, bytes(one.onnx_results))
                found[place] = self._written[bytes(one.onnx_shapes), None, beside]
        return found

    def texts(self, column: Sparse) -> tuple[tuple[str, ...], Sparse]:
        """The texts of all operands, and the column that indexes them."""
        made = Numbering()
        text_of = np.full(len(self._written), ABSENT, dtype=np.int32)
        for (written, types, beside), number in self._written.items():
            text = onnx_operands(written) if types is None else torch_operands(written, types)
            if text is not None:
                text_of[number] = made[text + (convolved(text, *beside) if beside else "")]
        values = text_of[column.values]
        known = values != ABSENT
        return tuple(made), Sparse(rows=column.rows[known], values=values[known])
