"""Fusion on ONNX Runtime: its graph optimiser's level, and its fusions for transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
def whole_attention_opset() -> int:
    """The first operator set with Attention: scaled dot-product attention stays one operator.

    In the exporter's own, older one it is spelled out, with shapes computed at run time, in a
    pattern that ONNX Runtime's fusions do not know.
    """
    return 23


@portable
def widen_masks(model: Any) -> None:
    """Repeat attention masks of one row for every query: ONNX Runtime's Attention does not.

    Seen with 1.32: a mask of shape (batch, 1, 1, keys), which ONNX allows, is refused. To be
    removed when it is broadcast.
    """
    import numpy
    from onnx import helper, numpy_helper

    graph = model.graph
    nodes = []
    for node in graph.node:
        mask = node.input[3] if node.op_type == "Attention" and len(node.input) > 3 else ""
        if node.domain in ("", "ai.onnx") and mask:
            new = {part: f"{node.name}.{part}" for part in ("rows", "to", "mask")}
            ones = f"{node.name}.ones"
            graph.initializer.append(numpy_helper.from_array(numpy.ones(1, dtype="int64"), ones))
            nodes += [
                # The queries' axis of (batch, heads, queries, width).
                helper.make_node("Shape", [node.input[0]], [new["rows"]], start=2, end=3),
                helper.make_node("Concat", [new["rows"], ones], [new["to"]], axis=0),
                helper.make_node("Expand", [mask, new["to"]], [new["mask"]]),
            ]
            node.input[3] = new["mask"]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


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
    widen_masks(model)
    if all(entry.domain != "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    write_graph(model, graph)


@applies(Fusion, "onnxruntime", unavailable=fusion_unavailable, values=_VALUES)
def plan_fusion(lever: Fusion, context: Context) -> tuple[Step, ...]:
    """A level is an option of the session; the transformer fusions change the graph."""
    if lever.value == "transformer":
        fuse = Step(phase="build.fuse", function=fuse_transformer, reads=("graph",))
        if context.model.kind in ("onnx", "torchscript"):
            return (fuse,)
        return Step(phase="build.attention", function=whole_attention_opset, writes="opset"), fuse
    return (
        Step(
            phase="load.fusion",
            function=set_optimization,
            reads=("options",),
            params={"level": lever.value},
        ),
    )
