"""What every section stands on: a device, a folder, models, and the product's own workers."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from workbench.core.device import Device, Host
from workbench.core.errors import RunError
from workbench.core.failure import Failure, Stage
from workbench.core.model import Model, PreparedModel
from workbench.core.recipe import Recipe
from workbench.devices import probe_host
from workbench.engines import load_all
from workbench.levers.step import Context
from workbench.levers.threads import default_environment
from workbench.run import protocol
from workbench.run.artifacts import Artifact
from workbench.run.failures import StageTimeout, WorkerFailed, WorkerGone, failure_of
from workbench.run.processes import Worker

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
A = TypeVar("A", bound=protocol.Message)
Arrays = dict[str, NDArray[Any]]

_START_LIMIT_S = 120.0
_LOOK_S = 0.5


class NoDeviceError(Exception):
    """The device that was asked for is not here."""


@dataclass(kw_only=True)
class Stand:
    """One section's run: where it runs, where it writes, and until when.

    `folder` is for what is thrown away, `out` for what is kept. `until_s` is a reading of the
    monotonic clock; what is not begun by then is left out and said to be. `quick` makes
    everything small: it shows that the code runs, and no figure of it means anything.
    """

    host: Host
    device: Device
    folder: Path
    until_s: float
    quick: bool
    out: Path = Path()
    servers: list[Server] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Seconds until the section should come to an end."""
        return self.until_s - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        return self.device.kind == "cuda"

    def environment(self) -> dict[str, str]:
        """What a worker or a probe gets: compile caches of this run's own."""
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "caches" / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / "caches" / "triton"),
        }

    def close(self) -> None:
        """End every worker that still lives."""
        for server in list(self.servers):
            server.close()


def make_stand(device_id: str, folder: Path, limit_s: float, *, quick: bool) -> Stand:
    """A stand on "cuda:0" or "cpu". Raises NoDeviceError with the reason where there is none."""
    load_all()
    host = probe_host()
    device = host.device(device_id)
    if device is None:
        said = "; ".join(host.notes) or "no driver lists one"
        raise NoDeviceError(f"there is no {device_id} here: {said}")
    folder.mkdir(parents=True, exist_ok=True)
    return Stand(
        host=host, device=device, folder=folder, until_s=time.monotonic() + limit_s, quick=quick
    )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that a worker has prepared, below a folder of its own."""

    name: str
    model: Model
    prepared: PreparedModel
    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def context(self, stand: Stand, recipe: Recipe) -> Context:
        return Context(
            host=stand.host,
            device=stand.device,
            model=self.prepared,
            recipe=recipe,
            settings=self.model.settings,
        )

    def rows(self, num_rows: int) -> Arrays:
        """The first evaluation rows."""
        with np.load(Path(self.model.folder) / "evaluation.npz", allow_pickle=False) as archive:
            names = [spec.name for spec in self.prepared.inputs]
            return {name: archive[name][:num_rows] for name in names}


def cnn(stand: Stand) -> Subject:
    """The convolutional sample: the wide one, a small one where the run is quick."""
    import workbench

    name = "digits-cnn" if stand.quick else "digits-cnn-wide"
    return _prepare(stand, name, workbench.load(f"sample:{name}"))


def encoder(stand: Stand) -> Subject:
    """A transformer encoder of MiniLM's size without a mask, so that every kernel fits."""
    import workbench

    factory = "make_small" if stand.quick else "make"
    draw = np.random.default_rng(5)
    ids = draw.integers(0, 1000, size=(256, 128), dtype=np.int64)
    here = str(Path(__file__).parent)
    if here not in sys.path:
        # Found as a module of its own, it travels as one file and stays a factory.
        sys.path.append(here)
    model = workbench.load(
        f"encoder:{factory}", inputs={"ids": ids[:2]}, evaluation={"ids": ids}, name="encoder"
    )
    return _prepare(stand, "encoder", model)


def _prepare(stand: Stand, name: str, model: Model) -> Subject:
    folder = stand.folder / name
    folder.mkdir()
    with Server(stand, with_torch=True) as server:
        order = protocol.Prepare(model_folder=model.folder, source_dir=str(folder / "source"))
        answer = server.ask(order, protocol.Prepared, stage="prepare", limit_s=120)
    prepared = msgspec.json.decode(answer.prepared, type=PreparedModel)
    return Subject(name=name, model=model, prepared=prepared, folder=folder)


