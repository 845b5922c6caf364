"""Artifacts: what a build leaves, cached by what it was built from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from workbench.core.json import Json, canonical
from workbench.engines.engine import engine
from workbench.engines.pipeline import render, requirements
from workbench.levers.step import Context

# Written into an artifact's folder last: without it the build did not finish.
_RECEIPT = "build.json"


def artifact_key(pipeline: str, context: Context) -> str:
    """Name of an artifact: a hash of the pipeline file, the source, device and versions."""
    names = ("torch", "torchao", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "nncf")
    parts: Json = {
        "pipeline": pipeline,
        "source": context.model.digest,
        "device": [context.device.id, context.device.name],
        "python": context.host.python_version,
        "packages": {n: context.host.packages.get(n) for n in names},
    }
    return hashlib.sha256(canonical(parts).encode()).hexdigest()[:20]


class Artifact:
    """The folder of one build below a study's `artifacts/`."""

    def __init__(self, study: Path, context: Context) -> None:
        self.text = render(context)
        self.key = artifact_key(self.text, context)
        self.folder = study / "artifacts" / self.key
        self._context = context

    def receipt(self) -> dict[str, float | None] | None:
        """What the finished build noted (seconds), or None where there is none."""
        try:
            noted = json.loads((self.folder / _RECEIPT).read_text())
        except (OSError, ValueError):
            return None
        return {k: None if v is None else float(v) for k, v in noted.items()}

    def start(self) -> None:
        """An empty folder with the pipeline file, whatever a broken build left there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "pipeline.py").write_text(self.text)
        recipe = self._context.recipe
        note = {
            "recipe": recipe.to_json(),
            "id": recipe.id,
            "spec": recipe.spec,
            "device": self._context.device.id,
            "engine": engine(recipe.engine).title,
        }
        (self.folder / "recipe.json").write_text(json.dumps(note, indent=2) + "\n")
        lines = requirements(self._context)
        (self.folder / "requirements.txt").write_text("\n".join(lines) + "\n")

    def finish(self, *, build_s: float, compile_cold_s: float | None) -> None:
        """Note that the build is whole."""
        text = json.dumps({"build_s": build_s, "compile_cold_s": compile_cold_s})
        (self.folder / _RECEIPT).write_text(text + "\n")

    def size_bytes(self) -> int:
        """Bytes of what is served: weights, graph and code, without our notes."""
        notes = {_RECEIPT, "recipe.json", "requirements.txt", "example.npz", "calibration.npz"}
        total = 0
        for root, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if name != "__pycache__"]
            total += sum((Path(root) / f).stat().st_size for f in files if f not in notes)
        return total
