"""Precision on OpenVINO: a hint that the compiled model reads back."""

from __future__ import annotations

from typing import Any

from workbench.levers.precision import Precision
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

_VALUES = ("fp32", "bf16", "fp16")
# What a CPU must have for OpenVINO to compute in a format rather than fall back to fp32.
_NEEDED = {
    "bf16": ("avx512_bf16", "amx_bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "fp16"),
}


def precision_unavailable(value: str, context: Context) -> str | None:
    """Why OpenVINO cannot compute in this format on this CPU."""
    if value not in _NEEDED:
        return None if value == "fp32" else f"OpenVINO computes in {', '.join(_VALUES)}"
    if set(_NEEDED[value]) & set(context.device.instruction_sets):
        return None
    needed = " or ".join(name.upper() for name in _NEEDED[value][:2])
    return f"OpenVINO computes in {value} on CPUs with {needed}; this is {context.device.reading}"


@portable
def hint_precision(settings: dict[str, Any], dtype: str) -> None:
    """Ask for a format before compiling: "f32", "bf16" or "f16"."""
    settings["INFERENCE_PRECISION_HINT"] = dtype


@applies(Precision, "openvino", unavailable=precision_unavailable, values=_VALUES)
def plan_precision(lever: Precision, _context: Context) -> tuple[Step, ...]:
    """Change the hint that the model is compiled with."""
    spelled = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[lever.value]
    return (
        Step(
            phase="load.precision",
            function=hint_precision,
            reads=("settings",),
            params={"dtype": spelled},
        ),
    )
