"""Precision on the torch engines: flags, casts and autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.device import Device
from workbench.levers.precision import Precision
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_TORCH_NAME = {"bf16": "bfloat16", "fp16": "float16"}


def precision_unavailable(value: str, context: Context) -> str | None:
    """Why torch cannot compute in this format on the context's device."""
    device = context.device
    if value == "tf32":
        if device.kind != "cuda":
            return f"tf32 is a format of NVIDIA's tensor cores; this is {device.reading}"
        if (device.capability or (0, 0)) < (8, 0):
            return f"tf32 needs compute capability 8.0; this is {device.reading}"
    return None


def precision_warnings(value: str, context: Context) -> tuple[str, ...]:
    """Says that a format is emulated, and which instructions are missing."""
    dtype = Precision(value=value).dtype
    missing = missing_instructions(dtype, context.device)
    if missing is None:
        return ()
    return (
        f"{dtype} is emulated on {context.device.reading}, which has no {missing}: expect it "
        "to be slower than fp32",
    )


def missing_instructions(dtype: str, device: Device) -> str | None:
    """The instructions whose absence makes this dtype slow here; None where it is native."""
    if dtype not in ("bf16", "fp16") or dtype in device.native:
        return None
    if device.kind == "cuda":
        return "tensor cores for it"
    return "AVX512_BF16 or AMX_BF16" if dtype == "bf16" else "AVX512_FP16 or AMX_FP16"


@applies(
    Precision,
    "torch",
    "torch-compile",
    unavailable=precision_unavailable,
    warnings=precision_warnings,
)
def plan_precision(lever: Precision, context: Context) -> tuple[Step, ...]:
    """Flags for fp32 and tf32; casts of module and inputs, or autocast, for bf16 and fp16."""
    kind = context.device.kind
    if lever.value in ("fp32", "tf32"):
        value = "ieee" if lever.value == "fp32" else "tf32"
        return (
            Step(
                phase="load.flags",
                function=set_fp32_precision,
                params={"value": value, "device_type": kind},
            ),
        )
    dtype = _TORCH_NAME[lever.dtype]
    if lever.is_autocast:
        return (
            Step(
                phase="load.call",
                function=with_autocast,
                reads=("call",),
                writes="call",
                params={"device_type": kind, "dtype": dtype},
            ),
        )
    phases = ("build.convert", "load.convert")
    casts = [
        Step(
            phase=phase,
            function=cast_module,
            reads=("module",),
            writes="module",
            params={"dtype": dtype},
        )
        for phase in (phases if context.model.kind == "factory" else phases[1:])
    ]
    inputs = Step(
        phase="load.place",
        function=cast_inputs,
        reads=("place",),
        writes="place",
        params={"dtype": dtype},
    )
    return (*casts, inputs)


@portable
def set_fp32_precision(value: str, device_type: str) -> None:
    """Round fp32 to tf32 in matmuls, convolutions and RNNs ("tf32"), or never ("ieee").

    The old switches first and then each leaf of the new interface: where both are set and
    agree, code that asks either gets an answer.
    """
    import torch

    torch.set_float32_matmul_precision("high" if value == "tf32" else "highest")
    if device_type == "cuda":
        torch.backends.cudnn.allow_tf32 = value == "tf32"
        leaves = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
    else:
        leaves = [
            torch.backends.mkldnn.matmul,
            torch.backends.mkldnn.conv,
            torch.backends.mkldnn.rnn,
        ]
    for leaf in leaves:
        leaf.fp32_precision = value


@portable
def cast_module(module: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """Cast floating weights and buffers; integers stay."""
    import torch

    return module.to(getattr(torch, dtype))


@portable
def cast_inputs(place: Callable[[Any], Any], dtype: str) -> Callable[[Any], Any]:
    """Cast floating inputs, wherever they are nested, when they are copied in."""
    import torch
    from torch.utils._pytree import tree_map_only

    wanted = getattr(torch, dtype)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(wanted) if tensor.is_floating_point() else tensor

    def place_cast(inputs: dict[str, Any]) -> Any:
        return tree_map_only(torch.Tensor, cast, place(inputs))

    return place_cast


@portable
def with_autocast(call: Callable[[Any], Any], device_type: str, dtype: str) -> Callable[[Any], Any]:
    """Run the call under autocast: PyTorch casts matmuls and convolutions one by one."""
    import torch

    wanted = getattr(torch, dtype)

    def autocast_call(placed: Any) -> Any:
        with torch.autocast(device_type, dtype=wanted):
            return call(placed)

    plain: Any = getattr(call, "plain", None)
    if plain is not None:
        vars(autocast_call)["plain"] = with_autocast(plain, device_type, dtype)
    return autocast_call
