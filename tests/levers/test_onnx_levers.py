"""ONNX Runtime's levers: every value that a CPU has runs, and a label is earned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.onnx_sources import (
    ATTENTION,
    CPU,
    H100,
    Sample,
    Served,
    as_onnx,
    build,
    cnn_sample,
    context_of,
    encoder_sample,
    error_of,
    prepared,
    record_here,
    serve,
    served,
    torch_sample,
)
from workbench.core.device import Device
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.levers import (
    Batching,
    offer,
    onnx_fusion,
    onnx_precision,
    onnx_quantization,
    onnx_threads,
    warnings,
)
from workbench.levers.step import portable

load_all()
PLAIN = Recipe(engine="onnxruntime")


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("cnn")
    sample = cnn_sample(folder / "factory")
    artifact = build(sample.source, context_of(sample.model, PLAIN), folder)
    return as_onnx(sample, artifact, folder / "graph")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("encoder")
    sample = encoder_sample(folder / "factory")
    artifact = build(sample.source, context_of(sample.model, PLAIN), folder)
    return as_onnx(sample, artifact, folder / "graph")


def _serve(sample: Sample, work: Path, **levers: str) -> Served:
    return serve(
        sample.source, context_of(sample.model, PLAIN.replace(**levers)), sample.inputs, work
    )


# What each value is called by what was executed, and the error it may have in an encoder.
_VALUES = [
    ({"quantization": "int8-dynamic"}, "int8", 0.03),
    ({"quantization": "int8-static"}, "int8", 0.06),
    ({"quantization": "int8-weights"}, "int8-weights", 0.01),
    ({"quantization": "int4-weights"}, "int4-weights", 0.15),
    ({"fusion": "off"}, "fusion off", 1e-5),
    ({"fusion": "basic"}, "fusion basic", 1e-5),
    ({"fusion": "extended"}, "fusion extended", 1e-5),
    ({"fusion": "all"}, "fp32", 1e-5),
    ({"fusion": "transformer"}, "transformer fusion", 1e-5),
    ({"precision": "fp32"}, "fp32", 1e-5),
    ({"threads": "1"}, "fp32", 1e-5),
    ({"threads": "2"}, "2 threads", 1e-5),
    ({"threads": "1:active"}, "active threads", 1e-5),
    ({"threads": "2:active"}, "2 threads", 1e-5),
    ({"threads": "auto:active"}, "active threads", 1e-5),
    ({"provider": "cpu"}, "fp32", 1e-5),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levers", "label", "tolerance"), _VALUES, ids=["-".join(*v[0].items()) for v in _VALUES]
)
def test_a_value_that_a_cpu_has_is_built_served_and_named(
    levers: dict[str, str], label: str, tolerance: float, encoder: Sample, tmp_path: Path
) -> None:
    answered = _serve(encoder, tmp_path, **levers)
    assert answered.imported == ()
    assert error_of(answered, encoder) < tolerance
    assert label in answered.evidence.labels
    assert answered.evidence.unmet == ()
    record_here(PLAIN.replace(**levers))


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8-dynamic", "int8-static"])
def test_an_encoder_quantized_has_all_its_matmuls_in_int8(
    quantization: str, encoder: Sample, tmp_path: Path
) -> None:
    evidence = _serve(encoder, tmp_path, quantization=quantization).evidence
    assert (evidence.num_layers_quantized, evidence.num_layers) == (12, 12)
    assert evidence.precision_share["int8"] > 0.5
    assert (evidence.weights_quantized_share or 0) > 0.9
    assert evidence.share_of == "time of matmuls and convolutions"


@pytest.mark.slow
def test_a_convolutional_net_quantized_keeps_its_data_in_uint8(cnn: Sample, tmp_path: Path) -> None:
    served = _serve(cnn, tmp_path, quantization="int8-static")
    evidence = served.evidence
    assert error_of(served, cnn) < 0.06
    assert (evidence.num_layers_quantized, evidence.num_layers) == (3, 3)
    assert evidence.weights_quantized_share == 1
    uses = {use.name: use for use in evidence.operators}
    assert uses["QLinearConv"].num_calls == 2
    assert uses["QGemm"].num_calls == 1
    assert uses["NhwcMaxPool"].dtype == "uint8"


@pytest.mark.slow
def test_fp16_that_is_computed_in_fp32_is_not_called_fp16(cnn: Sample, tmp_path: Path) -> None:
    """P15, P21: the graph is fp16, what a CPU executes between casts is fp32."""
    served = _serve(cnn, tmp_path, precision="fp16")
    assert served.raw["graph"]["weights"]["fp16"] > 9000
    assert error_of(served, cnn) < 0.01
    assert served.evidence.precision_share == pytest.approx({"fp32": 1})
    assert "fp16" not in served.evidence.labels
    assert served.evidence.unmet == (
        "fp16 was asked for; 0 % of the time of matmuls and convolutions is in fp16 kernels, "
        "100 % in fp32",
    )
    (warning,) = warnings(context_of(cnn.model, PLAIN.replace(precision="fp16")))
    assert "a CPU with AVX2 has no fp16 arithmetic" in warning


@pytest.mark.slow
def test_transformer_fusion_merges_attention_and_int8_reaches_it(
    encoder: Sample, tmp_path: Path
) -> None:
    fused = _serve(encoder, tmp_path / "a", fusion="transformer").evidence.fused
    assert fused["Attention"] == 2
    assert fused["SkipLayerNormalization"] == 4
    both = _serve(encoder, tmp_path / "b", fusion="transformer", quantization="int8-dynamic")
    assert both.evidence.fused["QAttention"] == 2
    assert both.evidence.num_layers_quantized == both.evidence.num_layers
    assert error_of(both, encoder) < 0.03


@pytest.mark.slow
def test_transformer_fusion_of_a_graph_without_attention_is_unmet(
    cnn: Sample, tmp_path: Path
) -> None:
    evidence = _serve(cnn, tmp_path, fusion="transformer").evidence
    assert "transformer fusion" not in evidence.labels
    assert evidence.unmet[0].startswith("transformer fusion was asked for; it found no")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_batch_is_named_by_the_items_of_the_call(
    name: str, encoder: Sample, tmp_path: Path
) -> None:
    """One graph takes every batch; a call of another size than the recipe's is not as asked."""
    artifact = build(encoder.source, context_of(encoder.model, Recipe(name)), tmp_path)
    for text in Batching.values:
        recipe = Recipe(name, batch=text)
        rows = np.arange(int(text)) % 40
        one = Sample(
            source=encoder.source,
            model=encoder.model,
            inputs={"ids": encoder.inputs["ids"][rows]},
            reference={name: array[rows] for name, array in encoder.reference.items()},
        )
        context = context_of(one.model, recipe)
        answered = served(artifact, context, one.inputs, tmp_path)
        assert error_of(answered, one) < 1e-5
        assert answered.evidence.labels == ("fp32", f"batch {text}")
        assert answered.evidence.unmet == ()
        record_here(recipe)
    context = context_of(encoder.model, Recipe(name, batch=8))
    other = served(artifact, context, encoder.inputs, tmp_path).evidence
    assert other.unmet == ("a batch of 8 was asked for; a call has 40 items",)


