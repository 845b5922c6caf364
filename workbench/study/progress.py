"""What a client shows while rows run: a live table, one updating line, or a plain log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from workbench.core.recipe import Recipe
from workbench.core.variant import FINAL_STATES, Progress

if TYPE_CHECKING:
    from types import TracebackType

    from rich.table import Table

# A notebook stores every update of a cell's output for as long as the cell runs.
_NOTEBOOK_PERIOD_S = 0.5


class Display(Protocol):
    """Shows progress until it is left."""

    def update(self, progress: Progress) -> None:
        """Take one message of the scheduler."""
        ...

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def choose_display(recipe_of: Callable[[int], Recipe]) -> Display:
    """The display for where this runs: a notebook, a terminal, or a file.

    `recipe_of` names a row; it is asked once a row.
    """
    if _in_notebook():
        return NotebookDisplay(recipe_of)
    if sys.stderr.isatty():
        return TerminalDisplay(recipe_of)
    return LogDisplay(recipe_of)


class Silent:
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        """Nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Rows:
    """The last message of each row, and the row's name."""

    def __init__(self, recipe_of: Callable[[int], Recipe]) -> None:
        self._recipe_of = recipe_of
        self._names: dict[int, str] = {}
        self.last: dict[int, Progress] = {}

    def take(self, progress: Progress) -> None:
        self.last[progress.number] = progress

    def name(self, number: int) -> str:
        if number not in self._names:
            self._names[number] = self._recipe_of(number).spec
        return self._names[number]

    def summary(self) -> str:
        """ "3 of 8 done; #4 engine=torch measuring, 5 visits, 1.40× as fast so far"."""
        ended = sum(p.state in FINAL_STATES for p in self.last.values())
        busy = [p for p in self.last.values() if p.state not in ("queued", *FINAL_STATES)]
        busy += [p for p in self.last.values() if p.profile == "recording"]
        parts = [f"{ended} of {len(self.last)} done"]
        waiting = [p.message for p in self.last.values() if _waits(p)]
        if waiting and not busy:
            parts.append(waiting[0])
        if busy:
            latest = busy[-1]
            parts.append(f"#{latest.number} {self.name(latest.number)} {describe(latest)}")
        return "; ".join(parts)


def describe(progress: Progress) -> str:
    """One message in words. A ratio before the verdict is called provisional."""
    parts = [progress.message or progress.state]
    if progress.num_visits and progress.state == "measuring":
        parts.append(f"{progress.num_visits} visit{'s' if progress.num_visits != 1 else ''}")
    if progress.ratio:
        words = times(progress.ratio)
        if progress.low and progress.high and progress.verdict:
            parts.append(f"{progress.verdict}: {words}")
        else:
            parts.append(f"{words}, provisional")
    return ", ".join(parts)


def _waits(progress: Progress) -> bool:
    """Whether a queued row says what it waits for: another study that has the device."""
    return progress.state == "queued" and progress.message not in ("", "queued")


def times(ratio: float) -> str:
    """A ratio that cannot be misread."""
    return f"{ratio:.2f}× as fast" if ratio >= 1 else f"{1 / ratio:.2f}× slower"


class TerminalDisplay:
    """A live table on standard error, a row a variant."""

    def __init__(self, recipe_of: Callable[[int], Recipe]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows = _Rows(recipe_of)
        self._live = Live(
            console=Console(stderr=True),
            get_renderable=self._table,
            refresh_per_second=4,
            transient=True,
        )

    def update(self, progress: Progress) -> None:
        """Take one message; the table is redrawn four times a second."""
        self._rows.take(progress)

    def __enter__(self) -> TerminalDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for number in sorted(self._rows.last):
            progress = self._rows.last[number]
            table.add_row(
                Text(f"#{number}", style="dim"),
                Text(self._rows.name(number)),
                Text(_mark(progress)),
                Text(describe(progress), style="dim" if progress.state == "queued" else ""),
                Text(f"{progress.elapsed_s:.0f} s", style="dim"),
            )
        return table


class NotebookDisplay:
    """One line below the cell that is replaced as it changes."""

    def __init__(self, recipe_of: Callable[[int], Recipe]) -> None:
        self._rows = _Rows(recipe_of)
        self._handle: Any = None
        self._shown_s = 0.0

    def update(self, progress: Progress) -> None:
        """Take one message, and show it unless the last was shown a moment ago."""
        self._rows.take(progress)
        now_s = time.monotonic()
        if now_s - self._shown_s >= _NOTEBOOK_PERIOD_S:
            self._shown_s = now_s
            self._show()

    def _show(self) -> None:
        from IPython.display import display

        from workbench.study.notebook import line_html

        summary = self._rows.summary()
        bundle = {"text/plain": summary, "text/html": line_html(summary)}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def __enter__(self) -> NotebookDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows.last:
            self._show()


class LogDisplay:
    """A line on standard error whenever a row changes its state."""

    def __init__(self, recipe_of: Callable[[int], Recipe]) -> None:
        self._rows = _Rows(recipe_of)
        self._states: dict[int, str] = {}

    def update(self, progress: Progress) -> None:
        """Print the message if the row's state is new, or what it waits for."""
        is_told = _waits(progress) or progress.profile is not None
        state = progress.message if is_told else progress.state
        if self._states.get(progress.number) == state:
            return
        self._states[progress.number] = state
        name = self._rows.name(progress.number)
        print(f"#{progress.number} {name}: {describe(progress)}", file=sys.stderr, flush=True)

    def __enter__(self) -> LogDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _mark(progress: Progress) -> str:
    marks = {"done": "✓", "failed": "✕", "queued": "·"}
    if progress.state in FINAL_STATES:
        return marks.get(progress.state, "■")
    return marks.get(progress.state, "…")


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython in a terminal is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
