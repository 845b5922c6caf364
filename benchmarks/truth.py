"""Whether verdicts are true: no difference where there is none, and found where there is one.

    python -m benchmarks.truth                      until every kind of trial is complete
    python -m benchmarks.truth --minutes 30         go on for half an hour
    python -m benchmarks.truth --state busy --trials 16
    python -m benchmarks.truth --minutes 0          judge what the file holds

Each trial is a row of a real study: `Study.run` builds, serves and measures it until it is
decided or its budget is spent. Trials are appended to results/truth.jsonl and count for the
measuring and scheduling code that made them; after a change of that code they start anew.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import workbench as wb
from benchmarks.busy import busy_core
from benchmarks.command import (
    Benchmark,
    Options,
    append_samples,
    code_digest,
    read_samples,
    run,
    say,
)
from benchmarks.injection import PASSES, Built, built_by, plant, recipe_named
from benchmarks.studies import BRIEFLY, shut_down, study_of
from benchmarks.trials import (
    STATES,
    Control,
    Sample,
    State,
    Trial,
    of_code,
    raw_visits,
    trials_of,
    true_ratio,
)
from benchmarks.truth_claims import DECIDES, NAMES, NUM_INJECTED, NUM_SAME, figures, judge
from workbench.core.errors import RunError, WorkbenchError
from workbench.core.model import Model
from workbench.core.recipe import Recipe
from workbench.core.variant import FINAL_STATES, Progress, RunOptions
from workbench.run.client import Client
from workbench.sources.samples import sample_folder

MODELS = ("digits-cnn", "tabular-mlp")
ENGINES = ("torch", "onnxruntime")
SETUPS = tuple(f"{model}/{engine}" for model in MODELS for engine in ENGINES)
INJECTED = tuple(injected for injected, _, _ in DECIDES)
# The budget of rows that nobody gives one, and the longest that a claim allows.
SAME_BUDGET_S, SAME_BUDGET_QUICK_S = RunOptions().budget_s, 10.0
INJECTED_BUDGET_S = max(limit_s for _, _, limit_s in DECIDES)
# Trials of one batch live at once and share the time between each other's visits.
SAME_ROWS = 8
INJECTED_ROWS = 2
_CONTROL = 0
_MAX_FAILURES = 3
# Outputs of repeated passes are the plain model's: a few rows show that.
_CHECKED_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Trials that share a study: `injected` lists the extra work of each row."""

    state: State
    setup: str
    injected: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How many trials of a kind are to be there in each state."""

    same: int
    injected: int


FULL = Wanted(same=NUM_SAME, injected=NUM_INJECTED)
QUICK = Wanted(same=2, injected=1)


def next_batch(
    samples: Sequence[Sample],
    states: Sequence[State],
    wanted: Wanted,
    setups: Sequence[str] = SETUPS,
) -> Batch | None:
    """The batch that is furthest behind; None where all are complete."""
    found: list[tuple[float, int, Batch]] = []
    for state in states:
        for amounts, num_wanted in (((0.0,), wanted.same), (INJECTED, wanted.injected)):
            counts = {amount: len(trials_of(samples, state, amount)) for amount in amounts}
            missing = {a: max(0, num_wanted - count) for a, count in counts.items()}
            if not any(missing.values()):
                continue
            mine = [t for t in trials_of(samples, state) if t.injected in amounts]
            setup = min(setups, key=lambda name: sum(t.setup == name for t in mine))
            rows_each = SAME_ROWS if amounts == (0.0,) else INJECTED_ROWS
            injected = tuple(
                amount for amount in amounts for _ in range(min(rows_each, missing[amount]))
            )
            share = min(counts.values()) / num_wanted
            found.append((share, len(found), Batch(state=state, setup=setup, injected=injected)))
    return min(found)[2] if found else None


class Bench:
    """Runs batches, in studies below a folder of its own."""

    def __init__(self, folder: Path, *, same_budget_s: float = SAME_BUDGET_S) -> None:
        self._folder = folder
        self._same_budget_s = same_budget_s
        self._models: dict[tuple[str, int | None], Model] = {}
        self._artifacts: dict[str, Built] = {}

    def run(self, batch: Batch) -> list[Sample]:
        """The trials of one batch and the control that they shared."""
        same = not any(batch.injected)
        engine = batch.setup.split("/")[1]
        # Single rows where passes are repeated: twenty passes are then a call of some
        # milliseconds, of which a round holds enough to tell the slow ones apart.
        model = self._model(batch.setup, None if same else 1)
        code, name = code_digest(), f"{time.time_ns():x}-{secrets.token_hex(2)}"
        recipes = [
            Recipe(engine=engine) if f == 0 else recipe_named(engine, INJECTED.index(f))
            for f in batch.injected
        ]
        built = None if same else self._built(batch.setup)
        folder = self._folder / name
        with study_of(model, folder) as study, busy_core(batch.state == "busy"):
            keys: dict[Recipe, str] = {}
            if built is not None:
                passes = {Recipe(engine=engine): PASSES}
                passes |= {
                    recipe: round(PASSES * (1 + f))
                    for recipe, f in zip(recipes, batch.injected, strict=True)
                }
                keys = plant(folder, built, passes)
            budget_s = self._same_budget_s if same else INJECTED_BUDGET_S
            ended = _run_to_the_end(study, recipes, budget_s)
            shut_down(folder)
            rows = study.variants()
            for row in rows:
                is_planted = row.artifact == keys.get(row.recipe) and row.artifact_cached
                if keys and row.failure is None and not is_planted:
                    raise RunError(
                        f"row {row.number} was built anew instead of serving what was planted; "
                        "an engine's code changed meanwhile. Start again."
                    )
            samples = self._samples(study, batch, name, code, budget_s, ended)
        if code_digest() != code:
            raise RunError("the measuring code changed while a batch ran; the batch is dropped.")
        shutil.rmtree(folder)
        return samples

    def _model(self, setup: str, num_rows: int | None) -> Model:
        """The model of a set-up, as a user would load it for calls of so many rows.

        None leaves the sample's own example. For ONNX Runtime it is the sample's graph, so
        that the baseline is what a user of that engine has.
        """
        key = (setup, num_rows)
        if key not in self._models:
            name, engine = setup.split("/")
            model = _load_sample(name, num_rows)
            if engine == "onnxruntime":
                with study_of(model, self._folder / f"{name}-{num_rows}-exported") as study:
                    study.run(Recipe(engine=engine), progress=False, **BRIEFLY)
                    row = study.variants()[1]
                    if row.artifact is None:
                        raise RunError(f"{setup} cannot be exported: {row.failure}")
                    graph = next((study.folder / "artifacts" / row.artifact).glob("*.onnx"))
                    example = _arrays(study.folder / "model" / "example.npz")
                    model = wb.load(graph, inputs=example)
            self._models[key] = model
        return self._models[key]

    def _built(self, setup: str) -> Built:
        """The baseline of a set-up's single rows, as a study built it."""
        if setup not in self._artifacts:
            folder = self._folder / f"{setup.replace('/', '-')}-built"
            with study_of(self._model(setup, 1), folder) as study:
                study.run(progress=False, **BRIEFLY)
                self._artifacts[setup] = built_by(study)
        return self._artifacts[setup]

    def _samples(
        self,
        study: wb.Study,
        batch: Batch,
        name: str,
        code: str,
        budget_s: float,
        ended: dict[int, Progress],
    ) -> list[Sample]:
        comparison = study.compare()
        made: list[Sample] = [
            Control(
                batch=name,
                code=code,
                state=batch.state,
                setup=batch.setup,
                visits=raw_visits(study.visits(_CONTROL)),
            )
        ]
        rows = [row for row in study.variants() if row.role == "variant"]
        for row, injected in zip(rows, batch.injected, strict=True):
            decision = comparison.row(row.number).decision
            final = ended.get(row.number)
            decided = decision is not None and not decision.provisional
            made.append(
                Trial(
                    batch=name,
                    code=code,
                    state=batch.state,
                    setup=batch.setup,
                    injected=injected,
                    truth=true_ratio(injected),
                    row_state=row.state,
                    verdict_at_end=None if final is None else final.verdict,
                    verdict=decision.verdict if decision is not None and decided else None,
                    ratio=None if decision is None else decision.ratio,
                    low=None if decision is None else decision.low,
                    high=None if decision is None else decision.high,
                    threshold=row.options.threshold,
                    budget_s=budget_s,
                    visits=raw_visits(study.visits(row.number)),
                    failure="" if row.failure is None else row.failure.message,
                )
            )
        return made


