"""Two traces of one model: what became what, and that it all adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.generator import complete, kernel, launch, write
from workbench.cli import main
from workbench.cli.codes import OK
from workbench.core.errors import LoadError
from workbench.traces.difference import Difference, DifferenceRow, difference
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace

Events = list[dict[str, Any]]


def opened(path: Path, events: Events) -> Trace:
    found = open_trace(write(path, events))
    assert isinstance(found, Trace)
    return found


def host_step(*operators: tuple[str, float]) -> Events:
    """A step of operators one after the other, a microsecond apart."""
    events: Events = []
    start = 1.0
    for name, dur_us in operators:
        events.append(complete("cpu_op", name, start, dur_us))
        start += dur_us + 1
    events.append(complete("user_annotation", "ProfilerStep#3", 0, start))
    return events


def device_step(*calls: tuple[str, str, float]) -> Events:
    """Operators, each of which launches one kernel; the device works without a gap."""
    events: Events = []
    start = 100.0
    for number, (operator, name, dur_us) in enumerate(calls, 1):
        events.append(complete("cpu_op", operator, number * 3, 2.5))
        events.append(launch(number * 3 + 0.5, 1, correlation=number))
        events.append(kernel(name, start, dur_us, correlation=number))
        start += dur_us
    events.append(complete("user_annotation", "ProfilerStep#1", 100, start - 100))
    return events


def compared(tmp_path: Path, a: Events, b: Events) -> Difference:
    found = difference(opened(tmp_path / "a.json", a), opened(tmp_path / "b.json", b))
    for side, ns in ((found.a, "a_ns"), (found.b, "b_ns")):
        assert sum(getattr(row, ns) for row in found.rows) == side.wall_ns
    assert sum(row.difference_ns for row in found.rows) == found.difference_ns
    return found


def row_of(found: Difference, name: str) -> DifferenceRow:
    (row,) = [row for row in found.rows if name in row.a or name in row.b]
    return row


def test_a_fused_convolution_takes_the_place_of_three_operators(tmp_path: Path) -> None:
    layer = (("aten::conv2d", 30.0), ("aten::batch_norm", 10.0), ("aten::relu_", 5.0))
    a = host_step(*layer, *layer, ("aten::linear", 4.0))
    fused = ("mkldnn::_convolution_pointwise", 32.0)
    b = host_step(fused, fused, ("mkl::_mkl_linear", 3.0))
    found = compared(tmp_path, a, b)
    row = row_of(found, "aten::conv2d")
    assert row.a == ("aten::conv2d", "aten::batch_norm", "aten::relu_")
    assert row.b == ("mkldnn::_convolution_pointwise",)
    assert (row.num, row.a_ns, row.b_ns) == (2, 90_000, 64_000)
    assert row_of(found, "aten::linear").difference_ns == -1_000
    assert found.a.unaligned_ns == found.b.unaligned_ns == 0
    assert row_of(found, "idle").a_ns == 8_000


def test_attention_written_out_becomes_one_kernel(tmp_path: Path) -> None:
    projections = [("aten::linear", "ampere_sgemm_32x32", 10.0)] * 3
    a = device_step(
        *projections,
        ("aten::matmul", "ampere_sgemm_128x64", 20.0),
        ("aten::div", "elementwise_kernel", 4.0),
        ("aten::softmax", "softmax_warp_forward", 6.0),
        ("aten::matmul", "ampere_sgemm_128x64", 18.0),
        ("aten::linear", "ampere_sgemm_32x32", 11.0),
    )
    b = device_step(
        *projections,
        ("aten::scaled_dot_product_attention", "flash_fwd_kernel", 15.0),
        ("aten::linear", "ampere_sgemm_32x32", 11.0),
    )
    found = compared(tmp_path, a, b)
    row = row_of(found, "aten::scaled_dot_product_attention")
    assert row.a == ("aten::matmul", "aten::div", "aten::softmax")
    assert (row.a_ns, row.b_ns) == (48_000, 15_000)
    assert found.difference_ns == -33_000
    assert found.a.unaligned_ns == 0


def test_values_may_be_projected_once_the_scores_are_there(tmp_path: Path) -> None:
    """As ONNX Runtime orders a quantized encoder: softmax, the product with weights, mixing."""
    project = ("MatMulIntegerToFloat", 7.0)
    a = host_step(
        project, project, ("FusedMatMul", 8.0), ("Softmax", 6.0), project, ("MatMul", 7.0), project
    )
    linear = ("aten::linear", 9.0)
    attention = ("aten::scaled_dot_product_attention", 12.0)
    found = compared(tmp_path, a, host_step(linear, linear, linear, attention, linear))
    row = row_of(found, "aten::scaled_dot_product_attention")
    assert row.a == ("FusedMatMul", "Softmax", "MatMul")
    assert (row.a_ns, row.b_ns) == (21_000, 12_000)
    assert found.a.unaligned_ns == found.b.unaligned_ns == 0


def test_adding_integers_is_no_product(tmp_path: Path) -> None:
    a = host_step(("Conv", 30.0), ("Conv", 30.0), ("Gemm", 4.0))
    b = host_step(("QLinearConv", 10.0), ("QLinearAdd", 2.0), ("QLinearConv", 10.0), ("QGemm", 2.0))
    found = compared(tmp_path, a, b)
    assert found.a.unaligned_ns == found.b.unaligned_ns == 0
    assert row_of(found, "QLinearAdd").a == ("Conv",)


def test_an_activation_is_fused_into_its_product(tmp_path: Path) -> None:
    a = device_step(
        ("aten::linear", "cutlass_80_tensorop_gemm", 20.0),
        ("aten::gelu", "vectorized_elementwise_kernel", 8.0),
        ("aten::linear", "cutlass_80_tensorop_gemm", 20.0),
    )
    b = device_step(
        ("aten::linear", "cublasLt_gemm_gelu", 22.0),
        ("aten::linear", "cutlass_80_tensorop_gemm", 20.0),
    )
    found = compared(tmp_path, a, b)
    row = row_of(found, "aten::gelu")
    assert (row.a, row.b) == (("aten::linear", "aten::gelu"), ("aten::linear",))
    assert row.difference_ns == -6_000


def test_three_products_that_became_one_stay_aligned(tmp_path: Path) -> None:
    gemm = "ampere_sgemm_32x32"
    a = device_step(*[("aten::linear", gemm, 10.0)] * 3, ("aten::conv2d", "implicit_gemm_conv", 9))
    b = device_step(("aten::linear", gemm, 24.0), ("aten::conv2d", "implicit_gemm_conv", 9))
    found = compared(tmp_path, a, b)
    assert row_of(found, "aten::linear").difference_ns == -6_000
    assert found.a.unaligned_ns == 0


def test_code_that_a_compiler_made_stands_where_it_ran(tmp_path: Path) -> None:
    a = host_step(
        ("aten::linear", 20.0), ("aten::gelu", 10.0), ("aten::layer_norm", 12.0),
        ("aten::linear", 20.0),
    )  # fmt: skip
    b: Events = [
        complete("cpu_op", "Torch-Compiled Region: 0/0", 1, 70),
        complete("cpu_op", "mkl::_mkl_linear", 5, 20),
        complete("cpu_op", "mkl::_mkl_linear", 40, 20),
        complete("user_annotation", "ProfilerStep#3", 0, 72),
    ]
    found = compared(tmp_path, a, b)
    row = row_of(found, "aten::gelu")
    assert row.b == ("mkl::_mkl_linear", "compiled code")
    assert (row.a_ns, row.b_ns) == (42_000, 35_000)
    assert row_of(found, "idle").b_ns == 2_000


def test_what_only_one_side_has_is_said(tmp_path: Path) -> None:
    a = host_step(("aten::linear", 20.0))
    b = host_step(("aten::linear", 20.0), ("aten::conv2d", 60.0))
    found = compared(tmp_path, a, b)
    row = row_of(found, "aten::conv2d")
    assert (row.a, row.is_aligned) == ((), False)
    assert found.b.unaligned_share == pytest.approx(60 / 83)


def test_replays_of_one_graph_align_node_by_node(tmp_path: Path) -> None:
    def replay(*nodes: tuple[int, str, float]) -> Events:
        events: Events = [launch(0, 5, correlation=9, name="cudaGraphLaunch")]
        start = 10.0
        for node, name, dur_us in nodes:
            one = kernel(name, start, dur_us, correlation=9)
            one["args"]["graph node id"] = node
            events.append(one)
            start += dur_us
        return events

    a = replay((1, "gemm_q", 10), (2, "relu_kernel", 4), (3, "gemm_k", 20))
    # The two branches ran in the other order.
    b = replay((3, "gemm_k", 25), (1, "gemm_q", 10), (2, "relu_kernel", 4))
    found = compared(tmp_path, a, b)
    assert row_of(found, "gemm_k").difference_ns == 5_000
    assert row_of(found, "gemm_q").difference_ns == 0


def test_generated_kernels_are_known_by_their_code(tmp_path: Path) -> None:
    """Inductor numbers its kernels anew in each process; the hash of their source stays."""

    def compiled(*calls: tuple[str, str, float]) -> Events:
        events = device_step(*((name, name, dur_us) for name, _, dur_us in calls))
        operators = [event for event in events if event["cat"] == "cpu_op"]
        for event, (_, code, _) in zip(operators, calls, strict=True):
            event["args"] |= {"kernel_hash": code, "kernel_file": "x.py"}
        return events

    a = compiled(
        ("triton_poi_0", "cabc", 4), ("triton_tem_mm_1", "cdef", 20), ("triton_poi_2", "cghi", 6)
    )
    b = compiled(
        ("triton_tem_mm_0", "cdef", 22), ("triton_poi_1", "cghi", 6), ("triton_poi_2", "cabc", 4)
    )
    found = compared(tmp_path, a, b)
    assert row_of(found, "triton_tem_mm_1").difference_ns == 2_000
    assert row_of(found, "triton_poi_0").b == ("triton_poi_2",)
    assert row_of(found, "triton_poi_0").difference_ns == 0


def test_the_median_step_is_compared(tmp_path: Path) -> None:
    def steps(*durations: float) -> Events:
        events: Events = []
        start = 0.0
        for number, dur_us in enumerate(durations):
            events.append(complete("user_annotation", f"ProfilerStep#{number}", start, dur_us))
            events.append(complete("cpu_op", "aten::mm", start, dur_us))
            start += dur_us + 5
        return events

    found = compared(tmp_path, steps(90, 10, 12), steps(11, 9, 50))
    assert (found.a.step, found.a.wall_ns, found.a.num_steps) == (2, 12_000, 3)
    assert (found.b.step, found.b.wall_ns) == (0, 11_000)
    assert (found.a.least_ns, found.a.most_ns) == (10_000, 90_000)


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    nothing = opened(tmp_path / "a.json", [complete("user_annotation", "x", 0, 1)])
    some = opened(tmp_path / "b.json", [complete("cpu_op", "aten::mm", 0, 1)])
    with pytest.raises(LoadError, match="the second trace has neither"):
        difference(some, nothing)


def test_the_command_prints_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    a, b = tmp_path / "eager.json", tmp_path / "fast.json"
    opened(a, host_step(("aten::linear", 20.0), ("aten::[red]gelu[/red]", 10.0)))
    opened(b, host_step(("mkl::_mkl_linear", 12.0)))
    assert main(["trace", str(a), "--diff", str(b)]) == OK
    printed = capsys.readouterr().out
    assert "A step of B takes 19.0 µs less than one of A: 14.0 µs against 33.0 µs" in printed
    assert "aten::linear + aten::[red]gelu[/red]" in printed
    assert "−18.0 µs" in printed
    assert main(["trace", str(a), "--diff", str(b), "--json"]) == OK
    said = json.loads(capsys.readouterr().out)
    assert said["difference_ns"] == -19_000 == sum(row["difference_ns"] for row in said["rows"])
    assert (said["a"]["name"], said["b"]["unaligned_share"]) == ("eager.json", 0.0)
