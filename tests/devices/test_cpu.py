"""Instruction sets and native dtypes, from lines that real processors print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench.devices.cpu import describe_cpu, instruction_sets, native_dtypes

ZEN3 = "model name\t: AMD EPYC 7763\nflags\t\t: fpu sse2 avx fma f16c avx2 sha_ni vaes\n"
SAPPHIRE_RAPIDS = (
    "model name\t: Intel(R) Xeon(R)  Platinum 8481C\n"
    "flags\t\t: avx avx2 fma f16c avx512f avx512bw avx512vl avx512_bf16 avx_vnni "
    "avx512_vnni avx512_fp16 amx_bf16 amx_tile amx_int8\n"
)
CASCADE_LAKE = "model name\t: Intel Xeon\nflags\t\t: avx avx2 avx512f avx512_vnni\n"
GRAVITON3 = (
    "processor\t: 0\nBogoMIPS\t: 2100.00\n"
    "Features\t: fp asimd aes fphp asimdhp asimddp sve i8mm bf16\nCPU part\t: 0xd40\n"
)


def machine(root: Path, cpuinfo: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpuinfo)
    return root


def test_a_cpu_with_avx2_has_no_native_low_precision(tmp_path: Path) -> None:
    """P21: bf16 is emulated there, and the reason names what is missing."""
    cpu = describe_cpu(machine(tmp_path, ZEN3))
    assert cpu.name == "AMD EPYC 7763"
    assert cpu.native == ("fp32", "fp64")
    assert cpu.reading == "a CPU with AVX2"


@pytest.mark.parametrize(
    ("cpuinfo", "native"),
    [
        (SAPPHIRE_RAPIDS, {"bf16", "fp16", "int8"}),
        (CASCADE_LAKE, {"int8"}),
        (GRAVITON3, {"bf16", "fp16", "int8"}),
    ],
)
def test_low_precision_is_native_where_an_instruction_set_has_it(
    tmp_path: Path, cpuinfo: str, native: set[str]
) -> None:
    cpu = describe_cpu(machine(tmp_path, cpuinfo))
    assert set(cpu.native) == {"fp32", "fp64"} | native


def test_arm_sets_are_named_apart_from_x86(tmp_path: Path) -> None:
    cpu = describe_cpu(machine(tmp_path, GRAVITON3))
    assert cpu.instruction_sets == ("neon", "fp16", "dotprod", "bf16", "i8mm", "sve")
    assert cpu.reading == "a CPU with NEON"
    assert cpu.name  # an ARM cpuinfo has no model name


@pytest.mark.skipif(sys.platform == "darwin", reason="sysctl answers there")
def test_unknown_processors_claim_nothing(tmp_path: Path) -> None:
    assert instruction_sets(tmp_path) == ()
    assert native_dtypes(()) == ("fp32", "fp64")
    assert describe_cpu(tmp_path).name
