"""A: how long a round has to be, what events add, and whether two at once disturb each other.

The model passes PASSES times in each call, so that one pass more is five per cent more work,
known by construction.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tests.device.stand import Server, Stand, build, cnn, in_threads
from tests.device.suite import Notebook, Section
from workbench.core.failure import Failure
from workbench.core.measurement import Pair, Round, Visit
from workbench.core.recipe import Recipe
from workbench.measure.rounds import calls_for
from workbench.measure.verdict import decide
from workbench.run import protocol

PASSES = 20
ROUNDS_S = (0.02, 0.1, 0.3)
# Six pairs a visit as in a study; of long rounds four, so that the section ends in time.
NUM_PAIRS = {0.02: 6, 0.1: 6, 0.3: 4}
NUM_VISITS = 6
NUM_ALONE = 12
MIN_GAP_S = 2.0

_LOOP = '''

_load_single = load


def load(out_dir):
    """load(), whose every call passes the model {num_passes} times."""
    pipeline = _load_single(out_dir)
    single = pipeline.call

    def call(placed):
        for _ in range({num_passes}):
            raw = single(placed)
        return raw

    pipeline.call = call
    return pipeline
'''


def run(stand: Stand, notebook: Notebook) -> None:
    """Every part, the quick ones first."""
    subject = cnn(stand)
    recipe = Recipe(engine="torch", batch=2 if stand.quick else 8)
    artifact = build(stand, [(subject, recipe)], limit_s=120)[recipe]
    if isinstance(artifact, Failure):
        raise RuntimeError(artifact.message)
    plain = (artifact / "pipeline.py").read_text(encoding="utf-8")

    # Started together: while one is timed the others have imported torch, and only wait.
    servers = [Server(stand, with_torch=True) for _ in range(4)]

    def serve(server: Server, num_passes: int) -> protocol.Loaded:
        """Load the artifact; its file is rewritten, and a worker reads it once."""
        text = plain + _LOOP.format(num_passes=num_passes)
        (artifact / "pipeline.py").write_text(text, encoding="utf-8")
        return server.load(stand, subject, recipe, artifact, limit_s=120)

    baseline, twin, control, injected = servers
    call_s = serve(baseline, PASSES).call_s
    lengths = ROUNDS_S[:1] if stand.quick else ROUNDS_S
    for length_s in lengths:
        alone(notebook, baseline, call_s, length_s, stand.quick)
    serve(twin, PASSES)
    together(notebook, baseline, twin, call_s, lengths[-1 if stand.quick else 1])
    serve(control, PASSES)
    serve(injected, PASSES + 1)
    sides = {"A against A": (twin, 1), "5 % injected": (injected, 3), "control": (control, 2)}
    visits = compare(stand, notebook, baseline, sides, call_s, lengths)
    report(stand, notebook, visits, lengths)


def ask_round(server: Server, num_calls: int) -> Round:
    """One round of a worker."""
    order = protocol.Calls(num_calls=num_calls)
    done = server.ask(order, protocol.RoundDone, stage="measure", limit_s=60)
    return Round(
        num_calls=done.num_calls,
        num_items=done.num_items,
        wall_s=done.wall_s,
        calls_s=np.frombuffer(done.calls_s, dtype="<f8"),
        cpu_s=done.cpu_s,
        num_switches=done.num_switches,
        event_s=done.event_s,
        sm_clock_mhz=done.sm_clock_mhz,
        throttled=None if done.throttled is None else tuple(done.throttled),
    )


def alone(notebook: Notebook, server: Server, call_s: float, length_s: float, quick: bool) -> None:
    """Rounds of one worker while no other lives: wall against events, and their spread."""
    num_calls = calls_for(call_s, length_s)
    ask_round(server, num_calls)
    done = [ask_round(server, num_calls) for _ in range(4 if quick else NUM_ALONE)]
    wall = [one.wall_s / num_calls for one in done]
    events = [one.event_s / num_calls for one in done if one.event_s is not None]
    clocks = [one.sm_clock_mhz for one in done if one.sm_clock_mhz is not None]
    throttled = sorted({reason for one in done for reason in one.throttled or ()})
    both = len(events) == len(wall)
    ratio = statistics.median(w / e for w, e in zip(wall, events, strict=True)) if both else None
    notebook.row(
        what="alone",
        round_ms=length_s * 1e3,
        calls=num_calls,
        wall_ms=statistics.median(wall) * 1e3,
        event_ms=statistics.median(events) * 1e3 if both else None,
        wall_over_event=ratio,
        wall_spread=spread(wall),
        event_spread=spread(events) if both else None,
        sm_mhz=f"{min(clocks):.0f}–{max(clocks):.0f}" if clocks else None,
        held_down_by=throttled,
    )
    if both:
        # The clock is read outside of both events: by the wall a round cannot be shorter. The
        # events' clock ticks every half microsecond or so.
        shortest = min(w - e for w, e in zip(wall, events, strict=True)) * num_calls
        notebook.check(
            f"no round of {length_s * 1e3:.0f} ms is longer by events than by the wall",
            shortest > -1e-5,
            f"by {shortest * 1e6:.0f} µs at least",
        )


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of the log of each over the one before, over the root of two."""
    steps = [math.log(b / a) for a, b in pairwise(values)]
    return statistics.stdev(steps) / math.sqrt(2) if len(steps) > 1 else None


