"""How much arithmetic an operator does, and how many bytes it has to touch, from its operands.

Only what the recorded operands settle. A convolution's result also depends on its stride, which
PyTorch records among the scalars; ONNX Runtime records the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from workbench.core.profile import Peaks
from workbench.traces.operands import BYTES_OF, Operand, is_convolution, operands, result_dims
from workbench.traces.tables import OperatorRow


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """An operator with one set of operands, on the plane of a roofline.

    `intensity` is floating-point operations a byte, the least number of bytes that holds operands
    and result; `rate` operations a second, over the time of all calls. `share_of_roof` is the rate
    over what a device of the given peaks could reach at that intensity; None without peaks.
    """

    name: str
    shape: str
    num: int
    flops: int
    num_bytes: int
    total_ns: int
    share_of_roof: float | None

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.num_bytes

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.flops * self.num * 1e9 / self.total_ns


def roofline(rows: Sequence[OperatorRow], peaks: Peaks | None = None) -> tuple[RooflinePoint, ...]:
    """The operators of `operator_rows(trace, by_shape=True)` whose arithmetic is known.

    Their time is that of the work that they launched; in a trace without a device their own on
    the host. One that only calls another (`aten::linear` an `aten::addmm`) is left to that.
    `peaks` is what the device was measured to reach; types that it does not name have no roof.
    """
    made = []
    on_device = any(row.device_self_ns for row in rows)
    for row in rows:
        if not on_device and row.name in _CALLING:
            continue
        total_ns = row.device_self_ns if on_device else row.self_ns
        found = None if row.shape is None else arithmetic(row.name, row.shape)
        if row.shape is None or found is None or total_ns <= 0:
            continue
        flops, num_bytes = found
        share = None
        peak_flops = peaks.flops.get(operands(row.shape)[0].dtype) if peaks else None
        if peaks is not None and peak_flops and peaks.bytes_per_s:
            roof = min(peak_flops, peaks.bytes_per_s * flops / num_bytes)
            share = flops * row.num * 1e9 / total_ns / roof
        made.append(
            RooflinePoint(
                name=row.name,
                shape=row.shape,
                num=row.num,
                flops=flops,
                num_bytes=num_bytes,
                total_ns=total_ns,
                share_of_roof=share,
            )
        )
    return tuple(sorted(made, key=lambda point: (-point.total_ns, point.name, point.shape)))


def arithmetic(name: str, shape: str) -> tuple[int, int] | None:
    """Floating-point operations of one call, and bytes of operands and result; None if unknown.

    `shape` is the text of its operands. A multiplication and an addition are two.
    """
    rule = _RULES.get(name)
    tensors, known = operands(shape), result_dims(shape)
    if rule is None and not (known is not None and is_convolution(name)):
        return None
    try:
        flops, result = _convolution(tensors, known or ()) if rule is None else rule(tensors)
    except (IndexError, ValueError):
        # Fewer operands or dimensions than the operator takes: not what its name says.
        return None
    sizes = [BYTES_OF.get(one.dtype) for one in tensors]
    if None in sizes or flops <= 0:
        return None
    touched = sum(one.num_bytes or 0 for one in tensors) + prod(result) * (sizes[0] or 0)
    return flops, touched


_Rule = Callable[[Sequence[Operand]], tuple[int, tuple[int, ...]]]


def _product(first: int) -> _Rule:
    """Of a matrix product whose factors begin at an operand."""

    def rule(tensors: Sequence[Operand]) -> tuple[int, tuple[int, ...]]:
        left, right = tensors[first].dims, tensors[first + 1].dims
        *batch, rows, inner = left
        *other_batch, other_inner, columns = right
        if other_inner != inner:
            raise ValueError(f"{left} times {right}")
        result = (*np.broadcast_shapes(tuple(batch), tuple(other_batch)), rows, columns)
        return 2 * prod(result) * inner, result

    return rule


def _linear(tensors: Sequence[Operand]) -> tuple[int, tuple[int, ...]]:
    """Of a layer whose weight lies as (outputs, inputs)."""
    *batch, inner = tensors[0].dims
    outputs, inputs = tensors[1].dims
    if inner != inputs:
        raise ValueError(f"{inner} inputs, not {inputs}")
    result = (*batch, outputs)
    return 2 * prod(result) * inner, result


def _convolution(
    tensors: Sequence[Operand], result: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Each result is a sum over the weight of its channel."""
    return 2 * prod(result) * prod(tensors[1].dims[1:]), result


def _attention(tensors: Sequence[Operand]) -> tuple[int, tuple[int, ...]]:
    """Of scores and mixing; a causal mask would halve it, and is not recorded here."""
    *batch, queries, depth = tensors[0].dims
    keys, values = tensors[1].dims[-2], tensors[2].dims[-1]
    flops = 2 * prod(batch) * queries * keys * (depth + values)
    return flops, (*batch, queries, values)


# On a CPU these do nothing themselves.
_CALLING = frozenset({"aten::linear", "aten::matmul", "aten::scaled_dot_product_attention"})
_RULES: dict[str, _Rule] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::matmul": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::linear": _linear,
    "mkl::_mkl_linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "aten::scaled_dot_product_attention": _attention,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "MatMul": _product(0),
    "FusedMatMul": _product(0),
}
