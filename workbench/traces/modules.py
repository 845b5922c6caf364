"""Where time went by part of the model.

PyTorch's profiler records the calls of `nn.Module`s among its Python frames when it records
stacks; a node of ONNX Runtime bears the path of its part in its name. Elsewhere there is nothing
to group by.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.enclosure import Enclosure, enclose
from workbench.traces.grouping import grouped
from workbench.traces.links import Links, link
from workbench.traces.trace import ABSENT, Trace

_MADE_OF = re.compile(
    r"(_token_\d+|_nchwc|_nhwc|_quant(ized)?|/\w*Fusion/?|_(Dynamic)?QuantizeLinear|"
    r"_DequantizeLinear|_output_\d+|_bias_add|_MatMulInteger(ToFloat)?|_scale|_zero_point)$"
)
_FRAME = "nn.Module: "
MODULE_MARK = "module: "


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """All calls of one part of the model.

    `path` names it and the parts around it, outermost first. `host_ns` and `device_ns` include
    the parts inside; `own_host_ns` and `own_device_ns` do not. `num` is None where calls are
    not recorded as such.
    """

    path: tuple[str, ...]
    num: int | None
    host_ns: int
    own_host_ns: int
    device_ns: int
    own_device_ns: int


class _Sums:
    """What falls to each path and to those around it."""

    def __init__(self) -> None:
        self.num: dict[tuple[str, ...], int] = defaultdict(int)
        self.host: dict[tuple[str, ...], int] = defaultdict(int)
        self.device: dict[tuple[str, ...], int] = defaultdict(int)

    def rows(self, *, counted: bool) -> tuple[ModuleRow, ...]:
        paths = {path[:end] for path in (*self.num, *self.host, *self.device)
                 for end in range(1, len(path) + 1)}  # fmt: skip
        whole_host, whole_device = _with_inner(self.host), _with_inner(self.device)
        made = [
            ModuleRow(
                path=path,
                num=self.num.get(path, 0) if counted else None,
                host_ns=whole_host.get(path, 0),
                own_host_ns=self.host.get(path, 0),
                device_ns=whole_device.get(path, 0),
                own_device_ns=self.device.get(path, 0),
            )
            for path in paths
        ]
        return tuple(sorted(made, key=lambda row: (-row.device_ns, -row.host_ns, row.path)))


def _with_inner(sums: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for path, total in sums.items():
        for end in range(1, len(path) + 1):
            found[path[:end]] += total
    return found


def module_rows(
    trace: Trace, links: Links | None = None, enclosure: Enclosure | None = None
) -> tuple[ModuleRow, ...]:
    """Parts of the model, those with the longest device time first, then by the host's.

    Empty where the trace does not record them.
    """
    enclosure = enclosure or enclose(trace)
    if trace.format == "onnxruntime":
        return _of_nodes(trace, enclosure)
    part_of = parts(trace, enclosure)
    paths = _paths(trace, enclosure, part_of)
    if not paths:
        return ()
    sums = _Sums()
    for path in paths.values():
        sums.num[path] += 1
    inside = part_of[enclosure.rows]
    _add(sums.host, paths, inside, enclosure.self_ns)
    links = links or link(trace)
    linked = links.launch != ABSENT
    _add(
        sums.device,
        paths,
        part_of[links.launch[linked]],
        trace.duration_ns[links.work[linked]],
    )
    return sums.rows(counted=True)


def part_paths(trace: Trace, enclosure: Enclosure) -> dict[int, tuple[str, ...]]:
    """The path of each call of a module, by its row."""
    return _paths(trace, enclosure, parts(trace, enclosure))


def parts(trace: Trace, enclosure: Enclosure) -> NDArray[np.intp]:
    """For each row of the trace the closest call of a module around it (or itself), or -1."""
    found = np.full(len(trace), ABSENT, dtype=np.intp)
    is_part = np.array([_is_part(name) for name in trace.names], dtype=np.bool_)
    if not is_part.any():
        return found
    parent = np.full(len(trace), ABSENT, dtype=np.intp)
    parent[enclosure.rows] = enclosure.parent
    found[enclosure.rows] = enclosure.rows
    while True:
        climbing = np.flatnonzero(found != ABSENT)
        climbing = climbing[~is_part[trace.name[found[climbing]]]]
        if len(climbing) == 0:
            return found
        found[climbing] = parent[found[climbing]]


def _is_part(name: str) -> bool:
    return name.startswith((_FRAME, MODULE_MARK))


def _paths(
    trace: Trace, enclosure: Enclosure, part_of: NDArray[np.intp]
) -> dict[int, tuple[str, ...]]:
    """The path of each call of a module, by its row."""
    is_call = part_of[enclosure.rows] == enclosure.rows
    paths: dict[int, tuple[str, ...]] = {}
    order = np.argsort(enclosure.depth[is_call], kind="stable")
    calls, parents = enclosure.rows[is_call][order], enclosure.parent[is_call][order]
    # The outer ones come first, so a path is known when those inside need it.
    for call, parent in zip(calls.tolist(), parents.tolist(), strict=True):
        name = trace.names[trace.name[call]]
        around = int(part_of[parent]) if parent != ABSENT else ABSENT
        if name.startswith(MODULE_MARK):
            paths[call] = tuple(name.removeprefix(MODULE_MARK).split("."))
        else:
            paths[call] = (*paths.get(around, ()), name.removeprefix(_FRAME))
    return paths


def _add(
    sums: dict[tuple[str, ...], int],
    paths: dict[int, tuple[str, ...]],
    part: NDArray[np.intp],
    ns: NDArray[np.int64],
) -> None:
    """Add times to the paths of the calls that they fall to."""
    known = part != ABSENT
    found = grouped(part[known], ns[known])
    for call, total in zip(found.key.tolist(), found.total.tolist(), strict=True):
        sums[paths[call]] += total


def _of_nodes(trace: Trace, enclosure: Enclosure) -> tuple[ModuleRow, ...]:
    """Parts by the paths in the names of an ONNX graph's nodes (`/layer1/conv/Conv`)."""
    assert trace.node is not None
    nodes = trace.node[enclosure.rows]
    known = nodes != ABSENT
    found = grouped(nodes[known], enclosure.self_ns[known])
    sums = _Sums()
    for node, total in zip(found.key.tolist(), found.total.tolist(), strict=True):
        path = tuple(part for part in graph_node(trace.names[node]).split("/") if part)[:-1]
        if path:
            sums.host[path] += total
    return sums.rows(counted=False)


def graph_node(name: str) -> str:
    """The node of the model's graph that a node of an optimised one was made of, by its name.

    ONNX Runtime puts `fused ` before the name of a convolution that took its activation in, and
    the name of what it did behind others; of a layout it keeps `_nchwc` or `_nhwc`, and a number
    where a name was taken.
    """
    before = None
    while before != name:
        before = name
        name = _MADE_OF.sub("", name.removeprefix("fused "))
    return name
