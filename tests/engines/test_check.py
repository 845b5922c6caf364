"""`pipeline.py --check`: what it lets pass, and what makes it fail."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.onnx_sources import cnn_sample
from tests.engines.torch_runs import job, run_all
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.check import (
    check_files,
    check_processing,
    compare_executed,
    compare_outputs,
    judge_speed,
)

load_all()
EXPECTED = {"logits": np.array([[1.0, -4.0]], "float32"), "label": np.array([1])}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"logits": np.array([[1.0, -4.1]], "float32")}, "output logits is off by 0.025"),
        ({"logits": np.array([[1.0, np.nan]], "float32")}, "not finite in the same places"),
        ({"logits": np.array([1.0, -4.0], "float32")}, "shape (2,), expected (1, 2)"),
        ({"label": np.array([2])}, "output label differs"),
        ({"label": None}, "output label is missing"),
        ({"more": np.array([2])}, "output more is new"),
    ],
)
def test_another_output_is_a_fault(changed: dict[str, Any], fault: str) -> None:
    faults, _ = compare_outputs({**EXPECTED, **changed}, EXPECTED, 0.01)
    assert len(faults) == 1
    assert fault in faults[0]


def test_an_error_within_the_tolerance_is_told_and_passes() -> None:
    near = {**EXPECTED, "logits": EXPECTED["logits"] * np.float32(1.001), "nothing": None}
    faults, worst = compare_outputs(near, EXPECTED, 0.01)
    assert faults == []
    assert worst == pytest.approx(0.001, rel=0.01)


def test_infinities_in_the_same_places_are_no_fault() -> None:
    rows = {"x": np.array([np.inf, 1.0])}
    assert compare_outputs(rows, rows, 0.01) == ([], 0.0)


def test_another_precision_or_provider_is_a_fault() -> None:
    measured = {"arithmetic": ["bf16"], "device": "cuda"}
    assert compare_executed({"arithmetic": ["bf16"], "device": "cuda", "more": 1}, measured) == []
    (fault,) = compare_executed({"arithmetic": ["fp32"], "device": "cuda"}, measured)
    assert fault == "arithmetic is ['fp32'], was ['bf16'] when it was measured"
    assert compare_executed({"device": "cpu"}, {}) != []


@pytest.mark.parametrize(
    ("ratio", "num_faults"),
    [(1.5, 0), (1.3, 0), (1.9, 0), (1.1, 1), (2.0, 1), (0.9, 2)],
)
def test_a_ratio_must_lie_on_its_side_and_in_the_widened_interval(
    ratio: float, num_faults: int
) -> None:
    claim = {"ratio": 1.5, "low": 1.45, "high": 1.55}
    assert len(judge_speed(ratio, claim)) == num_faults


def test_an_undecided_claim_is_on_no_side() -> None:
    assert judge_speed(0.97, {"ratio": 1.01, "low": 0.98, "high": 1.04}) == []


def test_every_exported_file_must_be_there_unchanged(tmp_path: Path) -> None:
    (tmp_path / "check").mkdir()
    assert check_files(str(tmp_path))[0] == ["check/files.json is missing"]
    (tmp_path / "a.bin").write_bytes(b"a")
    (tmp_path / "b.bin").write_bytes(b"b")
    digests = {name: hashlib.sha256(name[:1].encode()).hexdigest() for name in ("a.bin", "b.bin")}
    (tmp_path / "check" / "files.json").write_text(json.dumps(digests))
    assert check_files(str(tmp_path)) == ([], "2 present and unchanged")
    (tmp_path / "a.bin").write_bytes(b"c")
    (tmp_path / "b.bin").unlink()
    assert check_files(str(tmp_path))[0] == [
        "a.bin is not the file that was exported",
        "b.bin is missing",
    ]


def bundle(folder: Path, artifact: Path, raw: Any) -> Path:
    """What export leaves beside the artifact's files."""
    shutil.copytree(artifact, folder, ignore=shutil.ignore_patterns("*.npz", "raw.json"))
    check = folder / "check"
    check.mkdir()
    shutil.copyfile(artifact / "inputs.npz", check / "inputs.npz")
    shutil.copyfile(artifact / "outputs.npz", check / "outputs.npz")
    (check / "evidence.json").write_text(json.dumps(raw))
    (check / "tolerance.json").write_text('{"relative": 0.001}')
    (check / "files.json").write_text("{}")
    return folder


