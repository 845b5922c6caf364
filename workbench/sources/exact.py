"""A prepared model in float64 on the CPU: what a baseline that rounds is judged by."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from workbench.core.model import TensorSpec
from workbench.sources.running import Run, torch_run
from workbench.sources.verify import open_source

_FLOATS = ("float32", "float16", "bfloat16")


def exact_run(source_dir: Path) -> Run:
    """Run a source folder's torch model with weights and floating inputs cast to float64.

    What a model raises that has other types written into it passes through.
    """
    source = json.loads((source_dir / "source.json").read_text(encoding="utf-8"))
    given = msgspec.convert(source["inputs"], type=list[TensorSpec])
    specs = [replace(spec, dtype="float64") if spec.dtype in _FLOATS else spec for spec in given]
    return torch_run(_module(source_dir, source["kind"]).double(), source["call"], specs)


def _module(source_dir: Path, kind: str) -> Any:
    if kind == "torchscript":
        import torch

        return torch.jit.load(str(source_dir / "module.pt"), map_location="cpu")
    # A factory's helper modules lie beside it; this worker does nothing else afterwards.
    sys.path.insert(0, str(source_dir))
    return open_source(source_dir, kind)
