"""Tables and documents on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.core.json import Json

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.study.comparison import Comparison

# Wide enough for the whole table where no terminal says how wide it is.
_PIPED_WIDTH = 160


def show_comparison(comparison: Comparison, *, as_json: bool) -> None:
    """The comparison as one document or as a table."""
    if as_json:
        from workbench.study.document import document

        print_json(document(comparison))
        return
    from workbench.study.terminal import comparison_table

    out = console()
    out.print(comparison_table(comparison, width=out.width))


def console() -> Console:
    """Standard output, wide where nobody says how wide it is."""
    from rich.console import Console

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=_PIPED_WIDTH)


def print_rows(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows of rich renderables in columns, without lines between them."""
    from rich.table import Table

    has_head = any(titles)
    table = Table(box=None, pad_edge=False, show_header=has_head, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, vertical="top", overflow="fold")
    for row in rows:
        table.add_row(*row)  # type: ignore[arg-type]
    console().print(table)


def print_json(value: dict[str, Json]) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def plain(record: object) -> Json:
    """A record of ours as JSON can hold it."""
    from workbench.study import document

    return document.plain(record)
