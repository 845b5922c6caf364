"""What a memory snapshot says, as one document and as tables in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.core.json import Json
from workbench.core.units import format_bytes
from workbench.traces.live import LiveBlock, Peak, before_bytes, live_at, peak
from workbench.traces.pools import Pool, pools
from workbench.traces.snapshot import Frame, Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1
_SHOWN_BLOCKS = 15


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """One device's memory: before the first event, at the peak, and when it was taken."""

    device: int
    num_events: int
    before_bytes: int
    held_bytes: int
    reserved_bytes: int
    peak: Peak
    live: tuple[LiveBlock, ...]
    pools: tuple[Pool, ...]


def device_memory(snapshot: Snapshot) -> tuple[DeviceMemory, ...]:
    """The memory of each device that the snapshot tells of."""
    numbers = {one.device for one in snapshot.segments} | set(snapshot.device.tolist())
    made = []
    for device in sorted(numbers):
        top = peak(snapshot, device)
        made.append(
            DeviceMemory(
                device=device,
                num_events=int((snapshot.device == device).sum()),
                before_bytes=before_bytes(snapshot, device),
                held_bytes=snapshot.held_bytes(device),
                reserved_bytes=snapshot.held_bytes(device, reserved=True),
                peak=top,
                live=tuple(live_at(snapshot, device, top.event)),
                pools=pools(snapshot, device),
            )
        )
    return tuple(made)


def document(snapshot: Snapshot, name: str) -> dict[str, Json]:
    """The snapshot as JSON; `docs/json.md` says what its keys hold."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "memory-snapshot",
        "name": name,
        "num_left_out": snapshot.num_left_out,
        "devices": [
            {
                "device": one.device,
                "num_events": one.num_events,
                "before_bytes": one.before_bytes,
                "held_bytes": one.held_bytes,
                "reserved_bytes": one.reserved_bytes,
                "peak_bytes": one.peak.num_bytes,
                "peak_time_ns": one.peak.time_ns,
                "live_at_peak": [
                    {"num_bytes": block.num_bytes, "allocated_at": _place(block)}
                    for block in one.live
                ],
                "pools": [
                    {
                        "private": pool.is_private,
                        "num_segments": pool.num_segments,
                        "reserved_bytes": pool.reserved_bytes,
                        "used_bytes": pool.used_bytes,
                        "stuck_bytes": pool.stuck_bytes,
                        "largest_free_bytes": pool.largest_free_bytes,
                    }
                    for pool in one.pools
                ],
            }
            for one in device_memory(snapshot)
        ],
    }


def tables(snapshot: Snapshot, name: str) -> RenderableType:
    """The snapshot for a terminal: the peak of each device, and what lived then."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for one in device_memory(snapshot):
        parts.append(
            Text(
                f"{name}, device {one.device}: at most {format_bytes(one.peak.num_bytes)} in use; "
                f"{format_bytes(one.before_bytes)} before the first of {one.num_events} events, "
                f"{format_bytes(one.held_bytes)} of {format_bytes(one.reserved_bytes)} reserved "
                "when it was taken",
                style="bold",
            )
        )
        parts += [Text(_pool_line(pool)) for pool in one.pools]
        if one.live:
            parts.append(_live_table(one))
    if snapshot.num_left_out:
        parts.append(
            Text(f"{snapshot.num_left_out} entries could not be read and are left out.", "yellow")
        )
    return Group(*parts) if parts else Text(f"{name}: an empty memory snapshot")


def _pool_line(pool: Pool) -> str:
    whose = "A graph's own pool" if pool.is_private else "The shared pool"
    return (
        f"{whose}: {format_bytes(pool.used_bytes)} of {format_bytes(pool.reserved_bytes)} in use, "
        f"{format_bytes(pool.stuck_bytes)} in pieces between; the largest free piece is "
        f"{format_bytes(pool.largest_free_bytes)}"
    )


def _live_table(memory: DeviceMemory) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    shown = memory.live[:_SHOWN_BLOCKS]
    more = f" ({len(shown)} of {len(memory.live)})" if len(memory.live) > len(shown) else ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("bytes", justify="right")
    table.add_column(f"allocated at{more}", overflow="fold")
    for block in shown:
        table.add_row(format_bytes(block.num_bytes), Text(_place(block) or "before the events"))
    return table


def _place(block: LiveBlock) -> str | None:
    """The closest line of Python that allocated a block; None where it was not recorded."""
    if not block.frames:
        return None
    written = [frame for frame in block.frames if frame.file.endswith(".py")]
    return _said(written[0] if written else block.frames[0])


def _said(frame: Frame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.name} ({frame.file}{line})"
