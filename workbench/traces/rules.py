"""One rule for each cause of lost time: a function from what is seen of a step to a finding.

A rule that sees nothing of its cause returns None; how small a prize is worth a word is not its
matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.units import format_bytes, format_seconds
from workbench.traces.alignment import runs_between, written_out_attention
from workbench.traces.intervals import clipped, covered
from workbench.traces.kernels import kernel_class
from workbench.traces.operations import is_quantizing
from workbench.traces.seen import Seen
from workbench.traces.trace import ABSENT
from workbench.traces.work import device_work

_NS = 1e-9
# A profiler spends a microsecond or two itself between operators of the host.
_SMALLEST_PYTHON = 0.2
# Tensor cores take float32 as tf32 from Ampere on, and halves from Volta on.
_TAKES_TF32 = (8, 0)
_TAKES_FP16 = (7, 0)
# An A100 has 19.5 TFLOP/s in float32 and 156 in tf32 (NVIDIA's data sheet).
_TF32_SAVES = 1 - 19.5 / 156
# float32 products that run on ordinary cores: CUTLASS and cuBLAS say `sgemm` or name no format
# of the tensor cores.
_FLOAT32 = re.compile(r"sgemm|scudnn|ffma|_f32f32_f32f32_f32|gemmsn|gemv2[tn].*float|simt", re.I)
_ON_TENSOR_CORES = re.compile(
    r"tensorop|tf32|s1688|s16816|h16816|h884|s884|hmma|bf16|f16|fp16|half|e4m3|e5m2|i8|int8|imma",
    re.I,
)
_AMPERE_OR_LATER = re.compile(r"^(ampere|sm[89]\d|cutlass_[89]\d)", re.I)
_WITH_HOST = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost", re.I)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cause of lost time. `prize` is of the step, 0 to 1, and at most what is to be gained.

    `levers` are parts of a recipe that act on it, the likeliest first; empty where the cause
    lies outside what a recipe says, and `advice` says what to do instead.
    """

    name: str
    title: str
    evidence: str
    prize: float
    levers: tuple[str, ...]
    advice: str


def _share(part_ns: int | float, whole_ns: int) -> str:
    return f"{part_ns / whole_ns:.0%}"


def _time(ns: float) -> str:
    return format_seconds(ns * _NS)


def _one_call(seen: Seen) -> Finding | None:
    """A single call of the host that takes much of the step: a set-up that was profiled too."""
    if seen.device is None or seen.slowest is None:
        return None
    row, ns = seen.slowest
    name = seen.trace.names[seen.trace.name[row]]
    return Finding(
        name="one-call",
        title="A single call of the host holds everything up",
        evidence=f"{name} takes {_time(ns)}, {_share(ns, seen.wall_ns)} of the step.",
        prize=min(ns, seen.device.host_bound_ns) / seen.wall_ns,
        levers=(),
        advice=(
            "Call the model a few times before the profile begins: first calls create contexts, "
            "load libraries and try out algorithms."
        ),
    )


def _host_bound(seen: Seen) -> Finding | None:
    step, host = seen.device, seen.host
    if step is None or not step.num_kernels:
        return None
    # What a single call takes is no matter of launches.
    late_ns = max(step.host_bound_ns - (seen.slowest[1] if seen.slowest else 0), 0)
    each = f"{_time(step.compute_ns / step.num_kernels)} each"
    evidence = (
        f"The device is idle {_share(late_ns, seen.wall_ns)} of the step because "
        f"nothing had been launched: {step.num_kernels} kernels of {each}"
    )
    if host is not None:
        evidence += f"; the host spends {_time(host.operators_ns)} in operators and launches"
        evidence += f" and {_time(host.python_ns)} in Python between them"
    return Finding(
        name="host-bound",
        title="The host launches more slowly than the device computes",
        evidence=evidence + ".",
        prize=late_ns / seen.wall_ns,
        levers=("fusion=cuda-graphs", "engine=torch-compile,fusion=reduce-overhead", "batch=32"),
        advice="Record the launches once and replay them, or give each launch more to do.",
    )


