"""Each way to read a trace, in a process of its own: `python -m benchmarks.trace_readers WAY FILE`.

Prints one JSON line: CPU seconds of the work without imports, the process's peak memory, and what
was found, so that no way can win by reading less.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = dict[str, Any]


def workbench(path: Path) -> Callable[[], Found]:
    """Ours, without the cache."""
    from workbench.traces.opening import open_trace
    from workbench.traces.tables import kernel_rows
    from workbench.traces.trace import Trace

    def work() -> Found:
        trace = open_trace(path, cached=False)
        assert isinstance(trace, Trace)
        rows = kernel_rows(trace)
        return {
            "num_kernels": sum(row.num for row in rows),
            "total_ns": sum(row.total_ns for row in rows),
            "stored_bytes": trace.num_stored_bytes,
            "num_events": trace.reading.num_events,
        }

    return work


def reopened(path: Path) -> Callable[[], Found]:
    """Ours, from what an earlier opening kept."""
    # Imported when first needed, which is no part of the work here or of any other way.
    import pyarrow  # noqa: F401
    import xxhash  # noqa: F401

    from workbench.traces.opening import open_trace
    from workbench.traces.trace import Trace

    def work() -> Found:
        trace = open_trace(path)
        assert isinstance(trace, Trace)
        return {"num_events": trace.reading.num_events, "num_kernels": len(trace.device_rows)}

    return work


def tables(path: Path) -> Callable[[], Found]:
    """Every table of a trace that is open already."""
    from workbench.traces.opening import open_trace
    from workbench.traces.summary import summarise
    from workbench.traces.trace import Trace

    trace = open_trace(path)
    assert isinstance(trace, Trace)
    return lambda: {"num_kernels": sum(row.num for row in summarise(trace, "x").kernels)}


def loop(path: Path) -> Callable[[], Found]:
    """Python's own parser and a loop."""

    def work() -> Found:
        with path.open(encoding="utf-8") as stream:
            events = json.load(stream)["traceEvents"]
        sums: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "kernel":
                one = sums.setdefault(event["name"], [0, 0.0])
                one[0] += 1
                one[1] += event["dur"]
        return {
            "num_kernels": int(sum(one[0] for one in sums.values())),
            "total_ns": round(1000 * sum(one[1] for one in sums.values())),
        }

    return work


def hta(path: Path) -> Callable[[], Found]:
    """HolisticTraceAnalysis: load, and its breakdown of kernels."""
    from hta.trace_analysis import TraceAnalysis

    folder = Path(tempfile.mkdtemp(prefix="workbench-hta-"))
    (folder / path.name).symlink_to(path)

    def work() -> Found:
        analysis = TraceAnalysis(trace_files={0: str(folder / path.name)}, trace_dir=str(folder))
        _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1000)
        return {"total_ns": round(1000 * float(kernels["sum (us)"].sum()))}

    return work


def tensorboard(path: Path) -> Callable[[], Found]:
    """The parser of TensorBoard's plugin, with its table of kernels."""
    from torch_tb_profiler.profiler.data import RunProfileData

    def work() -> Found:
        data = RunProfileData.parse("worker", "1", str(path), tempfile.mkdtemp())
        data.process()
        kernels = data.kernel_stat
        return {
            "num_kernels": int(kernels["count"].sum()),
            "total_ns": round(1000 * float(kernels["sum"].sum())),
        }

    return work


WAYS = {
    "workbench": workbench,
    "reopened": reopened,
    "tables": tables,
    "loop": loop,
    "hta": hta,
    "tensorboard": tensorboard,
}


def main() -> int:
    """One way, one file."""
    way, path = sys.argv[1], Path(sys.argv[2])
    # What the libraries print belongs to nobody.
    out = os.dup(1)
    os.dup2(2, 1)
    work = WAYS[way](path)
    begun, wall = time.process_time(), time.perf_counter()
    found = work()
    cpu_s, wall_s = time.process_time() - begun, time.perf_counter() - wall
    # Linux counts kibibytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    line = json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "peak_bytes": peak, "found": found})
    os.write(out, line.encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
