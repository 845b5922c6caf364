"""One rule for each cause of lost time: a function from what is seen of a step to a finding.

A rule that sees nothing of its cause returns None; how small a prize is worth a word is not its
matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from workbench.core.units import format_bytes, format_seconds
from workbench.traces.alignment import runs_between, written_out_attention
from workbench.traces.intervals import clipped, covered
from workbench.traces.kernels import kernel_class
from workbench.traces.operations import is_quantizing
from workbench.traces.pieces import Piece
from workbench.traces.seen import Seen
from workbench.traces.steps import waits_for_host
from workbench.traces.trace import ABSENT

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


def _recording(seen: Seen) -> str:
    """What recording added, where that is known; it is taken off."""
    if not seen.recording_ns:
        return ""
    return f" The {_time(seen.recording_ns)} that recording adds to a step are taken off."


def _held_up_ns(seen: Seen) -> int:
    """How long the device waited while one call of the host took its time."""
    if seen.device is None or seen.slowest is None:
        return 0
    row = seen.slowest[0]
    start = int(seen.trace.start_ns[row])
    end = start + int(seen.trace.duration_ns[row])
    window = seen.window
    waits = waits_for_host(seen.trace, seen.device.device, window.start_ns, window.end_ns)
    return covered(*clipped(*waits, start, end))


def _one_call(seen: Seen) -> Finding | None:
    """A single call of the host that takes much of the step: a set-up that was profiled too."""
    held_up_ns = _held_up_ns(seen)
    if seen.slowest is None or not held_up_ns:
        return None
    row, ns = seen.slowest
    name = seen.trace.names[seen.trace.name[row]]
    return Finding(
        name="one-call",
        title="A single call of the host holds everything up",
        evidence=(
            f"{name} takes {_time(ns)}, {_share(ns, seen.wall_ns)} of the step, and the device "
            f"waits for {_time(held_up_ns)} of it."
        ),
        prize=held_up_ns / seen.wall_ns,
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
    _, prize = seen.unrecorded(max(step.host_bound_ns - _held_up_ns(seen), 0))
    each = f"{_time(step.compute_ns / step.num_kernels)} each"
    evidence = (
        f"The device is idle {prize:.0%} of the step because nothing had been launched: "
        f"{step.num_kernels} kernels of {each}"
    )
    if host is not None:
        evidence += f"; the host spends {_time(host.operators_ns)} in operators and launches"
        evidence += f" and {_time(host.python_ns)} in Python between them"
    return Finding(
        name="host-bound",
        title="The host launches more slowly than the device computes",
        evidence=evidence + "." + _recording(seen),
        prize=prize,
        levers=("fusion=cuda-graphs", "engine=torch-compile,fusion=reduce-overhead", "batch=32"),
        advice="Record the launches once and replay them, or give each launch more to do.",
    )


def _is_float32_product(name: str, capability: tuple[int, int] | None) -> bool:
    """Whether a kernel multiplies in float32 on ordinary cores of a device that has others."""
    return (
        kernel_class(name) in ("matmul", "convolution")
        and bool(_FLOAT32.search(name))
        and not _ON_TENSOR_CORES.search(name)
        # Where nothing says that the device has such cores, the kernel's own name may.
        and (capability is not None or bool(_AMPERE_OR_LATER.match(name)))
    )


def _float32_products(seen: Seen) -> Finding | None:
    trace = seen.trace
    capability = seen.capability
    if capability is not None and capability < _TAKES_FP16:
        return None
    is_slow = [_is_float32_product(name, capability) for name in trace.names]
    chosen = np.array(is_slow, dtype=np.bool_)[trace.name[seen.rows]]
    chosen &= np.isin(seen.rows, trace.rows("kernel"))
    if not chosen.any():
        return None
    total_ns = covered(seen.starts[chosen], seen.ends[chosen])
    lengths = np.where(chosen, seen.ends - seen.starts, 0)
    longest = trace.names[trace.name[seen.rows[int(lengths.argmax())]]]
    takes_tf32 = capability is None or capability >= _TAKES_TF32
    return Finding(
        name="float32-products",
        title="Products in float32 do not use the tensor cores",
        evidence=(
            f"{int(chosen.sum())} kernels, {_share(total_ns, seen.wall_ns)} of the step, multiply "
            f"in float32 on ordinary cores, such as {longest[:80]}."
        ),
        prize=total_ns * _TF32_SAVES / seen.wall_ns,
        levers=("precision=tf32", "precision=bf16") if takes_tf32 else ("precision=fp16-autocast",),
        advice="Let them run on the tensor cores, and compare the answers.",
    )


def _copies(seen: Seen) -> Finding | None:
    trace = seen.trace
    with_host = np.array([bool(_WITH_HOST.search(name)) for name in trace.names], dtype=np.bool_)
    copies = np.isin(seen.rows, trace.rows("memcpy")) & with_host[trace.name[seen.rows]]
    if not copies.any():
        return None
    rest = ~copies
    exposed_ns = covered(seen.starts, seen.ends) - covered(seen.starts[rest], seen.ends[rest])
    num_bytes = trace.num_bytes.of(seen.rows[copies])
    moved = int(num_bytes[num_bytes != ABSENT].sum())
    names = {trace.names[name] for name in trace.name[seen.rows[copies]]}
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
    if seen.steps is None:
        return None
    saved_ns, total_ns, num = 0, 0, 0
    copies = set(seen.trace.rows("memcpy", "memset").tolist())
    for run in runs_between(seen.steps.pieces):
        for can_be_one, pieces in groupby(run, lambda piece: _is_over_elements(piece, copies)):
            mine = [piece.ns for piece in pieces if piece.ns > 0]
            if can_be_one and len(mine) > 1:
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


def _is_over_elements(piece: Piece, copies: set[int]) -> bool:
    """Whether a compiler can make one kernel of this and its like beside it."""
    if piece.row in copies:
        return False
    return piece.kind in ("elementwise", "normalisation") or "softmax" in piece.name.lower()


def _dequantising(seen: Seen) -> Finding | None:
    steps = () if seen.steps is None else seen.steps.pieces
    pieces = [piece for piece in steps if is_quantizing(piece.name)]
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
    between = [] if seen.steps is None else written_out_attention(seen.steps.pieces)
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
    if host is None or seen.device is not None or seen.steps is None:
        return None
    idle_ns, prize = seen.unrecorded(min(host.python_ns, seen.steps.idle_ns))
    if prize < _SMALLEST_PYTHON:
        return None
    known = "" if seen.recording_ns else ", and the profiler itself"
    return Finding(
        name="python",
        title="Time passes between operators",
        evidence=(
            f"{_time(idle_ns)} of a step no operator runs: it is Python{known}." + _recording(seen)
        ),
        prize=prize,
        levers=("engine=onnxruntime", "engine=torch-compile", "batch=32"),
        advice="Run the model as one graph, or give each call more to do.",
    )


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