def _float32_products(seen: Seen) -> Finding | None:
    trace = seen.trace
    capability = seen.capability
    if capability is not None and capability < _TAKES_FP16:
        return None
    total_ns, num = 0, 0
    names: dict[str, int] = {}
    for row, ns in _kernels(seen):
        name = trace.names[trace.name[row]]
        if kernel_class(name) not in ("matmul", "convolution") or not _FLOAT32.search(name):
            continue
        if _ON_TENSOR_CORES.search(name):
            continue
        if capability is None and not _AMPERE_OR_LATER.match(name):
            # Nothing says that this device has such cores.
            continue
        total_ns, num = total_ns + ns, num + 1
        names[name] = names.get(name, 0) + ns
    if not num:
        return None
    takes_tf32 = capability is None or capability >= _TAKES_TF32
    longest = max(names, key=lambda name: names[name])
    return Finding(
        name="float32-products",
        title="Products in float32 do not use the tensor cores",
        evidence=(
            f"{num} kernels, {_share(total_ns, seen.wall_ns)} of the step, multiply in float32 "
            f"on ordinary cores, such as {longest[:80]}."
        ),
        prize=total_ns * _TF32_SAVES / seen.wall_ns,
        levers=("precision=tf32", "precision=bf16") if takes_tf32 else ("precision=fp16-autocast",),
        advice="Let them run on the tensor cores, and compare the answers.",
    )


def _copies(seen: Seen) -> Finding | None:
    trace, window = seen.trace, seen.window
    work = device_work(trace)
    inside = (work.ends > window.start_ns) & (work.starts < window.end_ns)
    is_copy = np.isin(work.rows, trace.rows("memcpy"))
    with_host = np.array([bool(_WITH_HOST.search(name)) for name in trace.names], dtype=np.bool_)
    copies = inside & is_copy & with_host[trace.name[work.rows]]
    if not copies.any():
        return None

    def busy(chosen: NDArray[np.bool_]) -> int:
        spans = work.starts[chosen], work.ends[chosen]
        return covered(*clipped(*spans, window.start_ns, window.end_ns))

    exposed_ns = busy(inside) - busy(inside & ~copies)
    num_bytes = trace.num_bytes.of(work.rows[copies])
    moved = int(num_bytes[num_bytes != ABSENT].sum())
    names = {trace.names[name] for name in trace.name[work.rows[copies]]}
    how = f" of {format_bytes(moved)}" if moved else ""
    if any("pageable" in name.lower() for name in names):
        how += ", some of them from or to pageable memory,"
    return Finding(
        name="copies",
        title="The device waits for copies",
        evidence=(
            f"{int(copies.sum())} copies{how} take {_share(exposed_ns, seen.wall_ns)} of the "
            "step while nothing computes."
        ),
        prize=exposed_ns / seen.wall_ns,
        levers=(),
        advice=(
            "Keep what does not change on the device; copy the next input from pinned memory on "
            "a stream of its own while this one is computed."
        ),
    )


def _data_loading(seen: Seen) -> Finding | None:
    if seen.device is not None:
        loading_ns, who = seen.device.loading_ns, "the device has nothing to do"
    elif seen.host is not None:
        loading_ns, who = seen.host.loading_ns, "the model waits"
    else:
        return None
    return Finding(
        name="data-loading",
        title="Data are not ready when the model is",
        evidence=(
            f"{_share(loading_ns, seen.wall_ns)} of the step goes into the data loader while {who}."
        ),
        prize=loading_ns / seen.wall_ns,
        levers=(),
        advice="Load ahead in more processes (`num_workers`, `prefetch_factor`).",
    )


def _small_operations(seen: Seen) -> Finding | None:
    """Operators over elements in a row: as one, the longest of them would be what is left."""
    saved_ns, total_ns, num = 0, 0, 0
    for run in runs_between(seen.steps.pieces):
        mine = [piece.ns for piece in run if piece.kind != "other" and piece.ns > 0]
        if len(mine) > 1:
            saved_ns += sum(mine) - max(mine)
            total_ns += sum(mine)
            num += len(mine)
    if not num:
        return None
    return Finding(
        name="small-kernels",
        title="Many small operations that could be one",
        evidence=(
            f"{num} operators over elements stand in a row with others and take "
            f"{_share(total_ns, seen.wall_ns)} of the step; each reads and writes memory anew."
        ),
        prize=saved_ns / seen.wall_ns,
        levers=("engine=torch-compile", "engine=onnxruntime"),
        advice="Let a compiler make one kernel of each row of them.",
    )


