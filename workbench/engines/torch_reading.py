"""From what a torch pipeline's `inspect` returned to Evidence."""

from __future__ import annotations

from typing import Any, cast

from workbench.core.evidence import Evidence, GraphBreak, OperatorUse, thread_label
from workbench.core.json import Json
from workbench.levers.precision import Precision
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context
from workbench.levers.threads import Threads, is_worth_a_label

# A row is called after a format when most of its arithmetic is done in it.
_MOSTLY = 0.5

# The share of the time from which on an operator is listed that is no arithmetic.
_WORTH_SHOWING = 0.005


def read_evidence(raw: Json, context: Context) -> Evidence:
    """Evidence of a torch engine. Labels come from `raw` alone, the recipe says what is unmet."""
    report = cast("dict[str, Any]", raw)
    total_ns = sum(o["time_ns"] for o in report["operators"])
    # Views and the like would make up most of the list and none of the time.
    operators = [
        o
        for o in report["operators"]
        if o["arithmetic"] or o["time_ns"] > _WORTH_SHOWING * total_ns
    ]
    uses = tuple(
        OperatorUse(
            name=o["name"],
            dtype=o["dtype"],
            num_calls=o["num_calls"],
            share=o["time_ns"] / total_ns if o["time_ns"] else None,
        )
        for o in sorted(operators, key=lambda o: -o["time_ns"])
    )
    shares, share_of = precision_shares(report)
    labels = labels_of(report, shares, context)
    weights = report["weights"]
    compiled = report.get("compile") or {}
    breaks = compiled.get("graph_breaks")
    return Evidence(
        device=device_of(report),
        engine_version=str(report["engine_version"]),
        num_threads=report["threads"]["num"],
        thread_wait=report["threads"]["wait"],
        operators=uses,
        precision_share=shares,
        share_of=share_of,
        num_layers=weights["num_layers"],
        num_layers_quantized=weights["num_layers_quantized"],
        weights_quantized_share=weights["quantized_share"],
        fused=fused_of(report),
        graph_breaks=None if breaks is None else tuple(GraphBreak(**b) for b in breaks),
        num_compiles=compiled.get("num_compiles"),
        num_recompiles=compiled.get("num_recompiles"),
        num_graph_launches=graph_launches(report),
        attention=attention_of(report),
        channels_last=channels_last(report),
        labels=labels,
        unmet=unmet(report, labels, context),
        notes=notes_of(report, context),
    )


def device_of(report: dict[str, Any]) -> str:
    """ "cpu", or "cuda:0 (NVIDIA H200)"."""
    device = str(report["device"])
    return device if device == "cpu" else f"{device} ({report['device_name']})"


def precision_shares(report: dict[str, Any]) -> tuple[dict[str, float], str]:
    """Share of each format in the arithmetic, by time where it was recorded, and of what."""
    arithmetic = [o for o in report["operators"] if o["arithmetic"]]
    timed = all(o["time_ns"] for o in arithmetic)
    sums: dict[str, float] = {}
    for use in arithmetic:
        dtype = format_of(use["name"], use["dtype"], report)
        sums[dtype] = sums.get(dtype, 0) + (use["time_ns"] if timed else use["num_calls"])
    total = sum(sums.values())
    if not total:
        return {}, "operators"
    return {dtype: value / total for dtype, value in sums.items()}, (
        "time" if timed else "operators"
    )


def format_of(name: str, dtype: str, report: dict[str, Any]) -> str:
    """The format that an operator computes in: a GPU's fp32 is tf32 where its flag says so."""
    if dtype != "fp32" or report["device"] == "cpu":
        return dtype
    leaf = "cuda.matmul"
    if "conv" in name or "fprop" in name or "scudnn" in name:
        leaf = "cudnn.conv"
    elif "rnn" in name or "lstm" in name or "gru" in name:
        leaf = "cudnn.rnn"
    return "tf32" if report["flags"]["fp32_precision"].get(leaf) == "tf32" else dtype


def labels_of(
    report: dict[str, Any], shares: dict[str, float], context: Context
) -> tuple[str, ...]:
    """What the row may be called, from what was seen.

    A batch or a number of threads is worth a label where it is not the notebook's.
    """
    labels: list[str] = []
    weights = report["weights"]
    main = next((d for d, share in shares.items() if share > _MOSTLY), None)
    if main in ("bf16", "fp16"):
        cast_weights = main in weights["dtypes"]
        labels.append(main if cast_weights or not weights["dtypes"] else f"{main}-autocast")
    elif main == "tf32":
        labels.append("tf32")
    elif main == "fp32" and is_strict(report, shares):
        labels.append("fp32")
    if weights["num_layers_quantized"]:
        labels.append(quantization_label(weights, shares))
    if report.get("folded"):
        labels.append("conv-bn")
    kernel = attention_of(report)
    if kernel:
        labels.append(f"attention {kernel}")
    if channels_last(report) and report["layout"]["weights_last"]:
        labels.append("channels-last")
    launches = graph_launches(report)
    if launches:
        labels.append("cuda-graphs")
    labels.extend(report.get("compile", {}).get("labels", ()))
    if report["batch"] not in (None, context.model.batch.example_size):
        labels.append(f"batch {report['batch']}")
    if is_worth_a_label(report["threads"]["num"], context):
        labels.append(thread_label(report["threads"]["num"]))
    if report["threads"]["wait"] == "active":
        labels.append("active threads")
    return tuple(labels)


