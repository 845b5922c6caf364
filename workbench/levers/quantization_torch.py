"""Quantization on the torch engines, through torchao's `quantize_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.levers.precision_torch import cast_inputs, cast_module
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    import torch

# These multiply bf16: weights and inputs are cast where the recipe does not say so already.
_NEEDS_BF16 = ("int4-weights", "fp8")


def quantization_unavailable(value: str, context: Context) -> str | None:
    """Why torchao cannot quantize this model on this device in that way."""
    device, recipe = context.device, context.recipe
    if not context.has("torchao"):
        return "torchao is not installed (pip install accel-workbench[torchao])"
    if value == "int8-static":
        return static_unavailable(context)
    if context.model.kind == "torchscript":
        return "a TorchScript module is compiled already: its layers cannot be replaced"
    if value in _NEEDS_BF16 and recipe.get("precision") not in (None, "bf16"):
        return f"{value} multiplies bf16, and the recipe says precision={recipe.get('precision')}"
    if value == "int4-weights":
        if device.kind != "cuda":
            return f"torchao's int4 kernels are for NVIDIA GPUs; this is {device.reading}"
        if (device.capability or (0, 0)) < (8, 0):
            return f"int4 needs compute capability 8.0; this is {device.reading}"
    if value == "fp8":
        if (device.capability or (0, 0)) < (8, 9):
            return f"fp8 needs compute capability 8.9; this is {device.reading}"
        if recipe.engine == "torch":
            return "torchao's row-wise fp8 needs torch.compile: take engine=torch-compile"
    return None


def static_unavailable(context: Context) -> str | None:
    """Why static int8 cannot be had on torch here."""
    recipe, device = context.recipe, context.device
    if recipe.engine == "torch":
        return (
            "eager torch has no int8 convolutions and would compute static int8 in fp32 with "
            "rounding in between: take engine=torch-compile"
        )
    if device.kind != "cpu":
        return f"Inductor lowers static int8 on x86 CPUs only; this is {device.reading}"
    if not any(name.startswith(("avx", "amx")) for name in device.instruction_sets):
        return f"Inductor lowers static int8 on x86 CPUs only; this is {device.reading}"
    if context.model.kind == "torchscript":
        return "a TorchScript module cannot be exported as the graph that is quantized"
    if not context.model.has_calibration:
        return "static int8 needs calibration rows, and the model came without any"
    if recipe.get("precision") not in (None, "fp32"):
        return f"static int8 starts from fp32, the recipe says precision={recipe.get('precision')}"
    if recipe.get("fusion") is not None:
        return f"static int8 brings its own fusion, the recipe says fusion={recipe.get('fusion')}"
    return None


def quantization_warnings(value: str, context: Context) -> tuple[str, ...]:
    """Says that this CPU multiplies int8 without instructions made for it."""
    sets = context.device.instruction_sets
    if context.device.kind != "cpu" or not value.startswith("int8"):
        return ()
    if any("vnni" in name or name == "amx_int8" for name in sets):
        return ()
    said = [
        f"{context.device.reading} has no VNNI instructions: small or few layers in int8 may be "
        "slower than in fp32"
    ]
    recipe = context.recipe
    if value == "int8-dynamic" and recipe.get("fusion") in ("freezing", "max-autotune"):
        said.append(
            "without VNNI the kernels that Inductor packs frozen int8 weights for add products in "
            "16 bits, which large ones overflow: look at the quality"
        )
    return tuple(said)


@applies(
    Quantization,
    "torch",
    "torch-compile",
    unavailable=quantization_unavailable,
    warnings=quantization_warnings,
)
def plan_quantization(lever: Quantization, context: Context) -> tuple[Step, ...]:
    """Replace the weights of linear layers in both build and load; see `opening_steps`."""
    if lever.value == "int8-static":
        from workbench.levers.static_int8_torch import plan_static

        return plan_static(context)
    phases = ("build.convert", "load.convert")
    steps: list[Step] = []
    for phase in phases if context.model.kind == "factory" else phases[1:]:
        if lever.value in _NEEDS_BF16 and context.recipe.get("precision") is None:
            steps.append(
                Step(
                    phase=phase,
                    function=cast_module,
                    reads=("module",),
                    writes="module",
                    params={"dtype": "bfloat16"},
                )
            )
        steps.append(
            Step(
                phase=phase,
                function=quantize_weights,
                reads=("module",),
                writes="module",
                params={"scheme": lever.value, "device": context.device.id},
            )
        )
    if lever.value in _NEEDS_BF16 and context.recipe.get("precision") is None:
        steps.append(
            Step(
                phase="load.place",
                function=cast_inputs,
                reads=("place",),
                writes="place",
                params={"dtype": "bfloat16"},
            )
        )
    return tuple(steps)


@portable
def quantize_weights(module: torch.nn.Module, scheme: str, device: str) -> torch.nn.Module:
    """Quantize the weights of linear layers with torchao; everything else stays as it is."""
    import torch
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int4WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        PerRow,
        quantize_,
    )

    if scheme == "int8-dynamic":
        config = Int8DynamicActivationInt8WeightConfig()
    elif scheme == "int8-weights":
        config = Int8WeightOnlyConfig()
    elif scheme == "int4-weights":
        # The one packing whose kernel is PyTorch's own; the others need another package.
        config = Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d")
    else:
        config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    if not isinstance(module, torch.fx.GraphModule):
        quantize_(module, config, device=device)
        return module
    # An exported graph has no linear layers, only their weights: each borrows one.
    names = linear_weights(module)
    for name in names:
        owner, _, attribute = name.rpartition(".")
        weight = module.get_parameter(name)
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = weight
        holder = torch.nn.Sequential(layer)
        quantize_(holder, config, device=device)
        setattr(module.get_submodule(owner), attribute, holder[0].weight)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.linear.default and str(node.args[1].target) in names:
            # torch.compile sees through the function to the quantized weight, not through
            # the operator.
            node.target = torch.nn.functional.linear
    module.recompile()
    return module


@portable
def linear_weights(module: torch.fx.GraphModule) -> list[str]:
    """Names of the parameters that a graph uses as linear layers' weights, and as nothing else."""
    import torch

    linear: set[str] = set()
    other: set[str] = set()
    for node in module.graph.nodes:
        for position, argument in enumerate(node.args):
            if getattr(argument, "op", None) == "get_attr":
                as_weight = node.target is torch.ops.aten.linear.default and position == 1
                (linear if as_weight else other).add(str(argument.target))
    names = {name for name, _ in module.named_parameters()}
    return sorted((linear - other) & names)
