"""Inputs for one call, assembled from example and evaluation rows. Numpy only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InputError

Arrays = dict[str, NDArray[np.generic]]

# Distinct inputs that timed calls rotate through, so that a call does not find the last
# call's input in the cache; bounded, since a large batch makes each of them large.
_NUM_SETS = 8
_MAX_SETS_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A model's real or made-up rows and how a batch lies in them.

    `arrays` holds the evaluation rows, or the example where there are none (`is_real` False
    then). `axes` maps an input to its batch axis; an input without one is the same in every
    call. `output_axes` does so for outputs.
    """

    arrays: Arrays
    axes: dict[str, int]
    output_axes: dict[str, int]
    example_size: int | None
    is_real: bool

    @property
    def num_rows(self) -> int:
        """Rows along the batch axis; 1 where no input has one."""
        for name, axis in self.axes.items():
            return int(self.arrays[name].shape[axis])
        return 1

    def batch(self, start: int, size: int) -> Arrays:
        """`size` rows from `start` on, wrapping round at the end."""
        index = (np.arange(size) + start) % self.num_rows
        return {
            name: np.ascontiguousarray(np.take(value, index, axis=self.axes[name]))
            if name in self.axes
            else value
            for name, value in self.arrays.items()
        }

    def sets(self, size: int | None) -> list[Arrays]:
        """Up to eight distinct inputs of one call each."""
        if size is None or not self.axes:
            return [self.arrays]
        first = self.batch(0, size)
        one_bytes = max(1, sum(value.nbytes for value in first.values()))
        num_sets = max(1, min(_NUM_SETS, _MAX_SETS_BYTES // one_bytes))
        return [first, *(self.batch(k * size, size) for k in range(1, num_sets))]


def read_rows(model_folder: Path, source_dir: Path) -> Rows:
    """The rows that a worker calls with. Raises InputError where a file lacks an input."""
    source = json.loads((source_dir / "source.json").read_text())
    names = [spec["name"] for spec in source["inputs"]]
    example = _read(source_dir / "example.npz", names)
    axes = {k: int(v) for k, v in source.get("batch_axes", {}).items() if k in names}
    example_size = None
    for name, axis in axes.items():
        example_size = int(example[name].shape[axis])
        break
    real = model_folder / "evaluation.npz"
    is_real = real.exists() and bool(axes)
    arrays = _read(real, names) if is_real else example
    return Rows(
        arrays=arrays,
        axes=axes,
        output_axes={k: int(v) for k, v in source.get("output_batch_axes", {}).items()},
        example_size=example_size,
        is_real=is_real,
    )


def read_raw(source_dir: Path) -> object:
    """The raw example that the model's preprocessing takes; None where it brings none."""
    array, text = source_dir / "raw.npy", source_dir / "raw.json"
    if array.exists():
        return np.load(array, allow_pickle=False)
    return json.loads(text.read_text(encoding="utf-8")) if text.exists() else None


def _read(path: Path, names: list[str]) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        missing = [name for name in names if name not in archive]
        if missing:
            raise InputError(f"{path.name} has no rows for {', '.join(missing)}.")
        return {name: archive[name] for name in names}


class OutputRows:
    """Outputs of many calls, put together along their batch axes.

    An output without a batch axis keeps its first call's value; None stays absent and is
    remembered by name.
    """

    def __init__(self, output_axes: Mapping[str, int]) -> None:
        self._axes = dict(output_axes)
        self._parts: dict[str, list[NDArray[np.generic]]] = {}
        self._absent: set[str] = set()

    def add(self, outputs: Mapping[str, NDArray[np.generic] | None], keep: int | None) -> None:
        """Take one call's outputs; of batched ones only the first `keep` rows."""
        for name, value in outputs.items():
            if value is None:
                self._absent.add(name)
                continue
            array = np.asarray(value)
            axis = self._axes.get(name)
            if axis is None or array.ndim <= axis:
                self._parts.setdefault(name, [array])
                continue
            if keep is not None and array.shape[axis] > keep:
                array = np.take(array, np.arange(keep), axis=axis)
            self._parts.setdefault(name, []).append(array)

    def save(self, path: Path) -> None:
        """Write one .npz; the names of absent outputs go into `__absent__`."""
        arrays = {
            name: np.concatenate(parts, axis=self._axes[name]) if len(parts) > 1 else parts[0]
            for name, parts in self._parts.items()
        }
        absent = np.array(sorted(self._absent), dtype=np.str_)
        with path.open("wb") as stream:
            np.savez(stream, __absent__=absent, **arrays)  # type: ignore[arg-type]


def read_outputs(path: Path) -> dict[str, NDArray[np.generic] | None]:
    """Inverse of `OutputRows.save`."""
    with np.load(path, allow_pickle=False) as archive:
        outputs: dict[str, NDArray[np.generic] | None] = {
            name: archive[name] for name in archive.files if name != "__absent__"
        }
        for name in archive["__absent__"] if "__absent__" in archive.files else ():
            outputs[str(name)] = None
    return outputs


def output_axes(source_dir: Path) -> dict[str, int]:
    """The batch axis of each output that has one."""
    source = json.loads((source_dir / "source.json").read_text())
    return {k: int(v) for k, v in source.get("output_batch_axes", {}).items()}


def num_rows_of(outputs: Mapping[str, NDArray[np.generic] | None], axes: Mapping[str, int]) -> int:
    """Rows along the batch axis of the first output that has one; else 1."""
    for name, axis in axes.items():
        value = outputs.get(name)
        if value is not None and value.ndim > axis:
            return int(value.shape[axis])
    return 1


def first_rows(
    outputs: Mapping[str, NDArray[np.generic] | None], axes: Mapping[str, int], num_rows: int
) -> dict[str, NDArray[np.generic] | None]:
    """The first rows of every output that has a batch axis; the others as they are."""
    cut: dict[str, NDArray[np.generic] | None] = {}
    for name, value in outputs.items():
        axis = axes.get(name)
        if value is None or axis is None or value.ndim <= axis:
            cut[name] = value
        else:
            cut[name] = value[(slice(None),) * axis + (slice(num_rows),)]
    return cut


def read_labels(model_folder: Path, num_rows: int) -> NDArray[np.generic] | None:
    """Labels of the first rows, from labels.npy; None where the model brings none."""
    path = model_folder / "labels.npy"
    if not path.exists():
        return None
    labels: NDArray[np.generic] = np.load(path, allow_pickle=False)
    return labels[:num_rows]
