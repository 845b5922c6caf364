"""How an allocator's memory was divided when a snapshot was taken: pools, and what is in pieces.

A captured CUDA graph keeps a pool of its own: replaying it allocates nothing, so that its memory
shows only here.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.traces.snapshot import Block, Segment, Snapshot

SHARED_POOL = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A pool of one device. `identifier` is (0, 0) for the one that all allocations share.

    `free_bytes` are reserved and not in use; `stuck_bytes` of these lie in segments that are
    partly in use, so that they cannot be given back. No request larger than
    `largest_free_bytes` can be served without reserving more.
    """

    device: int
    identifier: tuple[int, int]
    num_segments: int
    reserved_bytes: int
    used_bytes: int
    stuck_bytes: int
    largest_free_bytes: int

    @property
    def is_private(self) -> bool:
        """Whether it belongs to a captured graph."""
        return self.identifier != SHARED_POOL

    @property
    def free_bytes(self) -> int:
        """Reserved, and not in use."""
        return self.reserved_bytes - self.used_bytes


def pools(snapshot: Snapshot, device: int) -> tuple[Pool, ...]:
    """The pools of a device, the largest first."""
    blocks: dict[int, list[Block]] = {}
    for block in snapshot.blocks:
        blocks.setdefault(block.segment, []).append(block)
    found: dict[tuple[int, int], list[int]] = {}
    for number, segment in enumerate(snapshot.segments):
        if segment.device != device:
            continue
        used, largest = _space(segment, blocks.get(number, []))
        sums = found.setdefault(segment.pool, [0, 0, 0, 0, 0])
        sums[0] += 1
        sums[1] += segment.num_bytes
        sums[2] += used
        sums[3] += segment.num_bytes - used if used else 0
        sums[4] = max(sums[4], largest)
    made = [
        Pool(
            device=device,
            identifier=identifier,
            num_segments=num,
            reserved_bytes=reserved,
            used_bytes=used,
            stuck_bytes=stuck,
            largest_free_bytes=largest,
        )
        for identifier, (num, reserved, used, stuck, largest) in found.items()
    ]
    return tuple(sorted(made, key=lambda pool: (-pool.reserved_bytes, pool.identifier)))


def _space(segment: Segment, blocks: list[Block]) -> tuple[int, int]:
    """How much of a segment is in use, and the largest piece that is not."""
    used, largest, until = 0, 0, segment.address
    for block in sorted(blocks, key=lambda one: one.address):
        largest = max(largest, block.address - until)
        used += block.rounded_bytes
        until = max(until, block.address + block.rounded_bytes)
    return used, max(largest, segment.address + segment.num_bytes - until)
