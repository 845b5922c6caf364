"""Operands as PyTorch and ONNX Runtime write them, in one form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.traces.generator import complete, write
from workbench.traces.opening import open_trace
from workbench.traces.operands import (
    Operand,
    convolved,
    onnx_operands,
    operands,
    result_dims,
    torch_operands,
)


@pytest.mark.parametrize(
    ("dims", "types", "expected"),
    [
        ([[8, 64], [64]], ["float", "float"], "f32[8, 64], f32[64]"),
        ([[8], [], []], ["c10::BFloat16", "Scalar", ""], "bf16[8]"),
        ([[], [2]], ["c10::Half", "long int"], "f16[], i64[2]"),
        ([[[4, 4], [4]], []], ["TensorList", "Scalar"], "?[4, 4], ?[4]"),
        ([[3]], ["c10::complex<float>"], "complex_float_[3]"),
        ([[], []], ["Scalar", ""], None),
        ({"a": 1}, [], None),
        ([[1.5]], ["float"], None),
    ],
)
def test_pytorchs_lists_of_arguments(dims: object, types: object, expected: str | None) -> None:
    assert torch_operands(json.dumps(dims).encode(), json.dumps(types).encode()) == expected


def test_onnx_runtimes_lists_of_inputs() -> None:
    assert onnx_operands(b'[{"float":[1,64]},{"int8":[64,64]}]') == "f32[1, 64], i8[64, 64]"
    assert onnx_operands(b"[]") is None


def test_a_long_list_is_cut_and_says_so() -> None:
    text = torch_operands(json.dumps([[[2]] * 30]).encode(), b'["TensorList"]')
    assert text is not None
    assert text.endswith("?[2] and 6 more")
    assert len(operands(text)) == 24


def test_sizes_come_out_of_the_text_again() -> None:
    found = operands("f32[8, 64], i64[], f16[0], ?[3]")
    assert found[0] == Operand(dtype="f32", dims=(8, 64))
    assert [one.num_elements for one in found] == [512, 1, 0, 3]
    assert [one.num_bytes for one in found] == [2048, 8, 0, None]


def test_operators_of_one_shape_share_one_text(tmp_path: Path) -> None:
    args = {"Input_Dims": [[8, 4], [4, 2]], "Input_type": ["float", "float"]}
    events = [
        complete("cpu_op", "aten::mm", 0, 1, **args),
        complete("cpu_op", "aten::empty", 2, 1),
        complete("cpu_op", "aten::mm", 4, 1, **args),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert trace.shapes == ("f32[8, 4], f32[4, 2]",)
    assert trace.shape.of(np.arange(3)).tolist() == [0, -1, 0]


@pytest.mark.parametrize(
    ("name", "beside", "result"),
    [
        (
            "aten::mkldnn_convolution",
            '["", "", "", "[3, 3]", "[4, 4]", "[1, 1]", "1"]',
            (8, 64, 16, 16),
        ),
        ("aten::cudnn_convolution", '["", "", "[3, 3]", "[4, 4]", "[1, 1]", "1"]', (8, 64, 16, 16)),
        (
            "aten::mkldnn_convolution",
            '["", "", "", "[0, 0]", "[1, 1]", "[2, 2]", "1"]',
            (8, 64, 52, 52),
        ),
        ("Conv", '[{"float": [8, 64, 16, 16]}]', (8, 64, 16, 16)),
        ("aten::mkldnn_convolution", '["", "", "", "", "", "", ""]', None),
        ("aten::mkldnn_convolution", '["", "", "", "[3, 3]", "[0, 0]", "[1, 1]", "1"]', None),
        ("Conv", "null", None),
    ],
)
def test_a_convolution_tells_its_result(
    name: str, beside: str, result: tuple[int, ...] | None
) -> None:
    """Of an image of 64 x 64 and a kernel of 7 x 7, by the arithmetic of torch's documentation."""
    text = "f32[8, 1, 64, 64], f32[64, 1, 7, 7]"
    made = text + convolved(text, name, beside.encode())
    assert result_dims(made) == result
    assert operands(made) == operands(text)
