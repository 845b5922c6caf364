"""CUDA memory snapshots: what PyTorch's allocator held, and what it did before.

`torch.cuda.memory._dump_snapshot` pickles dictionaries, lists, strings and numbers. Nothing
else is accepted: a pickle that names any global could run code when it is opened.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import UnsupportedFormatError, UntrustedFileError
from workbench.traces.numbers import NS_PER_US, whole_number

# What PyTorch calls its events; `alloc` and `free_completed` change what is allocated,
# `segment_alloc` and `segment_free` (and their `map` twins) what is reserved.
ALLOCATED = {"alloc": 1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
# What unpickling may take: this, and so many times the pickle's own size.
_MOST_MEMORY = 1 << 30
_OF_CONTENT = 64
# A pickle may name one list a million times.
_MOST_BLOCKS = 20_000_000
_MOST_DEVICES = 1024
_LATEST_US = 4 * 10**15
_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_UNREADABLE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One line of a stack: where a block was allocated."""

    name: str
    file: str
    line: int | None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Memory that the allocator took from the device; `pool` is a graph's own where not (0, 0)."""

    device: int
    address: int
    num_bytes: int
    allocated_bytes: int
    stream: int | None
    pool: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Memory in use when the snapshot was taken; `stack` indexes `Snapshot.stacks`.

    `num_bytes` is what was asked for, as the events count it; the allocator rounds it up to
    `rounded_bytes`.
    """

    segment: int
    address: int
    num_bytes: int
    rounded_bytes: int
    stack: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What an allocator held, and the events before, in their order, as columns of one length.

    `action` indexes `actions`, `stack` indexes `stacks`; `time_ns` is -1 where it was not
    recorded. `num_left_out` events and blocks had no address or size.
    """

    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]
    actions: tuple[str, ...]
    action: NDArray[np.int32]
    device: NDArray[np.int16]
    time_ns: NDArray[np.int64]
    address: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    stack: NDArray[np.int32]
    stacks: tuple[tuple[Frame, ...], ...]
    num_left_out: int = 0

    def __len__(self) -> int:
        return len(self.action)

    def curve(self, device: int, *, reserved: bool = False) -> NDArray[np.int64]:
        """Bytes asked for (or reserved) on a device after each of its events.

        What was there before the first event is what the snapshot holds less what the events
        added. Shape (events of the device,).
        """
        signs = RESERVED if reserved else ALLOCATED
        factor = np.array([signs.get(action, 0) for action in self.actions], dtype=np.int64)
        mine = self.device == device
        steps = factor[self.action[mine]] * self.num_bytes[mine]
        total = np.cumsum(steps)
        held = self.held_bytes(device, reserved=reserved)
        return total + (held - (int(total[-1]) if len(total) else 0))

    def held_bytes(self, device: int, *, reserved: bool = False) -> int:
        """Bytes asked for (or reserved) on a device when the snapshot was taken."""
        if reserved:
            return sum(one.num_bytes for one in self.segments if one.device == device)
        return sum(
            block.num_bytes
            for block in self.blocks
            if self.segments[block.segment].device == device
        )


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, strings and numbers; refuses to look anything up."""

    def find_class(self, module: str, name: str) -> Any:
        raise UntrustedFileError(
            f"this pickle asks for {module}.{name}: opening it would run code. A memory snapshot "
            "holds plain data alone."
        )


def read_snapshot(content: bytes) -> Snapshot:
    """The snapshot that a pickle holds.

    Raises UntrustedFileError where the pickle names anything to import, and
    UnsupportedFormatError where it is damaged or holds something else.
    """
    try:
        with _bounded_memory(_MOST_MEMORY + _OF_CONTENT * len(content)):
            found = _PlainUnpickler(io.BytesIO(content)).load()
    except _UNREADABLE as error:
        raise UnsupportedFormatError(
            f"it is a damaged pickle ({type(error).__name__}: {error}); take the snapshot again."
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise UnsupportedFormatError("it is a pickle, and no memory snapshot of PyTorch.")
    return _Builder().snapshot(found)


@contextlib.contextmanager
def _bounded_memory(num_bytes: int) -> Iterator[None]:
    """Let this process take no more than so much beyond what it has, where Linux can tell.

    A pickle of ten bytes can ask for a table of 64 GB.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[5])
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    except (ImportError, OSError, IndexError, ValueError):
        yield
        return
    limit = pages * resource.getpagesize() + num_bytes
    for other in (soft, hard):
        limit = limit if other == resource.RLIM_INFINITY else min(limit, other)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class _Builder:
    def __init__(self) -> None:
        self._stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self._known: dict[int, int] = {}
        self._actions: dict[str, int] = {}
        self._num_left_out = 0

    def snapshot(self, found: dict[str, Any]) -> Snapshot:
        segments: list[Segment] = []
        blocks: list[Block] = []
        for one in _dictionaries(found["segments"]):
            segment = _segment(one)
            if segment is None:
                self._num_left_out += 1
                continue
            segments.append(segment)
            blocks += self._blocks(one, len(segments) - 1, segment.address)
            _refuse_too_many(len(blocks))
        traces = found.get("device_traces")
        columns = self._events(traces if isinstance(traces, list) else [])
        return Snapshot(
            segments=tuple(segments),
            blocks=tuple(blocks),
            actions=tuple(self._actions),
            **columns,
            stacks=tuple(self._stacks),
            num_left_out=self._num_left_out,
        )

    def _blocks(self, segment: dict[str, Any], number: int, address: int) -> list[Block]:
        made = []
        for one in _dictionaries(segment.get("blocks")):
            num_bytes = whole_number(one.get("size"))
            if num_bytes is None:
                self._num_left_out += 1
                continue
            # Old snapshots give no address: blocks lie one after the other.
            own = whole_number(one.get("address"))
            address = address if own is None else own
            if one.get("state") in _ACTIVE:
                asked_for = whole_number(one.get("requested_size"))
                made.append(
                    Block(
                        segment=number,
                        address=address,
                        num_bytes=num_bytes if asked_for is None else asked_for,
                        rounded_bytes=num_bytes,
                        stack=self._stack(one.get("frames")),
                    )
                )
            address += num_bytes
        return made

    def _events(self, traces: list[Any]) -> dict[str, Any]:
        rows: list[tuple[int, int, int, int, int, int]] = []
        for device, trace in enumerate(traces[:_MOST_DEVICES]):
            _refuse_too_many(len(rows) + (len(trace) if isinstance(trace, list) else 0))
            for one in _dictionaries(trace):
                action = one.get("action")
                num_bytes = whole_number(one.get("size"))
                address = whole_number(one.get("addr", one.get("address")))
                if not isinstance(action, str) or num_bytes is None or address is None:
                    self._num_left_out += 1
                    continue
                time_us = whole_number(one.get("time_us"))
                is_known = time_us is not None and 0 <= time_us <= _LATEST_US
                rows.append(
                    (
                        self._actions.setdefault(action, len(self._actions)),
                        device,
                        time_us * NS_PER_US if time_us is not None and is_known else -1,
                        address,
                        num_bytes,
                        self._stack(one.get("frames")),
                    )
                )
        table = np.array(rows, dtype=np.int64).reshape(-1, 6)
        kinds = (np.int32, np.int16, np.int64, np.int64, np.int64, np.int32)
        names = ("action", "device", "time_ns", "address", "num_bytes", "stack")
        return {
            name: table[:, place].astype(kind)
            for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }

    def _stack(self, frames: Any) -> int:
        if not isinstance(frames, list) or not frames:
            return 0
        # A pickle shares the lists of equal stacks.
        known = self._known.get(id(frames))
        if known is None:
            stack = tuple(
                Frame(
                    name=_text(one.get("name")),
                    file=_text(one.get("filename")),
                    line=whole_number(one.get("line")),
                )
                for one in _dictionaries(frames)
            )
            known = self._known[id(frames)] = self._stacks.setdefault(stack, len(self._stacks))
        return known


def _segment(one: dict[str, Any]) -> Segment | None:
    address, num_bytes = whole_number(one.get("address")), whole_number(one.get("total_size"))
    if address is None or num_bytes is None:
        return None
    pool = one.get("segment_pool_id")
    pair = [whole_number(part) for part in pool] if isinstance(pool, tuple | list) else []
    return Segment(
        device=whole_number(one.get("device")) or 0,
        address=address,
        num_bytes=num_bytes,
        allocated_bytes=whole_number(one.get("allocated_size")) or 0,
        stream=whole_number(one.get("stream")),
        pool=(pair[0] or 0, pair[1] or 0) if len(pair) == 2 else (0, 0),
    )


def _refuse_too_many(num: int) -> None:
    if num > _MOST_BLOCKS:
        raise UnsupportedFormatError(
            f"it lists more than {_MOST_BLOCKS:,} blocks or events, which no allocator holds."
        )


def _text(found: Any) -> str:
    return found if isinstance(found, str) else ""


def _dictionaries(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
