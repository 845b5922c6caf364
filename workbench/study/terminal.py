"""A comparison and a run's progress in a terminal, by rich."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

from workbench.study import metrics
from workbench.study.choice import best
from workbench.study.comparison import Comparison, Row
from workbench.study.table import COLUMNS, Key, Tone, caption, cell, shown_columns

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

_STYLES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "quiet": "dim",
}
_WIDE: tuple[Key, ...] = (
    "number",
    "variant",
    "ran",
    "verdict",
    "call",
    "throughput",
    "quality",
    "memory",
    "size",
    "one_off",
    "break_even",
)
_NARROW: tuple[Key, ...] = ("number", "variant", "verdict", "call", "quality", "memory", "one_off")
_SLIM: tuple[Key, ...] = ("number", "variant", "verdict", "call", "quality")
# Below so many characters a table of that kind would break most lines.
_WIDE_FROM, _NARROW_FROM = 170, 110
_MIN_WIDTH: dict[Key, int] = {"variant": 16, "verdict": 18, "quality": 12}


def comparison_table(comparison: Comparison, *, width: int | None = None) -> Group:
    """The rows as a rich table, then what needs a sentence; a narrow terminal gets less."""
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    width = width or Console().width
    fitting = _WIDE if width >= _WIDE_FROM else _NARROW if width >= _NARROW_FROM else _SLIM
    keys = shown_columns(comparison, fitting)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for key in keys:
        table.add_column(
            COLUMNS[key].title,
            justify="right" if COLUMNS[key].is_numeric else "left",
            vertical="top",
            no_wrap=COLUMNS[key].is_numeric,
            min_width=_MIN_WIDTH.get(key),
            overflow="fold",
        )
    for row in (comparison.baseline, *comparison.rows):
        table.add_row(*(_text(row, key) for key in keys))
    choice = best(comparison)
    said = f"Best: {choice.text}." if choice.row else choice.text
    parts: list[RenderableType] = [
        Text(f"{comparison.model.name}, against variant {comparison.baseline.number}"),
        Text(),
        table,
        Text(),
        *(Text(line, style="dim") for line in _sentences(comparison)),
        Text(said, style="bold green" if choice.row else "bold"),
        Text(caption(comparison), style="dim"),
    ]
    return Group(*parts)


def _text(row: Row, key: Key) -> Text:
    from rich.text import Text

    # Text, never markup: a model's name may look like a tag.
    made = cell(row, key)
    if key == "variant":
        levers = ", ".join(f"{lever} {value}" for lever, value in row.variant.recipe.levers)
        return Text(", ".join(filter(None, [row.variant.recipe.engine, levers])))
    if key == "quality" and row.variant.quality and row.variant.quality.value is not None:
        quality = row.variant.quality
        assert quality.value is not None
        value = metrics.write(quality.value, quality.metric)
        return Text(f"{made.mark} {quality.status} {value}", style=_STYLES[made.tone])
    if key == "verdict" and row.variant.state == "failed" and row.variant.failure:
        return Text(f"✕ failed: {row.variant.failure.kind}", style=_STYLES[made.tone])
    return Text(made.marked, style=_STYLES[made.tone])


def _sentences(comparison: Comparison) -> list[str]:
    """What does not fit into a cell: failures with their remedies, and what was not done."""
    lines = []
    for row in (comparison.baseline, *comparison.rows):
        failure = row.variant.failure
        if failure is not None:
            said = " ".join(
                f"{part.rstrip('.')}." for part in (failure.message, failure.remedy) if part
            )
            lines.append(f"#{row.number} {row.variant.state.replace('-', ' ')}: {said}")
        lines += [f"#{row.number} did not do what was asked: {unmet}" for unmet in row.unmet]
    return [*lines, ""] if lines else []


def as_text(comparison: Comparison, *, width: int | None = None) -> str:
    """The table as plain text, as wide as the terminal unless told."""
    from rich.console import Console

    width = width or shutil.get_terminal_size((120, 40)).columns
    stream = io.StringIO()
    # In a kernel rich would display the table instead of writing it.
    console = Console(file=stream, width=width, color_system=None, force_jupyter=False)
    console.print(comparison_table(comparison, width=width))
    return stream.getvalue()


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print the table to a terminal."""
    from rich.console import Console

    console = console or Console()
    console.print(comparison_table(comparison, width=console.width))
