"""What was allocated at a moment, from a snapshot's events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.traces.snapshot import ALLOCATED, Frame, Snapshot


@dataclass(frozen=True, kw_only=True)
class LiveBlock:
    """Memory in use; `frames` is where it was allocated, None where that was before the events."""

    address: int
    num_bytes: int
    frames: tuple[Frame, ...] | None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most that was allocated on a device, after which of its events, and when.

    `event` counts the device's own events, -1 for before the first; `time_ns` is None where it
    was not recorded.
    """

    num_bytes: int
    event: int
    time_ns: int | None


def peak(snapshot: Snapshot, device: int) -> Peak:
    """When most was allocated on a device; the first such moment."""
    curve = snapshot.curve(device)
    before = before_bytes(snapshot, device)
    if len(curve) == 0 or int(curve.max()) <= before:
        return Peak(num_bytes=before, event=-1, time_ns=None)
    event = int(curve.argmax())
    time_ns = int(snapshot.time_ns[snapshot.device == device][event])
    return Peak(num_bytes=int(curve[event]), event=event, time_ns=None if time_ns < 0 else time_ns)


def before_bytes(snapshot: Snapshot, device: int) -> int:
    """Bytes that were allocated on a device before its first event."""
    curve = snapshot.curve(device)
    if len(curve) == 0:
        return snapshot.held_bytes(device)
    mine = np.flatnonzero(snapshot.device == device)
    first = snapshot.actions[snapshot.action[mine[0]]]
    return int(curve[0]) - ALLOCATED.get(first, 0) * int(snapshot.num_bytes[mine[0]])


def live_at(snapshot: Snapshot, device: int, event: int) -> list[LiveBlock]:
    """What was in use on a device after one of its events (-1: before all), the largest first.

    Memory that was allocated before the first event is known by its free, or by being in use
    still when the snapshot was taken.
    """
    live: dict[int, LiveBlock] = {}
    early: list[LiveBlock] = []
    seen: set[int] = set()
    for place, row in enumerate(np.flatnonzero(snapshot.device == device).tolist()):
        sign = ALLOCATED.get(snapshot.actions[snapshot.action[row]], 0)
        address, num_bytes = int(snapshot.address[row]), int(snapshot.num_bytes[row])
        if sign > 0:
            seen.add(address)
            if place <= event:
                frames = snapshot.stacks[snapshot.stack[row]]
                live[address] = LiveBlock(address=address, num_bytes=num_bytes, frames=frames)
        elif sign < 0:
            if address not in seen:
                seen.add(address)
                if place > event:
                    early.append(LiveBlock(address=address, num_bytes=num_bytes, frames=None))
            if place <= event:
                live.pop(address, None)
    for block in snapshot.blocks:
        if block.address not in seen and snapshot.segments[block.segment].device == device:
            early.append(LiveBlock(address=block.address, num_bytes=block.num_bytes, frames=None))
    return sorted([*live.values(), *early], key=lambda one: (-one.num_bytes, one.address))
