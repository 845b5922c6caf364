"""One study that really ran, shared by the tests that only read it."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from workbench.core.errors import RunError
from workbench.run.client import Client
from workbench.sources import load
from workbench.study import Study

RECIPES = ("engine=onnxruntime", "engine=onnxruntime,batch=8", "engine=torch,precision=bf16")


class Small(torch.nn.Module):
    """Two linear layers on 32 numbers, with a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 128)
        self.second = torch.nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Logits of shape (batch, 10)."""
        return {"logits": self.second(torch.relu(self.first(x))), "aux": None}


def make() -> Small:
    """The model with the same weights in every process."""
    torch.manual_seed(0)
    return Small()


@cache
def ran_study() -> Study:
    """A study of the small model with the baseline and three variants, all measured."""
    folder = Path(tempfile.mkdtemp())
    rows = np.random.default_rng(1).normal(size=(640, 32)).astype(np.float32)
    model = load(
        "tests.study.ran:make",
        "x: f32[batch, 32]",
        name="small",
        evaluation={"x": rows},
        task="classification",
    )
    study = Study(model, folder / "study")
    atexit.register(end, study)
    study.run(*RECIPES, budget_s=60.0, max_visits=6, progress=False, early_stop_ratio=None)
    return study


def end(study: Study) -> None:
    """End the study's scheduler, if one runs."""
    try:
        Client.connect(study.folder, start=False).shutdown()
    except RunError:
        return
