"""B: every lever's value on the GPU: what it computes, how it was executed, what it takes.

Values come from the product's own table, so that a new lever is tried without a change here.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.device.stand import (
    Arrays,
    Server,
    Spares,
    Stand,
    Subject,
    cnn,
    encoder,
    num_builders,
    start_build,
)
from tests.device.suite import Notebook, Section
from workbench.core.errors import RecipeError, RunError
from workbench.core.evidence import Evidence
from workbench.core.failure import Failure
from workbench.core.measurement import EnergyReading, MemoryReading
from workbench.core.recipe import Recipe
from workbench.devices.live import gpu_counters
from workbench.engines.engine import engine
from workbench.engines.table import check_available, support
from workbench.measure.rounds import calls_for
from workbench.run import protocol
from workbench.run.rows import read_outputs

NUM_ROWS = 64
BATCHES = (64, 1)
ENGINES = ("torch", "torch-compile", "onnxruntime")
# Levers of the machine beside the GPU, or of the inputs: nothing that a GPU does by itself.
NO_GPU_LEVERS = ("threads", "batch")
# What its reason asks for, where a value cannot be had by itself.
BESIDE = {"attention=flash": {"precision": "bf16"}, "attention=cudnn": {"precision": "bf16"}}
# Together they are what is shipped; the formats of a graph are read from its kernels.
TOGETHER = (
    Recipe(engine="torch", precision="bf16", fusion="cuda-graphs", layout="channels-last"),
    Recipe(engine="torch-compile", precision="bf16", fusion="reduce-overhead"),
)
QUICK = (
    Recipe(engine="torch"),
    Recipe(engine="torch", precision="bf16"),
    Recipe(engine="onnxruntime"),
)
# Minutes of autotuning come last: where time runs out, they are what is left out.
_SLOW = ("max-autotune", "max-autotune-no-cudagraphs")
_BUILD_LIMIT_S = 150.0
_ROW_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One variant as it ran. Seconds and bytes; None where there is no such reading.

    `device_used_bytes` is by how much the card's memory in use grew while it was loaded, where
    nothing else was loaded beside; errors are of all outputs against float64, over the
    reference's largest value and over its root mean square.
    """

    recipe: Recipe
    evidence: Evidence
    raw: dict[str, Any]
    outputs: Arrays
    error_max: float
    error_rms: float
    call_s: float
    event_s: float | None
    sm_clock_mhz: float | None
    memory: MemoryReading
    energy: EnergyReading
    device_used_bytes: int | None
    loaded: protocol.Loaded


def recipes(stand: Stand, subject: Subject) -> list[tuple[Recipe, str | None]]:
    """Each recipe to try, and why it cannot be had here."""
    if stand.quick:
        found = [*QUICK, Recipe(engine="torch", fusion="cuda-graphs")]
    else:
        context = subject.context(stand, Recipe(engine="torch"))
        found = []
        for row in support(context):
            if row.engine not in ENGINES or row.lever in NO_GPU_LEVERS:
                continue
            if row.lever == "provider" and row.value == "cpu":
                continue
            levers = {row.lever: row.value} if row.lever else {}
            levers |= BESIDE.get(f"{row.lever}={row.value}", {})
            found.append(Recipe(engine=row.engine, **levers))
        found += TOGETHER
    return [(recipe, unavailable(stand, subject, recipe)) for recipe in dict.fromkeys(found)]


def urgency(recipe: Recipe) -> int:
    """In which order recipes are tried, so that what time does not allow matters least.

    0: every value once, on the engine that is quick to build; 1: what only torch.compile has;
    2: values on torch.compile that were seen on eager torch; 3: minutes of autotuning.
    """
    if recipe.get("fusion") in _SLOW or recipe.get("provider") == "tensorrt":
        return 3
    if not engine(recipe.engine).compiles:
        return 0
    own = recipe.get("fusion") or recipe.get("quantization") == "fp8" or not recipe.levers
    return 1 if own else 2


def unavailable(stand: Stand, subject: Subject, recipe: Recipe) -> str | None:
    """Why the product would not run it here."""
    try:
        check_available(subject.context(stand, recipe))
    except RecipeError as error:
        return str(error)
    return None


