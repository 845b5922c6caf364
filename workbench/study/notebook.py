"""A comparison as static HTML, for a notebook.

No script and no style sheet: a notebook's sanitiser, nbconvert and the sites that show
notebooks drop one or the other. Colour always comes with a mark.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.study.choice import best
from workbench.study.comparison import Comparison, Row
from workbench.study.markup import Markup, element, join
from workbench.study.table import COLUMNS, Cell, Key, Tone, caption, cell, shown_columns

_KEYS: tuple[Key, ...] = (
    "number",
    "variant",
    "ran",
    "verdict",
    "call",
    "throughput",
    "quality",
    "memory",
    "size",
    "energy",
    "build",
    "compile",
    "load",
    "first_call",
    "break_even",
)
# Readable on a white and on a dark notebook alike.
_COLOURS: dict[Tone, str | None] = {
    "": None,
    "good": "color:#1a7f37",
    "bad": "color:#cf222e",
    "warn": "color:#9a6700",
    "quiet": "color:#768390",
}
_QUIET = "color:#768390;font-size:85%"


def comparison_html(comparison: Comparison) -> Markup:
    """The rows as one table, with the verdict above and what it rests on below."""
    choice = best(comparison)
    said = f"Best: {choice.text}" if choice.row else choice.text
    return element(
        "div",
        element(
            "p",
            element("b", comparison.model.name),
            f", against variant {comparison.baseline.number}. {said}",
        ),
        table_html((comparison.baseline, *comparison.rows), shown_columns(comparison, _KEYS)),
        element("p", caption(comparison), style=_QUIET),
    )


def table_html(rows: Sequence[Row], keys: Sequence[Key]) -> Markup:
    """One table of rows."""
    head = [
        element(
            "th",
            COLUMNS[key].title,
            style=f"text-align:{_side(key)};vertical-align:bottom",
            title=COLUMNS[key].help,
        )
        for key in keys
    ]
    body = [element("tr", *(_cell_html(cell(row, key), key) for key in keys)) for row in rows]
    return element("table", element("thead", element("tr", *head)), element("tbody", *body))


def _cell_html(made: Cell, key: Key) -> Markup:
    detail = (
        join(element("br"), element("span", made.detail, style=_QUIET)) if made.detail else None
    )
    # A number must not lose its unit to the next line; sentences may break.
    whole = "white-space:nowrap" if COLUMNS[key].is_numeric else None
    return element(
        "td",
        element("span", made.marked, style=_COLOURS[made.tone] or whole),
        detail,
        style=f"text-align:{_side(key)};vertical-align:top",
    )


def _side(key: Key) -> str:
    return "right" if COLUMNS[key].is_numeric else "left"


def line_html(line: str) -> Markup:
    """One line of progress."""
    return element("pre", line, style="margin:0")
