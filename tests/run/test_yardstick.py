"""A baseline that rounds is judged by its own outputs in float64."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

import workbench as wb
from tests.run.living import end_scheduler, row
from workbench.run.rows import read_outputs
from workbench.run.yardstick import yardstick_path
from workbench.study import Study

COARSE = """
import torch


class Coarse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Linear(64, 16).to(torch.bfloat16)

    def forward(self, x):
        return self.body(x.to(self.body.weight.dtype))


def make():
    return Coarse().eval()
"""


@pytest.mark.slow
def test_a_bf16_baseline_is_compared_with_its_own_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp16 is nearer to float64 than the bf16 baseline is: it has lost nothing."""
    monkeypatch.setenv("WORKBENCH_IDLE_EXIT_S", "30")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "coarse.py").write_text(COARSE)
    rows = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    model = wb.load("coarse:make", inputs={"x": rows[:4]}, evaluation={"x": rows})
    study = Study(model, tmp_path / "study")
    try:
        study.run("engine=torch,precision=fp16", budget_s=0.2, tolerance=1e-3, progress=False)
        exact = read_outputs(yardstick_path(study.folder))["output"]
        assert exact is not None
        wide = importlib.import_module("coarse").make().double()
        with torch.inference_mode():
            wanted = wide(torch.from_numpy(rows[:16]).double()).numpy()
        assert exact.dtype == np.float64
        np.testing.assert_allclose(exact, wanted, rtol=1e-12)
        quality = row(study, 2).quality
        assert quality is not None
        assert quality.status == "kept", quality
        assert "float64" in quality.reasons[0]
    finally:
        end_scheduler(study)
