"""Preparing an ONNX file: it is its own source, and ONNX Runtime runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

from workbench.core.errors import LoadError, UnsupportedFormatError
from workbench.core.model import PreparedModel
from workbench.sources.batch import examine
from workbench.sources.candidates import Chosen
from workbench.sources.capture import Capture
from workbench.sources.onnx_files import read_onnx, runtime_errors
from workbench.sources.running import onnx_run
from workbench.sources.source_folder import read_example, write_folder


def prepare_onnx(folder: Path, capture: Capture, target: Path) -> PreparedModel:
    """Copy the file with its external data into `target`, run it, and describe it.

    Imports no torch. Raises UnsupportedFormatError where ONNX Runtime does not open it and
    LoadError where it does not run on its example.
    """
    summary = read_onnx(folder / capture.payload)
    for location in (capture.payload, *summary.external):
        (target / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / location, target / location)
    names = [spec.name for spec in summary.outputs]
    errors = runtime_errors()
    try:
        run = onnx_run(target / capture.payload, names)
    except errors as error:
        raise UnsupportedFormatError(
            f"ONNX Runtime does not open {capture.name!r}: {str(error)[:400]}"
        ) from error
    example, notes = read_example(folder, capture, capture.inputs)
    try:
        expected = run(example)
    except errors as error:
        raise LoadError(
            f"{capture.name!r} does not run on its example "
            f"({'; '.join(map(str, capture.inputs))}): {str(error)[:400]}"
        ) from error
    fixed = ""
    for name, axis in capture.batch_axes.items():
        declared = next(spec for spec in summary.inputs if spec.name == name).shape[axis]
        if isinstance(declared, int):
            fixed = (
                f"the file fixes dimension {axis} of the input {name!r} at {declared}; export it "
                "again with a dynamic batch to try other sizes"
            )
    found = examine(
        run, example, expected, capture.inputs, capture.batch_axes, errors=errors, fixed=fixed
    )
    chosen = Chosen(kind="onnx", origin="the file itself")
    return write_folder(
        folder,
        capture,
        target,
        chosen=chosen,
        call=capture.call,
        example=example,
        expected=expected,
        found=found,
        num_parameters=summary.num_parameters,
        num_bytes=summary.num_bytes,
        layers=summary.layers,
        notes=(*capture.notes, *notes),
    )
