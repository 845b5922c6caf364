"""Recorded trials, decided again beside a decision that knew the noise.

`workbench.measure.replay` does the deciding. What the yardstick knows is the noise of all
records of one state and set-up together, which no single record is long enough to tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.trials import STEP, Control, RawVisit, Sample, Trial
from workbench.core.measurement import Pair, Round, Visit
from workbench.measure.location import trimmed_error, trimmed_mean
from workbench.measure.offsets import estimate_offsets
from workbench.measure.replay import Noise, replay

# Five calls, of which the verdict's "typical" time leaves the slowest out.
_NUM_CALLS = 5


def visits_again(raw: Iterable[RawVisit]) -> list[Visit]:
    """Visits whose rounds have the recorded log ratios, of typical calls and of means."""
    return [
        Visit(
            number=number,
            started_s=visit.started_s,
            pairs=tuple(
                _pair(typical * STEP, mean * STEP)
                for typical, mean in zip(visit.typical, visit.mean, strict=True)
            ),
            baseline_process=visit.processes[0],
            variant_process=visit.processes[1],
        )
        for number, visit in enumerate(raw, start=1)
    ]


def _pair(typical: float, mean: float) -> Pair:
    # A round's mean is never below the mean of its fastest calls, on either side.
    slack = max(1.0, math.exp(mean - typical))
    return Pair(
        baseline=_round(1.0, slack),
        variant=_round(math.exp(-typical), slack * math.exp(-mean)),
        baseline_first=True,
    )


def _round(typical_s: float, mean_s: float) -> Round:
    slowest_s = _NUM_CALLS * mean_s - (_NUM_CALLS - 1) * typical_s
    calls = np.array([typical_s] * (_NUM_CALLS - 1) + [slowest_s])
    return Round(
        num_calls=_NUM_CALLS, num_items=_NUM_CALLS, wall_s=float(calls.sum()), calls_s=calls
    )


def pooled_noise(trials: Sequence[Trial], controls: Sequence[Control]) -> Noise | None:
    """The noise of one visit and between two processes, over records of one kind.

    None where there are too few visits to tell.
    """
    residuals: list[float] = []
    zero: list[float] = []
    processes: list[tuple[int, int]] = []
    records: list[Trial | Control] = [*trials, *controls]
    for index, record in enumerate(records):
        groups: dict[tuple[int, int], list[float]] = {}
        for visit in record.visits:
            groups.setdefault(visit.processes, []).append(float(np.median(visit.typical)) * STEP)
        for (baseline, variant), values in groups.items():
            if len(values) < 2:
                continue
            middle = float(trimmed_mean(np.array(values)))
            freed = math.sqrt(len(values) / (len(values) - 1))
            residuals += [(value - middle) * freed for value in values]
            if isinstance(record, Control) or record.injected == 0:
                zero += values
                # Processes are numbered within a study; these are all different ones.
                processes += [(baseline + 10_000 * index, variant + 10_000 * index)] * len(values)
    if len(residuals) < 2 or not zero:
        return None
    spread = float(trimmed_error(np.array(residuals))) * math.sqrt(len(residuals))
    offsets = estimate_offsets(np.array(zero), processes, np.array([]), [])
    return Noise(visit_sd=spread, offset_sd=offsets.sd)


def rounds_ratios(samples: Sequence[Sample]) -> dict[float, list[float]]:
    """By injected work: rounds needed over those of a decision that knew the noise.

    Trials that the yardstick left undecided, and the decision too, say nothing and are left
    out; inf stands for one that only the yardstick decided, 1 for the reverse (at most 1).
    """
    trials = [sample for sample in samples if isinstance(sample, Trial)]
    controls = {sample.batch: sample for sample in samples if isinstance(sample, Control)}
    kinds: dict[tuple[str, str, bool], list[Trial]] = {}
    for trial in trials:
        kinds.setdefault((trial.state, trial.setup, trial.injected > 0), []).append(trial)
    ratios: dict[float, list[float]] = {}
    for kind in kinds.values():
        batches = dict.fromkeys(trial.batch for trial in kind)
        noise = pooled_noise(kind, [controls[b] for b in batches if b in controls])
        if noise is None:
            continue
        for trial in kind:
            if trial.batch not in controls:
                continue
            done = replay(
                visits_again(trial.visits),
                visits_again(controls[trial.batch].visits),
                threshold=trial.threshold,
                noise=noise,
            )
            if done.rounds_ratio is not None:
                ratios.setdefault(trial.injected, []).append(done.rounds_ratio)
            elif done.known_num_rounds is not None:
                ratios.setdefault(trial.injected, []).append(math.inf)
            elif done.num_rounds is not None:
                ratios.setdefault(trial.injected, []).append(1.0)
    return ratios
