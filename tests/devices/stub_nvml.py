"""A stand-in for pynvml: one card, of which every reading may be refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NotSupportedError(Exception):
    """What NVML raises where a card has no such counter."""

    def __str__(self) -> str:
        return "Not Supported"


class StubNvml:
    NVMLError = NotSupportedError
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    def __init__(self, *, refuse: tuple[str, ...] = (), mig: bool = False, mode: int = 0) -> None:
        self.refuse, self.mig, self.mode = refuse, mig, mode

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if name in self.refuse or "nvml*" in self.refuse:
                raise NotSupportedError
            return self.answers()[name](*args)

        return call

    def answers(self) -> dict[str, Any]:
        process = SimpleNamespace(pid=2**30, usedGpuMemory=None)
        return {
            "nvmlSystemGetDriverVersion": lambda: b"570.1",
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"card {index}",
            "nvmlDeviceGetName": lambda handle: (
                "H100 MIG 1g.10gb" if handle == "instance" else "NVIDIA H100"
            ),
            "nvmlDeviceGetUUID": lambda handle: "MIG-1" if handle == "instance" else "GPU-1",
            "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
                total=10 << 30 if handle == "instance" else 80 << 30, used=1 << 30
            ),
            "nvmlDeviceGetComputeMode": lambda _: self.mode,
            "nvmlDeviceGetMigMode": lambda _: (int(self.mig), int(self.mig)),
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self.instance,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=40, memory=10),
            "nvmlDeviceGetPowerUsage": lambda _: 123_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: 5_000_000,
            "nvmlDeviceGetTemperature": lambda *_: 51,
            "nvmlDeviceGetClockInfo": lambda *_: 1980,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x04 | 0x01,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [process],
        }

    def instance(self, _: Any, index: int) -> str:
        if index > 0:
            raise NotSupportedError
        return "instance"
