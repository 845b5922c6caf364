"""Samples of every benchmark under which all of its claims hold."""

from __future__ import annotations

import math
import random

from benchmarks import demo, isolation, overhead, toggle, traces
from benchmarks.trials import STATES, STEP, Control, RawVisit, Sample, Trial, true_ratio
from benchmarks.truth import SETUPS
from benchmarks.truth_claims import DECIDES, NUM_INJECTED, NUM_SAME

# Fewer pairs than a real visit has: every trial is decided again in every judgement.
NUM_VISITS, NUM_PAIRS = 6, 2
CODE = "of this test"


def raw_visits(log_ratio: float, seed: int) -> tuple[RawVisit, ...]:
    """Visits about a log ratio, two in each pair of processes, a second of rounds each."""
    rng = random.Random(seed)
    made = []
    for number in range(NUM_VISITS):
        middle = log_ratio + rng.gauss(0.0, 0.001)
        pairs = tuple(round((middle + rng.gauss(0.0, 0.001)) / STEP) for _ in range(NUM_PAIRS))
        made.append(
            RawVisit(
                started_s=2.0 * number,
                own_s=1.0,
                typical=pairs,
                mean=pairs,
                processes=(number // 2, 100 + number // 2),
            )
        )
    return tuple(made)


def trial(index: int, state: str, injected: float, **changes: object) -> Trial:
    """A trial that is right in every respect."""
    verdict = "slower" if injected else "same"
    truth = true_ratio(injected)
    fields = {
        "batch": f"{state}-{injected}-{index // 8}",
        "code": CODE,
        "state": state,
        "setup": SETUPS[index % len(SETUPS)],
        "injected": injected,
        "truth": truth,
        "row_state": "done",
        "verdict_at_end": verdict,
        "verdict": verdict,
        "ratio": truth,
        "low": truth * 0.99,
        "high": truth * 1.01,
        "threshold": 0.02,
        "budget_s": 120.0,
        "visits": raw_visits(math.log(truth), seed=index),
    }
    return Trial(**{**fields, **changes})


def truth_samples() -> list[Sample]:
    """A complete set of trials, with the control of each batch."""
    samples: list[Sample] = []
    for state in STATES:
        for injected, num in ((0.0, NUM_SAME), *((f, NUM_INJECTED) for f, _, _ in DECIDES)):
            samples += [trial(index, state, injected) for index in range(num)]
    controls = {}
    for index, one in enumerate(s for s in samples if isinstance(s, Trial)):
        controls[one.batch] = Control(
            batch=one.batch,
            code=one.code,
            state=one.state,
            setup=one.setup,
            visits=raw_visits(0.0, seed=-index),
        )
    return [*samples, *controls.values()]


def overhead_samples() -> list[overhead.Block]:
    """Rounds a thousandth slower than bare loops of two milliseconds a call."""
    rng = random.Random(1)
    return [
        overhead.Block(
            setup=setup.name,
            num_calls=10,
            round_s=tuple(0.002002 * rng.uniform(0.999, 1.001) for _ in range(20)),
            bare_s=(0.002,) * 20,
        )
        for setup in overhead.SETUPS
        for _ in range(10)
    ]


def toggle_samples() -> list[toggle.Sample]:
    """Three of each, the flag at 0.4 and the export at 2 of a fresh interpreter."""
    made: list[toggle.Sample] = [toggle.Fresh(seconds=2.0) for _ in range(3)]
    for kind, seconds in (("flag", 0.8), ("onnxruntime", 4.0)):
        made += [
            toggle.Toggle(
                kind=kind,
                recipe=toggle.RECIPES[kind].spec,
                seconds=seconds,
                ratio=1.5,
                num_pairs=6,
                spread=0.05,
            )
            for _ in range(3)
        ]
    return made


def traces_samples() -> list[traces.Sample]:
    """A second for a million events, 20 and 30 times that and 2 GB for the peers."""
    seconds = {
        "workbench": 1.0, "loop": 4.0, "reopened": 0.04, "tables": 0.5, "hta": 30.0,
        "tensorboard": 20.0,
    }  # fmt: skip
    peak = {"hta": 3_000_000_000, "tensorboard": 2_500_000_000}
    made: list[traces.Sample] = [
        traces.Reading(
            way=way,
            num_events=1_000_017,
            cpu_s=seconds[way],
            peak_bytes=peak.get(way, 200_000_000),
            num_kernels=150_000,
            total_ns=4_000_000_000,
        )
        for way, turns in traces.TURNS.items()
        for _ in range(turns)
    ]
    large = traces.Reading(
        way="workbench",
        num_events=10_000_100,
        cpu_s=10.0,
        peak_bytes=800_000_000,
        stored_bytes=600_000_000,
    )
    fuzzed = traces.Fuzzed(num=100_000, num_bad=0, longest_s=0.1, memory_bytes=1_000_000)
    return [*made, large, fuzzed]


def isolation_samples() -> list[isolation.Sample]:
    """Ten rows of 50 MB, and nothing left."""
    rows: list[isolation.Sample] = [
        isolation.Ran(
            place=place,
            recipe="engine=torch",
            state="done",
            peak_bytes=50_000_000,
            start_bytes=200_000_000,
            call_s=0.001,
        )
        for place in range(1, 11)
    ]
    return [
        *rows,
        isolation.FirstAndTenth(verdict="same", ratio=1.001, low=0.99, high=1.01),
        isolation.Left(
            num_seen=12,
            alive=(),
            files=(),
            lock_free=True,
            free_before_bytes=8_000_000_000,
            free_after_bytes=7_990_000_000,
        ),
    ]


def demo_samples() -> list[demo.Sample]:
    """Ten rows with every lever of the demo; the fourth leads and is exported."""
    rows: list[demo.Sample] = [
        demo.Row(
            number=number,
            recipe=recipe.spec,
            engine=recipe.engine,
            levers=tuple(lever for lever, _ in recipe.levers),
            state="done",
            verdict="slower" if recipe.get("precision") else "faster",
            text="",
            labels=("int8",) if recipe.get("quantization") == "int8-static" else ("fp32",),
            is_best=number == 4,
            num_recorded=10,
        )
        for number, recipe in enumerate(demo.RECIPES, start=2)
    ]
    return [
        *rows,
        demo.Exported(number=4, folder="demo-study/winner", check_exit_code=0, said="passed"),
    ]
