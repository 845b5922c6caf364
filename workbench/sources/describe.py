"""Static readers: what a file says of itself, without running a line of it."""

from __future__ import annotations

import json
import math
import pickletools
import zipfile
from pathlib import Path
from typing import Any

from workbench.core.errors import MissingDataError, UnsupportedFormatError, UntrustedFileError
from workbench.core.json import Json
from workbench.sources.sniff import sniff

# What torch.load(weights_only=True) rebuilds by itself: containers and tensors.
_HARMLESS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "torch.Size",
    "torch.Tensor",
    "torch.device",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._tensor._rebuild_from_type_v2",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "_codecs.encode",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
}
_STORAGES = ("torch.", "torch.storage.")
# JSON inside a foreign archive is read whole; a model's own is far below this.
_MAX_JSON_BYTES = 256 << 20
_MAX_PICKLE_BYTES = 64 << 20

_SAFETENSORS_WIDTH = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}


def describe(path: str | Path) -> dict[str, Json]:
    """What can be known about a file without running code from it.

    Keys: "format", "num_bytes", "runs_code" (whether opening it for real would run code from
    it), and by format "entries" (name and size in an archive), "globals" (what a pickle
    would import), "suspicious" (those that are no tensors or containers), "tensors" (name to
    dtype and shape), "versions". Raises as `sniff`, and UnsupportedFormatError on malformed
    content.
    """
    file = Path(path)
    form = sniff(file)
    found: dict[str, Json] = {
        "format": form,
        "num_bytes": file.stat().st_size if file.is_file() else None,
        "runs_code": form in ("exported", "aotinductor", "torchscript", "pickle", "torch-pickle"),
    }
    if form == "safetensors":
        found["tensors"] = {
            name: {"dtype": str(t["dtype"]), "shape": list(t["shape"])}
            for name, t in read_safetensors_header(file).items()
        }
    elif form == "onnx":
        from workbench.sources.protobuf import onnx_versions

        with file.open("rb") as stream:
            ir_version, opsets = onnx_versions(stream, file.stat().st_size)
        found["versions"] = {"ir_version": ir_version, **opsets}
    elif form == "huggingface":
        found["entries"] = {p.name: p.stat().st_size for p in file.iterdir() if p.is_file()}
    elif form == "pickle":
        _add_globals(found, _head(file))
    else:
        _describe_zip(file, found)
    return found


