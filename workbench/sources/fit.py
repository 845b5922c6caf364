"""Making arrays fit a model's input specs: cast with a note, or refuse with a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.core.errors import InputError
from workbench.core.model import TensorSpec
from workbench.sources.specs import Array, is_floating, is_integer, numpy_dtype


def fit_inputs(
    specs: Sequence[TensorSpec], arrays: Mapping[str, Array], *, what: str = "input"
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Arrays as the specs want them, and a note for every cast.

    A named dimension takes any size from 1 on, the same one wherever its name stands.
    float64 becomes float32, narrow integers wide ones and so on where the value survives.
    Raises InputError that names the input, what was wanted and what was given: on a name too
    many or too few, another rank or size, an empty array, a value out of range, or a cast
    that would change what the values are.
    """
    wanted = [spec.name for spec in specs]
    missing = [name for name in wanted if name not in arrays]
    unknown = [name for name in arrays if name not in wanted]
    if missing or unknown:
        parts = [f"{', '.join(missing)} missing"] if missing else []
        parts += [f"{', '.join(map(str, unknown))} unknown"] if unknown else []
        raise InputError(
            f"the {what}s do not match: {'; '.join(parts)}. Wanted: {'; '.join(map(str, specs))}."
        )
    fitted: dict[str, Array] = {}
    notes: list[str] = []
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        array = np.asarray(arrays[spec.name])
        _check_shape(spec, array, sizes, what)
        cast, note = _cast(spec, array, what)
        _check_range(spec, cast, what)
        fitted[spec.name] = cast
        if note:
            notes.append(note)
    return fitted, tuple(notes)


def _check_shape(
    spec: TensorSpec, array: Array, sizes: dict[str, tuple[int, str]], what: str
) -> None:
    got = f"{array.dtype}{list(array.shape)}"
    if array.ndim != len(spec.shape):
        raise InputError(
            f"the {what} {spec.name!r} has {array.ndim} dimensions; wanted {spec}, got {got}."
        )
    if array.size == 0:
        raise InputError(
            f"the {what} {spec.name!r} is empty; wanted {spec} with at least one row, got {got}."
        )
    for axis, (dim, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if isinstance(dim, int):
            if size != dim:
                raise InputError(
                    f"the {what} {spec.name!r} has size {size} in dimension {axis}; "
                    f"wanted {spec}, got {got}."
                )
        else:
            first, owner = sizes.setdefault(dim, (size, spec.name))
            if first != size:
                raise InputError(
                    f"the dimension {dim!r} is {first} in the {what} {owner!r} and {size} in "
                    f"{spec.name!r}; wanted {spec}, got {got}."
                )


def _cast(spec: TensorSpec, array: Array, what: str) -> tuple[Array, str]:
    target = numpy_dtype(spec.dtype)
    source = array.dtype
    if source == target:
        return np.ascontiguousarray(array).reshape(array.shape), ""
    refusal = InputError(
        f"the {what} {spec.name!r} is {source}; wanted {spec}. Cast it first: "
        f"array.astype({str(target)!r})."
    )
    if source.kind not in "biuf" or (target.kind == "b" and source.kind != "b"):
        raise refusal
    if is_integer(spec.dtype) and source.kind == "f":
        raise refusal
    with np.errstate(over="ignore"):
        cast = array.astype(target)
    if is_integer(spec.dtype) and not np.array_equal(cast, array):
        raise InputError(f"the {what} {spec.name!r} holds values that {target} cannot; {refusal}")
    if is_floating(spec.dtype) and not np.array_equal(np.isfinite(cast), np.isfinite(array)):
        raise InputError(f"the {what} {spec.name!r} overflows {target}; {refusal}")
    return cast, f"{what} {spec.name!r} was cast from {source} to {spec.dtype}"


def _check_range(spec: TensorSpec, array: Array, what: str) -> None:
    if not is_integer(spec.dtype) or (spec.low is None and spec.high is None):
        return
    smallest, largest = int(array.min()), int(array.max())
    if spec.low is not None and smallest < spec.low:
        bad = smallest
    elif spec.high is not None and largest >= spec.high:
        bad = largest
    else:
        return
    low = "" if spec.low is None else spec.low
    high = "" if spec.high is None else spec.high
    raise InputError(
        f"the {what} {spec.name!r} holds {bad}; wanted values in {low}..{high} "
        f"(the upper bound left out), got {array.dtype}{list(array.shape)} "
        f"from {smallest} to {largest}."
    )
