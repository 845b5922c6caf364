"""`prepare`: turn a capture into a source folder, and find out what the model is.

Runs in a worker: this is where the user's code is executed for the first time.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import LoadError, UnsupportedFormatError
from workbench.core.model import BatchClaim, PreparedModel, SourceKind, TensorSpec
from workbench.sources import candidates
from workbench.sources.axes import free_batch, guess_axes
from workbench.sources.batch import Findings, dynamic_specs, examine
from workbench.sources.candidates import FACTORY, WEIGHTS, Chosen, Live, choose, write_source
from workbench.sources.capture import Capture, load_arrays, read_capture, save_arrays
from workbench.sources.data import CALIBRATION, EVALUATION
from workbench.sources.finish import EXAMPLE
from workbench.sources.fit import fit_inputs
from workbench.sources.fresh import prove
from workbench.sources.huggingface import HuggingFaceSummary, read_folder
from workbench.sources.layers import count_functions, count_layers, count_nodes, module_bytes
from workbench.sources.local_modules import copy_local, imported_roots, requirements
from workbench.sources.onnx_files import read_onnx, runtime_errors
from workbench.sources.opening import extend_path, import_file, open_module
from workbench.sources.processing import PROCESSING, RAW_ARRAY, RAW_JSON
from workbench.sources.ranges import find_ranges
from workbench.sources.running import Results, Run, bit_equal, onnx_run, torch_run
from workbench.sources.sentences import write_sentences
from workbench.sources.signature import bind_again
from workbench.sources.specs import Array, draw, example_shape, is_integer
from workbench.sources.transformers_models import (
    MODEL,
    copy_configuration,
    factory_text,
    open_folder,
)

OUTPUTS = "outputs.npz"


def prepare(model_folder: Path, source_dir: Path) -> PreparedModel:
    """Turn the capture in `model_folder` into a source folder, run it, and describe it.

    `source_dir` is made anew. Beside the source itself it gets source.json, example.npz,
    outputs.npz (what the example gives; bfloat16 as float32, None left out), calibration.npz
    and processing.py. Not to be called in the process that loaded the model: unpickling a
    notebook's class there replaces its methods. Raises LoadError where the model cannot be
    opened or run; what the model's own code raises passes through.
    """
    capture = read_capture(model_folder)
    if source_dir.exists():
        shutil.rmtree(source_dir)
    source_dir.mkdir(parents=True)
    if capture.kind == "onnx":
        prepared = _prepare_onnx(model_folder, capture, source_dir)
    else:
        prepared = _prepare_torch(model_folder, capture, source_dir)
    return replace(prepared, digest=folder_digest(source_dir))


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of every file below a folder."""
    total = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        total.update(file.relative_to(folder).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def _prepare_onnx(folder: Path, capture: Capture, target: Path) -> PreparedModel:
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
    example, notes = _example(folder, capture, capture.inputs)
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
    return _write(
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


def _prepare_torch(folder: Path, capture: Capture, target: Path) -> PreparedModel:
    import torch

    if capture.default_dtype is not None:
        torch.set_default_dtype(getattr(torch, capture.default_dtype))
    extend_path(folder, capture)
    summary: HuggingFaceSummary | None = None
    program: Any = None
    if capture.payload == MODEL:
        summary = read_folder(folder / MODEL, trusted=capture.trusted)
        module = _open_transformers(folder, capture, summary, target)
        if capture.kind == "sample" and not (folder / EXAMPLE).is_file():
            save_arrays(folder / EXAMPLE, write_sentences(folder / MODEL, folder))
    elif capture.kind == "sample":
        module = _open_sample(folder, target)
    elif capture.kind == "exported":
        program = torch.export.load(str(folder / capture.payload))
        module = program.module()
    elif capture.kind == "torchscript":
        module = _load_script(folder / capture.payload).eval()
    else:
        module = open_module(folder, capture)
    call = capture.call
    specs = capture.inputs
    if capture.given and capture.kind != "torchscript":
        call = bind_again(capture.given, inspect.signature(module.forward))
    elif capture.kind == "torchscript":
        call = _positional(capture)
    specs, example, notes = _drawn_example(folder, capture, module, call)
    run = torch_run(module, call, specs)
    expected = _first_run(run, example, specs, capture)
    found = examine(run, example, expected, specs, _axes(capture, specs))
    # The smallest batch that ran is the cheapest to run again.
    probe, first = (
        (found.probes[0], found.results[0]) if found.probes else (dict(example), expected)
    )
    again = bit_equal(run(probe).arrays, first.arrays)
    if again:
        notes = (*notes, f"its outputs differ from run to run: {again}")
    chosen, found = _settle(folder, capture, target, module, call, specs, example, expected, found)
    layers = count_nodes(program) if program is not None else count_layers(module)
    if program is None and capture.kind != "torchscript":
        layers = {**layers, **count_functions(lambda: run(probe))}
    num_parameters, num_bytes = module_bytes(module)
    return _write(
        folder,
        replace(capture, inputs=specs),
        target,
        chosen=chosen,
        call=call,
        example=example,
        expected=expected,
        found=found,
        num_parameters=num_parameters,
        num_bytes=num_bytes,
        layers=layers,
        notes=(*capture.notes, *notes),
    )


def _settle(
    folder: Path,
    capture: Capture,
    target: Path,
    module: Any,
    call: Mapping[str, Any],
    specs: tuple[TensorSpec, ...],
    example: Mapping[str, Array],
    expected: Results,
    found: Findings,
) -> tuple[Chosen, Findings]:
    """The source that is kept, and the findings as that source bears them out."""
    if capture.kind in ("exported", "torchscript"):
        name = "program.pt2" if capture.kind == "exported" else "module.pt"
        shutil.copyfile(folder / capture.payload, target / name)
        kind: SourceKind = "exported" if capture.kind == "exported" else "torchscript"
        return Chosen(kind=kind, origin="the file itself"), found
    live = Live(
        module=module,
        call=call,
        specs=specs,
        axes=found.claim.axes,
        probes=[dict(example), *found.probes],
        expected=[expected, *found.results],
        dynamic=found.claim.dynamic,
    )
    if capture.kind in ("sample", "huggingface"):
        return _keep_factory(folder, capture, live, target), found
    chosen = choose(folder, capture, live, target)
    if found.claim.dynamic and not chosen.dynamic:
        claim = replace(
            found.claim,
            dynamic=False,
            reason=chosen.notes[0] if chosen.notes else "the exported program has a fixed batch",
        )
        found = replace(found, claim=claim)
    return chosen, found


def _keep_factory(folder: Path, capture: Capture, live: Live, target: Path) -> Chosen:
    """The factory that a sample or a Hugging Face folder comes with."""
    candidates.write_weights(live.module, target / WEIGHTS)
    if capture.payload != MODEL:
        # A sample's factory is proved by the tests of the samples, once and for all.
        return Chosen(kind="factory", origin="the sample's own factory")
    summary = read_folder(folder / MODEL, trusted=capture.trusted)
    problem = candidates.check_here(target, live) or candidates.prove_folder(
        target, "factory", live, live.probes
    )
    if not problem:
        return Chosen(kind="factory", origin="the folder's configuration and weights")
    notes = (f"not kept: made from its configuration alone: {problem}",)
    # Some architectures come out of their configuration otherwise than out of their folder.
    for name in summary.weights:
        shutil.copyfile(folder / MODEL / name, target / MODEL / name)
    for index in (folder / MODEL).glob("*.index.json"):
        shutil.copyfile(index, target / MODEL / index.name)
    text = factory_text(summary, trusted=capture.trusted, dtype="float32", weights=True)
    (target / FACTORY).write_text(text, encoding="utf-8")
    still = candidates.check_here(target, live) or candidates.prove_folder(
        target, "factory", live, live.probes
    )
    return Chosen(
        kind="factory",
        origin="the folder itself",
        not_exportable=f"{problem}; opened as a folder, {still}" if still else None,
        notes=notes,
    )


def _open_transformers(
    folder: Path, capture: Capture, summary: HuggingFaceSummary, target: Path
) -> Any:
    copy_configuration(folder / MODEL, summary, target)
    text = factory_text(summary, trusted=capture.trusted, dtype="float32", weights=False)
    (target / FACTORY).write_text(text, encoding="utf-8")
    factory = import_file("factory", target / FACTORY)
    module = open_folder(folder / MODEL, factory, summary, trusted=capture.trusted)
    dtypes = {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    if len(dtypes) == 1 and dtypes != {"float32"}:
        text = factory_text(
            summary, trusted=capture.trusted, dtype=next(iter(dtypes)), weights=False
        )
        (target / FACTORY).write_text(text, encoding="utf-8")
    return module


def _open_sample(folder: Path, target: Path) -> Any:
    from safetensors.torch import load_file

    shutil.copyfile(folder / "model.py", target / FACTORY)
    module = import_file("factory", target / FACTORY).make()
    module.load_state_dict(load_file(str(folder / WEIGHTS)), strict=True)
    return module.eval()


def _load_script(path: Path) -> Any:
    import warnings

    import torch

    with warnings.catch_warnings():
        # torch says of torch.jit that it is on its way out; the user's file is what it is.
        warnings.filterwarnings("ignore", message=r".*torch\.jit.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r".*torch\.jit.*", category=FutureWarning)
        return torch.jit.load(str(path), map_location="cpu")


def _positional(capture: Capture) -> dict[str, Any]:
    """TorchScript knows its arguments by place; specs named them in that order."""
    args: Any = capture.call["args"]
    kwargs: Any = capture.call["kwargs"]
    return {"args": [*args, *kwargs.values()], "kwargs": {}}


def _axes(capture: Capture, specs: tuple[TensorSpec, ...]) -> dict[str, int]:
    return dict(capture.batch_axes) if capture.batch_axes else guess_axes(specs)


def _example(
    folder: Path, capture: Capture, specs: tuple[TensorSpec, ...]
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The example that was given, or one drawn from the specs, with a note that says so."""
    if (folder / EXAMPLE).is_file():
        return load_arrays(folder / EXAMPLE), ()
    rng = np.random.default_rng(0)
    arrays = {spec.name: draw(spec, example_shape(spec, capture.sizes), rng) for spec in specs}
    return arrays, (f"made-up inputs: {'; '.join(map(_how_drawn, specs))}",)


def _how_drawn(spec: TensorSpec) -> str:
    if spec.dtype == "bool":
        return f"{spec.name} is True"
    if not is_integer(spec.dtype):
        return f"{spec.name} is standard normal"
    if spec.high is None:
        return f"{spec.name} is {spec.low if spec.low is not None else 1} (no table to index)"
    return f"{spec.name} lies in {spec.low or 0}..{spec.high}"


def _drawn_example(
    folder: Path, capture: Capture, module: Any, call: Mapping[str, Any]
) -> tuple[tuple[TensorSpec, ...], dict[str, Array], tuple[str, ...]]:
    """Specs and example for a torch model, ids drawn in the range of the table they meet."""
    specs = capture.inputs
    if (folder / EXAMPLE).is_file():
        arrays = load_arrays(folder / EXAMPLE)
        shapes = {name: array.shape for name, array in arrays.items()}
        specs = tuple(_resized(spec, shapes[spec.name]) for spec in specs)
        return specs, arrays, ()
    zeros = {
        spec.name: draw(spec, example_shape(spec, capture.sizes), np.random.default_rng(0))
        for spec in specs
    }
    if any(is_integer(spec.dtype) and spec.high is None for spec in specs):
        ranges = find_ranges(module, call, specs, zeros)
        specs = tuple(
            replace(spec, low=spec.low or 0, high=ranges[spec.name])
            if spec.name in ranges and spec.high is None
            else spec
            for spec in specs
        )
    arrays, notes = _example(folder, capture, specs)
    return specs, arrays, notes


def _resized(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    return replace(spec, shape=spec.shape if len(spec.shape) == len(shape) else shape)


def _first_run(
    run: Run, example: Mapping[str, Array], specs: tuple[TensorSpec, ...], capture: Capture
) -> Results:
    try:
        expected = run(example)
    except Exception as error:
        error.add_note(
            f"raised by {capture.name} on its example inputs: {'; '.join(map(str, specs))}"
        )
        raise
    if not any(array is not None and array.size for array in expected.arrays.values()):
        raise LoadError(f"{capture.name} gives no output on its example inputs.")
    return expected


def _write(
    folder: Path,
    capture: Capture,
    target: Path,
    *,
    chosen: Chosen,
    call: Mapping[str, Any],
    example: Mapping[str, Array],
    expected: Results,
    found: Findings,
    num_parameters: int | None,
    num_bytes: int | None,
    layers: dict[str, int],
    notes: tuple[str, ...],
) -> PreparedModel:
    """Everything beside the source itself, and the description."""
    claim = found.claim
    inputs = _final_specs(capture.inputs, example, claim)
    outputs = tuple(
        replace(spec, shape=_with_batch(spec.shape, found.output_axes.get(spec.name), claim))
        for spec in expected.specs()
    )
    write_source(
        target,
        chosen.kind,
        call,
        inputs,
        [spec.name for spec in outputs],
        claim.axes,
        found.output_axes,
    )
    save_arrays(target / EXAMPLE, example)
    save_arrays(target / OUTPUTS, {n: a for n, a in expected.arrays.items() if a is not None})
    if (folder / CALIBRATION).is_file():
        shutil.copyfile(folder / CALIBRATION, target / CALIBRATION)
    if capture.has_processing:
        _add_processing(folder, capture, target, inputs, claim.axes)
    made_up = tuple(spec.name for spec in inputs) if not (folder / EXAMPLE).is_file() else ()
    return PreparedModel(
        kind=chosen.kind,
        origin=chosen.origin,
        inputs=inputs,
        outputs=outputs,
        batch=claim,
        num_parameters=num_parameters,
        num_bytes=num_bytes,
        digest="",
        has_calibration=(target / CALIBRATION).is_file(),
        has_evaluation=(folder / EVALUATION).is_file(),
        made_up=made_up,
        layers=layers,
        not_exportable=chosen.not_exportable,
        requirements=requirements(target),
        notes=(*notes, *found.notes, *chosen.notes),
    )


def _final_specs(
    specs: tuple[TensorSpec, ...], example: Mapping[str, Array], claim: BatchClaim
) -> tuple[TensorSpec, ...]:
    """Input specs with numbers, and "batch" only where that is claimed."""
    numbers = tuple(replace(spec, shape=tuple(example[spec.name].shape)) for spec in specs)
    return dynamic_specs(numbers, claim.axes) if claim.dynamic else numbers


def _with_batch(
    shape: tuple[int | str, ...], axis: int | None, claim: BatchClaim
) -> tuple[int | str, ...]:
    if axis is None or not claim.dynamic:
        return shape
    return (*shape[:axis], "batch", *shape[axis + 1 :])


def _add_processing(
    folder: Path,
    capture: Capture,
    target: Path,
    inputs: tuple[TensorSpec, ...],
    axes: Mapping[str, int],
) -> None:
    """Copy `processing.py` with its helpers, and run it where nothing else is.

    Raises LoadError where it fails there, InputError where it makes no inputs of the model.
    """
    shutil.copyfile(folder / PROCESSING, target / PROCESSING)
    text = (target / PROCESSING).read_text(encoding="utf-8")
    copy_local(sorted(imported_roots(text)), [str(folder / "helpers")], target)
    for name in (RAW_JSON, RAW_ARRAY):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    if capture.kind == "sample":
        return
    made: dict[str, Array] = {}
    problem = prove(target, (), (), 1, made)
    if problem:
        raise LoadError(f"preprocess and postprocess cannot be exported: {problem}.")
    if made:
        fit_inputs(free_batch(inputs, axes), made, what="output of preprocess, input")
