"""Just enough of protobuf's wire format to look at the top of an ONNX file.

The wire format is described at https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from workbench.core.errors import UnsupportedFormatError


class ProtobufError(UnsupportedFormatError):
    """The bytes are no protobuf message."""


def fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, value or offset, length) of one message, up to offset `end`.

    A varint's value stands in the third place; of a length-delimited field it is the offset
    of its bytes in the file, which are skipped. Raises ProtobufError on malformed bytes.
    """
    while file.tell() < end:
        key = _varint(file)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ProtobufError("field 0 does not exist in protobuf")
        if wire == 0:
            yield number, wire, _varint(file), 0
            continue
        if wire == 2:
            length = _varint(file)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ProtobufError(f"wire type {wire} is not used by ONNX")
        offset = file.tell()
        if offset + length > end:
            raise ProtobufError("a field reaches beyond the end of the file: it is cut short")
        file.seek(offset + length)
        yield number, wire, offset, length


def onnx_versions(file: BinaryIO, size: int) -> tuple[int, dict[str, int]]:
    """(ir_version, {domain: opset}) of a ModelProto. The default domain is "ai.onnx"."""
    ir_version = 0
    opsets: list[tuple[int, int]] = []
    for number, wire, value, length in fields(file, size):
        if number == 1 and wire == 0:
            ir_version = value
        elif number == 8 and wire == 2:
            opsets.append((value, length))
    versions: dict[str, int] = {}
    for offset, length in opsets:
        file.seek(offset)
        domain, version = "", 0
        for number, wire, value, text_length in fields(file, offset + length):
            if number == 1 and wire == 2:
                after = file.tell()
                file.seek(value)
                domain = file.read(text_length).decode("utf-8", "replace")
                file.seek(after)
            elif number == 2 and wire == 0:
                version = value
        versions[domain or "ai.onnx"] = version
    return ir_version, versions


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ProtobufError("the file ends inside a number: it is cut short")
        value |= (byte[0] & 0x7F) << shift
        if not byte[0] & 0x80:
            return value
    raise ProtobufError("a number of more than ten bytes")
