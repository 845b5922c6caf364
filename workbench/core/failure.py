"""Why a variant has no figure, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["prepare", "build", "load", "check", "warm-up", "measure", "profile", "export"]
FailureKind = Literal[
    "exception",
    "crash",
    "exit",
    "out_of_memory",
    "timeout",
    "unavailable",
    "not_finite",
    "mismatch",
    "empty",
    "interrupted",
    "stopped",
]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure: its kind, the stage it happened in, what to say and what to try.

    `message` is one sentence; `detail` may hold a traceback or the log's last lines.
    """

    kind: FailureKind
    stage: Stage
    message: str
    remedy: str = ""
    detail: str = ""
