"""Input specs: reading "x: f32[batch, 3, 224, 224]", and drawing arrays that fit one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InputError
from workbench.core.model import TensorSpec

Array = NDArray[np.generic]

DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "bool": "bool",
    "c64": "complex64",
}
_SPEC = re.compile(
    r"\s*(?P<name>[^\s:\[\]]+)\s*:\s*(?P<dtype>[a-z]+[0-9]*)\s*\[(?P<dims>[^\]]*)\]"
    r"(?:\s+in\s+(?P<low>-?\d+)\s*\.\.\s*(?P<high>-?\d+))?\s*\Z"
)
_DIM = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)(?:\s*=\s*(?P<size>\d+))?|(?P<number>\d+))\Z")

# More than one row, so that an export does not take the batch for a constant.
DEFAULT_BATCH = 4
BATCH_NAMES = ("batch", "batch_size", "n", "b", "N", "B")


def is_integer(dtype: str) -> bool:
    """Whether a dtype, spelled as in TensorSpec, is an integer (bool is not)."""
    return dtype.startswith(("int", "uint"))


def is_floating(dtype: str) -> bool:
    """Whether a dtype, spelled as in TensorSpec, is a real floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """The numpy dtype that carries a spec's dtype: bfloat16 travels as float32."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def parse_spec(text: str) -> tuple[TensorSpec, dict[str, int]]:
    """A spec and the example sizes that it gives to named dimensions.

    "x: f32[batch, 3, 224, 224]", "ids: i64[batch=8, seq=128] in 0..30522" (the upper bound
    is left out). Raises InputError on anything else.
    """
    found = _SPEC.match(text)
    if found is None:
        raise InputError(
            f"{text!r} is no input spec; write it as 'x: f32[batch, 3, 224, 224]' or "
            "'ids: i64[batch, 128] in 0..30522'."
        )
    short = found["dtype"]
    dtype = DTYPES.get(short, short if short in DTYPES.values() else None)
    if dtype is None:
        raise InputError(
            f"the input {found['name']!r} has the dtype {short!r}; known are {', '.join(DTYPES)}."
        )
    shape: list[int | str] = []
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in found["dims"].split(","))):
        dim = _DIM.match(part)
        if dim is None or dim["number"] == "0" or dim["size"] == "0":
            raise InputError(
                f"{part!r} is no dimension of the input {found['name']!r}; a dimension is a "
                "positive number, a name, or a name with its example size such as seq=128."
            )
        if dim["number"] is not None:
            shape.append(int(dim["number"]))
        else:
            shape.append(dim["name"])
            if dim["size"] is not None:
                sizes[dim["name"]] = int(dim["size"])
    low = int(found["low"]) if found["low"] is not None else None
    high = int(found["high"]) if found["high"] is not None else None
    if low is not None and high is not None and low >= high:
        raise InputError(f"the range {low}..{high} of the input {found['name']!r} is empty.")
    spec = TensorSpec(name=found["name"], dtype=dtype, shape=tuple(shape), low=low, high=high)
    return spec, sizes


def spec_of(name: str, array: Array, dtype: str | None = None) -> TensorSpec:
    """The spec of one example array, every dimension a number."""
    return TensorSpec(name=name, dtype=dtype or str(array.dtype), shape=tuple(array.shape))


def example_shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The spec's shape in numbers.

    Raises InputError where a named dimension other than the batch has no size.
    """
    numbers = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            numbers.append(dim)
        elif dim in sizes:
            numbers.append(sizes[dim])
        elif dim in BATCH_NAMES or axis == 0:
            numbers.append(DEFAULT_BATCH)
        else:
            raise InputError(
                f"the dimension {dim!r} of the input {spec} has no size; give one in the spec, "
                f"such as {dim}=128, or give an example as inputs=."
            )
    return tuple(numbers)


def draw(spec: TensorSpec, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """A made-up array: standard normal, integers of [low, high), True for bool.

    Integers without a range are ones, which suits masks and is valid for ids.
    """
    dtype = numpy_dtype(spec.dtype)
    if spec.dtype == "bool":
        return np.ones(shape, dtype)
    if is_integer(spec.dtype):
        low = 0 if spec.low is None else spec.low
        if spec.high is None:
            return np.full(shape, spec.low if spec.low is not None else 1, dtype)
        return rng.integers(low, spec.high, size=shape).astype(dtype)
    if spec.dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def num_bytes(spec: TensorSpec, shape: Sequence[int]) -> int:
    """Bytes of an array of that spec and shape."""
    width = 2 if spec.dtype == "bfloat16" else numpy_dtype(spec.dtype).itemsize
    return int(np.prod([int(d) for d in shape], dtype=object)) * width
