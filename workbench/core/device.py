"""A description of what is attached. No handle, no context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device that can run a model.

    `id` is "cpu" or "cuda:0"; `memory_bytes` is the container's limit on a CPU and the
    card's memory on a GPU; `capability` is CUDA's (major, minor); `instruction_sets` names
    what a CPU has ("avx2", "avx512_vnni", "amx_bf16"); `native` lists the dtypes that the
    device computes in hardware rather than by emulation.
    """

    id: str
    kind: Literal["cpu", "cuda"]
    name: str
    num_cores: int | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    instruction_sets: tuple[str, ...] = ()
    native: tuple[str, ...] = ("fp32",)
    driver: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def reading(self) -> str:
        """The device in words, as a reason names it: "a CPU with AVX2"."""
        if self.kind == "cuda":
            version = ".".join(map(str, self.capability or ())) or "unknown"
            return f"{self.name} (compute capability {version})"
        order = ("amx_int8", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "avx", "neon")
        best = next((name for name in order if name in self.instruction_sets), None)
        return f"a CPU with {best.upper()}" if best else "a CPU"


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a study's interpreter has: its devices, packages and tools.

    `devices` begins with the one that a study uses.
    `packages` maps a distribution's name to its version where it is installed; `providers`
    are ONNX Runtime's; `tools` maps "c++" and the like to a path where there is one.
    """

    python: str
    python_version: str
    platform: str
    devices: tuple[Device, ...]
    packages: dict[str, str]
    providers: tuple[str, ...] = ()
    tools: dict[str, str] | None = None
    notes: tuple[str, ...] = ()

    def device(self, device_id: str) -> Device | None:
        """The device of that id, or None."""
        return next((d for d in self.devices if d.id == device_id), None)
