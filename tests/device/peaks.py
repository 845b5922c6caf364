"""The most fp16 arithmetic that a card can do: below the time this takes, nothing was done."""

from __future__ import annotations

from workbench.core.device import Device
from workbench.devices.nvidia import card_of, nvml

# Dense fp16 multiplications and additions of one multiprocessor in one cycle, tensor cores
# included: NVIDIA's architecture white papers (Volta, Turing, Ampere, Ada, Hopper, Blackwell).
_FLOPS_A_CYCLE = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 7): 2048,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
    (12, 0): 1024,
}


def peak_flops(device: Device) -> float | None:
    """Dense fp16 operations a second at the highest clock; None for a card not listed.

    The multiprocessors are counted by torch in a child, so that this process makes no context.
    """
    per_cycle = _FLOPS_A_CYCLE.get(device.capability or (0, 0))
    multiprocessors = _multiprocessors(device.id)
    clock_hz = _highest_clock_hz(device.id)
    if per_cycle is None or multiprocessors is None or clock_hz is None:
        return None
    return per_cycle * multiprocessors * clock_hz


def _multiprocessors(device_id: str) -> int | None:
    import subprocess
    import sys

    code = (
        "import sys, torch; "
        "print(torch.cuda.get_device_properties(sys.argv[1]).multi_processor_count)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, device_id],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    words = done.stdout.split()
    return int(words[-1]) if done.returncode == 0 and words else None


def _highest_clock_hz(device_id: str) -> float | None:
    try:
        card = card_of(device_id)
        with nvml() as lib:
            handle = lib.nvmlDeviceGetHandleByUUID(card.parent_uuid or card.uuid)
            try:
                return float(lib.nvmlDeviceGetMaxClockInfo(handle, lib.NVML_CLOCK_SM)) * 1e6
            except lib.NVMLError:
                return None
    except LookupError:
        return None
