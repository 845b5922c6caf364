"""Evidence of an OpenVINO variant, from what its compiled model told of itself."""

from __future__ import annotations

from typing import Any, cast

from workbench.core.evidence import Evidence, OperatorUse
from workbench.core.json import Json
from workbench.engines.onnx_evidence import batch_notes, coverage_notes, unmet_use, use_labels
from workbench.levers.precision import Precision
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context


def read_evidence(raw: Json, context: Context) -> Evidence:
    """Evidence from `inspect_compiled`'s JSON. The recipe decides nothing but what is unmet."""
    said = cast("dict[str, Any]", raw)
    nodes = said["nodes"]
    total_us = sum(node["us"] for node in nodes)
    shares = _precision_share(nodes)
    layers = [node for node in nodes if node["weights"] is not None]
    num_quantized = sum(1 for node in layers if node["dtype"].startswith("int"))
    return Evidence(
        device="cpu",
        engine_version=said["engine_version"],
        providers=tuple(f"OpenVINO {device}" for device in said["devices"]),
        num_threads=said["num_threads"],
        operators=_operators(nodes, total_us),
        precision_share=shares,
        share_of="time of matmuls and convolutions"
        if any(node["heavy"] for node in nodes)
        else "time of all operators",
        num_layers=len(layers),
        num_layers_quantized=num_quantized,
        weights_quantized_share=_weights_quantized(said),
        fused={f"{name} (merged)": num for name, num in said["merged"].items()},
        labels=(*_labels(shares), *use_labels(said, context)),
        unmet=tuple(_unmet(said, context, shares, num_quantized, len(layers))),
        notes=(
            *coverage_notes(context, num_quantized, len(layers), _weights_quantized(said)),
            *batch_notes(said, context),
        ),
    )


def _operators(nodes: list[dict[str, Any]], total_us: float) -> tuple[OperatorUse, ...]:
    grouped: dict[tuple[str, str], list[float]] = {}
    for node in nodes:
        grouped.setdefault((node["type"], node["dtype"]), []).append(node["us"])
    uses = [
        OperatorUse(
            name=name,
            dtype=dtype,
            num_calls=len(times),
            share=sum(times) / total_us if total_us > 0 else None,
        )
        for (name, dtype), times in grouped.items()
    ]
    return tuple(sorted(uses, key=lambda use: -(use.share or 0.0)))


def _precision_share(nodes: list[dict[str, Any]]) -> dict[str, float]:
    counted = [node for node in nodes if node["heavy"]] or nodes
    total = sum(node["us"] for node in counted)
    shares: dict[str, float] = {}
    for node in counted:
        if total > 0:
            shares[node["dtype"]] = shares.get(node["dtype"], 0.0) + node["us"] / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _weights_quantized(said: dict[str, Any]) -> float | None:
    held = said["constants"]
    total = sum(held.values())
    if not total:
        return None
    return float(sum(n for dtype, n in held.items() if dtype in ("i8", "u8", "i4", "u4")) / total)


def _labels(shares: dict[str, float]) -> tuple[str, ...]:
    labels = [dtype for dtype, share in shares.items() if share > 0]
    if len(labels) > 1:
        # A row is called by what was changed; full precision is what is left of it.
        labels = [label for label in labels if label != "fp32"]
    return tuple(labels)


def _unmet(
    said: dict[str, Any],
    context: Context,
    shares: dict[str, float],
    num_quantized: int,
    num_layers: int,
) -> list[str]:
    recipe = context.recipe
    unmet = []
    precision = recipe.get(Precision.name)
    if precision is not None and shares.get(precision, 0.0) < 0.5:
        share = shares.get(precision, 0.0)
        unmet.append(
            f"{precision} was asked for; OpenVINO reads back {said['precision']}, and "
            f"{share * 100:.0f} % of the time of matmuls and convolutions is in {precision}"
        )
    quantization = recipe.get(Quantization.name)
    if quantization is not None:
        wanted = Quantization.parse(quantization)
        weights = _weights_quantized(said) or 0.0
        if num_quantized == 0:
            unmet.append(
                f"{wanted.dtype}: 0 of {num_layers} layers, {weights * 100:.0f} % of weights; "
                f"0 % of the time of matmuls and convolutions is in {wanted.dtype} kernels"
            )
    return [*unmet, *unmet_use(said, context)]