def pickle_globals(data: bytes) -> tuple[str, ...]:
    """Every "module.name" that a pickle (or several, one after another) would import.

    Reads opcodes; imports nothing. Raises UnsupportedFormatError on malformed bytes.
    """
    names: set[str] = set()
    position = 0
    try:
        while position < len(data) and data[position : position + 1] == b"\x80":
            position += _scan_pickle(data[position:], names)
    except (ValueError, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise UnsupportedFormatError(f"the pickle is malformed: {error}.") from error
    return tuple(sorted(names))


def _scan_pickle(data: bytes, names: set[str]) -> int:
    """Add the globals of the first pickle in `data`; return its length."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    last = ""
    end = 0
    for opcode, argument, position in pickletools.genops(data):
        name = opcode.name
        end = (position or 0) + 1
        if name in ("GLOBAL", "INST"):
            names.add(".".join(str(argument).split(" ", 1)))
        elif name == "STACK_GLOBAL":
            # The two strings before it, whether written here or fetched from the memo.
            names.add(".".join(strings[-2:]) if len(strings) > 1 else "unknown")
        elif name.startswith("EXT"):
            names.add(f"copyreg extension {argument}")
        elif "UNICODE" in name or name in ("STRING", "BINSTRING", "SHORT_BINSTRING"):
            last = str(argument)
            strings.append(last)
        elif name == "MEMOIZE":
            memo[len(memo)] = last
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[int(argument or 0)] = last
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            strings.append(memo.get(int(argument or 0), "unknown"))
    return end


def suspicious_globals(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a pickle's imports that are neither containers nor tensors."""

    def harmless(name: str) -> bool:
        if name in _HARMLESS:
            return True
        tail = name.rsplit(".", 1)[-1]
        if name.startswith(_STORAGES) and name.count(".") <= 2 and tail.endswith("Storage"):
            return True
        # dtypes are pickled as "torch.float32" and the like.
        return name.startswith("torch.") and tail[:1].islower() and _is_dtype(tail)

    return tuple(name for name in names if not harmless(name))


def _is_dtype(name: str) -> bool:
    kinds = ("float", "bfloat", "int", "uint", "complex", "bool", "qint", "quint")
    return name.rstrip("0123456789_efmnuz") in kinds or name in ("half", "double", "long", "short")


def check_state_pickle(path: Path) -> None:
    """Refuse a pickled state dict that holds more than containers and tensors.

    Raises UntrustedFileError, which names `weights_only`. Opens nothing as a pickle.
    """
    form = sniff(path)
    assert form in ("pickle", "torch-pickle"), form
    if form == "pickle":
        names = pickle_globals(_head(path))
    else:
        with zipfile.ZipFile(path) as archive:
            names = pickle_globals(_read_entry(archive, "data.pkl", _MAX_PICKLE_BYTES))
    bad = suspicious_globals(names)
    if bad:
        raise UntrustedFileError(
            f"{path.name!r} is a pickle that would run {', '.join(bad[:3])} when opened. Pickles "
            "are read with torch.load(weights_only=True) only, also when trusted: save the state "
            "alone, with safetensors or torch.save(model.state_dict(), ...), and give its factory."
        )


def read_safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """Name to {"dtype", "shape", "data_offsets"} of a safetensors file.

    Declared shapes are checked against the offsets and these against the file. Raises
    UnsupportedFormatError where they disagree and MissingDataError where the file is cut
    short.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_JSON_BYTES):
            raise UnsupportedFormatError(f"{path.name!r}: the header of the file is malformed.")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise UnsupportedFormatError(f"{path.name!r}: its header is no JSON.") from error
    header.pop("__metadata__", None)
    for name, entry in header.items():
        try:
            begin, end = entry["data_offsets"]
            width = _SAFETENSORS_WIDTH.get(entry["dtype"])
            declared = None if width is None else math.prod(entry["shape"]) * width
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedFormatError(
                f"{path.name!r}: the entry of the tensor {name!r} is malformed."
            ) from error
        if declared is not None and declared != end - begin:
            raise UnsupportedFormatError(
                f"{path.name!r}: the tensor {name!r} declares {declared} bytes and holds "
                f"{end - begin}."
            )
        if end > size - 8 - length:
            raise MissingDataError(
                f"{path.name!r} is cut short: the tensor {name!r} ends at byte "
                f"{8 + length + end} of {size}. Copy the file again."
            )
    return dict(header)


def read_exported_graph(path: Path) -> dict[str, Any]:
    """The graph's JSON in a .pt2 archive, whose JSON is data and not code."""
    with zipfile.ZipFile(path) as archive:
        data = _read_entry(archive, "models/model.json", _MAX_JSON_BYTES)
    try:
        graph = json.loads(data)
    except ValueError as error:
        raise UnsupportedFormatError(f"{path.name!r}: its graph is no JSON.") from error
    if not isinstance(graph, dict) or "graph_module" not in graph:
        raise UnsupportedFormatError(f"{path.name!r} holds no exported graph.")
    return graph


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_PICKLE_BYTES)


def _read_entry(archive: zipfile.ZipFile, inner: str, limit: int) -> bytes:
    for info in archive.infolist():
        if info.filename.partition("/")[2] == inner or info.filename == inner:
            if info.file_size > limit:
                raise UnsupportedFormatError(
                    f"{inner} in {archive.filename} declares {info.file_size} bytes; at most "
                    f"{limit} are read."
                )
            return archive.read(info)
    raise UnsupportedFormatError(f"{archive.filename} holds no {inner}.")


def _add_globals(found: dict[str, Json], data: bytes) -> None:
    names = pickle_globals(data)
    found["globals"] = list(names)
    found["suspicious"] = list(suspicious_globals(names))


def _describe_zip(path: Path, found: dict[str, Json]) -> None:
    with zipfile.ZipFile(path) as archive:
        found["entries"] = {info.filename: info.file_size for info in archive.infolist()}
        names: set[str] = set()
        for info in archive.infolist():
            looks_pickled = info.filename.endswith((".pkl", ".pt")) or "sample_inputs" in (
                info.filename
            )
            if not looks_pickled or info.file_size > _MAX_PICKLE_BYTES:
                continue
            data = archive.read(info)
            if data[:4] == b"PK\x03\x04":
                names |= set(_globals_of_nested(data))
            else:
                names |= set(pickle_globals(data))
    if names:
        ordered = tuple(sorted(names))
        found["globals"] = list(ordered)
        found["suspicious"] = list(suspicious_globals(ordered))
    if found["format"] == "exported":
        graph = read_exported_graph(path)
        found["versions"] = {"torch": str(graph.get("torch_version"))}


def _globals_of_nested(data: bytes) -> tuple[str, ...]:
    import io

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        try:
            return pickle_globals(_read_entry(archive, "data.pkl", _MAX_PICKLE_BYTES))
        except UnsupportedFormatError:
            return ()
