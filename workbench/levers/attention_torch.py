"""The attention kernel on the torch engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.attention import Attention
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Callable

_HALF = ("bf16", "fp16")


def attention_unavailable(value: str, context: Context) -> str | None:
    """Why PyTorch has no such kernel on the context's device, or for its dtypes."""
    device = context.device
    if device.kind == "cpu" and value in ("efficient", "cudnn"):
        return f"the {value} kernel runs on NVIDIA GPUs; this is {device.reading}"
    if device.kind == "cuda" and value in ("flash", "cudnn"):
        if (device.capability or (0, 0)) < (8, 0):
            return f"the {value} kernel needs compute capability 8.0; this is {device.reading}"
        precision = (context.recipe.get("precision") or "").removesuffix("-autocast")
        floats = {spec.dtype for spec in context.model.inputs if "float" in spec.dtype}
        if precision not in _HALF and floats <= {"float32"}:
            return f"the {value} kernel takes fp16 and bf16 only: add precision=bf16"
    return None


@applies(Attention, "torch", "torch-compile", unavailable=attention_unavailable)
def plan_attention(lever: Attention, context: Context) -> tuple[Step, ...]:
    """Allow this kernel and no other around the call."""
    allowed = Step(
        phase="load.call",
        function=with_attention,
        reads=("call",),
        writes="call",
        params={"kernel": lever.value},
    )
    if context.recipe.engine == "torch":
        return (allowed,)
    return (Step(phase="load.flags", function=set_no_trace_cache), allowed)


@portable
def set_no_trace_cache() -> None:
    """Trace anew instead of taking the traced graph from the cache on disk.

    That cache does not know which attention kernels were allowed (torch 2.13): it hands a
    graph that was traced for one kernel to a run that allows another.
    """
    import torch._functorch.config

    torch._functorch.config.enable_autograd_cache = False


@portable
def with_attention(call: Callable[[Any], Any], kernel: str) -> Callable[[Any], Any]:
    """Run the call with one kernel allowed; torch raises RuntimeError where it does not fit."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {
        "math": SDPBackend.MATH,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
    }[kernel]

    def attention_call(placed: Any) -> Any:
        with sdpa_kernel(backend):
            return call(placed)

    return attention_call
