"""What torch.compile made of a module: portable functions that read Dynamo and Inductor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.torch_evidence import inspect_module
from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@portable
def make_compiled_inspect(
    module: torch.nn.Module, source: dict[str, Any], device: str
) -> Callable[[Any, Any], dict[str, Any]]:
    """The pipeline's `inspect`: what the call executes, and what was compiled in this process."""

    def inspect(pipeline: Any, placed: Any) -> dict[str, Any]:
        report, events = inspect_module(pipeline, placed, module, source, device)
        ran_compiled = any("CompiledFxGraph" in event["name"] for event in events)
        report["compile"] = compile_report(ran_compiled, placed)
        report["executed"]["compiled"] = ran_compiled
        # The profiler does not see matmuls that Inductor wrote itself.
        report["operators"] += report["compile"]["matmuls"]
        seen = {o["dtype"] for o in report["operators"] if o["arithmetic"]}
        report["executed"]["arithmetic"] = sorted(seen)
        return report

    return inspect


@portable
def compile_report(ran_compiled: bool, placed: Any) -> dict[str, Any]:
    """Compiles, graph breaks and generated kernels of this process.

    `ran_compiled` says whether the call that was profiled ran any compiled graph.
    """
    from torch._dynamo.utils import counters, get_compilation_metrics
    from torch.utils._pytree import tree_leaves

    metrics = get_compilation_metrics()
    compiles = [m for m in metrics if m.graph_op_count]
    frames = [str(m.compile_id).partition("/")[0] for m in compiles]
    num_recompiles = len(frames) - len(set(frames))
    kernels = generated_kernels()
    labels = []
    if ran_compiled:
        labels.append("compiled")
        if kernels["frozen"]:
            labels.append("freezing")
        if kernels["autotuned"]:
            labels.append("max-autotune")
    notes = []
    if not ran_compiled:
        shapes = [list(leaf.shape) for leaf in tree_leaves(placed) if hasattr(leaf, "shape")]
        if num_recompiles:
            notes.append(
                f"eager fallback for the shapes {shapes}: after {len(compiles)} compiles no more "
                "were made; pad inputs to a few sizes, or compile with dynamic=True"
            )
        else:
            notes.append(f"eager fallback for the shapes {shapes}: nothing was compiled")
    return {
        "ran_compiled": ran_compiled,
        "num_compiles": len(compiles),
        "num_recompiles": num_recompiles,
        "graph_breaks": graph_breaks(),
        "fused": kernels["fused"],
        "extern": kernels["extern"],
        "attention_math": ran_compiled and kernels["attention_math"],
        "matmuls": kernels["matmuls"] if ran_compiled else [],
        "cudagraph_skips": counters["inductor"].get("cudagraph_skips", 0),
        "labels": labels,
        "notes": notes,
    }


@portable
def graph_breaks() -> list[dict[str, Any]]:
    """Every place where a graph ended before the model did, with the reason's first lines.

    Where that is inside a loop, torch.compile leaves the whole function to eager PyTorch.
    """
    from torch._dynamo.utils import get_compilation_metrics, graph_break_reasons

    found: list[dict[str, Any]] = []

    def add(file: str | None, line: int | None, reason: str, more: str = "") -> None:
        first = reason.split("\n  Hint")[0].split("\n\n")[0]
        entry = {"file": file or "", "line": line or 0, "reason": " ".join(first.split()) + more}
        if entry not in found:
            found.append(entry)

    for broken in graph_break_reasons:
        frame = broken.user_stack[-1] if broken.user_stack else None
        add(frame and frame.filename, frame and frame.lineno, str(broken.reason))
    for failed in get_compilation_metrics():
        if failed.fail_reason and "recompile_limit" not in failed.fail_reason:
            add(
                failed.fail_user_frame_filename,
                failed.fail_user_frame_lineno,
                failed.fail_reason,
                f"; {failed.co_name}() runs eagerly",
            )
    return found


@portable
def generated_kernels() -> dict[str, Any]:
    """Kernels that Inductor generated, by kind, read from the code it loaded.

    "matmuls" lists those in C++ as operators, which no profiler sees.

    "fused" counts generated kernels and library calls with another operator merged in,
    "extern" the plain library calls. "frozen" says that weights are constants of the code
    and "autotuned" that kernels were timed against each other.
    """
    import re
    from pathlib import Path

    from torch._dynamo.utils import counters
    from torch._inductor.codecache import PyCodeCache

    kinds = {
        "poi": "triton pointwise",
        "red": "triton reduction",
        "per": "triton persistent reduction",
        "tem": "triton template",
        "for": "triton foreach",
    }
    names = {
        "float": "fp32",
        "bfloat16": "bf16",
        "half": "fp16",
        "uint8_t": "int8",
        "int8_t": "int8",
    }
    fused: dict[str, int] = {}
    extern: dict[str, int] = {}
    matmuls: dict[str, int] = {}
    frozen = spelled_out = False

    def count(where: dict[str, int], kind: str) -> None:
        where[kind] = where.get(kind, 0) + 1

    for loaded in list(PyCodeCache.modules):
        if not hasattr(loaded, "call"):
            continue
        text = Path(str(loaded.__file__)).read_text(encoding="utf-8")
        frozen = frozen or "_frozen_param" in text
        # The softmax that only PyTorch's own decomposition of attention calls.
        spelled_out = spelled_out or "_safe_softmax" in text
        for block in re.split(r"^(?=\w+ = async_compile\.)", text, flags=re.MULTILINE)[1:]:
            triton = re.match(r"triton_(\w{3})_", block)
            if triton:
                count(fused, kinds.get(triton.group(1), "triton"))
            elif "micro_gemm" in block:
                # A matmul of Inductor's own; its first argument is what it multiplies.
                count(fused, "c++ matmul")
                pointer = re.search(r"\['const (\w+)\*'", block)
                count(matmuls, names.get(pointer.group(1), "unknown") if pointer else "unknown")
            else:
                count(fused, "c++")
        for name in re.findall(r"= extern_kernels\.(\w+)\(|^ +extern_kernels\.(\w+)\(", text, re.M):
            count(extern, name[0] or name[1])
        for name, after in re.findall(r"ops\.mkldnn\._(\w+)_pointwise\.\w+\((.*)\)", text):
            merged = re.findall(r"'(\w+)', \[", after)
            if merged and merged[-1] != "none":
                count(fused, f"oneDNN {name} + {merged[-1]}")
            else:
                count(extern, f"oneDNN {name}")
        for name in re.findall(r"ops\.onednn\.(q\w+)\.", text):
            count(fused, f"oneDNN {name}")
    own = {"name": "Inductor matmul", "arithmetic": True, "time_ns": 0}
    templates = bool(matmuls) or fused.get("triton template", 0) > 0
    return {
        "fused": fused,
        "extern": extern,
        "frozen": frozen,
        "attention_math": spelled_out,
        "autotuned": templates or counters["inductor"].get("select_algorithm_autotune", 0) > 0,
        "matmuls": [{**own, "dtype": dtype, "num_calls": n} for dtype, n in matmuls.items()],
    }
