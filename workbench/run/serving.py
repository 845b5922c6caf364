"""A pipeline in the worker that serves it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.core.profile import Peaks
from workbench.run import protocol
from workbench.run.rows import Rows


class Server:
    """The one variant that a worker has loaded."""

    def __init__(
        self, module: ModuleType, pipeline: Any, rows: Rows, batch_size: int | None, raw: object
    ) -> None:
        self.module = module
        self.pipeline = pipeline
        self.raw = raw
        self.rows = rows
        self.batch_size = batch_size
        self.inputs = rows.sets(batch_size)
        self.placed = [pipeline.place(arrays) for arrays in self.inputs]
        self.items_per_call = batch_size or rows.example_size or 1


def import_pipeline(path: Path) -> ModuleType:
    """Import a pipeline file by its path, under a name of its own."""
    spec = importlib.util.spec_from_file_location("pipeline", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pipeline"] = module
    spec.loader.exec_module(module)
    return module


def record(server: Server, order: protocol.Record) -> protocol.Recorded:
    """Profile calls of what is served. The server is of no use afterwards."""
    from workbench.capture.tools import capture

    inputs, pipeline, placed = server.inputs, server.pipeline, server.placed
    if order.tool != "torch":
        # What records is opened anew: the one that is served makes room for it.
        server.pipeline, server.placed, pipeline, placed = None, [], None, []

    def load() -> Any:
        return server.module.load(order.folder) if pipeline is None else pipeline

    def place(loaded: Any) -> list[Any]:
        return placed or [loaded.place(arrays) for arrays in inputs]

    found = capture(
        order.tool,
        load,
        place,
        Path(order.out),
        "variant",
        iterations=order.iterations,
        stacks=order.stacks,
    )
    request = None
    if order.tool == "torch" and server.raw is not None and pipeline.preprocess is not None:
        request = _record_request(pipeline, server.raw, order)
    return protocol.Recorded(
        path=str(found.path),
        num_iterations=found.num_iterations,
        call_s=found.call_s,
        recorded_call_s=found.recorded_call_s,
        peaks=_peaks(order),
        snapshot=None if found.snapshot is None else str(found.snapshot),
        request=request,
    )


def _record_request(pipeline: Any, raw: object, order: protocol.Record) -> str | None:
    """Whole requests in a file of their own; None where the model takes no such example."""
    from workbench.capture.torch import capture_torch

    try:
        found = capture_torch(
            pipeline, [], Path(order.out), "request", iterations=order.iterations, raw=raw
        )
    except Exception:  # noqa: BLE001 - the calls are recorded; the log says why requests are not
        traceback.print_exc()
        return None
    return str(found.path)


def _peaks(order: protocol.Record) -> Peaks | None:
    """What the device reaches; None where there is no room for the products left."""
    from workbench.capture.peaks import measure_peaks

    try:
        return measure_peaks(order.device, all_threads=order.all_threads)
    except Exception:  # noqa: BLE001 - the recording is whole without
        traceback.print_exc()
        return None
