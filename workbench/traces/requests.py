"""One request as parts: what the model's own processing and the copies take beside the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.traces.trace import Trace
from workbench.traces.windows import windows

# A recording of ours marks the parts of each request by these names.
REQUEST_MARK = "request: "
PARTS = ("preprocess", "copy in", "model", "copy out", "postprocess")


@dataclass(frozen=True, kw_only=True)
class RequestPart:
    """One part of the request of median time, or what lies between them ("between").

    `share` is of the request, 0 to 1; shares add up to 1.
    """

    name: str
    ns: int
    share: float


def request_parts(trace: Trace) -> tuple[RequestPart, ...]:
    """The parts in the order in which they run; empty where the trace marks no requests."""
    part_of = {
        number: name.removeprefix(REQUEST_MARK)
        for number, name in enumerate(trace.names)
        if name.startswith(REQUEST_MARK)
    }
    rows = trace.rows("annotation")
    rows = rows[np.isin(trace.name[rows], list(part_of))]
    if len(rows) == 0:
        return ()
    starts, ends = trace.start_ns[rows], trace.end_ns[rows]
    requests = []
    for window in windows(trace):
        inside = rows[(starts >= window.start_ns) & (ends <= window.end_ns)]
        if len(inside) == 0:
            continue
        parts = dict.fromkeys(PARTS, 0)
        for row in inside.tolist():
            name = part_of[int(trace.name[row])]
            if name in parts:
                parts[name] += int(trace.duration_ns[row])
        requests.append((window.wall_ns, parts))
    if not requests:
        return ()
    requests.sort(key=lambda pair: pair[0])
    wall_ns, parts = requests[(len(requests) - 1) // 2]
    parts["between"] = wall_ns - sum(parts.values())
    return tuple(
        RequestPart(name=name, ns=ns, share=ns / wall_ns if wall_ns else 0.0)
        for name, ns in parts.items()
        if ns
    )