def together(
    notebook: Notebook, baseline: Server, twin: Server, call_s: float, length_s: float
) -> None:
    """The same rounds with a second worker: idle beside, taking turns, and both at once."""
    num_calls = calls_for(call_s, length_s)

    def seconds(one: Round) -> float:
        return one.wall_s / num_calls

    def at_once() -> list[float]:
        done = in_threads(lambda server: ask_round(server, num_calls), [baseline, twin])
        return [seconds(one) for one in done]

    idle = [seconds(ask_round(baseline, num_calls)) for _ in range(6)]
    turns = [
        [seconds(ask_round(server, num_calls)) for server in random.sample((baseline, twin), 2)]
        for _ in range(6)
    ]
    both = [at_once() for _ in range(3)]
    for what, values in (
        ("beside an idle one", idle),
        ("taking turns", [value for pair in turns for value in pair]),
        ("both at once", [value for pair in both for value in pair]),
    ):
        notebook.row(
            what=what,
            round_ms=length_s * 1e3,
            calls=num_calls,
            wall_ms=statistics.median(values) * 1e3,
            wall_spread=spread(values),
        )


def compare(
    stand: Stand,
    notebook: Notebook,
    baseline: Server,
    sides: dict[str, tuple[Server, int]],
    call_s: float,
    lengths: Sequence[float],
) -> dict[tuple[str, float], list[Visit]]:
    """Visits of each side against the baseline, at each length, in turns."""
    visits: dict[tuple[str, float], list[Visit]] = {
        (what, length_s): [] for what in sides for length_s in lengths
    }
    num_visits = 2 if stand.quick else NUM_VISITS
    ended_s = dict.fromkeys(visits, -math.inf)
    for number in range(1, num_visits + 1):
        for length_s in lengths:
            num_calls = calls_for(call_s, length_s)
            for what, (server, process) in sides.items():
                if stand.left_s < 0:
                    notebook.note(f"out of time after {number - 1} of {num_visits} visits")
                    return visits
                key = what, length_s
                if not stand.quick:
                    time.sleep(max(0.0, ended_s[key] + MIN_GAP_S - time.monotonic()))
                num_pairs = 2 if stand.quick else NUM_PAIRS[length_s]
                for side in (baseline, server):
                    ask_round(side, max(1, num_calls // 10))
                pairs = [one_pair(baseline, server, num_calls) for _ in range(num_pairs)]
                ended_s[key] = time.monotonic()
                visits[key].append(
                    Visit(
                        number=number,
                        started_s=time.time(),
                        pairs=tuple(pairs),
                        baseline_process=0,
                        variant_process=process,
                    )
                )
    return visits


def one_pair(baseline: Server, variant: Server, num_calls: int) -> Pair:
    """A round of each, in random order."""
    first_is_baseline = random.random() < 0.5
    order = (baseline, variant) if first_is_baseline else (variant, baseline)
    done = [ask_round(server, num_calls) for server in order]
    ours, theirs = done if first_is_baseline else done[::-1]
    return Pair(baseline=ours, variant=theirs, baseline_first=first_is_baseline)


def by_events(visit: Visit) -> Visit:
    """The visit as the GPU's own clock saw it."""

    def seen(one: Round) -> Round:
        assert one.event_s is not None
        return replace(one, wall_s=one.event_s)

    pairs = tuple(
        replace(pair, baseline=seen(pair.baseline), variant=seen(pair.variant))
        for pair in visit.pairs
    )
    return replace(visit, pairs=pairs)


def by_wall(visit: Visit) -> Visit:
    """The visit by the wall clock alone: no call's own time."""

    def seen(one: Round) -> Round:
        return replace(one, calls_s=np.zeros(0))

    pairs = tuple(
        replace(pair, baseline=seen(pair.baseline), variant=seen(pair.variant))
        for pair in visit.pairs
    )
    return replace(visit, pairs=pairs)


def report(
    stand: Stand,
    notebook: Notebook,
    visits: dict[tuple[str, float], list[Visit]],
    lengths: Sequence[float],
) -> None:
    """Each comparison's ratio, its visits' spread, and the verdict of the product."""
    clocks: dict[str, Callable[[Visit], Visit]] = {"wall": by_wall}
    if stand.on_gpu:
        clocks["events"] = by_events
    for length_s in lengths:
        for what in ("A against A", "5 % injected"):
            for clock, seen in clocks.items():
                ours = [seen(visit) for visit in visits[what, length_s]]
                control = [seen(visit) for visit in visits["control", length_s]]
                if len(ours) < 2:
                    continue
                logs = [log_ratio(visit) for visit in ours]
                error = statistics.stdev(logs) / math.sqrt(len(logs))
                found = decide(ours, control)
                notebook.row(
                    what=f"{what}, by {clock}",
                    round_ms=length_s * 1e3,
                    visits=len(ours),
                    ratio=math.exp(statistics.mean(logs)),
                    ratio_error=error,
                    visit_spread=statistics.stdev(logs),
                    verdict=found.verdict,
                    said=found.text,
                )
                if stand.quick or len(ours) < NUM_VISITS:
                    continue
                wanted = 0.0 if what == "A against A" else math.log(PASSES / (PASSES + 1))
                if what == "A against A":
                    notebook.check(
                        f"A against A is neither faster nor slower, {length_s * 1e3:.0f} ms "
                        f"by {clock}",
                        found.verdict in ("same", "undecided"),
                        found.text,
                    )
                else:
                    off = abs(statistics.mean(logs) - wanted)
                    notebook.check(
                        f"5 % more work is seen as such, {length_s * 1e3:.0f} ms by {clock}",
                        off < 0.02,
                        f"{math.exp(statistics.mean(logs)):.4f}, {math.exp(wanted):.4f} injected",
                    )


def log_ratio(visit: Visit) -> float:
    """The median of a visit's pairs: log of the baseline's time over the other's."""
    return statistics.median(
        math.log(pair.baseline.item_s / pair.variant.item_s) for pair in visit.pairs
    )


SECTION = Section(
    name="A",
    title="rounds",
    share=0.25,
    run=run,
    columns=("what", "round_ms"),
)
