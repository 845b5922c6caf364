"""Quantization on ONNX Runtime: int8 and int4 operators written into the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.json import Json
from workbench.levers.onnx_calibration import calibration_batches
from workbench.levers.onnx_file import write_graph
from workbench.levers.onnx_precision import allow_tensorrt
from workbench.levers.onnx_provider import provider_of
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DOT_PRODUCTS = ("avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8", "dotprod", "i8mm", "neon")


def quantization_unavailable(value: str, context: Context) -> str | None:
    """Why ONNX Runtime cannot quantize in this way here."""
    provider = provider_of(context)
    if value == "int8-dynamic" and provider != "cpu":
        return (
            "ONNX Runtime finds activations' scales on the CPU only (DynamicQuantizeLinear has "
            "no CUDA kernel)"
        )
    if value == "int8-static":
        if provider == "cuda":
            return (
                "ONNX Runtime's CUDA provider has no int8 convolution or matmul for such graphs; "
                "provider=tensorrt has"
            )
        if not context.model.has_calibration:
            return "the model has no calibration rows, which the activations' scales come from"
    if value.endswith("-weights") and provider == "tensorrt":
        return "TensorRT takes no MatMulNBits operator from ONNX Runtime"
    return None


def saturates(context: Context) -> bool:
    """Whether int8 products may overflow their 16 bits on this CPU.

    AVX2 and AVX-512 without VNNI add two products of u8 and s8 in 16 bits, saturating. Seen
    on AVX2 with weights that fill their range: 9.4 % relative error against 1.5 % without
    overflow, over four layers. Weights of 7 bits cannot overflow: 2.1 %, at the same speed;
    ONNX Runtime's own way out ("session.x64quantprecision") reaches 1.5 % and takes 1.3
    times as long.
    """
    device = context.device
    return device.kind == "cpu" and not set(_DOT_PRODUCTS) & set(device.instruction_sets)


def quantization_warnings(value: str, context: Context) -> tuple[str, ...]:
    """Says where int8 gains little, and what is given up for it."""
    if value in ("int8-dynamic", "int8-static") and saturates(context):
        return (
            f"{context.device.reading} has no VNNI: int8 products overflow 16 bits, so weights "
            "keep 7 bits; small layers may well be slower than in fp32",
        )
    return ()


@portable
def quantize_dynamic_int8(graph: str, reduce_range: bool) -> None:
    """int8 weights, a scale for each output channel; activations' scales found in every call.

    Matmuls with constant weights only: ONNX Runtime's dynamic convolution has one scale for
    all channels and is slower than fp32. `reduce_range` keeps weights to 7 bits.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    nodes = onnx.load(graph, load_external_data=False).graph.node
    # ONNX's own Attention has no weights in it, and the quantizer takes it for the other one.
    merged = any((n.op_type, n.domain) == ("Attention", "com.microsoft") for n in nodes)
    with quiet_quantizer():
        quantize_dynamic(
            graph,
            f"{graph}.int8",
            op_types_to_quantize=["MatMul", "Gemm", *(["Attention"] if merged else [])],
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            use_external_data_format=is_large(graph),
            extra_options={"MatMulConstBOnly": True},
        )
    replace_graph(graph, f"{graph}.int8")


