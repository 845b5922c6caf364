"""Reading an ONNX file without running it: versions, inputs, weights, external data."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import (
    LoadError,
    UnsupportedFormatError,
)
from workbench.core.model import TensorSpec
from workbench.sources.external_data import check_external
from workbench.sources.protobuf import onnx_versions

# ONNX Runtime promises nothing below; its quantizers and per-channel scales start later.
_MIN_OPSET = 7
_QUANTIZE_OPSET = 13
# Every ONNX Runtime that pyproject.toml allows reads these; newer files are worth a probe.
_SAFE_IR, _SAFE_OPSET = 10, 21

_LAYERS = {
    "Gemm": "Linear",
    "LayerNormalization": "LayerNorm",
    "GroupNormalization": "GroupNorm",
    "BatchNormalization": "BatchNorm2d",
    "Attention": "MultiheadAttention",
    "MultiHeadAttention": "MultiheadAttention",
    "LSTM": "LSTM",
    "GRU": "GRU",
}


@dataclass(frozen=True, kw_only=True)
class OnnxSummary:
    """What an ONNX file says of itself. `external` are its data files, relative to it."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    num_parameters: int
    num_bytes: int
    layers: dict[str, int]
    external: tuple[str, ...]
    notes: tuple[str, ...]


def read_onnx(path: Path, *, trusted: bool = False) -> OnnxSummary:
    """Check a file's versions and external data, and summarise its graph.

    Raises UnsupportedFormatError on versions that ONNX Runtime does not read and on sizes
    that disagree, MissingDataError where external data is absent or cut short,
    UntrustedFileError where it lies outside the model's folder (a link counts as outside
    unless `trusted`), LoadError where the onnx package is missing.
    """
    notes = check_versions(path)
    if importlib.util.find_spec("onnx") is None:
        raise LoadError(
            f"reading {path.name!r} takes the onnx package: pip install 'accel-workbench[run]'."
        )
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError as error:
        raise UnsupportedFormatError(f"{path.name!r} is cut short or malformed.") from error
    graph = model.graph
    external: set[str] = set()
    num_bytes = num_parameters = 0
    for tensor in all_tensors(model):
        size = _declared_bytes(tensor)
        num_parameters += math.prod(tensor.dims)
        num_bytes += size
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external.add(check_external(path, tensor, size, trusted=trusted))
        elif tensor.HasField("raw_data") and len(tensor.raw_data) != size:
            raise UnsupportedFormatError(
                f"{path.name!r}: the tensor {tensor.name!r} declares {size} bytes and holds "
                f"{len(tensor.raw_data)}."
            )
    initialized = {t.name for t in graph.initializer}
    ranges = _id_ranges(graph)
    inputs = tuple(
        _spec(value, ranges.get(value.name))
        for value in graph.input
        if value.name not in initialized
    )
    outputs = tuple(_spec(value, None) for value in graph.output)
    return OnnxSummary(
        inputs=inputs,
        outputs=outputs,
        num_parameters=num_parameters,
        num_bytes=num_bytes,
        layers=_count_layers(graph, initialized),
        external=tuple(sorted(external)),
        notes=notes,
    )


def check_versions(path: Path) -> tuple[str, ...]:
    """Refuse an ONNX file that is too new or too old, and note one that cannot be quantized.

    Needs no package. The versions named as supported are the installed ONNX Runtime's, or
    the onnx package's where there is no runtime.
    """
    with path.open("rb") as file:
        ir_version, opsets = onnx_versions(file, path.stat().st_size)
    opset = opsets.get("ai.onnx")
    if opset is not None and opset < _MIN_OPSET:
        raise UnsupportedFormatError(
            f"{path.name!r} uses opset {opset}; ONNX Runtime runs opset {_MIN_OPSET} and later. "
            "Update the file: onnx.version_converter.convert_version(model, 17)."
        )
    if ir_version > _SAFE_IR or (opset or 0) > _SAFE_OPSET:
        reader, max_ir, max_opset = _supported_versions()
        if max_ir is not None and ir_version > max_ir:
            raise UnsupportedFormatError(
                f"{path.name!r} has ir_version {ir_version}; {reader} reads up to "
                f"ir_version {max_ir}. Export it again with an onnx package of that time (or set "
                f"model.ir_version = {max_ir} before saving), or install a newer onnxruntime."
            )
        if max_opset is not None and opset is not None and opset > max_opset:
            raise UnsupportedFormatError(
                f"{path.name!r} uses opset {opset}; {reader} runs opset {_MIN_OPSET} to "
                f"{max_opset}. Export it again with opset_version={max_opset}, convert it with "
                f"onnx.version_converter.convert_version(model, {max_opset}), or install a newer "
                "onnxruntime."
            )
    if opset is not None and opset < _QUANTIZE_OPSET:
        return (
            f"the file uses opset {opset}, which runs; quantizing it takes opset "
            f"{_QUANTIZE_OPSET} or later: onnx.version_converter.convert_version(model, 17)",
        )
    return ()


