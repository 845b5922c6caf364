"""A profile of a variant on OpenVINO, from the counters of its nodes.

OpenVINO counts how long each node took on average, and does not say when. The trace has one step,
the average call, in which its nodes follow one another.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.capture.captured import (
    OTHER_ENDING,
    STEP,
    Calls,
    Captured,
    file_name,
    num_to_record,
    record_steps,
)
from workbench.core.errors import RunError
from workbench.core.profile import DEFAULT_ITERATIONS


def capture_openvino(
    load: Callable[[], Any],
    place: Callable[[Any], Sequence[Any]],
    folder: Path,
    name: str,
    *,
    iterations: int = DEFAULT_ITERATIONS,
) -> Captured:
    """Record calls with OpenVINO's counters.

    `load` makes the pipeline and `place(pipeline)` its inputs, of which the first is used: twice,
    since a model that counts is compiled anew. Raises RunError where nothing was counted.
    """
    plain = load()
    call_s = Calls(plain, list(place(plain))[:1]).unrecorded_s()
    num = num_to_record(iterations, call_s)
    del plain
    with _counting():
        pipeline = load()
    (request, *_) = place(pipeline)
    calls = Calls(pipeline, [request])
    # Its kernels are generated in the first call.
    calls.once()
    first = _totals_us(request, 1)
    seconds = record_steps(calls, num)
    num = len(seconds)
    totals = _totals_us(request, num + 1)
    nodes = [
        (kind, node, (total - first.get((kind, node), 0.0)) / num)
        for (kind, node), total in totals.items()
    ]
    ran = [(kind, node, us) for kind, node, us in nodes if us > 0]
    if not ran:
        raise RunError("OpenVINO counted no node of this model.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(name, OTHER_ENDING)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        json.dump({"traceEvents": _events(ran, statistics.mean(seconds))}, stream)
    return Captured(
        path=path,
        num_iterations=num,
        call_s=call_s,
        recorded_call_s=statistics.median(seconds),
    )


def _totals_us(request: Any, num_calls: int) -> dict[tuple[str, str], float]:
    """Microseconds of each node in all calls so far, by its type and name, in order."""
    return {
        (info.node_type, info.node_name): info.real_time.total_seconds() * 1e6 * num_calls
        for info in request.profiling_info
    }


def _events(nodes: list[tuple[str, str, float]], call_s: float) -> list[dict[str, Any]]:
    start = 0.0
    events: list[dict[str, Any]] = []
    for kind, node, us in nodes:
        events.append(_event("cpu_op", kind, start, us, {"node": node}))
        start += us
    # What a call takes beyond its nodes; of nodes that ran at once the sum is more.
    events.append(_event("user_annotation", STEP.format(0), 0.0, max(call_s * 1e6, start), {}))
    return events


def _event(
    cat: str, name: str, start_us: float, dur_us: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": round(start_us, 3),
        "dur": round(dur_us, 3),
        "args": args,
    }


@contextlib.contextmanager
def _counting() -> Iterator[None]:
    """While inside, models that are compiled count what their nodes take."""
    import openvino

    plain = openvino.Core

    class CountingCore(plain):  # type: ignore[misc, valid-type]
        def compile_model(self, *arguments: Any, **named: Any) -> Any:
            *before, settings = arguments
            if not isinstance(settings, dict):
                before, settings = [*before, settings], {}
            return super().compile_model(*before, {**settings, "PERF_COUNT": True}, **named)

    openvino.Core = CountingCore
    try:
        yield
    finally:
        openvino.Core = plain