def is_strict(report: dict[str, Any], shares: dict[str, float]) -> bool:
    """Whether no fp32 arithmetic is rounded: on a GPU nothing ran as tf32, on a CPU none may."""
    if report["device"] == "cpu":
        return set(report["flags"]["fp32_precision"].values()) == {"ieee"}
    return not shares.get("tf32")


def quantization_label(weights: dict[str, Any], shares: dict[str, float]) -> str:
    """ "int8" where integers are multiplied, "int8-weights" where they are only stored."""
    if shares.get("fp8"):
        return "fp8"
    if shares.get("int8"):
        return "int8"
    if any("Int4" in scheme or "int4" in scheme for scheme in weights["schemes"]):
        return "int4-weights"
    if any("Float8" in scheme for scheme in weights["schemes"]):
        return "fp8-weights"
    return "int8-weights"


def attention_of(report: dict[str, Any]) -> str | None:
    """The kernel that computed scaled dot-product attention, None where none was seen."""
    names = " ".join(o["name"] for o in report["operators"] if o["num_calls"])
    names += " ".join(k["name"] for k in report["kernels"])
    if "flash_attention" in names or "flash_fwd" in names:
        return "flash"
    if "efficient_attention" in names or "fmha_cutlass" in names:
        return "efficient"
    if "cudnn_attention" in names or "native_sdpa" in names:
        return "cudnn"
    spelled_out = report.get("compile", {}).get("attention_math", False)
    return "math" if spelled_out or "scaled_dot_product_attention_math" in names else None


def channels_last(report: dict[str, Any]) -> bool | None:
    """Whether convolutions read channels-last inputs; None where there is no convolution."""
    layout = report["layout"]
    last, first = layout["inputs_last"], layout["inputs_first"]
    if last + first:
        return bool(last > first)
    if layout["weights_last"] + layout["weights_first"]:
        return bool(layout["weights_last"] > layout["weights_first"])
    return None


def graph_launches(report: dict[str, Any]) -> int | None:
    """CUDA graphs launched in one call; None on a CPU, which has none."""
    if report["device"] == "cpu":
        return None
    return sum(int(k["num"]) for k in report["kernels"] if k["name"].endswith("GraphLaunch"))


def fused_of(report: dict[str, Any]) -> dict[str, int]:
    """Fused operators by kind."""
    fused = dict(report.get("compile", {}).get("fused", {}))
    if report.get("folded"):
        fused["conv-bn"] = report["folded"]
    return fused


def unmet(report: dict[str, Any], labels: tuple[str, ...], context: Context) -> tuple[str, ...]:
    """What the recipe asks for and the run did not show, in words."""
    missing: list[str] = []
    recipe = context.recipe
    facts = {f"batch {report['batch']}", thread_label(report["threads"]["num"])}
    for name, text in recipe.levers:
        wanted = expected_label(name, text)
        if wanted is None or wanted & (set(labels) | facts):
            continue
        if name == Quantization.name:
            weights = report["weights"]
            share = 100 * (weights["quantized_share"] or 0)
            missing.append(
                f"{name}={text}: {weights['num_layers_quantized']} of {weights['num_layers']} "
                f"layers, {share:.0f} % of weights"
            )
        else:
            seen = precision_words(report) if name == Precision.name else ""
            missing.append(f"{name}={text} was asked for and not seen{seen}")
    return tuple(missing)


def precision_words(report: dict[str, Any]) -> str:
    """ "; of its arithmetic's time 75 % in tf32, 25 % in fp32", "" where there is none."""
    shares, share_of = precision_shares(report)
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])
    parts = [f"{100 * share:.0f} % in {dtype}" for dtype, share in ordered]
    return f"; of its arithmetic's {share_of} {', '.join(parts)}" if parts else ""


def expected_label(name: str, text: str) -> set[str] | None:
    """The labels of which a lever's value should leave one; None where none is due."""
    if name == Precision.name:
        return {text}
    if name == Quantization.name:
        return {"int8"} if text in ("int8-dynamic", "int8-static") else {text}
    if name == "attention":
        return {f"attention {text}"}
    if name == "batch":
        return {f"batch {text}"}
    if name == Threads.name:
        threads = Threads.parse(text)
        if threads.wait == "active":
            return {"active threads"}
        return None if threads.num is None else {thread_label(threads.num)}
    if name == "fusion":
        return {"cuda-graphs"} if text == "reduce-overhead" else {text}
    return {text}


def notes_of(report: dict[str, Any], context: Context) -> tuple[str, ...]:
    """What a reader of the row should know."""
    compiled = report.get("compile", {})
    notes = list(compiled.get("notes", ()))
    skips = compiled.get("cudagraph_skips", 0)
    if skips and report["device"] != "cpu":
        notes.append(f"CUDA graphs were skipped {skips} times: the log says why")
    weights = report["weights"]
    quantized, layers = weights["num_layers_quantized"], weights["num_layers"]
    if context.recipe.get(Quantization.name) and quantized < layers:
        notes.append(
            f"{quantized} of {layers} layers are quantized, "
            f"{100 * (weights['quantized_share'] or 0):.0f} % of weights"
        )
    return tuple(notes)
