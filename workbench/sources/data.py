"""Rows to calibrate on and rows to judge by: read, fitted to the inputs, kept apart."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from workbench.core.errors import InputError, MissingDataError
from workbench.core.model import TensorSpec
from workbench.sources.axes import free_batch
from workbench.sources.capture import load_arrays, save_arrays
from workbench.sources.fit import fit_inputs
from workbench.sources.signature import bind_arguments, to_array
from workbench.sources.specs import Array

EVALUATION, CALIBRATION, LABELS = "evaluation.npz", "calibration.npz", "labels.npy"
LABELS_KEY = "labels"


def write_data(
    folder: Path,
    specs: Sequence[TensorSpec],
    axes: Mapping[str, int],
    signature: inspect.Signature | None,
    *,
    evaluation: object = None,
    labels: object = None,
    calibration: object = None,
) -> tuple[str, ...]:
    """Write `evaluation.npz`, `labels.npy` and `calibration.npz`; return notes.

    Rows come as inputs do (an array, a tuple, a dict by name) or as the path of an .npz with
    the inputs' names as keys, which may hold "labels" too. Raises InputError where they do
    not fit the inputs, where labels and rows differ in number, and where calibration and
    evaluation are the same rows.
    """
    notes: list[str] = []
    rows: dict[str, Array] | None = None
    if evaluation is not None:
        rows, own_labels = _read(evaluation, specs, signature, "evaluation")
        rows, cast = fit_inputs(free_batch(specs, axes), rows, what="evaluation input")
        notes += cast
        save_arrays(folder / EVALUATION, rows)
        labels = own_labels if labels is None else labels
    if labels is not None:
        array, _ = to_array(labels, "labels")
        if rows is None:
            raise InputError("labels were given without the rows they label; give evaluation=.")
        num_rows = _num_rows(rows, axes)
        if array.ndim == 0 or len(array) != num_rows:
            raise InputError(
                f"there are {num_rows} evaluation rows; wanted as many labels, got "
                f"{array.dtype}{list(array.shape)}."
            )
        np.save(folder / LABELS, array, allow_pickle=False)
    if calibration is not None:
        few, _ = _read(calibration, specs, signature, "calibration")
        few, cast = fit_inputs(free_batch(specs, axes), few, what="calibration input")
        notes += cast
        save_arrays(folder / CALIBRATION, few)
        if rows is not None:
            notes += _compare(rows, few, axes)
    return tuple(notes)


def _read(
    given: object,
    specs: Sequence[TensorSpec],
    signature: inspect.Signature | None,
    what: str,
) -> tuple[dict[str, Array], Array | None]:
    names = [spec.name for spec in specs]
    if isinstance(given, (str, Path)):
        path = Path(given)
        if not path.is_file():
            raise MissingDataError(f"there is no file {str(path)!r} to read {what} rows from.")
        try:
            arrays = load_arrays(path)
        except (ValueError, OSError) as error:
            raise InputError(f"{str(path)!r} is no .npz of plain arrays: {error}.") from error
        labels = arrays.pop(LABELS_KEY, None) if LABELS_KEY not in names else None
        return arrays, labels
    if isinstance(given, Mapping) and set(given) == set(names):
        return {name: to_array(given[name], name)[0] for name in names}, None
    bound = bind_arguments(given, signature)
    arrays = bound.arrays
    if len(arrays) == len(names) and set(arrays) != set(names) and signature is None:
        arrays = dict(zip(names, arrays.values(), strict=True))
    return arrays, None


def _num_rows(rows: Mapping[str, Array], axes: Mapping[str, int]) -> int:
    return next((rows[name].shape[axis] for name, axis in axes.items()), 1)


def _compare(
    rows: Mapping[str, Array], few: Mapping[str, Array], axes: Mapping[str, int]
) -> list[str]:
    """Refuse calibration rows that are all judged by too; note single ones."""
    judged = set(_digests(rows, axes))
    shared = sum(digest in judged for digest in _digests(few, axes))
    total = _num_rows(few, axes)
    if shared == total and total > 0:
        raise InputError(
            "every calibration row is an evaluation row too; a model must not be judged by the "
            "rows it was calibrated on. Split them."
        )
    if shared:
        return [f"{shared} of {total} calibration rows are evaluation rows too"]
    return []


def _digests(rows: Mapping[str, Array], axes: Mapping[str, int]) -> list[bytes]:
    digests = []
    for row in range(_num_rows(rows, axes)):
        content = hashlib.sha256()
        for name, axis in axes.items():
            content.update(np.ascontiguousarray(rows[name].take(row, axis=axis)).tobytes())
        digests.append(content.digest())
    return digests
