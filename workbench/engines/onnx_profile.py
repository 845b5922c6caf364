"""What an ONNX Runtime session really executes: its providers, and its own profile. Portable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.step import portable

if TYPE_CHECKING:
    import onnxruntime


@portable
def inspect_session(
    session: onnxruntime.InferenceSession,
    options: onnxruntime.SessionOptions,
    providers: list[Any],
    values: dict[str, Any],
    out_dir: str,
) -> dict[str, Any]:
    """Read providers, threads and options back, and profile one call by operator.

    `values` are the placed inputs by name. "executed" holds what must be the same wherever
    the artifact runs.
    """
    import json
    from collections import Counter
    from pathlib import Path

    import onnxruntime

    read_back = session.get_session_options()
    assigned: dict[str, int] = Counter()
    for part in session.get_provider_graph_assignment_info():
        assigned[part.ep_name] += len(part.get_nodes())
    used = session.get_providers()
    events, num_calls = profile_calls(options, used, providers, values, out_dir)
    operators = tabulate_operators(events, num_calls)
    graph = json.loads((Path(out_dir) / "graph.json").read_text(encoding="utf-8"))
    counted = [entry for entry in operators if entry["heavy"]] or operators
    axes = json.loads((Path(out_dir) / "source.json").read_text(encoding="utf-8"))["batch_axes"]
    rows = [value.shape()[axes[name]] for name, value in values.items() if name in axes]
    taken = {value.name: value.shape for value in session.get_inputs()}
    return {
        "batch": rows[0] if rows else None,
        "fixed_batch": any(isinstance(taken[n][axes[n]], int) for n in values if n in axes),
        "engine_version": onnxruntime.__version__,
        "providers": used,
        "provider_options": session.get_provider_options(),
        "requested_providers": [name for name, _ in providers],
        "available_providers": onnxruntime.get_available_providers(),
        "assigned": dict(assigned),
        "num_threads": read_back.intra_op_num_threads,
        "spinning": read_back.get_session_config_entry("session.intra_op.allow_spinning") == "1",
        "level": read_back.graph_optimization_level.name,
        "operators": operators,
        "graph": graph,
        "executed": {
            "providers": used,
            "formats": sorted({entry["dtype"] for entry in counted}),
            "layers": len(graph["layers"]),
        },
    }


@portable
def profile_calls(
    options: onnxruntime.SessionOptions,
    used: list[str],
    providers: list[Any],
    values: dict[str, Any],
    out_dir: str,
) -> tuple[list[dict[str, Any]], int]:
    """Operator events of a few calls after the first, and how many calls they are of.

    ONNX Runtime profiles a session from its creation on, so that this is a second session of
    the same options. It is freed before this returns.
    """
    import json
    import tempfile
    import time
    from pathlib import Path

    import onnxruntime

    with tempfile.TemporaryDirectory() as scratch:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(scratch) / "profile")
        try:
            profiled = onnxruntime.InferenceSession(
                str(Path(out_dir) / "model.onnx"),
                options,
                providers=[entry for entry in providers if entry[0] in used],
            )
        finally:
            options.enable_profiling = False
        binding = profiled.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        device = "cpu" if used[0] == "CPUExecutionProvider" else "cuda"
        device_id = int(dict(providers).get(used[0], {}).get("device_id", 0))
        for output in profiled.get_outputs():
            binding.bind_output(output.name, device, device_id)
        start_s = time.perf_counter()
        num_calls = -1  # the first call is not like the others
        while num_calls < 3 or (time.perf_counter() - start_s < 0.2 and num_calls < 50):
            profiled.run_with_iobinding(binding)
            num_calls += 1
            if num_calls > 0 and time.perf_counter() - start_s > 10:
                break
        written = profiled.end_profiling()
        events = json.loads(Path(written).read_text(encoding="utf-8"))
    runs = sorted((e["ts"], e["dur"]) for e in events if e.get("name") == "model_run")
    first_end = sum(runs[0])
    return [
        event
        for event in events
        if event.get("cat") == "Node"
        and event["name"].endswith("_kernel_time")
        and event["ts"] >= first_end
    ], num_calls


@portable
def tabulate_operators(events: list[dict[str, Any]], num_calls: int) -> list[dict[str, Any]]:
    """Operators of one call: name, format computed in, number, microseconds, provider.

    Most time first. "heavy" marks matmuls, convolutions and attention, which precision is
    about. An int8 kernel is known by its name, since ONNX Runtime leaves weights that it has
    packed out of an event's types; any other computes in the widest float that goes in or,
    where none does, comes out.
    """
    heavy_words = ("MatMul", "Gemm", "Conv", "Attention", "LSTM", "GRU", "RNN", "Einsum", "QMoE")
    int8_words = ("QLinear", "QGemm", "QAttention", "Integer", "DynamicQuantize")
    floats = {"double": "fp64", "float": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in events:
        said = event["args"]
        name = said["op_name"]
        if name in ("If", "Loop", "Scan"):
            continue  # their bodies have events of their own
        goes_in = {dtype for entry in said.get("input_type_shape", ()) for dtype in entry}
        comes_out = {dtype for entry in said.get("output_type_shape", ()) for dtype in entry}
        both = [d for d in floats if d in goes_in] or [d for d in floats if d in comes_out]
        if name.startswith("TRTKernel"):
            dtype = "unknown"  # TensorRT's own engine, which does not tell
        elif any(word in name for word in int8_words) and name != "DynamicQuantizeLinear":
            dtype = "int8"
        elif name == "MatMulNBits":
            dtype = "nbits"
        elif both:
            dtype = floats[both[0]]
        else:
            dtype = min(goes_in | comes_out, default="none")
        heavy = name.startswith("TRTKernel") or any(word in name for word in heavy_words)
        provider = said.get("provider", "")
        row = rows.setdefault(
            (name, dtype, provider),
            {
                "name": name,
                "dtype": dtype,
                "provider": provider,
                "heavy": heavy,
                "num_calls": 0,
                "us": 0.0,
            },
        )
        row["num_calls"] += 1
        row["us"] += event["dur"] / num_calls
    for row in rows.values():
        row["num_calls"] = round(row["num_calls"] / num_calls)
    return sorted(rows.values(), key=lambda row: -row["us"])
