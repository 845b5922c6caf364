"""What an operator worked on: data types and dimensions, as one text that people can read.

PyTorch writes "Input Dims" and "Input type", ONNX Runtime `input_type_shape`. All become
`f32[8, 64], i64[8]`, in the words of the workbench's input specs; of two operators with equal
operands the texts are equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

# By what C++ and ONNX call them; PyTorch writes `c10::Half`, `long int`, ONNX Runtime `float16`.
_TYPES = {
    "float": "f32",
    "double": "f64",
    "half": "f16",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "long int": "i64",
    "long": "i64",
    "int64": "i64",
    "int": "i32",
    "int32": "i32",
    "short int": "i16",
    "short": "i16",
    "int16": "i16",
    "signed char": "i8",
    "int8": "i8",
    "qint8": "i8",
    "unsigned char": "u8",
    "uint8": "u8",
    "quint8": "u8",
    "bool": "bool",
}
BYTES_OF = {
    "f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2,
    "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1, "bool": 1,
}  # fmt: skip
_OPERAND = re.compile(r"([\w.]+|\?)\[([\d, ]*)\]")
_LIST = "TensorList"
# More operands than these are counted in the text, not listed: a list may hold thousands.
_MAX_OPERANDS = 24


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor that went into an operator; `dtype` as in input specs (`f32`, `i64`)."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """How many numbers it holds; a scalar holds one."""
        return prod(self.dims)

    @property
    def num_bytes(self) -> int | None:
        """How large it is; None where the type's size is not known here."""
        size = BYTES_OF.get(self.dtype)
        return None if size is None else self.num_elements * size


@lru_cache(maxsize=65_536)
def operands(text: str) -> tuple[Operand, ...]:
    """The tensors that a text of `torch_operands` or `onnx_operands` lists, in order."""
    return tuple(
        Operand(dtype=found[1], dims=tuple(int(one) for one in found[2].split(",") if one.strip()))
        for found in _OPERAND.finditer(text)
    )


def torch_operands(dims: bytes, types: bytes) -> str | None:
    """The text of an operator's tensors as PyTorch's profiler writes them; None without any.

    Both are JSON lists with one entry an argument. Scalars are none: they have no dimensions
    and no type of a tensor.
    """
    shapes, kinds = _decoded(dims), _decoded(types)
    if not isinstance(shapes, list):
        return None
    if not isinstance(kinds, list) or len(kinds) != len(shapes):
        kinds = ["?"] * len(shapes)
    found = []
    for shape, kind in zip(shapes, kinds, strict=True):
        if not isinstance(shape, list) or not isinstance(kind, str):
            continue
        if kind == _LIST or (shape and isinstance(shape[0], list)):
            found += [_written("?", one) for one in shape if isinstance(one, list)]
        elif shape or _dtype(kind) is not None:
            found.append(_written(kind, shape))
    return _joined(found)


def onnx_operands(described: bytes) -> str | None:
    """The text of a node's tensors as ONNX Runtime writes them; None without any."""
    listed = _decoded(described)
    if not isinstance(listed, list):
        return None
    return _joined(
        [
            _written(kind, shape)
            for one in listed
            if isinstance(one, dict)
            for kind, shape in one.items()
            if isinstance(shape, list)
        ]
    )


# Where padding, stride and dilation stand among the arguments.
_OF_CONVOLUTION = {
    "aten::mkldnn_convolution": (3, 4, 5),
    "mkldnn::_convolution_pointwise": (3, 4, 5),
    "aten::cudnn_convolution": (2, 3, 4),
    "aten::miopen_convolution": (3, 4, 5),
}
_ONNX_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
_RESULT = re.compile(r" to \[([\d, ]*)\]$")


def is_convolution(name: str) -> bool:
    """Whether the arguments of an operator or node tell its result's dimensions, as `convolved`."""
    return name in _OF_CONVOLUTION or name in _ONNX_CONVOLUTIONS


def convolved(text: str, name: str, beside: bytes) -> str:
    """` to [8, 64, 16, 16]`: the dimensions that a convolution of these operands has as result.

    `beside` is the JSON of an operator's scalar arguments ("Concrete Inputs"), or of a node's
    results ("output_type_shape"). Empty where they do not tell.
    """
    listed = _decoded(beside)
    if not isinstance(listed, list):
        return ""
    if name in _ONNX_CONVOLUTIONS:
        found = onnx_operands(beside)
        results = operands(found) if found else ()
        return f" to {list(results[0].dims)}" if results else ""
    try:
        image, weight = operands(text)[:2]
        padding, stride, dilation = (
            [int(one) for one in msgspec.json.decode(listed[place])]
            for place in _OF_CONVOLUTION[name]
        )
        batch, _, *sizes = image.dims
        channels, _, *kernel = weight.dims
        made = [
            (size + 2 * pad - apart * (width - 1) - 1) // step + 1
            for size, pad, apart, width, step in zip(
                sizes, padding, dilation, kernel, stride, strict=True
            )
        ]
    except (ValueError, TypeError, IndexError, ZeroDivisionError, msgspec.MsgspecError):
        return ""
    return f" to {[batch, channels, *made]}" if all(one > 0 for one in made) else ""


def result_dims(text: str) -> tuple[int, ...] | None:
    """The dimensions that `convolved` put behind the operands."""
    found = _RESULT.search(text)
    return None if found is None else tuple(int(one) for one in found[1].split(",") if one.strip())


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _joined(found: list[str | None]) -> str | None:
    known = [one for one in found if one is not None]
    more = f" and {len(known) - _MAX_OPERANDS} more" if len(known) > _MAX_OPERANDS else ""
    return ", ".join(known[:_MAX_OPERANDS]) + more if known else None


def _written(kind: str, shape: list[Any]) -> str | None:
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in shape):
        return None
    return f"{_dtype(kind) or '?'}{shape}"


def _dtype(kind: str) -> str | None:
    """The type in the workbench's words; its own where it has none; None for no tensor's."""
    plain = kind.removeprefix("c10::")
    known = _TYPES.get(plain.lower())
    if known is not None:
        return known
    if kind in ("", "Scalar", "ScalarList", "GenericList", _LIST, "None", "?"):
        return None
    return re.sub(r"[^\w.]", "_", plain)
