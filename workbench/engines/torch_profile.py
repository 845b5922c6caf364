"""One call under torch.profiler: which operators and kernels ran, in which format, how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable


@portable
def profile_call(call: Callable[[], Any], device: str) -> list[dict[str, Any]]:
    """One call under torch.profiler: its events, in order of their start.

    Times are in nanoseconds. "parents" holds the places in the list of the operators that an
    event ran inside of. Raises RuntimeError where the profiler recorded nothing.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
    raw = sorted(
        profiler.profiler.kineto_results.events(), key=lambda e: (e.start_ns(), -e.end_ns())
    )
    if not raw:
        raise RuntimeError("the profiler recorded nothing: another profile may be running")
    events: list[dict[str, Any]] = []
    open_by_thread: dict[Any, list[int]] = {}
    for event in raw:
        on_host = str(event.device_type()) == "DeviceType.CPU"
        if not on_host and event.is_user_annotation():
            continue  # a span of the host drawn over the kernels it launched
        parents: list[int] = []
        if on_host:
            stack = open_by_thread.setdefault(event.start_thread_id(), [])
            while stack and events[stack[-1]]["end_ns"] <= event.start_ns():
                stack.pop()
            parents = list(stack)
            stack.append(len(events))
        events.append(
            {
                "name": event.name(),
                "on_host": on_host,
                "end_ns": event.end_ns(),
                "duration_ns": event.duration_ns(),
                "dtypes": list(event.dtypes()),
                "shapes": list(event.shapes()),
                "strides": list(getattr(event, "structured_input_strides", list)()),
                "id": event.correlation_id(),
                "launched_by": event.linked_correlation_id(),
                "parents": parents,
            }
        )
    return events


@portable
def is_arithmetic(name: str) -> bool:
    """Whether an operator is a matmul, a convolution, a recurrence or attention.

    One that only calls another of them ("aten::linear" calls "aten::addmm") is told apart by
    `operators_of`, which counts the innermost.
    """
    import re

    last = name.partition("::")[2]
    if name.startswith("triton_tem_"):
        return True
    if re.search(r"reorder|prepack|weight_to_int4pack", last):
        return False
    words = r"(?:mm|mv|dot|linear|conv(?!ert)|lstm|gru|rnn|attention|pack_mm|matmul)"
    return re.search(rf"(?:^|_|q|b|add){words}", last) is not None


@portable
def short_dtype(name: str) -> str:
    """A profiler's or torch's name of a dtype, made short ("bf16")."""
    known = {
        "float": "fp32",
        "float32": "fp32",
        "double": "fp64",
        "float64": "fp64",
        "c10::BFloat16": "bf16",
        "bfloat16": "bf16",
        "c10::Half": "fp16",
        "float16": "fp16",
        "signed char": "int8",
        "unsigned char": "uint8",
        "long int": "int64",
        "long": "int64",
        "int": "int32",
    }
    if "float8" in name.lower():
        return "fp8"
    return known.get(name, name)


@portable
def operators_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Operators by name and dtype: calls, time of their own, whether they are arithmetic.

    Time is the kernels' where a GPU ran them, else the operator's without those inside it.
    The dtype is that of the first tensor: what a matmul multiplies, whatever its weights
    are stored in.
    """
    with_kernel: dict[int, int] = {}
    for event in events:
        if not event["on_host"]:
            by = event["launched_by"]
            with_kernel[by] = with_kernel.get(by, 0) + event["duration_ns"]
    inner_ns = [0] * len(events)
    contains_arithmetic = [False] * len(events)
    for event in events:
        if event["parents"]:
            inner_ns[event["parents"][-1]] += event["duration_ns"]
        if event["on_host"] and is_arithmetic(event["name"]):
            for parent in event["parents"]:
                contains_arithmetic[parent] = True
    found: dict[tuple[str, str, bool], list[int]] = {}
    for index, event in enumerate(events):
        tensors = [d for d in event["dtypes"] if d not in ("", "Scalar", "ScalarList")]
        if not event["on_host"] or not (tensors or event["name"].startswith("triton_")):
            continue
        arithmetic = is_arithmetic(event["name"]) and not contains_arithmetic[index]
        # Of a bias and two factors the first has the factors' format as well.
        dtype = short_dtype(tensors[0]) if tensors else "unknown"
        if arithmetic and dtype == "uint8":
            dtype = "int8"
        if with_kernel:
            own_ns = with_kernel.get(event["id"], 0)
        else:
            own_ns = event["duration_ns"] if arithmetic else 0
            own_ns = own_ns or max(event["duration_ns"] - inner_ns[index], 0)
        entry = found.setdefault((event["name"], dtype, arithmetic), [0, 0])
        entry[0] += 1
        entry[1] += own_ns
    return [
        {"name": name, "dtype": dtype, "arithmetic": arithmetic, "num_calls": n, "time_ns": ns}
        for (name, dtype, arithmetic), (n, ns) in found.items()
        if arithmetic or ns
    ]


@portable
def kernels_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ran on a GPU by name: launches and nanoseconds; graph launches beside them."""
    found: dict[str, list[int]] = {}
    for event in events:
        if not event["on_host"] or event["name"] in ("cudaGraphLaunch", "cuGraphLaunch"):
            entry = found.setdefault(event["name"], [0, 0])
            entry[0] += 1
            entry[1] += event["duration_ns"]
    return [{"name": name, "num": n, "time_ns": ns} for name, (n, ns) in found.items()]


@portable
def arithmetic_kernels(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Matmuls, convolutions and attention among a GPU's kernels, as operators.

    Their format is read from their names, as cuBLAS, cuDNN, CUTLASS and FlashAttention give
    them: "sm90_xmma_gemm_bf16bf16_…", "cutlass_80_tensorop_f16_s16816gemm_…", "nvjet_tst_…".
    """
    import re

    arithmetic = (
        r"gemm|gemv|nvjet|fprop|scudnn|implicit_conv|convolve|winograd|flash_fwd|fmha|sdpa|xmma"
    )
    moves = r"nchwtonhwc|nhwctonchw|transpose|splitk_?reduce|reduce_kernel"
    formats = (
        ("fp8", r"e4m3|e5m2|fp8|float8|nvjet_(?:sm\d+_)?q"),
        ("int8", r"(?:^|_)i?(?:s8|u8|int8)(?!\d)|imma|igemm|i8i8"),
        ("bf16", r"bf16|bfloat16|nvjet_(?:sm\d+_)?t"),
        ("fp16", r"f16|fp16|half|hgemm|h\d+gemm|hmma|h884|nvjet_(?:sm\d+_)?h"),
        ("fp64", r"f64|dgemm|double"),
        ("fp32", r"tf32|f32|sgemm|s\d+gemm|float|ffma|scudnn|simt|nvjet_(?:sm\d+_)?s"),
    )
    found = []
    for kernel in kernels:
        name = kernel["name"].lower()
        if not re.search(arithmetic, name) or re.search(moves, name):
            continue
        dtype = next((d for d, pattern in formats if re.search(pattern, name)), "unknown")
        found.append(
            {
                "name": kernel["name"],
                "dtype": dtype,
                "arithmetic": True,
                "num_calls": kernel["num"],
                "time_ns": kernel["time_ns"],
            }
        )
    return found
