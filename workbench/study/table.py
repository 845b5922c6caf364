"""A comparison as cells of text, which the terminal, the notebook and the report draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.core.units import format_bytes, format_seconds
from workbench.study import metrics
from workbench.study.choice import quality_words
from workbench.study.comparison import Comparison, Estimate, Row

Tone = Literal["", "good", "bad", "warn", "quiet"]
Key = Literal[
    "number",
    "variant",
    "ran",
    "verdict",
    "item",
    "call",
    "throughput",
    "quality",
    "memory",
    "size",
    "energy",
    "build",
    "compile",
    "load",
    "first_call",
    "copies",
    "one_off",
    "break_even",
]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell says. `tone` colours it; `mark` says the same without colour."""

    text: str
    detail: str = ""
    mark: str = ""
    tone: Tone = ""

    @property
    def marked(self) -> str:
        """The text behind its mark."""
        return f"{self.mark} {self.text}" if self.mark else self.text


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's title and one sentence on what it holds."""

    title: str
    help: str
    is_numeric: bool = False


COLUMNS: dict[Key, Column] = {
    "number": Column(title="#", help="The row's number in the study.", is_numeric=True),
    "variant": Column(title="variant", help="The recipe, as it was asked for."),
    "ran": Column(title="really ran", help="What was executed, read from the running worker."),
    "verdict": Column(
        title="verdict",
        help="Time per item against the baseline, with the interval that covers it at 95 %.",
    ),
    "item": Column(
        title="time per item", help="Of a call that nothing disturbed.", is_numeric=True
    ),
    "call": Column(title="a call", help="Median latency of one call.", is_numeric=True),
    "throughput": Column(title="items/s", help="Items a second, of one stream.", is_numeric=True),
    "quality": Column(title="quality", help="Outputs compared with the baseline's."),
    "memory": Column(
        title="peak memory",
        help="Above the level after the engine was imported; on a GPU by kind.",
        is_numeric=True,
    ),
    "size": Column(title="on disk", help="Size of what the build left.", is_numeric=True),
    "energy": Column(
        title="energy", help="Joules per 1,000 items, idle power subtracted.", is_numeric=True
    ),
    "build": Column(title="build", help="Seconds to convert the model, once.", is_numeric=True),
    "compile": Column(
        title="compile", help="Seconds with an empty cache, and with a full one.", is_numeric=True
    ),
    "load": Column(title="load", help="Seconds to load what was built.", is_numeric=True),
    "first_call": Column(title="first call", help="The first call after that.", is_numeric=True),
    "copies": Column(
        title="copies in / out", help="To and from the device, a call.", is_numeric=True
    ),
    "one_off": Column(
        title="before first answer",
        help="Build, cold compile, load and first call together.",
        is_numeric=True,
    ),
    "break_even": Column(
        title="break-even",
        help="Calls until what is paid before the first answer is won back.",
        is_numeric=True,
    ),
}


def cell(row: Row, key: Key) -> Cell:
    """One cell of a row."""
    return _CELLS[key](row)


def _number(row: Row) -> Cell:
    return Cell(text=str(row.number))


def _variant(row: Row) -> Cell:
    recipe = row.variant.recipe
    detail = ", ".join(f"{lever} {value}" for lever, value in recipe.levers)
    if row.is_baseline:
        detail = f"{detail}, the baseline" if detail else "the baseline, as you run it now"
    return Cell(text=recipe.engine, detail=detail)


def _ran(row: Row) -> Cell:
    evidence = row.variant.evidence
    if evidence is None:
        return Cell(text="–", tone="quiet")
    if evidence.unmet:
        return Cell(
            text=f"not as asked: {evidence.unmet[0]}",
            detail=executed(row),
            mark="⚠",
            tone="warn",
        )
    ranked = sorted(evidence.precision_share, key=lambda dtype: -evidence.precision_share[dtype])
    return Cell(
        text=evidence.reading or (ranked[0] if ranked else evidence.device),
        detail=executed(row),
    )


