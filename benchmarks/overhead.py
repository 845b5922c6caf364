"""What it costs a call that the workbench times it.

A round of the workbench and a bare loop over the same calls take turns in one process, which
has loaded the very pipeline file that a study built; each pair's order is random. The figure is
the round's time a call over the bare loop's.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.claims import Claim, at_most, not_held
from benchmarks.command import ROOT, Benchmark, Figures, Options, read_samples, run, say
from benchmarks.studies import BRIEFLY, study_of
from workbench.core.recipe import Recipe
from workbench.measure.location import student_quantile, trimmed_error, trimmed_mean

BOUND = 0.02
MIN_CALL_S = 0.001
ROUND_S = 0.02
PAIRS_A_BLOCK = 20
NUM_BLOCKS, NUM_BLOCKS_QUICK = 40, 8
MIN_BLOCKS = 6
# More blocks are made, up to three times as many, while half of the interval is wider than
# this: a machine that others use needs them. Only the width decides, never the value.
WANTED_HALF = 0.005


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model and a recipe whose calls take a millisecond or more."""

    model: str
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.model}, {self.recipe.spec}"


SETUPS = (
    Setup(model="digits-cnn", recipe=Recipe(engine="torch", batch=32, threads=1)),
    Setup(model="digits-cnn", recipe=Recipe(engine="onnxruntime", batch=64, threads=1)),
    Setup(model="digits-cnn-wide", recipe=Recipe(engine="torch")),
    Setup(model="digits-cnn-wide", recipe=Recipe(engine="onnxruntime")),
)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs in a row: seconds a call of a round and of the bare loop beside it."""

    setup: str
    num_calls: int
    round_s: tuple[float, ...]
    bare_s: tuple[float, ...]

    @property
    def log_ratio(self) -> float:
        """Median over the pairs of the log of the round's time over the bare loop's."""
        return float(np.median(np.log(self.round_s) - np.log(self.bare_s)))


def claim_name(setup: Setup) -> str:
    """The name of a set-up's claim."""
    return f"a timed call against a bare one: {setup.name}"


def judge(samples: Sequence[Block], _quick: bool) -> list[Claim]:
    """One claim a set-up: the end of the 95 % interval that is further from 1."""
    return [_judge_one(setup, [b for b in samples if b.setup == setup.name]) for setup in SETUPS]


def _judge_one(setup: Setup, blocks: Sequence[Block]) -> Claim:
    if len(blocks) < MIN_BLOCKS:
        claim = at_most(claim_name(setup), None, 100 * BOUND, unit="%")
        return not_held(claim, f"{len(blocks)} of {MIN_BLOCKS} blocks")
    middle, half = interval(blocks)
    call_s = float(np.median([t for b in blocks for t in b.bare_s]))
    worst = max(abs(np.expm1(middle - half)), abs(np.expm1(middle + half)))
    claim = at_most(
        claim_name(setup),
        100 * float(worst),
        100 * BOUND,
        unit="%",
        note=f"{np.expm1(middle):+.2%}, between {np.expm1(middle - half):+.2%} and "
        f"{np.expm1(middle + half):+.2%} at 95 %; {len(blocks)} blocks, calls of "
        f"{call_s * 1e3:.2f} ms",
    )
    if call_s < MIN_CALL_S:
        return not_held(claim, "the calls are shorter than a millisecond")
    return claim


def interval(blocks: Sequence[Block]) -> tuple[float, float]:
    """Trimmed mean of the blocks' log ratios, and half of its 95 % interval."""
    values = np.array([block.log_ratio for block in blocks])
    half = student_quantile(0.975, len(values) - 1) * float(trimmed_error(values))
    return float(trimmed_mean(values)), half


def figures(samples: Sequence[Block]) -> list[Figures]:
    """Microseconds a call, as the round and as the bare loop have them."""
    rows = []
    for setup in SETUPS:
        blocks = [b for b in samples if b.setup == setup.name]
        if blocks:
            bare = float(np.median([t for b in blocks for t in b.bare_s]))
            timed = float(np.median([t for b in blocks for t in b.round_s]))
            spread = float(np.std([b.log_ratio for b in blocks]))
            rows.append(
                (
                    setup.name,
                    f"{bare * 1e6:.1f}",
                    f"{timed * 1e6:.1f}",
                    f"{spread:.2%}",
                    str(sum(len(b.bare_s) for b in blocks)),
                )
            )
    columns = ("set-up", "bare, µs a call", "round, µs a call", "spread of blocks", "pairs")
    return [Figures(title="Medians", columns=columns, rows=tuple(rows))]


