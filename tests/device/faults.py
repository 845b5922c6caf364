"""C: profiles, two answers held at once, three kinds of memory, a matmul's time, and what is
left of a worker that ran out of memory or was killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.device.levers import short, unavailable
from tests.device.peaks import peak_flops
from tests.device.stand import (
    ROOT,
    Server,
    Stand,
    Subject,
    build,
    cnn,
    encoder,
    in_threads,
    probe,
)
from tests.device.suite import Notebook, Section
from workbench.core.errors import RunError
from workbench.core.failure import Failure
from workbench.core.recipe import Recipe
from workbench.devices.live import gpu_counters
from workbench.run import protocol

# What a driver keeps for itself may move by a page table or two.
BACK_WITHIN_BYTES = 64 << 20
BACK_LIMIT_S = 10.0
NUM_PROFILED = 5
HELD_BYTES = 4 << 30
HELD_BYTES_CPU = 200 << 20

GRAPHS = (
    Recipe(engine="torch", fusion="cuda-graphs"),
    Recipe(engine="torch-compile", fusion="reduce-overhead"),
)
PROFILED = {
    "eager": Recipe(engine="torch"),
    "graph": Recipe(engine="torch", fusion="cuda-graphs"),
    "compiled": Recipe(engine="torch-compile"),
}

# A pipeline that takes what there is, and then as much again.
_GREEDY = """
import torch

HELD = []