def executed(row: Row) -> str:
    """What was executed, in one line: engine, device, precision, threads."""
    evidence = row.variant.evidence
    if evidence is None:
        return "nothing was read back"
    engine = row.variant.recipe.engine
    version = evidence.engine_version
    if not version[:1].isalpha():
        version = f"{engine} {version}"
    where = f"on {evidence.device}"
    if evidence.providers:
        where += f" by {', '.join(evidence.providers)}"
    parts = [version, where]
    if evidence.precision_share:
        ranked = sorted(evidence.precision_share.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{share * 100:.0f} % {dtype}" for dtype, share in ranked[:3])
        parts.append(f"{shares} of {evidence.share_of}")
    asked = row.variant.recipe.get("quantization") is not None
    quantized, layers = evidence.num_layers_quantized, evidence.num_layers
    if quantized is not None and layers is not None and (asked or quantized):
        parts.append(f"{quantized} of {layers} layers quantized")
    if evidence.graph_breaks:
        parts.append(many(len(evidence.graph_breaks), "graph break"))
    if evidence.num_threads is not None:
        wait = f", {evidence.thread_wait} wait" if evidence.thread_wait else ""
        parts.append(f"{many(evidence.num_threads, 'thread')}{wait}")
    return " · ".join(parts)


def many(number: int, noun: str) -> str:
    """ "1 visit", "12 visits"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_VERDICTS: dict[str, tuple[str, Tone]] = {
    "faster": ("▲", "good"),
    "slower": ("▼", "bad"),
    "same": ("=", ""),
    "undecided": ("?", "quiet"),
}


def _verdict(row: Row) -> Cell:
    variant, decision = row.variant, row.decision
    if row.is_baseline:
        return Cell(text="baseline", mark="●")
    failure = variant.failure
    if variant.state == "failed":
        said = failure.message if failure else "it failed"
        return Cell(
            text=f"failed: {said}", detail=failure.remedy if failure else "", mark="✕", tone="bad"
        )
    if variant.state == "stopped-early":
        said = failure.message if failure else ""
        return Cell(
            text=f"stopped early: {first_ratio_text(row)}", detail=said, mark="■", tone="bad"
        )
    if decision is not None and decision.ratio is not None:
        mark, tone = _VERDICTS[decision.verdict]
        if decision.provisional:
            mark, tone = "~", "quiet"
        said = many(decision.num_visits, "visit")
        if variant.state not in ("done", "measuring"):
            said += f"; {variant.state}"
        if variant.state == "measuring":
            said += ", still measuring"
        if decision.reason and decision.verdict == "undecided":
            said += f"; {decision.reason}"
        return Cell(text=row.verdict_text, detail=said, mark=mark, tone=tone)
    if variant.state in ("stopped", "interrupted"):
        said = failure.message if failure else ""
        return Cell(text=variant.state, detail=said, mark="■", tone="quiet")
    return Cell(text=variant.state, mark="…", tone="quiet")


def first_ratio_text(row: Row) -> str:
    """The ratio that stopped a row early, in words."""
    ratio = row.variant.first_ratio
    if ratio is None or ratio <= 0:
        return "far slower than the baseline"
    return f"about {1 / ratio:.1f}× slower by three calls" if ratio < 1 else f"about {ratio:.1f}×"


def _item(row: Row) -> Cell:
    return _seconds(row.item_s)


def _call(row: Row) -> Cell:
    if row.call is None:
        return _ABSENT
    made = _seconds(row.call.median_s)
    tails = [f"{tail} {format_seconds(value.value)}" for tail, value in row.call.tails_s.items()]
    batch = row.variant.items_per_call
    details = [*([f"batch {batch}"] if batch and batch != 1 else []), *tails]
    return Cell(text=made.text, detail=", ".join(filter(None, [made.detail, *details])))


def _throughput(row: Row) -> Cell:
    value = row.throughput
    return _ABSENT if value is None else Cell(text=format_rate(value.value))


def format_rate(value: float) -> str:
    """Items a second with three digits: "1,230" or "0.45"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_QUALITY: dict[str, tuple[str, Tone]] = {
    "kept": ("✓", "good"),
    "lost": ("✕", "bad"),
    "not_finite": ("✕", "bad"),
    "mismatch": ("✕", "bad"),
    "undecided": ("?", "warn"),
    "unknown": ("–", "quiet"),
}


def _quality(row: Row) -> Cell:
    quality = row.variant.quality
    if quality is None:
        return _ABSENT
    mark, tone = _QUALITY.get(quality.status, ("?", "warn"))
    parts = []
    if quality.value is not None:
        value = metrics.write_span(quality.value, quality.low, quality.high, quality.metric)
        parts.append(f"{value} {quality.metric}, {many(quality.num_rows, 'row')}")
    if quality.max_abs_error is not None:
        parts.append(f"largest error {quality.max_abs_error:.2g}")
    return Cell(
        text=quality_words(quality).replace("_", " "), detail="; ".join(parts), mark=mark, tone=tone
    )


def _memory(row: Row) -> Cell:
    memory = row.variant.memory
    if memory is None:
        return _ABSENT
    kinds = {
        "host": memory.host_peak_bytes,
        "allocator": memory.allocator_peak_bytes,
        "device": memory.device_used_bytes,
    }
    read = {kind: value for kind, value in kinds.items() if value is not None}
    if not read:
        return Cell(text="not recorded", detail="; ".join(memory.notes), tone="quiet")
    lead = next(kind for kind in ("allocator", "device", "host") if kind in read)
    others = [f"{kind} {format_bytes(value)}" for kind, value in read.items() if kind != lead]
    return Cell(text=format_bytes(read[lead]), detail=", ".join([lead, *others]))


def _size(row: Row) -> Cell:
    size = row.variant.size_bytes
    return _ABSENT if size is None else Cell(text=format_bytes(size))


def _energy(row: Row) -> Cell:
    energy = row.variant.energy
    if energy is None:
        return _ABSENT
    if energy.joules_per_1000_items is None:
        return Cell(text="unavailable", detail=energy.reason, tone="quiet")
    return Cell(text=f"{energy.joules_per_1000_items:.3g} J", detail=energy.source)


def _one_off(row: Row) -> Cell:
    return Cell(text=format_seconds(row.one_off_s)) if row.one_off_s is not None else _ABSENT


def _break_even(row: Row) -> Cell:
    return Cell(text=row.break_even) if row.break_even else _ABSENT


def _cold(name: str, second: str | None = None) -> Callable[[Row], Cell]:
    def make(row: Row) -> Cell:
        cold = row.variant.cold_start
        first = None if cold is None else getattr(cold, name)
        if first is None:
            return _ABSENT
        other = getattr(cold, second) if second else None
        if name.startswith("copy"):
            return Cell(text=f"{format_seconds(first)} / {format_seconds(other)}")
        detail = f"{format_seconds(other)} with a full cache" if other is not None else ""
        if name == "build_s" and row.variant.artifact_cached:
            detail = "taken from an earlier build"
        return Cell(text=format_seconds(first), detail=detail)

    return make


def _seconds(value: Estimate | None) -> Cell:
    if value is None:
        return _ABSENT
    detail = ""
    if value.low is not None and value.high is not None:
        detail = span(value.low, value.high)
    return Cell(text=format_seconds(value.value), detail=detail)


def span(low_s: float, high_s: float) -> str:
    """An interval of seconds, its unit said once where it is the same: "3.97–4.07 ms"."""
    low, high = format_seconds(low_s), format_seconds(high_s)
    value, _, unit = low.partition(" ")
    return f"{value}–{high}" if high.endswith(f" {unit}") else f"{low}–{high}"


_ABSENT = Cell(text="–", tone="quiet")
_CELLS: dict[Key, Callable[[Row], Cell]] = {
    "number": _number,
    "variant": _variant,
    "ran": _ran,
    "verdict": _verdict,
    "item": _item,
    "call": _call,
    "throughput": _throughput,
    "quality": _quality,
    "memory": _memory,
    "size": _size,
    "energy": _energy,
    "build": _cold("build_s"),
    "compile": _cold("compile_cold_s", "compile_cached_s"),
    "load": _cold("load_s"),
    "first_call": _cold("first_call_s"),
    "copies": _cold("copy_in_s", "copy_out_s"),
    "one_off": _one_off,
    "break_even": _break_even,
}


def caption(comparison: Comparison) -> str:
    """What a table's figures rest on, in one sentence."""
    host = comparison.host
    device = host.devices[0].name if host and host.devices else "this machine"
    floor = comparison.floor
    noise = (
        "no control yet, so verdicts are provisional"
        if floor is None
        else f"the baseline against itself differs by up to {math.expm1(floor) * 100:.1f} %"
    )
    said = f"{comparison.model.name} on {device}; one stream; {noise}."
    reasons = no_energy(comparison)
    return f"{said} Energy unavailable: {reasons}." if reasons else said


def no_energy(comparison: Comparison) -> str | None:
    """Why no row has an energy reading, or None where one has or none was tried."""
    readings = [row.variant.energy for row in (comparison.baseline, *comparison.rows)]
    if any(r is not None and r.joules_per_1000_items is not None for r in readings):
        return None
    return next((r.reason for r in readings if r is not None and r.reason), None)


def shown_columns(comparison: Comparison, keys: Sequence[Key]) -> list[Key]:
    """Those of the columns in which some row says something."""
    rows = (comparison.baseline, *comparison.rows)
    empty = {key for key in keys if all(cell(row, key).text == "–" for row in rows)}
    if no_energy(comparison):
        empty.add("energy")
    return [key for key in keys if key not in empty]