Job = tuple[Subject, Recipe]


def run(stand: Stand, notebook: Notebook) -> None:
    """Build some variants while others are measured, the most telling first."""
    subjects = [encoder(stand)] if stand.quick else [cnn(stand), encoder(stand)]
    truth = {s.name: reference(s, num_rows(stand)) for s in subjects}
    batches = (2,) if stand.quick else BATCHES
    jobs: list[Job] = []
    for subject in subjects:
        for recipe, reason in recipes(stand, subject):
            if reason is not None:
                blank(notebook, subject, recipe, "unavailable", reason)
                continue
            jobs += [(subject, recipe.replace(batch=size)) for size in batches]
    # Large batches first: they are what a GPU is for.
    jobs.sort(key=lambda job: (urgency(job[1]), -int(job[1].get("batch") or 0)))
    Lanes(stand, notebook, truth).run(jobs)


class Lanes:
    """Builds in some threads and measurements in two, of which one has the device at a time.

    Times are of one row alone on the GPU as far as its rounds go; what another row does beside
    (start, compile, be profiled) may still cost it some. A is where times are trusted.
    """

    def __init__(self, stand: Stand, notebook: Notebook, truth: dict[str, Arrays]) -> None:
        self._stand = stand
        self._notebook = notebook
        self._truth = truth
        self._spares = Spares(stand, 1 if stand.quick else 3)
        self._turn = Turn()

    def run(self, jobs: list[Job]) -> None:
        """Every job that there is time for; a row for each."""
        num_lanes = 1 if self._stand.quick else 2
        size = num_builders(self._stand)
        waiting = deque(jobs)
        built: deque[tuple[Job, Path | Failure]] = deque()
        building: dict[Future[Path | Failure], Job] = {}
        measuring: dict[Future[None], Job] = {}
        with ThreadPoolExecutor(size + num_lanes) as pool:
            while waiting or building or built or measuring:
                in_time = self._stand.left_s > _ROW_S
                while waiting and in_time and len(building) < size and len(built) < size:
                    job = waiting.popleft()
                    building[pool.submit(start_build(self._stand, *job, _BUILD_LIMIT_S))] = job
                while built and len(measuring) < num_lanes:
                    job, folder = built.popleft()
                    measuring[pool.submit(self._one(job, folder))] = job
                self._spares.refill()
                if not building and not measuring:
                    break
                # Nobody waits for a build that could not be measured any more.
                if not in_time and not measuring and not built:
                    break
                pending: list[Future[Any]] = [*building, *measuring]
                done, _ = wait(pending, 0.5, FIRST_COMPLETED)
                for future in done:
                    if future in measuring:
                        del measuring[future]
                        future.result()
                    else:
                        job = building.pop(future)
                        built.append((job, future.result()))
            for job in (*waiting, *building.values()):
                blank(self._notebook, *job, "not reached", "the section's time was over")
            self._stand.close()

    def _one(self, job: Job, folder: Path | Failure) -> Callable[[], None]:
        """One row, whatever comes of it. The worker is taken here, in the main thread."""
        subject, recipe = job
        if isinstance(folder, Failure):
            failed = folder
            return lambda: blank(
                self._notebook, subject, recipe, f"failed: {failed.kind}", failed.message
            )
        if self._stand.left_s < _ROW_S / 2:
            return lambda: blank(
                self._notebook, subject, recipe, "not reached", "the section's time was over"
            )
        server = self._spares.take(with_torch=engine(recipe.engine).serves_with_torch)

        def measured() -> None:
            started_s = time.monotonic()
            try:
                found = measure(
                    self._stand,
                    subject,
                    recipe,
                    folder,
                    self._truth[subject.name],
                    server,
                    self._turn,
                )
            except RunError as error:
                failure = server.failure(error, "load")
                kind = f"failed: {failure.kind}"
                blank(self._notebook, subject, recipe, kind, failure.message)
                return
            finally:
                server.close()
            show(self._stand, self._notebook, subject, found, time.monotonic() - started_s)

        return measured


