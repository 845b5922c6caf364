"""Traces that were read once, kept as Arrow files, so that the second opening parses nothing.

An entry is named by the content of the file it was read from and of the code that read it, so a
file that was moved finds it, and one that has changed does not. Without pyarrow and xxhash
nothing is kept. All columns are arrays in the one row of a table; the file is mapped, not read.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from workbench.traces.trace import (
    DeviceProperties,
    Lane,
    MemoryEvents,
    Place,
    Reading,
    Source,
    Sparse,
    Trace,
)

# What makes a trace of a file: an entry is of one state of all of these.
_READERS = (
    "blocks", "cache", "columns", "described", "events", "numbers", "operands", "trace", "values",
    "vocabulary",
)  # fmt: skip
FOLDER_VARIABLE = "WORKBENCH_TRACE_CACHE"
# Reading less than this again takes no time worth a file.
_SMALLEST_BYTES = 1 << 20
_MOST_BYTES = 8 << 30
_BLOCK_BYTES = 4 << 20
_META = b"workbench"


class _Meta(msgspec.Struct):
    """What a trace holds beside its columns."""

    format: str
    lanes: tuple[Lane, ...]
    devices: tuple[DeviceProperties, ...]
    reading: Reading
    places: tuple[Place, ...]
    # As text: it may hold what JSON has no words for, such as NaN.
    header: str


def folder() -> Path:
    """Where entries are kept: `WORKBENCH_TRACE_CACHE`, or the user's folder for such things."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "accel-workbench" / "traces"


def entry_of(path: Path) -> Path | None:
    """Where the entry of a file is, or would be; None where none is kept of it."""
    if path.stat().st_size < _SMALLEST_BYTES:
        return None
    try:
        import pyarrow  # noqa: F401
        import xxhash
    except ImportError:
        return None
    content = xxhash.xxh3_128()
    for name in _READERS:
        content.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            content.update(block)
    return folder() / f"{content.hexdigest()}.arrow"


def load(entry: Path, source: Source) -> Trace | None:
    """The trace that an entry holds, as read from `source`; None where there is none."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(entry)) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
        meta = msgspec.json.decode(table.schema.metadata[_META], type=_Meta)
        columns = {name: table.column(name).chunk(0).values for name in table.column_names}
        found = _trace(columns, meta, source)
    except (OSError, pa.ArrowException, msgspec.MsgspecError, KeyError, IndexError):
        # Gone, cut short, or written by something else: the file is read instead.
        return None
    with contextlib.suppress(OSError):
        os.utime(entry)
    return found


def keep(entry: Path, trace: Trace) -> None:
    """Write the entry of a trace; where that cannot be done there is none."""
    import pyarrow as pa

    assert trace.source is not None
    meta = _Meta(
        format=trace.format,
        lanes=trace.lanes,
        devices=trace.devices,
        reading=trace.reading,
        places=trace.source.places,
        header=json.dumps(trace.header),
    )
    arrays = {name: _one_row(array) for name, array in _columns(trace).items()}
    table = pa.table(arrays).replace_schema_metadata({_META: msgspec.json.encode(meta)})
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=entry.parent, suffix=".part")
        os.close(handle)
        try:
            with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            Path(temporary).replace(entry)
        finally:
            Path(temporary).unlink(missing_ok=True)
        _make_room(entry.parent)
    except OSError:
        return


def _make_room(kept: Path) -> None:
    """Delete what was opened longest ago, until the rest is within the limit."""
    entries = [(path.stat(), path) for path in kept.glob("*.arrow")]
    total = sum(state.st_size for state, _ in entries)
    for state, path in sorted(entries, key=lambda one: one[0].st_mtime_ns):
        if total <= _MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= state.st_size


def _columns(trace: Trace) -> dict[str, Any]:
    """Every array of a trace, and its texts, by name."""
    found: dict[str, Any] = {}
    for field in fields(trace):
        value = getattr(trace, field.name)
        if isinstance(value, np.ndarray):
            found[field.name] = value
        elif isinstance(value, Sparse):
            found[f"{field.name}.rows"], found[f"{field.name}.values"] = value.rows, value.values
        elif isinstance(value, MemoryEvents):
            for one in fields(value):
                found[f"{field.name}.{one.name}"] = getattr(value, one.name)
    return {**found, "names": trace.names, "shapes": trace.shapes}


def _one_row(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, tuple):
        return pa.array([list(values)], type=pa.large_list(pa.large_string()))
    if values.dtype == np.bool_:
        # Arrow packs bits, which numpy cannot map.
        values = values.view(np.uint8)
    offsets = pa.array([0, len(values)], type=pa.int64())
    return pa.LargeListArray.from_arrays(offsets, pa.array(values))


def _mapped(values: Any) -> Any:
    """An array of numbers as it lies in the file; pyarrow's own way imports pandas for it."""
    _, data = values.buffers()
    kind = np.dtype(
        {"float": "float32", "double": "float64"}.get(str(values.type), str(values.type))
    )
    if data is None:
        return np.zeros(0, dtype=kind)
    return np.frombuffer(data, dtype=kind, count=len(values), offset=values.offset * kind.itemsize)


def _trace(columns: dict[str, Any], meta: _Meta, source: Source) -> Trace:
    arrays = {
        name: _mapped(values) for name, values in columns.items() if name not in ("names", "shapes")
    }
    made: dict[str, Any] = {name: array for name, array in arrays.items() if "." not in name}
    for name in {name.partition(".")[0] for name in arrays if name.endswith(".rows")}:
        made[name] = Sparse(rows=arrays[f"{name}.rows"], values=arrays[f"{name}.values"])
    memory = {one.name: arrays[f"memory.{one.name}"] for one in fields(MemoryEvents)}
    memory["on_device"] = memory["on_device"].view(np.bool_)
    for name in ("names", "shapes"):
        made[name] = tuple(columns[name].to_pylist())
    return Trace(
        format="onnxruntime" if meta.format == "onnxruntime" else "kineto",
        **made,
        lanes=meta.lanes,
        memory=MemoryEvents(**memory),
        devices=meta.devices,
        reading=meta.reading,
        source=replace(source, places=meta.places),
        header=json.loads(meta.header),
    )
