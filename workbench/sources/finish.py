"""The last step of loading: bind inputs, write examples and data, and describe the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.core.model import Model, Task, TensorSpec
from workbench.sources.axes import guess_axes
from workbench.sources.capture import Capture, save_arrays, write_capture
from workbench.sources.data import write_data
from workbench.sources.fit import fit_inputs
from workbench.sources.memory import check_fits
from workbench.sources.processing import PROCESSING, write_processing, write_raw
from workbench.sources.settings import read_settings
from workbench.sources.signature import Arguments, bind_arguments
from workbench.sources.specs import example_shape, num_bytes, numpy_dtype

EXAMPLE = "example.npz"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A model on its way: its capture without inputs, and what the user gave as inputs.

    `signature` is None where the forward is not at hand. `specs` are the inputs that a file
    declares; the user's are fitted to them. `narrows_floats` says that a float64 example is
    an accident, since the module has float32 only. `evaluation` and the like are a sample's.
    """

    capture: Capture
    inputs: object
    signature: inspect.Signature | None = None
    specs: tuple[TensorSpec, ...] = ()
    sizes: Mapping[str, int] | None = None
    num_parameters: int | None = None
    num_bytes: int | None = None
    narrows_floats: bool = False
    evaluation: object = None
    labels: object = None
    calibration: object = None
    raw: object = None


def finish(
    draft: Draft,
    folder: Path,
    *,
    evaluation: object,
    labels: object,
    calibration: object,
    task: Task | None,
    preprocess: Callable[..., object] | None,
    postprocess: Callable[..., object] | None,
    raw: object,
    batch_axes: Mapping[str, int] | None,
) -> Model:
    """Write the capture and return the model that it describes."""
    if draft.num_bytes is not None:
        check_fits(draft.num_bytes, draft.capture.name)
    bound = _bind(draft)
    specs, arrays, notes = _fit_example(draft, bound)
    axes = guess_axes(specs, batch_axes)
    for spec in specs:
        shape = arrays[spec.name].shape if spec.name in arrays else None
        if shape is None:
            shape = example_shape(spec, bound.sizes)
            check_fits(num_bytes(spec, shape), f"the input {spec}")
    if arrays:
        save_arrays(folder / EXAMPLE, arrays)
    given_data = (evaluation, labels, calibration)
    own_data = (draft.evaluation, draft.labels, draft.calibration)
    rows, row_labels, few = (
        given if given is not None else own for given, own in zip(given_data, own_data, strict=True)
    )
    if evaluation is not None and labels is None:
        row_labels = None
    notes += write_data(
        folder,
        specs,
        axes,
        draft.signature,
        evaluation=rows,
        labels=row_labels,
        calibration=few,
    )
    helpers = write_processing(folder, {"preprocess": preprocess, "postprocess": postprocess})
    if raw is None:
        raw = draft.raw
    if raw is not None:
        write_raw(folder, raw)
    settings = read_settings()
    default_dtype = settings.get("default_dtype")
    capture = replace(
        draft.capture,
        inputs=specs,
        call=bound.call,
        given=bound.given if draft.signature is None and not draft.specs else {},
        sizes=dict(bound.sizes),
        batch_axes=axes,
        batch_given=batch_axes is not None,
        helpers=tuple(sorted({*draft.capture.helpers, *helpers})),
        task=task or draft.capture.task,
        has_processing=(folder / PROCESSING).is_file(),
        default_dtype=default_dtype if isinstance(default_dtype, str) else None,
        notes=(*draft.capture.notes, *bound.notes, *notes),
    )
    write_capture(folder, capture)
    return Model(
        name=capture.name,
        kind=capture.kind,
        folder=str(folder),
        inputs=capture.inputs,
        call=capture.call,
        num_parameters=draft.num_parameters,
        num_bytes=draft.num_bytes,
        task=capture.task,
        trusted=capture.trusted,
        settings=settings,
        notes=capture.notes,
    )


def _bind(draft: Draft) -> Arguments:
    """The inputs bound to the signature, or to the inputs that a file declares."""
    if not draft.specs:
        return bind_arguments(draft.inputs, draft.signature)
    names = [spec.name for spec in draft.specs]
    call: dict[str, Any] = draft.capture.call or {
        "args": [],
        "kwargs": {name: ["tensor", name] for name in names},
    }
    sizes = dict(draft.sizes or {})
    if draft.inputs is None:
        return Arguments(specs=draft.specs, call=call, arrays={}, sizes=sizes)
    # A file's inputs are named tensors: bind as if it had a function of those names.
    parameters = [
        inspect.Parameter(f"input_{i}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for i in range(len(names))
    ]
    given = draft.inputs
    if isinstance(given, Mapping) and set(given) == set(names):
        given = tuple(given[name] for name in names)
    elif isinstance(given, Mapping):
        # Let the fit say which names are missing and which are unknown.
        bound = bind_arguments(given, None)
        return replace(bound, call=call, notes=())
    bound = bind_arguments(given, inspect.Signature(parameters))
    renamed = {spec.name: name for spec, name in zip(bound.specs, names, strict=True)}
    by_spec = any(spec.name in names for spec in bound.specs)
    if by_spec:
        renamed = {spec.name: spec.name for spec in bound.specs}
    return Arguments(
        specs=tuple(replace(spec, name=renamed[spec.name]) for spec in bound.specs),
        call=call,
        arrays={renamed[name]: array for name, array in bound.arrays.items()},
        sizes={**sizes, **bound.sizes},
    )


def _fit_example(
    draft: Draft, bound: Arguments
) -> tuple[tuple[TensorSpec, ...], dict[str, Any], tuple[str, ...]]:
    """Specs and arrays as the model wants them, with a note for every cast."""
    arrays = dict(bound.arrays)
    if draft.specs:
        if not arrays:
            return _merge(draft.specs, bound.specs), {}, ()
        fitted, notes = fit_inputs(draft.specs, arrays)
        return draft.specs, fitted, notes
    specs, casts = [], []
    for spec in bound.specs:
        array = arrays.get(spec.name)
        if array is not None and draft.narrows_floats and spec.dtype == "float64":
            arrays[spec.name] = array.astype(numpy_dtype("float32"))
            casts.append(
                f"input {spec.name!r} was cast from float64 to float32, which the model has"
            )
            spec = replace(spec, dtype="float32")
        specs.append(spec)
    return tuple(specs), arrays, tuple(casts)


def _merge(
    declared: tuple[TensorSpec, ...], given: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """The file's specs with the ranges and fixed sizes that the user's specs add."""
    by_name = {spec.name: spec for spec in given}
    merged = []
    for spec in declared:
        own = by_name.get(spec.name, spec)
        if len(own.shape) != len(spec.shape):
            own = spec
        shape = tuple(
            b if isinstance(a, str) else a for a, b in zip(spec.shape, own.shape, strict=True)
        )
        low = own.low if own.low is not None else spec.low
        high = own.high if own.high is not None else spec.high
        merged.append(replace(spec, shape=shape, low=low, high=high))
    return tuple(merged)
