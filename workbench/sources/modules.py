"""Capturing a live `nn.Module` (or a callable that makes one) without touching it.

The object is pickled by cloudpickle with its tensors taken out: they are copied to the CPU
into a safetensors file, so that no worker needs the device they were on, and parameters
that are one object stay one.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import pickle
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import LoadError
from workbench.sources.cell import NoSourceError, collect_source, is_notebook_object
from workbench.sources.describe import pickle_globals
from workbench.sources.local_modules import copy_local, current_path, imported_roots
from workbench.sources.memory import check_fits

PAYLOAD, TENSORS, CELL = "payload.pkl", "tensors.safetensors", "cell.py"

# The dtypes that safetensors keeps.
_STORABLE = (
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)

# What pickling or copying a user's object can raise; it runs the object's own methods.
_PICKLING = (
    pickle.PicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, kw_only=True)
class CapturedObject:
    """What was written beside the payload: helpers, and the notebook's definitions."""

    helpers: tuple[str, ...]
    cell_names: tuple[str, ...]
    no_cell: str


def unwrap(module: Any) -> tuple[Any, tuple[str, ...]]:
    """The module inside torch.compile's and the data-parallel wrappers, and notes on them."""
    notes = []
    for _ in range(8):
        inner = getattr(module, "_orig_mod", None)
        if inner is not None:
            notes.append("it was compiled; the module inside is measured, engines compile it anew")
        elif type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = module.module
            notes.append(f"the module inside {type(module).__name__} is measured")
        else:
            break
        module = inner
    return module, tuple(notes)


def module_size(module: Any) -> tuple[int, int]:
    """(parameters, bytes of parameters and buffers), tied ones counted once.

    Raises LoadError where a tensor has no values yet (lazy modules, the meta device).
    """
    import torch

    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise LoadError(
                f"the parameter {name!r} is not initialized: run the lazy module once "
                "before loading it."
            )
        if tensor.device.type == "meta":
            raise LoadError(f"the tensor {name!r} is on the meta device and has no values.")
    num_parameters = sum(p.numel() for p in module.parameters())
    tensors = [*module.parameters(), *module.buffers()]
    return num_parameters, sum(t.numel() * t.element_size() for t in tensors)


def module_notes(module: Any) -> tuple[str, ...]:
    """What is worth saying about the state that the user's module is in."""
    notes = []
    inner = [name for name, child in module.named_modules() if name and child.training]
    if module.training:
        notes.append("was in training mode; an eval copy is measured")
    elif inner:
        notes.append(
            f"{len(inner)} of its modules (such as {inner[0]!r}) were in training mode; "
            "an eval copy is measured"
        )
    devices = {str(t.device) for t in module.parameters() if t.device.type != "cpu"}
    if devices:
        notes.append(f"was on {', '.join(sorted(devices))}; its tensors were copied to the CPU")
    return tuple(notes)


def forward_signature(module: Any) -> inspect.Signature:
    """The signature of `module.forward`, without self."""
    return inspect.signature(module.forward)


def capture_object(item: Any, folder: Path) -> CapturedObject:
    """Write the payload, its tensors, the notebook's definitions and the helper modules.

    Raises LoadError where the object cannot be pickled, TooLargeError where a copy of it
    does not fit.
    """
    for package in ("cloudpickle", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise LoadError(
                f"a live module travels by {package}, which is not installed here: "
                "pip install 'accel-workbench[run]'."
            )
    if hasattr(item, "parameters"):
        check_fits(module_size(item)[1], f"a copy of {type(item).__name__}")
    data = _pickle(item, folder)
    objects = list(notebook_objects(item))
    cell_names: tuple[str, ...] = ()
    no_cell = ""
    text = ""
    modules: set[str] = set()
    try:
        if objects:
            source = collect_source(objects)
            text, cell_names = source.text, source.names
            modules.update(source.modules)
            (folder / CELL).write_text(text, encoding="utf-8")
    except NoSourceError as error:
        no_cell = str(error)
    roots = {name.partition(".")[0] for name in pickle_globals(data)}
    roots |= {name.partition(".")[0] for name in modules} | imported_roots(text)
    for found in objects:
        roots |= set(_global_roots(found))
    helpers = copy_local(sorted(roots), current_path(), folder / "helpers")
    return CapturedObject(helpers=helpers, cell_names=cell_names, no_cell=no_cell)


def notebook_objects(item: Any) -> Iterator[Any]:
    """Classes and functions of `__main__` (or of no module at all) that the object uses."""
    seen: set[int] = set()

    def visit(value: Any, depth: int) -> Iterator[Any]:
        if id(value) in seen or depth > 6:
            return
        seen.add(id(value))
        if isinstance(value, (type, types.FunctionType)):
            if value.__module__ != "builtins" and is_notebook_object(value):
                yield value
            return
        if isinstance(value, (list, tuple, set, frozenset)):
            for child in value:
                yield from visit(child, depth + 1)
            return
        if isinstance(value, dict):
            for child in value.values():
                yield from visit(child, depth + 1)
            return
        if type(value).__module__ == "__main__":
            yield from visit(type(value), depth)
            yield from visit(getattr(value, "__dict__", {}), depth + 1)

    if not hasattr(item, "named_modules"):
        yield from visit(item, 0)
        return
    for _, module in item.named_modules():
        yield from visit(type(module), 0)
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                yield from visit(value, 1)


def _global_roots(item: Any) -> Iterator[str]:
    """Top-level modules that a class's or function's code reaches through its globals."""
    functions = [item] if isinstance(item, types.FunctionType) else vars(item).values()
    for function in functions:
        if not isinstance(function, types.FunctionType):
            continue
        pending = [function.__code__]
        while pending:
            code = pending.pop()
            pending.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
            for name in code.co_names:
                value = function.__globals__.get(name)
                if isinstance(value, types.ModuleType):
                    yield value.__name__.partition(".")[0]
                elif isinstance(getattr(value, "__module__", None), str):
                    yield value.__module__.partition(".")[0]


def _pickle(item: Any, folder: Path) -> bytes:
    import cloudpickle
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    keys: dict[int, str] = {}
    keep_alive: list[Any] = []
    storages: set[int] = set()
    plain = (torch.Tensor, torch.nn.Parameter)
    storable = {getattr(torch, name) for name in _STORABLE if hasattr(torch, name)}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> Any:
            if type(value) not in plain or value.layout is not torch.strided:
                return None
            if value.dtype not in storable or value.device.type == "meta":
                return None
            if id(value) not in keys:
                key = str(len(tensors))
                host = value.detach().to("cpu").contiguous()
                pointer = host.untyped_storage().data_ptr()
                if pointer in storages or host.untyped_storage().nbytes() != host.nbytes:
                    # safetensors refuses two tensors in one storage.
                    host = host.clone()
                storages.add(host.untyped_storage().data_ptr())
                keys[id(value)] = key
                keep_alive.append(value)
                tensors[key] = host
            is_parameter = type(value) is torch.nn.Parameter
            return ("tensor", keys[id(value)], is_parameter, bool(value.requires_grad))

    buffer = io.BytesIO()
    try:
        Pickler(buffer).dump(item)
    except _PICKLING as error:
        raise LoadError(
            f"{type(item).__name__} cannot travel to a worker: {error}. Give a factory instead, "
            "as 'package.module:factory'."
        ) from error
    save_file(tensors, str(folder / TENSORS))
    data = buffer.getvalue()
    (folder / PAYLOAD).write_bytes(data)
    return data
