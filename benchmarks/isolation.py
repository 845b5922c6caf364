"""Whether a variant that ran tenth is the variant that ran first, and what is left of all.

One variant is run first and tenth, with eight others between: other engines, precisions, layouts
and batch sizes. Then the scheduler is ended: of every process that was ever seen below it none
may live, the device's lock must be free, no file of shared memory and no temporary file may be
there that was not there before, and the machine's memory must be back.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

import workbench as wb
from benchmarks.claims import Claim, at_least, at_most, not_held
from benchmarks.command import Benchmark, Figures, Options, run
from benchmarks.studies import BRIEFLY, shut_down, study_of
from workbench.core.recipe import Recipe
from workbench.run.client import Client
from workbench.run.hub import runtime_folder
from workbench.run.lock import DeviceLock

MODEL, MODEL_QUICK = "digits-cnn-wide", "digits-cnn"
SAME = Recipe(engine="torch", threads=1)
OTHERS = (
    Recipe(engine="onnxruntime"),
    Recipe(engine="torch", layout="channels-last"),
    Recipe(engine="onnxruntime", quantization="int8-dynamic"),
    Recipe(engine="torch", batch=32),
    Recipe(engine="onnxruntime", batch=32),
    Recipe(engine="torch", precision="bf16"),
    Recipe(engine="onnxruntime", threads=1),
    Recipe(engine="torch", threads=2),
)
MEMORY_BOUND = 0.05
# What the kernel counts is not exact; a single worker with torch holds more than this.
FREED_BOUND_BYTES = 100e6
_BUDGET_S, _OTHERS_BUDGET_S = 30.0, 4.0
_SAMPLE_PERIOD_S = 0.1
_GIVEN_BACK_WITHIN_S = 20.0
# Names that the workbench, Python's tempfile, torch and multiprocessing give.
_OURS = ("accel-workbench", "workbench", "tmp", "torch", "pymp-")


class Ran(msgspec.Struct, frozen=True, kw_only=True, tag="ran"):
    """One row: its place in the order, from 1, and what it took. Bytes."""

    place: int
    recipe: str
    state: str
    peak_bytes: int | None
    start_bytes: int | None
    call_s: float | None
    failure: str = ""


class FirstAndTenth(msgspec.Struct, frozen=True, kw_only=True, tag="first-and-tenth"):
    """The tenth row against the first, as a verdict of the workbench."""

    verdict: str | None
    ratio: float | None
    low: float | None
    high: float | None


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left"):
    """What was there after the scheduler had ended.

    `num_seen` processes were seen below it, `alive` names those that still live; `files` are
    in shared memory or the folder for temporary files and were not before; bytes are the
    machine's memory that is free or held by processes that are not the study's.
    """

    num_seen: int
    alive: tuple[str, ...]
    files: tuple[str, ...]
    lock_free: bool
    free_before_bytes: int
    free_after_bytes: int


Sample = Ran | FirstAndTenth | Left

PEAK = "peak memory of the tenth row against the first"
TIME = "first and tenth differ in time"
PROCESSES = "processes left running"
FILES = "files left in shared memory and temporary folders"
LOCK = "device locks left held"
MEMORY = "memory not given back"
RAN = "rows of ten that ran"
NAMES = (RAN, PEAK, TIME, PROCESSES, FILES, LOCK, MEMORY)


def judge(samples: Sequence[Sample], _quick: bool) -> list[Claim]:
    """Every claim; nothing is judged of a run that did not reach its tenth row."""
    rows = {s.place: s for s in samples if isinstance(s, Ran)}
    first, tenth = rows.get(1), rows.get(max(rows, default=0))
    if first is None or tenth is None or tenth.place != len(OTHERS) + 2:
        return []
    left = next((s for s in samples if isinstance(s, Left)), None)
    compared = next((s for s in samples if isinstance(s, FirstAndTenth)), None)
    ran = [row for row in rows.values() if row.state in ("done", "stopped-early")]
    lost = [f"#{row.place} {row.failure or row.state}" for row in rows.values() if row not in ran]
    return [
        at_least(RAN, float(len(ran)), len(OTHERS) + 2, note="; ".join(lost)),
        _judge_peak(first, tenth),
        *([_judge_time(compared)] if compared is not None else []),
        *(_judge_left(left) if left is not None else ()),
    ]


def _judge_peak(first: Ran, tenth: Ran) -> Claim:
    value = None
    note = "; ".join(f"#{row.place}: {row.failure}" for row in (first, tenth) if row.failure)
    if first.peak_bytes and tenth.peak_bytes:
        value = 100 * abs(tenth.peak_bytes / first.peak_bytes - 1)
        note = f"{first.peak_bytes / 1e6:.1f} MB and {tenth.peak_bytes / 1e6:.1f} MB"
    return at_most(PEAK, value, 100 * MEMORY_BOUND, unit="%", note=note)


def _judge_time(compared: FirstAndTenth) -> Claim:
    differs = {"same": 0.0, "undecided": 0.0, "faster": 1.0, "slower": 1.0}
    value = differs.get(compared.verdict or "")
    note = ""
    if compared.ratio is not None and compared.low is not None and compared.high is not None:
        note = f"{compared.verdict}: {compared.ratio:.3f} ({compared.low:.3f}–{compared.high:.3f})"
    claim = at_most(TIME, value, 0.0, note=note)
    return claim if note else not_held(claim, "no ratio with its interval")


def _judge_left(left: Left) -> list[Claim]:
    missing = left.free_before_bytes - left.free_after_bytes
    claims = [
        at_most(
            PROCESSES,
            float(len(left.alive)),
            0.0,
            note=", ".join(left.alive) or f"of {left.num_seen} that were seen",
        ),
        at_most(FILES, float(len(left.files)), 0.0, note=", ".join(left.files)),
        at_most(LOCK, 0.0 if left.lock_free else 1.0, 0.0),
        at_most(
            MEMORY,
            missing / 1e6,
            FREED_BOUND_BYTES / 1e6,
            unit="MB",
            note=f"{left.free_before_bytes / 1e6:.0f} MB before, "
            f"{left.free_after_bytes / 1e6:.0f} MB after, free or others'",
        ),
    ]
    if left.num_seen == 0:
        # A watch that saw nothing proves nothing.
        claims[0] = not_held(claims[0], "no process was ever seen")
    return claims


def figures(samples: Sequence[Sample]) -> list[Figures]:
    """The rows in the order they ran."""
    return [
        Figures(
            title="Rows in the order they ran",
            columns=("place", "recipe", "state", "peak, MB", "start, MB", "call, ms"),
            rows=tuple(
                (
                    str(row.place),
                    row.recipe,
                    row.failure or row.state,
                    _scaled(row.peak_bytes, 1e-6),
                    _scaled(row.start_bytes, 1e-6),
                    _scaled(row.call_s, 1e3),
                )
                for row in samples
                if isinstance(row, Ran)
            ),
        )
    ]


def _scaled(value: float | None, factor: float) -> str:
    return "–" if value is None else f"{value * factor:.2f}"


def measure(options: Options) -> list[Sample]:
    """Run the ten rows one after another, end the scheduler and look around."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-isolation-") as name:
        folder = Path(name) / "study"
        model = wb.load(f"sample:{MODEL_QUICK if options.quick else MODEL}")
        # What a first study fills for good, the kernel's caches of names and pages, is no leak.
        with study_of(model, Path(name) / "first") as study:
            study.run(progress=False, **BRIEFLY)
        before = _free_bytes()
        files_before = _files()
        with study_of(model, folder) as study, _watched(folder) as watch:
            numbers = []
            for place, recipe in enumerate((SAME, *OTHERS, SAME), start=1):
                budget_s = _BUDGET_S if recipe == SAME else _OTHERS_BUDGET_S
                numbers.append(study.run(recipe, budget_s=budget_s, progress=False)[-1])
                samples.append(_ran(study, place, numbers[-1]))
            samples.append(_compared(study, numbers[0], numbers[-1]))
            shut_down(folder)
        lock = DeviceLock("cpu")
        is_free = lock.try_acquire()
        lock.release()
        samples.append(
            Left(
                num_seen=len(watch.seen),
                alive=tuple(watch.alive()),
                files=tuple(sorted(_files() - files_before)),
                lock_free=is_free,
                free_before_bytes=before,
                free_after_bytes=_free_again(watch, before),
            )
        )
    return samples


