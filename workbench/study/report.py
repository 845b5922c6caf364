"""A study as one HTML file: no network, no script, every text escaped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files

from workbench.core.units import format_bytes, format_count, format_seconds
from workbench.study import extracts, metrics, plots
from workbench.study.choice import best
from workbench.study.comparison import Comparison, Row
from workbench.study.markup import Markup, element
from workbench.study.reader import StudyReader
from workbench.study.report_evidence import evidence_section, facts, section
from workbench.study.report_guide import how_to_read
from workbench.study.report_profiles import profile_sections
from workbench.study.table import (
    COLUMNS,
    Cell,
    Key,
    caption,
    cell,
    format_rate,
    shown_columns,
)

_MAIN: tuple[Key, ...] = (
    "number",
    "variant",
    "verdict",
    "call",
    "quality",
    "ran",
    "item",
    "throughput",
    "memory",
    "size",
    "energy",
)
_ONCE: tuple[Key, ...] = (
    "number",
    "variant",
    "build",
    "compile",
    "load",
    "first_call",
    "copies",
    "one_off",
    "break_even",
)
_WIDTHS: dict[Key, str] = {
    "verdict": "wider",
    "ran": "wider",
    "quality": "wide",
    "variant": "wide",
}


def report_html(reader: StudyReader, comparison: Comparison) -> str:
    """The whole page."""
    sections = [
        _verdict(comparison),
        _intervals(comparison),
        _table(comparison),
        _latency(reader, comparison),
        _request(comparison),
        _sweeps(comparison),
        _quality(comparison),
        _once(comparison),
        *profile_sections(reader, comparison),
        _failures(comparison),
        evidence_section(comparison),
        _about(comparison),
        how_to_read(comparison),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{comparison.model.name}: variants compared"),
        # Ours and constant; a style element's text is not escaped.
        element("style", Markup(_style())),
    )
    body = element("body", element("main", _header(comparison), *sections))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _style() -> str:
    return files("workbench.study").joinpath("report.css").read_text(encoding="utf-8")


def _header(comparison: Comparison) -> Markup:
    made_s = comparison.created_s
    when = "" if made_s is None else time.strftime("%d %B %Y, %H:%M", time.localtime(made_s))
    return element(
        "header",
        element(
            "div",
            element("p", "Variants of one model, run here and compared", class_="kicker"),
            element("h1", comparison.model.name),
        ),
        element("p", _device(comparison), element("br"), when, class_="soft"),
    )


def _device(comparison: Comparison) -> str:
    host = comparison.host
    if host is None or not host.devices:
        return "device not probed yet"
    ran_on = comparison.baseline.variant.device
    device = (host.device(ran_on) if ran_on else None) or host.devices[0]
    cores = f", {device.num_cores} cores" if device.num_cores else ""
    return f"{device.name}{cores}"


def _verdict(comparison: Comparison) -> Markup:
    choice = best(comparison)
    lead = choice.text
    if choice.row is not None:
        recipe = choice.row.variant.recipe
        lead = f"▲ {choice.row.verdict_text}: #{choice.row.number} {recipe.spec}"
    chips = [
        element("li", element("b", str(count)), f" {word}")
        for word, count in extracts.counts(comparison.rows)
    ]
    return element(
        "section",
        element("p", lead, class_="lead"),
        element("p", _beside(choice.row), class_="soft") if choice.row else None,
        element("ul", *chips, class_="chips"),
        class_="verdict good" if choice.row else "verdict",
    )


def _beside(row: Row) -> str:
    """What the winner costs and keeps, in one sentence."""
    parts = []
    quality = cell(row, "quality")
    if quality.text != "–":
        parts.append(f"quality {quality.text}" + (f" ({quality.detail})" if quality.detail else ""))
    if row.call is not None:
        parts.append(f"a call takes {format_seconds(row.call.median_s.value)}")
    memory = cell(row, "memory")
    if memory.text != "–":
        parts.append(f"{memory.text} peak memory")
    if row.break_even:
        parts.append(f"break-even: {row.break_even}")
    said = "; ".join(parts)
    return said[:1].upper() + said[1:] + "."


def _intervals(comparison: Comparison) -> Markup | None:
    bars = extracts.interval_bars(comparison)
    if not bars:
        return None
    floor = comparison.floor
    band = (
        "The grey band is what the baseline shows against itself: inside it nothing is known."
        if floor
        else "The baseline has not been measured against itself yet."
    )
    batches = any(row.baseline_batch for row in comparison.rows)
    per_item = " Rows of another batch size are compared per item." if batches else ""
    return section(
        "Speed against the baseline",
        plots.interval_plot(bars, floor),
        lead=f"Time per item, with the interval that covers it at 95 %. {band}{per_item}",
    )


def _table(comparison: Comparison) -> Markup:
    rows = (comparison.baseline, *comparison.rows)
    return section("All variants", _html_table(comparison, rows, _MAIN), lead=caption(comparison))


def _html_table(comparison: Comparison, rows: Sequence[Row], keys: Sequence[Key]) -> Markup:
    keys = shown_columns(comparison, keys)
    winner = best(comparison).row
    head = [
        element(
            "th",
            COLUMNS[key].title,
            title=COLUMNS[key].help,
            class_="number" if COLUMNS[key].is_numeric else None,
        )
        for key in keys
    ]
    body = [
        element(
            "tr",
            *(_td(cell(row, key), key, is_best=row is winner) for key in keys),
            class_="best" if row is winner else None,
        )
        for row in rows
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", table, class_="scroll")


def _td(made: Cell, key: Key, *, is_best: bool) -> Markup:
    badge = element("span", "best", class_="badge") if is_best and key == "variant" else None
    return element(
        "td",
        element("span", made.marked, class_=made.tone or None),
        badge,
        element("span", made.detail, class_="detail") if made.detail else None,
        class_=f"number {key}" if COLUMNS[key].is_numeric else _WIDTHS.get(key),
    )


def _latency(reader: StudyReader, comparison: Comparison) -> Markup | None:
    found = extracts.distributions(reader, comparison)
    if not found:
        return None
    return section(
        "How long a call takes",
        plots.distribution_plot(found, format_seconds),
        lead="Every timed call, on a log axis. The line is the median; a dot marks each tail "
        "that enough calls were timed for. A call of a larger batch does more work.",
    )


def _request(comparison: Comparison) -> Markup | None:
    bars = extracts.request_bars(comparison)
    if not bars:
        return None
    return section(
        "One request",
        plots.stacked_plot(bars, extracts.REQUEST_PARTS, format_seconds),
        lead="The model's own processing and the copies beside the model, each timed by itself: "
        "what is left of a faster model when the rest stays.",
    )


def _sweeps(comparison: Comparison) -> Markup | None:
    found = extracts.sweeps(comparison)
    if not found:
        return None
    parts = []
    for spec, rows in found:
        calls = [(float(r.variant.items_per_call or 0), r.call.median_s) for r in rows if r.call]
        rates = [(float(r.variant.items_per_call or 0), r.throughput) for r in rows]
        parts.append(element("h3", spec))
        parts.append(
            element(
                "div",
                plots.line_plot(calls, title="latency of a call", format_y=format_seconds),
                plots.line_plot(
                    [(x, y) for x, y in rates if y], title="items a second", format_y=format_rate
                ),
                class_="pair",
            )
        )
    return section(
        "Batch size",
        *parts,
        lead="One stream of calls, one after the other: a larger batch answers more items a "
        "second, and each of them later.",
    )


def _quality(comparison: Comparison) -> Markup | None:
    points, metric = extracts.quality_points(comparison)
    if not points:
        return None
    bound = extracts.quality_bound(comparison, metric)
    side = "lower" if metrics.is_lower_better(metric) else "higher"
    return section(
        "Quality against speed",
        plots.scatter_plot(
            points,
            x_title="times as fast as the baseline, per item",
            y_title=metric,
            format_y=lambda value: metrics.write(value, metric),
            bound=bound,
        ),
        lead=f"To the right is faster; {side} is closer to the baseline's answers. A row is kept "
        "when the whole of its line lies on the good side of the bound.",
    )


def _once(comparison: Comparison) -> Markup | None:
    bars = extracts.stacked_bars(comparison)
    if not bars:
        return None
    rows = [r for r in (comparison.baseline, *comparison.rows) if r.variant.cold_start]
    return section(
        "What is paid once",
        plots.stacked_plot(bars, extracts.PARTS, format_seconds),
        _html_table(comparison, rows, _ONCE),
        lead="Seconds before the first answer: building, compiling with an empty cache, loading, "
        "the first call. None of it is part of a latency above. Break-even is the number of "
        "calls after which a faster variant has won it back.",
    )


def _failures(comparison: Comparison) -> Markup | None:
    rows = [row for row in comparison.rows if row.variant.failure is not None]
    if not rows:
        return None
    parts = []
    for row in rows:
        failure = row.variant.failure
        assert failure is not None
        parts.append(
            element(
                "div",
                element("b", f"#{row.number} {row.variant.recipe.spec}"),
                element("p", cell(row, "verdict").marked, class_=cell(row, "verdict").tone or None),
                element("p", f"In the stage {failure.stage}, kind {failure.kind}.", class_="soft"),
                element("p", f"What to do: {failure.remedy}") if failure.remedy else None,
                element("details", element("summary", "Log"), element("pre", failure.detail))
                if failure.detail
                else None,
            )
        )
    return section("What did not run, and what to do", element("div", *parts, class_="failures"))


def _about(comparison: Comparison) -> Markup:
    model, prepared, host = comparison.model, comparison.prepared, comparison.host
    devices = host.devices if host else ()
    found = [
        ("model", model.name),
        ("parameters", format_count(model.num_parameters)),
        ("weights", format_bytes(model.num_bytes)),
        ("inputs", "; ".join(map(str, model.inputs))),
        ("taken in as", prepared.origin if prepared else model.kind),
        ("batch", _batch(comparison)),
        ("exported scripts", (prepared.not_exportable or "possible") if prepared else ""),
        ("settings taken over", ", ".join(f"{k} {v}" for k, v in model.settings.items())),
        *(
            (f"device {d.id}", f"{d.name}; {d.reading}; {format_bytes(d.memory_bytes)}")
            for d in devices
        ),
        ("Python", f"{host.python_version} on {host.platform}" if host else ""),
        ("packages", ", ".join(f"{k} {v}" for k, v in _packages(comparison))),
        ("workbench", comparison.workbench or ""),
        ("study", comparison.study),
    ]
    notes = [*model.notes, *(prepared.notes if prepared else ()), *(host.notes if host else ())]
    return section(
        "Model and machine",
        facts([(title, value) for title, value in found if value and value != "–"]),
        *(element("p", f"Note: {note}", class_="soft") for note in notes),
    )


_NAMED = ("torch", "torchao", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "nncf", "numpy")


def _packages(comparison: Comparison) -> list[tuple[str, str]]:
    packages = comparison.host.packages if comparison.host else {}
    return [(name, packages[name]) for name in _NAMED if name in packages]


def _batch(comparison: Comparison) -> str:
    prepared = comparison.prepared
    if prepared is None:
        return ""
    claim = prepared.batch
    if not claim.dynamic:
        return f"fixed: {claim.reason}" if claim.reason else "fixed"
    sizes = ", ".join(map(str, claim.verified_sizes))
    said = f"may vary (also ran with {sizes})"
    if claim.rows_independent is False:
        said += "; rows depend on the rows beside them"
    return said
