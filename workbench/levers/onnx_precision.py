"""Precision on ONNX Runtime: the format of the graph's floats, and tf32 of its GPU provider."""

from __future__ import annotations

from typing import Any

from workbench.levers.onnx_file import write_graph
from workbench.levers.onnx_provider import provider_of
from workbench.levers.precision import Precision
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

_VALUES = ("fp32", "tf32", "bf16", "fp16")


def precision_unavailable(value: str, context: Context) -> str | None:
    """Why ONNX Runtime cannot compute in this format here."""
    device = context.device
    if value not in _VALUES:
        return "autocast is a mode of PyTorch; a graph's formats are fixed when it is exported"
    if value == "fp32":
        return None
    if provider_of(context) == "cpu":
        if value == "tf32":
            return f"tf32 needs the tensor cores of an NVIDIA GPU; this is {device.reading}"
        if value == "bf16":
            return (
                "bf16 not supported by ONNX Runtime on a CPU: Gemm, MatMul, Conv have no such "
                f"kernels; this is {device.reading}"
            )
        return None
    needed = (8, 0) if value in ("tf32", "bf16") else (5, 3)
    if (device.capability or (0, 0)) < needed:
        return f"{value} needs compute capability {needed[0]}.{needed[1]}; this is {device.reading}"
    return None


def precision_warnings(value: str, context: Context) -> tuple[str, ...]:
    """Says that fp16 is not computed in on most CPUs."""
    if value == "fp16" and provider_of(context) == "cpu" and "fp16" not in context.device.native:
        return (
            "ONNX Runtime has no fp16 matmuls for this CPU: it computes in fp32 between casts, "
            f"which is slower than fp32 alone; {context.device.reading} has no fp16 arithmetic",
        )
    return ()


@portable
def convert_to_fp16(graph: str) -> None:
    """Floats of the graph become fp16; its inputs and outputs stay fp32, with casts between.

    Constants beyond fp16's range are clamped to it, and operators that need the range keep
    fp32 (the converter's own list).
    """
    import warnings

    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with warnings.catch_warnings():
        # It says that constants were clamped; the outputs are compared anyway.
        warnings.simplefilter("ignore", UserWarning)
        converted = convert_float_to_float16(onnx.load(graph), keep_io_types=True)
    # The converter appends its casts; a graph's nodes have to stand in order.
    ordered = OnnxModel(converted)
    ordered.topological_sort()
    write_graph(ordered.model, graph)


@portable
def convert_to_bf16(graph: str) -> None:
    """Floats of the graph become bf16; its inputs and outputs stay fp32, with casts between."""
    import ml_dtypes
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(graph)
    held = model.graph

    def rounded(tensor: Any) -> Any:
        values = numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16)
        return numpy_helper.from_array(values, tensor.name)

    for tensor in held.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(rounded(tensor))
    for node in held.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(rounded(attribute.t))
            elif (node.op_type, attribute.name, attribute.i) == ("Cast", "to", TensorProto.FLOAT):
                attribute.i = TensorProto.BFLOAT16
    # The types between were inferred for fp32.
    del held.value_info[:]
    inner = {
        value.name: f"{value.name}.bf16"
        for value in (*held.input, *held.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    for node in held.node:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    casts_in = [
        helper.make_node("Cast", [value.name], [inner[value.name]], to=TensorProto.BFLOAT16)
        for value in held.input
        if value.name in inner
    ]
    casts_out = [
        helper.make_node("Cast", [inner[value.name]], [value.name], to=TensorProto.FLOAT)
        for value in held.output
        if value.name in inner
    ]
    nodes = [*casts_in, *held.node, *casts_out]
    del held.node[:]
    held.node.extend(nodes)
    write_graph(model, graph)


@portable
def set_tf32(
    providers: list[tuple[str, dict[str, Any]]], allowed: bool
) -> list[tuple[str, dict[str, Any]]]:
    """Allow or forbid tf32 in the fp32 matmuls and convolutions of a GPU's provider.

    TensorRT has no option for it; NVIDIA_TF32_OVERRIDE forbids it to every NVIDIA library.
    """
    import os

    if not allowed and providers[0][0] == "TensorrtExecutionProvider":
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    return [
        (name, {**options, "use_tf32": str(int(allowed))})
        if name == "CUDAExecutionProvider"
        else (name, options)
        for name, options in providers
    ]


@portable
def allow_tensorrt(
    providers: list[tuple[str, dict[str, Any]]], option: str
) -> list[tuple[str, dict[str, Any]]]:
    """Let TensorRT choose kernels of a shorter format where they are quicker."""
    return [
        (name, {**options, option: "1"} if name == "TensorrtExecutionProvider" else options)
        for name, options in providers
    ]


@applies(
    Precision,
    "onnxruntime",
    unavailable=precision_unavailable,
    values=_VALUES,
    warnings=precision_warnings,
)
def plan_precision(lever: Precision, context: Context) -> tuple[Step, ...]:
    """fp16 and bf16 convert the graph; fp32 and tf32 are a switch of the GPU's provider."""
    if lever.value in ("fp16", "bf16") and provider_of(context) == "tensorrt":
        # TensorRT keeps a graph's formats only as far as its own options allow them.
        return (
            Step(
                phase="load.precision",
                function=allow_tensorrt,
                reads=("providers",),
                writes="providers",
                params={"option": f"trt_{lever.value}_enable"},
            ),
        )
    if lever.value in ("fp16", "bf16"):
        convert = convert_to_fp16 if lever.value == "fp16" else convert_to_bf16
        return (Step(phase="build.precision", function=convert, reads=("graph",)),)
    if provider_of(context) == "cpu":
        return ()
    return (
        Step(
            phase="load.precision",
            function=set_tf32,
            reads=("providers",),
            writes="providers",
            params={"allowed": lever.value == "tf32"},
        ),
    )