class Server:
    """A worker of the product, asked directly. Make it in the thread that outlives it.

    The kernel ends a worker when the thread that started it does, so that threads of a pool
    may ask workers and not start them.
    """

    def __init__(
        self, stand: Stand, *, with_torch: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        self._stand = stand
        self.log = stand.folder / f"worker-{len(list(stand.folder.glob('worker-*')))}.log"
        self._worker = Worker(
            stand.host.python,
            with_torch=with_torch,
            environment=default_environment() | dict(environment or {}),
            log=self.log,
        )
        self._is_ready = False
        stand.servers.append(self)

    @property
    def pid(self) -> int:
        return self._worker.pid

    @property
    def connection(self) -> Connection:
        """The pipe, for an order whose answer nobody waits for."""
        return self._worker.connection

    def ask(self, order: protocol.Message, kind: type[A], *, stage: str, limit_s: float) -> A:
        """Give an order and wait for its answer, which is of type `kind`.

        Raises WorkerFailed, WorkerGone or StageTimeout. After a timeout the worker is of no
        use: its late answer would be taken for the next.
        """
        if not self._is_ready:
            self._receive(protocol.Ready, "load", _START_LIMIT_S)
            self._is_ready = True
            assign = protocol.Assign(log=str(self.log), environment=self._stand.environment())
            self.ask(assign, protocol.Done, stage="load", limit_s=30)
        try:
            protocol.send(self._worker.connection, order)
        except OSError as error:
            raise WorkerGone(self._worker.exit_code()) from error
        return self._receive(kind, stage, limit_s)

    def _receive(self, kind: type[A], stage: str, limit_s: float) -> A:
        until_s = time.monotonic() + limit_s
        while True:
            if not self._worker.connection.poll(_LOOK_S):
                if self._worker.process.poll() is not None:
                    raise WorkerGone(self._worker.exit_code())
                if time.monotonic() > until_s:
                    raise StageTimeout(stage, limit_s)
                continue
            try:
                answer = protocol.receive_answer(self._worker.connection)
            except (EOFError, OSError, msgspec.MsgspecError) as error:
                raise WorkerGone(self._worker.exit_code()) from error
            if isinstance(answer, protocol.Note):
                continue
            if isinstance(answer, protocol.Failed):
                raise WorkerFailed(answer)
            assert isinstance(answer, kind), answer
            return answer

    def load(
        self, stand: Stand, subject: Subject, recipe: Recipe, folder: Path, *, limit_s: float
    ) -> protocol.Loaded:
        """Serve an artifact, warmed up."""
        from workbench.engines.engine import engine

        batch = recipe.get("batch")
        order = protocol.Load(
            folder=str(folder),
            source_dir=str(subject.source),
            model_folder=str(subject.model.folder),
            modules=list(engine(recipe.engine).modules),
            batch_size=int(batch) if batch else subject.prepared.batch.example_size,
            warm_up_s=0.3 if stand.quick else 1.0,
            device=stand.device.id,
        )
        return self.ask(order, protocol.Loaded, stage="load", limit_s=limit_s)

    def failure(self, error: RunError, stage: Stage) -> Failure:
        """What a row would keep of an error."""
        return failure_of(error, stage, self.log)

    def close(self) -> None:
        """Kill it and what came from it."""
        if self in self._stand.servers:
            self._stand.servers.remove(self)
            self._worker.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_build(
    stand: Stand, subject: Subject, recipe: Recipe, limit_s: float
) -> Callable[[], Path | Failure]:
    """Start a builder, and return the function that waits for it: a folder, or why none.

    The function may run in any thread. Rendering is done here: Python 3.11's parser must not
    run in two threads at once.
    """
    from workbench.engines.engine import engine

    chosen = engine(recipe.engine)
    server = Server(stand, with_torch=chosen.builds_with_torch)
    artifact = Artifact(subject.folder, subject.context(stand, recipe))
    artifact.start()
    batch = recipe.get("batch")
    order = protocol.Build(
        pipeline=str(artifact.folder / "pipeline.py"),
        source_dir=str(subject.source),
        out_dir=str(artifact.folder),
        compile_once=chosen.compiles,
        batch_size=int(batch) if batch else subject.prepared.batch.example_size,
    )

    def finish() -> Path | Failure:
        try:
            server.ask(order, protocol.Done, stage="build", limit_s=limit_s)
        except RunError as error:
            return server.failure(error, "build")
        finally:
            server.close()
        return artifact.folder

    return finish


def build(
    stand: Stand, jobs: list[tuple[Subject, Recipe]], *, limit_s: float
) -> dict[Recipe, Path | Failure]:
    """Build artifacts of different recipes side by side: each one's folder, or why none."""
    finishing = [start_build(stand, subject, recipe, limit_s) for subject, recipe in jobs]
    done = in_threads(lambda finish: finish(), finishing)
    return {recipe: result for (_, recipe), result in zip(jobs, done, strict=True)}


def num_builders(stand: Stand) -> int:
    """Builds at a time: each takes a core or more and a few gigabytes."""
    return max(1, min(8, (os.cpu_count() or 2) // 2)) if not stand.quick else 2


def in_threads(function: Callable[[Any], T], items: list[Any]) -> list[T]:
    """The function of every item, all at once."""
    if not items:
        return []
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(function, items))


class Spares:
    """Workers with torch imported, started before they are needed."""

    def __init__(self, stand: Stand, size: int = 2) -> None:
        self._stand = stand
        self._queue: queue.SimpleQueue[Server] = queue.SimpleQueue()
        self._size = size
        self.refill()

    def refill(self) -> None:
        """Start as many as are missing. Call it from the thread that made the section."""
        while self._queue.qsize() < self._size:
            self._queue.put(Server(self._stand, with_torch=True))

    def take(self, *, with_torch: bool) -> Server:
        """A worker; a warm one where torch is wanted."""
        if not with_torch:
            return Server(self._stand, with_torch=False)
        with suppress(queue.Empty):
            return self._queue.get_nowait()
        return Server(self._stand, with_torch=True)


def probe(stand: Stand, name: str, *, limit_s: float = 90.0, **arguments: Any) -> dict[str, Any]:
    """Run one function of `tests.device.probes` in a process of its own; returns its answer.

    Raises RuntimeError with the last lines of its errors where it fails or takes too long.
    """
    command = [sys.executable, "-m", "tests.device.probes", name]
    said = json.dumps({"device": stand.device.id, "quick": stand.quick, **arguments})
    environment = {**os.environ, **default_environment(), **stand.environment()}
    try:
        done = subprocess.run(
            command,
            input=said,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the probe {name} took longer than {limit_s:g} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"the probe {name} ended with {done.returncode}: {done.stderr[-1500:]}")
    return dict(json.loads(lines[-1]))