class Pipeline:
    preprocess = postprocess = None
    record_event = elapsed_s = None

    def place(self, inputs):
        return inputs

    def call(self, placed):
        while True:
            HELD.append(torch.ones({num_bytes} // 4, dtype=torch.float32, device={device!r}))

    def fetch(self, raw):
        return {{}}

    def synchronize(self):
        pass

    def inspect(self, placed):
        return {{}}

    def memory(self):
        return {{}}


def build(source_dir, out_dir):
    pass


def load(out_dir):
    return Pipeline()
"""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A model and its artifacts, by recipe: a folder each, or why there is none."""

    subject: Subject
    batch: int
    built: dict[Recipe, Path | Failure | str]

    def folder(self, recipe: Recipe) -> Path | str:
        """Where a recipe's artifact is, or a sentence that says why there is none."""
        found = self.built[recipe]
        return found.message if isinstance(found, Failure) else found


def run(stand: Stand, notebook: Notebook) -> None:
    """Each part that fails leaves a line, and the others go on."""
    parts: tuple[Callable[[Stand, Notebook, Ground], None], ...] = (
        matmul,
        memory_kinds,
        out_of_memory,
        kill,
        stop,
        held_answers,
        profiles,
    )
    ground = prepare(stand)
    for part in parts:
        name = part.__name__.replace("_", " ")
        if stand.left_s < 5:
            notebook.check(f"{name}: in time", None, "not reached")
            continue
        try:
            part(stand, notebook, ground)
        except (RunError, RuntimeError) as error:
            notebook.check(f"{name}: it ran", False, f"{type(error).__name__}: {error}"[-400:])


def prepare(stand: Stand) -> Ground:
    """Everything that is served below, built side by side."""
    subject = encoder(stand) if stand.quick else cnn(stand)
    batch = 2 if stand.quick else 8
    recipes = dict.fromkeys((*PROFILED.values(), *GRAPHS))
    reasons = {recipe: unavailable(stand, subject, recipe) for recipe in recipes}
    jobs = [(subject, recipe) for recipe, reason in reasons.items() if reason is None]
    sized = [(subject, recipe.replace(batch=batch)) for _, recipe in jobs]
    done = build(stand, sized, limit_s=max(30.0, stand.left_s / 2))
    built: dict[Recipe, Path | Failure | str] = {r: why for r, why in reasons.items() if why}
    for _, recipe in jobs:
        built[recipe] = done[recipe.replace(batch=batch)]
    return Ground(subject=subject, batch=batch, built=built)


def used_bytes(stand: Stand) -> int | None:
    """Memory in use: of the whole card, or of this process and its children on a CPU."""
    if stand.on_gpu:
        return gpu_counters(stand.device.id).memory_used_bytes
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def matmul(stand: Stand, notebook: Notebook, _: Ground) -> None:
    """P23: a matmul of 8192³ takes at least what its arithmetic takes at the card's peak."""
    found = probe(stand, "matmul", limit_s=60)
    peak = peak_flops(stand.device) if stand.on_gpu else None
    shortest_s = None if peak is None else found["flops"] / peak
    for clock in ("wall_s", "event_s", "launch_s"):
        seconds = found[clock]
        notebook.row(
            what=f"matmul of {found['size']}³, {clock.removesuffix('_s')}",
            ms=None if seconds is None else seconds * 1e3,
            tflops=None if seconds is None else found["flops"] / seconds * 1e-12,
            at_least_ms=None if shortest_s is None else shortest_s * 1e3,
        )
    for clock in ("wall_s", "event_s"):
        seconds = found[clock]
        name = f"P23: no faster than the arithmetic, by {clock.removesuffix('_s')}"
        if seconds is None or shortest_s is None:
            notebook.check(name, None, "no such clock, or a card whose peak is not listed")
            continue
        detail = f"{seconds * 1e3:.3f} ms, {shortest_s * 1e3:.3f} ms at the card's peak"
        notebook.check(name, seconds >= shortest_s, detail)


def memory_kinds(stand: Stand, notebook: Notebook, _: Ground) -> None:
    """P34: 1 GB freed, 100 MB kept: three figures, none of which is another."""
    found = probe(stand, "memory_kinds", limit_s=60)
    for name in (
        "allocated_bytes",
        "allocator_peak_bytes",
        "allocator_reserved_bytes",
        "device_used_bytes",
        "host_peak_bytes",
    ):
        value = found[name]
        notebook.row(what=name.replace("_", " "), mb=None if value is None else value / 1e6)
    for name, holds in judge_memory(found).items():
        notebook.check(f"P34: {name}", holds, json.dumps(found))


def judge_memory(found: dict[str, Any]) -> dict[str, bool | None]:
    """What must be true of the three figures after 1 GB was freed and 100 MB were kept."""
    kept, allocated = found["kept_bytes"], found["allocated_bytes"]
    peak, reserved = found["allocator_peak_bytes"], found["allocator_reserved_bytes"]
    used = found["device_used_bytes"]
    absent = allocated is None
    return {
        "what is allocated is the 100 MB that are kept": (
            None if absent else abs(allocated - kept) < 4e6
        ),
        "the peak is the 1 GB that was freed": None if absent else 1.0e9 <= peak < 1.08e9,
        "what is reserved is at least the peak": None if absent else reserved >= peak,
        "the card's difference is more than what is reserved, by the context": (
            None if absent or used is None else used > reserved
        ),
    }


def out_of_memory(stand: Stand, notebook: Notebook, ground: Ground) -> None:
    """A worker that runs out says so, lives on, and leaves nothing when it ends."""
    before = used_bytes(stand)
    folder = stand.folder / "greedy"
    folder.mkdir()
    num_bytes = HELD_BYTES if stand.on_gpu else 1 << 50
    text = _GREEDY.format(num_bytes=num_bytes, device=stand.device.id)
    (folder / "pipeline.py").write_text(text, encoding="utf-8")
    server = Server(stand, with_torch=True)
    kind, message, lives = "none", "", False
    try:
        server.load(stand, ground.subject, Recipe(engine="torch"), folder, limit_s=90)
    except RunError as error:
        failure = server.failure(error, "load")
        kind, message = failure.kind, failure.message
        lives = psutil.pid_exists(server.pid)
    server.close()
    notebook.row(what="out of memory", state=kind, said=message.splitlines()[0][:160])
    notebook.check("out of memory is told as such", kind == "out_of_memory", message[:160])
    notebook.check("the worker outlives it", lives)
    back(stand, notebook, "out of memory", before)


def kill(stand: Stand, notebook: Notebook, _: Ground) -> None:
    """kill -9 of a process that holds memory of the device gives all of it back."""
    before = used_bytes(stand)
    held = HELD_BYTES if stand.on_gpu else HELD_BYTES_CPU
    command = [sys.executable, "-m", "tests.device.probes", "hold"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps({"device": stand.device.id, "num_bytes": held}))
        child.stdin.close()
        said = child.stdout.readline()
        if not said:
            raise RuntimeError("the process that holds memory ended by itself")
        during = used_bytes(stand)
        os.kill(child.pid, signal.SIGKILL)
    grew = None if before is None or during is None else during - before
    notebook.row(what="kill -9", grew_mb=None if grew is None else grew / 1e6)
    notebook.check("the memory that is held is seen", None if grew is None else grew >= held)
    back(stand, notebook, "kill -9", before)


def stop(stand: Stand, notebook: Notebook, ground: Ground) -> None:
    """Stopping a row ends its worker in the middle of a round, as the scheduler does it."""
    recipe = Recipe(engine="torch")
    folder = ground.folder(recipe)
    if isinstance(folder, str):
        raise RuntimeError(folder)
    before = used_bytes(stand)
    server = Server(stand, with_torch=True)
    loaded = server.load(stand, ground.subject, recipe, folder, limit_s=90)
    # A round of a minute, of which nobody waits for the end.
    protocol.send(server.connection, protocol.Calls(num_calls=int(60 / loaded.call_s) + 1))
    time.sleep(0.3)
    during = used_bytes(stand)
    started_s = time.monotonic()
    server.close()
    seconds = time.monotonic() - started_s
    grew = None if before is None or during is None else during - before
    notebook.row(
        what="stop in a round",
        seconds=seconds,
        grew_mb=None if grew is None else grew / 1e6,
    )
    notebook.check("a stop takes less than two seconds", seconds < 2.0, f"{seconds:.2f} s")
    back(stand, notebook, "a stop in a round", before)


def back(stand: Stand, notebook: Notebook, what: str, before: int | None) -> None:
    """Wait until the memory in use is at its level again; a line says after how long."""
    started_s = time.monotonic()
    now = used_bytes(stand)
    while before is not None and now is not None and now > before + BACK_WITHIN_BYTES:
        if time.monotonic() - started_s > BACK_LIMIT_S:
            break
        time.sleep(0.05)
        now = used_bytes(stand)
    known = before is not None and now is not None
    left = now - before if before is not None and now is not None else None
    notebook.check(
        f"after {what} the memory is back",
        None if left is None else left <= BACK_WITHIN_BYTES,
        f"{left / 1e6:+.0f} MB after {time.monotonic() - started_s:.2f} s"
        if known and left is not None
        else "the driver does not say what is in use",
    )


def profiles(stand: Stand, notebook: Notebook, ground: Ground) -> None:
    """The same calls under torch.profiler, eager, as a graph and compiled; traces are kept."""
    rows = write_rows(stand, ground.subject, ground.batch)
    for name, recipe in PROFILED.items():
        folder = ground.folder(recipe)
        if isinstance(folder, str):
            notebook.row(what=f"profile, {name}", state="not run", said=folder)
            continue
        found = probe(
            stand,
            "profile",
            folder=str(folder),
            rows=str(rows),
            batch=ground.batch,
            trace=str((stand.out / f"trace-{name}.json.gz").resolve()),
            num_calls=NUM_PROFILED,
        )
        notebook.row(
            what=f"profile, {name}",
            state="ran",
            ms=found["call_s"] * 1e3,
            events=found["num_events"],
            kernels_a_call=found["num_kernels_a_call"],
            copies_a_call=found["num_copies_a_call"],
            graph_launches=found["num_graph_launches"],
            kernel_share=found["kernel_share"],
            slowdown=found["slowdown"],
            trace_mb=found["trace_bytes"] / 1e6,
        )
        notebook.check(f"the profile of {name} calls has events", found["num_events"] > 0)
        if stand.on_gpu:
            notebook.check(
                f"the profile of {name} calls has kernels", found["num_kernels_a_call"] >= 1
            )
        if name == "graph":
            notebook.check(
                "a graph is launched once a call",
                found["num_graph_launches"] == NUM_PROFILED,
                f"{found['num_graph_launches']} launches in {NUM_PROFILED} calls",
            )


def held_answers(stand: Stand, notebook: Notebook, ground: Ground) -> None:
    """Two calls on different inputs in a row: the first answer must survive the second call."""
    rows = write_rows(stand, ground.subject, 2 * ground.batch)

    def ask(recipe: Recipe) -> dict[str, Any] | str:
        folder = ground.folder(recipe)
        if isinstance(folder, str):
            return folder
        return probe(
            stand,
            "two_inputs",
            folder=str(folder),
            rows=str(rows),
            batch=ground.batch,
            limit_s=120,
        )

    recipes = [Recipe(engine="torch"), *GRAPHS]
    for recipe, found in zip(recipes, in_threads(ask, recipes), strict=True):
        what = f"two answers, {short(recipe)}"
        if isinstance(found, str):
            notebook.row(what=what, state="not run", said=found)
            continue
        notebook.row(what=what, state="ran", **found)
        notebook.check(
            f"{short(recipe)}: an answer survives the next call",
            found["held_error"] < 1e-3 < found["inputs_differ_by"],
            f"off by {found['held_error']:.2g}; the inputs differ by "
            f"{found['inputs_differ_by']:.2g}",
        )


def write_rows(stand: Stand, subject: Subject, num_rows: int) -> Path:
    """Evaluation rows for a probe."""
    path = stand.folder / f"rows-{num_rows}.npz"
    with path.open("wb") as stream:
        np.savez(stream, **subject.rows(num_rows))  # type: ignore[arg-type]
    return path


SECTION = Section(
    name="C",
    title="profiles and faults",
    share=0.25,
    run=run,
    columns=("what", "state"),
)
