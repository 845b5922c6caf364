"""What a baseline that rounds is measured by: its own outputs in float64, of a few rows."""

from __future__ import annotations

from pathlib import Path

from workbench.core.device import Device
from workbench.core.json import Json
from workbench.core.model import PreparedModel
from workbench.devices.limits import free_memory_bytes

# The yardstick costs a float64 model on the CPU: a few rows show how coarse a format is.
NUM_ROWS = 16
# Two bytes a number become eight, and as much again while it is loaded.
_BYTES_FACTOR = 8
_COARSE = ("bfloat16", "float16")
_FLAGS = (
    "cuda_matmul_fp32_precision",
    "cudnn_conv_fp32_precision",
    "cudnn_rnn_fp32_precision",
)


def rounds(model: PreparedModel, device: Device, settings: dict[str, Json]) -> bool:
    """Whether the baseline of a torch model computes in less than fp32.

    By the dtypes of what goes in and comes out, the notebook's default dtype, or on a GPU its
    flags: torch lets convolutions round to tf32 unless it is told otherwise.
    """
    if model.kind == "onnx":
        return False
    if any(spec.dtype in _COARSE for spec in (*model.inputs, *model.outputs)):
        return True
    if settings.get("default_dtype") in _COARSE:
        return True
    return device.kind == "cuda" and any(settings.get(flag) != "ieee" for flag in _FLAGS)


def fits(model: PreparedModel) -> bool:
    """Whether memory is free for the model in float64."""
    return _BYTES_FACTOR * (model.num_bytes or 0) < free_memory_bytes()


def yardstick_path(study: Path) -> Path:
    """Where the float64 outputs of a study's baseline are kept."""
    return study / "variants" / "1" / "exact.npz"
