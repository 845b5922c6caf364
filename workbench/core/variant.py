"""A variant: a recipe as it ran in a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.core.evidence import Evidence
from workbench.core.failure import Failure
from workbench.core.measurement import ColdStart, EnergyReading, MemoryReading, Quality
from workbench.core.profile import ProfileState
from workbench.core.recipe import Recipe

State = Literal[
    "queued",
    "building",
    "loading",
    "checking",
    "measuring",
    "done",
    "failed",
    "stopped",
    "stopped-early",
    "interrupted",
]
Role = Literal["baseline", "control", "variant"]
FINAL_STATES = frozenset({"done", "failed", "stopped", "stopped-early", "interrupted"})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How one submitted variant is to be run.

    `budget_s` bounds the seconds spent measuring it; `threshold` is x of the verdict (0.02
    is 2 %); `tolerance` is what quality may lose (0.01 is one row in a hundred);
    `early_stop_ratio` ends a row whose first calls are that many times slower than the
    baseline's (None: never). `limits_s` overrides the time limit of a stage. `profile` is how many
    calls to record after its timed rounds (None: no profile).
    """

    budget_s: float = 40.0
    threshold: float = 0.02
    tolerance: float = 0.01
    min_visits: int = 6
    max_visits: int = 400
    early_stop_ratio: float | None = 5.0
    rebuild: bool = False
    limits_s: dict[str, float] | None = None
    profile: int | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of a study.

    `number` counts from 1; the baseline is 1 and the control is kept out of tables.
    `items_per_call` is the batch that one call computes. `first_ratio` is the baseline's
    median call over this variant's, from three calls, an item each (what stops a row early).
    `device` is where it really ran. `artifact` names a folder below the study's `artifacts/`.
    """

    number: int
    role: Role
    recipe: Recipe
    state: State
    options: RunOptions
    stage: str = ""
    submitted_s: float | None = None
    finished_s: float | None = None
    artifact: str | None = None
    artifact_cached: bool | None = None
    size_bytes: int | None = None
    items_per_call: int | None = None
    started_cold: bool | None = None
    first_ratio: float | None = None
    device: str | None = None
    evidence: Evidence | None = None
    cold_start: ColdStart | None = None
    memory: MemoryReading | None = None
    energy: EnergyReading | None = None
    quality: Quality | None = None
    failure: Failure | None = None
    versions: dict[str, str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it unasked."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a client is told while something runs.

    `fraction` is None where no end is known. `ratio`, `low` and `high` are provisional
    until `verdict` is set. `profile` is set where the message is about a profile of
    the row, and `token` is the one that was given with its request.
    """

    number: int
    state: State
    stage: str
    message: str
    elapsed_s: float
    fraction: float | None = None
    num_visits: int | None = None
    num_pairs: int | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None
    profile: ProfileState | None = None
    token: str = ""
