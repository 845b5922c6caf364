"""Traces with known answers, as Kineto writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_718_000_000_000_000_000


def complete(
    cat: str,
    name: str,
    start_us: float | str,
    dur_us: float | str,
    *,
    pid: int | str = 1,
    tid: int | str = 1,
    **args: Any,
) -> dict[str, Any]:
    """An event with a duration; arguments take `_` for a space (`External_id`)."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": dur_us,
        "args": named,
    }


def kernel(
    name: str, start_us: float, dur_us: float, *, correlation: int | None = None, stream: int = 7
) -> dict[str, Any]:
    args: dict[str, Any] = {"device": 0, "stream": stream}
    if correlation is not None:
        args["correlation"] = correlation
    return complete("kernel", name, start_us, dur_us, pid=0, tid=stream, **args)


def launch(
    start_us: float, dur_us: float, *, correlation: int, name: str = "cudaLaunchKernel"
) -> dict[str, Any]:
    return complete("cuda_runtime", name, start_us, dur_us, correlation=correlation)


def write(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path
