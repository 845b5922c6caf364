"""What a torch module really executes: portable functions that read the running objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.torch_profile import (
    arithmetic_kernels,
    is_arithmetic,
    kernels_of,
    operators_of,
    profile_call,
    short_dtype,
)
from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@portable
def make_inspect(
    module: torch.nn.Module, source: dict[str, Any], device: str
) -> Callable[[Any, Any], dict[str, Any]]:
    """The pipeline's `inspect`: run one call under the profiler, and look at the module."""

    def inspect(pipeline: Any, placed: Any) -> dict[str, Any]:
        return inspect_module(pipeline, placed, module, source, device)[0]

    return inspect


@portable
def inspect_module(
    pipeline: Any, placed: Any, module: torch.nn.Module, source: dict[str, Any], device: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one call executes and how the module is stored: plain JSON, and the raw events."""
    import torch

    pipeline.call(placed)
    pipeline.synchronize()
    events = profile_call(lambda: pipeline.call(placed), device)
    operators = operators_of(events)
    plain = getattr(pipeline.call, "plain", None)
    if plain is not None:
        # A replayed graph calls no operators; what it recorded is this call.
        operators = operators_of(profile_call(lambda: plain(placed), device))
    kernels = kernels_of(events)
    if not any(o["arithmetic"] for o in operators):
        # A CUDA graph launches its kernels without the operators that recorded them.
        operators += arithmetic_kernels(kernels)
    weights = weights_of(module)
    flags = torch_flags(device)
    executed: dict[str, Any] = {
        "engine": "torch",
        "device": device.partition(":")[0],
        "arithmetic": sorted({o["dtype"] for o in operators if o["arithmetic"]}),
        "weights": weights["dtypes"],
        "layers_quantized": weights["num_layers_quantized"],
    }
    if "fp32" in executed["arithmetic"]:
        executed["fp32_precision"] = flags["fp32_precision"]
    report = {
        "executed": executed,
        "engine_version": torch.__version__,
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device != "cpu" else "cpu",
        "flags": flags,
        "operators": operators,
        "kernels": kernels,
        "weights": weights,
        "batch": batch_of(placed, source),
        "threads": threads_here(),
        "folded": sum(hasattr(m, "folded_into") for m in module.modules()),
        "layout": layout_of(module, events),
    }
    return report, events


@portable
def weights_of(module: torch.nn.Module) -> dict[str, Any]:
    """How the weights are stored: bytes by dtype, and how many layers are quantized.

    A layer is what owns a matrix or a kernel: every parameter of two dimensions or more.
    """
    import torch

    num_bytes: dict[str, int] = {}
    layers = quantized = elements = quantized_elements = 0
    by_scheme: dict[str, int] = {}
    seen = set()

    def add(tensor: torch.Tensor) -> None:
        if hasattr(tensor, "__tensor_flatten__"):
            for part in tensor.__tensor_flatten__()[0]:
                add(getattr(tensor, part))
            return
        name = short_dtype(str(tensor.dtype).removeprefix("torch."))
        num_bytes[name] = num_bytes.get(name, 0) + tensor.numel() * tensor.element_size()

    for tensor in [*module.parameters(), *module.buffers()]:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        add(tensor)
        inner = hasattr(tensor, "__tensor_flatten__")
        small = tensor.dtype in (torch.int8, torch.uint8) or tensor.dtype.itemsize < 1
        stored_small = inner or (small and tensor.dim() > 1) or "float8" in str(tensor.dtype)
        if tensor.dim() > 1 and (isinstance(tensor, torch.nn.Parameter) or stored_small):
            layers += 1
            elements += tensor.numel()
            if stored_small:
                quantized += 1
                quantized_elements += tensor.numel()
                kind = type(tensor).__name__ if inner else str(tensor.dtype)
                by_scheme[kind] = by_scheme.get(kind, 0) + 1
        elif isinstance(tensor, torch.nn.Parameter):
            elements += tensor.numel()
    return {
        "bytes": num_bytes,
        "dtypes": sorted(num_bytes),
        "num_layers": layers,
        "num_layers_quantized": quantized,
        "quantized_share": quantized_elements / elements if elements else None,
        "schemes": by_scheme,
    }


@portable
def torch_flags(device: str) -> dict[str, Any]:
    """The global flags as torch reports them now."""
    import torch

    leaves = (
        ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
        if device != "cpu"
        else ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
    )
    precision = {}
    for leaf in leaves:
        holder: Any = torch.backends
        for part in leaf.split("."):
            holder = getattr(holder, part, None)
        value = getattr(holder, "fp32_precision", None)
        # A leaf that nobody set computes in fp32.
        precision[leaf] = "ieee" if value == "none" else value
    return {
        "fp32_precision": precision,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@portable
def threads_here() -> dict[str, Any]:
    """The pool's size, and how its idle threads wait as this process was told to."""
    import os

    import torch

    return {
        "num": torch.get_num_threads(),
        "wait": os.environ.get("OMP_WAIT_POLICY", "").lower() or None,
    }


@portable
def batch_of(placed: Any, source: dict[str, Any]) -> int | None:
    """The size of the batch axis of the inputs that were placed, None where there is none."""
    import torch
    from torch.utils._pytree import tree_leaves

    axes = source.get("batch_axes", {})
    tensors = [leaf for leaf in tree_leaves(placed) if isinstance(leaf, torch.Tensor)]
    for spec, tensor in zip(source["inputs"], tensors, strict=False):
        axis = axes.get(spec["name"])
        if axis is not None and tensor.dim() > axis:
            return int(tensor.shape[axis])
    return None


@portable
def layout_of(module: torch.nn.Module, events: list[dict[str, Any]]) -> dict[str, Any]:
    """How many convolution weights, and inputs of convolutions that ran, are channels-last.

    A tensor whose strides fit both orders (one channel, or one pixel) is counted as neither.
    """

    def order(shape: list[int], strides: list[int]) -> str | None:
        if len(shape) != 4 or len(strides) != 4:
            return None
        _, channels, height, width = shape
        if channels == 1 or (height == 1 and width == 1):
            return None
        return "last" if strides[1] == 1 else "first"

    weights = [
        order(list(p.shape), list(p.stride())) for _, p in module.named_parameters() if p.dim() == 4
    ]
    inputs = []
    for event in events:
        if event["on_host"] and is_arithmetic(event["name"]) and "conv" in event["name"]:
            shapes, strides = event["shapes"], event["strides"]
            if shapes and strides:
                inputs.append(order(shapes[0], strides[0]))
    return {
        "weights_last": weights.count("last"),
        "weights_first": weights.count("first"),
        "inputs_last": inputs.count("last"),
        "inputs_first": inputs.count("first"),
    }
