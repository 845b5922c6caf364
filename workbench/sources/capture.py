"""The capture: the folder in which a model travels from a client to a worker."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workbench.core.errors import LoadError
from workbench.core.json import Json
from workbench.core.model import Task, TensorSpec
from workbench.sources.specs import Array

CaptureKind = Literal[
    "module",
    "callable",
    "factory",
    "onnx",
    "exported",
    "torchscript",
    "huggingface",
    "sample",
]
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What `capture.json` says.

    `payload` names the file or folder that holds the model, or the text of a factory.
    `given` is the form of the inputs where the forward's signature was not at hand, so that
    the worker binds the call again. `sizes` are example sizes of named dimensions, for
    inputs without an example. `path` is the client's `sys.path`, `helpers` the local modules
    copied into the folder `helpers`. `cell` tells whether `cell.py` holds the notebook's
    definitions (`cell_names`), else `no_cell` why not. `state` names a state dict's file.
    """

    kind: CaptureKind
    name: str
    payload: str
    inputs: tuple[TensorSpec, ...]
    call: dict[str, Json]
    given: dict[str, Json] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    batch_axes: dict[str, int] = field(default_factory=dict)
    batch_given: bool = False
    path: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    cell_names: tuple[str, ...] = ()
    no_cell: str = ""
    state: str | None = None
    task: Task | None = None
    trusted: bool = False
    has_processing: bool = False
    default_dtype: str | None = None
    notes: tuple[str, ...] = ()


def write_capture(folder: Path, capture: Capture) -> None:
    """Write `capture.json`."""
    content = {"version": VERSION, **dataclasses.asdict(capture)}
    (folder / "capture.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_capture(folder: Path) -> Capture:
    """Inverse of `write_capture`. Raises LoadError on another version or no capture."""
    path = folder / "capture.json"
    if not path.is_file():
        raise LoadError(f"{str(folder)!r} holds no capture.json, so no model was captured there.")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    version = content.pop("version", None)
    if version != VERSION:
        raise LoadError(f"the capture in {str(folder)!r} has version {version}, not {VERSION}.")
    content["inputs"] = tuple(
        TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in content["inputs"]
    )
    for key in ("path", "helpers", "cell_names", "notes"):
        content[key] = tuple(content[key])
    return Capture(**content)


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz that `load_arrays` reads back; any name is allowed.

    `numpy.savez` takes names as keywords and reserves some of them.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def load_arrays(path: Path) -> dict[str, Array]:
    """Every array of an .npz, pickles refused."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def new_folder() -> Path:
    """A temporary folder that goes away with this process."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-model-"))
    owner = os.getpid()

    def remove() -> None:
        # A forked child runs the same exit handlers; the folder is its parent's.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