class Turn:
    """One row has the device at a time, and knows whether another was loaded beside it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = threading.Lock()
        self._num_outside = 0
        self._num_begun = 0

    @contextmanager
    def alone(self) -> Iterator[Callable[[], bool]]:
        """Hold the device; the function says whether nothing else was loaded meanwhile."""
        with self._lock:
            begun, clean = self._num_begun, self._num_outside == 0
            yield lambda: clean and self._num_begun == begun

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Load something that compiles, which would keep the device from others for long."""
        with self._count:
            self._num_outside += 1
            self._num_begun += 1
        try:
            yield
        finally:
            with self._count:
                self._num_outside -= 1


def num_rows(stand: Stand) -> int:
    """Rows whose outputs are compared."""
    return 8 if stand.quick else NUM_ROWS


def show(
    stand: Stand, notebook: Notebook, subject: Subject, found: Measured, seconds: float
) -> None:
    """The row of a variant that ran, and what must hold of it."""
    recipe = found.recipe
    evidence, memory = found.evidence, found.memory
    notebook.row(
        model=subject.name,
        recipe=short(recipe),
        batch=recipe.get("batch"),
        state="ran",
        labels=list(evidence.labels),
        unmet=list(evidence.unmet),
        ran_on=evidence.device,
        precision_share={k: round(v, 3) for k, v in evidence.precision_share.items()},
        share_of=evidence.share_of,
        fp32=fp32_precision(found.raw),
        graph_launches=evidence.num_graph_launches,
        attention=evidence.attention,
        graph_breaks=None if evidence.graph_breaks is None else len(evidence.graph_breaks),
        compiles=evidence.num_compiles,
        quantized=f"{evidence.num_layers_quantized} of {evidence.num_layers}",
        providers=list(evidence.providers),
        error_max=finite(found.error_max),
        error_rms=finite(found.error_rms),
        call_ms=found.call_s * 1e3,
        event_ms=None if found.event_s is None else found.event_s * 1e3,
        items_per_s=found.loaded.items_per_call / found.call_s,
        sm_mhz=found.sm_clock_mhz,
        load_s=found.loaded.load_s,
        first_call_s=found.loaded.first_call_s,
        allocated_mb=mega(memory.allocator_peak_bytes),
        reserved_mb=mega(memory.allocator_reserved_bytes),
        device_mb=mega(found.device_used_bytes),
        host_mb=mega(memory.host_peak_bytes),
        mj_per_item=found.energy.joules_per_1000_items,
        energy=found.energy.source,
        seconds=round(seconds, 1),
    )
    notebook.check(
        f"{subject.name}, {recipe.spec}: it ran on {stand.device.id}, or says that it did not",
        evidence.device.startswith(stand.device.id) or bool(evidence.unmet),
        evidence.device,
    )
    if stand.on_gpu and found.event_s is not None:
        # Where both were read they are of the same rounds.
        notebook.check(
            f"{subject.name}, {recipe.spec}: a call takes no longer by events than by the wall",
            found.event_s <= found.call_s * 1.001 + 1e-6,
            f"{found.event_s * 1e3:.4f} and {found.call_s * 1e3:.4f} ms",
        )


