"""What holds a step back, from what its trace shows: evidence, the size of the prize, and a lever.

Each rule looks at the step of median time. Its prize is a ceiling: the share of the step that
would be gone if the cause were, all else as it is. What is below `SMALLEST` is not worth a word.
"""

from __future__ import annotations

from workbench.traces.enclosure import Enclosure
from workbench.traces.links import Links
from workbench.traces.rules import RULES, Finding
from workbench.traces.seen import look
from workbench.traces.steps import Step
from workbench.traces.trace import Trace

# Of a step.
SMALLEST = 0.05
# Of what has no lever in a recipe: below this it is part of the work.
_SMALLEST_ELSEWHERE = 0.1


def findings(
    trace: Trace,
    slowdown: float | None = None,
    *,
    links: Links | None = None,
    enclosure: Enclosure | None = None,
    found: tuple[Step, ...] | None = None,
) -> tuple[Finding, ...]:
    """The causes of lost time, those with the largest prize first; empty where none is seen.

    `slowdown` is how many times as long a step takes while it is recorded, where that is known:
    what recording adds is the host's time between operators and launches, and nobody's loss.
    `links`, `enclosure` and the steps `found` are computed where they are not at hand.
    """
    seen = look(trace, slowdown, links, enclosure, found)
    if seen is None:
        return ()
    made = [finding for rule in RULES if (finding := rule(seen)) is not None]
    kept = [
        finding
        for finding in made
        if finding.prize >= (SMALLEST if finding.levers else _SMALLEST_ELSEWHERE)
    ]
    return tuple(sorted(kept, key=lambda one: (-one.prize, one.name)))
