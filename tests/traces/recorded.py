"""Recordings of the sample models, made by studies and kept beside the tests.

`python -m tests.traces.recorded [SAMPLE...]` makes them anew. What names the machine is taken out.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.run.client import Client
from workbench.study import Study
from workbench.traces.opening import open_trace
from workbench.traces.trace import Trace

FOLDER = Path(__file__).parent / "recordings"
ITERATIONS = 4
RECIPES = {
    "digits-cnn-wide": (
        "engine=torch,layout=channels-last",
        "engine=torch-compile",
        "engine=torch-compile,quantization=int8-static",
        "engine=onnxruntime",
        "engine=onnxruntime,quantization=int8-static",
    ),
    "language-id": (
        "engine=torch-compile",
        "engine=torch,quantization=int8-dynamic",
        "engine=onnxruntime",
        "engine=onnxruntime,quantization=int8-dynamic",
    ),
    "byte-gpt": ("engine=torch-compile", "engine=onnxruntime"),
    "minilm": (
        "engine=torch-compile",
        "engine=onnxruntime,fusion=off",
        "engine=onnxruntime,fusion=transformer",
    ),
}
# Keys that say where a recording was made.
_PRIVATE = ("traceName", "host_name", "hostname", "record_shapes", "with_stack", "profile_memory")


def recorded(sample: str, recipe: str = "engine=torch") -> Trace:
    """One of the recordings, opened."""
    found = open_trace(FOLDER / file_name(sample, recipe), cached=False)
    assert isinstance(found, Trace)
    return found


def file_name(sample: str, recipe: str) -> str:
    words = recipe.removeprefix("engine=").replace("=", "-").replace(",", "-")
    return f"{sample}-{words}.json.gz"


def record(sample: str) -> None:
    """Run a sample's recipes briefly, and keep what was recorded of each."""
    with tempfile.TemporaryDirectory() as name:
        study = Study(wb.load(f"sample:{sample}"), Path(name) / "study")
        try:
            options = {"budget_s": 0.2, "early_stop_ratio": None, "max_visits": 1}
            numbers = study.run(*RECIPES[sample], profile=ITERATIONS, **options)
            for number in numbers:
                row = study.reader.variant(number)
                profiles = study.profiles(number)
                if not profiles:
                    raise RuntimeError(f"#{number} {row.recipe.spec}: {row.failure or row.notes}")
                keep(study.reader.recording(profiles[-1].trace), file_name(sample, row.recipe.spec))
        finally:
            with Client.connect(study.folder, start=False) as client:
                client.shutdown()


def keep(path: Path, name: str) -> None:
    """Copy a recording without what names the machine."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        content: Any = json.load(stream)
    if isinstance(content, dict):
        for key in _PRIVATE:
            content.pop(key, None)
    FOLDER.mkdir(exist_ok=True)
    data = json.dumps(content, separators=(",", ":")).encode()
    (FOLDER / name).write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    for each in sys.argv[1:] or RECIPES:
        record(each)
