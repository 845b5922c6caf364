"""Operations and bytes from operands."""

from __future__ import annotations

import pytest

from workbench.traces.arithmetic import arithmetic, roofline
from workbench.traces.operands import operands
from workbench.traces.tables import OperatorRow


@pytest.mark.parametrize(
    ("name", "text", "flops", "num_bytes"),
    [
        ("aten::mm", "f32[8, 64], f32[64, 16]", 2 * 8 * 64 * 16, 4 * (512 + 1024 + 128)),
        ("aten::addmm", "bf16[16], bf16[8, 64], bf16[64, 16]", 16384, 2 * (16 + 512 + 1024 + 128)),
        ("aten::bmm", "f32[3, 8, 64], f32[3, 64, 16]", 3 * 16384, 3 * 6656),
        ("aten::linear", "f32[2, 8, 64], f32[16, 64]", 2 * 16384, 4 * (1024 + 1024 + 256)),
        ("MatMul", "f32[1, 8, 64], f32[64, 16]", 16384, 6656),
        (
            "aten::scaled_dot_product_attention",
            "f16[2, 4, 10, 32], f16[2, 4, 20, 32], f16[2, 4, 20, 32]",
            2 * 8 * 10 * 20 * 64,
            2 * 8 * (10 * 32 + 20 * 32 + 20 * 32 + 10 * 32),
        ),
    ],
)
def test_operations_and_bytes_of_one_call(name: str, text: str, flops: int, num_bytes: int) -> None:
    assert arithmetic(name, operands(text)) == (flops, num_bytes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aten::relu", "f32[8]"),
        ("aten::mm", "f32[8, 64], f32[63, 16]"),
        ("aten::mm", "f32[8, 64]"),
        ("aten::mm", "?[8, 64], ?[64, 16]"),
        ("aten::linear", "f32[8, 64], f32[64]"),
    ],
)
def test_what_operands_do_not_settle_is_unknown(name: str, text: str) -> None:
    assert arithmetic(name, operands(text)) is None


def row(shape: str | None, *, device_ns: int = 0, host_ns: int = 0) -> OperatorRow:
    return OperatorRow(
        name="aten::mm", shape=shape, num=10, host_ns=host_ns, self_ns=host_ns,
        device_ns=device_ns, device_self_ns=device_ns,
    )  # fmt: skip


def test_a_point_lies_below_its_roof() -> None:
    shape = "f32[1024, 1024], f32[1024, 1024]"
    rows = [row(shape, device_ns=10_000_000, host_ns=5), row(None, device_ns=7), row(shape)]
    (point,) = roofline(rows, peak_flops=4e12, peak_bytes=1e12)
    assert point.flops == 2 * 1024**3
    assert point.rate == pytest.approx(2 * 1024**3 / 1e-3)
    assert point.intensity == pytest.approx(2 * 1024**3 / (3 * 4 * 1024**2))
    # 171 operations a byte, so the arithmetic is the roof.
    assert point.share_of_roof == pytest.approx(point.rate / 4e12)
    (point,) = roofline(rows, peak_flops=4e15, peak_bytes=1e10)
    assert point.share_of_roof == pytest.approx(point.rate / (1e10 * point.intensity))
    assert roofline(rows)[0].share_of_roof is None


def test_without_a_device_the_hosts_time_counts() -> None:
    (point,) = roofline([row("f32[8, 8], f32[8, 8]", host_ns=1000)])
    assert point.total_ns == 1000