def _supported_versions() -> tuple[str, int | None, int | None]:
    """Who reads ONNX here, and up to which ir_version and opset."""
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        return (
            f"onnxruntime {onnxruntime.__version__}",
            _probe(_tiny_model(9999, 17), r"max supported IR version: (\d+)"),
            _probe(_tiny_model(8, 9999), r"ai\.onnx is till opset (\d+)"),
        )
    if importlib.util.find_spec("onnx") is not None:
        import onnx

        return (
            f"the onnx package {onnx.__version__}",
            int(onnx.IR_VERSION),
            int(onnx.defs.onnx_opset_version()),
        )
    return "nothing here", None, None


def _probe(model: bytes, pattern: str) -> int | None:
    """ONNX Runtime has no call that tells what it reads, but its refusal does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except runtime_errors() as error:
        found = re.search(pattern, str(error))
        return int(found[1]) if found else None
    return None


def runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: its classes share no base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [v for v in vars(state).values() if isinstance(v, type) and issubclass(v, Exception)]
    return (*own, RuntimeError, ValueError)


def _tiny_model(ir_version: int, opset: int) -> bytes:
    """A ModelProto with an empty graph, by hand: ir_version, graph, opset_import."""

    def varint(value: int) -> bytes:
        out = b""
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    version = b"\x10" + varint(opset)
    return (
        b"\x08" + varint(ir_version) + b"\x3a\x03\x12\x01g" + b"\x42" + varint(len(version))
    ) + version


def all_tensors(model: Any) -> Iterator[Any]:
    """Every TensorProto that carries weights: initializers and constants, subgraphs too."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)


def _declared_bytes(tensor: Any) -> int:
    import onnx

    if any(dim < 0 for dim in tensor.dims):
        raise UnsupportedFormatError(f"the tensor {tensor.name!r} declares a negative size.")
    count = math.prod(tensor.dims)
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    try:
        width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError as error:
        raise UnsupportedFormatError(
            f"the tensor {tensor.name!r} has the unknown data type {tensor.data_type}."
        ) from error
    bits = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
    packed = bits.get(onnx.TensorProto.DataType.Name(tensor.data_type))
    return (count * packed + 7) // 8 if packed else int(count * width)


def _spec(value: Any, high: int | None) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise UnsupportedFormatError(f"{value.name!r} is no tensor, which the graph wants there.")
    tensor = value.type.tensor_type
    dtype = _dtype_name(tensor.elem_type)
    shape: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            shape.append(int(dim.dim_value))
        else:
            name = re.sub(r"\W", "_", dim.dim_param)
            shape.append(name if name and not name[0].isdigit() else _dim_name(value.name, axis))
    integer = dtype.startswith(("int", "uint"))
    return TensorSpec(
        name=value.name,
        dtype=dtype,
        shape=tuple(shape),
        low=0 if integer and high is not None else None,
        high=high if integer else None,
    )


def _dim_name(name: str, axis: int) -> str:
    return "batch" if axis == 0 else re.sub(r"\W", "_", f"{name}_{axis}")


def _dtype_name(elem_type: int) -> str:
    import onnx

    name = str(onnx.TensorProto.DataType.Name(elem_type))
    known = {"FLOAT": "float32", "DOUBLE": "float64", "BFLOAT16": "bfloat16", "STRING": "str"}
    return str(known.get(name, name.lower()))


_PASSES_IDS = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose")


def _id_ranges(graph: Any) -> dict[str, int]:
    """For every input that indexes a table: the number of rows of the smallest one."""
    rows = {t.name: tuple(t.dims) for t in graph.initializer}
    origin = {value.name: value.name for value in graph.input}
    ranges: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _PASSES_IDS and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type == "Gather" and node.input[0] in rows and node.input[1] in origin:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            dims = rows[node.input[0]]
            if dims:
                name = origin[node.input[1]]
                ranges[name] = min(dims[axis], ranges.get(name, dims[axis]))
    return ranges


def _count_layers(graph: Any, initialized: set[str]) -> dict[str, int]:
    constants = set(initialized)
    ranks = {t.name: len(t.dims) for t in graph.initializer}
    counts: dict[str, int] = {}
    for node in graph.node:
        layer = _LAYERS.get(node.op_type)
        if node.op_type in ("Constant", "DequantizeLinear") and (
            node.op_type == "Constant" or node.input[0] in constants
        ):
            constants.update(node.output)
        elif node.op_type == "MatMul" and any(name in constants for name in node.input):
            layer = "Linear"
        elif node.op_type == "Conv":
            layer = f"Conv{max(1, ranks.get(node.input[1], 4) - 2)}d"
        elif node.op_type == "Gather" and ranks.get(node.input[0], 0) == 2:
            layer = "Embedding"
        if layer is not None:
            counts[layer] = counts.get(layer, 0) + 1
    return counts