def _ran(study: wb.Study, place: int, number: int) -> Ran:
    row = study.compare().row(number)
    memory = row.variant.memory
    failure = row.variant.failure
    return Ran(
        place=place,
        recipe=row.variant.recipe.spec,
        state=row.variant.state,
        peak_bytes=None if memory is None else memory.host_peak_bytes,
        start_bytes=None if memory is None else memory.host_start_bytes,
        call_s=None if row.call is None else row.call.median_s.value,
        failure="" if failure is None else failure.message,
    )


def _compared(study: wb.Study, first: int, tenth: int) -> FirstAndTenth:
    decision = study.compare(baseline=first).row(tenth).decision
    if decision is None:
        return FirstAndTenth(verdict=None, ratio=None, low=None, high=None)
    return FirstAndTenth(
        verdict=None if decision.provisional else decision.verdict,
        ratio=decision.ratio,
        low=decision.low,
        high=decision.high,
    )


@dataclass(kw_only=True)
class Watch:
    """Every process that was seen below a study's scheduler, and the scheduler."""

    folder: Path
    seen: dict[tuple[int, float], psutil.Process] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        """Take in what runs now."""
        with contextlib.suppress(wb.errors.RunError, psutil.Error, OSError):
            scheduler = psutil.Process(Client.connect(self.folder, start=False).status().pid)
            while not self.ended.wait(_SAMPLE_PERIOD_S):
                for process in (scheduler, *scheduler.children(recursive=True)):
                    self.seen[process.pid, process.create_time()] = process

    def alive(self) -> list[str]:
        """Those that still run, by their pid and command. A zombie is nobody's any more."""
        found = []
        for process in self.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
        return found