@pytest.mark.slow
@pytest.mark.parametrize("is_replaced", [False, True])
def test_scaled_dot_product_attention_with_a_padding_mask_stays_one_operator(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(2).integers(5, 64, (6, 12))
    ids[:, 9:] = 0
    sample = torch_sample(tmp_path / "source", ATTENTION, {"ids": ids}, ["output"])
    if is_replaced:
        monkeypatch.setattr(onnx_fusion, "whole_attention_opset", whole_attention_opset)
        monkeypatch.setattr(onnx_fusion, "fuse_transformer", fuse_transformer)
    answered = _serve(sample, tmp_path / "work", fusion="transformer")
    assert error_of(answered, sample) < 1e-5
    assert ("transformer fusion" in answered.evidence.labels) is not is_replaced
    assert (answered.evidence.fused.get("Attention") == 1) is not is_replaced
    assert bool(answered.evidence.unmet) is is_replaced


@portable
def whole_attention_opset() -> int | None:
    """Does nothing: the exporter picks its own."""
    return None


@pytest.mark.slow
def test_threads_and_how_they_wait_are_read_back(cnn: Sample, tmp_path: Path) -> None:
    evidence = _serve(cnn, tmp_path, threads="2:active").evidence
    assert (evidence.num_threads, evidence.thread_wait) == (2, "active")


@portable
def quantize_dynamic_int8(graph: str, reduce_range: bool) -> None:
    """Does nothing."""


@portable
def quantize_static_int8(
    graph: str, source_dir: str, reduce_range: bool, activations: str, batch_size: int | None
) -> None:
    """Does nothing."""


@portable
def quantize_weights(graph: str, bits: int, block_size: int) -> None:
    """Does nothing."""


@portable
def convert_to_fp16(graph: str) -> None:
    """Does nothing."""


@portable
def fuse_transformer(graph: str) -> None:
    """Does nothing."""


@portable
def set_optimization(options: Any, level: str) -> None:
    """Does nothing."""


@portable
def set_threads(options: Any, num_threads: int | None, wait: str) -> None:
    """Does nothing."""


_REPLACED: list[tuple[dict[str, str], Any, Callable[..., None], str]] = [
    ({"quantization": "int8-dynamic"}, onnx_quantization, quantize_dynamic_int8, "int8"),
    ({"quantization": "int8-static"}, onnx_quantization, quantize_static_int8, "int8"),
    ({"quantization": "int8-weights"}, onnx_quantization, quantize_weights, "int8-weights"),
    ({"quantization": "int4-weights"}, onnx_quantization, quantize_weights, "int4-weights"),
    ({"precision": "fp16"}, onnx_precision, convert_to_fp16, "fp16"),
    ({"fusion": "transformer"}, onnx_fusion, fuse_transformer, "transformer fusion"),
    ({"fusion": "off"}, onnx_fusion, set_optimization, "fusion off"),
    ({"threads": "2:active"}, onnx_threads, set_threads, "2 threads"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levers", "module", "nothing", "label"),
    _REPLACED,
    ids=["-".join(*r[0].items()) for r in _REPLACED],
)
def test_a_lever_that_does_nothing_loses_its_label_and_is_unmet(
    levers: dict[str, str],
    module: Any,
    nothing: Callable[..., None],
    label: str,
    encoder: Sample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, nothing.__name__, nothing)
    evidence = _serve(encoder, tmp_path, **levers).evidence
    assert label not in evidence.labels
    assert evidence.labels == ("fp32",)
    assert evidence.unmet != ()


@pytest.mark.parametrize(
    ("lever", "value", "device", "reason"),
    [
        ("precision", "tf32", CPU, "tf32 needs the tensor cores of an NVIDIA GPU"),
        ("precision", "bf16", CPU, "bf16 not supported by ONNX Runtime on a CPU: Gemm"),
        ("quantization", "fp8", H100, "not of onnxruntime"),
        ("quantization", "int8-dynamic", H100, "no CUDA kernel"),
        ("quantization", "int8-static", H100, "CUDA provider has no int8"),
        ("provider", "cuda", CPU, "CUDA unavailable: it needs an NVIDIA GPU"),
        ("provider", "tensorrt", CPU, "TensorRT unavailable: it needs an NVIDIA GPU"),
        ("provider", "tensorrt", H100, "has no TensorrtExecutionProvider"),
        ("threads", "4", CPU, "4 threads need as many cores; a test CPU has 2"),
        ("precision", "fp16", CPU, None),
        ("precision", "bf16", H100, None),
        ("precision", "tf32", H100, None),
        ("quantization", "int4-weights", H100, None),
    ],
)
def test_a_reason_names_the_device_the_engine_or_the_package(
    lever: str, value: str, device: Device, reason: str | None
) -> None:
    context = context_of(prepared("onnx", (), has_calibration=True), PLAIN, device=device)
    said = offer(lever, "onnxruntime", value, context)
    assert said is None if reason is None else reason in (said or "")


def test_static_int8_without_calibration_rows_says_so() -> None:
    context = context_of(prepared("onnx", ()), PLAIN)
    assert offer("quantization", "onnxruntime", "int8-static", context) == (
        "the model has no calibration rows, which the activations' scales come from"
    )


def test_weights_keep_seven_bits_where_products_of_eight_overflow() -> None:
    """u8 × s8 saturates 16 bits on AVX2 without VNNI; a CPU with VNNI needs no care."""
    model = prepared("onnx", (), has_calibration=True)
    recipe = PLAIN.replace(quantization="int8-dynamic")
    vnni = dataclasses.replace(CPU, instruction_sets=("avx2", "avx512_vnni"))
    for device, reduced in ((CPU, True), (vnni, False)):
        context = context_of(model, recipe, device=device)
        lever = onnx_quantization.Quantization.parse("int8-dynamic")
        (step,) = onnx_quantization.plan_quantization(lever, context)
        assert step.params["reduce_range"] is reduced
        assert bool(warnings(context)) is reduced
