"""Taking in files and folders: ONNX, exported programs, TorchScript, Hugging Face, samples."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

from workbench.core.errors import InputError, UnsupportedFormatError
from workbench.core.model import Task
from workbench.sources.capture import Capture, load_arrays
from workbench.sources.data import CALIBRATION, EVALUATION, LABELS_KEY
from workbench.sources.describe import read_exported_graph
from workbench.sources.exported_files import exported_call, exported_inputs
from workbench.sources.finish import Draft
from workbench.sources.huggingface import declared_bytes, read_folder
from workbench.sources.memory import check_fits
from workbench.sources.onnx_files import read_onnx
from workbench.sources.processing import PROCESSING, extract_processing
from workbench.sources.samples import MINILM, minilm_folder, read_card, sample_folder
from workbench.sources.specs import parse_spec

_EXAMPLE_ROWS = 8
_TASKS: tuple[Task, ...] = ("classification", "embedding", "language-model", "regression")


def load_onnx(
    path: Path, inputs: object, folder: Path, *, name: str | None, trusted: bool
) -> Draft:
    """Check an ONNX file and copy it, with its external data, into the capture."""
    summary = read_onnx(path, trusted=trusted)
    total = path.stat().st_size + sum((path.parent / f).stat().st_size for f in summary.external)
    check_fits(max(total, summary.num_bytes), path.name)
    shutil.copyfile(path, folder / "model.onnx")
    for location in summary.external:
        if location in ("model.onnx", "capture.json"):
            raise UnsupportedFormatError(
                f"{path.name!r} keeps external data in {location!r}; save it under another name."
            )
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path.parent / location, folder / location)
    return Draft(
        capture=Capture(
            kind="onnx",
            name=name or path.stem,
            payload="model.onnx",
            inputs=(),
            call={},
            trusted=trusted,
            notes=summary.notes,
        ),
        inputs=inputs,
        specs=summary.inputs,
        num_parameters=summary.num_parameters,
        num_bytes=summary.num_bytes,
    )


def load_exported(
    path: Path | None, inputs: object, folder: Path, *, name: str | None, trusted: bool
) -> Draft:
    """Copy an exported program; its inputs are read from the graph's JSON.

    `path` is None where the program was written into the capture already.
    """
    target = folder / "program.pt2"
    if path is not None:
        check_fits(path.stat().st_size, path.name)
        shutil.copyfile(path, target)
    graph = read_exported_graph(target)
    specs = exported_inputs(graph)
    return Draft(
        capture=Capture(
            kind="exported",
            name=name or (path.stem if path else "exported"),
            payload=target.name,
            inputs=(),
            call=exported_call(graph),
            trusted=trusted,
        ),
        inputs=inputs,
        specs=specs,
        num_bytes=target.stat().st_size,
    )


def load_torchscript(
    path: Path | None, inputs: object, folder: Path, *, name: str | None, trusted: bool
) -> Draft:
    """Copy a TorchScript file; nothing in it says what it takes, so inputs are needed."""
    target = folder / "module.pt"
    if inputs is None:
        raise InputError(
            "TorchScript does not say what it takes: give an example, or specs such as "
            "inputs='x: f32[batch, 3, 224, 224]'."
        )
    if path is not None:
        check_fits(path.stat().st_size, path.name)
        shutil.copyfile(path, target)
    return Draft(
        capture=Capture(
            kind="torchscript",
            name=name or (path.stem if path else "scripted"),
            payload=target.name,
            inputs=(),
            call={},
            trusted=trusted,
        ),
        inputs=inputs,
        num_bytes=target.stat().st_size,
    )


def load_huggingface(
    path: Path, inputs: object, folder: Path, *, name: str | None, trusted: bool
) -> Draft:
    """Copy a Hugging Face folder: configuration, tokenizer, weights, and trusted code."""
    declared = declared_bytes(path)
    if declared is not None:
        check_fits(declared, path.name)
    summary = read_folder(path, trusted=trusted)
    check_fits(summary.num_bytes, path.name)
    notes: list[str] = []
    if importlib.util.find_spec("transformers") is None:
        notes.append("the worker needs transformers: pip install 'accel-workbench[huggingface]'")
    target = folder / "model"
    target.mkdir()
    index = [p.name for p in path.glob("*.index.json")] if len(summary.weights) > 1 else []
    for file in (*summary.weights, *summary.small_files, *summary.remote_code, *index):
        (target / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(path / file, target / file)
    if summary.pools:
        notes.append("its token outputs are averaged into one embedding, as its folder says")
    if inputs is None:
        if not summary.specs:
            raise InputError(
                f"nothing in the folder tells what {summary.architecture} takes: give an example "
                "as inputs= (a dict by name)."
            )
        inputs = list(summary.specs)
    return Draft(
        capture=Capture(
            kind="huggingface",
            name=name or path.name,
            payload="model",
            inputs=(),
            call={},
            task=summary.task,
            trusted=trusted,
            notes=tuple(notes),
        ),
        inputs=inputs,
        num_parameters=summary.num_parameters,
        num_bytes=summary.num_bytes,
    )


def load_sample(sample: str, inputs: object, folder: Path, *, name: str | None) -> Draft:
    """A bundled sample with its rows; its example is the first rows of the evaluation."""
    if sample == MINILM:
        draft = load_huggingface(
            minilm_folder(), inputs, folder, name=name or MINILM, trusted=False
        )
        capture = replace(draft.capture, kind="sample", payload="model")
        return replace(draft, capture=capture)
    source = sample_folder(sample)
    card = read_card(source)
    shutil.copyfile(source / "model.py", folder / "model.py")
    shutil.copyfile(source / "weights.safetensors", folder / "weights.safetensors")
    text = extract_processing((source / "model.py").read_text(encoding="utf-8"))
    if text is not None:
        (folder / PROCESSING).write_text(text, encoding="utf-8")
    rows = load_arrays(source / EVALUATION)
    labels = rows.pop(LABELS_KEY, None)
    calibration = load_arrays(source / CALIBRATION) if (source / CALIBRATION).is_file() else None
    specs = tuple(parse_spec(str(text))[0] for text in card["inputs"])
    if inputs is None:
        inputs = {spec.name: rows[spec.name][:_EXAMPLE_ROWS] for spec in specs}
    task = card.get("task")
    return Draft(
        capture=Capture(
            kind="sample",
            name=name or sample,
            payload="model.py",
            inputs=(),
            call={
                "args": [["tensor", spec.name] for spec in specs],
                "kwargs": {},
            },
            task=task if task in _TASKS else None,
            trusted=True,
        ),
        inputs=inputs,
        specs=specs,
        num_parameters=card.get("num_parameters"),
        num_bytes=(source / "weights.safetensors").stat().st_size,
        evaluation=rows,
        labels=labels,
        calibration=calibration,
        raw=card.get("raw"),
    )
