"""The report's part on profiles: where a call's time and memory go, and what holds it back."""

from __future__ import annotations

from workbench.core.profile import Tool
from workbench.core.units import format_bytes, format_seconds
from workbench.study.comparison import Comparison
from workbench.study.extracts import label
from workbench.study.markup import Markup, element
from workbench.study.profiled import KINDS, Profiled, profiled_rows
from workbench.study.reader import StudyReader
from workbench.study.report_evidence import section
from workbench.study.strips import MemoryStrip, Strip, memory_plot, strip_plot
from workbench.traces.findings import SMALLEST

_NUM_WORK = 10
_TOOLS: dict[Tool, str] = {
    "torch": "PyTorch's profiler",
    "onnxruntime": "ONNX Runtime's profiler",
    "openvino": "OpenVINO's counters, which say how long a node took but not when",
}


def profile_sections(reader: StudyReader, comparison: Comparison) -> list[Markup | None]:
    """Timelines, memory and findings of the rows that were profiled; empty where none was."""
    found = profiled_rows(reader, comparison)
    return [_time(found), _memory(found)] if found else []


def _time(found: list[Profiled]) -> Markup:
    strips = [
        Strip(label=label(one.row), said=_said(one), wall_s=one.wall_s, columns=one.columns)
        for one in found
        if one.columns
    ]
    return section(
        "Where a call's time goes",
        strip_plot(strips, KINDS, format_seconds) if strips else None,
        *(_fold(one) for one in found),
        lead="One recorded call of each variant, the one of median time, from left to right; a "
        "low column was partly idle. Recording slows a call, by as much as is said beside it: "
        f"these are no latencies. A finding is a known cause that takes {SMALLEST:.0%} of a call "
        "or more.",
    )


def _said(one: Profiled) -> str:
    where = "device" if one.on_device else "operators"
    share = one.busy_s / one.wall_s if one.wall_s else 0.0
    return (
        f"{format_seconds(one.wall_s)} recorded, {where} {share:.0%} busy; "
        f"{one.profile.slowdown:.2f}× as long as unrecorded"
    )


def _fold(one: Profiled) -> Markup:
    """A row's findings, always shown, and what the call went to, folded."""
    recipe = one.row.variant.recipe
    if one.fault:
        return element("p", element("b", f"#{one.row.number} {recipe.spec}: "), one.fault)
    return element(
        "details",
        element("summary", element("b", f"#{one.row.number} "), f"{recipe.spec}: {_headline(one)}"),
        element(
            "div",
            *(_finding(found.title, found.evidence, found.advice, found.levers, found.prize)
              for found in one.findings),
            _work_table(one),
            element("p", f"{one.profile.num_iterations} calls, by {_TOOLS[one.profile.tool]}: ",
                    element("code", one.profile.trace), class_="soft"),
        ),
    )  # fmt: skip


def _headline(one: Profiled) -> str:
    if not one.findings:
        return "no finding"
    first = one.findings[0]
    more = f", and {len(one.findings) - 1} more" if len(one.findings) > 1 else ""
    return f"{first.title} (at most {first.prize:.0%}){more}"


def _finding(
    title: str, evidence: str, advice: str, levers: tuple[str, ...], prize: float
) -> Markup:
    tries = f" Try {' or '.join(levers)}." if levers else ""
    return element(
        "p",
        element("b", f"{title}, at most {prize:.0%} of a call. "),
        f"{evidence} {advice}{tries}",
    )


def _work_table(one: Profiled) -> Markup:
    rows = [
        element(
            "tr",
            element("td", work.name),
            element("td", work.kind),
            element("td", str(work.num), class_="number"),
            element("td", format_seconds(work.seconds), class_="number"),
            element("td", _share(work.seconds, one.wall_s), class_="number"),
        )
        for work in one.work[:_NUM_WORK]
    ]
    titles = (("what ran", ""), ("kind", ""), ("times", "number"), ("time", "number"),
              ("of the call", "number"))  # fmt: skip
    head = element("tr", *(element("th", title, class_=kind or None) for title, kind in titles))
    return element("table", element("thead", head), element("tbody", *rows))


def _share(seconds: float, wall_s: float) -> str:
    share = seconds / wall_s
    return f"{share:.0%}" if share >= 0.005 or not share else "< 1%"


def _memory(found: list[Profiled]) -> Markup | None:
    strips = []
    for one in found:
        for line in one.memory:
            grown = line.before_bytes is None
            peak = format_bytes(line.peak_bytes)
            said = [f"peak {peak}" if not grown else f"at most {peak} more than at the start"]
            if line.before_bytes:
                said.append(f"{format_bytes(line.before_bytes)} before")
            largest = sorted(line.purposes.items(), key=lambda pair: -pair[1])[:3]
            said += [f"{purpose} {format_bytes(num)}" for purpose, num in largest if num]
            strips.append(MemoryStrip(label=label(one.row), said="; ".join(said), line=line))
    if not strips:
        return None
    return section(
        "Memory while calls were recorded",
        memory_plot(strips, format_bytes),
        lead="What the allocator had handed out, over the recorded calls; the dot marks the peak, "
        "and beside it stands what was live then. Only PyTorch's profiler records it.",
    )
