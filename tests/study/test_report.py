from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.study import filled
from workbench.core.evidence import Evidence, GraphBreak, OperatorUse
from workbench.core.failure import Failure
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions
from workbench.study.comparison import compare
from workbench.study.document import csv_text, document, flat_rows
from workbench.study.markup import Markup, element, text
from workbench.study.notebook import comparison_html
from workbench.study.plots import Scale
from workbench.study.report import report_html
from workbench.study.store import Store
from workbench.study.terminal import as_text

_VOID = {"meta", "br", "line", "rect", "circle", "path"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails where a tag is left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def recorded(full: Store) -> Store:
    """Rows 1 and 2 were profiled; the operators' names are hostile. Row 3's recording is gone."""
    for number, operators in (
        (1, ["aten::conv2d", "aten::relu", filled.HOSTILE]),
        (2, ["aten::conv2d"]),
    ):
        path = f"traces/{number}/variant.{number}.pt.trace.json.gz"
        filled.record_trace(full.folder / path, operators)
        full.add_profile(number, filled.profile(path))
    full.add_profile(3, filled.profile("traces/3/lost.pt.trace.json.gz"))
    return full


def test_profiled_rows_show_their_time_memory_and_findings(recorded: Store) -> None:
    page = Page(report_html(recorded, compare(recorded)))
    assert "Where a call's time goes" in page.words
    assert "Memory while calls were recorded" in page.words
    # Three operators of 250 us in a step of 1 ms; recording takes 5 ms instead of 4.
    assert "1.00 ms recorded, operators 75% busy; 1.25× as long as unrecorded" in page.words
    assert "at most 3.00 MB more than at the start" in page.words
    assert "Its recording cannot be read" in page.words
    assert "<img src=x" in page.words
    assert "img" not in page.names


def test_a_step_of_many_operators_is_drawn_in_bounded_size(full: Store) -> None:
    """P45: the page holds what can be seen of it; the whole stays in the file."""
    path = "traces/1/variant.1.pt.trace.json.gz"
    names = [f"aten::operator_{index}" for index in range(20_000)]
    filled.record_trace(full.folder / path, names, step_us=200_000)
    before = len(report_html(full, compare(full)))
    full.add_profile(1, filled.profile(path))
    assert len(report_html(full, compare(full))) - before < 200_000


def test_the_report_of_an_unprofiled_study_has_no_such_part(full: Store) -> None:
    assert "Where a call's time goes" not in report_html(full, compare(full))


def test_the_document_names_the_latest_profile(recorded: Store) -> None:
    rows = {row["number"]: row for row in document(compare(recorded))["variants"]}
    assert rows[1]["profile"]["slowdown"] == 1.25
    assert rows[1]["profile"]["tool"] == "torch"
    assert rows[1]["profile"]["trace"].startswith("traces/1/")
    assert rows[4]["profile"] is None


@pytest.fixture
def hostile(full: Store) -> Store:
    """P44: every text that can come from a model, a driver or a trace is hostile."""
    bad, empty = filled.HOSTILE, full
    evidence = Evidence(
        device=bad,
        engine_version=bad,
        providers=(bad,),
        operators=(OperatorUse(name=bad, dtype=bad, num_calls=1, share=0.5),),
        precision_share={bad: 1.0},
        share_of=bad,
        fused={bad: 1},
        graph_breaks=(GraphBreak(file=bad, line=1, reason=bad),),
        attention=bad,
        labels=(bad,),
        unmet=(bad,),
        notes=(bad,),
    )
    failure = Failure(kind="exception", stage="build", message=bad, remedy=bad, detail=bad)
    empty.update(3, evidence=evidence, notes=(bad,), versions={bad: bad}, device=bad)
    empty.update(11, failure=failure)
    quality = empty.variant(4).quality
    assert quality is not None
    empty.update(4, quality=dataclasses.replace(quality, metric=bad, reasons=(bad,)))
    host = filled.host()
    device = dataclasses.replace(host.devices[0], name=bad)
    empty.set_host(dataclasses.replace(host, devices=(device,), platform=bad, notes=(bad,)))
    empty.set_prepared(dataclasses.replace(filled.prepared(), origin=bad, notes=(bad,)))
    model = empty.model()
    inputs = (dataclasses.replace(model.inputs[0], name=bad),)
    from workbench.study.codec import encode

    empty._set_meta("model", encode(dataclasses.replace(model, name=bad, inputs=inputs)))
    return empty


def test_a_hostile_text_is_shown_and_never_run(hostile: Store) -> None:
    comparison = compare(hostile)
    for html in (report_html(hostile, comparison), comparison_html(comparison)):
        page = Page(html)
        assert "onerror=alert(1)" in page.words, "the text itself is shown"
        assert not page.names & {"img", "script", "iframe", "object", "link"}
        assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "onerror" in as_text(comparison)
    json.loads(json.dumps(document(comparison), allow_nan=False))


def test_the_report_needs_no_network_and_no_script(full: Store) -> None:
    html = report_html(full, compare(full))
    page = Page(html)
    assert "script" not in page.names
    assert not [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert "url(" not in html
    assert "@import" not in html
    assert "prefers-color-scheme: dark" in html


def test_the_report_shows_every_part(full: Store) -> None:
    page = Page(report_html(full, compare(full)))
    for title in (
        "Speed against the baseline",
        "All variants",
        "How long a call takes",
        "Batch size",
        "Quality against speed",
        "What is paid once",
        "What did not run, and what to do",
        "What really ran",
        "Model and machine",
        "How to read this",
    ):
        assert title in page.words
    assert "Try precision=bf16, which has the range of fp32." in page.words
    assert "model.py:41" in page.words
    assert "the cell's source" in page.words
    assert len(report_html(full, compare(full))) < 400_000


def test_the_report_of_a_study_that_measured_nothing_is_a_page(empty: Store) -> None:
    empty.add_variant(Recipe(), "baseline", RunOptions())
    page = Page(report_html(empty, compare(empty)))
    assert "nothing has been measured yet" in page.words
    assert "svg" not in page.names


def test_a_verdict_is_told_without_colour(full: Store) -> None:
    comparison = compare(full)
    words = Page(comparison_html(comparison)).words
    for mark in ("▲ 1.41× as fast", "▼ 1.8", "= same within 2 %", "✕ failed", "■ stopped early"):
        assert mark in words


def test_the_notebook_table_survives_a_sanitiser(full: Store) -> None:
    """No style sheet, no class, no script: what remains is the table as it is."""
    page = Page(comparison_html(compare(full)))
    assert page.names <= {
        "div",
        "p",
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "br",
    }
    assert {name for name, _ in page.attributes} <= {"style", "title"}


def test_twenty_variants_stay_small_in_a_notebook(full: Store) -> None:
    """P72: a saved notebook stays far below 5 MB."""
    assert len(comparison_html(compare(full))) < 60_000


def test_the_terminal_table_fits_its_width(full: Store) -> None:
    comparison = compare(full)
    for width in (80, 110, 160, 220):
        lines = as_text(comparison, width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert any("▲" in line for line in lines)


def test_the_document_has_what_it_promises(full: Store) -> None:
    found = document(compare(full))
    assert found["schema_version"] == 1
    rows = {row["number"]: row for row in found["variants"]}  # type: ignore[union-attr,index,call-overload]
    assert set(rows) == set(range(1, 16))
    assert {
        "recipe",
        "state",
        "evidence",
        "latency",
        "throughput_items_per_s",
        "ratio",
        "verdict",
        "quality",
        "memory",
        "energy",
        "cold_start",
    } <= rows[2].keys()
    assert rows[2]["verdict"] == "faster"
    assert rows[10]["verdict"] is None, "provisional is no verdict"
    assert rows[10]["ratio"]["provisional"] is True
    assert rows[11]["quality"]["max_abs_error"] is None, "infinity is no JSON"
    assert rows[2]["energy"]["joules_per_1000_items"] is None
    assert rows[2]["latency"]["p95_s"]["value"] > rows[2]["latency"]["median_s"]["value"]
    assert found["best"]["variant"] == 9  # type: ignore[index,call-overload]


def test_the_documents_page_lists_every_key(full: Store) -> None:
    """docs/json.md is complete: a key that is not written down is no promise."""
    written = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    found = document(compare(full))
    row = found["variants"][0]  # type: ignore[index,call-overload]
    for key in (*found, *row):
        assert f"`{key}`" in written, key


def test_flat_rows_keep_absent_apart_from_zero(full: Store) -> None:
    rows = {row["number"]: row for row in flat_rows(compare(full))}
    assert rows[2]["joules_per_1000_items"] is None
    assert rows[2]["compile_cold_s"] is None
    assert rows[4]["compile_cold_s"] == 31.5
    assert rows[3]["quantization"] == "int8-static"
    assert rows[2]["quantization"] is None
    assert rows[14]["failure"] == "unavailable"


def test_a_spreadsheet_runs_no_text_of_a_model(full: Store) -> None:
    failure = Failure(kind="exception", stage="build", message="=HYPERLINK(1)", remedy="@x")
    full.update(11, failure=failure)
    found = csv_text(compare(full))
    assert "'=HYPERLINK(1)" in found
    assert "'@x" in found
    assert found.splitlines()[0].startswith("number,role,recipe,engine")


def test_markup_escapes_what_it_is_not_told_to_trust() -> None:
    assert (
        element("p", "<b>", Markup("<i></i>"), title='"')
        == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    )
    assert text("a\x00\x1bb") == "a\ufffd\ufffdb"


def test_an_axis_has_round_ticks_inside_its_ends() -> None:
    axis = Scale(low=0.4, high=3.2, start=0, end=100, is_log=True)
    assert all(0.4 <= tick <= 3.2 for tick in axis.ticks())
    assert 1.0 in axis.ticks()
    assert 3 <= len(axis.ticks()) <= 8
    assert axis(0.4) == 0
    assert axis(3.2) == 100
    assert axis(0.01) == 0
    flat = Scale(low=0, high=32.9)
    assert flat.ticks() == [0, 10, 20, 30]
    assert not re.search("nan", str(Scale(low=1, high=1)(1)))
