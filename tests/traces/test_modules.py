"""Time by part of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.corpus import ROOT, needs_corpus
from tests.traces.generator import complete, kernel, launch, write
from workbench.traces.modules import graph_node, module_rows
from workbench.traces.opening import open_trace
from workbench.traces.tables import operator_rows
from workbench.traces.trace import Trace


def opened(path: Path) -> Trace:
    found = open_trace(path)
    assert isinstance(found, Trace)
    return found


def frame(name: str, start_us: float, dur_us: float) -> dict[str, Any]:
    return complete("python_function", name, start_us, dur_us)


def test_frames_of_modules_nest_to_paths(tmp_path: Path) -> None:
    events = [
        frame("train.py(3): main", 0, 100),
        frame("nn.Module: Net_0", 10, 80),
        frame("net.py(9): forward", 12, 70),
        frame("nn.Module: Linear_0", 20, 30),
        complete("cpu_op", "aten::addmm", 25, 20),
        launch(30, 5, correlation=1),
        kernel("gemm", 60, 40, correlation=1),
        complete("cpu_op", "aten::relu", 60, 10),
        launch(62, 5, correlation=2),
        kernel("relu", 101, 3, correlation=2),
    ]
    whole, inner = module_rows(opened(write(tmp_path / "t.json", events)))
    assert (whole.path, inner.path) == (("Net_0",), ("Net_0", "Linear_0"))
    assert (whole.num, inner.num) == (1, 1)
    assert (whole.host_ns, inner.host_ns) == (80_000, 30_000)
    assert (whole.own_host_ns, inner.own_host_ns) == (50_000, 30_000)
    assert (whole.device_ns, whole.own_device_ns) == (43_000, 3_000)
    assert (inner.device_ns, inner.own_device_ns) == (40_000, 40_000)


def test_a_trace_without_parts_has_no_rows(tmp_path: Path) -> None:
    events = [complete("cpu_op", "aten::mm", 0, 5)]
    assert module_rows(opened(write(tmp_path / "t.json", events))) == ()


def test_nodes_of_onnx_runtime_bear_their_path(tmp_path: Path) -> None:
    def node(name: str, start_us: int, dur_us: int) -> dict[str, Any]:
        return {
            "cat": "Node", "ph": "X", "pid": 1, "tid": 1, "ts": start_us, "dur": dur_us,
            "name": f"{name}_kernel_time", "args": {"op_name": name.rsplit("/")[-1]},
        }  # fmt: skip

    path = tmp_path / "profile.json"
    nodes = [node("/layer1/conv/Conv", 0, 30), node("/layer1/Relu", 30, 5), node("Gemm", 40, 9)]
    path.write_text(json.dumps(nodes))
    outer, inner = module_rows(opened(path))
    assert (outer.path, outer.host_ns, outer.own_host_ns) == (("layer1",), 35_000, 5_000)
    assert (inner.path, inner.own_host_ns) == (("layer1", "conv"), 30_000)
    assert outer.num is None


@needs_corpus
def test_the_layers_of_a_real_model_share_its_time() -> None:
    trace = opened(ROOT / "kineto" / "tl_h100_bertsmall_infer_mem.json.gz")
    rows = {row.path: row for row in module_rows(trace)}
    whole = rows["BertLMHeadModel_0",]
    layers = [
        row for path, row in rows.items() if len(path) > 1 and path[-1].startswith("BertLayer_")
    ]
    assert len(layers) == 4
    assert sum(row.device_ns for row in layers) < whole.device_ns
    assert sum(row.own_device_ns for row in rows.values()) == sum(
        row.device_ns for path, row in rows.items() if len(path) == 1
    )


def test_operators_are_told_apart_by_their_operands(tmp_path: Path) -> None:
    def mm(start_us: float, dims: list[list[int]]) -> dict[str, Any]:
        args = {"Input_Dims": dims, "Input_type": ["float", "float"]}
        return complete("cpu_op", "aten::mm", start_us, 4, **args)

    small, large = [[2, 3], [3, 4]], [[64, 64], [64, 64]]
    events = [
        mm(0, small), mm(10, small), mm(20, large), launch(21, 1, correlation=1),
        kernel("gemm", 30, 50, correlation=1), complete("cpu_op", "aten::empty", 30, 1),
    ]  # fmt: skip
    trace = opened(write(tmp_path / "t.json", events))
    rows = {row.shape: row for row in operator_rows(trace, by_shape=True)}
    assert rows["f32[2, 3], f32[3, 4]"].num == 2
    assert rows["f32[64, 64], f32[64, 64]"].device_ns == 50_000
    assert rows[None].name == "aten::empty"
    assert [row.num for row in operator_rows(trace) if row.name == "aten::mm"] == [3]


@pytest.mark.parametrize(
    ("written", "node"),
    [
        ("/layer1/conv/Conv", "/layer1/conv/Conv"),
        ("fused /layer1/conv/Conv_token_12", "/layer1/conv/Conv"),
        ("/layer1/conv/Conv_nchwc", "/layer1/conv/Conv"),
        ("/mlp/fc/MatMul/MatMulAddFusion", "/mlp/fc/MatMul"),
        ("/mlp/fc/MatMul_output_0_MatMulInteger", "/mlp/fc/MatMul"),
        ("/mlp/fc/MatMul_quant", "/mlp/fc/MatMul"),
        ("Gelu_token_5", "Gelu"),
    ],
)
def test_fused_nodes_are_traced_back_to_the_graphs(written: str, node: str) -> None:
    assert graph_node(written) == node
