"""What doctor says, for hosts of several kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.device import Device, Host
from workbench.devices import Check, checks

CPU = Device(id="cpu", kind="cpu", name="EPYC", num_cores=2, instruction_sets=("avx2",))
GPU = Device(
    id="cuda:0",
    kind="cuda",
    name="NVIDIA H100",
    memory_bytes=80_000_000_000,
    capability=(9, 0),
    driver="570.1",
)
HOST = Host(
    python="/venv/bin/python",
    python_version="3.11.7",
    platform="Linux",
    devices=(CPU,),
    packages={"torch": "2.13.0+cpu", "onnxruntime": "1.32.0"},
    providers=("CPUExecutionProvider",),
    tools={"c++": "/usr/bin/g++", "python.h": "/usr/include/python3.11/Python.h"},
)


def found(host: Host, name: str, root: Path = Path("/")) -> Check:
    return next(check for check in checks(host, root) if check.name == name)


def test_each_check_is_one_sentence_and_a_failed_one_has_a_remedy() -> None:
    for check in checks(replace(HOST, packages={}, providers=(), tools={})):
        assert check.text.endswith(".")
        if check.ok is False:
            assert check.remedy


def test_a_good_host_fails_no_check() -> None:
    assert [check for check in checks(HOST) if check.ok is False] == []


def test_missing_packages_name_the_extra() -> None:
    bare = replace(HOST, packages={}, providers=())
    assert found(bare, "torch").ok is False
    assert found(bare, "torch").remedy == 'pip install "accel-workbench[run]"'
    assert found(bare, "onnxruntime").ok is False


def test_two_flavours_of_onnxruntime_are_a_fault() -> None:
    both = replace(HOST, packages={**HOST.packages, "onnxruntime-gpu": "1.32.0"})
    assert found(both, "onnxruntime").ok is False
    assert "pip uninstall" in found(both, "onnxruntime").remedy


def test_an_onnxruntime_that_does_not_import_is_a_fault() -> None:
    note = "onnxruntime is installed but cannot be imported: libfoo.so is missing"
    broken = replace(HOST, providers=(), notes=(note,))
    assert found(broken, "onnxruntime").ok is False
    assert "libfoo.so" in found(broken, "onnxruntime").text


def test_no_compiler_is_no_failure_but_names_what_needs_it() -> None:
    check = found(replace(HOST, tools={}), "c++ compiler")
    assert check.ok is None
    assert "torch.compile" in check.text
    headless = found(replace(HOST, tools={"c++": "/usr/bin/g++"}), "c++ compiler")
    assert "headers" in headless.text


def test_a_gpu_beside_a_cpu_build_of_torch_is_a_fault() -> None:
    check = found(replace(HOST, devices=(CPU, GPU)), "gpu build")
    assert check.ok is False
    assert "2.13.0+cpu" in check.text


def test_exclusive_mode_says_what_it_costs() -> None:
    card = replace(GPU, notes=("exclusive compute mode: one process at a time",))
    check = found(replace(HOST, devices=(CPU, card)), "compute mode")
    assert check.ok is None
    assert check.remedy == "sudo nvidia-smi -c DEFAULT"


def test_an_old_python_is_refused() -> None:
    assert found(replace(HOST, python_version="3.10.13"), "python").ok is False


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000000000\n")
    (group / "memory.current").write_text("400000000\n")
    return tmp_path


def test_a_containers_limit_is_named(small: Path) -> None:
    check = found(HOST, "memory", small)
    assert check.ok is None
    assert check.text == "600 MB are free, limited to 1.00 GB by the container."
    assert check.remedy


def test_energy_that_is_absent_says_why(small: Path) -> None:
    """P76: not available, with the reason."""
    check = found(HOST, "energy", small)
    assert check.ok is None
    assert check.text.startswith("The CPU's energy is not available: ")
