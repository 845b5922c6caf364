"""What the truth benchmark claims, as functions of its trials alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.claims import Claim, at_least, at_most, binomial_upper, not_held
from benchmarks.command import Figures
from benchmarks.oracle import rounds_ratios
from benchmarks.trials import STATES, STEP, Sample, Trial, trials_of

NUM_SAME = 100
NUM_INJECTED = 30
# Injected work, the share of trials that must decide, and within how much of their own
# measuring time (seconds).
DECIDES = ((0.30, 0.95, 15.0), (0.10, 0.80, 40.0), (0.05, 0.80, 120.0))
FALSE_BOUND = 0.05
COVER_BOUND = 0.93
ORACLE_BOUND = 2.0
NUM_SETUPS = 4
# "Same" within 2 % may be out of reach for most; a median of a handful says little.
MIN_SAME_DECIDED = 10

FALSE_VERDICTS = "false verdicts on a baseline against itself (95 % upper bound)"


def cover_name(state: str) -> str:
    """The name of a state's claim on its intervals."""
    return f"intervals at 95 % cover the truth, {state}"


def decides_name(injected: float, limit_s: float, state: str) -> str:
    """The name of the claim that an amount of injected work is found in time."""
    return f"{injected:.0%} more work decided within {limit_s:.0f} s, {state}"


SETUPS = "two models on two engines, tried in each state"
ORACLE = "rounds needed, over those of a decision that knew the noise"
NAMES = (
    FALSE_VERDICTS,
    *(cover_name(state) for state in STATES),
    *(decides_name(f, s, state) for f, _, s in DECIDES for state in STATES),
    SETUPS,
    ORACLE,
)


def judge(samples: Sequence[Sample], quick: bool) -> list[Claim]:
    """Every claim. With `quick` a single trial of a kind is enough, and shares are plain."""
    return [
        _false_verdicts(samples, quick),
        *(_covers(samples, state, quick) for state in STATES),
        *(
            _decides(trials_of(samples, state, injected), injected, share, limit_s, state, quick)
            for injected, share, limit_s in DECIDES
            for state in STATES
        ),
        _setups(samples, quick),
        _oracle(samples, quick),
    ]


def _false_verdicts(samples: Sequence[Sample], quick: bool) -> Claim:
    by_state = {state: trials_of(samples, state, 0.0) for state in STATES}
    trials = [trial for found in by_state.values() for trial in found]
    num_false = sum(trial.is_false for trial in trials)
    note = "; ".join(
        f"{state}: {sum(t.is_false for t in found)} of {len(found)}"
        for state, found in by_state.items()
    )
    if quick:
        value = num_false / len(trials) if trials else None
        note = f"plain share of a quick run; {note}"
    else:
        value = binomial_upper(num_false, len(trials))
    claim = at_most(FALSE_VERDICTS, value, FALSE_BOUND, note=note)
    return _enough(claim, [len(found) for found in by_state.values()], NUM_SAME, quick)


def _covers(samples: Sequence[Sample], state: str, quick: bool) -> Claim:
    trials = [t for t in trials_of(samples) if t.state == state]
    same = [t for t in trials if t.injected == 0]
    num = sum(trial.covers for trial in trials)
    claim = at_least(
        cover_name(state),
        num / len(trials) if trials else None,
        COVER_BOUND,
        note=f"{num} of {len(trials)}, of them {sum(t.covers for t in same)} of {len(same)} "
        "of a baseline against itself",
    )
    counts = [len(same), *(len([t for t in trials if t.injected == f]) for f, _, _ in DECIDES)]
    return _enough(_enough(claim, counts[:1], NUM_SAME, quick), counts[1:], NUM_INJECTED, quick)


def _decides(
    trials: Sequence[Trial], injected: float, share: float, limit_s: float, state: str, quick: bool
) -> Claim:
    num = sum(trial.decides_within(limit_s) for trial in trials)
    times = sorted(t.measured_s for t in trials if t.decides_within(t.budget_s))
    middle = f"; median {np.median(times):.1f} s of those that decided" if times else ""
    claim = at_least(
        decides_name(injected, limit_s, state),
        num / len(trials) if trials else None,
        share,
        note=f"{num} of {len(trials)}{middle}",
    )
    return _enough(claim, [len(trials)], NUM_INJECTED, quick)


def _setups(samples: Sequence[Sample], quick: bool) -> Claim:
    tried = [
        min(
            len({t.setup for t in trials_of(samples, state, 0.0)}),
            len({t.setup for t in trials_of(samples, state) if t.injected > 0}),
        )
        for state in STATES
    ]
    names = sorted({t.setup for t in trials_of(samples)})
    return at_least(
        SETUPS,
        float(min(tried)) if names else None,
        1 if quick else NUM_SETUPS,
        note=", ".join(names),
    )


