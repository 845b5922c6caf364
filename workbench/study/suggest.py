"""A sensible first set of variants for a model on a device, out of the support table."""

from __future__ import annotations

from dataclasses import replace

from workbench.core.device import Host
from workbench.core.errors import RecipeError
from workbench.core.model import BatchClaim, Model, PreparedModel, TensorSpec
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.table import check_available
from workbench.levers.step import Context

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
    """Up to `num` recipes that can be had here, the baseline's own left out."""
    wanted = _GPU if context.device.kind == "cuda" else _CPU
    found = [Recipe.parse(spec) for spec in wanted]
    return [
        recipe
        for recipe in found
        if recipe != context.recipe and _is_available(replace(context, recipe=recipe))
    ][:num]


def context_of(host: Host, prepared: PreparedModel, model: Model | None = None) -> Context:
    """The context of the baseline's recipe on the host's first device."""
    load_all()
    kind = model.kind if model is not None else prepared.kind
    recipe = Recipe(engine="onnxruntime" if kind == "onnx" else "torch")
    settings = model.settings if model is not None else {}
    return Context(
        host=host, device=host.devices[0], model=prepared, recipe=recipe, settings=settings
    )


def any_model() -> PreparedModel:
    """A model that rules nothing out: what a device offers before a model is known."""
    tensor = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 64, 64))
    kinds = ("Conv2d", "BatchNorm2d", "Linear", "LayerNorm", "MultiheadAttention")
    return PreparedModel(
        kind="factory",
        origin="any model",
        inputs=(tensor,),
        outputs=(TensorSpec(name="output", dtype="float32", shape=("batch", 10)),),
        batch=BatchClaim(axes={"x": 0}, dynamic=True, example_size=1, verified_sizes=(2, 3)),
        num_parameters=None,
        num_bytes=None,
        digest="",
        has_calibration=True,
        layers=dict.fromkeys(kinds, 1),
    )


def _is_available(context: Context) -> bool:
    try:
        check_available(context)
    except RecipeError:
        return False
    return True
