"""One vocabulary for what profilers call their events.

Names of 2021 ("Operator", "Kernel", "Runtime") and of today, of CUDA, HIP and others; from
libkineto's ActivityType.cpp and from recorded traces.
"""

from __future__ import annotations

from typing import Literal, get_args

Category = Literal[
    "operator",
    "annotation",
    "python",
    "runtime",
    "driver",
    "kernel",
    "memcpy",
    "memset",
    "sync",
    "overhead",
    "device_annotation",
    "span",
    "other",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
CODE_OF: dict[Category, int] = {name: code for code, name in enumerate(CATEGORIES)}
# Work of the device: what its busy time is made of. An annotation that is drawn on a stream
# spans gaps, and a synchronisation waits.
DEVICE_WORK: tuple[Category, ...] = ("kernel", "memcpy", "memset")
# Calls by which the host hands work to a device.
LAUNCHES: tuple[Category, ...] = ("runtime", "driver")

_CATEGORY_OF: dict[str, Category] = {
    "cpu_op": "operator",
    "operator": "operator",
    "hpu_op": "operator",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device_annotation",
    "python_function": "python",
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "runtime",
    "hip_runtime": "runtime",
    "runtime": "runtime",
    "xpu_runtime": "runtime",
    "mtia_runtime": "runtime",
    "glow_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "hip_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "cuda_sync": "sync",
    "overhead": "overhead",
    "trace": "span",
    # ONNX Runtime's: nodes of the graph, and what a session does around them.
    "node": "operator",
    "session": "annotation",
    "api": "runtime",
}
# What only ONNX Runtime writes.
ONNXRUNTIME_CATEGORIES = frozenset({"Node", "Session"})


def category_of(written: str) -> Category:
    """The category of an event as a file writes it, in any spelling of any year."""
    return _CATEGORY_OF.get(written.strip().lower(), "other")
