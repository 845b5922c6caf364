"""Whether one more server fits: beside the container's memory, the GPU's."""

from __future__ import annotations

import pytest

from workbench.core.device import Device
from workbench.devices.live import GpuCounters
from workbench.run import servers
from workbench.run.servers import free_bytes

CPU = Device(id="cpu", kind="cpu", name="a CPU")
GPU = Device(id="cuda:0", kind="cuda", name="a GPU", capability=(9, 0))
HOST_FREE = 8_000_000_000


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        # 2 of 10 GB are in use: the container's 8 and the card's 8 are the same.
        (GpuCounters(memory_total_bytes=10 * 10**9, memory_used_bytes=2 * 10**9), HOST_FREE),
        # P30: another process holds most of the card.
        (GpuCounters(memory_total_bytes=10 * 10**9, memory_used_bytes=9 * 10**9), 10**9),
        (GpuCounters(memory_total_bytes=80 * 10**9, memory_used_bytes=0), HOST_FREE),
        # A driver that does not say: what is known is used.
        (GpuCounters(), HOST_FREE),
    ],
)
def test_the_smaller_of_the_containers_and_the_cards_memory(
    card: GpuCounters, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "free_memory_bytes", lambda: HOST_FREE)
    monkeypatch.setattr(servers, "gpu_counters", lambda _: card)
    assert free_bytes(GPU) == expected


def test_a_cpu_has_no_card_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "free_memory_bytes", lambda: HOST_FREE)
    monkeypatch.setattr(servers, "gpu_counters", lambda _: pytest.fail("asked"))
    assert free_bytes(CPU) == HOST_FREE
