"""A compiled OpenVINO model and its pipeline. Portable, and free of torch and onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.openvino_profile import inspect_compiled
from workbench.engines.pipeline import Pipeline
from workbench.engines.source import checked_arrays, load_processing, read_source
from workbench.levers.step import portable

if TYPE_CHECKING:
    import openvino


@portable
def convert_graph(graph: str, out_dir: str) -> None:
    """Rewrite the exported `model.onnx` as OpenVINO's own `model.xml` and `model.bin`.

    Weights keep their format: OpenVINO would round them to fp16 on saving.
    """
    from pathlib import Path

    import onnx
    import openvino
    from onnx.external_data_helper import uses_external_data

    model = openvino.Core().read_model(graph)
    openvino.save_model(model, str(Path(out_dir) / "model.xml"), compress_to_fp16=False)
    del model  # it may hold the file mapped
    held = onnx.load(graph, load_external_data=False).graph.initializer
    beside = {
        entry.value
        for tensor in held
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in (*beside, Path(graph).name):
        (Path(out_dir) / name).unlink(missing_ok=True)


@portable
def compile_settings(num_threads: int | None) -> dict[str, Any]:
    """One request at a time, in fp32, with threads that are not pinned to cores.

    Without a hint OpenVINO computes in bf16 wherever a CPU has it, which is a lever here;
    pinned threads wait for their core while other work on the machine has it.
    """
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    if num_threads is not None:
        settings["INFERENCE_NUM_THREADS"] = num_threads
    return settings


@portable
def compile_model(out_dir: str, settings: dict[str, Any]) -> openvino.CompiledModel:
    """Compile `model.xml` for the CPU."""
    from pathlib import Path

    import openvino

    core = openvino.Core()
    return core.compile_model(str(Path(out_dir) / "model.xml"), "CPU", settings)


@portable
def compiled_pipeline(
    compiled: openvino.CompiledModel, settings: dict[str, Any], out_dir: str
) -> Pipeline:
    """Serve a compiled model: placed inputs are a request of their own, which copies nothing.

    A call on the same placed inputs writes its results over those of the call before.
    """
    import json
    from pathlib import Path

    import numpy
    import openvino

    specs = read_source(out_dir)["inputs"]
    listed = json.loads((Path(out_dir) / "outputs.json").read_text(encoding="utf-8"))
    known = {name for port in compiled.inputs for name in port.names}
    preprocess, postprocess = load_processing(out_dir)

    def place(inputs: dict[str, Any]) -> Any:
        request = compiled.create_infer_request()
        for name, array in checked_arrays(inputs, specs).items():
            # An input that the graph does not use is not among its inputs.
            if name in known:
                # A copy that the tensor owns: shared memory would not outlive the array.
                value = numpy.ascontiguousarray(array).reshape(array.shape)
                request.set_tensor(name, openvino.Tensor(value, shared_memory=False))
        return request

    def call(request: Any) -> Any:
        request.infer(share_outputs=True)
        return request

    def fetch(request: Any) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for output in listed:
            if "graph" in output:
                results[output["name"]] = numpy.array(request.get_tensor(output["graph"]).data)
            elif output["constant"] is None:
                results[output["name"]] = None
            else:
                dtype, value = output["constant"]
                results[output["name"]] = numpy.asarray(value, dtype=dtype)
        return results

    def inspect(_pipeline: Pipeline, request: Any) -> dict[str, Any]:
        return inspect_compiled(compiled, settings, request, out_dir)

    return Pipeline(
        place=place,
        call=call,
        fetch=fetch,
        synchronize=lambda: None,
        inspect=inspect,
        memory=dict,
        preprocess=preprocess,
        postprocess=postprocess,
    )
