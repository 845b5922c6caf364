"""Many variants on torch, each in a process of its own that is forked after torch's import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines.onnx_sources import Arrays, Sample, context_of
from workbench.core.evidence import Evidence
from workbench.core.recipe import Recipe
from workbench.engines.engine import engine
from workbench.engines.render import render
from workbench.levers.step import Context

_FORK = """
import importlib.util, json, os, sys, traceback, warnings
import numpy
import torch

warnings.simplefilter("error", RuntimeWarning)


def run(job):
    folder = job["folder"]
    spec = importlib.util.spec_from_file_location("pipeline", folder + "/pipeline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(job["source"], folder)
    pipeline = module.load(folder)
    with numpy.load(job["inputs"]) as archive:
        inputs = dict(archive)
    outputs = pipeline.predict(inputs)
    raw = pipeline.inspect(pipeline.place(inputs))
    kept = {k: v for k, v in outputs.items() if v is not None}
    numpy.savez(folder + "/outputs.npz", **kept)
    assert "workbench" not in sys.modules
    with open(folder + "/raw.json", "w") as stream:
        json.dump({"raw": raw, "names": list(outputs)}, stream)


for job in json.loads(sys.stdin.read()):
    child = os.fork()
    if child == 0:
        try:
            run(job)
        except BaseException:
            with open(job["folder"] + "/error.txt", "w") as stream:
                traceback.print_exc(file=stream)
        os._exit(0)
    os.waitpid(child, 0)
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one variant answered; `error` is its traceback where it failed."""

    recipe: Recipe
    outputs: Arrays
    names: tuple[str, ...]
    raw: Any
    evidence: Evidence | None
    error: str
    artifact: Path

    def error_of(self, sample: Sample) -> float:
        """The largest error over an output's largest value, among all outputs."""
        return max(
            float(np.abs(self.outputs[name].astype("float64") - wanted).max())
            / float(np.abs(wanted).max())
            for name, wanted in sample.reference.items()
        )


def run_all(
    work: Path, sample: Sample, *recipes: Recipe, texts: list[str] | None = None, **settings: Any
) -> list[Ran]:
    """Build, load, predict and inspect each recipe. `texts` replaces the rendered files."""
    work.mkdir(parents=True, exist_ok=True)
    inputs = work / "inputs.npz"
    np.savez(inputs, **sample.inputs)
    contexts = [context_of(sample.model, recipe, **settings) for recipe in recipes]
    jobs = []
    for number, context in enumerate(contexts):
        folder = work / f"run-{number}"
        folder.mkdir()
        text = render(context) if texts is None else texts[number]
        (folder / "pipeline.py").write_text(text)
        jobs.append({"folder": str(folder), "source": str(sample.source), "inputs": str(inputs)})
    passive = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(work / "caches")}
    done = subprocess.run(
        [sys.executable, "-c", _FORK],
        input=json.dumps(jobs),
        env={**os.environ, **passive, **caches},
        cwd=work,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        _read(context, Path(job["folder"])) for context, job in zip(contexts, jobs, strict=True)
    ]


def _read(context: Context, folder: Path) -> Ran:
    failed = folder / "error.txt"
    if failed.exists() or not (folder / "raw.json").exists():
        return Ran(
            recipe=context.recipe,
            outputs={},
            names=(),
            raw=None,
            evidence=None,
            error=failed.read_text() if failed.exists() else "the process ended",
            artifact=folder,
        )
    said = json.loads((folder / "raw.json").read_text())
    with np.load(folder / "outputs.npz") as archive:
        outputs = dict(archive)
    return Ran(
        recipe=context.recipe,
        outputs=outputs,
        names=tuple(said["names"]),
        raw=said["raw"],
        evidence=engine(context.recipe.engine).read_evidence(said["raw"], context),
        error="",
        artifact=folder,
    )
