"""An ONNX Runtime session and its pipeline. Portable, and free of torch and onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.onnx_profile import inspect_session
from workbench.engines.pipeline import Pipeline
from workbench.engines.source import checked_arrays, load_processing, read_source
from workbench.levers.step import portable

if TYPE_CHECKING:
    import onnxruntime


@portable
def session_options(num_threads: int | None, wait: str) -> onnxruntime.SessionOptions:
    """Options with a thread count of our own, and with idle threads that wait as asked.

    ONNX Runtime's own default pins threads to cores and lets them spin, which costs other
    work on the machine several times over. None counts the cores this process may use.
    """
    import os

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if num_threads is None:
        usable = getattr(os, "sched_getaffinity", None)
        num_threads = len(usable(0)) if usable else os.cpu_count() or 1
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    spinning = "1" if wait == "active" else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    # Lets get_provider_graph_assignment_info() say which provider got which operator.
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


@portable
def open_session(
    out_dir: str, options: onnxruntime.SessionOptions, providers: list[Any]
) -> onnxruntime.InferenceSession:
    """Open `model.onnx`. A failure says in a sentence what ONNX Runtime lacks and where.

    Raises RuntimeError. A provider that is not there is left out, not failed over: what the
    session has is read back from it.
    """
    import re
    from pathlib import Path

    import onnxruntime

    available = onnxruntime.get_available_providers()
    usable = [entry for entry in providers if entry[0] in available]
    usable = usable or [("CPUExecutionProvider", {})]
    path = str(Path(out_dir) / "model.onnx")
    try:
        return onnxruntime.InferenceSession(path, options, providers=usable)
    except Exception as error:
        # ONNX Runtime's exceptions share no base class; its texts are all there is to read.
        text = str(error)
        version = onnxruntime.__version__
        lacking = re.search(r"Could not find an implementation for (\w+)\((\d+)\)", text)
        too_new = re.search(
            r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text
        )
        opset = re.search(
            r"Opset (\d+) is under development.*?(?:Current official support for|till) .*?(\d+)",
            text,
            re.S,
        )
        if lacking:
            dtype = graph_dtype(out_dir)
            where = usable[0][0].removesuffix("ExecutionProvider")
            raise RuntimeError(
                f"{dtype} not supported by ONNX Runtime {where}: {lacking[1]} "
                f"(operator set {lacking[2]}, onnxruntime {version})"
            ) from error
        if too_new:
            raise RuntimeError(
                f"the file has ONNX IR version {too_new[1]}; onnxruntime {version} reads up to "
                f"{too_new[2]}. Install a newer onnxruntime, or save the model with an older one"
            ) from error
        if opset:
            raise RuntimeError(
                f"the file has operator set {opset[1]}; onnxruntime {version} supports up to "
                f"{opset[2]}. Install a newer onnxruntime, or export with an older opset_version"
            ) from error
        raise RuntimeError(f"onnxruntime {version} cannot open the graph: {text}") from error


@portable
def graph_dtype(out_dir: str) -> str:
    """The narrowest format among the weights of `graph.json`: what a kernel was lacking for."""
    import json
    from pathlib import Path

    held = json.loads((Path(out_dir) / "graph.json").read_text(encoding="utf-8"))["weights"]
    order = ("int4", "fp8", "int8", "bf16", "fp16", "fp64", "fp32")
    return next((dtype for dtype in order if held.get(dtype)), "this graph")


@portable
def session_pipeline(
    session: onnxruntime.InferenceSession,
    options: onnxruntime.SessionOptions,
    providers: list[Any],
    out_dir: str,
) -> Pipeline:
    """Serve a session: inputs and outputs are bound, so that a call copies nothing.

    A call on the same placed inputs writes its results over those of the call before.
    """
    import json
    from pathlib import Path

    import numpy
    import onnxruntime

    specs = read_source(out_dir)["inputs"]
    listed = json.loads((Path(out_dir) / "outputs.json").read_text(encoding="utf-8"))
    known = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    on_gpu = session.get_providers()[0] != "CPUExecutionProvider"
    wanted = dict(providers).get(session.get_providers()[0], {})
    device = "cuda" if on_gpu else "cpu"
    device_id = int(wanted.get("device_id", 0))
    preprocess, postprocess = load_processing(out_dir)

    def place(inputs: dict[str, Any]) -> Any:
        binding = session.io_binding()
        values = {}
        for name, array in checked_arrays(inputs, specs).items():
            # An input that the graph does not use is not among its inputs.
            if name in known:
                value = onnxruntime.OrtValue.ortvalue_from_numpy(
                    numpy.ascontiguousarray(array).reshape(array.shape), device, device_id
                )
                binding.bind_ortvalue_input(name, value)
                values[name] = value
        for name in names:
            binding.bind_output(name, device, device_id)
        return binding, values

    run = session.run_with_iobinding

    def call(placed: Any) -> Any:
        run(placed[0])
        return placed[0]

    def fetch(binding: Any) -> dict[str, Any]:
        arrays = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
        results: dict[str, Any] = {}
        for output in listed:
            if "graph" in output:
                results[output["name"]] = numpy.array(arrays[output["graph"]])
            elif output["constant"] is None:
                results[output["name"]] = None
            else:
                dtype, value = output["constant"]
                results[output["name"]] = numpy.asarray(value, dtype=dtype)
        return results

    def inspect(_pipeline: Pipeline, placed: Any) -> dict[str, Any]:
        return inspect_session(session, options, providers, placed[1], out_dir)

    return Pipeline(
        place=place,
        call=call,
        fetch=fetch,
        synchronize=lambda: None,  # a run returns when the device has finished
        inspect=inspect,
        memory=dict,
        preprocess=preprocess,
        postprocess=postprocess,
    )
