"""An ONNX file that levers change in place. Portable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.levers.step import portable

if TYPE_CHECKING:
    import onnx


@portable
def write_graph(model: onnx.ModelProto, path: str) -> None:
    """Save a graph over the one at `path`: one file, or with its weights beside it.

    A protobuf holds 2 GB at most. Files of weights that the old graph pointed at are removed.
    """
    from pathlib import Path

    import onnx
    from onnx.external_data_helper import uses_external_data

    target = Path(path)
    stale = set()
    if target.exists():
        old = onnx.load(target, load_external_data=False)
        for tensor in old.graph.initializer:
            if uses_external_data(tensor):
                stale |= {e.value for e in tensor.external_data if e.key == "location"}
    for name in stale:
        (target.parent / name).unlink(missing_ok=True)
    large = model.ByteSize() > 1_500_000_000 or model.ByteSize() < 0
    onnx.save_model(
        model,
        target,
        save_as_external_data=large,
        location=f"{target.name}.data" if large else None,
    )
