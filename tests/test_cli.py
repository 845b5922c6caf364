from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.study import filled
from tests.study.ran import end, ran_study
from workbench.cli import main
from workbench.study import open_study
from workbench.study.store import Store

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study with rows of every kind."""
    with Store.create(tmp_path / "study", filled.model_at(tmp_path / "captured")) as store:
        filled.fill(store)
    return tmp_path / "study"


def _one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("workbench: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 130):
        assert f"\n  {code}  " in said
        assert f"\n| {code} |" in written


@pytest.mark.parametrize("argv", [[], ["fly"], ["run"], ["run", "m", "--budget", "-1"]])
def test_a_wrong_use_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert "usage: workbench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("onnxruntime", "not lever=value"),
        ("engine=onyx", "no engine 'onyx'. There are torch"),
        ("engine=torch,precison=bf16", "did you mean precision"),
        ("engine=torch,precision=bf17", "bf16"),
    ],
)
def test_a_slip_in_a_recipe_is_2_before_anything_is_loaded(
    spec: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["run", "sample:digits-cnn", "--recipe", spec, "--study", str(tmp_path / "s")]
    assert main(argv) == 2
    assert said in _one_sentence(capsys)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("model", ["sample:nothing", "no/such/file.onnx", "no.such.module:factory"])
def test_a_model_that_cannot_be_loaded_is_3(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["run", model, "--inputs", "x: f32[2]", "--study", str(tmp_path / "s")]
    assert main(argv) == 3
    _one_sentence(capsys)


def test_a_file_that_runs_code_needs_a_word(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """P49."""
    import pickle

    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert main(["run", str(path), "--study", str(tmp_path / "s")]) == 3
    _one_sentence(capsys)


def test_no_study_is_5(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv in (["show", str(tmp_path)], ["export", str(tmp_path), "1", "o"], ["stop", "nowhere"]):
        assert main(argv) == 5
        assert "is not a study" in _one_sentence(capsys)


def test_an_export_that_may_not_be_is_6(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["export", str(folder), "11", str(tmp_path / "out")]) == 6
    assert "not finite" in _one_sentence(capsys)


def test_show_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "▲ 1.41× as fast" in said
    assert "Best: variant 9" in said


def test_show_prints_exactly_one_document(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    html, csv = tmp_path / "r.html", tmp_path / "r.csv"
    argv = ["show", str(folder), "--json", "--html", str(html), "--csv", str(csv)]
    assert main([*argv, "--goal", "latency"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert found["schema_version"] == 1
    assert found["goal"] == "latency"
    assert found["best"]["variant"] == 3
    assert len(found["variants"]) == 15
    assert "<!doctype html>" in html.read_text(encoding="utf-8")
    assert csv.read_text(encoding="utf-8").startswith("number,")


def test_stop_with_nothing_at_work_is_fine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", str(folder)]) == 0
    assert "Nothing was running." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["doctor", "levers", "samples"])
def test_what_is_here_is_one_document(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([command, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert found["kind"] == command
    if command == "doctor":
        assert code == (0 if found["well"] else 1)
        assert {"name", "ok", "text", "remedy"} <= found["checks"][0].keys()
    elif command == "levers":
        rows = found["rows"]
        assert {row["engine"] for row in rows} >= {"torch", "onnxruntime"}
        # Every value is offered, or shown unavailable with the reason.
        assert all(row["available"] == (row["reason"] is None) for row in rows)
        assert all(row["reason"] != "" for row in rows)


@pytest.mark.parametrize("command", ["doctor", "levers", "samples"])
def test_what_is_here_is_a_table(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command])
    said = capsys.readouterr().out
    words = {"doctor": "torch", "levers": "precision=", "samples": "sample:digits-cnn"}
    assert words[command] in said


def test_a_reader_that_leaves_early_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m workbench show {folder} --json | head -c 10"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


@pytest.mark.slow
def test_run_prints_one_document_and_4_where_a_variant_failed(tmp_path: Path) -> None:
    """P20: what one engine lacks fails on its own row, and the others are kept."""
    study = tmp_path / "study"
    argv = ["run", "tests.study.ran:make", "--inputs", "x: f32[batch, 32]", "--study", str(study)]
    argv += ["--budget", "1", "--recipe", "engine=onnxruntime,precision=bf16", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert done.returncode == 4, done.stderr
        found = json.loads(done.stdout)
        base, row = found["variants"]
        assert base["state"] == "done"
        assert row["state"] == "failed"
        assert row["failure"]["kind"] == "unavailable"
        assert "bf16 not supported by ONNX Runtime" in row["failure"]["message"]
        # Going on with the study takes the model from it.
        assert main(["show", str(study)]) == 0
    finally:
        end(open_study(study))


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows_and_is_130(tmp_path: Path) -> None:
    study = tmp_path / "study"
    argv = ["run", "tests.study.ran:make", "--inputs", "x: f32[batch, 32]", "--study", str(study)]
    argv += ["--budget", "600", "--recipe", "engine=torch,threads=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        # Where the tests run in the background, SIGINT is ignored and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if line.startswith("#2 ") and "measuring" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    try:
        assert process.returncode == 130, err
        assert "what was measured is kept" in err
        assert "Traceback" not in err
        assert "torch, threads 1" in out
        with open_study(study) as reopened:
            rows = {row.number: row.state for row in reopened.variants()}
            assert rows[2] == "stopped"
            assert len(reopened.visits(2)) >= 1
    finally:
        end(open_study(study))


@pytest.mark.slow
def test_export_says_how_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "study"
    shutil.copytree(ran_study().folder, copied)
    assert main(["export", str(copied), "2", str(tmp_path / "out"), "--force"]) == 0
    assert f"python {tmp_path / 'out' / 'pipeline.py'} --check" in capsys.readouterr().out


def test_lab_opens_a_copy_of_the_welcome_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that is there already is the user's, and is not replaced."""
    stand_in = tmp_path / "modules" / "jupyterlab"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").touch()
    (stand_in / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    command = [sys.executable, "-m", "workbench", "lab", "--folder", str(tmp_path / "work"), "--"]
    done = subprocess.run([*command, "--no-browser"], capture_output=True, text=True, check=True)
    notebook = tmp_path / "work" / "welcome.ipynb"
    assert done.stdout.strip() == repr([str(notebook), "--no-browser"])
    assert json.loads(notebook.read_text())["nbformat"] == 4
    notebook.write_text("mine")
    subprocess.run([*command, "--no-browser"], capture_output=True, check=True)
    assert notebook.read_text() == "mine"
