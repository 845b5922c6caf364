"""Many variants on torch, each in a process of its own that is forked after torch's import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines.onnx_sources import Arrays, Sample, context_of
from workbench.core.evidence import Evidence
from workbench.core.recipe import Recipe
from workbench.engines.engine import engine
from workbench.engines.render import render
from workbench.levers.step import Context
from workbench.levers.threads import thread_environment

_FORK = """
import importlib.util, json, os, sys, traceback, warnings
import numpy
import torch

jobs = json.loads(sys.stdin.read())
if any(job["compiles"] for job in jobs):
    # Seconds of imports that each variant would pay for again.
    import torch._dynamo
    import torch._inductor.compile_fx

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


for job in jobs:
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
        worst = 0.0
        for name, reference in sample.reference.items():
            got = self.outputs[name].astype("float64")
            wanted = reference[: len(got)]
            worst = max(worst, float(np.abs(got - wanted).max() / np.abs(reference).max()))
        return worst


def torch_context(sample: Sample, recipe: Recipe, **settings: Any) -> Context:
    """A context on this host, with a C++ compiler where there is one."""
    context = context_of(sample.model, recipe, **settings)
    compiler = shutil.which("g++") or shutil.which("clang++")
    tools = {"c++": compiler} if compiler else {}
    return replace(context, host=replace(context.host, tools=tools))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A variant to run: its text was rendered beforehand, perhaps from altered functions."""

    sample: Sample
    context: Context
    text: str


def job(sample: Sample, recipe: Recipe, **settings: Any) -> Job:
    """The variant of a sample that a recipe describes."""
    context = torch_context(sample, recipe, **settings)
    return Job(sample=sample, context=context, text=render(context))


def run_all(work: Path, *wanted: Job, wait: str = "passive") -> list[Ran]:
    """Build, load, predict and inspect each, one after another.

    `wait` is how the threads of all of them wait: torch, which is imported before the fork,
    settles it.
    """
    work.mkdir(parents=True, exist_ok=True)
    contexts = [one.context for one in wanted]
    jobs = []
    for number, (one, context) in enumerate(zip(wanted, contexts, strict=True)):
        sample = one.sample
        folder = work / f"run-{number}"
        folder.mkdir()
        (folder / "pipeline.py").write_text(one.text)
        size = int(context.recipe.get("batch") or 40)
        inputs = folder / "inputs.npz"
        np.savez(inputs, **{name: array[:size] for name, array in sample.inputs.items()})
        jobs.append(
            {
                "folder": str(folder),
                "source": str(sample.source),
                "inputs": str(inputs),
                "compiles": context.recipe.engine == "torch-compile",
            }
        )
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(work / "caches"),
        # A pool of compilers imports torch once more for each variant; rows of studies have one.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _FORK],
        input=json.dumps(jobs),
        env={**os.environ, **thread_environment(wait), **caches},
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
