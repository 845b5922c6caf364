"""A comparison as one JSON document, and as flat rows for CSV and data frames.

`docs/json.md` describes the document; its schema version changes when a key changes meaning
or goes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from workbench.core.decision import Decision
from workbench.core.json import Json
from workbench.study.choice import best
from workbench.study.comparison import Call, Comparison, Estimate, Row

SCHEMA_VERSION = 1


def document(comparison: Comparison) -> dict[str, Json]:
    """Everything a comparison says, as JSON values; what is absent is null, never 0."""
    choice = best(comparison)
    control = comparison.control
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "comparison",
        "workbench": comparison.workbench,
        "study": comparison.study,
        "created_s": comparison.created_s,
        "goal": comparison.goal,
        "latency_limit_s": comparison.latency_limit_s,
        "model": _model(comparison),
        "host": plain(comparison.host),
        "device": _device(comparison),
        "baseline": comparison.baseline.number,
        "control": None
        if control is None
        else {"floor_log_ratio": comparison.floor, "ratio": _ratio(control.decision)},
        "best": {
            "variant": None if choice.row is None else choice.row.number,
            "nearest": None if choice.nearest is None else choice.nearest.number,
            "text": choice.text,
        },
        "variants": [variant(row) for row in (comparison.baseline, *comparison.rows)],
    }


def variant(row: Row) -> dict[str, Json]:
    """One row of the document."""
    record = row.variant
    return {
        "number": row.number,
        "role": record.role,
        "recipe": {**_object(record.recipe.to_json()), "spec": record.recipe.spec},
        "state": record.state,
        "stage": record.stage,
        "device": record.device,
        "evidence": plain(record.evidence),
        "items_per_call": record.items_per_call,
        "latency": _call(row.call),
        "item_s": _estimate(row.item_s),
        "throughput_items_per_s": _estimate(row.throughput),
        "ratio": _ratio(row.decision),
        "verdict": _verdict(row.decision),
        "first_ratio": finite(record.first_ratio),
        "quality": plain(record.quality),
        "memory": plain(record.memory),
        "size_bytes": record.size_bytes,
        "energy": plain(record.energy),
        "cold_start": {
            **_object(plain(record.cold_start)),
            "before_first_answer_s": finite(row.one_off_s),
            "break_even_calls": row.break_even_calls,
            "break_even": row.break_even or None,
            "artifact_cached": record.artifact_cached,
        },
        "host_load": finite(row.host_load),
        "profile": _profile(row),
        "failure": plain(record.failure),
        "versions": plain(record.versions),
        "options": plain(record.options),
        "notes": list(record.notes),
        "text": row.verdict_text or None,
    }


def plain(record: object) -> Json:
    """A record as JSON values; a number that is not finite becomes null."""
    return _finite_only(msgspec.to_builtins(record))


def finite(value: float | None) -> float | None:
    """The value, or None where JSON could not hold it."""
    return None if value is None or not math.isfinite(value) else value


def flat_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat dict a row: what a data frame or a spreadsheet takes.

    Seconds, bytes, joules and items a second, as the names say; None where there is no
    reading. Every lever that any row uses has a column of its own.
    """
    rows = (comparison.baseline, *comparison.rows)
    levers = sorted({lever for row in rows for lever, _ in row.variant.recipe.levers})
    return [_flat(row, levers) for row in rows]


