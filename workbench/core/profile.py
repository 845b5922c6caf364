"""A profile: what was recorded of a variant after its timed rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tool = Literal["torch", "onnxruntime", "openvino"]
# How a client is told what has become of the profile that it asked for.
ProfileState = Literal["queued", "recording", "done", "failed", "stopped"]
ENDED = frozenset({"done", "failed", "stopped"})
DEFAULT_ITERATIONS = 10


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What the device reached at best, in the process that recorded and with its threads.

    `flops` are floating-point operations a second of large products, by type ("f32", "bf16");
    `bytes_per_s` what a large copy reads and writes.
    """

    flops: dict[str, float]
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One recording of some calls of a variant, in a process of its own.

    `trace` and `snapshot` (of a GPU's allocator) are paths below the study's folder; `tool` is
    the profiler that wrote them. `call_s` and `recorded_call_s` are the median seconds of a call
    in that process without and with recording: what recording costs, and no latency of the row.
    `recorded_s` is when, in seconds since the epoch. `peaks` is the roof of its operators.
    `request` is the path of another recording, of whole requests, where the model brings its own
    processing. `token` tells who asked for it.
    """

    trace: str
    tool: Tool
    num_iterations: int
    recorded_s: float
    call_s: float
    recorded_call_s: float
    with_stacks: bool = False
    snapshot: str | None = None
    peaks: Peaks | None = None
    request: str | None = None
    token: str = ""

    @property
    def slowdown(self) -> float:
        """How many times as long a call takes while it is recorded."""
        return self.recorded_call_s / self.call_s
