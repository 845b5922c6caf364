"""Studies for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.study import filled
from workbench.study.store import Store


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Store]:
    """A study in which nothing has run."""
    with Store.create(tmp_path / "study", filled.model_at(tmp_path / "captured")) as store:
        yield store


@pytest.fixture
def full(empty: Store) -> Store:
    """A study with rows of every kind."""
    filled.fill(empty)
    return empty
