"""The comparison of two traces, as one document and as a table in a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.core.json import Json
from workbench.core.units import format_seconds
from workbench.traces.difference import Difference, DifferenceRow, Side

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1
_SHOWN_ROWS = 20
_NS = 1e-9
# Two of one size: which of them is the larger is not worth a word.
_SAME = 0.005


def document(found: Difference, names: tuple[str, str]) -> dict[str, Json]:
    """The comparison as JSON; `docs/json.md` says what its keys hold. Times are nanoseconds."""
    sides = {}
    for key, name, side in (("a", names[0], found.a), ("b", names[1], found.b)):
        sides[key] = {"name": name, **asdict(side), "unaligned_share": side.unaligned_share}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace difference",
        **sides,
        "difference_ns": found.difference_ns,
        "rows": [
            {
                "a": list(row.a),
                "b": list(row.b),
                "num": row.num,
                "a_ns": row.a_ns,
                "b_ns": row.b_ns,
                "difference_ns": row.difference_ns,
                "is_aligned": row.is_aligned,
            }
            for row in found.rows
        ],
    }


def tables(found: Difference, names: tuple[str, str]) -> RenderableType:
    """The comparison for a terminal: the two steps, then what the difference is made of."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(headline(found), style="bold"),
        Text(_side_line("A", names[0], found.a)),
        Text(_side_line("B", names[1], found.b)),
    ]
    if found.a.on_device != found.b.on_device:
        where = {True: "a device", False: "the host"}
        parts.append(
            Text(
                f"A's times are of {where[found.a.on_device]}, B's of {where[found.b.on_device]}.",
                style="yellow",
            )
        )
    return Group(*parts, Text(), _rows_table(found))


def headline(found: Difference) -> str:
    """What the comparison comes to, in one sentence."""
    a_ns, b_ns = found.a.wall_ns, found.b.wall_ns
    low, high = sorted((a_ns, b_ns))
    if not low or high / low - 1 < _SAME:
        return f"A step of B takes as long as one of A: {_time(b_ns)} and {_time(a_ns)}"
    word = "more" if b_ns > a_ns else "less"
    return (
        f"A step of B takes {_time(abs(found.difference_ns))} {word} than one of A: "
        f"{_time(b_ns)} against {_time(a_ns)}"
    )


def _side_line(letter: str, name: str, side: Side) -> str:
    step = "the whole of it" if side.step is None else f"step {side.step}"
    line = f"{letter} is {name}: {step}, {_time(side.wall_ns)}"
    if side.num_steps > 1:
        low, high = _time(side.least_ns), _time(side.most_ns)
        line += f" (the median of {side.num_steps}; {low} to {high})"
    line += f", idle {side.idle_ns / side.wall_ns:.0%}"
    if side.unaligned_ns:
        line += f"; {side.unaligned_share:.0%} has no counterpart"
    return line


def _rows_table(found: Difference) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    shown = found.rows[:_SHOWN_ROWS]
    more = f" ({len(shown)} of {len(found.rows)})" if len(found.rows) > len(shown) else ""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title="What the difference is made of" + more,
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    for title in ("A", "B"):
        table.add_column(title, overflow="fold", ratio=1)
    for title in ("times", "A takes", "B takes", "B − A"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown:
        # Names are data: nothing in them is markup.
        cells = (_named(row.a), _named(row.b), str(row.num), *_times(row))
        table.add_row(*map(Text, cells))
    rest = found.rows[_SHOWN_ROWS:]
    if rest:
        a_ns, b_ns = sum(row.a_ns for row in rest), sum(row.b_ns for row in rest)
        name = f"{len(rest)} more"
        table.add_row(*map(Text, (name, "", "", _time(a_ns), _time(b_ns), _signed(b_ns - a_ns))))
    return table


def _named(names: tuple[str, ...]) -> str:
    return " + ".join(names).replace(" + and ", " and ") or "–"


def _times(row: DifferenceRow) -> tuple[str, str, str]:
    a = _time(row.a_ns) if row.a else "–"
    b = _time(row.b_ns) if row.b else "–"
    return a, b, _signed(row.difference_ns)


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{_time(abs(ns))}"


def _time(ns: int) -> str:
    return format_seconds(ns * _NS)
