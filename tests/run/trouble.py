"""A small model that misbehaves at chosen batch sizes, so that one row of a study does.

Imported by name in workers: `trouble:make`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

CRASH, EXIT, HANG, RAISE, MEMORY, INFINITE, SLOW, CRASH_LATE = 41, 42, 43, 44, 45, 46, 47, 48
HANG_LATE, HANG_RECORDED, CRASH_RECORDED = 49, 50, 51
# What comes late waits so long after its process's first call: visits are two seconds apart,
# so it comes in the rounds.
LATE_S = 4.0
# Names the stage in which the model hangs, beside the sizes: "export".
HANG_VARIABLE = "TROUBLE_HANGS_IN"


class Trouble(torch.nn.Module):
    """Two linear layers, and a way to fail for each of some batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
        )
        self.first_call_s: float | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, 4) from x of shape (batch, 16)."""
        size = x.shape[0]
        if os.environ.get(HANG_VARIABLE) == "export" and torch.compiler.is_exporting():
            hang()
        if size == CRASH:
            ctypes.string_at(0)
        elif size == EXIT:
            os._exit(3)
        elif size == HANG:
            hang()
        elif size == RAISE:
            raise ValueError("44 rows are too many")
        elif size == MEMORY:
            torch.empty(1 << 50)
        elif size == SLOW:
            time.sleep(0.2)
        elif size in (CRASH_LATE, HANG_LATE):
            self.first_call_s = self.first_call_s or time.monotonic()
            if time.monotonic() - self.first_call_s > LATE_S:
                hang() if size == HANG_LATE else ctypes.string_at(0)
        elif size in (HANG_RECORDED, CRASH_RECORDED) and is_recorded():
            hang() if size == HANG_RECORDED else ctypes.string_at(0)
        logits: torch.Tensor = self.body(x)
        return logits * float("inf") if size == INFINITE else logits


def is_recorded() -> bool:
    """Whether this is a process that records a profile; evidence is read under a profiler too."""
    return "workbench.capture.torch" in sys.modules and torch.autograd._profiler_enabled()


def hang() -> None:
    """One native call of a minute that holds the interpreter's lock: no signal is handled."""
    ctypes.PyDLL(None).sleep(60)


def make() -> Trouble:
    """The model, with weights that are the same in every process."""
    torch.manual_seed(0)
    return Trouble().eval()


FOLDER = Path(__file__).resolve().parent


def preprocess(raw: Any) -> dict[str, Any]:
    """Numbers as the model takes them."""
    return {"x": np.asarray(raw, dtype=np.float32) / 255}


def postprocess(outputs: dict[str, Any]) -> list[int]:
    """The class of each row."""
    return [int(row.argmax()) for row in outputs["output"]]
