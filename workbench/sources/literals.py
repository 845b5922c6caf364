"""Writing a value as Python source, and naming what can be imported.

Whatever comes from a model enters code through here: as a literal, never as text.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

# Builtins of torch know no module of their own; they are found where they are public.
_PUBLIC = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "math", "operator")


class NotLiteralError(Exception):
    """Why a value cannot be written as source, in one clause."""


def literal(
    value: object, special: Callable[[object], str | None] | None = None
) -> tuple[str, dict[str, object]]:
    """Source text of a value, and the names that it uses with what they must mean.

    Numbers, text, containers of them, torch dtypes, devices and sizes, enum members,
    dataclasses, namespaces, partials, configurations of transformers, and classes and
    functions that have a name. `special` may give the text of a value within. Raises
    NotLiteralError on anything else.
    """
    uses: dict[str, object] = {}
    return _write(value, uses, special or _nothing, 0), uses


def _nothing(value: object) -> str | None:
    del value
    return None


def importable(item: object) -> tuple[str, str] | None:
    """(module, attribute) under which another process finds this very object, or None.

    Only top-level attributes count, and `__main__` does not.
    """
    name = getattr(item, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        return None
    module = getattr(item, "__module__", None)
    candidates = [module] if isinstance(module, str) else []
    if not isinstance(item, (type, types.FunctionType)):
        candidates += _PUBLIC
    for candidate in candidates:
        if candidate == "__main__":
            continue
        loaded = sys.modules.get(candidate)
        if loaded is not None and getattr(loaded, name, None) is item:
            return candidate, name
    return None


def _write(
    value: Any,
    uses: dict[str, object],
    special: Callable[[object], str | None],
    depth: int,
) -> str:
    if depth > 20:
        raise NotLiteralError("nested too deeply")
    written = special(value)
    if written is not None:
        return written
    deeper = functools.partial(_write, uses=uses, special=special, depth=depth + 1)
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
    if kind is complex:
        return f"complex({deeper(value.real)}, {deeper(value.imag)})"
    if kind is tuple:
        inner = ", ".join(map(deeper, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if kind is list:
        return f"[{', '.join(map(deeper, value))}]"
    if kind in (set, frozenset):
        inner = f"[{', '.join(sorted(map(deeper, value)))}]"
        return f"{kind.__name__}({inner})"
    if kind in (dict, OrderedDict):
        pairs = ", ".join(f"{deeper(k)}: {deeper(v)}" for k, v in value.items())
        if kind is dict:
            return f"{{{pairs}}}"
        return f"{_named(OrderedDict, uses)}({{{pairs}}})"
    if kind in (range, slice):
        return f"{kind.__name__}({deeper(value.start)}, {deeper(value.stop)}, {deeper(value.step)})"
    if isinstance(value, enum.Enum):
        return f"{_named(kind, uses)}[{value.name!r}]"
    if kind is types.SimpleNamespace:
        uses["types"] = types
        fields = ", ".join(f"{_identifier(k)}={deeper(v)}" for k, v in vars(value).items())
        return f"types.SimpleNamespace({fields})"
    if kind is functools.partial:
        parts = [deeper(value.func), *map(deeper, value.args)]
        parts += [f"{_identifier(k)}={deeper(v)}" for k, v in value.keywords.items()]
        uses["functools"] = functools
        return f"functools.partial({', '.join(parts)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _write_dataclass(value, uses, deeper)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return _named(value, uses)
    if kind.__module__.startswith("transformers") and hasattr(kind, "from_dict"):
        return f"{_named(kind, uses)}.from_dict({deeper(value.to_dict())})"
    if kind.__module__.startswith("torch"):
        return _write_torch(value, uses)
    if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return deeper(value.item())
    raise NotLiteralError(f"a {kind.__module__}.{kind.__qualname__}, which source cannot write")


def _write_torch(value: Any, uses: dict[str, object]) -> str:
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Size):
        uses["torch"] = torch
        return f"torch.Size({list(value)!r})"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        uses["torch"] = torch
        return str(value)
    if isinstance(value, torch.device):
        uses["torch"] = torch
        return f"torch.device({str(value)!r})"
    kind = type(value)
    raise NotLiteralError(f"a {kind.__module__}.{kind.__qualname__}, which source cannot write")


def _write_dataclass(value: Any, uses: dict[str, object], deeper: Callable[[Any], str]) -> str:
    parts = []
    for item in dataclasses.fields(value):
        if not item.init:
            continue
        parts.append(f"{item.name}={deeper(getattr(value, item.name))}")
    return f"{_named(type(value), uses)}({', '.join(parts)})"


def _named(item: Any, uses: dict[str, object]) -> str:
    if isinstance(item, type) and item.__module__ == "builtins":
        return item.__name__
    path = importable(item)
    if path is not None and path[0].split(".")[0] == "torch":
        # Spelled in full, as people write it; importing torch brings these along.
        importlib.import_module(path[0])
        uses["torch"] = sys.modules["torch"]
        return f"{_public_torch(item, path[0])}.{path[1]}"
    name = getattr(item, "__qualname__", "")
    if path is None and ("<" in name or not name.isidentifier()):
        raise NotLiteralError(f"{name or item!r}, which has no name that can be imported")
    uses[item.__name__] = item
    return str(item.__name__)


def _public_torch(item: Any, module: str) -> str:
    for public in ("torch.nn", "torch.nn.functional", "torch"):
        if getattr(sys.modules.get(public), item.__name__, None) is item:
            return public
    return module


def _identifier(name: str) -> str:
    if not name.isidentifier():
        raise NotLiteralError(f"an object with the attribute {name!r}")
    return name
