"""Whether two modules are built alike: everything but the values of their state."""

from __future__ import annotations

import types
import weakref
from typing import Any

# What nn.Module keeps for itself; compared by its own rules, or of no consequence.
INTERNAL = frozenset(
    {
        "training",
        "_parameters",
        "_buffers",
        "_non_persistent_buffers_set",
        "_backward_pre_hooks",
        "_backward_hooks",
        "_is_full_backward_hook",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_modules",
        "_compiled_call_impl",
    }
)


def same_structure(a: Any, b: Any) -> str:
    """ "" where both have the same classes, children, tensors, ties and attributes.

    Shapes and dtypes of parameters and persistent buffers are compared, not their values,
    which a state dict brings; buffers outside the state dict and plain attributes are
    compared by value. Otherwise the first difference.
    """
    return _compare_modules(a, b, _places(a), _places(b), "")


def _places(module: Any) -> dict[int, str]:
    places: dict[int, str] = {}
    for path, part in module.named_modules():
        places.setdefault(id(part), f"module {path}")
    for path, parameter in module.named_parameters():
        places.setdefault(id(parameter), f"parameter {path}")
    return places


def _compare_modules(a: Any, b: Any, at_a: dict[int, str], at_b: dict[int, str], path: str) -> str:
    if type(a) is not type(b):
        return f"{path or 'the module'} is a {type(b).__name__}, not a {type(a).__name__}"
    if at_a.get(id(a)) != at_b.get(id(b)):
        return f"{path} is shared differently"
    for kind in ("_parameters", "_buffers"):
        ours, theirs = getattr(a, kind), getattr(b, kind)
        if list(ours) != list(theirs):
            return f"{path}: {kind} differ"
        for name, tensor in ours.items():
            other = theirs[name]
            if (tensor is None) != (other is None):
                return f"{path}.{name} is missing on one side"
            if tensor is None:
                continue
            if tensor.shape != other.shape:
                return f"{path}.{name} differs in shape"
            if tensor.dtype != other.dtype and not _both_float(tensor, other):
                return f"{path}.{name} differs in dtype"
            if kind == "_parameters" and at_a.get(id(tensor)) != at_b.get(id(other)):
                return f"{path}.{name} is tied differently"
            free = name in a._non_persistent_buffers_set
            if kind == "_buffers" and free != (name in b._non_persistent_buffers_set):
                return f"{path}.{name} differs in persistence"
            if kind == "_buffers" and free and not _equal_tensors(tensor, other):
                return f"{path}.{name} differs in value"
    own = {k: v for k, v in vars(a).items() if k not in INTERNAL}
    made = {k: v for k, v in vars(b).items() if k not in INTERNAL}
    if set(own) != set(made):
        return f"{path} has other attributes: {sorted(set(own) ^ set(made))}"
    for key, value in own.items():
        if not _equal(value, made[key], at_a, at_b, 0):
            return f"{path}.{key} differs"
    if list(a._modules) != list(b._modules):
        return f"{path} has other children"
    for name, child in a._modules.items():
        other = b._modules[name]
        if child is None or other is None:
            if child is not other:
                return f"{path}.{name} is missing on one side"
            continue
        difference = _compare_modules(child, other, at_a, at_b, f"{path}.{name}".strip("."))
        if difference:
            return difference
    return ""


def _both_float(a: Any, b: Any) -> bool:
    """A model cast as a whole (`.half()`) is cast again by its factory."""
    return bool(a.is_floating_point() and b.is_floating_point())


def _equal_tensors(a: Any, b: Any) -> bool:
    import torch

    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool(torch.equal(a.detach().cpu(), b.detach().cpu()))
    )


def _equal(a: Any, b: Any, at_a: dict[int, str], at_b: dict[int, str], depth: int) -> bool:
    import torch

    if a is b:
        return True
    if id(a) in at_a or id(b) in at_b:
        return at_a.get(id(a)) == at_b.get(id(b))
    if type(a) is not type(b) or depth > 20:
        return False
    if isinstance(a, weakref.ReferenceType):
        return _equal(a(), b(), at_a, at_b, depth + 1)
    if isinstance(a, torch.Tensor):
        return _equal_tensors(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(
            _equal(x, y, at_a, at_b, depth + 1) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            _equal(a[key], b[key], at_a, at_b, depth + 1) for key in a
        )
    if isinstance(a, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
        same_name: bool = a.__qualname__ == b.__qualname__ and a.__module__ == b.__module__
        return same_name and getattr(a, "__code__", None) == getattr(b, "__code__", None)
    if hasattr(a, "to_dict"):
        return bool(a.to_dict() == b.to_dict())
    compares_by_identity = "__eq__" not in {name for c in type(a).__mro__[:-1] for name in vars(c)}
    if compares_by_identity and hasattr(a, "__dict__"):
        return _equal(vars(a), vars(b), at_a, at_b, depth + 1)
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False
