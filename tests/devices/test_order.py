"""Which device a study uses: the first that the host lists."""

from __future__ import annotations

import pytest

from workbench.core.device import Device
from workbench.core.errors import RunError
from workbench.devices import probe_host
from workbench.devices.host import order_devices
from workbench.devices.nvidia import PROHIBITED

CPU = Device(id="cpu", kind="cpu", name="a CPU")
FIRST = Device(id="cuda:0", kind="cuda", name="a GPU", capability=(9, 0))
SECOND = Device(id="cuda:1", kind="cuda", name="a GPU", capability=(9, 0))
HERE = (CPU, FIRST, SECOND)
FOR_GPUS, FOR_CPUS = {"torch": "2.13.0"}, {"torch": "2.13.0+cpu"}


def ids(devices: tuple[Device, ...]) -> list[str]:
    return [device.id for device in devices]


def test_a_gpu_comes_first_where_torch_is_built_for_it() -> None:
    assert ids(order_devices(HERE, FOR_GPUS, (), None)) == ["cuda:0", "cpu", "cuda:1"]


def test_a_gpu_that_no_engine_is_built_for_stays_behind() -> None:
    """P17: a row must not be planned for a device that nothing here can use."""
    assert ids(order_devices(HERE, FOR_CPUS, ("CPUExecutionProvider",), None))[0] == "cpu"
    assert ids(order_devices(HERE, {}, (), None))[0] == "cpu"
    with_provider = order_devices(HERE, FOR_CPUS, ("CUDAExecutionProvider",), None)
    assert with_provider[0].id == "cuda:0"


def test_a_card_that_nobody_may_use_is_passed_over() -> None:
    closed = Device(id="cuda:0", kind="cuda", name="a GPU", notes=(f"{PROHIBITED}: no process",))
    assert ids(order_devices((CPU, closed, SECOND), FOR_GPUS, (), None))[0] == "cuda:1"
    assert ids(order_devices((CPU, closed), FOR_GPUS, (), None))[0] == "cpu"


@pytest.mark.parametrize("wanted", ["cpu", "cuda:0", "cuda:1"])
def test_the_user_may_name_the_device(wanted: str) -> None:
    found = order_devices(HERE, FOR_GPUS, (), wanted)
    assert found[0].id == wanted
    assert sorted(ids(found)) == sorted(ids(HERE))


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """P17: asked for a GPU that is not there, nothing falls back to the CPU in silence."""
    monkeypatch.setenv("WORKBENCH_DEVICE", "cuda:7")
    with pytest.raises(RunError, match=r"WORKBENCH_DEVICE is 'cuda:7', which is not here"):
        probe_host()
