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
from workbench.capture.tools import capture
from workbench.engines import engine, load_all


def record(name: str, artifact: Path, inputs: Path, out: Path, *, stacks: bool) -> Captured:
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

    load_all()
    return capture(engine(name).tool, load, place, out, "variant", stacks=stacks)


if __name__ == "__main__":
    name, artifact, inputs, out = sys.argv[1:5]
    found = record(name, Path(artifact), Path(inputs), Path(out), stacks="--stacks" in sys.argv[5:])
    print(json.dumps({**asdict(found), "path": str(found.path), "snapshot": None}))
