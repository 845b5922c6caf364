"""`prepare`: turn a capture into a source folder, and find out what the model is.

Runs in a worker: this is where the user's code is executed for the first time.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from workbench.core.model import PreparedModel
from workbench.sources.capture import read_capture
from workbench.sources.prepare_onnx import prepare_onnx
from workbench.sources.prepare_torch import prepare_torch


def prepare(model_folder: Path, source_dir: Path) -> PreparedModel:
    """Turn the capture in `model_folder` into a source folder, run it, and describe it.

    `source_dir` is made anew. Beside the source itself it gets source.json, example.npz,
    outputs.npz (what the example gives; bfloat16 as float32, None left out), calibration.npz
    and processing.py with its raw example. Not to be called in the process that loaded the
    model: unpickling a notebook's class there replaces its methods. Raises LoadError where
    the model cannot be opened or run; what the model's own code raises passes through.
    """
    capture = read_capture(model_folder)
    if source_dir.exists():
        shutil.rmtree(source_dir)
    source_dir.mkdir(parents=True)
    if capture.kind == "onnx":
        prepared = prepare_onnx(model_folder, capture, source_dir)
    else:
        prepared = prepare_torch(model_folder, capture, source_dir)
    for compiled in list(source_dir.rglob("__pycache__")):
        shutil.rmtree(compiled)
    return replace(prepared, digest=folder_digest(source_dir))


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of every file below a folder."""
    total = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(file.relative_to(folder).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
