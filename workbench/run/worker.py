"""The child process in which a model is prepared, built or served.

It never opens a study and decides nothing: it carries out one order after another and
answers. What a model prints goes to the variant's log.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from workbench.core.errors import WorkbenchError
from workbench.run import protocol
from workbench.run.processes import (
    connection_from_fd,
    die_with_parent,
    drop_privileges,
    prefer_as_victim,
)
from workbench.run.rows import OutputRows, read_raw, read_rows
from workbench.run.serving import Server, import_pipeline, record

if TYPE_CHECKING:
    from workbench.core.measurement import MemoryReading
    from workbench.measure.rounds import DeviceClocks

# What is told of a failure: enough to find the line, not a novel.
_MAX_TRACEBACK_CHARS = 20_000


def main(argv: list[str]) -> None:
    """Serve orders from the pipe until the scheduler is gone."""
    connection = connection_from_fd(int(argv[0]))
    die_with_parent(int(argv[1]))
    prefer_as_victim()
    drop_privileges()
    with_torch = "--torch" in argv
    if with_torch:
        _prime_torch()
    protocol.send(connection, protocol.Ready(pid=os.getpid(), torch=with_torch))
    worker = _Worker(connection)
    while True:
        try:
            order = protocol.receive_order(connection)
        except (EOFError, OSError):
            return
        if isinstance(order, protocol.Exit):
            return
        try:
            answer = worker.carry_out(order)
        except Exception as error:  # noqa: BLE001 - the boundary: any failure is a row's result
            answer = _failed(error)
        protocol.send(connection, answer)


class _Worker:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._server: Server | None = None
        self._meter: Any = None
        self._memory: MemoryReading | None = None
        self._read_clocks: Callable[[], DeviceClocks] | None = None

    def carry_out(self, order: protocol.ToWorker) -> protocol.FromWorker:
        match order:
            case protocol.Assign():
                return _assign(order)
            case protocol.Prime():
                return _prime_export()
            case protocol.Prepare():
                return self._prepare(order)
            case protocol.Build():
                return _build(order)
            case protocol.Load():
                return self._load(order)
            case protocol.Calls():
                return self._round(order)
            case protocol.Evaluate():
                return self._evaluate(order)
            case protocol.EvaluateExactly():
                return _evaluate_exactly(order)
            case protocol.Inspect():
                return self._inspect()
            case protocol.Record():
                return self._record(order)
            case protocol.MeasureExtras():
                return self._extras(order)
            case protocol.Exit():
                raise AssertionError("handled by the loop")

    @property
    def server(self) -> Server:
        assert self._server is not None, "nothing is loaded"
        return self._server

    def _prepare(self, order: protocol.Prepare) -> protocol.Prepared:
        from workbench.sources import prepare

        start_s = time.perf_counter()
        prepared = prepare(Path(order.model_folder), Path(order.source_dir))
        return protocol.Prepared(
            prepared=msgspec.json.encode(prepared), seconds=time.perf_counter() - start_s
        )

    def _load(self, order: protocol.Load) -> protocol.Loaded:
        from workbench.measure.memory import MemoryMeter
        from workbench.measure.rounds import warm_up

        for name in order.modules:
            importlib.import_module(name)
        rows = read_rows(Path(order.model_folder), Path(order.source_dir))
        self._meter = MemoryMeter()
        self._meter.start()
        folder = Path(order.folder)
        module = import_pipeline(folder / "pipeline.py")
        start_s = time.perf_counter()
        pipeline = module.load(str(folder))
        load_s = time.perf_counter() - start_s
        raw = read_raw(Path(order.source_dir))
        self._server = server = Server(module, pipeline, rows, order.batch_size, raw)
        warm = warm_up(pipeline, server.placed, max_s=order.warm_up_s)
        self._read_clocks = _clock_reader(order.device)
        return protocol.Loaded(
            load_s=load_s,
            first_call_s=warm.first_call_s,
            call_s=warm.call_s,
            first_calls_s=list(warm.calls_s),
            items_per_call=server.items_per_call,
            num_warmup=warm.num_calls,
            is_stable=warm.is_stable,
            preprocess=getattr(pipeline, "preprocess", None) is not None,
        )

    def _round(self, order: protocol.Calls) -> protocol.RoundDone:
        from workbench.measure.rounds import run_round

        server = self.server
        done = run_round(
            server.pipeline,
            server.placed,
            num_calls=order.num_calls,
            items_per_call=server.items_per_call,
            read_clocks=self._read_clocks,
        )
        return protocol.RoundDone(
            num_calls=done.num_calls,
            num_items=done.num_items,
            wall_s=done.wall_s,
            calls_s=np.asarray(done.calls_s, dtype="<f8").tobytes(),
            cpu_s=done.cpu_s,
            num_switches=done.num_switches,
            event_s=done.event_s,
            sm_clock_mhz=done.sm_clock_mhz,
            throttled=None if done.throttled is None else list(done.throttled),
        )

    def _evaluate(self, order: protocol.Evaluate) -> protocol.Evaluated:
        server = self.server
        # Evaluating holds hundreds of rows and their outputs: none of it is what a call needs.
        if self._memory is None:
            self._memory = self._meter.read(server.pipeline)
        rows = server.rows
        size = server.items_per_call
        outputs = OutputRows(rows.output_axes)
        start_s = time.perf_counter()
        total = min(rows.num_rows, order.max_rows)
        num_done = 0
        while num_done < total:
            arrays = rows.batch(num_done, size) if rows.axes else rows.arrays
            keep = min(size, total - num_done) if rows.axes else None
            outputs.add(server.pipeline.predict(arrays), keep)
            num_done += keep if keep is not None else total
            if time.perf_counter() - start_s > order.max_s:
                break
        outputs.save(Path(order.out))
        return protocol.Evaluated(
            num_rows=num_done, seconds=time.perf_counter() - start_s, is_real=rows.is_real
        )

    def _inspect(self) -> protocol.Inspected:
        raw = self.server.pipeline.inspect(self.server.placed[0])
        return protocol.Inspected(raw=json.dumps(raw).encode(), versions=_versions())

    def _record(self, order: protocol.Record) -> protocol.Recorded:
        # Where a thread samples memory, it would be in the recording.
        self._meter.stop()
        server, self._server = self.server, None
        return record(server, order)

    def _extras(self, order: protocol.MeasureExtras) -> protocol.Extras:
        from workbench.measure.energy import measure_energy
        from workbench.measure.rounds import Processing, time_copies, time_processing

        server = self.server
        memory = self._memory or self._meter.read(server.pipeline)
        # Where a thread samples, it must not do so in the windows that follow.
        self._meter.stop()
        copies = time_copies(server.pipeline, server.inputs)
        processing = Processing(preprocess_s=None, postprocess_s=None)
        if server.raw is not None and server.pipeline.preprocess is not None:
            processing = time_processing(server.pipeline, server.raw)
        energy = measure_energy(
            server.pipeline,
            server.placed,
            items_per_call=server.items_per_call,
            window_s=order.energy_window_s,
            device=order.device,
        )
        return protocol.Extras(
            memory=msgspec.json.encode(memory),
            energy=msgspec.json.encode(energy),
            copy_in_s=copies.copy_in_s,
            copy_out_s=copies.copy_out_s,
            preprocess_s=processing.preprocess_s,
            postprocess_s=processing.postprocess_s,
        )


def _clock_reader(device: str) -> Callable[[], DeviceClocks] | None:
    """What a round asks the GPU after its end; None on a CPU and where NVML does not answer."""
    if not device.startswith("cuda"):
        return None
    from workbench.devices.live import open_clocks
    from workbench.measure.rounds import DeviceClocks

    read = open_clocks(device)
    if read is None:
        return None

    def read_clocks() -> DeviceClocks:
        now = read()
        return DeviceClocks(sm_clock_mhz=now.sm_clock_mhz, throttled=now.throttle)

    return read_clocks


def _assign(order: protocol.Assign) -> protocol.Done:
    descriptor = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os.environ.update(order.environment)
    if order.memory_limit_bytes is not None:
        # RLIMIT_DATA counts what is really written to, unlike RLIMIT_AS, which a CUDA
        # context's reservations alone would exceed.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_DATA, (order.memory_limit_bytes, order.memory_limit_bytes)
            )
    return protocol.Done(seconds=0.0)


def _build(order: protocol.Build) -> protocol.Done:
    module = import_pipeline(Path(order.pipeline))
    start_s = time.perf_counter()
    module.build(order.source_dir, order.out_dir)
    seconds = time.perf_counter() - start_s
    compile_s = None
    if order.compile_once:
        # The first call after a load compiles; with an empty cache it is the cold compile.
        rows = read_rows(Path(order.source_dir), Path(order.source_dir))
        pipeline = module.load(order.out_dir)
        placed = pipeline.place(rows.sets(order.batch_size)[0])
        start_s = time.perf_counter()
        pipeline.call(placed)
        pipeline.synchronize()
        compile_s = time.perf_counter() - start_s
    return protocol.Done(seconds=seconds, compile_s=compile_s)


def _evaluate_exactly(order: protocol.EvaluateExactly) -> protocol.Evaluated:
    from workbench.sources.exact import exact_run

    start_s = time.perf_counter()
    rows = read_rows(Path(order.model_folder), Path(order.source_dir))
    outputs = OutputRows(rows.output_axes)
    run = exact_run(Path(order.source_dir))
    num_rows = min(rows.num_rows, order.num_rows)
    # In calls of the example's size: some models take no other.
    size = rows.example_size or num_rows
    for start in range(0, num_rows, size):
        arrays = rows.batch(start, size) if rows.axes else rows.arrays
        outputs.add(run(arrays).arrays, min(size, num_rows - start))
    outputs.save(Path(order.out))
    return protocol.Evaluated(
        num_rows=num_rows, seconds=time.perf_counter() - start_s, is_real=rows.is_real
    )


def _prime_export() -> protocol.Done:
    """Pay in advance for the first export, where the exporter is installed."""
    from workbench.engines.onnx_prime import prime_export

    start_s = time.perf_counter()
    with contextlib.suppress(ImportError):
        prime_export()
    return protocol.Done(seconds=time.perf_counter() - start_s)


def _prime_torch() -> None:
    """Import torch and what measures, and run one small operator: a toggle waits for none."""
    import torch

    for room in ("workbench.measure.memory", "workbench.measure.rounds"):
        importlib.import_module(room)
    with torch.inference_mode():
        torch.nn.functional.linear(torch.ones(4, 8), torch.ones(4, 8)).sum().item()


def _versions() -> dict[str, str]:
    """Versions of the engine libraries that this process has really imported."""
    names = (
        "torch",
        "torchao",
        "onnx",
        "onnxruntime",
        "openvino",
        "nncf",
        "transformers",
        "numpy",
        "safetensors",
    )
    found = {}
    for name in names:
        if name in sys.modules:
            version = getattr(sys.modules[name], "__version__", None)
            if version is None:
                with contextlib.suppress(metadata.PackageNotFoundError):
                    version = metadata.version(name)
            if version is not None:
                found[name] = str(version)
    return found


def _failed(error: Exception) -> protocol.Failed:
    kind = "exception"
    torch = sys.modules.get("torch")
    out_of_memory = getattr(torch, "OutOfMemoryError", None)
    text = str(error)
    if (
        isinstance(error, MemoryError)
        or (out_of_memory is not None and isinstance(error, out_of_memory))
        or "can't allocate memory" in text
        or "Failed to allocate memory" in text
    ):
        kind = "out_of_memory"
    if isinstance(error, WorkbenchError):
        kind = "refused"
    lines = "".join(traceback.format_exception(error))
    return protocol.Failed(
        kind=kind,
        error=type(error).__name__,
        message=text,
        traceback=lines[-_MAX_TRACEBACK_CHARS:],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
