"""What a Kineto trace adds up to, slowly and simply, from the format's definition.

It shares no code with the reader that it judges. Times are Decimals of the text; everything is
a loop over dictionaries.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cpu_op": "operator",
    "operator": "operator",
    "cuda_runtime": "runtime",
    "runtime": "runtime",
    "cuda_driver": "driver",
    "python_function": "python",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device_annotation",
    "cuda_sync": "sync",
    "overhead": "overhead",
    "trace": "span",
}
# What files of 2021 write as operators.
SPANS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
DEVICE_WORK = ("kernel", "memcpy", "memset")


def content(path: Path) -> dict[str, Any]:
    packed = path.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    found = json.loads(text, parse_float=Decimal)
    return found if isinstance(found, dict) else {"traceEvents": found}


def ns(microseconds: Any) -> int:
    value = Decimal(microseconds) * 1000
    assert value == int(value)
    return int(value)


def totals(path: Path) -> dict[str, Any]:
    """Counts and sums of one file; times in nanoseconds."""
    file = content(path)
    base = int(file.get("baseTimeNanoseconds", 0))
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_name: dict[str, dict[str, list[int]]] = {kind: {} for kind in DEVICE_WORK}
    work: dict[tuple[int, int], list[tuple[int, int, Any]]] = defaultdict(list)
    launches = set()
    correlations = []
    first, last = None, None
    num_flows = 0
    memory = {"num": 0, "sum_bytes": 0, "peak_bytes": 0}
    for event in file["traceEvents"]:
        phase = event.get("ph")
        arguments = event.get("args", {})
        if phase in ("s", "f"):
            num_flows += 1
        if phase == "i" and event["name"] == "[memory]":
            memory["num"] += 1
            memory["sum_bytes"] += arguments["Bytes"]
            memory["peak_bytes"] = max(memory["peak_bytes"], arguments.get("Total Allocated", 0))
        if phase != "X":
            continue
        kind = KINDS[event["cat"].lower()]
        if kind == "operator" and event["name"].startswith(SPANS):
            kind = "annotation"
        start, duration = base + ns(event["ts"]), ns(event["dur"])
        first = start if first is None else min(first, start)
        last = start + duration if last is None else max(last, start + duration)
        by_kind[kind][0] += 1
        by_kind[kind][1] += duration
        if kind in ("runtime", "driver") and "correlation" in arguments:
            launches.add(arguments["correlation"])
        if kind in DEVICE_WORK:
            device = arguments.get("device", event["pid"])
            stream = int(arguments.get("stream", event["tid"]))
            span = (start, start + duration, arguments.get("correlation"))
            work[int(device), stream].append(span)
            one = by_name[kind].setdefault(event["name"], [0, 0])
            one[0] += 1
            one[1] += duration
            correlations.append(arguments.get("correlation"))
    return {
        "num_objects": len(file["traceEvents"]),
        "num_flows": num_flows,
        "first_ns": first,
        "last_ns": last,
        "by_category": {kind: list(pair) for kind, pair in sorted(by_kind.items())},
        "by_name": by_name,
        "busy_ns": {
            str(number): busy(
                [s for (n, _), spans in work.items() if n == number for s in ended(spans)]
            )
            for number in sorted({number for number, _ in work})
        },
        "num_unlinked": sum(c not in launches for c in correlations),
        "memory": memory,
    }


def ended(spans: list[tuple[int, int, Any]]) -> list[tuple[int, int]]:
    """The spans of one stream, each until the next launch on it begins."""
    spans = sorted(spans, key=lambda span: span[:2])
    found = []
    for place, (start, end, launch) in enumerate(spans):
        if place + 1 < len(spans):
            following, _, next_launch = spans[place + 1]
            if next_launch != launch or launch is None:
                end = min(end, following)
        found.append((start, end))
    return found


def busy(spans: list[tuple[int, int]]) -> int:
    """How long at least one of the spans lasts."""
    total, until = 0, None
    for start, end in sorted(spans):
        if until is None or start > until:
            total += end - start
            until = end
        elif end > until:
            total += end - until
            until = end
    return total
