"""Fusion on ONNX Runtime: its graph optimiser's level, and its fusions for transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.levers.fusion import Fusion
from workbench.levers.onnx_file import write_graph
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    import onnxruntime

_VALUES = ("off", "basic", "extended", "all", "transformer")


def fusion_unavailable(value: str, context: Context) -> str | None:
    """Why a fusion cannot be had: it is another engine's, or the model is no transformer."""
    if value not in _VALUES:
        return f"{value} is no fusion of ONNX Runtime; it has {', '.join(_VALUES)}"
    layers = context.model.layers
    attention = any("attention" in name.lower() or "Softmax" in name for name in layers)
    if value == "transformer" and layers and not (attention or "LayerNorm" in layers):
        found = ", ".join(list(layers)[:4])
        return f"the model has no attention and no layer normalisation, only {found}"
    return None


@portable
def set_optimization(options: onnxruntime.SessionOptions, level: str) -> None:
    """How far a session that is yet to be opened optimises its graph."""
    import onnxruntime

    levels = {
        "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    options.graph_optimization_level = levels[level]


@portable
def fuse_transformer(graph: str) -> None:
    """Merge attention, layer normalisation and GELU into ONNX Runtime's own operators.

    The number of heads and the hidden size are found in the graph. Its inputs keep their
    types.
    """
    import contextlib
    import io
    import logging
    import warnings

    from onnx import helper
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions("bert")
    # Fuses the embedding as well only where ids are int32, which would change the inputs.
    options.enable_embed_layer_norm = False
    logger = logging.getLogger("onnxruntime.transformers")
    level = logger.level
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            fused = optimize_model(
                graph,
                model_type="bert",
                num_heads=0,
                hidden_size=0,
                opt_level=0,
                optimization_options=options,
            )
    finally:
        logging.disable(logging.NOTSET)
        logger.setLevel(level)
    model = fused.model
    if all(entry.domain != "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    write_graph(model, graph)


@applies(Fusion, "onnxruntime", unavailable=fusion_unavailable, values=_VALUES)
def plan_fusion(lever: Fusion, _context: Context) -> tuple[Step, ...]:
    """A level is an option of the session; the transformer fusions rewrite the graph."""
    if lever.value == "transformer":
        return (Step(phase="build.fuse", function=fuse_transformer, reads=("graph",)),)
    return (
        Step(
            phase="load.fusion",
            function=set_optimization,
            reads=("options",),
            params={"level": lever.value},
        ),
    )
