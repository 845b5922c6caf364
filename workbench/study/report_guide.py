"""The end of a report: how its words, marks and order are to be read."""

from __future__ import annotations

from workbench.core.units import format_seconds
from workbench.study.comparison import Comparison
from workbench.study.markup import Markup, element
from workbench.study.report_evidence import section

_GUIDE = (
    (
        "Only equal work is compared.",
        "The ratio is the baseline's time per item over the variant's: “1.41× as fast "
        "(1.39–1.43)” is 1.41 times as many items in the same time. A row of another batch "
        "size says so, and the latency of its calls stands in a column of its own.",
    ),
    (
        "Both sides take turns.",
        "Baseline and variant are alive at once, in processes of their own, and run short rounds "
        "in random order. Rounds come in visits, seconds apart. The visit is the unit of every "
        "interval, because rounds of one visit share the machine's mood.",
    ),
    (
        "A verdict has to clear three bars.",
        "“Faster” and “slower” need the whole interval beyond the threshold and beyond the "
        "control's floor: what the baseline shows against itself in fresh processes. “Same” needs "
        "the whole interval within the threshold. Everything else is undecided, and provisional "
        "while visits are few.",
    ),
    (
        "Quality is compared with the baseline's answers.",
        "“Kept” means that the lower end of the interval clears the tolerance. With generated "
        "inputs, or too few rows, quality is unknown and the row cannot lead.",
    ),
    (
        "Marks, beside the colours.",
        "▲ faster, ▼ slower, = same, ? undecided, ~ provisional, ✕ failed, ■ stopped, … not "
        "finished, ⚠ did not do what was asked.",
    ),
)


def how_to_read(comparison: Comparison) -> Markup:
    """What verdicts, intervals, quality and marks mean, and what the rows are ordered by."""
    goal = {
        "time-per-item": "time per item",
        "latency": "latency of a call",
        "throughput": "throughput of one stream",
    }[comparison.goal]
    limit = comparison.latency_limit_s
    under = f" with calls of at most {format_seconds(limit)}" if limit else ""
    return section(
        "How to read this",
        *(
            element("p", element("b", f"{head} "), said)
            for head, said in (*_GUIDE, ("Order.", f"Rows are ordered by {goal}{under}."))
        ),
    )
