"""The bytes of a trace file in blocks, unpacked where it is gzipped."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

BLOCK_BYTES = 2 << 20
_PIECE_BYTES = 64 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_WITH_GZIP_HEADER = 31

unpacker: ModuleType
try:
    from isal import isal_zlib as unpacker
except ImportError:
    # Two to four times slower than isal, and always there.
    unpacker = zlib


class Blocks:
    """Blocks of a file's content, in order; `fault` says afterwards what cut them short.

    A gzip file may be several members in a row. One that ends early or goes bad gives what
    could be unpacked until then.
    """

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self._path = path
        self._block_bytes = block_bytes
        self.fault: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as stream:
            packed = stream.read(2) == _GZIP_MAGIC
            stream.seek(0)
            read = iter(lambda: stream.read(self._block_bytes), b"")
            yield from self._unpacked(read) if packed else read

    def _unpacked(self, read: Iterator[bytes]) -> Iterator[bytes]:
        """Unpacked content, in blocks of about the size that is read."""
        parts: list[bytes] = []
        num_bytes = 0
        for part in self._unpacked_parts(read):
            parts.append(part)
            num_bytes += len(part)
            if num_bytes >= self._block_bytes:
                yield b"".join(parts)
                parts, num_bytes = [], 0
        if parts:
            yield b"".join(parts)

    def _unpacked_parts(self, read: Iterator[bytes]) -> Iterator[bytes]:
        engine = unpacker.decompressobj(wbits=_WITH_GZIP_HEADER)
        is_inside = False
        # A few bytes at a time: what follows the end of a member is copied for each member.
        for packed in _in_pieces(read):
            left = packed
            while left:
                try:
                    found = engine.decompress(left, self._block_bytes)
                except (zlib.error, unpacker.error) as error:
                    self.fault = f"the gzip data go bad: {error}"
                    return
                if found:
                    yield found
                is_inside = not engine.eof
                if engine.eof:
                    # Padding after a member is allowed, and is none.
                    left = engine.unused_data.lstrip(b"\0")
                    engine = unpacker.decompressobj(wbits=_WITH_GZIP_HEADER)
                else:
                    left = engine.unconsumed_tail
        if is_inside:
            with contextlib.suppress(zlib.error, unpacker.error):
                yield from filter(None, (engine.flush(),))
            is_inside = not engine.eof
        if is_inside:
            self.fault = "the gzip data end before their end mark"


def _in_pieces(read: Iterator[bytes]) -> Iterator[bytes]:
    for block in read:
        for start in range(0, len(block), _PIECE_BYTES):
            yield block[start : start + _PIECE_BYTES]
