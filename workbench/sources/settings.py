"""The global flags of the notebook that loads a model: the baseline runs as the user does."""

from __future__ import annotations

import contextlib
import sys

from workbench.core.json import Json


def read_settings() -> dict[str, Json]:
    """torch's global flags, {} where torch is not imported in this process.

    Keys: "num_threads", "num_interop_threads", "float32_matmul_precision",
    "cuda_matmul_fp32_precision", "cudnn_conv_fp32_precision", "cudnn_rnn_fp32_precision",
    "cudnn_benchmark", "deterministic"; "default_dtype" where it is not float32. A flag that
    this version of torch does not have is left out. Reads only; creates no CUDA context.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {}
    settings: dict[str, Json] = {
        "num_threads": int(torch.get_num_threads()),
        "num_interop_threads": int(torch.get_num_interop_threads()),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
    }
    # torch refuses to answer in terms of the old flag once the new ones were set apart.
    with contextlib.suppress(RuntimeError):
        settings["float32_matmul_precision"] = str(torch.get_float32_matmul_precision())
    for key, path in (
        ("cuda_matmul_fp32_precision", ("cuda", "matmul")),
        ("cudnn_conv_fp32_precision", ("cudnn", "conv")),
        ("cudnn_rnn_fp32_precision", ("cudnn", "rnn")),
    ):
        holder = torch.backends
        for name in path:
            holder = getattr(holder, name, None)
        value = getattr(holder, "fp32_precision", None)
        if isinstance(value, str):
            settings[key] = value
    cudnn = getattr(torch.backends, "cudnn", None)
    if cudnn is not None:
        settings["cudnn_benchmark"] = bool(cudnn.benchmark)
    default = str(torch.get_default_dtype()).removeprefix("torch.")
    if default != "float32":
        settings["default_dtype"] = default
    return settings
