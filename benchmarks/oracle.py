"""Recorded trials, decided again beside a decision that knew the noise.

`benchmarks.replay` does the deciding, after each visit as the scheduler does: a row that
has as many visits as a look needs may still have to wait for its control. What the yardstick
knows is the noise of all records of one state and set-up together, which no single record is
long enough to tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.replay import Noise, replay
from benchmarks.trials import STEP, Control, RawVisit, Sample, Trial
from workbench.core.measurement import Pair, Round, Visit
from workbench.measure.location import trimmed_error, trimmed_mean
from workbench.measure.looks import NUM_VISITS
from workbench.measure.offsets import estimate_offsets
from workbench.measure.verdict import decide

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
            visits = visits_again(trial.visits)
            control = visits_again(controls[trial.batch].visits)
            own, known = _first_decisions(visits, control, trial.threshold, noise)
            if own is not None and known is not None:
                ratios.setdefault(trial.injected, []).append(own / known)
            elif known is not None:
                ratios.setdefault(trial.injected, []).append(math.inf)
            elif own is not None:
                ratios.setdefault(trial.injected, []).append(1.0)
    return ratios


def _first_decisions(
    visits: Sequence[Visit], control: Sequence[Visit], threshold: float, noise: Noise
) -> tuple[int | None, int | None]:
    """Rounds after which a record is decided, and after which one who knew the noise would.

    None where the record ends undecided. After each visit what the control had shown by then
    counts, and the visits up to the last look.
    """
    own: int | None = None
    known: int | None = None
    for num in range(NUM_VISITS[0], len(visits) + 1):
        now_s = visits[num - 1].started_s
        shown = [one for one in control if one.pairs and one.started_s <= now_s]
        rounds = 2 * sum(len(visit.pairs) for visit in visits[:num])
        if own is None and decide(visits[:num], shown, threshold).verdict != "undecided":
            own = rounds
        if known is None:
            # As if each look were now: what the control has shown since lets it decide.
            seen = [replace(one, started_s=now_s) for one in visits[:num]]
            found = replay(seen, shown, threshold=threshold, noise=noise).known_num_rounds
            known = rounds if found is not None else None
        if own is not None and known is not None:
            break
    return own, known
