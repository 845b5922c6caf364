"""What a person is told while rows run."""

from __future__ import annotations

import pytest

from workbench.core.recipe import Recipe
from workbench.core.variant import Progress, State
from workbench.study.progress import LogDisplay, _Rows

WAITING = "waiting for cpu, which another study uses: this one is next"


def told(state: State, message: str) -> Progress:
    return Progress(number=1, state=state, stage=state, message=message, elapsed_s=1.0)


def test_a_log_says_once_what_a_queued_row_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    display = LogDisplay(lambda _: Recipe(engine="torch"))
    for message in ("queued", WAITING, WAITING):
        display.update(told("queued", message))
    display.update(told("building", "building"))
    assert capsys.readouterr().err.splitlines() == [
        "#1 engine=torch: queued",
        f"#1 engine=torch: {WAITING}",
        "#1 engine=torch: building",
    ]


def test_a_notebooks_line_says_what_is_waited_for() -> None:
    rows = _Rows(lambda _: Recipe(engine="torch"))
    rows.take(told("queued", WAITING))
    assert rows.summary() == f"0 of 1 done; {WAITING}"
