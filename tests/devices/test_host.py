"""One look at the host: from this interpreter, and through another."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from workbench.core.errors import RunError
from workbench.devices import probe_host
from workbench.devices.packages import find_tools, installed_packages, normalise
from workbench.devices.probe import main as print_host


def test_the_host_has_a_cpu_and_its_packages() -> None:
    host = probe_host()
    cpu = host.device("cpu")
    assert cpu is not None
    assert cpu.num_cores is not None
    assert 1 <= cpu.num_cores <= (os.cpu_count() or 1)
    assert host.python == sys.executable
    assert host.python_version == platform.python_version()
    assert host.packages["numpy"]


def test_a_probe_imports_no_engine_and_no_torch() -> None:
    code = (
        "import sys; from workbench.devices import probe_host; probe_host()\n"
        "heavy = {'torch', 'onnxruntime', 'onnx', 'openvino', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_child_prints_what_this_process_sees(capfd: pytest.CaptureFixture[str]) -> None:
    print_host()
    here = json.loads(capfd.readouterr().out)
    done = subprocess.run(
        [sys.executable, "-m", "workbench.devices.probe"],
        capture_output=True,
        text=True,
        check=True,
    )
    there = json.loads(done.stdout)
    for seen in (here, there):
        for device in seen["devices"]:
            device.pop("memory_bytes")
    assert there == here
    assert done.stderr == ""


def test_another_interpreter_is_asked(tmp_path: Path) -> None:
    # A second name for this interpreter, which finds the same packages.
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    host = probe_host(str(other))
    assert host.devices == probe_host().devices
    assert host.packages == probe_host().packages


def test_an_interpreter_without_the_workbench_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare")
    folder = "Scripts" if sys.platform == "win32" else "bin"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(RunError, match="pip install"):
        probe_host(str(tmp_path / "bare" / folder / "python"))


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no-python cannot be started"):
        probe_host(str(tmp_path / "no-python"))


@pytest.mark.parametrize(
    ("name", "normal"),
    [("Onnxruntime_GPU", "onnxruntime-gpu"), ("ruamel.yaml", "ruamel-yaml"), ("torch", "torch")],
)
def test_names_are_normalised(name: str, normal: str) -> None:
    assert normalise(name) == normal


def test_every_installed_package_has_a_version() -> None:
    packages = installed_packages()
    assert packages["nvidia-ml-py"]
    assert all(packages.values())


def test_the_compiler_is_the_one_that_inductor_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "my-c++"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert find_tools()["c++"] == str(mine)
    # A CXX that is not there hides g++ from Inductor too.
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert "c++" not in find_tools()
