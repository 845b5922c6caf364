"""A profile of a variant on ONNX Runtime, which profiles a session from its creation on."""

from __future__ import annotations

import contextlib
import gzip
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.capture.captured import (
    OTHER_ENDING,
    Calls,
    Captured,
    file_name,
    num_to_record,
    record_steps,
)
from workbench.core.errors import RunError
from workbench.core.profile import DEFAULT_ITERATIONS

_RUN = "model_run"


def capture_onnxruntime(
    load: Callable[[], Any],
    place: Callable[[Any], Sequence[Any]],
    folder: Path,
    name: str,
    *,
    iterations: int = DEFAULT_ITERATIONS,
) -> Captured:
    """Record calls with ONNX Runtime's own profiler.

    `load` makes the pipeline and `place(pipeline)` its inputs: twice, since the session that is
    timed without a profile is not the one that is recorded. Raises RunError where nothing was
    recorded.
    """
    plain = load()
    call_s = Calls(plain, list(place(plain))).unrecorded_s()
    num = num_to_record(iterations, call_s)
    del plain
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with _profiling(Path(scratch)) as sessions:
            pipeline = load()
        if not sessions:
            raise RunError("the pipeline opened no session of ONNX Runtime.")
        calls = Calls(pipeline, list(place(pipeline)))
        # The first calls allocate; they are cut off the profile below.
        calls.once()
        seconds = record_steps(calls, num)
        events = []
        for session in sessions:
            written = Path(session.end_profiling())
            events += json.loads(written.read_text(encoding="utf-8"))
    kept, num = last_runs(events, len(seconds))
    if not any(event.get("cat") == "Node" for event in kept):
        raise RunError("ONNX Runtime's profiler recorded no operator.")
    path = folder / file_name(name, OTHER_ENDING)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        json.dump(kept, stream)
    return Captured(
        path=path,
        num_iterations=num,
        call_s=call_s,
        recorded_call_s=statistics.median(seconds),
    )


def last_runs(events: list[dict[str, Any]], num: int) -> tuple[list[dict[str, Any]], int]:
    """The events of the session's last runs and of its creation, and how many runs these are.

    Its profiler stops at a number of events, so there may be fewer than were made; the first of
    all, in which memory is allocated, is none of them.
    """
    runs = sorted(event["ts"] for event in events if event.get("name") == _RUN)
    num = min(num, len(runs) - 1)
    if num < 1:
        raise RunError("ONNX Runtime's profile holds no run but the first.")
    first, before = runs[-num], runs[0]
    return [event for event in events if event["ts"] >= first or event["ts"] < before], num


@contextlib.contextmanager
def _profiling(folder: Path) -> Iterator[list[Any]]:
    """While inside, sessions that are opened profile themselves; they are collected."""
    import onnxruntime

    opened: list[Any] = []
    plain = onnxruntime.InferenceSession

    def open_session(model: Any, options: Any = None, *more: Any, **named: Any) -> Any:
        options = named.pop("sess_options", options) or onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / f"session-{len(opened)}")
        try:
            session = plain(model, options, *more, **named)
        finally:
            options.enable_profiling = False
        opened.append(session)
        return session

    onnxruntime.InferenceSession = open_session
    try:
        yield opened
    finally:
        onnxruntime.InferenceSession = plain
