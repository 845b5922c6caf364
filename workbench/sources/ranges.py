"""Which ids an integer input may hold: found by watching which table it meets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.core.json import Json
from workbench.core.model import TensorSpec
from workbench.core.structure import bind_inputs
from workbench.sources.specs import Array, is_integer

# Functions that look rows up in a table, which is floating, by ids, which are not.
_LOOKUPS = ("embedding", "embedding_bag", "index_select")


def find_ranges(
    module: Any,
    call: Mapping[str, Json],
    specs: tuple[TensorSpec, ...],
    arrays: Mapping[str, Array],
) -> dict[str, int]:
    """For each integer input that indexes a table: the rows of the smallest one it meets.

    Runs the module once on zeros in place of the integer inputs, which every table has, and
    follows them through torch's functions as long as they stay integers.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    followed: dict[int, frozenset[str]] = {}
    keep_alive: list[Any] = []
    found: dict[str, int] = {}

    def origins(value: Any) -> frozenset[str]:
        if isinstance(value, torch.Tensor):
            return followed.get(id(value), frozenset())
        if isinstance(value, (tuple, list)):
            return frozenset().union(*map(origins, value))
        return frozenset()

    def meets(names: frozenset[str], rows: int) -> None:
        for name in names:
            found[name] = min(rows, found.get(name, rows))

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            name = getattr(function, "__name__", "")
            if name in _LOOKUPS:
                tensors = [a for a in args if isinstance(a, torch.Tensor)]
                table = next((t for t in tensors if t.is_floating_point()), None)
                axis = args[1] if name == "index_select" else 0
                if table is not None and isinstance(axis, int):
                    meets(origins(tensors), int(table.shape[axis]))
            elif name == "__getitem__" and isinstance(args[0], torch.Tensor):
                index = args[1] if isinstance(args[1], tuple) else (args[1],)
                for axis, part in enumerate(index):
                    if axis < args[0].dim():
                        meets(origins(part), int(args[0].shape[axis]))
            result = function(*args, **(kwargs or {}))
            names = origins(list(args)) | origins(list((kwargs or {}).values()))
            is_index = isinstance(result, torch.Tensor) and not result.is_floating_point()
            if names and is_index and result.dtype is not torch.bool:
                followed[id(result)] = names
                keep_alive.append(result)
            return result

    tensors = {}
    for spec in specs:
        array = arrays[spec.name]
        drawn = is_integer(spec.dtype) and spec.high is None
        value = np.zeros_like(array) if drawn else array
        tensor = torch.from_numpy(value.copy()).to(getattr(torch, spec.dtype))
        if drawn:
            followed[id(tensor)] = frozenset({spec.name})
        keep_alive.append(tensor)
        tensors[spec.name] = tensor
    args, kwargs = bind_inputs(dict(call), tensors)
    with torch.inference_mode(), Watch():
        module(*args, **kwargs)
    return found
