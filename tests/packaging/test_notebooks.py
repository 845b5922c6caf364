"""Every notebook that is shipped runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# What a reader would see: no row that failed.
NOTHING_FAILED = """
studies = [value for value in list(globals().values()) if isinstance(value, wb.Study)]
failures = [row for study in studies for row in study.variants() if row.state == "failed"]
assert studies and not failures, failures
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shipped_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.id for cell in cells if cell.get("outputs")] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# Jupyter's own libraries leave sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(NOTHING_FAILED))
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    # P72: what is saved stays small.
    assert len(nbformat.writes(notebook)) < 5_000_000
    shown = [c for c in notebook.cells if "compare()" in c.source or ".profile(" in c.source]
    assert len(shown) > 2
    for cell in shown:
        assert any("text/html" in output.get("data", {}) for output in cell.outputs)
