"""`python -m tests.capture.record ENGINE ARTIFACT INPUTS OUT [--stacks]`: profile one artifact.

In a process of its own, as a serving worker is. Prints what was captured as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from workbench.capture.captured import Captured


def record(engine: str, artifact: Path, inputs: Path, out: Path, *, stacks: bool) -> Captured:
    """Profile the pipeline of an artifact on one set of inputs."""
    spec = importlib.util.spec_from_file_location("pipeline", artifact / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with np.load(inputs) as archive:
        arrays = dict(archive)

    def load() -> Any:
        return module.load(str(artifact))

    def place(pipeline: Any) -> list[Any]:
        return [pipeline.place(arrays)]

    if engine in ("torch", "torch-compile"):
        from workbench.capture.torch import capture_torch

        pipeline = load()
        return capture_torch(pipeline, place(pipeline), out, "variant", stacks=stacks)
    if engine == "onnxruntime":
        from workbench.capture.onnxruntime import capture_onnxruntime

        return capture_onnxruntime(load, place, out, "variant")
    from workbench.capture.openvino import capture_openvino

    return capture_openvino(load, place, out, "variant")


if __name__ == "__main__":
    engine, artifact, inputs, out = sys.argv[1:5]
    found = record(
        engine, Path(artifact), Path(inputs), Path(out), stacks="--stacks" in sys.argv[5:]
    )
    print(json.dumps({**asdict(found), "path": str(found.path), "snapshot": None}))
