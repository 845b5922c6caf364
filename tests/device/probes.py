"""What has to run in a process of its own: `python -m tests.device.probes NAME < JSON`.

Each function takes the arguments by name and returns JSON, which is the last line printed.
Torch is imported inside, so that the choice of probe costs nothing.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def two_inputs(*, folder: str, rows: str, batch: int, **_: Any) -> dict[str, Any]:
    """Two calls on different inputs in a row, both answers held: neither may change the other.

    A graph's outputs lie where its next replay writes, unless they are cloned; and its inputs
    are read from where they lay when it was recorded, unless they are copied there. Answers
    the largest difference, over the largest value, between what the calls gave when held and
    when each was fetched at once; and between the two inputs' answers, which must differ.
    """
    pipeline = open_pipeline(folder)
    inputs = read_rows(rows)
    first = {name: array[:batch] for name, array in inputs.items()}
    second = {name: array[batch : 2 * batch] for name, array in inputs.items()}
    placed_first, placed_second = pipeline.place(first), pipeline.place(second)
    for _again in range(4):
        pipeline.call(placed_first)
    # By themselves: each fetched before the next call.
    alone = [pipeline.fetch(pipeline.call(placed)) for placed in (placed_first, placed_second)]
    held_first, held_second = pipeline.call(placed_first), pipeline.call(placed_second)
    held = [pipeline.fetch(held_first), pipeline.fetch(held_second)]
    return {
        "held_error": max(difference(a, b) for a, b in zip(alone, held, strict=True)),
        "inputs_differ_by": difference(alone[0], alone[1]),
    }


def difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference of two answers over the first's largest value."""
    worst = 0.0
    for name, wanted in first.items():
        if wanted is None:
            continue
        a, b = np.asarray(wanted, dtype="float64"), np.asarray(second[name], dtype="float64")
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-12)))
    return worst


def matmul(*, device: str, quick: bool, **_: Any) -> dict[str, Any]:
    """One fp16 matmul of 8192³, timed as rounds are: seconds a call, and of launching alone."""
    import torch

    from workbench.engines.torch_run import make_synchronize
    from workbench.measure.rounds import run_round, warm_up

    size = 256 if quick else 8192
    dtype = torch.float32 if device == "cpu" else torch.float16
    generator = torch.Generator().manual_seed(0)
    factors = [
        torch.randn(size, size, generator=generator).to(device=device, dtype=dtype)
        for _factor in range(2)
    ]
    timed = Timed(lambda _placed: factors[0] @ factors[1], make_synchronize(device), device)
    warm_up(timed, [None], max_s=2.0)
    num_calls = 3 if quick else 20
    done = run_round(timed, [None], num_calls=num_calls, items_per_call=1)
    timed.synchronize()
    start_s = time.perf_counter()
    timed.call(None)
    launch_s = time.perf_counter() - start_s
    timed.synchronize()
    return {
        "size": size,
        "flops": 2 * size**3,
        "wall_s": done.wall_s / num_calls,
        "event_s": None if done.event_s is None else done.event_s / num_calls,
        "launch_s": launch_s,
    }


class Timed:
    """A function as a pipeline that is only timed, with events where the device has them."""

    def __init__(
        self, call: Callable[[Any], Any], synchronize: Callable[[], None], device: str
    ) -> None:
        self.call = call
        self.synchronize = synchronize
        self.place: Callable[[Any], Any] = lambda inputs: inputs
        self.fetch: Callable[[Any], dict[str, Any]] = lambda _raw: {}
        self.record_event: Callable[[], Any] | None = None
        self.elapsed_s: Callable[[Any, Any], float] | None = None
        if device != "cpu":
            from workbench.engines.torch_run import make_events

            self.record_event, self.elapsed_s = make_events(device)


