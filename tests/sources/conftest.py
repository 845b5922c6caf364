"""Cells as a notebook runs them: compiled under a name of their own, kept by linecache."""

import itertools
import linecache
from pathlib import Path

import pytest

from workbench.sources import load, prepare

_NUMBERS = itertools.count()


class Notebook:
    """A namespace called `__main__`, and cells that run in it."""

    def __init__(self):
        self.names = {"__name__": "__main__"}

    def run(self, source):
        file = f"/tmp/ipykernel_1/{next(_NUMBERS)}.py"
        lines = source.splitlines(keepends=True)
        linecache.cache[file] = (len(source), None, lines, file)
        exec(compile(source, file, "exec"), self.names)
        return self

    def __getitem__(self, name):
        return self.names[name]


@pytest.fixture
def notebook():
    return Notebook()


@pytest.fixture
def prepared(tmp_path):
    """Load and prepare; gives the model, what was prepared, and the source folder."""

    def run(x, inputs=None, **options):
        model = load(x, inputs, **options)
        source = tmp_path / f"source{next(_NUMBERS)}"
        return model, prepare(Path(model.folder), source), source

    return run
