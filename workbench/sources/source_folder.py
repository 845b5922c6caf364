"""What every source folder holds beside the source itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import LoadError
from workbench.core.model import BatchClaim, PreparedModel, TensorSpec
from workbench.sources.axes import free_batch
from workbench.sources.batch import Findings, dynamic_specs
from workbench.sources.candidates import Chosen, write_source
from workbench.sources.capture import Capture, load_arrays, save_arrays
from workbench.sources.data import CALIBRATION, EVALUATION
from workbench.sources.finish import EXAMPLE
from workbench.sources.fit import fit_inputs
from workbench.sources.fresh import prove
from workbench.sources.local_modules import copy_local, imported_roots, requirements
from workbench.sources.processing import PROCESSING, RAW_ARRAY, RAW_JSON
from workbench.sources.running import Results
from workbench.sources.specs import Array, draw, example_shape, is_integer

OUTPUTS = "outputs.npz"


def read_example(
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


def write_folder(
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
    """Write everything beside the source itself, and return the description.

    `digest` is left empty. Raises as `_add_processing`.
    """
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
        _add_processing(folder, target, inputs, claim.axes)
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
    target: Path,
    inputs: tuple[TensorSpec, ...],
    axes: Mapping[str, int],
) -> None:
    """Copy `processing.py` with its helpers, and run it where nothing else is.

    What it gives to the examples is kept. Raises LoadError where it fails there, InputError
    where it makes no inputs of the model.
    """
    shutil.copyfile(folder / PROCESSING, target / PROCESSING)
    text = (target / PROCESSING).read_text(encoding="utf-8")
    copy_local(sorted(imported_roots(text)), [str(folder / "helpers")], target)
    for name in (RAW_JSON, RAW_ARRAY):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    made: dict[str, Array] = {}
    problem = prove(target, (), (), 1, made, keep_in=target)
    if problem:
        raise LoadError(f"preprocess and postprocess cannot be exported: {problem}.")
    if made:
        fit_inputs(free_batch(inputs, axes), made, what="output of preprocess, input")