def memory_kinds(*, device: str, **_: Any) -> dict[str, Any]:
    """Allocate 1 GB, free it, allocate 100 MB: what the pipeline's figures say then. P34.

    `device_used_bytes` is the difference from before, as the driver sees the whole card.
    """
    import torch

    from workbench.devices.live import gpu_counters
    from workbench.engines.torch_run import make_memory
    from workbench.measure.memory import MemoryMeter

    before = gpu_counters(device).memory_used_bytes if device != "cpu" else None
    meter = MemoryMeter()
    meter.start()
    memory = make_memory(device=device)
    large = torch.ones(250_000_000, dtype=torch.float32, device=device)
    del large
    small = torch.ones(25_000_000, dtype=torch.float32, device=device)
    if device != "cpu":
        torch.cuda.synchronize(device)
    after = gpu_counters(device).memory_used_bytes if device != "cpu" else None

    class Reads:
        def __init__(self) -> None:
            self.memory = memory

    reading = meter.read(Reads())
    meter.stop()
    figures = memory()
    return {
        "kept_bytes": small.numel() * small.element_size(),
        "allocated_bytes": figures.get("allocator_bytes"),
        "allocator_peak_bytes": reading.allocator_peak_bytes,
        "allocator_reserved_bytes": reading.allocator_reserved_bytes,
        "device_used_bytes": None if before is None or after is None else after - before,
        "host_peak_bytes": reading.host_peak_bytes,
    }


def profile(
    *, device: str, folder: str, rows: str, batch: int, trace: str, num_calls: int, **_: Any
) -> dict[str, Any]:
    """Some warm calls under torch.profiler; the trace goes to `trace`, a .json.gz.

    Answers numbers of events, the share of the calls' time in which a kernel ran, and what
    profiling costs: the calls' time with it over that without.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    pipeline = open_pipeline(folder)
    placed = pipeline.place({n: a[:batch] for n, a in read_rows(rows).items()})

    def seconds() -> float:
        pipeline.synchronize()
        start_s = time.perf_counter()
        for _call in range(num_calls):
            pipeline.call(placed)
        pipeline.synchronize()
        return time.perf_counter() - start_s

    for _warm in range(4):
        pipeline.call(placed)
    plain_s = min(seconds() for _round in range(3))
    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with profiling(activities=activities, record_shapes=True) as profiler:
        profiled_s = seconds()
    profiler.export_chrome_trace(trace)
    events = profiler.events()
    # A span of the host is drawn over the kernels that it launched: it is none itself.
    on_device = [
        e
        for e in events
        if "CUDA" in str(e.device_type) and not getattr(e, "is_user_annotation", False)
    ]
    kernels = [e for e in on_device if not e.name.startswith(("Memcpy", "Memset"))]
    busy_us = sum(e.time_range.elapsed_us() for e in on_device)
    return {
        "num_events": len(events),
        "num_kernels_a_call": len(kernels) / num_calls,
        "num_copies_a_call": (len(on_device) - len(kernels)) / num_calls,
        "num_graph_launches": sum("GraphLaunch" in e.name for e in events),
        "kernel_share": busy_us * 1e-6 / profiled_s if device != "cpu" else None,
        "call_s": plain_s / num_calls,
        "slowdown": profiled_s / plain_s,
        "trace_bytes": Path(trace).stat().st_size,
    }


def hold(*, device: str, num_bytes: int, **_: Any) -> dict[str, Any]:
    """Take memory of the device, say so, and stay until killed."""
    import torch

    held = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    if device != "cpu":
        torch.cuda.synchronize(device)
    print(json.dumps({"pid": os.getpid(), "held_bytes": held.numel() * 4}), flush=True)
    while True:
        time.sleep(60)


def flags(**_: Any) -> dict[str, Any]:
    """torch's own defaults of fp32 arithmetic, by leaf, as the pipeline reads them."""
    from workbench.engines.torch_evidence import torch_flags

    return dict(torch_flags("cuda:0"))


def open_pipeline(folder: str) -> Any:
    """The pipeline of an artifact, as its worker opens it."""
    from workbench.run.worker import import_pipeline

    return import_pipeline(Path(folder) / "pipeline.py").load(folder)


def read_rows(path: str) -> dict[str, Any]:
    """The rows that the section wrote."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (two_inputs, matmul, memory_kinds, profile, hold, flags)
}


def main() -> None:
    """Run the probe that is named, on the arguments that come in."""
    answer = PROBES[sys.argv[1]](**json.loads(sys.stdin.read()))
    gc.collect()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
