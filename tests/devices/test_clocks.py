"""Clocks that are read after every round, and what a row adds to a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.devices.stub_nvml import StubNvml
from workbench.devices import live, nvidia
from workbench.devices.live import open_clocks, read_clocks
from workbench.run.live import grown_bytes


class CountedNvml(StubNvml):
    """The stub, which knows how often it was started and stopped."""

    def __init__(self, **refused: Any) -> None:
        super().__init__(**refused)
        self.num_started = 0

    def answers(self) -> dict[str, Any]:
        def count(change: int) -> None:
            self.num_started += change

        return super().answers() | {
            "nvmlInit": lambda: count(1),
            "nvmlShutdown": lambda: count(-1),
            "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle of {uuid}",
        }


def use(lib: StubNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the devices room find this library."""

    @contextmanager
    def opened() -> Iterator[StubNvml]:
        lib.nvmlInit()
        yield lib
        lib.nvmlShutdown()

    monkeypatch.setattr(nvidia, "nvml", opened)
    monkeypatch.setattr(live, "nvml", opened)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_clock_and_what_holds_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = CountedNvml()
    use(lib, monkeypatch)
    read = open_clocks("cuda:0")
    assert read is not None
    assert lib.num_started == 1, "NVML stays up for the next round"
    now = read()
    assert (now.sm_clock_mhz, now.throttle) == (1980, ("power cap",))
    # Nothing else was asked for, and what was not is absent.
    assert (now.power_w, now.memory_used_bytes) == (None, None)


def test_a_card_that_does_not_exist_has_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    use(CountedNvml(), monkeypatch)
    assert open_clocks("cuda:7") is None


def test_a_refused_handle_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = CountedNvml(refuse=("nvmlDeviceGetHandleByUUID",))
    use(lib, monkeypatch)
    assert open_clocks("cuda:0") is None
    assert lib.num_started == 0


def test_a_refused_clock_is_absent_with_its_reason() -> None:
    now = read_clocks(StubNvml(refuse=("nvmlDeviceGetClockInfo",)), "card 0")
    assert (now.sm_clock_mhz, now.throttle) == (None, ("power cap",))
    assert now.reasons == {"sm_clock_mhz": "Not Supported"}


def test_what_a_row_adds_is_a_difference_and_never_below_zero() -> None:
    assert grown_bytes(2_000, 5_000) == 3_000
    assert grown_bytes(2_000, 2_000) == 0
    assert grown_bytes(None, 5_000) is None
    assert grown_bytes(5_000, None) is None
    # Somebody else gave memory back meanwhile: the difference says nothing.
    assert grown_bytes(5_000, 2_000) is None
