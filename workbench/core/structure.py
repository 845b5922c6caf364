"""Arguments in, outputs out: from flat names to what a model takes, and back.

The functions are cut into `pipeline.py` by the engines. They therefore import what they
need inside their body and refer to no global. They know no framework: a tensor is whatever
has a `shape` and a `dtype`.
"""

# Annotations would have to be imported by the file these are cut into; only builtins are used.
# mypy: allow-untyped-calls, allow-untyped-defs, allow-any-generics

from __future__ import annotations


def bind_inputs(call: dict, tensors: dict) -> tuple:
    """Put named tensors where the call template wants them: (args, kwargs).

    `call` is `{"args": [NODE...], "kwargs": {name: NODE}}`, NODE one of
    `["tensor", input_name]`, `["tuple"|"list", [NODE...]]`, `["dict", [[key, NODE]...]]`,
    `["none"]`, `["const", json]`. Raises KeyError where the template names a tensor that is
    not there and ValueError on an unknown node.
    """

    def build(node):
        kind = node[0]
        if kind == "tensor":
            return tensors[node[1]]
        if kind == "tuple":
            return tuple(build(child) for child in node[1])
        if kind == "list":
            return [build(child) for child in node[1]]
        if kind == "dict":
            return {key: build(child) for key, child in node[1]}
        if kind == "none":
            return None
        if kind == "const":
            return node[1]
        raise ValueError(f"unknown node {kind!r} in the call template")

    args = tuple(build(node) for node in call["args"])
    kwargs = {name: build(node) for name, node in call["kwargs"].items()}
    return args, kwargs


def flatten_outputs(value: object, prefix: str = "") -> dict:
    """A model's outputs by dotted name, in the order in which the model gave them.

    A lone leaf is "output"; keys of mappings, positions of tuples and lists, and fields of
    dataclasses and named tuples otherwise ("logits", "past.0.1"). Tensors and arrays stay
    what they are, None stays None, numbers become 0-d numpy arrays. Raises TypeError that
    names the output where a leaf is none of these, and ValueError where two have one name.
    """
    import dataclasses
    from collections.abc import Mapping

    import numpy

    flat: dict = {}

    def visit(item, name):
        if item is None or (hasattr(item, "shape") and hasattr(item, "dtype")):
            children = None
            leaf = item
        elif isinstance(item, (bool, int, float, complex)):
            children = None
            leaf = numpy.asarray(item)
        elif isinstance(item, Mapping):
            # Before dataclasses: the outputs of transformers are both, and as mappings they
            # leave out what is None.
            children = [(str(key), child) for key, child in item.items()]
        elif isinstance(item, tuple) and hasattr(item, "_fields"):
            children = [(key, getattr(item, key)) for key in item._fields]
        elif isinstance(item, (tuple, list)):
            children = [(str(index), child) for index, child in enumerate(item)]
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            children = [(f.name, getattr(item, f.name)) for f in dataclasses.fields(item)]
        else:
            raise TypeError(
                f"the output {name or 'output'!r} is a {type(item).__module__}."
                f"{type(item).__qualname__}, which is neither a tensor, a number, None nor a "
                "dict, tuple, list or dataclass of those"
            )
        if children is None:
            key = name or "output"
            if key in flat:
                raise ValueError(f"two outputs are called {key!r}")
            flat[key] = leaf
            return
        for key, child in children:
            visit(child, f"{name}.{key}" if name else key)

    visit(value, prefix)
    return flat


def plain_answer(value: object) -> object:
    """What `postprocess` gave as JSON: arrays as lists; what has no JSON as its type's name."""
    from collections.abc import Mapping

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_answer(child) for key, child in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_answer(child) for child in value]
    if hasattr(value, "tolist"):
        return plain_answer(value.tolist())
    return type(value).__qualname__