def measure(options: Options) -> list[Block]:
    """Build each set-up in a study, then alternate in a process of its own."""
    blocks: list[Block] = []
    num_blocks = NUM_BLOCKS_QUICK if options.quick else NUM_BLOCKS
    with tempfile.TemporaryDirectory(prefix="workbench-overhead-") as name:
        for model in dict.fromkeys(setup.model for setup in SETUPS):
            setups = [setup for setup in SETUPS if setup.model == model]
            folder = Path(name) / model
            with study_of(f"sample:{model}", folder) as study:
                study.run(*(setup.recipe for setup in setups), progress=False, **BRIEFLY)
                rows = study.variants()[1:]
            for setup, row in zip(setups, rows, strict=True):
                say(f"alternating: {setup.name}")
                if row.artifact is None:
                    say(f"no artifact: {row.failure}")
                    continue
                out = Path(name) / f"{row.artifact}.jsonl"
                batch = row.recipe.get("batch") or str(row.items_per_call)
                arguments = [setup.name, str(folder), row.artifact, batch, str(num_blocks)]
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.overhead", _IN_CHILD, *arguments, str(out)],
                    cwd=ROOT,
                    check=True,
                )
                blocks += read_samples(out, Block)
    return blocks


# In the child --------------------------------------------------------------------------------

_IN_CHILD = "--alternate"


def alternate(
    name: str, study: Path, artifact: str, batch_size: int, num_blocks: int, out: Path
) -> None:
    """Serve an artifact as a worker does, and let rounds and bare loops take turns."""
    from workbench.measure.rounds import calls_for, run_round, warm_up
    from workbench.run.rows import read_rows
    from workbench.run.worker import import_pipeline

    folder = study / "artifacts" / artifact
    pipeline = import_pipeline(folder / "pipeline.py").load(str(folder))
    rows = read_rows(study / "model", study / "source")
    placed = [pipeline.place(arrays) for arrays in rows.sets(batch_size)]
    warm = warm_up(pipeline, placed)
    num_calls = calls_for(warm.call_s, ROUND_S)

    def timed() -> float:
        done = run_round(
            pipeline,
            placed,
            num_calls=num_calls,
            items_per_call=batch_size,
        )
        return done.wall_s / num_calls

    def bare() -> float:
        return bare_loop(pipeline.call, placed, num_calls)

    encode = msgspec.json.Encoder().encode
    with out.open("wb") as stream:
        blocks: list[Block] = []
        while len(blocks) < num_blocks or (
            len(blocks) < 3 * num_blocks and interval(blocks)[1] > WANTED_HALF
        ):
            pairs = []
            for _ in range(PAIRS_A_BLOCK):
                order = random.sample((timed, bare), 2)
                found = {run: run() for run in order}
                pairs.append((found[timed], found[bare]))
            rounds, bares = zip(*pairs, strict=True)
            block = Block(setup=name, num_calls=num_calls, round_s=rounds, bare_s=bares)
            stream.write(encode(block) + b"\n")
            blocks.append(block)
            time.sleep(0.1)


def bare_loop(call: Any, placed: Sequence[Any], num_calls: int) -> float:
    """Seconds a call of the shortest loop there is."""
    start = time.perf_counter()
    for arguments in islice(cycle(placed), num_calls):
        call(arguments)
    return (time.perf_counter() - start) / num_calls


BENCHMARK: Benchmark[Block] = Benchmark(
    name="overhead",
    about="a round's time a call against a bare timed loop's, in one process",
    claims=tuple(claim_name(setup) for setup in SETUPS),
    sample_type=Block,
    measure=measure,
    judge=judge,
    figures=figures,
)


def main() -> int:
    """The command, or its child."""
    if sys.argv[1:2] == [_IN_CHILD]:
        name, study, artifact, batch, num_blocks, out = sys.argv[2:]
        alternate(name, Path(study), artifact, int(batch), int(num_blocks), Path(out))
        return 0
    return run(BENCHMARK)


if __name__ == "__main__":
    sys.exit(main())
