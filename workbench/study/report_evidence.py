"""The report's part on what really ran, and what its parts are made of."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.evidence import Evidence
from workbench.study.comparison import Comparison, Row
from workbench.study.markup import Markup, element
from workbench.study.table import executed

_NUM_OPERATORS = 14


def section(title: str, *parts: Markup | None, lead: str = "") -> Markup:
    """One part of the page: a title, a sentence on it, and what it shows."""
    return element(
        "section", element("h2", title), element("p", lead, class_="soft") if lead else None, *parts
    )


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Names and values side by side; empty values are left out."""
    return element(
        "dl",
        *(
            element("div", element("dt", title), element("dd", value))
            for title, value in pairs
            if value
        ),
        class_="facts",
    )


def evidence_section(comparison: Comparison) -> Markup | None:
    """What really ran, a fold for each row; None where nothing was read back."""
    rows = [
        r for r in (comparison.baseline, *comparison.rows) if r.variant.evidence or r.variant.notes
    ]
    if not rows:
        return None
    return section(
        "What really ran",
        *(_evidence_of(row) for row in rows),
        lead="Read from the artifact or the running worker, never from the recipe.",
    )


def _evidence_of(row: Row) -> Markup:
    evidence = row.variant.evidence
    parts: list[Markup | None] = []
    if evidence is not None:
        parts += [facts(_evidence_facts(row, evidence)), *_evidence_lists(evidence)]
    notes = [*(evidence.notes if evidence else ()), *row.variant.notes]
    parts += [element("p", f"Note: {note}", class_="soft") for note in notes]
    return element(
        "details",
        element(
            "summary",
            element("b", f"#{row.number} "),
            row.variant.recipe.spec,
            element("span", executed(row), class_="detail"),
        ),
        element("div", *parts),
    )


def _evidence_facts(row: Row, evidence: Evidence) -> list[tuple[str, str]]:
    record = row.variant
    versions = record.versions or {}
    found = [
        ("engine", evidence.engine_version),
        ("device", evidence.device),
        ("providers", ", ".join(evidence.providers)),
        (
            f"precision, share of {evidence.share_of}",
            ", ".join(f"{k} {v * 100:.1f} %" for k, v in evidence.precision_share.items()),
        ),
        ("labels earned", evidence.reading),
        ("asked for and not done", "; ".join(evidence.unmet)),
        (
            "layers quantized",
            ""
            if evidence.num_layers_quantized is None
            else f"{evidence.num_layers_quantized} of {evidence.num_layers}"
            + (
                f", {evidence.weights_quantized_share * 100:.0f} % of weights"
                if evidence.weights_quantized_share is not None
                else ""
            ),
        ),
        ("fused operators", ", ".join(f"{k} ×{v}" for k, v in evidence.fused.items())),
        ("attention kernel", evidence.attention or ""),
        ("channels last", {None: "", True: "yes", False: "no"}[evidence.channels_last]),
        ("compiles", _count(evidence.num_compiles)),
        ("recompiles", _count(evidence.num_recompiles)),
        ("graph launches", _count(evidence.num_graph_launches)),
        (
            "threads",
            ""
            if evidence.num_threads is None
            else f"{evidence.num_threads}, waiting {evidence.thread_wait or 'as the engine does'}",
        ),
        ("machine load by others", "" if row.host_load is None else f"{row.host_load * 100:.0f} %"),
        ("worker", {None: "", True: "started cold", False: "a warm spare"}[record.started_cold]),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items())),
    ]
    return [(title, value) for title, value in found if value]


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _evidence_lists(evidence: Evidence) -> list[Markup | None]:
    parts: list[Markup | None] = []
    if evidence.graph_breaks:
        parts.append(element("h3", "Graph breaks"))
        parts += [
            element("p", element("code", f"{b.file}:{b.line}"), f" {b.reason}")
            for b in evidence.graph_breaks
        ]
    if evidence.operators:
        ranked = sorted(evidence.operators, key=lambda o: -(o.share or 0.0))
        head = element("tr", *(element("th", t) for t in ("operator", "type", "calls", "share")))
        body = [
            element(
                "tr",
                element("td", element("code", operator.name)),
                element("td", operator.dtype),
                element("td", str(operator.num_calls), class_="number"),
                element(
                    "td",
                    "not timed" if operator.share is None else f"{operator.share * 100:.1f} %",
                    class_="number",
                ),
            )
            for operator in ranked[:_NUM_OPERATORS]
        ]
        parts.append(element("h3", "Operators"))
        parts.append(element("table", element("thead", head), element("tbody", *body)))
        if len(ranked) > _NUM_OPERATORS:
            parts.append(element("p", f"and {len(ranked) - _NUM_OPERATORS} more", class_="soft"))
    return parts