def csv_text(comparison: Comparison) -> str:
    """The flat rows as CSV, with a header."""
    rows = flat_rows(comparison)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({key: _csv_safe(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def _csv_safe(value: Any) -> Any:
    # A spreadsheet runs a cell that begins like a formula, and texts come from models.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _flat(row: Row, levers: Sequence[str]) -> dict[str, Any]:
    record, decision = row.variant, row.decision
    evidence, quality, energy = record.evidence, record.quality, record.energy
    cold, memory = record.cold_start, record.memory
    tails = row.call.tails_s if row.call else {}
    flat: dict[str, Any] = {
        "number": row.number,
        "role": record.role,
        "recipe": record.recipe.spec,
        "engine": record.recipe.engine,
        **{lever.replace("-", "_"): record.recipe.get(lever) for lever in levers},
        "state": record.state,
        "verdict": decision.verdict if decision and not decision.provisional else None,
        "provisional": decision.provisional if decision else None,
        "ratio": decision.ratio if decision else None,
        "ratio_low": decision.low if decision else None,
        "ratio_high": decision.high if decision else None,
        "num_visits": decision.num_visits if decision else None,
        "first_ratio": record.first_ratio,
        "items_per_call": record.items_per_call,
        **_columns("item_s", row.item_s),
        **_columns("call_s", row.call.median_s if row.call else None),
        "call_p95_s": tails["p95"].value if "p95" in tails else None,
        "call_p99_s": tails["p99"].value if "p99" in tails else None,
        "items_per_s": row.throughput.value if row.throughput else None,
        "device": record.device,
        "ran": evidence.reading if evidence else None,
        "unmet": "; ".join(evidence.unmet) or None if evidence else None,
        "num_threads": evidence.num_threads if evidence else None,
        "quality": quality.status if quality else None,
        "quality_metric": quality.metric if quality else None,
        "quality_value": quality.value if quality else None,
        "quality_low": quality.low if quality else None,
        "quality_high": quality.high if quality else None,
        "quality_rows": quality.num_rows if quality else None,
        "host_peak_bytes": memory.host_peak_bytes if memory else None,
        "allocator_peak_bytes": memory.allocator_peak_bytes if memory else None,
        "device_used_bytes": memory.device_used_bytes if memory else None,
        "size_bytes": record.size_bytes,
        "joules_per_1000_items": energy.joules_per_1000_items if energy else None,
        "energy_source": energy.source if energy else None,
    }
    for name in (
        "build_s",
        "compile_cold_s",
        "compile_cached_s",
        "load_s",
        "first_call_s",
        "copy_in_s",
        "copy_out_s",
        "preprocess_s",
        "postprocess_s",
    ):
        flat[name] = getattr(cold, name) if cold else None
    failure = record.failure
    return {
        **flat,
        "break_even_calls": row.break_even_calls,
        "failure": failure.kind if failure else None,
        "failure_message": failure.message if failure else None,
        "remedy": failure.remedy or None if failure else None,
    }


def _columns(name: str, value: Estimate | None) -> dict[str, float | None]:
    return {
        name: value.value if value else None,
        f"{name}_low": value.low if value else None,
        f"{name}_high": value.high if value else None,
    }


def _model(comparison: Comparison) -> Json:
    model, prepared = comparison.model, comparison.prepared
    return {
        "name": model.name,
        "kind": model.kind,
        "task": model.task,
        "num_parameters": model.num_parameters,
        "num_bytes": model.num_bytes,
        "inputs": [str(spec) for spec in model.inputs],
        "notes": list(model.notes),
        "prepared": plain(prepared),
    }


def _device(comparison: Comparison) -> Json:
    """The device that the baseline really ran on; the host's first one before it has."""
    host, ran_on = comparison.host, comparison.baseline.variant.device
    if host is None:
        return None
    found = host.device(ran_on) if ran_on else None
    return plain(found or (host.devices[0] if host.devices else None))


def _call(call: Call | None) -> Json:
    if call is None:
        return None
    return {
        "median_s": _estimate(call.median_s),
        **{f"{tail}_s": _estimate(call.tails_s.get(tail)) for tail in ("p95", "p99")},
        "num_calls": call.num_calls,
    }


def _estimate(value: Estimate | None) -> Json:
    if value is None:
        return None
    return {"value": finite(value.value), "low": finite(value.low), "high": finite(value.high)}


def _ratio(decision: Decision | None) -> Json:
    """The ratio of times per item, with its interval and what it rests on."""
    if decision is None:
        return None
    return {
        "value": finite(decision.ratio),
        "low": finite(decision.low),
        "high": finite(decision.high),
        "per": "item",
        "num_visits": decision.num_visits,
        "floor_log_ratio": finite(decision.floor),
        "threshold": decision.threshold,
        "provisional": decision.provisional,
    }


def _verdict(decision: Decision | None) -> str | None:
    """None while provisional: no verdict is drawn then."""
    return None if decision is None or decision.provisional else decision.verdict


def _profile(row: Row) -> Json:
    """Its latest recording; the trace's tables are those of `workbench trace FILE --json`."""
    if row.profile is None:
        return None
    return {**_object(plain(row.profile)), "slowdown": finite(row.profile.slowdown)}


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _finite_only(value: Any) -> Json:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {str(key): _finite_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_only(item) for item in value]
    return value  # type: ignore[no-any-return]
