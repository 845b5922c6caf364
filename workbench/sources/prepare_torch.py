"""Preparing what torch runs: live modules, factories, programs, folders, samples."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import LoadError, UntrustedFileError
from workbench.core.model import PreparedModel, SourceKind, TensorSpec
from workbench.sources.axes import guess_axes
from workbench.sources.batch import Findings, examine
from workbench.sources.candidates import (
    FACTORY,
    WEIGHTS,
    Chosen,
    Live,
    check_here,
    choose,
    prove_folder,
    write_weights,
)
from workbench.sources.capture import Capture, load_arrays, save_arrays
from workbench.sources.finish import EXAMPLE
from workbench.sources.huggingface import HuggingFaceSummary, read_folder
from workbench.sources.layers import count_functions, count_layers, count_nodes, module_bytes
from workbench.sources.opening import extend_path, import_file, open_module
from workbench.sources.ranges import find_ranges
from workbench.sources.running import Results, Run, bit_equal, torch_run
from workbench.sources.sentences import write_sentences
from workbench.sources.signature import bind_again
from workbench.sources.source_folder import read_example, write_folder
from workbench.sources.specs import Array, draw, example_shape, is_integer
from workbench.sources.transformers_models import (
    MODEL,
    copy_configuration,
    factory_text,
    open_folder,
)


def prepare_torch(folder: Path, capture: Capture, target: Path) -> PreparedModel:
    """Open the captured model, run it, and write the source that stands for it.

    Raises LoadError where it cannot be opened or gives nothing; what the model's own code
    raises passes through, with a note that names the inputs.
    """
    import torch

    if capture.kind in ("exported", "torchscript") and not capture.trusted:
        raise UntrustedFileError(
            f"opening {capture.name!r} can run code from its file, and it was captured without "
            "trusted=True."
        )
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
    return write_folder(
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
    write_weights(live.module, target / WEIGHTS)
    if capture.payload != MODEL:
        # A sample's factory is proved by the tests of the samples, once and for all.
        return Chosen(kind="factory", origin="the sample's own factory")
    summary = read_folder(folder / MODEL, trusted=capture.trusted)
    problem = check_here(target, live) or prove_folder(target, "factory", live, live.probes)
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
    still = check_here(target, live) or prove_folder(target, "factory", live, live.probes)
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
    arrays, notes = read_example(folder, capture, specs)
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
