"""How fast and how small traces are read, beside other tools; and what damage does.

Each way reads the same file in a process of its own, in turns; figures are CPU time and peak
memory. The others come with the extra `peers`, in an interpreter of their own if `--peers` names
one: their requirements need not fit ours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import made_trace
from benchmarks.claims import Claim, at_least, at_most
from benchmarks.command import ROOT, Benchmark, Figures, Options, run, say

MILLION, TEN_MILLION = 1_000_000, 10_000_000
NUM_FUZZED = 100_000
PEERS = {"hta": "HolisticTraceAnalysis", "tensorboard": "the TensorBoard plugin's parser"}
FASTER_THAN_PEERS, OF_PEERS_MEMORY = 15.0, 0.10
FASTER_THAN_LOOP = 3.0
MOST_PEAK_BYTES, MOST_STORED_BYTES = 0.9e9, 64.0
FASTER_AGAIN = 20.0
OF_LOAD = 1.0
# One way to read one file; the slowest takes some minutes.
LIMIT_S = 1200.0
# Of these, the median; the peers take minutes.
TURNS = {"workbench": 3, "loop": 3, "reopened": 5, "tables": 3, "hta": 1, "tensorboard": 1}


class Reading(msgspec.Struct, frozen=True, kw_only=True, tag="reading"):
    """One way, one file, one process. `cpu_s` is None where it failed, and `failure` says how."""

    way: str
    num_events: int
    cpu_s: float | None
    peak_bytes: int | None
    num_kernels: int | None = None
    total_ns: int | None = None
    stored_bytes: int | None = None
    failure: str = ""


class Fuzzed(msgspec.Struct, frozen=True, kw_only=True, tag="fuzzed"):
    """Damaged inputs, and how many ended in anything but a refusal or what can be recovered."""

    num: int
    num_bad: int
    longest_s: float
    memory_bytes: int


Sample = Reading | Fuzzed

NAMES = (
    *(f"times faster than {peer}, 1 million events" for peer in PEERS.values()),
    *(f"of the peak memory of {peer}" for peer in PEERS.values()),
    "times faster than json and a loop",
    "peak memory, 10 million events",
    "bytes stored an event, 10 million events",
    "times faster when opened again",
    "CPU time of every table, over the load's own",
    "kernels found, against json and a loop",
    "damaged inputs that ended badly",
)


def judge(samples: Sequence[Sample], quick: bool) -> list[Claim]:
    """All claims; a quick run reads a tenth of the events, and damages fewer inputs."""
    size = _size(quick)
    ours = _seconds(samples, "workbench", size)
    claims = []
    for way, peer in PEERS.items():
        ratio = _over(_seconds(samples, way, size), ours)
        name = f"times faster than {peer}, 1 million events"
        note = _failure(samples, way)
        claims.append(at_least(name, ratio, FASTER_THAN_PEERS, note=note))
        share = _over(_peak(samples, "workbench", size), _peak(samples, way, size))
        name = f"of the peak memory of {peer}"
        claims.append(at_most(name, share, OF_PEERS_MEMORY, note=note))
    again = _over(ours, _seconds(samples, "reopened", size))
    large = [s for s in samples if isinstance(s, Reading) and s.num_events > 2 * size]
    stored = next((s.stored_bytes / s.num_events for s in large if s.stored_bytes), None)
    peak = next((s.peak_bytes for s in large if s.peak_bytes), None)
    claims += [
        at_least(NAMES[4], _over(_seconds(samples, "loop", size), ours), FASTER_THAN_LOOP),
        at_most(NAMES[5], peak, MOST_PEAK_BYTES, unit="bytes"),
        at_most(NAMES[6], stored, MOST_STORED_BYTES, unit="bytes"),
        at_least(NAMES[7], again, FASTER_AGAIN),
        at_most(NAMES[8], _over(_seconds(samples, "tables", size), ours), OF_LOAD),
        at_least(NAMES[9], _kernels_found(samples, size), 1.0),
        _judge_fuzzed(samples, quick),
    ]
    return claims


def _judge_fuzzed(samples: Sequence[Sample], quick: bool) -> Claim:
    fuzzed = [s for s in samples if isinstance(s, Fuzzed)]
    num = sum(s.num for s in fuzzed)
    wanted = NUM_FUZZED // 100 if quick else NUM_FUZZED
    bad = sum(s.num_bad for s in fuzzed) if num >= wanted else None
    longest = max((s.longest_s for s in fuzzed), default=0.0)
    memory = max((s.memory_bytes for s in fuzzed), default=0)
    note = f"{num:,} inputs, the slowest in {longest:.2f} s, {memory / 1e6:.0f} MB more at the end"
    return at_most(NAMES[10], bad, 0, note=note)


def _size(quick: bool) -> int:
    return MILLION // 10 if quick else MILLION


def _of(samples: Sequence[Sample], way: str, size: int) -> list[Reading]:
    return [
        s
        for s in samples
        if isinstance(s, Reading) and s.way == way and size / 2 < s.num_events < 2 * size
    ]


def _seconds(samples: Sequence[Sample], way: str, size: int) -> float | None:
    found = [s.cpu_s for s in _of(samples, way, size)]
    known = [value for value in found if value is not None]
    return float(np.median(known)) if known and len(known) == len(found) else None


def _peak(samples: Sequence[Sample], way: str, size: int) -> float | None:
    known = [s.peak_bytes for s in _of(samples, way, size) if s.peak_bytes is not None]
    return float(np.median(known)) if known else None


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _failure(samples: Sequence[Sample], way: str) -> str:
    return next((s.failure for s in samples if isinstance(s, Reading) and s.way == way), "")


def _kernels_found(samples: Sequence[Sample], size: int) -> float | None:
    """1 where ours and the loop found the same kernels and times, to the microsecond."""
    ours, loop = _of(samples, "workbench", size), _of(samples, "loop", size)
    if not ours or not loop or ours[0].total_ns is None or loop[0].total_ns is None:
        return None
    is_same = ours[0].num_kernels == loop[0].num_kernels
    return float(is_same and abs(ours[0].total_ns - loop[0].total_ns) <= 1000)


def figures(samples: Sequence[Sample]) -> list[Figures]:
    """CPU seconds and peak memory of each way on each file."""
    rows = []
    readings = [s for s in samples if isinstance(s, Reading)]
    for num in sorted({s.num_events for s in readings}):
        for way in dict.fromkeys(s.way for s in readings if s.num_events == num):
            found = [s for s in readings if (s.way, s.num_events) == (way, num)]
            seconds = [s.cpu_s for s in found if s.cpu_s is not None]
            peaks = [s.peak_bytes for s in found if s.peak_bytes is not None]
            rows.append(
                (
                    f"{num:,}",
                    way,
                    f"{np.median(seconds):.3f}" if seconds else "–",
                    f"{np.median(peaks) / 1e6:.0f}" if peaks else "–",
                    str(len(found)),
                )
            )
    columns = ("events", "way", "CPU s", "peak MB", "times")
    return [Figures(title="Medians", columns=columns, rows=tuple(rows))]


def measure(options: Options) -> list[Sample]:
    """Write the traces, read each in turns, then damage small ones."""
    samples: list[Sample] = []
    peers = options.extra.peers or sys.executable
    size = _size(options.quick)
    with tempfile.TemporaryDirectory(prefix="workbench-traces-") as name:
        folder = Path(name)
        path = folder / "worker.1.pt.trace.json"
        say(f"writing a trace of {size:,} events")
        num = made_trace.write(path, size)
        # An opening that keeps the trace, so that the next finds it.
        _read("reopened", path, num, sys.executable, folder)
        for turn in range(max(TURNS.values())):
            for way, turns in TURNS.items():
                if turn < turns:
                    python = peers if way in PEERS else sys.executable
                    samples.append(_read(way, path, num, python, folder))
        path.unlink()
        large = TEN_MILLION // 10 if options.quick else TEN_MILLION
        say(f"writing a trace of {large:,} events")
        num = made_trace.write(path, large)
        samples.append(_read("workbench", path, num, sys.executable, folder))
        path.unlink()
        num_fuzzed = NUM_FUZZED // 100 if options.quick else NUM_FUZZED
        say(f"damaging {num_fuzzed:,} inputs")
        samples.append(fuzz(num_fuzzed, folder))
    return samples


def _read(way: str, path: Path, num: int, python: str, kept: Path) -> Reading:
    say(f"reading {num:,} events: {way}")
    try:
        done = subprocess.run(
            [python, "-m", "benchmarks.trace_readers", way, str(path)],
            cwd=ROOT,
            env={**os.environ, "WORKBENCH_TRACE_CACHE": str(kept / "kept")},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        failure = f"not done after {LIMIT_S:.0f} s"
        return Reading(way=way, num_events=num, cpu_s=None, peak_bytes=None, failure=failure)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Reading(way=way, num_events=num, cpu_s=None, peak_bytes=None, failure=lines[-1])
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found = said["found"]
    return Reading(
        way=way,
        num_events=num,
        cpu_s=said["cpu_s"],
        peak_bytes=said["peak_bytes"],
        num_kernels=found.get("num_kernels"),
        total_ns=found.get("total_ns"),
        stored_bytes=found.get("stored_bytes"),
    )


def fuzz(num: int, folder: Path) -> Fuzzed:
    """Damage traces, and compare what is read with what the tests' oracle can recover."""
    import time

    import psutil

    from tests.traces.fuzzing import contents, ends_well, excerpt, mutated

    whole = contents()
    path = folder / "damaged.json"
    before = psutil.Process().memory_info().rss
    num_bad, longest_s = 0, 0.0
    for seed in range(num):
        rng = random.Random(seed)
        content = mutated(excerpt(rng.choice(whole), rng, 25), rng)
        begun = time.perf_counter()
        fault = ends_well(content, path)
        longest_s = max(longest_s, time.perf_counter() - begun)
        if fault is not None:
            num_bad += 1
            say(f"input {seed}: {fault}")
        if seed % 10_000 == 9_999:
            say(f"{seed + 1:,} inputs, {num_bad} ended badly")
    memory = psutil.Process().memory_info().rss - before
    return Fuzzed(num=num, num_bad=num_bad, longest_s=longest_s, memory_bytes=memory)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peers", metavar="PYTHON", help="the interpreter that has the other tools (this one)"
    )


BENCHMARK: Benchmark[Sample] = Benchmark(
    name="traces",
    about="how fast and how small traces are read, beside other tools; what damage does",
    claims=NAMES,
    sample_type=Sample,
    measure=measure,
    judge=judge,
    figures=figures,
    add_arguments=_add_arguments,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
