"""The engine ONNX Runtime: an exported graph, served without torch."""

from __future__ import annotations

from workbench.core.json import Json
from workbench.engines.engine import Engine, register
from workbench.engines.onnx_evidence import read_evidence
from workbench.engines.onnx_export import export_graph, exporter_opset, open_traced
from workbench.engines.onnx_graph import copy_graph, describe_graph, note_exported
from workbench.engines.onnx_session import open_session, session_options, session_pipeline
from workbench.engines.torch_source import open_module
from workbench.levers.onnx_provider import provider_of, provider_step, provider_unavailable
from workbench.levers.step import Context, Step

# Distributions that install the module onnxruntime.
_FLAVOURS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")


def batch_of(context: Context) -> int | None:
    """The rows of a call that the recipe asks for, or None for the example's."""
    size = context.recipe.get("batch")
    return int(size) if size else context.model.batch.example_size


def export_steps(context: Context) -> tuple[Step, ...]:
    """The steps that leave `model.onnx`, and what it held before any lever changed it."""
    note = Step(phase="build.note", function=note_exported, reads=("graph", "out_dir"))
    if context.model.kind == "onnx":
        copied = Step(
            phase="build.graph",
            function=copy_graph,
            reads=("source_dir", "out_dir"),
            writes="graph",
        )
        return copied, note
    dynamic = context.model.batch.dynamic
    params: dict[str, Json] = {"dynamic": dynamic, "batch_size": batch_of(context)}
    opened = Step(
        phase="build.open",
        function=open_traced if context.model.kind == "torchscript" else open_module,
        reads=("source_dir",),
        writes="module",
    )
    exported = Step(
        phase="build.graph",
        function=export_graph,
        reads=("module", "source_dir", "out_dir", "opset"),
        writes="graph",
        params=params,
    )
    opset = Step(phase="build.opset", function=exporter_opset, writes="opset")
    return opened, opset, exported, note


def unavailable(context: Context) -> str | None:
    """Why ONNX Runtime cannot run this model here: a missing package or provider."""
    if not any(context.has(name) for name in _FLAVOURS):
        return "onnxruntime is not installed"
    missing = missing_to_export(context)
    if missing:
        return f"exporting the model needs {', '.join(missing)}, not installed here"
    return provider_unavailable(provider_of(context), context)


def missing_to_export(context: Context) -> tuple[str, ...]:
    """The distributions that turning this model into a graph needs and this host lacks."""
    needed = ("onnx",) if context.model.kind == "onnx" else ("onnx", "onnxscript", "torch")
    return tuple(name for name in needed if not context.has(name))


def steps(context: Context) -> tuple[Step, ...]:
    """Export or copy the graph, describe it, open it with the device's own provider."""
    num_threads = context.settings.get("num_threads")
    return (
        *export_steps(context),
        Step(phase="build.finish", function=describe_graph, reads=("graph", "out_dir")),
        Step(
            phase="load.options",
            function=session_options,
            writes="options",
            params={"num_threads": num_threads, "wait": "passive"},
        ),
        provider_step("cuda" if context.device.kind == "cuda" else "cpu", context, "load.options"),
        Step(
            phase="load.session",
            function=open_session,
            reads=("out_dir", "options", "providers"),
            writes="session",
        ),
        Step(
            phase="load.pipeline",
            function=session_pipeline,
            reads=("session", "options", "providers", "out_dir"),
            writes="pipeline",
        ),
    )


ENGINE = register(
    Engine(
        name="onnxruntime",
        title="ONNX Runtime",
        help="The model exported as an ONNX graph, optimised and run without PyTorch.",
        accepts=("factory", "exported", "torchscript", "onnx"),
        build_phases=(
            "build.open",
            "build.opset",
            "build.attention",
            "build.graph",
            "build.note",
            "build.fuse",
            "build.precision",
            "build.quantize",
            "build.finish",
        ),
        load_phases=(
            "load.options",
            "load.threads",
            "load.fusion",
            "load.provider",
            "load.precision",
            "load.session",
            "load.pipeline",
        ),
        steps=steps,
        unavailable=unavailable,
        read_evidence=read_evidence,
        serves_with_torch=False,
        tool="onnxruntime",
        builds_with_torch=True,
        serving=("onnxruntime", "numpy"),
        modules=("numpy", "onnxruntime"),
    )
)
