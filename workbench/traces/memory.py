"""What memory a trace's allocations added up to, and what was in use at a moment.

From the `[memory]` events of PyTorch's profiler. What a block was for is not recorded; it is told
from where it was allocated and from how long it lived, and called *unknown* where that is not
enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workbench.traces.enclosure import Enclosure, enclose
from workbench.traces.modules import part_paths
from workbench.traces.operations import is_compiled
from workbench.traces.trace import ABSENT, MemoryEvents, Trace
from workbench.traces.vocabulary import CODE_OF

Purpose = Literal[
    "weights",
    "inputs",
    "activations",
    "gradients",
    "optimizer",
    "workspace",
    "unknown",
]
_OPTIMIZER = re.compile(r"^Optimizer\.")
_BACKWARD = re.compile(r"^autograd::engine|Backward\d*$")
_INPUT = re.compile(r"^aten::(to|_to_copy|copy_|pin_memory|_pin_memory)$|DataLoader")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Memory of a device, or of the host (`device` None), after each of its events.

    Columns of one length in order of time. `allocated_bytes` counts from `before_bytes`, what was
    in use before the first event; where the file gives no totals that is None, and the curve
    counts from 0. `reserved_bytes` is None where it is not recorded.
    """

    device: int | None
    rows: NDArray[np.intp]
    time_ns: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64] | None
    before_bytes: int | None

    @property
    def peak(self) -> int:
        """The event after which most was in use, the first such; -1 for before the first."""
        event = int(self.allocated_bytes.argmax())
        return event if self.allocated_bytes[event] > (self.before_bytes or 0) else -1

    def at(self, event: int) -> int:
        """Bytes in use after an event; -1 stands for before the first."""
        return int(self.allocated_bytes[event]) if event >= 0 else self.before_bytes or 0


@dataclass(frozen=True, kw_only=True)
class Block:
    """Memory in use: how large it is, and where it came from.

    `operator` is the outermost operator that allocated it, `part` the path of the part of the
    model; None where that is not recorded. `purpose` says what it was for.
    """

    num_bytes: int
    purpose: Purpose
    allocated_ns: int
    freed_ns: int | None
    operator: str | None
    part: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Live:
    """What was in use at a moment: blocks that the trace saw, the largest first, and the rest.

    `earlier_bytes` were allocated before the profile began: weights, and whatever else was there;
    None where the file gives no totals.
    """

    time_ns: int
    allocated_bytes: int
    earlier_bytes: int | None
    blocks: tuple[Block, ...]

    def by_purpose(self, weight_bytes: int | None = None) -> dict[Purpose, int]:
        """Bytes by what they are for, the most first.

        Of what was there before the profile as much is weights as the model is known to have;
        without that it is unknown.
        """
        sums: dict[Purpose, int] = {}
        for block in self.blocks:
            sums[block.purpose] = sums.get(block.purpose, 0) + block.num_bytes
        earlier = self.earlier_bytes or 0
        weights = min(weight_bytes or 0, earlier)
        rest: tuple[tuple[Purpose, int], ...]
        rest = (("weights", weights), ("unknown", earlier - weights))
        for purpose, num_bytes in rest:
            if num_bytes:
                sums[purpose] = sums.get(purpose, 0) + num_bytes
        return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def curves(trace: Trace) -> tuple[Curve, ...]:
    """The memory of each device that has events, the host's last; empty where none is recorded."""
    memory = trace.memory
    keys = np.where(memory.on_device, memory.device, np.iinfo(np.int32).max)
    found = []
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        rows = rows[np.argsort(memory.time_ns[rows], kind="stable")]
        found.append(_curve(memory, rows, int(key) if memory.on_device[rows[0]] else None))
    return tuple(found)


def _curve(memory: MemoryEvents, rows: NDArray[np.intp], device: int | None) -> Curve:
    changes, totals = memory.num_bytes[rows], memory.allocated_bytes[rows]
    reserved = memory.reserved_bytes[rows]
    summed = np.cumsum(changes)
    has_totals = bool((totals >= 0).all() and (totals > 0).any())
    return Curve(
        device=device,
        rows=rows,
        time_ns=memory.time_ns[rows],
        allocated_bytes=totals if has_totals else summed,
        reserved_bytes=reserved if (reserved >= 0).all() and (reserved > 0).any() else None,
        before_bytes=int(totals[0] - changes[0]) if has_totals else None,
    )


