"""Evidence of an ONNX Runtime variant, from what its session told of itself."""

from __future__ import annotations

import re
from typing import Any, cast

from workbench.core.evidence import Evidence, OperatorUse, thread_label
from workbench.core.json import Json
from workbench.levers.batching import Batching
from workbench.levers.precision import Precision
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context
from workbench.levers.threads import is_worth_a_label, threads_of

_SHORT = {
    "CPUExecutionProvider": "CPU",
    "CUDAExecutionProvider": "CUDA",
    "TensorrtExecutionProvider": "TensorRT",
}
_LEVELS = {
    "ORT_DISABLE_ALL": "off",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_ALL": "all",
}
# Parts of the names of operators that do the work of several.
_MERGED = re.compile(
    "Fused|Skip|Bias|Gelu|QLinear|QGemm|QAttention|Attention|LayerNorm|RMSNorm|ToFloat"
    "|DynamicQuantizeMatMul|Rotary|GroupNorm|SwiGLU|NhwcConv|NhwcMaxPool|TransposeMatMul"
)
# Transformer fusions that the session's own optimiser makes as well: no gain of the lever's.
_MADE_ANYWAY = frozenset(
    {
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "LayerNormalization",
        "QuickGelu",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)
# Merged into the operator that makes their input, and then not executed on their own.
_ABSORBED = ("BatchNormalization", "Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")


def read_evidence(raw: Json, context: Context) -> Evidence:
    """Evidence from `inspect_session`'s JSON. The recipe decides nothing but what is unmet."""
    said = cast("dict[str, Any]", raw)
    providers = tuple(said["providers"])
    graph = said["graph"]
    tf32 = _computes_tf32(said, context)
    rows = [{**row, "dtype": _format(row, graph, tf32)} for row in said["operators"]]
    total_us = sum(row["us"] for row in rows)
    on_cpu = providers[0] == "CPUExecutionProvider"
    shares = _precision_share(rows, on_cpu)
    layers = graph["layers"]
    in_integers = sum(
        row["num_calls"] for row in rows if row["heavy"] and _is_quantized(row["dtype"])
    )
    held = sum(1 for layer in layers if layer["weights"].startswith("int"))
    num_quantized = min(held, in_integers) if layers else 0
    fused = _fused(rows, graph)
    return Evidence(
        device=_device(said),
        engine_version=said["engine_version"],
        providers=providers,
        num_threads=said["num_threads"],
        thread_wait="active" if said["spinning"] else "passive",
        operators=tuple(
            OperatorUse(
                name=row["name"],
                dtype=row["dtype"],
                num_calls=row["num_calls"],
                share=row["us"] / total_us if on_cpu and total_us > 0 else None,
            )
            for row in rows
        ),
        precision_share=shares,
        share_of=f"{'time of ' if on_cpu else ''}"
        + ("matmuls and convolutions" if any(row["heavy"] for row in rows) else "all operators"),
        num_layers=len(layers),
        num_layers_quantized=num_quantized,
        weights_quantized_share=_weights_quantized(graph),
        fused=fused,
        labels=(
            *_labels(shares, num_quantized, said, graph),
            *use_labels(said, context),
        ),
        unmet=tuple(_unmet(said, context, shares, num_quantized, len(layers), held)),
        notes=(
            *coverage_notes(context, num_quantized, len(layers), _weights_quantized(graph)),
            *batch_notes(said, context),
            *_notes(said, tf32),
        ),
    )


def _computes_tf32(said: dict[str, Any], context: Context) -> bool:
    options = said["provider_options"].get("CUDAExecutionProvider")
    capable = (context.device.capability or (0, 0)) >= (8, 0)
    return options is not None and options.get("use_tf32", "1") == "1" and capable


def _format(row: dict[str, Any], graph: dict[str, Any], tf32: bool) -> str:
    dtype = str(row["dtype"])
    if dtype == "nbits":
        bits = {layer["weights"] for layer in graph["layers"] if layer["op"] == "MatMulNBits"}
        return f"{min(bits, default='int4')}-weights"
    on_cuda = row["provider"] == "CUDAExecutionProvider"
    return "tf32" if tf32 and on_cuda and row["heavy"] and dtype == "fp32" else dtype


def _is_quantized(dtype: str) -> bool:
    return dtype == "int8" or dtype.endswith("-weights")


def _precision_share(rows: list[dict[str, Any]], on_cpu: bool) -> dict[str, float]:
    """Shares of the time on a CPU; of the operators on a GPU, whose kernels are only launched
    in the time that ONNX Runtime notes."""
    counted = [row for row in rows if row["heavy"]] or rows
    weight = "us" if on_cpu else "num_calls"
    total = sum(row[weight] for row in counted)
    shares: dict[str, float] = {}
    for row in counted:
        if total > 0:
            shares[row["dtype"]] = shares.get(row["dtype"], 0.0) + row[weight] / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _weights_quantized(graph: dict[str, Any]) -> float | None:
    weights = graph["weights"]
    total = sum(weights.values())
    if not total:
        return None
    return float(sum(num for held, num in weights.items() if held in ("int8", "int4")) / total)


def _fused(rows: list[dict[str, Any]], graph: dict[str, Any]) -> dict[str, int]:
    """Operators that only the running session has, transformer fusions, and what was absorbed."""
    saved = graph["exported_operators"]
    executed: dict[str, int] = {}
    for row in rows:
        executed[row["name"]] = executed.get(row["name"], 0) + row["num_calls"]
    fused = {
        name: num
        for name, num in executed.items()
        if name not in saved and name not in graph["operators"] and _MERGED.search(name) and num
    }
    fused.update(graph["transformer_fusions"])
    fused.update({name: num for name, num in executed.items() if "Attention" in name})
    for name in _ABSORBED:
        gone = saved.get(name, 0) - executed.get(name, 0)
        if gone > 0:
            fused[f"{name} (merged)"] = gone
    return dict(sorted(fused.items(), key=lambda item: (-item[1], item[0])))


def _merges_attention(graph: dict[str, Any]) -> bool:
    """Whether the saved graph has attention, or more than the session merges, as one operator."""
    whole = any("Attention" in name for name in graph["operators"])
    return whole or bool(set(graph["transformer_fusions"]) - _MADE_ANYWAY)


def _device(said: dict[str, Any]) -> str:
    first = said["providers"][0]
    if first != "CPUExecutionProvider":
        number = said["provider_options"].get(first, {}).get("device_id", "0")
        return f"cuda:{number}"
    reason = _fallback(said)
    return f"CPU ({reason})" if reason else "cpu"


def _fallback(said: dict[str, Any]) -> str | None:
    """Why the first provider asked for is not the one that runs: "CUDA unavailable: ..."."""
    asked = said["requested_providers"][0]
    if asked in said["providers"]:
        return None
    name = _SHORT.get(asked, asked)
    if asked not in said["available_providers"]:
        return f"{name} unavailable: this onnxruntime {said['engine_version']} has no {asked}"
    return f"{name} unavailable: onnxruntime could not load the libraries of {asked}"


def _labels(
    shares: dict[str, float], num_quantized: int, said: dict[str, Any], graph: dict[str, Any]
) -> tuple[str, ...]:
    labels = [
        dtype
        for dtype, share in shares.items()
        if share > 0 and (not _is_quantized(dtype) or num_quantized)
    ]
    if len(labels) > 1:
        # A row is called by what was changed; full precision is what is left of it.
        labels = [label for label in labels if label != "fp32"]
    level = _LEVELS.get(said["level"], said["level"])
    if level != "all":
        labels.append(f"fusion {level}")
    if _merges_attention(graph):
        labels.append("transformer fusion")
    labels += [_SHORT[p] for p in said["providers"] if p in _SHORT and p != "CPUExecutionProvider"]
    return tuple(labels)


def _unmet(
    said: dict[str, Any],
    context: Context,
    shares: dict[str, float],
    num_quantized: int,
    num_layers: int,
    num_held: int,
) -> list[str]:
    recipe = context.recipe
    unmet = []
    reason = _fallback(said)
    if reason:
        unmet.append(reason)
    precision = recipe.get(Precision.name)
    # Beside quantized layers, a precision is asked of the others.
    floats = {dtype: share for dtype, share in shares.items() if not _is_quantized(dtype)}
    if precision is not None and floats and shares.get(precision, 0) < sum(floats.values()) / 2:
        unmet.append(
            f"{precision} was asked for; {_percent(shares.get(precision, 0.0))} of the time of "
            f"matmuls and convolutions is in {precision} kernels, {_mostly(shares)}"
        )
    quantization = recipe.get(Quantization.name)
    if quantization is not None:
        wanted = Quantization.parse(quantization)
        dtype = quantization if quantization.endswith("-weights") else wanted.dtype
        share = shares.get(dtype, 0.0)
        if num_quantized == 0:
            weights = _percent(_weights_quantized(said["graph"]) or 0.0)
            unmet.append(
                f"{wanted.dtype}: 0 of {num_layers} layers, {weights} of weights; "
                f"{_percent(share)} of the time of matmuls and convolutions is in "
                f"{wanted.dtype} kernels"
            )
    elif num_held and num_quantized == 0:
        unmet.append(
            f"{num_held} of {num_layers} layers have integer weights; 0 % of the time of "
            "matmuls and convolutions is in int8 kernels"
        )
    fusion = recipe.get("fusion")
    found = said["graph"]["transformer_fusions"]
    if fusion == "transformer" and not _merges_attention(said["graph"]):
        others = f"; {', '.join(found)} are merged without it as well" if found else ""
        unmet.append(f"transformer fusion was asked for; it found no attention to merge{others}")
    elif fusion in _LEVELS.values() and _LEVELS.get(said["level"]) != fusion:
        unmet.append(f"fusion {fusion} was asked for; the session has {said['level']}")
    return [*unmet, *unmet_use(said, context)]


def use_labels(said: dict[str, Any], context: Context) -> tuple[str, ...]:
    """How the session is used: a batch or a number of threads that is not the notebook's."""
    labels = []
    if said["batch"] not in (None, context.model.batch.example_size):
        labels.append(f"batch {said['batch']}")
    if is_worth_a_label(said["num_threads"], context):
        labels.append(thread_label(said["num_threads"]))
    if said.get("spinning"):
        labels.append("active threads")
    return tuple(labels)


def unmet_use(said: dict[str, Any], context: Context) -> tuple[str, ...]:
    """What the recipe asks of batch and threads and does not get, in words."""
    unmet = []
    size = context.recipe.get(Batching.name)
    if size is not None and said["batch"] is not None and int(size) != said["batch"]:
        unmet.append(f"a batch of {size} was asked for; a call has {said['batch']} items")
    threads = threads_of(context.recipe, context.settings)
    if threads.num is not None and threads.num != said["num_threads"]:
        unmet.append(f"{threads.num} threads were asked for; there are {said['num_threads']}")
    if "spinning" in said and (threads.wait == "active") != said["spinning"]:
        unmet.append(f"threads that wait {threads.wait} were asked for; these do not")
    return tuple(unmet)


def coverage_notes(
    context: Context, num_quantized: int, num_layers: int, share: float | None
) -> tuple[str, ...]:
    """Says of a quantized variant how much of it is, where some of it is not."""
    if context.recipe.get(Quantization.name) is None or num_quantized in (0, num_layers):
        return ()
    weights = _percent(share or 0.0)
    return (f"{num_quantized} of {num_layers} layers are quantized, {weights} of weights",)


def batch_notes(said: dict[str, Any], context: Context) -> tuple[str, ...]:
    """Says where a graph takes one batch only although the model takes any."""
    if said["fixed_batch"] and context.model.batch.dynamic:
        return (f"the export fixed the batch: this graph takes {said['batch']} items and no other",)
    return ()


def _notes(said: dict[str, Any], tf32: bool) -> list[str]:
    notes = []
    others = {p: n for p, n in said["assigned"].items() if p != said["providers"][0]}
    if others:
        words = ", ".join(f"{n} on {_SHORT.get(p, p)}" for p, n in others.items())
        notes.append(f"operators that {_SHORT.get(said['providers'][0])} did not take: {words}")
    if tf32:
        notes.append("ONNX Runtime may use tf32 in fp32 matmuls and convolutions (use_tf32=1)")
    return notes


def _mostly(shares: dict[str, float]) -> str:
    if not shares:
        return "none was seen"
    dtype, share = next(iter(shares.items()))
    return f"{_percent(share)} in {dtype}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share == 0 or share >= 0.01 else "under 1 %"
