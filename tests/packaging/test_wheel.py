"""The wheel that users get: what is in it, what it needs, what it leaves alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out)
    run(*pip, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fresh environment's programs: an older numpy, then the wheel alone."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip = (programs / "python", "-m", "pip", "install", "--quiet")
    run(*pip, "numpy==2.2.6", cwd=folder)
    run(*pip, wheel, cwd=folder)
    return programs


def test_the_wheel_carries_samples_and_notebooks(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    samples = {name.split("/")[2] for name in names if name.startswith("workbench/sample_models/")}
    shipped = {path.parent.name for path in (ROOT / "sample_models").glob("*/*.safetensors")}
    assert shipped
    assert shipped <= samples
    assert "workbench/notebooks/welcome.ipynb" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_wheel_is_small(wheel: Path) -> None:
    # The samples may have 15 MB together.
    assert wheel.stat().st_size < 20_000_000


def test_the_core_works_without_torch(bare: Path) -> None:
    code = "import workbench, importlib.util as u; print(u.find_spec('torch'), workbench.__name__)"
    assert run(bare / "python", "-c", code, cwd=bare).split() == ["None", "workbench"]


def test_the_command_answers_without_torch(bare: Path) -> None:
    assert "doctor" in run(bare / "workbench", "--help", cwd=bare)


def test_doctor_says_what_to_install(bare: Path) -> None:
    done = subprocess.run(
        [bare / "workbench", "doctor"], capture_output=True, text=True, check=False, cwd=bare
    )
    assert "accel-workbench[run]" in " ".join(done.stdout.split())


def test_installing_leaves_a_numpy_in_range_alone(bare: Path) -> None:
    freeze = run(bare / "python", "-m", "pip", "freeze", cwd=bare)
    assert "numpy==2.2.6" in freeze.splitlines()


def test_installing_changes_no_package_that_is_in_range(wheel: Path, tmp_path: Path) -> None:
    """The torch here is not the newest, so an installer that upgraded would be seen."""
    report = tmp_path / "report.json"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--dry-run")
    run(*pip, "--report", report, f"{wheel}[all]", cwd=tmp_path)
    chosen = {item["metadata"]["name"] for item in json.loads(report.read_text())["install"]}
    here = {_plain(found.name) for found in metadata.distributions()}
    assert {name for name in chosen if _plain(name) in here} <= {"accel-workbench"}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
