"""Provider: which of ONNX Runtime's execution providers computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.core.json import Json
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import Lever, applies, choice

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_TITLES = {"cpu": "CPU", "cuda": "CUDA", "tensorrt": "TensorRT"}


@dataclass(frozen=True, kw_only=True)
class Provider(Lever):
    """One execution provider. Left alone, it is the one of the study's device."""

    name: ClassVar[str] = "provider"
    title: ClassVar[str] = "Execution provider"
    help: ClassVar[str] = "Which of ONNX Runtime's libraries of kernels computes."
    values: ClassVar[tuple[str, ...]] = ("cpu", "cuda", "tensorrt")

    value: str

    @classmethod
    def parse(cls, text: str) -> Provider:
        """The provider named by `text`. Raises RecipeError on an unknown one."""
        return cls(value=choice(cls, text))


def provider_of(context: Context) -> str:
    """The provider that a recipe runs on: its lever, else the device's own."""
    chosen = context.recipe.get(Provider.name)
    return chosen or ("cuda" if context.device.kind == "cuda" else "cpu")


def provider_unavailable(value: str, context: Context) -> str | None:
    """Why a provider cannot be had: the device, or what the installed onnxruntime lacks."""
    if value == "cpu":
        return None
    title = _TITLES[value]
    if context.device.kind != "cuda":
        return f"{title} unavailable: it needs an NVIDIA GPU; this is {context.device.reading}"
    if _PROVIDERS[value] not in context.host.providers:
        here = ", ".join(context.host.providers) or "none"
        return (
            f"{title} unavailable: the installed onnxruntime has no {_PROVIDERS[value]} "
            f"(it has {here}); install onnxruntime-gpu"
        )
    if value == "tensorrt" and not context.has("tensorrt"):
        return "TensorRT unavailable: the package tensorrt is not installed"
    return None


def provider_params(value: str, context: Context) -> dict[str, Json]:
    """What the provider's portable function takes: the number of the GPU."""
    if value == "cpu":
        return {}
    _, _, number = context.device.id.partition(":")
    return {"device_id": int(number or 0)}


@portable
def cpu_providers() -> list[tuple[str, dict[str, Any]]]:
    """Everything on the CPU."""
    return [("CPUExecutionProvider", {})]


@portable
def cuda_providers(device_id: int) -> list[tuple[str, dict[str, Any]]]:
    """CUDA first. Its libraries come from torch's or NVIDIA's wheels, without importing torch.

    Without preload_dlls() ONNX Runtime does not find them there and falls back to the CPU.
    """
    import onnxruntime

    onnxruntime.preload_dlls()
    return [
        ("CUDAExecutionProvider", {"device_id": str(device_id)}),
        ("CPUExecutionProvider", {}),
    ]


@portable
def tensorrt_providers(out_dir: str, device_id: int) -> list[tuple[str, dict[str, Any]]]:
    """TensorRT first, then CUDA. Engines that it builds are kept beside the graph."""
    from pathlib import Path

    cache = Path(out_dir) / "tensorrt"
    cache.mkdir(exist_ok=True)
    options = {
        "device_id": str(device_id),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(cache),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
    }
    return [("TensorrtExecutionProvider", options), *cuda_providers(device_id)]


@applies(Provider, "onnxruntime", unavailable=provider_unavailable)
def plan_provider(lever: Provider, context: Context) -> tuple[Step, ...]:
    """Replace the device's own provider."""
    return (provider_step(lever.value, context, "load.provider"),)


def provider_step(value: str, context: Context, phase: str) -> Step:
    """The line that lists the providers of a session."""
    functions: dict[str, Callable[..., object]] = {
        "cpu": cpu_providers,
        "cuda": cuda_providers,
        "tensorrt": tensorrt_providers,
    }
    return Step(
        phase=phase,
        function=functions[value],
        reads=("out_dir",) if value == "tensorrt" else (),
        writes="providers",
        params=provider_params(value, context),
    )
