"""Data that an ONNX file keeps in other files: it may lie beside the model and nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from workbench.core.errors import MissingDataError, UnsupportedFormatError, UntrustedFileError


def check_external(path: Path, tensor: Any, size: int, *, trusted: bool) -> str:
    """The location of a tensor's external data, relative to the model, once it is safe.

    `size` is what the tensor's shape declares, in bytes. Raises as `check_location`,
    MissingDataError where the file is absent or cut short, UnsupportedFormatError where it
    declares another size.
    """
    entry: dict[str, str] = {item.key: item.value for item in tensor.external_data}
    location = entry.get("location", "")
    check_location(path.parent, location, trusted=trusted, owner=f"the tensor {tensor.name!r}")
    file = path.parent / location
    if not file.is_file():
        raise MissingDataError(
            f"{path.name!r} keeps the tensor {tensor.name!r} in {location!r}, which is not in "
            f"{str(path.parent)!r}. Copy that file beside the model."
        )
    try:
        offset = int(entry.get("offset") or 0)
        length = int(entry.get("length") or size)
    except ValueError as error:
        raise UnsupportedFormatError(
            f"{path.name!r}: the offset or length of the tensor {tensor.name!r} is no number."
        ) from error
    if offset < 0 or length != size:
        raise UnsupportedFormatError(
            f"{path.name!r}: the tensor {tensor.name!r} declares {size} bytes, its external data "
            f"{length} at {offset}."
        )
    if offset + length > file.stat().st_size:
        raise MissingDataError(
            f"{location!r} is cut short: the tensor {tensor.name!r} ends at byte "
            f"{offset + length} of {file.stat().st_size}. Copy the file again."
        )
    return location


def check_location(folder: Path, location: str, *, trusted: bool, owner: str) -> None:
    """Refuse a file name that leads out of `folder`, before anything is read.

    Raises UntrustedFileError on absolute paths, "..", drives, and (unless `trusted`) on
    symbolic and hard links, which can stand for a file anywhere.
    """
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    parts = {*posix.parts, *windows.parts}
    refused = (
        not location
        or "\0" in location
        or posix.is_absolute()
        or windows.is_absolute()
        or bool(windows.drive or windows.root)
        or ".." in parts
    )
    if refused:
        raise UntrustedFileError(
            f"{owner} is kept in {location!r}, which leads out of the model's folder. External "
            "data must lie beside the model: save it again with a plain file name."
        )
    if trusted:
        return
    current = folder
    for part in posix.parts:
        current = current / part
        try:
            status = os.lstat(current)
        except FileNotFoundError:
            return
        link = stat.S_ISLNK(status.st_mode)
        hard = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
        if link or hard:
            raise UntrustedFileError(
                f"{owner} is kept in {location!r}, which is a {'symbolic' if link else 'hard'} "
                "link and may stand for a file outside the model's folder. Copy the file itself "
                "there (cp -L), or load it with trusted=True."
            )
