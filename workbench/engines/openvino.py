"""The engine OpenVINO: an exported graph, compiled for the CPU and served without torch."""

from __future__ import annotations

from workbench.engines.engine import Engine, register
from workbench.engines.onnxruntime import export_steps, missing_to_export
from workbench.engines.openvino_evidence import read_evidence
from workbench.engines.openvino_session import (
    compile_model,
    compile_settings,
    compiled_pipeline,
    convert_graph,
)
from workbench.levers.step import Context, Step


def unavailable(context: Context) -> str | None:
    """Why OpenVINO cannot run this model here: the device or a missing package."""
    if context.device.kind != "cpu":
        return f"OpenVINO has kernels for CPUs; this is {context.device.reading}"
    missing = [name for name in ("openvino",) if not context.has(name)]
    missing += missing_to_export(context)
    if missing:
        return f"{', '.join(missing)} not installed: pip install 'accel-workbench[run,openvino]'"
    return None


def steps(context: Context) -> tuple[Step, ...]:
    """Export as for ONNX Runtime, convert, compile for the CPU.

    Through ONNX and not `openvino.convert_model` on the module: the names, the free axes and
    the outputs that are no tensors are then those that ONNX Runtime's export was tested with,
    one graph feeds both engines, and a model that came as ONNX takes the same way.
    """
    num_threads = context.settings.get("num_threads")
    return (
        *export_steps(context),
        Step(phase="build.convert", function=convert_graph, reads=("graph", "out_dir")),
        Step(
            phase="load.settings",
            function=compile_settings,
            writes="settings",
            params={"num_threads": num_threads},
        ),
        Step(
            phase="load.compile",
            function=compile_model,
            reads=("out_dir", "settings"),
            writes="compiled",
        ),
        Step(
            phase="load.pipeline",
            function=compiled_pipeline,
            reads=("compiled", "settings", "out_dir"),
            writes="pipeline",
        ),
    )


ENGINE = register(
    Engine(
        name="openvino",
        title="OpenVINO",
        help="The model exported as a graph, compiled for the CPU by OpenVINO.",
        accepts=("factory", "exported", "torchscript", "onnx"),
        build_phases=(
            "build.open",
            "build.opset",
            "build.graph",
            "build.note",
            "build.convert",
            "build.quantize",
        ),
        load_phases=(
            "load.settings",
            "load.threads",
            "load.precision",
            "load.quantize",
            "load.compile",
            "load.pipeline",
        ),
        steps=steps,
        unavailable=unavailable,
        read_evidence=read_evidence,
        serves_with_torch=False,
        tool="openvino",
        builds_with_torch=True,
        serving=("openvino", "numpy"),
        modules=("numpy", "openvino"),
    )
)
