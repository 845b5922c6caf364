from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.study import filled
from tests.study.ran import RECIPES, ran_study
from workbench.core.errors import RecipeError, StudyError
from workbench.study import Study, open_study
from workbench.study.store import Store


def test_a_study_finds_itself_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = filled.model_at(tmp_path / "captured", name="My Net/../x")
    first, second = Study(model), Study(model)
    assert first.folder == tmp_path / "workbench-studies" / "my-net-x-1"
    assert second.folder == tmp_path / "workbench-studies" / "my-net-x-2"
    assert first.variants() == []
    assert "Nothing has been run yet" in first._repr_html_()
    assert "0 variants" in repr(first)


def test_a_study_is_made_of_a_loaded_model(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"workbench\.load"):
        Study(object(), tmp_path / "s")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="no interpreter"):
        Study(filled.model_at(tmp_path / "captured"), tmp_path / "s", python="/no/such/python")
    assert not (tmp_path / "s").exists()


def test_an_unknown_option_is_named(full: Store) -> None:
    study = open_study(full.folder)
    with pytest.raises(TypeError, match="patience"):
        study.run(patience=3)


def test_a_slip_in_a_recipe_starts_nothing(full: Store) -> None:
    study = open_study(full.folder)
    with pytest.raises(RecipeError, match="not lever=value"):
        study.run("onnxruntime")
    assert not (full.folder / "scheduler.json").exists()


def test_stopping_a_study_in_which_nothing_runs_is_no_error(full: Store) -> None:
    assert open_study(full.folder).stop() == []
    assert not (full.folder / "scheduler.json").exists()


def test_a_reopened_study_shows_everything(full: Store, tmp_path: Path) -> None:
    with open_study(full.folder) as study:
        assert len(study.variants()) == 15, "the control is no row of the user's"
        assert "▲ 1.41× as fast" in study._repr_html_()
        frame = study.to_dataframe()
        assert frame.loc[2, "verdict"] == "faster"
        assert frame.loc[2, "ratio"] == pytest.approx(1.41, rel=0.03)
        text = study.to_json(tmp_path / "study.json")
        assert json.loads((tmp_path / "study.json").read_text()) == json.loads(text)
        study.to_csv(tmp_path / "study.csv")
        assert len((tmp_path / "study.csv").read_text().splitlines()) == 16
        page = study.report(tmp_path / "report.html")
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
        best = study.best()
        assert best is not None
        assert best.number == 9


@pytest.mark.slow
def test_run_builds_measures_and_judges() -> None:
    study = ran_study()
    rows = {row.recipe.spec: row for row in study.variants()}
    assert set(rows) == {"engine=torch", *RECIPES}
    assert {s: r.failure for s, r in rows.items() if r.state != "done"} == {}
    comparison = study.compare()
    for row in comparison.rows:
        assert row.decision is not None
        assert row.decision.ratio is not None
        assert row.decision.num_visits == len(study.visits(row.number))
        assert row.call is not None
        assert row.variant.quality is not None
        assert row.variant.quality.num_rows == 640
        assert row.variant.evidence is not None
        assert row.variant.cold_start is not None
        assert row.variant.cold_start.build_s is not None
    batch = rows["engine=onnxruntime,batch=8"]
    assert batch.items_per_call == 8
    assert comparison.row(batch.number).baseline_batch not in (None, 8)


@pytest.mark.slow
def test_the_client_never_runs_the_model() -> None:
    code = (
        "import sys, workbench as wb; s = wb.open_study(sys.argv[1]); print(s.compare()); "
        "s.report(sys.argv[2]); print([m for m in ('torch', 'onnxruntime') if m in sys.modules])"
    )
    study = ran_study()
    out = subprocess.run(
        [sys.executable, "-c", code, str(study.folder), str(study.folder.parent / "r.html")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.splitlines()[-1] == "[]"