def run_check(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(folder / "pipeline.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_folder_proves_itself_and_a_wrong_one_fails(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    sample = cnn_sample(tmp_path / "made")
    recipes = (Recipe(), Recipe(precision="bf16"))
    plain, cast = run_all(tmp_path / "runs", *(job(sample, recipe) for recipe in recipes))
    good = bundle(tmp_path / "good", plain.artifact, plain.raw)
    code, said = run_check(good)
    assert code == 0, said
    assert "speed not checked" in said
    assert "The check passed." in said

    wrong = bundle(tmp_path / "wrong-weight", plain.artifact, plain.raw)
    weights = load_file(wrong / "weights.safetensors")
    weights["head.bias"] = weights["head.bias"] + torch.ones(10)
    save_file(weights, wrong / "weights.safetensors")
    code, said = run_check(wrong)
    assert code == 1
    assert "FAIL  outputs and execution: output output is off by" in said

    other = bundle(tmp_path / "wrong-precision", plain.artifact, cast.raw)
    code, said = run_check(other)
    assert code == 1
    assert "arithmetic is ['fp32'], was ['bf16'] when it was measured" in said

    bare = bundle(tmp_path / "missing", plain.artifact, plain.raw)
    (bare / "check" / "outputs.npz").unlink()
    code, said = run_check(bare)
    assert code == 1
    assert "check/outputs.npz is missing" in said

    # The same file on both sides is not fifty times as fast as itself.
    paired = bundle(tmp_path / "paired", plain.artifact, plain.raw)
    bundle(paired / "baseline", plain.artifact, plain.raw)
    claim = {"ratio": 50.0, "low": 45.0, "high": 55.0, "items": 40, "baseline_items": 40}
    (paired / "check" / "speed.json").write_text(json.dumps(claim))
    code, said = run_check(paired)
    assert code == 1
    assert "FAIL  speed:" in said
    assert "expected 36.00 to 68.75" in said


PROCESSING = """
def preprocess(raw):
    import numpy as np
    return {"x": np.asarray(raw, dtype=np.float32) * 2}


def postprocess(outputs):
    return {"best": outputs["y"].argmax(), "all": outputs["y"], "aux": outputs["aux"]}
"""


@pytest.fixture
def processing(tmp_path: Path) -> Path:
    check = tmp_path / "check"
    check.mkdir()
    (tmp_path / "processing.py").write_text(PROCESSING)
    (tmp_path / "source.json").write_text(json.dumps({"outputs": ["y", "aux"]}))
    (check / "raw.json").write_text("[1, 2.5]")
    np.savez(check / "preprocessed.npz", x=np.array([2.0, 5.0], dtype=np.float32))
    np.savez(check / "postprocessed.npz", y=np.array([0.25, 0.75]))
    (check / "answer.json").write_text('{"best": 1, "all": [0.25, 0.75], "aux": null}')
    return tmp_path


def test_a_models_own_processing_gives_what_it_gave(processing: Path) -> None:
    faults, said = check_processing(str(processing))
    assert faults == []
    assert said == "preprocess and postprocess as when it was exported"


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("* 2", "* 3", "preprocessed input x is off by"),
        ("argmax", "argmin", "postprocess gives"),
        ('"aux": outputs["aux"]', '"aux": 1', "postprocess gives"),
    ],
)
def test_other_processing_is_a_fault(processing: Path, before: str, after: str, fault: str) -> None:
    path = processing / "processing.py"
    path.write_text(path.read_text().replace(before, after))
    faults, _ = check_processing(str(processing))
    assert len(faults) == 1
    assert fault in faults[0]