def _oracle(samples: Sequence[Sample], quick: bool) -> Claim:
    """The worst of the kinds of injected work, each by its median; and of none, if decided."""
    ratios = rounds_ratios(samples)
    medians = {
        injected: float(np.median(found))
        for injected, found in sorted(ratios.items())
        if injected > 0 or len(found) >= MIN_SAME_DECIDED
    }
    note = ", ".join(
        f"{_words(injected)} {value:.2f} (of {len(ratios[injected])})"
        for injected, value in medians.items()
    )
    claim = at_most(
        ORACLE,
        max(medians.values()) if medians else None,
        ORACLE_BOUND,
        note=f"the worst of the medians: {note}" if note else "",
    )
    counts = [len(ratios.get(injected, ())) for injected, _, _ in DECIDES]
    return _enough(claim, counts, NUM_INJECTED, quick)


def _words(injected: float) -> str:
    return f"{injected:.0%} more" if injected else "nothing more"


def _enough(claim: Claim, counts: Sequence[int], wanted: int, quick: bool) -> Claim:
    """The claim as not held where one kind of trial was run too rarely."""
    wanted = 1 if quick else wanted
    fewest = min(counts)
    if fewest >= wanted or claim.value is None:
        return claim
    return not_held(claim, f"{fewest} of {wanted} trials so far")


# Figures ----------------------------------------------------------------------------------


def figures(samples: Sequence[Sample]) -> list[Figures]:
    """The noise of rounds and visits, and what the trials came to."""
    trials = trials_of(samples)
    groups = sorted({(t.state, t.setup) for t in trials})
    return [
        Figures(
            title="Noise: standard deviations of a log ratio, in percent",
            columns=(
                "state",
                "model / engine",
                "one round",
                "one round, every call",
                "one visit",
                "between processes",
                "others' load",
                "visits",
            ),
            rows=tuple(_noise_row(trials, *group) for group in groups),
        ),
        Figures(
            title="Trials",
            columns=(
                "state",
                "injected",
                "trials",
                "right",
                "false",
                "undecided or failed",
                "covered",
                "own seconds to a right verdict, median (90 %)",
                "visits, median",
            ),
            rows=tuple(
                _outcome_row(trials, state, injected)
                for state in STATES
                for injected in (0.0, *(f for f, _, _ in DECIDES))
            ),
        ),
    ]


def _noise_row(trials: Sequence[Trial], state: str, setup: str) -> tuple[str, ...]:
    mine = [t for t in trials if (t.state, t.setup) == (state, setup)]
    visits = [visit for trial in mine for visit in trial.visits]
    loads = [visit.host_load for visit in visits if visit.host_load is not None]
    return (
        state,
        setup,
        _percent(round_noise([visit.typical for visit in visits])),
        _percent(round_noise([visit.mean for visit in visits])),
        _percent(visit_noise(mine)),
        _percent(process_noise(mine)),
        "–" if not loads else f"{np.mean(loads):.0%}",
        str(len(visits)),
    )


def round_noise(visits: Sequence[Sequence[int]]) -> float | None:
    """Standard deviation of the log of one round's time, from pairs within visits.

    A pair's log ratio holds the noise of two rounds. None where no visit has two pairs.
    """
    variances = [np.var(np.array(v) * STEP, ddof=1) for v in visits if len(v) > 1]
    return float(np.sqrt(np.mean(variances) / 2)) if variances else None


def visit_noise(trials: Sequence[Trial]) -> float | None:
    """Standard deviation of a visit's log ratio about its two processes' own mean."""
    variances, weights = [], []
    for trial in trials:
        for values in _by_processes(trial).values():
            if len(values) > 1:
                variances.append(np.var(values, ddof=1))
                weights.append(len(values) - 1)
    return float(np.sqrt(np.average(variances, weights=weights))) if variances else None


def process_noise(trials: Sequence[Trial]) -> float | None:
    """Standard deviation between pairs of processes of a visit's mean log ratio.

    What noise of visits is left in those means is taken off; None where no trial has two
    pairs of processes.
    """
    noise = visit_noise(trials)
    surplus, num = 0.0, 0
    for trial in trials:
        groups = list(_by_processes(trial).values())
        if len(groups) < 2 or noise is None:
            continue
        means = np.array([np.mean(values) for values in groups])
        left = np.mean([noise**2 / len(values) for values in groups])
        surplus += (len(groups) - 1) * (np.var(means, ddof=1) - left)
        num += len(groups) - 1
    return float(np.sqrt(max(0.0, surplus / num))) if num else None


def _by_processes(trial: Trial) -> dict[tuple[int, int], list[float]]:
    groups: dict[tuple[int, int], list[float]] = {}
    for visit in trial.visits:
        groups.setdefault(visit.processes, []).append(float(np.median(visit.typical)) * STEP)
    return groups


def _outcome_row(trials: Sequence[Trial], state: str, injected: float) -> tuple[str, ...]:
    mine = [t for t in trials if t.state == state and t.injected == injected]
    right = [t for t in mine if t.decides_within(float("inf"))]
    num_false = sum(t.is_false for t in mine)
    times = [t.measured_s for t in right]
    return (
        state,
        f"{injected:.0%}" if injected else "nothing",
        str(len(mine)),
        str(len(right)),
        str(num_false),
        str(len(mine) - len(right) - num_false),
        str(sum(t.covers for t in mine)),
        f"{np.median(times):.1f} ({np.quantile(times, 0.9):.1f})" if times else "–",
        f"{np.median([len(t.visits) for t in mine]):.0f}" if mine else "–",
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.2f}"
