"""What a file is, by its content and never by its extension. Reads, runs nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal

from workbench.core.errors import MissingDataError, UnsupportedFormatError
from workbench.sources.protobuf import ProtobufError, fields

Format = Literal[
    "onnx",
    "exported",
    "aotinductor",
    "torchscript",
    "torch-pickle",
    "pickle",
    "safetensors",
    "huggingface",
]

READABLE = (
    "an ONNX file, an exported program (.pt2), TorchScript, a state dict (.safetensors or "
    ".pt) with its factory, or a Hugging Face folder"
)
_FOREIGN = {
    b"GGUF": "GGUF (llama.cpp)",
    b"\x89HDF": "HDF5 (Keras)",
    b"ggml": "GGML",
    b"<?xml"[:4]: "XML (OpenVINO IR?)",
}


def sniff(path: Path) -> Format:
    """The format of a file or folder.

    Raises MissingDataError where there is nothing, UnsupportedFormatError where it is
    nothing that we read.
    """
    if not path.exists():
        raise MissingDataError(f"there is no file or folder {str(path)!r}.")
    if path.is_dir():
        if (path / "config.json").is_file():
            return "huggingface"
        raise UnsupportedFormatError(
            f"the folder {str(path)!r} holds no config.json, so it is no Hugging Face model; "
            f"give {READABLE}."
        )
    with path.open("rb") as file:
        head = file.read(64)
    if head[:4] == b"PK\x03\x04" and zipfile.is_zipfile(path):
        return _sniff_zip(path)
    if _is_safetensors(path, head):
        return "safetensors"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] in range(1, 6):
        return "pickle"
    if _is_onnx(path):
        return "onnx"
    if path.suffix == ".py":
        raise UnsupportedFormatError(
            f"{str(path)!r} is Python code; name the function in it that makes the model: "
            f"{path.stem}:FUNCTION, with its folder as the working directory."
        )
    foreign = _FOREIGN.get(head[:4]) or ("TFLite" if head[4:8] == b"TFL3" else None)
    raise UnsupportedFormatError(
        f"{str(path)!r} is {foreign or 'of no format that is known here'}; give {READABLE}."
    )


def _sniff_zip(path: Path) -> Format:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    inner = [name.partition("/")[2] for name in names]
    if any(name.startswith("data/aotinductor/") for name in inner):
        return "aotinductor"
    if "archive_format" in inner or any(n == "serialized_exported_program.json" for n in names):
        return "exported"
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torchscript"
    if "data.pkl" in inner:
        return "torch-pickle"
    raise UnsupportedFormatError(
        f"{str(path)!r} is a zip archive, but not one that torch wrote; give {READABLE}."
    )


def _is_safetensors(path: Path, head: bytes) -> bool:
    if len(head) < 10 or head[8:9] != b"{":
        return False
    return int.from_bytes(head[:8], "little") <= path.stat().st_size - 8


def _is_onnx(path: Path) -> bool:
    """A ModelProto: a version of the representation, and a graph or an operator set."""
    try:
        with path.open("rb") as file:
            numbers = [number for number, *_ in fields(file, path.stat().st_size)]
    except ProtobufError:
        return False
    return 1 in numbers and (7 in numbers or 8 in numbers) and max(numbers) <= 30
