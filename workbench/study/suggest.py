"""A sensible first set of variants for a model on a device, out of the support table."""

from __future__ import annotations

from dataclasses import replace

from workbench.core.errors import RecipeError
from workbench.core.recipe import Recipe
from workbench.engines.table import check_available
from workbench.levers.step import Context
from workbench.levers.table import warnings

# In the order in which they are worth trying: what usually wins, then what teaches.
_CPU = (
    "engine=onnxruntime",
    "engine=onnxruntime,quantization=int8-dynamic",
    "engine=onnxruntime,quantization=int8-static",
    "engine=openvino",
    "engine=openvino,quantization=int8-static",
    "engine=torch-compile",
    "engine=torch-compile,fusion=freezing",
    "engine=onnxruntime,batch=8",
    "engine=torch,layout=channels-last",
    "engine=torch,fusion=conv-bn",
    "engine=onnxruntime,threads=1",
    "engine=onnxruntime,fusion=off",
    "engine=torch,quantization=int8-dynamic",
    "engine=torch,precision=bf16",
    "engine=torch,batch=8",
    "engine=torch,threads=1",
    "engine=onnxruntime,fusion=transformer",
    "engine=onnxruntime,fusion=basic",
    "engine=onnxruntime,batch=32",
)
_GPU = (
    "engine=torch-compile,fusion=reduce-overhead",
    "engine=torch,precision=bf16-autocast",
    "engine=torch,precision=fp16",
    "engine=torch-compile,precision=bf16",
    "engine=torch-compile,fusion=max-autotune",
    "engine=torch-compile",
    "engine=onnxruntime",
    "engine=onnxruntime,precision=fp16",
    "engine=torch,precision=tf32",
    "engine=torch-compile,quantization=int8-weights",
    "engine=torch-compile,precision=bf16,batch=8",
    "engine=torch,batch=8",
    "engine=torch,precision=fp32",
    "engine=torch,attention=flash",
    "engine=torch,layout=channels-last",
)
NUM_VARIANTS = 12


def suggest(context: Context, num: int = NUM_VARIANTS) -> list[Recipe]:
    """Up to `num` recipes that can be had here, the baseline's own left out.

    Those that come with a warning (emulated on this CPU, say) stand last.
    """
    wanted = _GPU if context.device.kind == "cuda" else _CPU
    clear: list[Recipe] = []
    warned: list[Recipe] = []
    for spec in wanted:
        recipe = Recipe.parse(spec)
        there = replace(context, recipe=recipe)
        if recipe == context.recipe or not _is_available(there):
            continue
        (warned if warnings(there) else clear).append(recipe)
    return [*clear, *warned][:num]


def _is_available(context: Context) -> bool:
    try:
        check_available(context)
    except RecipeError:
        return False
    return True
