"""Calibration rows of a source folder, for exported graphs. Portable."""

from __future__ import annotations

from typing import Any

from workbench.levers.step import portable


@portable
def calibration_batches(source_dir: str, batch_size: int | None) -> list[dict[str, Any]]:
    """Calibration rows by input name, in batches of 32 or of the graph's fixed size.

    Raises RuntimeError where the source folder has no calibration rows.
    """
    import json
    from pathlib import Path

    import numpy

    rows = Path(source_dir) / "calibration.npz"
    if not rows.exists():
        raise RuntimeError("calibration.npz is not in the source folder: int8-static needs it")
    source = json.loads((Path(source_dir) / "source.json").read_text(encoding="utf-8"))
    axes = source["batch_axes"]
    with numpy.load(rows, allow_pickle=False) as archive:
        arrays = {spec["name"]: archive[spec["name"]] for spec in source["inputs"]}
    num_rows = min((arrays[name].shape[axis] for name, axis in axes.items()), default=1)
    size = batch_size or 32
    batches = []
    for start in range(0, num_rows, size):
        batch = numpy.arange(start, start + size)
        # A graph of a fixed batch takes no smaller one: it gets the first rows again.
        batch = batch[batch < num_rows] if batch_size is None else batch % num_rows
        batches.append(
            {
                name: numpy.take(array, batch, axis=axes[name]) if name in axes else array
                for name, array in arrays.items()
            }
        )
    return batches
