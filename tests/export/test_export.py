from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.study import filled
from tests.study.ran import ran_study
from workbench.core.errors import ExportError
from workbench.core.failure import Failure
from workbench.core.measurement import Quality
from workbench.export.bundle import Bundle, write
from workbench.export.readme import code, plain
from workbench.study import Study, open_study
from workbench.study.store import Store


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "study", filled.model_at(tmp_path / "captured")) as store:
        filled.fill(store)
        yield store


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (10, r"variant 10 \(engine=openvino\) is not exported: it is measuring"),
        (11, r"its outputs are wrong \(37 of 6,000 outputs are not finite\)"),
        (12, r"it is failed \(The worker crashed \(signal 11\)\)"),
        (13, "it is stopped-early"),
        (15, "it is queued"),
    ],
)
def test_a_row_that_is_unfinished_or_wrong_is_refused(
    full: Store, tmp_path: Path, number: int, reason: str
) -> None:
    """P05, P08: export is blocked, with the reason, until it is overridden."""
    with pytest.raises(ExportError, match=reason):
        open_study(full.folder).export(number, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_provisional_row_is_refused(full: Store, tmp_path: Path) -> None:
    full.clear_visits(0)
    with pytest.raises(ExportError, match="provisional"):
        open_study(full.folder).export(3, tmp_path / "out")


def test_what_is_not_exportable_stays_so_by_force(full: Store, tmp_path: Path) -> None:
    reason = "its class was typed into a cell that is gone"
    full.set_prepared(dataclasses.replace(filled.prepared(), not_exportable=reason))
    for force in (False, True):
        with pytest.raises(ExportError, match=f"not exportable: {reason}"):
            open_study(full.folder).export(3, tmp_path / "out", force=force)


def test_best_without_a_winner_is_the_sentence(full: Store, tmp_path: Path) -> None:
    """P69."""
    for row in full.variants():
        if row.role == "variant" and row.quality is not None and row.state == "done":
            full.update(row.number, quality=dataclasses.replace(row.quality, status="lost"))
    with pytest.raises(ExportError, match=r"^None met it; best 100 % top-1 agreement.*number\.$"):
        open_study(full.folder).export("best", tmp_path / "out")


def test_rows_of_unknown_quality_ask_for_rows_to_judge_by(full: Store, tmp_path: Path) -> None:
    for row in full.variants():
        if row.quality is not None and row.state == "done":
            full.update(row.number, quality=dataclasses.replace(row.quality, status="unknown"))
    with pytest.raises(ExportError, match=r"wb\.load real rows \(evaluation=\.\.\.\)"):
        open_study(full.folder).export("best", tmp_path / "out")


def test_a_name_that_is_no_row_is_refused(full: Store, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'fastest' is no variant"):
        open_study(full.folder).export("fastest", tmp_path / "out")


def test_a_row_without_an_artifact_says_so(full: Store, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="nothing to export"):
        open_study(full.folder).export(3, tmp_path / "out")


def _bundle(artifact: Path, **more: object) -> Bundle:
    arrays = {"x": np.zeros((1, 2), np.float32)}
    return Bundle(
        artifact=artifact,
        readme="# r\n",
        measurement={"schema_version": 1},
        inputs=arrays,
        outputs=arrays,
        evidence={"executed": {"a": 1}},
        tolerance=1e-3,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "pipeline.py").write_text("x = 1\n")
    (folder / "parts").mkdir()
    (folder / "parts" / "weights.bin").write_bytes(b"123")
    (folder / "calibration.npz").write_bytes(b"the user's rows")
    return folder


def test_a_bundle_is_whole_and_lists_every_file(artifact: Path, tmp_path: Path) -> None:
    """P65: complete and relative."""
    out = write(tmp_path / "deep" / "out", _bundle(artifact), _bundle(artifact))
    listed = json.loads((out / "check" / "files.json").read_text())
    there = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert set(listed) == there - {"check/files.json"}
    assert {"parts/weights.bin", "baseline/pipeline.py", "baseline/check/files.json"} <= there
    assert not [name for name in there if "pycache" in name or "calibration" in name]


def test_a_folder_that_holds_something_is_kept(artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(out, _bundle(artifact))
    before = sorted(p.name for p in out.iterdir())
    with pytest.raises(ExportError, match="already holds something"):
        write(out, _bundle(artifact))
    assert sorted(p.name for p in out.iterdir()) == before


def test_an_export_that_fails_leaves_nothing(artifact: Path, tmp_path: Path) -> None:
    """P50: a link out of the artifact is not followed."""
    secret = tmp_path / "secret"
    secret.write_text("key")
    (artifact / "parts" / "link.bin").symlink_to(secret)
    with pytest.raises(ExportError, match="holds a link"):
        write(tmp_path / "out", _bundle(artifact))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifact", "secret"]


def test_texts_of_a_model_do_nothing_in_a_readme() -> None:
    assert code("a`b``c") == "```a`b``c```"
    assert code("`x`") == "`` `x` ``"
    assert "\n" not in plain("a\n# b")
    assert plain("<img onerror=x> [a](b)") == r"\<img onerror=x\> \[a\](b)"


def _check(folder: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Not where the package could be found: the script must do without it.
    return subprocess.run(
        [sys.executable, str(folder / "pipeline.py"), "--check"],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )


def _exported(study: Study, number: int, out: Path) -> Path:
    # A machine as busy as a tester's may leave a row provisional.
    return study.export(number, out, force=True)


def _list_anew(folder: Path, name: str) -> None:
    """Put the digest that a file has now into the bundle's own list."""
    listing = folder / "check" / "files.json"
    listed = json.loads(listing.read_text())
    listed[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    listing.write_text(json.dumps(listed))


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_exported_folder_checks_itself_wherever_it_lies(number: int, tmp_path: Path) -> None:
    """P65, P78: moved, run from elsewhere, without the workbench."""
    study = ran_study()
    out = _exported(study, number, tmp_path / "first")
    assert "workbench" not in (out / "pipeline.py").read_text().replace("accel-workbench", "")
    artifact = study.reader.artifact_folder(study.reader.variant(number))
    assert artifact is not None
    assert (out / "pipeline.py").read_bytes() == (artifact / "pipeline.py").read_bytes()
    moved = tmp_path / "moved here"
    shutil.move(out, moved)
    done = _check(moved, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "speed not checked" in done.stdout
    # `load` is the user's entry too, and needs no flag.
    code_ = (
        "import json, numpy as np\nfrom pipeline import load\nm = load('.')\n"
        "x = dict(np.load('check/inputs.npz'))\n"
        "print({k: None if v is None else v.shape for k, v in m.predict(x).items()})"
    )
    used = subprocess.run(
        [sys.executable, "-c", code_], cwd=moved, capture_output=True, text=True, check=True
    )
    items = study.reader.variant(number).items_per_call
    assert f"'logits': ({items}, 10)" in used.stdout
    assert "'aux': None" in used.stdout


@pytest.mark.slow
def test_a_changed_bundle_fails_its_check(tmp_path: Path) -> None:
    study = ran_study()
    wrong_weight = _exported(study, 2, tmp_path / "weight")
    graph = onnx.load(wrong_weight / "model.onnx")
    weight = max(graph.graph.initializer, key=lambda each: len(each.raw_data))
    changed = onnx.numpy_helper.to_array(weight).copy()
    changed[0] *= 1.5
    weight.CopyFrom(onnx.numpy_helper.from_array(changed, weight.name))
    onnx.save(graph, wrong_weight / "model.onnx")
    done = _check(wrong_weight, tmp_path)
    assert done.returncode == 1
    assert "model.onnx is not the file that was exported" in done.stdout
    # Whoever also forges the list is caught by the outputs.
    _list_anew(wrong_weight, "model.onnx")
    done = _check(wrong_weight, tmp_path)
    assert done.returncode == 1
    assert "output logits is off by" in done.stdout
    missing = _exported(study, 2, tmp_path / "missing")
    (missing / "model.onnx").unlink()
    done = _check(missing, tmp_path)
    assert done.returncode == 1
    assert "model.onnx is missing" in done.stdout


@pytest.mark.slow
def test_another_precision_than_the_measured_one_fails_the_check(tmp_path: Path) -> None:
    study = ran_study()
    low = _exported(study, 4, tmp_path / "low")
    full_ = _exported(study, 1, tmp_path / "full")
    # The full-precision script in the bfloat16 bundle's place, with an honest list.
    shutil.copy(full_ / "pipeline.py", low / "pipeline.py")
    _list_anew(low, "pipeline.py")
    done = _check(low, tmp_path)
    assert done.returncode == 1, done.stdout
    assert "was" in done.stdout


@pytest.mark.slow
def test_a_forced_row_carries_its_caution(tmp_path: Path) -> None:
    """P08: what is wrong goes with it."""
    study = ran_study()
    copied = tmp_path / "study"
    shutil.copytree(study.folder, copied)
    with Store(copied) as store:
        quality = Quality(status="mismatch", metric="relative error", value=999.0, num_rows=640)
        failure = Failure(kind="mismatch", stage="check", message="outputs are 1000 times as large")
        store.update(2, state="failed", quality=quality, failure=failure)
    changed = open_study(copied)
    with pytest.raises(ExportError, match="1000 times as large"):
        changed.export(2, tmp_path / "out")
    out = changed.export(2, tmp_path / "out", force=True)
    assert "1000 times as large" in (out / "README.md").read_text()
    assert "1000 times as large" in (out / "check" / "CAUTION.txt").read_text()


@pytest.mark.slow
def test_with_its_baseline_the_speed_is_checked_too(tmp_path: Path) -> None:
    study = ran_study()
    out = study.export(2, tmp_path / "out", with_baseline=True, force=True)
    speed = json.loads((out / "check" / "speed.json").read_text())
    assert speed["items"] == study.reader.variant(2).items_per_call
    assert (out / "baseline" / "check" / "inputs.npz").is_file()
    # The claim of a script a thousand times as fast is not believed.
    speed.update(ratio=1000.0, low=900.0, high=1100.0)
    (out / "check" / "speed.json").write_text(json.dumps(speed))
    _list_anew(out, "check/speed.json")
    done = _check(out, tmp_path)
    assert done.returncode == 1
    assert "FAIL  speed" in done.stdout