def _run_to_the_end(
    study: wb.Study, recipes: Sequence[Recipe], budget_s: float
) -> dict[int, Progress]:
    """Run the rows; returns the last that clients were told of each."""
    ended: dict[int, Progress] = {}

    def note(progress: Progress) -> None:
        if progress.state in FINAL_STATES:
            ended[progress.number] = progress

    numbers = study.run(*recipes, budget_s=budget_s, wait=False)
    with Client.connect(study.folder) as client:
        client.wait(numbers, on_progress=note)
    return ended


def _load_sample(name: str, num_rows: int | None) -> Model:
    if num_rows is None:
        return wb.load(f"sample:{name}")
    rows = _arrays(sample_folder(name) / "evaluation.npz")
    labels = rows.pop("labels")[:_CHECKED_ROWS]
    return wb.load(
        f"sample:{name}",
        inputs={key: value[:num_rows] for key, value in rows.items()},
        evaluation={key: value[:_CHECKED_ROWS] for key, value in rows.items()},
        labels=labels,
    )


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def measure(options: Options) -> list[Sample]:
    """Append trials to the file until it is complete or the limits are reached."""
    path = BENCHMARK.path_of(options.out)
    code = code_digest()
    samples = of_code(read_samples(path, Sample), code)
    say(f"{len(trials_of(samples))} trials of this code are in {path}")
    extra = options.extra
    wanted = QUICK if options.quick else FULL
    states: Sequence[State] = (extra.state,) if extra.state else STATES
    setups: Sequence[str] = SETUPS[:1] if options.quick else SETUPS
    if extra.setup:
        setups = (extra.setup,)
    until_s = time.monotonic() + extra.minutes * 60
    num_new = num_failures = 0
    folder = Path(tempfile.mkdtemp(prefix="workbench-truth-"))
    try:
        same_budget_s = SAME_BUDGET_QUICK_S if options.quick else SAME_BUDGET_S
        bench = Bench(folder, same_budget_s=same_budget_s)
        while num_new < extra.trials and time.monotonic() < until_s:
            batch = next_batch(samples, states, wanted, setups)
            if batch is None:
                break
            start_s = time.monotonic()
            try:
                made = bench.run(batch)
            except WorkbenchError as error:
                num_failures += 1
                say(f"a batch came to nothing: {error}")
                if num_failures == _MAX_FAILURES:
                    raise
                continue
            append_samples(path, made)
            samples += made
            num_new += len(batch.injected)
            say(_line(batch, made, time.monotonic() - start_s))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return samples


def _line(batch: Batch, made: Sequence[Sample], seconds: float) -> str:
    trials = trials_of(made)
    verdicts = ", ".join(
        f"{t.injected:.0%} {t.verdict_at_end or t.row_state} {t.measured_s:.0f} s" for t in trials
    )
    return f"{batch.state} {batch.setup}, {seconds:.0f} s: {verdicts}"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trials", type=float, default=float("inf"), help="stop after so many new trials"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="start no batch after so long"
    )
    parser.add_argument("--state", choices=STATES, help="only trials of this state")
    parser.add_argument("--setup", choices=SETUPS, help="only trials of this model and engine")


BENCHMARK: Benchmark[Sample] = Benchmark(
    name="truth",
    about="verdicts on a baseline against itself, and on injected extra work",
    claims=NAMES,
    sample_type=Sample,
    measure=measure,
    judge=judge,
    figures=figures,
    add_arguments=_arguments,
    relevant=lambda samples: of_code(samples, code_digest()),
    keeps_own_file=True,
)


if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
