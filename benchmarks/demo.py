"""The main job on a bundled model: variants side by side, a report, the winner exported.

`make demo` runs this. It leaves demo-study/ with the study, its report and the exported winner.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import workbench as wb
from benchmarks.claims import Claim, at_least, at_most
from benchmarks.command import Benchmark, Figures, Options, run, say
from benchmarks.studies import shut_down
from workbench.core.errors import WorkbenchError
from workbench.core.recipe import Recipe
from workbench.study.choice import best
from workbench.study.comparison import Row as ComparisonRow
from workbench.study.terminal import print_comparison
from workbench.traces.windows import windows

MODEL, MODEL_QUICK = "digits-cnn-wide", "digits-cnn"
# The order is that of their starts: what is quick to build comes first.
RECIPES = (
    Recipe(engine="torch", layout="channels-last"),
    Recipe(engine="onnxruntime"),
    Recipe(engine="onnxruntime", quantization="int8-static"),
    Recipe(engine="torch", threads=1),
    Recipe(engine="onnxruntime", batch=32),
    Recipe(engine="onnxruntime", quantization="int8-dynamic"),
    Recipe(engine="torch", batch=1),
    Recipe(engine="onnxruntime", threads=1),
    Recipe(engine="torch", precision="bf16"),
    Recipe(engine="onnxruntime", batch=32, quantization="int8-static"),
)
BUDGET_S, BUDGET_QUICK_S = 20.0, 6.0
# bf16 is emulated on many CPUs, five to thirty times slower: here that is to be seen decided.
EARLY_STOP_RATIO = 50.0
FOLDER = Path("demo-study")
_CHECK_LIMIT_S = 300.0


class Row(msgspec.Struct, frozen=True, kw_only=True, tag="row"):
    """A variant as the finished study shows it; `labels` come from its evidence.

    `num_recorded` are the calls in its recording, as its trace has them.
    """

    number: int
    recipe: str
    engine: str
    levers: tuple[str, ...]
    state: str
    verdict: str | None
    text: str
    labels: tuple[str, ...]
    is_best: bool
    num_recorded: int = 0
    failure: str = ""


class Exported(msgspec.Struct, frozen=True, kw_only=True, tag="exported"):
    """The winner's export, and how its own check ended; None where there was none to run."""

    number: int | None
    folder: str | None
    check_exit_code: int | None
    said: str


Sample = Row | Exported

MEASURED = "variants measured"
LEVERS = "levers tried"
ENGINES = "engines tried"
DECIDED = "variants decided"
FASTER = "variants decided faster"
SLOWER = "variants decided slower"
INT8 = "variants that are int8 by their evidence"
PROFILED = "variants profiled, with calls in their traces"
EXPORTED = "winners exported"
CHECK = "exit code of the exported winner's check"
NAMES = (MEASURED, LEVERS, ENGINES, DECIDED, FASTER, SLOWER, INT8, PROFILED, EXPORTED, CHECK)


def judge(samples: Sequence[Sample], _quick: bool) -> list[Claim]:
    """Every claim; nothing is claimed of a study without rows."""
    rows = [s for s in samples if isinstance(s, Row)]
    if not rows:
        return []
    measured = [row for row in rows if row.state in ("done", "stopped-early")]
    decided = [row for row in measured if row.verdict not in (None, "undecided")]
    levers = {lever for row in measured for lever in row.levers}
    engines = {row.engine for row in measured}
    int8 = [row for row in measured if any(label.startswith("int8") for label in row.labels)]
    return [
        _count(MEASURED, measured, 8),
        at_least(LEVERS, float(len(levers)), 4, note=", ".join(sorted(levers))),
        at_least(ENGINES, float(len(engines)), 2, note=", ".join(sorted(engines))),
        _count(DECIDED, decided, 6),
        _count(FASTER, [row for row in decided if row.verdict == "faster"], 1),
        _count(SLOWER, [row for row in decided if row.verdict == "slower"], 1),
        _count(INT8, int8, 1),
        _count(PROFILED, [row for row in rows if row.num_recorded], 8),
        *_judge_export([s for s in samples if isinstance(s, Exported)], rows),
    ]


