"""Operations and bytes from operands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.core.profile import Peaks
from workbench.traces.arithmetic import arithmetic, roofline
from workbench.traces.tables import OperatorRow


@pytest.mark.parametrize(
    ("name", "text", "flops", "num_bytes"),
    [
        ("aten::mm", "f32[8, 64], f32[64, 16]", 2 * 8 * 64 * 16, 4 * (512 + 1024 + 128)),
        ("aten::addmm", "bf16[16], bf16[8, 64], bf16[64, 16]", 16384, 2 * (16 + 512 + 1024 + 128)),
        ("aten::bmm", "f32[3, 8, 64], f32[3, 64, 16]", 3 * 16384, 3 * 6656),
        ("aten::linear", "f32[2, 8, 64], f32[16, 64]", 2 * 16384, 4 * (1024 + 1024 + 256)),
        ("aten::matmul", "f32[64, 64], f32[32, 64, 64]", 32 * 2 * 64**3, 4 * (4096 + 2 * 131072)),
        ("MatMul", "f32[1, 8, 64], f32[64, 16]", 16384, 6656),
        (
            "aten::mkldnn_convolution",
            "f32[8, 64, 16, 16], f32[128, 64, 3, 3] to [8, 128, 16, 16]",
            2 * 8 * 128 * 16 * 16 * 64 * 9,
            4 * (8 * 64 * 256 + 128 * 64 * 9 + 8 * 128 * 256),
        ),
        (
            "aten::scaled_dot_product_attention",
            "f16[2, 4, 10, 32], f16[2, 4, 20, 32], f16[2, 4, 20, 32]",
            2 * 8 * 10 * 20 * 64,
            2 * 8 * (10 * 32 + 20 * 32 + 20 * 32 + 10 * 32),
        ),
    ],
)
def test_operations_and_bytes_of_one_call(name: str, text: str, flops: int, num_bytes: int) -> None:
    assert arithmetic(name, text) == (flops, num_bytes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aten::relu", "f32[8]"),
        ("aten::mm", "f32[8, 64], f32[63, 16]"),
        ("aten::mm", "f32[8, 64]"),
        ("aten::mm", "?[8, 64], ?[64, 16]"),
        ("aten::linear", "f32[8, 64], f32[64]"),
        ("Conv", "f32[8, 64, 16, 16], f32[128, 64, 3, 3]"),
    ],
)
def test_what_operands_do_not_settle_is_unknown(name: str, text: str) -> None:
    assert arithmetic(name, text) is None


def row(shape: str | None, *, device_ns: int = 0, host_ns: int = 0) -> OperatorRow:
    return OperatorRow(
        name="aten::mm", shape=shape, num=10, host_ns=host_ns, self_ns=host_ns,
        device_ns=device_ns, device_self_ns=device_ns,
    )  # fmt: skip


def test_a_point_lies_below_its_roof() -> None:
    shape = "f32[1024, 1024], f32[1024, 1024]"
    rows = [row(shape, device_ns=10_000_000, host_ns=5), row(None, device_ns=7), row(shape)]
    (point,) = roofline(rows, Peaks(flops={"f32": 4e12}, bytes_per_s=1e12))
    assert point.flops == 2 * 1024**3
    assert point.rate == pytest.approx(2 * 1024**3 / 1e-3)
    assert point.intensity == pytest.approx(2 * 1024**3 / (3 * 4 * 1024**2))
    # 171 operations a byte, so the arithmetic is the roof.
    assert point.share_of_roof == pytest.approx(point.rate / 4e12)
    (point,) = roofline(rows, Peaks(flops={"f32": 4e15}, bytes_per_s=1e10))
    assert point.share_of_roof == pytest.approx(point.rate / (1e10 * point.intensity))
    assert roofline(rows)[0].share_of_roof is None


def test_without_a_device_the_hosts_time_counts() -> None:
    (point,) = roofline([row("f32[8, 8], f32[8, 8]", host_ns=1000)])
    assert point.total_ns == 1000


def test_an_operator_that_only_calls_another_is_left_to_that() -> None:
    """The arithmetic of a layer is its product's, once, and never over the host's time."""

    def of(name: str, device_ns: int, own_ns: int, host_ns: int) -> OperatorRow:
        return OperatorRow(
            name=name, shape="f32[8, 64], f32[16, 64]", num=1, host_ns=host_ns, self_ns=host_ns,
            device_ns=device_ns, device_self_ns=own_ns,
        )  # fmt: skip

    layer = of("aten::linear", 5_000, 0, 10)
    product = replace(of("aten::mm", 5_000, 5_000, 10), shape="f32[8, 64], f32[64, 16]")
    assert [point.name for point in roofline([layer, product])] == ["aten::mm"]
    on_host = [of("aten::linear", 0, 0, 10), replace(product, device_ns=0, device_self_ns=0)]
    assert [point.name for point in roofline(on_host)] == ["aten::mm"]


def test_a_type_without_a_measured_peak_has_no_roof() -> None:
    (point,) = roofline(
        [row("bf16[64, 64], bf16[64, 64]", device_ns=1000)],
        Peaks(flops={"f32": 4e12}, bytes_per_s=1e12),
    )
    assert point.share_of_roof is None
