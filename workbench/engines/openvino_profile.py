"""What a compiled OpenVINO model really executes: its runtime graph and counters. Portable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.step import portable

if TYPE_CHECKING:
    import openvino


@portable
def inspect_compiled(
    compiled: openvino.CompiledModel,
    settings: dict[str, Any],
    request: Any,
    out_dir: str,
) -> dict[str, Any]:
    """Read the settings and the runtime graph of the compiled model back, and time its nodes.

    Nodes are the running model's; their times are of a second one, compiled alike with
    counters, which would slow the first. "executed" holds what must be the same wherever
    the artifact runs.
    """
    import json
    from pathlib import Path

    import openvino

    axes = json.loads((Path(out_dir) / "source.json").read_text(encoding="utf-8"))["batch_axes"]
    rows = [
        given.shape[axes[name]]
        for port, given in zip(compiled.inputs, request.input_tensors, strict=True)
        for name in port.names
        if name in axes
    ]
    nodes = runtime_nodes(compiled)
    times_us, merged = time_nodes(settings, request, out_dir)
    for node in nodes:
        node["us"] = times_us.get(node["name"], 0.0)
    layers = [node for node in nodes if node["weights"] is not None]
    formats = sorted({node["dtype"] for node in nodes if node["heavy"]})
    return {
        "batch": rows[0] if rows else None,
        "fixed_batch": any(
            port.partial_shape[axes[name]].is_static
            for port in compiled.inputs
            for name in port.names
            if name in axes
        ),
        "engine_version": openvino.__version__,
        "devices": compiled.get_property("EXECUTION_DEVICES"),
        "precision": compiled.get_property("INFERENCE_PRECISION_HINT").to_string(),
        "num_threads": compiled.get_property("INFERENCE_NUM_THREADS"),
        "num_streams": compiled.get_property("NUM_STREAMS"),
        "nodes": nodes,
        "merged": merged,
        "constants": constant_elements(compiled),
        "executed": {
            "devices": compiled.get_property("EXECUTION_DEVICES"),
            "formats": formats,
            "layers": len(layers),
        },
    }


@portable
def runtime_nodes(compiled: openvino.CompiledModel) -> list[dict[str, Any]]:
    """Every node that executes: name, type, kernel, format computed in, weights' format.

    A format is read from what goes in. Integers on both sides multiply as integers; integer
    weights beside floats are turned into floats first ("int8-weights").
    """
    heavy_types = ("Convolution", "FullyConnected", "MatMul", "Attention", "RNN", "Deconvolution")
    moves = ("Transpose", "Reshape", "Reorder", "Convert")
    short = {
        "f32": "fp32",
        "f16": "fp16",
        "bf16": "bf16",
        "f64": "fp64",
        "i8": "int8",
        "u8": "int8",
        "i4": "int4",
        "u4": "int4",
    }
    nodes = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        said = node.get_rt_info()
        kind = str(said["layerType"].value)
        kernel = str(said["primitiveType"].value)
        if kind in ("Input", "Output", "Const", "Parameter", "Result"):
            continue
        goes_in = [port.get_element_type().to_string() for port in node.inputs()]
        heavy = any(word in kind for word in heavy_types)
        ran = str(said["runtimePrecision"].value)
        dtype = short.get(ran, ran)
        weights = None
        if heavy and len(goes_in) > 1:
            before = node.input_value(1).get_node()
            while str(before.get_rt_info()["layerType"].value) in moves:
                before = before.input_value(0).get_node()
            is_layer = str(before.get_rt_info()["layerType"].value) == "Const"
            weights = short.get(goes_in[1], goes_in[1]) if is_layer else None
            into = short.get(goes_in[0], goes_in[0])
            if into == "int8":
                dtype = "int8"
            elif weights in ("int8", "int4"):
                dtype = f"{weights}-weights"
        nodes.append(
            {
                "name": node.get_friendly_name(),
                "type": kind,
                "kernel": kernel,
                "dtype": dtype,
                "heavy": heavy,
                "weights": weights,
            }
        )
    return nodes


@portable
def constant_elements(compiled: openvino.CompiledModel) -> dict[str, int]:
    """Elements of the constants with two axes or more that the running model holds, by format.

    Scales of quantized weights are left out.
    """
    elements: dict[str, int] = {}
    scales = set()
    nodes = compiled.get_runtime_model().get_ordered_ops()
    for node in nodes:
        first = {"FullyConnected": 2, "Gather": 3}.get(str(node.get_rt_info()["layerType"].value))
        if first is not None:
            for port in range(first, node.get_input_size()):
                scales.add(node.input_value(port).get_node().get_friendly_name())
    for node in nodes:
        if str(node.get_rt_info()["layerType"].value) != "Const":
            continue
        shape = node.get_output_partial_shape(0)
        if node.get_friendly_name() in scales or not shape.is_static:
            continue
        sizes = list(shape.to_shape())
        if sum(size > 1 for size in sizes) < 2:
            continue
        num = 1
        for size in sizes:
            num *= size
        held = node.get_output_element_type(0).to_string()
        elements[held] = elements.get(held, 0) + num
    return elements


@portable
def time_nodes(
    settings: dict[str, Any], request: Any, out_dir: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Microseconds of each node in a call after the first, and operators merged into others.

    OpenVINO's counters are means from the first call on, in which kernels are generated; its
    part is taken out.
    """
    import time
    from collections import Counter
    from pathlib import Path

    import openvino

    counted = openvino.Core().compile_model(
        str(Path(out_dir) / "model.xml"), "CPU", {**settings, "PERF_COUNT": True}
    )
    own = counted.create_infer_request()
    for port, given in zip(own.model_inputs, request.input_tensors, strict=True):
        own.set_tensor(port, given)
    own.infer()
    first = {info.node_name: info.real_time.total_seconds() for info in own.profiling_info}
    start_s = time.perf_counter()
    num = 0
    while num < 3 or (time.perf_counter() - start_s < 0.2 and num < 50):
        own.infer()
        num += 1
        if time.perf_counter() - start_s > 10:
            break
    times_us = {}
    merged: dict[str, int] = Counter()
    for info in own.profiling_info:
        name, mean_s = info.node_name, info.real_time.total_seconds()
        rest_s = (mean_s * (num + 1) - first.get(name, 0.0)) / num
        times_us[name] = max(rest_s, 0.0) * 1e6
        if info.exec_type == "undef":
            merged[info.node_type] += 1
    return times_us, dict(merged)