def _count(name: str, rows: Sequence[Row], bound: int) -> Claim:
    note = ", ".join(f"#{row.number}" for row in rows) or "none"
    return at_least(name, float(len(rows)), bound, note=note)


def _judge_export(exports: Sequence[Exported], rows: Sequence[Row]) -> list[Claim]:
    best_rows = {row.number for row in rows if row.is_best}
    done = [e for e in exports if e.folder is not None and e.number in best_rows]
    said = "; ".join(e.said for e in exports)
    exit_code = done[0].check_exit_code if done else None
    return [
        at_least(EXPORTED, float(len(done)), 1, note=said if not done else ""),
        at_most(CHECK, None if exit_code is None else float(abs(exit_code)), 0.0, note=said),
    ]


def figures(_samples: Sequence[Sample]) -> list[Figures]:
    """None: the study's own table has been printed."""
    return []


def measure(options: Options) -> list[Sample]:
    """Run the study where it can be looked at afterwards, print its table, export the best."""
    folder = FOLDER
    _make_room(folder)
    model = wb.load(f"sample:{MODEL_QUICK if options.quick else MODEL}")
    budget_s = BUDGET_QUICK_S if options.quick else BUDGET_S
    with wb.Study(model, folder) as study:
        try:
            study.run(*RECIPES, budget_s=budget_s, early_stop_ratio=EARLY_STOP_RATIO, profile=True)
        finally:
            shut_down(folder)
        comparison = study.compare()
        if not options.extra.json:
            print_comparison(comparison)
        say(f"Report: {study.report(folder / 'report.html').resolve()}")
        chosen = best(comparison).row
        samples: list[Sample] = [
            Row(
                number=row.number,
                recipe=row.variant.recipe.spec,
                engine=row.variant.recipe.engine,
                levers=tuple(lever for lever, _ in row.variant.recipe.levers),
                state=row.variant.state,
                verdict=row.decision.verdict
                if row.decision is not None and not row.decision.provisional
                else None,
                text=row.verdict_text,
                labels=row.variant.evidence.labels if row.variant.evidence is not None else (),
                is_best=chosen is not None and row.number == chosen.number,
                num_recorded=_num_recorded(study, row),
                failure="" if row.variant.failure is None else row.variant.failure.message,
            )
            for row in comparison.rows
        ]
        samples.append(_export(study, folder / "winner"))
    return samples


def _num_recorded(study: wb.Study, row: ComparisonRow) -> int:
    """Steps of its recording; 0 where it has none, or one that does not open."""
    if row.profile is None:
        return 0
    try:
        return len(windows(study.trace(row.number)))
    except WorkbenchError as error:
        say(f"#{row.number}: {error}")
        return 0


def _make_room(folder: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    if (folder / "study.sqlite").is_file():
        shut_down(folder)
        shutil.rmtree(folder)


def _export(study: wb.Study, out: Path) -> Exported:
    winner = study.best()
    if winner is None:
        text = best(study.compare()).text
        return Exported(number=None, folder=None, check_exit_code=None, said=text)
    try:
        where = study.export("best", out)
    except WorkbenchError as error:
        return Exported(number=winner.number, folder=None, check_exit_code=None, said=str(error))
    # As it would run elsewhere: from another folder, and without the workbench to be found.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(where.resolve() / "pipeline.py"), "--check"],
        cwd=where.resolve().parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_CHECK_LIMIT_S,
        check=False,
    )
    said = (done.stdout + done.stderr).strip()
    say(f"{where}/pipeline.py --check:\n{said}")
    return Exported(
        number=winner.number,
        folder=os.path.relpath(where),
        check_exit_code=done.returncode,
        said=said.splitlines()[-1] if said else "",
    )


BENCHMARK: Benchmark[Sample] = Benchmark(
    name="demo",
    about="variants of a bundled model side by side, and the winner exported",
    claims=NAMES,
    sample_type=Sample,
    measure=measure,
    judge=judge,
    figures=figures,
)


if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
