"""Studies for the tests of this room."""

from __future__ import annotations

import shutil
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


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    with Store.create(folder / "study", filled.model_at(folder / "captured")) as store:
        filled.fill(store)
    return folder / "study"


@pytest.fixture
def full(_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A study with rows of every kind."""
    shutil.copytree(_template, tmp_path / "study")
    with Store(tmp_path / "study") as store:
        yield store