@contextlib.contextmanager
def _watched(folder: Path) -> Iterator[Watch]:
    watch = Watch(folder=folder)

    def keep_looking() -> None:
        # The scheduler is not there yet, or has just ended.
        while not watch.ended.wait(_SAMPLE_PERIOD_S):
            watch.look()

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()


def _free_bytes(ours: Watch | None = None) -> int:
    """Free memory, with what processes that are not `ours` hold for themselves added.

    So it stays the same when others come and go. Median of a few readings.
    """
    own = set(ours.seen) if ours is not None else set()
    readings = []
    for _ in range(5):
        total = psutil.virtual_memory().available
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (process.pid, process.create_time()) not in own:
                    total += _anonymous_bytes(process)
        readings.append(total)
        time.sleep(0.1)
    return int(statistics.median(readings))


def _free_again(ours: Watch, before: int) -> int:
    """Free memory once the kernel has taken back what ended, which may take it some seconds."""
    until_s = time.monotonic() + _GIVEN_BACK_WITHIN_S
    most = _free_bytes(ours)
    while most < before and time.monotonic() < until_s:
        most = max(most, _free_bytes(ours))
    return most


def _anonymous_bytes(process: psutil.Process) -> int:
    """A process's share of memory that no file backs: what is back when it ends.

    Pages of files count as free already, whoever has mapped them. Where the kernel does not
    tell (Linux does since 5.9), the memory that is the process's alone.
    """
    rollup = Path(f"/proc/{process.pid}/smaps_rollup")
    if rollup.exists():
        for line in rollup.read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return int(process.memory_full_info().uss)


def _files() -> set[str]:
    """This user's files in shared memory, and temporary ones that a study may have made."""
    found = set()
    for folder, prefixes in ((Path("/dev/shm"), ("",)), (Path(tempfile.gettempdir()), _OURS)):
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    if path.name.startswith(prefixes) and path.lstat().st_uid == os.getuid():
                        found.add(str(path))
    # The sockets' folder stays on purpose; what lies in it should not.
    for path in runtime_folder().iterdir():
        found.add(str(path))
    return found


BENCHMARK: Benchmark[Sample] = Benchmark(
    name="isolation",
    about="the same variant first and tenth, and what is left of all",
    claims=NAMES,
    sample_type=Sample,
    measure=measure,
    judge=judge,
    figures=figures,
)


if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
