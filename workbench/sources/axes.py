"""Which axis of each input carries the batch, as far as shapes tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.core.errors import InputError
from workbench.core.model import TensorSpec
from workbench.sources.specs import BATCH_NAMES


def guess_axes(
    specs: Sequence[TensorSpec], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Input to batch axis: as given, by a dimension's name, or by a shared leading size.

    {} where no input has a dimension that could be it. Nothing is proved by this; running
    other sizes is. Raises InputError where `given` names an input or axis that is not there.
    """
    if given is not None:
        for name, axis in given.items():
            spec = next((s for s in specs if s.name == name), None)
            if spec is None or not 0 <= axis < len(spec.shape):
                raise InputError(
                    f"batch_axes names axis {axis} of the input {name!r}; the inputs are "
                    f"{'; '.join(map(str, specs))}."
                )
        return dict(given)
    named = _by_name(specs)
    if named is not None:
        return named
    first = next((s.shape[0] for s in specs if s.shape), None)
    return {s.name: 0 for s in specs if s.shape and s.shape[0] == first}


def _by_name(specs: Sequence[TensorSpec]) -> dict[str, int] | None:
    dims = [dim for spec in specs for dim in spec.shape if isinstance(dim, str)]
    if not dims:
        return None
    leading = [s.shape[0] for s in specs if s.shape and isinstance(s.shape[0], str)]
    name = next((d for d in dims if d in BATCH_NAMES), leading[0] if leading else None)
    if name is None:
        return {}
    return {s.name: s.shape.index(name) for s in specs if name in s.shape}


def batch_size(axes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> int | None:
    """The batch of arrays of these shapes, or None where there is no batch axis."""
    for name, axis in axes.items():
        return int(shapes[name][axis])
    return None


def free_batch(specs: Sequence[TensorSpec], axes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """The specs with the batch axis named, so that arrays of any number of rows fit."""
    freed = []
    for spec in specs:
        axis = axes.get(spec.name)
        shape = list(spec.shape)
        if axis is not None:
            shape[axis] = "batch"
        freed.append(
            TensorSpec(
                name=spec.name,
                dtype=spec.dtype,
                shape=tuple(shape),
                low=spec.low,
                high=spec.high,
            )
        )
    return tuple(freed)
