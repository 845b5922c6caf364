"""The processor: its name, its instruction sets and what it computes in hardware."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from workbench.core.device import Device
from workbench.devices.limits import cpu_quota, num_cores, total_memory_bytes

# How the kernel spells a flag in /proc/cpuinfo, and how we do where that differs.
_X86 = {
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avx_vnni",
    "avx_vnni_int8": "avx_vnni_int8",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16",
    "amx_fp16": "amx_fp16",
}
_ARM = {
    "asimd": "neon",
    "neon": "neon",
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
}
# macOS, through sysctl: Intel lists words, Apple silicon has one key a feature.
_MAC_INTEL = {
    "AVX1.0": "avx",
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "AVX512F": "avx512f",
    "AVX512BW": "avx512bw",
    "AVX512VL": "avx512vl",
    "AVX512VNNI": "avx512_vnni",
}
_MAC_ARM = {
    "AdvSIMD": "neon",
    "arm.FEAT_FP16": "fp16",
    "arm.FEAT_DotProd": "dotprod",
    "arm.FEAT_BF16": "bf16",
    "arm.FEAT_I8MM": "i8mm",
}

_NATIVE = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "fp16"),
    "int8": ("avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8", "dotprod", "i8mm"),
}


def describe_cpu(root: Path = Path("/")) -> Device:
    """The processor as this process may use it."""
    info = _cpuinfo(root)
    sets = instruction_sets(root)
    notes = []
    quota = cpu_quota(root)
    if quota is not None:
        notes.append(f"the container may use {quota:g} cores' worth of time")
    return Device(
        id="cpu",
        kind="cpu",
        name=_name(info),
        num_cores=num_cores(root),
        memory_bytes=total_memory_bytes(root),
        instruction_sets=sets,
        native=native_dtypes(sets),
        notes=tuple(notes),
    )


def native_dtypes(instruction_sets: tuple[str, ...]) -> tuple[str, ...]:
    """What a CPU with these sets multiplies in hardware; anything else is emulated.

    AVX2 has no 8-bit dot product of its own but multiplies 8-bit pairs, which libraries do
    use: int8 can be fast there without being listed.
    """
    return (
        "fp32",
        "fp64",
        *(d for d, sets in _NATIVE.items() if not set(sets).isdisjoint(instruction_sets)),
    )


def instruction_sets(root: Path = Path("/")) -> tuple[str, ...]:
    """The sets that matter to a model's arithmetic; () where they cannot be read."""
    info = _cpuinfo(root)
    if info:
        words = set(info.get("flags", info.get("Features", "")).split())
        known = _X86 if "flags" in info else _ARM
        return _unique(name for flag, name in known.items() if flag in words)
    if sys.platform == "darwin":
        words = set(_sysctl("machdep.cpu.features", "machdep.cpu.leaf7_features").upper().split())
        if words:
            return _unique(name for flag, name in _MAC_INTEL.items() if flag in words)
        return _unique(
            name for key, name in _MAC_ARM.items() if _sysctl(f"hw.optional.{key}") == "1"
        )
    return ()


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _name(info: dict[str, str]) -> str:
    if name := info.get("model name"):
        return " ".join(name.split())
    if sys.platform == "darwin" and (name := _sysctl("machdep.cpu.brand_string")):
        return name
    return platform.processor() or platform.machine() or "CPU"


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; {} where there is no such file."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    info: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            info.setdefault(key.strip(), value.strip())
    return info


def _sysctl(*keys: str) -> str:
    try:
        done = subprocess.run(
            ["sysctl", "-n", *keys], capture_output=True, text=True, check=False, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