def measure(
    stand: Stand,
    subject: Subject,
    recipe: Recipe,
    folder: Path,
    truth: Arrays,
    server: Server,
    turn: Turn | None = None,
) -> Measured:
    """Serve an artifact in a worker and read everything of it. Raises RunError."""
    turn = turn or Turn()
    compiles = engine(recipe.engine).compiles
    if compiles:
        with turn.outside():
            loaded = server.load(stand, subject, recipe, folder, limit_s=150)
    used: int | None = None
    with turn.alone() as is_clean:
        if not compiles:
            before = used_bytes(stand)
            loaded = server.load(stand, subject, recipe, folder, limit_s=90)
            after = used_bytes(stand)
            if before is not None and after is not None and is_clean():
                used = after - before
        length_s = 0.02 if stand.quick else 0.1
        order = protocol.Calls(num_calls=calls_for(loaded.call_s, length_s))
        rounds = [
            server.ask(order, protocol.RoundDone, stage="measure", limit_s=60)
            for _ in range(2 if stand.quick else 4)
        ][1:]
        extras = server.ask(
            protocol.MeasureExtras(
                energy_window_s=0.1 if stand.quick else 0.4, device=stand.device.id
            ),
            protocol.Extras,
            stage="measure",
            limit_s=60,
        )
    best = min(rounds, key=lambda done: done.wall_s)
    out = folder / "outputs.npz"
    server.ask(
        protocol.Evaluate(out=str(out), max_rows=num_rows(stand), max_s=20.0),
        protocol.Evaluated,
        stage="check",
        limit_s=60,
    )
    inspected = server.ask(protocol.Inspect(), protocol.Inspected, stage="measure", limit_s=120)
    raw = msgspec.json.decode(inspected.raw)
    outputs = {k: v for k, v in read_outputs(out).items() if v is not None}
    error_max, error_rms = errors(outputs, truth)
    return Measured(
        recipe=recipe,
        evidence=engine(recipe.engine).read_evidence(raw, subject.context(stand, recipe)),
        raw=raw,
        outputs=outputs,
        error_max=error_max,
        error_rms=error_rms,
        call_s=best.wall_s / best.num_calls,
        event_s=None if best.event_s is None else best.event_s / best.num_calls,
        sm_clock_mhz=best.sm_clock_mhz,
        memory=msgspec.json.decode(extras.memory, type=MemoryReading),
        energy=msgspec.json.decode(extras.energy, type=EnergyReading),
        device_used_bytes=used,
        loaded=loaded,
    )


def used_bytes(stand: Stand) -> int | None:
    """Memory of the card in use, by everybody; None on a CPU and where the driver is silent."""
    return gpu_counters(stand.device.id).memory_used_bytes if stand.on_gpu else None


def reference(subject: Subject, num: int) -> Arrays:
    """The outputs of the first evaluation rows in float64, on the CPU."""
    import torch

    from workbench.core.structure import bind_inputs, flatten_outputs
    from workbench.engines.source import read_source
    from workbench.engines.torch_source import open_module

    module = open_module(str(subject.source)).double()
    tensors = {}
    for name, array in subject.rows(num).items():
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
    args, kwargs = bind_inputs(read_source(str(subject.source))["call"], tensors)
    with torch.inference_mode():
        outputs = flatten_outputs(module(*args, **kwargs))
    return {name: value.numpy() for name, value in outputs.items()}


def errors(outputs: Arrays, truth: Arrays) -> tuple[float, float]:
    """Largest and root mean square error, each over the same of the reference.

    Infinite where a value is not finite or an output is missing.
    """
    largest, squares, count, scale, power = 0.0, 0.0, 0, 0.0, 0.0
    for name, wanted in truth.items():
        got = outputs.get(name)
        if got is None or got.shape != wanted.shape or not np.isfinite(got).all():
            return float("inf"), float("inf")
        off = np.asarray(got, dtype="float64") - wanted
        largest = max(largest, float(np.abs(off).max()))
        scale = max(scale, float(np.abs(wanted).max()))
        squares += float((off**2).sum())
        power += float((np.asarray(wanted, dtype="float64") ** 2).sum())
        count += off.size
    if scale == 0 or count == 0:
        return float("inf"), float("inf")
    return largest / scale, float(np.sqrt(squares / power))


def fp32_precision(raw: dict[str, Any]) -> dict[str, str] | None:
    """What each leaf's fp32 is computed in, as torch reads it back; None on other engines."""
    flags = raw.get("flags")
    return None if flags is None else dict(flags["fp32_precision"])


def blank(notebook: Notebook, subject: Subject, recipe: Recipe, state: str, why: str) -> None:
    """A row without figures."""
    notebook.row(
        model=subject.name,
        recipe=short(recipe),
        batch=recipe.get("batch"),
        state=state,
        why=why.strip().splitlines()[0][:300] if why.strip() else "",
    )


def short(recipe: Recipe) -> str:
    """The recipe without its batch, which has a column of its own."""
    return recipe.replace(batch=None).spec.removeprefix("engine=")


def finite(value: float) -> float | str:
    """A figure as JSON has it."""
    return value if math.isfinite(value) else "not finite"


def mega(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / 1e6, 1)


SECTION = Section(
    name="B",
    title="levers",
    share=0.5,
    run=run,
    columns=("model", "recipe", "batch", "state"),
)
