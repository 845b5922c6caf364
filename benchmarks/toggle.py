"""How long a toggle takes to show something.

From submitting a variant to its first provisional ratio, which rests on six pairs of rounds in
one visit, as a share of what the same user waits for anyway: a fresh `python` that imports
torch, loads the digits CNN and runs it once. The two are measured in turns. Every toggle builds
its artifact anew; the study has been run before, as it has when somebody toggles.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

import workbench as wb
from benchmarks.claims import Claim, at_most, not_held
from benchmarks.command import Benchmark, Figures, Options, run, say
from benchmarks.studies import BRIEFLY, is_sample, study_of, wait_until_quiet
from workbench.core.recipe import Recipe
from workbench.core.variant import FINAL_STATES, Progress
from workbench.engines import engines, load_all
from workbench.measure.verdict import pair_log_ratio
from workbench.run.client import Client
from workbench.sources.samples import sample_folder

Kind = Literal["flag", "onnxruntime"]
BOUNDS: dict[Kind, float] = {"flag": 0.5, "onnxruntime": 2.5}
RECIPES: dict[Kind, Recipe] = {
    "flag": Recipe(engine="torch", threads=1),
    "onnxruntime": Recipe(engine="onnxruntime"),
}
NUM_PAIRS = 6
REPEATS, REPEATS_QUICK = 9, 3
MIN_REPEATS = 3
MODEL = "digits-cnn"
DECIDED_MODELS = (MODEL, "minilm")
DECIDED_BUDGET_S, DECIDED_BUDGET_QUICK_S = 40.0, 8.0

_FRESH = """
import importlib.util
import sys

import torch
from safetensors.torch import load_file

folder = sys.argv[1]
spec = importlib.util.spec_from_file_location("model", folder + "/model.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
net = module.make()
net.load_state_dict(load_file(folder + "/weights.safetensors"))
with torch.inference_mode():
    net(torch.zeros(1, 1, 8, 8))
"""


class Fresh(msgspec.Struct, frozen=True, kw_only=True, tag="fresh"):
    """Seconds of a fresh interpreter that runs the model once."""

    seconds: float


class Toggle(msgspec.Struct, frozen=True, kw_only=True, tag="toggle"):
    """Seconds from submit to the first ratio; None where the row failed before.

    `spread` is the standard deviation of its `num_pairs` pairs' log ratios.
    """

    kind: Kind
    recipe: str
    seconds: float | None
    ratio: float | None
    num_pairs: int
    spread: float | None
    failure: str = ""


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag="decided"):
    """Seconds from submit to a verdict other than undecided; None where none was reached."""

    model: str
    recipe: str
    seconds: float | None
    verdict: str | None
    ratio: float | None
    low: float | None
    high: float | None
    num_visits: int | None
    failure: str = ""


Sample = Fresh | Toggle | Decided


def claim_name(kind: Kind) -> str:
    """The name of a kind's claim."""
    words = {"flag": "a flag-only toggle", "onnxruntime": "ONNX Runtime with its export"}
    return f"submit to the first ratio over a fresh python: {words[kind]}"


def judge(samples: Sequence[Sample], _quick: bool) -> list[Claim]:
    """Median toggle over median fresh interpreter, for both kinds."""
    return [_judge_one(kind, samples) for kind in BOUNDS]


def _judge_one(kind: Kind, samples: Sequence[Sample]) -> Claim:
    fresh = [s.seconds for s in samples if isinstance(s, Fresh)]
    mine = [s for s in samples if isinstance(s, Toggle) and s.kind == kind]
    whole = [s.seconds for s in mine if s.seconds is not None and s.num_pairs >= NUM_PAIRS]
    if not whole or not fresh:
        return at_most(claim_name(kind), None, BOUNDS[kind])
    claim = at_most(
        claim_name(kind),
        float(np.median(whole) / np.median(fresh)),
        BOUNDS[kind],
        note=f"medians {np.median(whole):.2f} s of {len(whole)} ({min(whole):.2f}–"
        f"{max(whole):.2f}), {np.median(fresh):.2f} s of {len(fresh)} ({min(fresh):.2f}–"
        f"{max(fresh):.2f})",
    )
    if len(whole) < len(mine):
        why = "; ".join(sorted({s.failure or f"{s.num_pairs} pairs" for s in mine} - {""}))
        return not_held(
            claim, f"{len(mine) - len(whole)} of {len(mine)} toggles showed none: {why}"
        )
    if min(len(whole), len(fresh)) < MIN_REPEATS:
        return not_held(claim, f"fewer than {MIN_REPEATS} repetitions")
    return claim


def figures(samples: Sequence[Sample]) -> list[Figures]:
    """Every toggle's ratio with its spread, and how long a verdict took."""
    toggles = [s for s in samples if isinstance(s, Toggle)]
    decided = [s for s in samples if isinstance(s, Decided)]
    return [
        Figures(
            title="First ratios",
            columns=("recipe", "seconds", "ratio", "spread of its pairs", "pairs"),
            rows=tuple(
                (
                    s.recipe,
                    "–" if s.seconds is None else f"{s.seconds:.2f}",
                    s.failure or _ratio(s.ratio),
                    "–" if s.spread is None else f"{s.spread:.1%}",
                    str(s.num_pairs),
                )
                for s in toggles
            ),
        ),
        Figures(
            title="Submit to decided",
            columns=("model", "recipe", "seconds", "verdict", "ratio", "visits"),
            rows=tuple(
                (
                    s.model,
                    s.recipe,
                    "–" if s.seconds is None else f"{s.seconds:.1f}",
                    s.failure or s.verdict or "undecided",
                    _ratio(s.ratio) + (f" ({s.low:.2f}–{s.high:.2f})" if s.low and s.high else ""),
                    "–" if s.num_visits is None else str(s.num_visits),
                )
                for s in decided
            ),
        ),
    ]


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}×"


