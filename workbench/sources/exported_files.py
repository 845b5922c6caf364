"""What an exported program's graph, which is JSON in its archive, says of its inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from workbench.core.errors import UnsupportedFormatError
from workbench.core.json import Json
from workbench.core.model import TensorSpec

# ScalarType of torch's serialized graphs (torch/_export/serde/schema.py).
_SCALAR_TYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
}
_CONTAINERS = {"builtins.tuple": "tuple", "builtins.list": "list", "builtins.dict": "dict"}


def exported_inputs(graph: dict[str, Any]) -> tuple[TensorSpec, ...]:
    """The tensors that an exported graph takes from its user, in order.

    Raises UnsupportedFormatError where the graph is not built as torch builds it.
    """
    try:
        values = graph["graph_module"]["graph"]["tensor_values"]
        specs = []
        for argument in _user_arguments(graph):
            if "as_tensor" not in argument:
                continue
            name = str(argument["as_tensor"]["name"])
            shape: list[int | str] = []
            for axis, size in enumerate(values[name]["sizes"]):
                if "as_int" in size:
                    shape.append(int(size["as_int"]))
                else:
                    shape.append("batch" if axis == 0 else f"{name}_{axis}")
            dtype = _SCALAR_TYPES[values[name]["dtype"]]
            specs.append(TensorSpec(name=name, dtype=dtype, shape=tuple(shape)))
    except (KeyError, TypeError) as error:
        raise UnsupportedFormatError(
            f"the exported program's graph is not as torch writes it: {error!r} is missing."
        ) from error
    return tuple(specs)


def exported_call(graph: dict[str, Any]) -> dict[str, Json]:
    """The call template of an exported graph, from the tree of its inputs.

    Raises UnsupportedFormatError where an input is no plain container.
    """
    try:
        signature = graph["graph_module"]["module_call_graph"][0]["signature"]
        _, tree = json.loads(signature["in_spec"])
        leaves = _user_arguments(graph)
        args, kwargs = (_node(child, leaves) for child in tree["children_spec"])
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise UnsupportedFormatError(
            "the exported program does not say how it is called; export it again with this "
            "version of torch."
        ) from error
    return {"args": args[1], "kwargs": dict(kwargs[1])}


def _user_arguments(graph: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in graph["graph_module"]["signature"]["input_specs"]:
        if "user_input" in item:
            yield item["user_input"]["arg"]
        elif "constant_input" in item:
            yield item["constant_input"]["value"]


def _node(tree: dict[str, Any], leaves: Iterator[dict[str, Any]]) -> list[Any]:
    if tree["type"] is None:
        argument = next(leaves)
        if "as_tensor" in argument:
            return ["tensor", argument["as_tensor"]["name"]]
        kind, value = next(iter(argument.items()))
        return ["none"] if kind == "as_none" else ["const", value]
    container = _CONTAINERS.get(tree["type"])
    if container is None:
        raise UnsupportedFormatError(
            f"the exported program takes a {tree['type']}; export it with tensors in plain "
            "tuples, lists and dicts."
        )
    children = [_node(child, leaves) for child in tree["children_spec"]]
    if container != "dict":
        return [container, children]
    keys = json.loads(tree["context"])
    return ["dict", [[key, child] for key, child in zip(keys, children, strict=True)]]