def _dequantising(seen: Seen) -> Finding | None:
    pieces = [piece for piece in seen.steps.pieces if is_quantizing(piece.name)]
    total_ns = sum(piece.ns for piece in pieces)
    if not total_ns:
        return None
    names = ", ".join(dict.fromkeys(piece.name for piece in pieces[:50]))
    return Finding(
        name="dequantising",
        title="Numbers are turned into integers and back",
        evidence=(
            f"{len(pieces)} operators that only quantise or dequantise ({names[:80]}) take "
            f"{_share(total_ns, seen.wall_ns)} of the step."
        ),
        prize=total_ns / seen.wall_ns,
        levers=("quantization=int8-static", "precision=bf16"),
        advice=(
            "Use kernels that compute on the integers, quantise activations with fixed scales, or "
            "leave these layers as they were."
        ),
    )


def _unfused_attention(seen: Seen) -> Finding | None:
    between = written_out_attention(seen.steps.pieces)
    total_ns = sum(piece.ns for pieces in between for piece in pieces)
    if not total_ns:
        return None
    return Finding(
        name="unfused-attention",
        title="Attention is written out",
        evidence=(
            f"{len(between)} times a matrix of all pairs is written to memory between two "
            f"products, scaled and normalised: {_share(total_ns, seen.wall_ns)} of the step."
        ),
        prize=total_ns / seen.wall_ns,
        levers=("attention=flash", "engine=onnxruntime,fusion=transformer"),
        advice="Use an attention kernel, which keeps the matrix in its cache.",
    )


def _synchronising(seen: Seen) -> Finding | None:
    step = seen.device
    if step is None:
        return None
    return Finding(
        name="synchronising",
        title="The host waits for the device, and then the device for the host",
        evidence=(
            f"{_share(step.synchronising_ns, seen.wall_ns)} of the step the device is idle "
            "because the host was in a call that waits for it and could not launch ahead."
        ),
        prize=step.synchronising_ns / seen.wall_ns,
        levers=(),
        advice=(
            "Do not ask for values in mid-step: `.item()`, `.cpu()`, `print`, `nonzero` and "
            "conditions on tensors all wait."
        ),
    )


def _communication(seen: Seen) -> Finding | None:
    step = seen.device
    if step is None or not step.all_communication_ns:
        return None
    return Finding(
        name="communication",
        title="The device waits for other devices",
        evidence=(
            f"{_share(step.communication_ns, seen.wall_ns)} of the step only collectives run; "
            f"{_share(step.all_communication_ns, seen.wall_ns)} is communication in all, waiting "
            "for slower peers included."
        ),
        prize=step.communication_ns / seen.wall_ns,
        levers=(),
        advice="Overlap it with computation, send less, or find the slowest peer.",
    )


def _python(seen: Seen) -> Finding | None:
    host = seen.host
    if host is None or seen.device is not None:
        return None
    idle_ns = min(host.python_ns, seen.steps.idle_ns)
    if idle_ns < _SMALLEST_PYTHON * seen.wall_ns:
        return None
    return Finding(
        name="python",
        title="Time passes between operators",
        evidence=(
            f"{_share(idle_ns, seen.wall_ns)} of the step no operator runs: it is Python, and "
            "the profiler itself."
        ),
        prize=idle_ns / seen.wall_ns,
        levers=("engine=onnxruntime", "engine=torch-compile", "batch=32"),
        advice="Run the model as one graph, or give each call more to do.",
    )


def _kernels(seen: Seen) -> list[tuple[int, int]]:
    """The rows of the step's kernels, each with its time in nanoseconds."""
    trace, window = seen.trace, seen.window
    rows = trace.rows("kernel")
    rows = rows[(trace.end_ns[rows] > window.start_ns) & (trace.start_ns[rows] < window.end_ns)]
    return list(zip(rows.tolist(), trace.duration_ns[rows].tolist(), strict=True))


RULES: tuple[Callable[[Seen], Finding | None], ...] = (
    _one_call,
    _host_bound,
    _float32_products,
    _copies,
    _data_loading,
    _small_operations,
    _dequantising,
    _unfused_attention,
    _synchronising,
    _communication,
    _python,
)
