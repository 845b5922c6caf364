"""Evidence read from reports, of GPUs among others, that were made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.onnx_sources import H100, context_of, prepared
from workbench.core.evidence import Evidence
from workbench.core.model import TensorSpec
from workbench.core.recipe import Recipe
from workbench.engines.torch_evidence import layout_of
from workbench.engines.torch_profile import arithmetic_kernels, is_arithmetic, operators_of
from workbench.engines.torch_reading import read_evidence

IMAGES = (TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8)),)


def report(**changes: Any) -> dict[str, Any]:
    """What inspecting a plain fp32 convolution and a matmul on a GPU gives."""
    made: dict[str, Any] = {
        "executed": {"engine": "torch"},
        "engine_version": "2.13.0+cu130",
        "device": "cuda:0",
        "device_name": "NVIDIA H100",
        "flags": {
            "fp32_precision": {"cuda.matmul": "ieee", "cudnn.conv": "tf32", "cudnn.rnn": "tf32"}
        },
        "operators": [
            operator("aten::cudnn_convolution", "fp32", 75),
            operator("aten::addmm", "fp32", 25),
        ],
        "kernels": [],
        "weights": {
            "bytes": {"fp32": 4000},
            "dtypes": ["fp32"],
            "num_layers": 2,
            "num_layers_quantized": 0,
            "quantized_share": 0.0,
            "schemes": {},
        },
        "batch": 4,
        "threads": {"num": 1, "wait": "passive"},
        "folded": 0,
        "layout": {"weights_last": 0, "weights_first": 1, "inputs_last": 0, "inputs_first": 1},
    }
    return {**made, **changes}


def operator(name: str, dtype: str, time_ns: int) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": dtype,
        "arithmetic": True,
        "num_calls": 1,
        "time_ns": time_ns,
    }


def read(raw: dict[str, Any], spec: str = "engine=torch") -> Evidence:
    context = context_of(prepared("factory", IMAGES), Recipe.parse(spec), device=H100)
    return read_evidence(raw, context)


def test_a_gpus_default_is_tf32_in_convolutions_and_not_in_matmuls() -> None:
    found = read(report(), "engine=torch,precision=fp32")
    assert found.precision_share == {"tf32": 0.75, "fp32": 0.25}
    assert "tf32" in found.labels
    assert "fp32" not in found.labels
    assert found.unmet == (
        "precision=fp32 was asked for and not seen; of its arithmetic's time 75 % in tf32, "
        "25 % in fp32",
    )


def test_strict_fp32_is_a_label_of_its_own() -> None:
    leaves = {"cuda.matmul": "ieee", "cudnn.conv": "ieee", "cudnn.rnn": "ieee"}
    found = read(report(flags={"fp32_precision": leaves}), "engine=torch,precision=fp32")
    assert found.labels == ("fp32",)
    assert found.unmet == ()
    assert found.device == "cuda:0 (NVIDIA H100)"


def test_launched_graphs_are_counted_and_forced_ones_that_were_skipped_are_told() -> None:
    kernels = [
        {"name": "cudaGraphLaunch", "num": 2, "time_ns": 10},
        {"name": "nvjet_tst_128x64_64x8_2x1_v_bz_TNT", "num": 3, "time_ns": 90},
        {"name": "triton_poi_fused_relu_0", "num": 3, "time_ns": 40},
    ]
    compiled = {"labels": ["compiled"], "fused": {}, "graph_breaks": [], "cudagraph_skips": 1}
    raw = report(operators=arithmetic_kernels(kernels), kernels=kernels, compile=compiled)
    found = read(raw, "engine=torch-compile,fusion=reduce-overhead")
    assert found.num_graph_launches == 2
    assert "cuda-graphs" in found.labels
    assert found.unmet == ()
    assert found.precision_share == {"bf16": 1.0}
    assert any("skipped 1 times" in note for note in found.notes)
    bare = read(report(compile=compiled), "engine=torch-compile,fusion=reduce-overhead")
    assert bare.num_graph_launches == 0
    assert bare.unmet == ("fusion=reduce-overhead was asked for and not seen",)


def test_a_forced_attention_kernel_counts_only_when_it_is_seen() -> None:
    spec = "engine=torch,attention=flash,precision=bf16"
    seen = [operator("aten::_efficient_attention_forward", "bf16", 10)]
    found = read(report(operators=seen), spec)
    assert found.attention == "efficient"
    assert "attention=flash was asked for and not seen" in found.unmet


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", True),
        ("aten::_int_mm", True),
        ("aten::mkldnn_convolution", True),
        ("onednn::qlinear_pointwise", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", True),
        ("aten::_weight_int4pack_mm", True),
        ("aten::relu", False),
        ("aten::_convert_indices_from_coo_to_csr", False),
        ("aten::native_batch_norm", False),
        ("aten::softmax", False),
        ("aten::expand", False),
        ("aten::copy_", False),
        ("mkldnn::_reorder_convolution_weight", False),
    ],
)
def test_arithmetic_is_matmuls_convolutions_and_attention(name: str, expected: bool) -> None:
    assert is_arithmetic(name) is expected


def event(name: str, start: int, parents: list[int], **more: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "on_host": True,
        "end_ns": start + 10,
        "duration_ns": 10,
        "dtypes": ["float", "float"],
        "shapes": [[4, 3, 8, 8], [8, 3, 3, 3]],
        "strides": [[192, 1, 24, 3], [27, 9, 3, 1]],
        "id": start,
        "launched_by": 0,
        "parents": parents,
    }
    return {**made, **more}


def test_only_the_innermost_operator_is_counted_and_gets_the_kernels_time() -> None:
    events = [
        event("aten::linear", 1, []),
        event("aten::addmm", 2, [0], dtypes=["c10::BFloat16", "c10::BFloat16"]),
        event("nvjet_tst", 3, [], on_host=False, dtypes=[], launched_by=2, duration_ns=70),
    ]
    found = {o["name"]: o for o in operators_of(events)}
    assert found["aten::addmm"]["arithmetic"] is True
    assert found["aten::addmm"]["dtype"] == "bf16"
    assert found["aten::addmm"]["time_ns"] == 70
    assert "aten::linear" not in found


def test_an_input_of_one_channel_is_of_no_order() -> None:
    import torch

    module = torch.nn.Conv2d(3, 8, 3)
    wide = [event("aten::mkldnn_convolution", 1, [])]
    assert layout_of(module, wide)["inputs_last"] == 1
    narrow = [event("aten::mkldnn_convolution", 1, [], shapes=[[4, 1, 8, 8], [8, 1, 3, 3]])]
    assert layout_of(module, narrow)["inputs_last"] == 0
    assert layout_of(module, narrow)["inputs_first"] == 0