@portable
def quantize_static_int8(
    graph: str, source_dir: str, reduce_range: bool, activations: str, batch_size: int | None
) -> None:
    """int8 weights and activations, their scales from the calibration rows (their extremes).

    Weights have a scale for each output channel. `activations` is "uint8" or "int8"; a CPU
    wants uint8, TensorRT symmetric int8. `batch_size` is the graph's where its batch is fixed.
    """
    from pathlib import Path

    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    symmetric = activations == "int8"
    with quiet_quantizer():
        prepared = f"{graph}.prepared"
        # Folds batch normalisation into convolutions first: afterwards their weights are fixed.
        quant_pre_process(
            graph,
            prepared,
            skip_symbolic_shape=True,
            save_as_external_data=is_large(graph),
        )
        nodes = onnx.load(prepared, load_external_data=False).graph.node
        kinds = {node.op_type for node in nodes}
        compute = {"Conv", "ConvTranspose", "MatMul", "Gemm"} & kinds
        # Between convolutions the data can stay int8; an encoder's sums and norms cannot.
        between = {"Add", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat"}
        wanted = compute | (between & kinds if "Conv" in kinds else set())
        quantize_static(
            prepared,
            f"{graph}.int8",
            calibration_reader(source_dir, batch_size),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=sorted(wanted),
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=is_large(graph),
            extra_options={
                "MatMulConstBOnly": True,
                "ActivationSymmetric": symmetric,
                "WeightSymmetric": True,
            },
        )
        for left in Path(prepared).parent.glob(f"{Path(prepared).name}*"):
            left.unlink()
    replace_graph(graph, f"{graph}.int8")


@portable
def calibration_reader(source_dir: str, batch_size: int | None) -> Any:
    """Calibration rows as ONNX Runtime's calibration reads them: batch by batch, then None."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(calibration_batches(source_dir, batch_size))

        def get_next(self) -> dict[str, Any] | None:
            return next(self.left, None)

    return Reader()


@portable
def quantize_weights(graph: str, bits: int, block_size: int) -> None:
    """Weights of matmuls in 8 or 4 bits, a scale for each block; arithmetic stays in floats."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )
    from onnxruntime.quantization.onnx_model import ONNXModel

    with quiet_quantizer():
        model = ONNXModel(onnx.load(graph))
        # The quantizer knows MatMul only; a Gemm is a MatMul and an Add.
        model.replace_gemm_with_matmul()
        quantizer = MatMulNBitsQuantizer(
            model.model,
            algo_config=DefaultWeightOnlyQuantConfig(
                block_size=block_size,
                is_symmetric=True,
                accuracy_level=1,
                bits=bits,
            ),
        )
        quantizer.process()
    write_graph(quantizer.model.model, graph)


@portable
def quiet_quantizer() -> Any:
    """A context in which the quantizers neither log nor warn of their own deprecations."""
    import contextlib
    import logging
    import warnings

    @contextlib.contextmanager
    def quiet() -> Iterator[None]:
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(logging.NOTSET)

    return quiet()


@portable
def is_large(graph: str) -> bool:
    """Whether a graph and its weights are beyond what one protobuf holds."""
    from pathlib import Path

    folder = Path(graph).parent
    return sum(f.stat().st_size for f in folder.iterdir() if f.is_file()) > 1_500_000_000


@portable
def replace_graph(graph: str, made: str) -> None:
    """Put a graph that was written beside the old one in its place."""
    from pathlib import Path

    import onnx

    model = onnx.load(made)
    for left in Path(made).parent.glob(f"{Path(made).name}*"):
        left.unlink()
    write_graph(model, graph)


def _activations(context: Context) -> str:
    """What int8 kernels want: uint8 on x86 (seen: 3.9 times fp32, not 1.9), else int8."""
    arm = "neon" in context.device.instruction_sets
    return "int8" if provider_of(context) == "tensorrt" or arm else "uint8"


@applies(
    Quantization,
    "onnxruntime",
    unavailable=quantization_unavailable,
    values=("int8-dynamic", "int8-static", "int8-weights", "int4-weights"),
    warnings=quantization_warnings,
)
def plan_quantization(lever: Quantization, context: Context) -> tuple[Step, ...]:
    """Rewrite the exported graph."""
    reads: tuple[str, ...] = ("graph",)
    params: dict[str, Json]
    function: Callable[..., None]
    if lever.value == "int8-dynamic":
        function, params = quantize_dynamic_int8, {"reduce_range": saturates(context)}
    elif lever.value == "int8-static":
        function, reads = quantize_static_int8, ("graph", "source_dir")
        batch = context.model.batch
        asked = context.recipe.get("batch")
        params = {
            "reduce_range": saturates(context),
            "activations": _activations(context),
            "batch_size": None if batch.dynamic else int(asked) if asked else batch.example_size,
        }
    else:
        function, params = quantize_weights, {"bits": int(lever.dtype[3:]), "block_size": 32}
    rewrite = Step(phase="build.quantize", function=function, reads=reads, params=params)
    if provider_of(context) != "tensorrt":
        return (rewrite,)
    allow = Step(
        phase="load.precision",
        function=allow_tensorrt,
        reads=("providers",),
        writes="providers",
        params={"option": "trt_int8_enable"},
    )
    return rewrite, allow
