"""Where real traces lie that the project does not carry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(
    os.environ.get("WORKBENCH_TRACE_CORPUS")
    or Path(__file__).resolve().parents[3] / "shared" / "traces"
)
KINETO = sorted((ROOT / "kineto").glob("*.json.gz"))

needs_corpus = pytest.mark.skipif(not KINETO, reason="no corpus")


def each_kineto_file(at_most_bytes: int | None = None) -> pytest.MarkDecorator:
    """One test for each file, or each small one; one that is skipped by name if none is there."""
    names = [
        pytest.param(path, id=path.name.partition(".")[0])
        for path in KINETO
        if at_most_bytes is None or path.stat().st_size <= at_most_bytes
    ]
    return pytest.mark.parametrize("path", names or [pytest.param(None, marks=needs_corpus)])