def measure(options: Options) -> list[Sample]:
    """Toggles and fresh interpreters in turns, then verdicts for every engine."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="workbench-toggle-") as name:
        with study_of(f"sample:{MODEL}", Path(name) / "toggles") as study:
            study.run(progress=False)
            with Client.connect(study.folder) as client:
                for index in range(REPEATS_QUICK if options.quick else REPEATS):
                    kinds: list[Kind] = ["flag", "onnxruntime"]
                    for kind in kinds if index % 2 else reversed(kinds):
                        wait_until_quiet(client)
                        samples.append(Fresh(seconds=fresh_python()))
                        samples.append(_toggle(study, client, kind))
                        say(f"{samples[-2]}\n{samples[-1]}")
        budget_s = DECIDED_BUDGET_QUICK_S if options.quick else DECIDED_BUDGET_S
        for model in DECIDED_MODELS:
            if is_sample(model) and not (options.quick and model != MODEL):
                with study_of(f"sample:{model}", Path(name) / model) as study:
                    samples += _decide_all(study, model, budget_s)
    return samples


def fresh_python() -> float:
    """Seconds of a new interpreter that imports torch and runs the digits CNN once."""
    start_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", _FRESH, str(sample_folder(MODEL))], check=True, capture_output=True
    )
    return time.perf_counter() - start_s


def _toggle(study: wb.Study, client: Client, kind: Kind) -> Toggle:
    shown: list[tuple[float, Progress]] = []

    def note(progress: Progress) -> None:
        if progress.ratio is not None:
            shown.append((time.perf_counter(), progress))

    start_s = time.perf_counter()
    numbers = study.run(RECIPES[kind], rebuild=True, wait=False, **BRIEFLY)
    client.wait(numbers, on_progress=note)
    row = next(row for row in study.variants() if row.number == numbers[-1])
    visits = study.visits(row.number)
    pairs = [pair_log_ratio(pair) for pair in visits[0].pairs] if visits else []
    return Toggle(
        kind=kind,
        recipe=row.recipe.spec,
        seconds=shown[0][0] - start_s if shown else None,
        ratio=shown[0][1].ratio if shown else None,
        num_pairs=len(pairs),
        spread=float(np.std(pairs, ddof=1)) if len(pairs) > 1 else None,
        failure="" if row.failure is None else row.failure.message,
    )


def _decide_all(study: wb.Study, model: str, budget_s: float) -> list[Decided]:
    load_all()
    study.run(progress=False)
    found = []
    with Client.connect(study.folder) as client:
        for name in engines():
            recipe = RECIPES["flag"] if name == "torch" else Recipe(engine=name)
            wait_until_quiet(client)
            found.append(_decide(study, client, model, recipe, budget_s))
            say(str(found[-1]))
    return found


def _decide(
    study: wb.Study, client: Client, model: str, recipe: Recipe, budget_s: float
) -> Decided:
    last: list[tuple[float, Progress]] = []

    def note(progress: Progress) -> None:
        is_verdict = progress.verdict not in (None, "undecided")
        if (is_verdict or progress.state in FINAL_STATES) and not last:
            last.append((time.perf_counter(), progress))

    start_s = time.perf_counter()
    numbers = study.run(recipe, budget_s=budget_s, wait=False)
    client.wait(numbers, on_progress=note)
    row = next(row for row in study.variants() if row.number == numbers[-1])
    progress = last[0][1] if last else None
    verdict = progress.verdict if progress is not None else None
    return Decided(
        model=model,
        recipe=recipe.spec,
        seconds=last[0][0] - start_s if last and verdict not in (None, "undecided") else None,
        verdict=verdict,
        ratio=progress.ratio if progress is not None else None,
        low=progress.low if progress is not None else None,
        high=progress.high if progress is not None else None,
        num_visits=len(study.visits(row.number)),
        failure="" if row.failure is None else row.failure.message,
    )


BENCHMARK: Benchmark[Sample] = Benchmark(
    name="toggle",
    about="submit to the first provisional ratio, against a fresh python that runs the model",
    claims=tuple(claim_name(kind) for kind in BOUNDS),
    sample_type=Sample,
    measure=measure,
    judge=judge,
    figures=figures,
)


if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
