"""Cards as CUDA would number them, without a card."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.devices.stub_nvml import StubNvml
from workbench.core.device import Device
from workbench.devices import nvidia
from workbench.devices.nvidia import Card, cards_from_nvml, parse_smi, visible


def card(index: int, uuid: str, parent: str | None = None) -> Card:
    return Card(
        index=index,
        uuid=uuid,
        name="NVIDIA H100",
        memory_bytes=80 << 30,
        capability=(9, 0),
        driver="570.1",
        parent_uuid=parent,
    )


TWO = (card(0, "GPU-aa"), card(1, "GPU-ab"))
SPLIT = (card(0, "GPU-aa"), card(0, "MIG-x", "GPU-aa"), card(1, "MIG-y", "GPU-aa"))


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        (None, ["GPU-aa", "GPU-ab"]),
        ("1,0", ["GPU-ab", "GPU-aa"]),
        ("1", ["GPU-ab"]),
        ("GPU-ab", ["GPU-ab"]),
        # As CUDA does: nothing after the first entry that it cannot use.
        ("0,7,1", ["GPU-aa"]),
        ("-1,0", []),
        ("", []),
        ("0,0", ["GPU-aa"]),
        ("GPU-a", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(setting: str | None, uuids: list[str]) -> None:
    assert [chosen.uuid for chosen in visible(TWO, setting)] == uuids


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [(None, ["MIG-x"]), ("MIG-y", ["MIG-y"]), ("MIG-x,MIG-y", ["MIG-x"]), ("0", ["MIG-x"])],
)
def test_one_instance_of_a_split_card_is_visible(setting: str | None, uuids: list[str]) -> None:
    assert [chosen.uuid for chosen in visible(SPLIT, setting)] == uuids


def test_an_instance_has_its_own_memory_and_says_so() -> None:
    cards = cards_from_nvml(StubNvml(mig=True))
    (instance,) = visible(cards, None)
    assert instance.memory_bytes == 10 << 30
    assert instance.capability == (9, 0)
    assert instance.notes[0] == "MIG: an instance of NVIDIA H100"


def test_what_the_driver_refuses_is_absent() -> None:
    """P76: a reading that is not supported is None, not 0."""
    refuse = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability")
    (only,) = cards_from_nvml(StubNvml(refuse=refuse))
    assert only.memory_bytes is None
    assert only.capability is None


def test_exclusive_mode_is_noted() -> None:
    (only,) = cards_from_nvml(StubNvml(mode=3))
    device = Device(id="cuda:0", kind="cuda", name=only.name, notes=only.notes)
    assert nvidia.is_exclusive(device)
    (shared,) = cards_from_nvml(StubNvml())
    assert not nvidia.is_exclusive(Device(id="cuda:0", kind="cuda", name="", notes=shared.notes))


@pytest.mark.parametrize(
    ("capability", "has", "lacks"),
    [
        ((7, 5), {"fp16", "int8"}, {"bf16", "tf32", "fp8"}),
        ((8, 0), {"bf16", "tf32"}, {"fp8"}),
        ((8, 9), {"fp8"}, {"fp4"}),
        ((9, 0), {"fp8", "bf16"}, {"fp4"}),
        ((12, 0), {"fp4"}, set()),
    ],
)
def test_native_dtypes_follow_the_compute_capability(
    capability: tuple[int, int], has: set[str], lacks: set[str]
) -> None:
    native = set(nvidia.native_dtypes(capability))
    assert has <= native
    assert native.isdisjoint(lacks)


SMI = "0, GPU-1, NVIDIA H200, 143771, 9.0, 570.124.06, Exclusive_Process\n"


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_the_drivers_own_tool_serves_where_the_bindings_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{SMI.strip()}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (only,) = nvidia.cards_from_smi()
    assert only.name == "NVIDIA H200"
    assert only.capability == (9, 0)
    assert only.memory_bytes == 143771 << 20
    assert only.notes == ("exclusive compute mode: one process at a time",)


def test_fields_that_the_tool_does_not_know_are_absent() -> None:
    (only,) = parse_smi("0, GPU-1, Tesla K80, [N/A], [N/A], 470.1, Default\n")
    assert only.memory_bytes is None
    assert only.capability is None
    assert parse_smi("No devices were found\n") == ()


def test_a_broken_tool_means_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed >&2; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert nvidia.cards_from_smi() == ()