def live(
    trace: Trace, curve: Curve, event: int | None = None, enclosure: Enclosure | None = None
) -> Live:
    """What was in use after one of the curve's events; at its peak unless given."""
    event = curve.peak if event is None else event
    owners = _Owners(trace, enclosure or enclose(trace))
    blocks = [
        owners.block(allocation, free)
        for allocation, free in _lives(trace.memory, curve.rows, event)
    ]
    known = sum(block.num_bytes for block in blocks)
    allocated = curve.at(event)
    return Live(
        time_ns=int(curve.time_ns[max(event, 0)]),
        allocated_bytes=allocated,
        earlier_bytes=None if curve.before_bytes is None else max(allocated - known, 0),
        blocks=tuple(sorted(blocks, key=lambda one: (-one.num_bytes, one.allocated_ns))),
    )


def _lives(
    memory: MemoryEvents, rows: NDArray[np.intp], event: int
) -> Iterator[tuple[int, int | None]]:
    """The rows of allocations that were in use after an event, each with that of its free."""
    open_at: dict[int, int] = {}
    alive: set[int] = set()
    freed: dict[int, int] = {}
    addresses, sizes = memory.address[rows].tolist(), memory.num_bytes[rows].tolist()
    for place, (row, address, size) in enumerate(zip(rows.tolist(), addresses, sizes, strict=True)):
        if address == ABSENT:
            # Without addresses no free can be told to belong to an allocation.
            continue
        if size > 0:
            open_at[address] = row
            if place <= event:
                alive.add(row)
        elif (allocation := open_at.pop(address, None)) is not None:
            freed[allocation] = row
            if place <= event:
                alive.discard(allocation)
    for row in sorted(alive):
        yield row, freed.get(row)


class _Owners:
    """What the host was doing when memory was allocated."""

    def __init__(self, trace: Trace, enclosure: Enclosure) -> None:
        self._trace = trace
        rows = enclosure.rows
        order = np.lexsort((enclosure.depth, trace.start_ns[rows], trace.lane[rows]))
        rows = rows[order]
        lanes, firsts = np.unique(trace.lane[rows], return_index=True)
        parts = np.split(rows, firsts[1:])
        # For each thread its events in order, and when they begin.
        self._by_lane = {
            int(lane): (trace.start_ns[part], part)
            for lane, part in zip(lanes, parts, strict=False)
        }
        self._parent = np.full(len(trace), ABSENT, dtype=np.intp)
        self._parent[enclosure.rows] = enclosure.parent
        self._is_operator = trace.category == CODE_OF["operator"]
        self._paths = part_paths(trace, enclosure)

    def block(self, allocation: int, free: int | None) -> Block:
        memory = self._trace.memory
        time_ns = int(memory.time_ns[allocation])
        freed_ns = None if free is None else int(memory.time_ns[free])
        around = self._around(int(memory.lane[allocation]), time_ns)
        names = [self._name(row) for row in around]
        operators = [row for row in around if self._is_operator[row]]
        # A region of compiled code holds all of the model; what it calls is what matters.
        inner = [row for row in operators if not is_compiled(self._name(row))]
        outermost = next(reversed(inner or operators), None)
        part = next((self._paths[row] for row in around if row in self._paths), None)
        return Block(
            num_bytes=int(memory.num_bytes[allocation]),
            purpose=self._purpose(names, outermost, freed_ns, is_inside=part is not None),
            allocated_ns=time_ns,
            freed_ns=freed_ns,
            operator=None if outermost is None else self._name(outermost),
            part=part,
        )

    def _name(self, row: int) -> str:
        return self._trace.names[int(self._trace.name[row])]

    def _around(self, lane: int, time_ns: int) -> list[int]:
        """The events of a thread that a moment lies in, the innermost first."""
        if lane not in self._by_lane:
            return []
        starts, rows = self._by_lane[lane]
        place = int(np.searchsorted(starts, time_ns, side="right")) - 1
        row = int(rows[place]) if place >= 0 else ABSENT
        found = []
        while row != ABSENT:
            end = int(self._trace.start_ns[row] + self._trace.duration_ns[row])
            if end >= time_ns:
                found.append(row)
            row = int(self._parent[row])
        return found

    def _purpose(
        self, names: list[str], outermost: int | None, freed_ns: int | None, *, is_inside: bool
    ) -> Purpose:
        if any(_OPTIMIZER.search(name) for name in names):
            return "optimizer"
        if outermost is None:
            return "inputs" if any(_INPUT.search(name) for name in names) else "unknown"
        trace, name = self._trace, self._name(outermost)
        end_ns = int(trace.start_ns[outermost] + trace.duration_ns[outermost])
        if freed_ns is not None and freed_ns <= end_ns and not is_compiled(name):
            return "workspace"
        if any(_BACKWARD.search(name) for name in names):
            return "gradients"
        # A copy inside the model is a change of type or device of what it computes.
        is_copy = _INPUT.search(name) is not None
        return "inputs" if is_copy and not is_inside else "activations"
