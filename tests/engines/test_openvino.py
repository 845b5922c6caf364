"""The engine OpenVINO and its levers: built in one process, served without torch in another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.onnx_sources import (
    CPU,
    H100,
    Sample,
    Served,
    as_onnx,
    build,
    context_of,
    encoder_sample,
    error_of,
    host,
    linear_graph,
    prepared,
    record_here,
    serve,
    write_onnx,
)
from workbench.core.device import Device
from workbench.core.recipe import Recipe
from workbench.engines import engine, load_all
from workbench.levers import offer, openvino_quantization, openvino_threads
from workbench.levers.step import portable

load_all()
PLAIN = Recipe(engine="openvino")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The encoder as an ONNX file, which spares each build the export."""
    pytest.importorskip("openvino")
    folder = tmp_path_factory.mktemp("encoder")
    sample = encoder_sample(folder / "factory")
    artifact = build(sample.source, context_of(sample.model, Recipe("onnxruntime")), folder)
    return as_onnx(sample, artifact, folder / "graph")


def _serve(sample: Sample, work: Path, **levers: str) -> Served:
    return serve(
        sample.source, context_of(sample.model, PLAIN.replace(**levers)), sample.inputs, work
    )


@pytest.mark.slow
def test_a_factory_is_exported_compiled_and_served_without_torch(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    sample = encoder_sample(tmp_path / "source")
    served = serve(sample.source, context_of(sample.model, PLAIN), sample.inputs, tmp_path / "work")
    assert served.imported == ()
    assert served.names == ("hidden", "pooled", "cache", "layers")
    assert served.outputs["layers"] == 2
    assert error_of(served, sample) < 1e-5
    assert served.evidence.providers == ("OpenVINO CPU",)
    assert served.evidence.num_threads == 1
    assert (served.evidence.num_layers_quantized, served.evidence.num_layers) == (0, 12)
    assert served.evidence.labels == ("fp32", "batch 40")
    assert served.evidence.unmet == ()
    assert not (served.artifact / "model.onnx").exists()


_VALUES = [
    ({"precision": "fp32"}, "fp32", 1e-5),
    ({"threads": "1"}, "fp32", 1e-5),
    ({"threads": "2"}, "2 threads", 1e-5),
    ({"quantization": "int8-static"}, "int8", 0.06),
    ({"quantization": "int8-weights"}, "int8-weights", 0.02),
    ({"quantization": "int4-weights"}, "int4-weights", 0.2),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levers", "label", "tolerance"), _VALUES, ids=["-".join(*v[0].items()) for v in _VALUES]
)
def test_a_value_that_a_cpu_has_is_built_served_and_named(
    levers: dict[str, str], label: str, tolerance: float, encoder: Sample, tmp_path: Path
) -> None:
    served = _serve(encoder, tmp_path, **levers)
    assert served.imported == ()
    assert error_of(served, encoder) < tolerance
    assert label in served.evidence.labels
    assert served.evidence.unmet == ()
    if "quantization" in levers:
        assert (served.evidence.num_layers_quantized, served.evidence.num_layers) == (12, 12)
        assert (served.evidence.weights_quantized_share or 0) > 0.9
        assert served.evidence.precision_share[label] > 0.5
    record_here(PLAIN.replace(**levers))


@portable
def calibrate_int8(
    out_dir: str, source_dir: str, fix_overflow: bool, batch_size: int | None
) -> None:
    """Does nothing."""


@portable
def compress_weights(out_dir: str, bits: int, group_size: int) -> None:
    """Does nothing."""


@portable
def limit_threads(settings: dict[str, Any], num_threads: int) -> None:
    """Does nothing."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levers", "module", "nothing", "said"),
    [
        (
            {"quantization": "int8-static"},
            openvino_quantization,
            calibrate_int8,
            "int8: 0 of 12 layers, 0 % of weights",
        ),
        (
            {"quantization": "int4-weights"},
            openvino_quantization,
            compress_weights,
            "int4: 0 of 12 layers, 0 % of weights",
        ),
        ({"threads": "2"}, openvino_threads, limit_threads, "2 threads were asked for"),
    ],
)
def test_a_lever_that_does_nothing_loses_its_label_and_is_unmet(
    levers: dict[str, str],
    module: Any,
    nothing: Callable[..., None],
    said: str,
    encoder: Sample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, nothing.__name__, nothing)
    evidence = _serve(encoder, tmp_path, **levers).evidence
    assert evidence.labels == ("fp32",)
    assert evidence.unmet[0].startswith(said)


@pytest.mark.slow
def test_a_precision_that_the_cpu_falls_back_from_is_unmet(encoder: Sample, tmp_path: Path) -> None:
    """P15: OpenVINO takes the hint and compiles fp32; the property read back says so."""
    claims = dataclasses.replace(CPU, instruction_sets=("avx2", "avx512_bf16"))
    recipe = PLAIN.replace(precision="bf16")
    served = serve(
        encoder.source, context_of(encoder.model, recipe, device=claims), encoder.inputs, tmp_path
    )
    if served.evidence.precision_share.get("bf16", 0.0) > 0.5:
        assert "bf16" in served.evidence.labels  # this CPU has it
    else:
        assert served.evidence.labels == ("fp32",)
        assert served.evidence.unmet[0].startswith("bf16 was asked for; OpenVINO reads back f32")


@pytest.mark.slow
def test_a_version_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    """P64, as for ONNX Runtime: one reader copies the file for both."""
    pytest.importorskip("openvino")
    import numpy as np

    rows = {"x": np.ones((1, 4), dtype="float32")}
    specs = write_onnx(tmp_path / "source", linear_graph(ir_version=99), rows, ["y"])
    with pytest.raises(RuntimeError, match=r"ONNX IR version 99; .* reads up to \d+"):
        build(tmp_path / "source", context_of(prepared("onnx", specs), PLAIN), tmp_path / "work")


@pytest.mark.parametrize(
    ("lever", "value", "device", "reason"),
    [
        ("precision", "bf16", CPU, "on CPUs with AVX512_BF16 or AMX_BF16; this is a CPU with AVX2"),
        ("precision", "fp16", CPU, "on CPUs with AVX512_FP16 or AMX_FP16; this is a CPU with AVX2"),
        ("threads", "2:active", CPU, "oneTBB"),
        ("threads", "4", CPU, "4 threads need as many cores"),
        ("quantization", "int8-static", CPU, "the model has no calibration rows"),
        ("quantization", "int8-dynamic", CPU, "not of openvino"),
        ("fusion", "all", CPU, "fusion is no lever of the engine openvino"),
        ("quantization", "int4-weights", CPU, None),
    ],
)
def test_a_reason_names_the_device_the_engine_or_the_model(
    lever: str, value: str, device: Device, reason: str | None
) -> None:
    said = offer(lever, "openvino", value, context_of(prepared("onnx", ()), PLAIN, device=device))
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.parametrize("missing", ["openvino", "nncf"])
def test_a_package_that_is_missing_is_the_reason(missing: str) -> None:
    packages = {name: version for name, version in host().packages.items() if name != missing}
    context = dataclasses.replace(
        context_of(prepared("onnx", ()), PLAIN),
        host=dataclasses.replace(host(), packages=packages),
    )
    if missing == "openvino":
        reason = engine("openvino").unavailable(context)
    else:
        reason = offer("quantization", "openvino", "int8-weights", context)
    assert reason is not None
    assert f"{missing} " in reason
    assert "not installed" in reason


def test_a_gpu_is_not_openvinos() -> None:
    reason = engine("openvino").unavailable(context_of(prepared("onnx", ()), PLAIN, device=H100))
    assert reason == "OpenVINO has kernels for CPUs; this is NVIDIA H100 (compute capability 9.0)"
