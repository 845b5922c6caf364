"""From what the user gives as inputs to named tensors and a template of the call.

The template is JSON: `{"args": [NODE...], "kwargs": {name: NODE}}`, NODE one of
`["tensor", input_name]`, `["tuple"|"list", [NODE...]]`, `["dict", [[key, NODE]...]]`,
`["none"]`, `["const", json]`. `workbench.core.structure.bind_inputs` fills it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from workbench.core.errors import InputError
from workbench.core.json import Json
from workbench.core.model import TensorSpec
from workbench.sources.specs import Array, parse_spec, spec_of

Node = list[Any]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Named inputs and the call that takes them.

    `arrays` holds the examples that were given; an input that is there only as a spec has
    none. `sizes` are the example sizes that specs gave to named dimensions. `given` is the
    user's own form, from which the call can be bound again once the signature is known.
    """

    specs: tuple[TensorSpec, ...]
    call: dict[str, Json]
    arrays: dict[str, Array]
    sizes: dict[str, int] = field(default_factory=dict)
    given: dict[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Given:
    """The user's inputs, taken apart: positional nodes or named ones, and the leaves."""

    style: Literal["args", "mapping", "specs"]
    nodes: list[tuple[str, Node]]
    leaves: list[Any]


def bind_arguments(inputs: object, signature: inspect.Signature | None) -> Arguments:
    """Name the inputs by the forward's signature and say where each one goes.

    `inputs` is a tensor or array, a tuple or list of arguments, a dict of arguments by name
    (or the one dict that the forward takes), or specs: a string, several, or a dict of them.
    `signature` is None where the model is not at hand. Raises InputError with the signature
    where the inputs cannot be its arguments.
    """
    given = _take_apart(inputs)
    args, kwargs, notes = _arrange(given, signature)
    names: dict[int, str] = {}
    for prefix, node in [*args, *kwargs.items()]:
        _name_leaves(node, prefix, names)
    _check_unique(names)
    specs: list[TensorSpec] = []
    arrays: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for index, name in names.items():
        leaf = given.leaves[index]
        if isinstance(leaf, _SpecLeaf):
            spec = leaf.spec
            specs.append(
                TensorSpec(
                    name=name, dtype=spec.dtype, shape=spec.shape, low=spec.low, high=spec.high
                )
            )
            sizes.update(leaf.sizes)
        else:
            array, dtype = to_array(leaf, name)
            if array.size == 0:
                raise InputError(
                    f"the input {name!r} is empty; wanted at least one row, got "
                    f"{dtype}{list(array.shape)}."
                )
            specs.append(spec_of(name, array, dtype))
            arrays[name] = array
    form: dict[str, Json] = {
        "style": given.style,
        "nodes": [[key, _with_names(node, names)] for key, node in given.nodes],
    }
    call: dict[str, Json] = {
        "args": [_with_names(node, names) for _, node in args],
        "kwargs": {key: _with_names(node, names) for key, node in kwargs.items()},
    }
    return Arguments(
        specs=tuple(specs), call=call, arrays=arrays, sizes=sizes, given=form, notes=notes
    )


def bind_again(form: dict[str, Any], signature: inspect.Signature) -> dict[str, Json]:
    """The call for a signature that was not known when the inputs were given.

    `form` is `Arguments.given`; names of inputs stay. Raises InputError as `bind_arguments`.
    """
    given = _Given(style=form["style"], nodes=[(k, n) for k, n in form["nodes"]], leaves=[])
    args, kwargs, _ = _arrange(given, signature)
    return {"args": [node for _, node in args], "kwargs": dict(kwargs)}


def to_array(leaf: Any, name: str) -> tuple[Array, str]:
    """A leaf as a numpy array on the host, and its dtype as a TensorSpec spells it.

    A torch tensor is copied to the CPU; bfloat16 becomes float32 and keeps its name. Raises
    InputError on what no array can hold.
    """
    if hasattr(leaf, "detach"):
        dtype = str(leaf.dtype).removeprefix("torch.")
        if leaf.is_sparse or leaf.is_quantized or leaf.device.type == "meta":
            raise InputError(f"the input {name!r} is not a dense tensor with values.")
        host = leaf.detach().to("cpu")
        if dtype.startswith(("bfloat16", "float8")):
            host = host.float()
        return host.resolve_conj().resolve_neg().numpy(), dtype
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        raise InputError(
            f"the input {name!r} is an array of {array.dtype}; wanted numbers or booleans."
        )
    return array, str(array.dtype)


class _SpecLeaf:
    def __init__(self, text: str | TensorSpec) -> None:
        self.sizes: dict[str, int] = {}
        if isinstance(text, TensorSpec):
            self.spec = text
        else:
            self.spec, self.sizes = parse_spec(text)
        self.name = self.spec.name


def _is_spec(value: object) -> bool:
    if isinstance(value, TensorSpec):
        return True
    return isinstance(value, str) and ":" in value and "[" in value


def _split_specs(text: str) -> list[str]:
    return [part for part in text.replace("\n", ";").split(";") if part.strip()]


def _take_apart(inputs: Any) -> _Given:
    given = _Given(style="args", nodes=[], leaves=[])
    if isinstance(inputs, str):
        inputs = _split_specs(inputs)
        if not inputs:
            raise InputError("inputs is an empty text; write 'x: f32[batch, 4]' or the like.")
    if isinstance(inputs, TensorSpec):
        inputs = [inputs]
    if isinstance(inputs, (tuple, list)) and inputs and all(map(_is_spec_or_text, inputs)):
        given.style = "specs"
        for item in inputs:
            leaf = _SpecLeaf(item)
            given.nodes.append((leaf.name, _leaf(leaf, given)))
    elif isinstance(inputs, Mapping):
        given.style = "specs" if inputs and all(map(_is_spec, inputs.values())) else "mapping"
        for key, item in inputs.items():
            given.nodes.append((key, _walk(item, given)))
    elif isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
        given.nodes = [("", _walk(item, given)) for item in inputs]
    else:
        given.nodes = [("", _walk(inputs, given))]
    if not given.leaves:
        raise InputError(
            "there is no tensor or array in inputs; give at least one, or a spec such as "
            "'x: f32[batch, 4]'."
        )
    return given


def _is_spec_or_text(value: object) -> bool:
    return isinstance(value, (str, TensorSpec))


def _leaf(leaf: Any, given: _Given) -> Node:
    given.leaves.append(leaf)
    return ["tensor", len(given.leaves) - 1]


def _walk(item: Any, given: _Given) -> Node:
    if item is None:
        return ["none"]
    if _is_spec(item):
        return _leaf(_SpecLeaf(item), given)
    if isinstance(item, (bool, int, float, str)):
        return ["const", item]
    if isinstance(item, (np.ndarray, np.generic)) or hasattr(item, "detach"):
        return _leaf(item, given)
    if isinstance(item, Mapping):
        pairs = []
        for key, child in item.items():
            if not isinstance(key, (str, int, bool)):
                raise InputError(
                    f"a dict in inputs has the key {key!r}; keys must be text or integers."
                )
            pairs.append([key, _walk(child, given)])
        return ["dict", pairs]
    if isinstance(item, (tuple, list)) and not hasattr(item, "_fields"):
        kind = "tuple" if isinstance(item, tuple) else "list"
        return [kind, [_walk(child, given) for child in item]]
    raise InputError(
        f"inputs holds a {type(item).__module__}.{type(item).__qualname__}; wanted tensors, "
        "arrays, numbers, None, specs, and tuples, lists or dicts of them."
    )


def _arrange(
    given: _Given, signature: inspect.Signature | None
) -> tuple[list[tuple[str, Node]], dict[str, Node], tuple[str, ...]]:
    """(name, node) for every positional argument, nodes by keyword, and notes."""
    nodes = given.nodes
    if signature is None:
        if given.style == "args":
            if len(nodes) == 1:
                prefix = "" if nodes[0][1][0] == "dict" else "input"
                return [(prefix, nodes[0][1])], {}, ()
            return [(f"input_{i}", node) for i, (_, node) in enumerate(nodes)], {}, ()
        return [], dict(nodes), ()
    shown = f"forward{signature}"
    kinds = inspect.Parameter
    positional = [
        p
        for p in signature.parameters.values()
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    keyword_only = [p for p in signature.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    variadic = next(
        (p.name for p in signature.parameters.values() if p.kind is kinds.VAR_POSITIONAL), None
    )
    takes_any_name = any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values())
    required = [p.name for p in [*positional, *keyword_only] if p.default is kinds.empty]

    def by_position(
        values: list[Node],
    ) -> tuple[list[tuple[str, Node]], dict[str, Node], tuple[str, ...]]:
        if len(values) > len(positional) and variadic is None:
            if len(positional) == 1 and len(required) == 1:
                return (
                    [(positional[0].name, ["tuple", values])],
                    {},
                    (f"the inputs are passed to {shown} as one tuple",),
                )
            raise InputError(
                f"{len(values)} positional inputs were given; the model takes {shown}."
            )
        names = [p.name for p in positional]
        names += [f"{variadic}_{i}" for i in range(len(values) - len(positional))]
        absent = [n for n in required if n not in names[: len(values)]]
        if absent:
            raise InputError(
                f"no input was given for {', '.join(absent)}; the model takes {shown}. Name "
                "the inputs in a dict where they are keyword-only."
            )
        placed = list(zip(names, values, strict=False))
        if len(placed) == 1 and placed[0][1][0] == "dict":
            placed = [("", placed[0][1])]
        return placed, {}, ()

    if given.style == "args":
        return by_position([node for _, node in nodes])
    by_name = dict(nodes)
    known = {p.name for p in [*positional, *keyword_only]}
    matches = all(isinstance(k, str) and (k in known or takes_any_name) for k in by_name)
    absent = [n for n in required if n not in by_name]
    if matches and not absent:
        args: list[tuple[str, Node]] = []
        for parameter in positional:
            if parameter.name not in by_name:
                break
            args.append((parameter.name, by_name.pop(parameter.name)))
        ordered = {p.name: by_name[p.name] for p in keyword_only if p.name in by_name}
        ordered.update(by_name)
        return args, ordered, ()
    if matches and (known & set(by_name)):
        raise InputError(f"no input was given for {', '.join(absent)}; the model takes {shown}.")
    room = len(positional) if variadic is None else len(by_name)
    keyword_required = [p.name for p in keyword_only if p.default is kinds.empty]
    if given.style == "specs" and not keyword_required and not (known & set(by_name)):
        num_required = len([n for n in required if n not in keyword_required])
        if num_required <= len(by_name) <= room and (len(by_name) == 1 or room > 1):
            return list(by_name.items()), {}, ()
    if len(required) <= 1 and positional and not keyword_required and not (known & set(by_name)):
        return [("", ["dict", [[k, n] for k, n in by_name.items()]])], {}, ()
    unknown = [str(k) for k in by_name if k not in known]
    raise InputError(
        f"the inputs {', '.join(unknown) or 'given'} are no arguments of the model; "
        f"it takes {shown}."
    )


def _name_leaves(node: Node, prefix: str, names: dict[int, str]) -> None:
    kind = node[0]
    if kind == "tensor":
        names[node[1]] = prefix or "input"
    elif kind in ("tuple", "list"):
        for i, child in enumerate(node[1]):
            _name_leaves(child, f"{prefix}.{i}" if prefix else str(i), names)
    elif kind == "dict":
        for key, child in node[1]:
            _name_leaves(child, f"{prefix}.{key}" if prefix else str(key), names)


def _check_unique(names: dict[int, str]) -> None:
    seen: set[str] = set()
    for name in names.values():
        if name in seen:
            raise InputError(f"two inputs would be called {name!r}; rename one.")
        seen.add(name)


def _with_names(node: Node, names: dict[int, str]) -> Node:
    kind = node[0]
    if kind == "tensor":
        return ["tensor", names[node[1]]]
    if kind in ("tuple", "list"):
        return [kind, [_with_names(child, names) for child in node[1]]]
    if kind == "dict":
        return ["dict", [[key, _with_names(child, names)] for key, child in node[1]]]
    return node
