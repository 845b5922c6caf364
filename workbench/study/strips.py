"""Plots of a profile as inline SVG: what a call went to over its time, and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.study.markup import Markup, element, join
from workbench.study.plots import (
    Scale,
    legend,
    plot_line,
    segment,
    svg,
    tick_text,
    vertical,
)
from workbench.study.profiled import Column, MemoryLine

_STRIP = 26
_CURVE = 64


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One call on a common time axis, seconds from its begin."""

    label: Markup
    said: str
    wall_s: float
    columns: tuple[Column, ...]


def strip_plot(
    strips: Sequence[Strip], kinds: Sequence[str], format_tick: Callable[[float], str]
) -> Markup:
    """Calls below one another; a column's colour is what most of it went to.

    The legend names the kinds that occur, in the order of `kinds`; a column that was partly idle
    is lower.
    """
    high = max(strip.wall_s for strip in strips)
    scale = Scale(low=0.0, high=high, start=2, end=98)
    ticks = scale.ticks(6)
    lines = []
    for strip in strips:
        drawn = [vertical(scale(tick), "grid") for tick in ticks]
        drawn += [_column(column, scale, kinds, format_tick) for column in strip.columns]
        drawn.append(vertical(scale(strip.wall_s), "end"))
        lines.append(plot_line(strip.label, svg(_STRIP, *drawn, label=strip.said), strip.said))
    axis = svg(20, *(tick_text(scale(tick), format_tick(tick), 13) for tick in ticks))
    seen = {column.kind for strip in strips for column in strip.columns}
    named = [(name, f"kind-{index}") for index, name in enumerate(kinds) if name in seen]
    return join(
        legend(named), element("div", *lines, plot_line(None, axis, ""), class_="lines strips")
    )


def _column(
    column: Column, scale: Scale, kinds: Sequence[str], format_tick: Callable[[float], str]
) -> Markup:
    left, right = scale(column.start_s), scale(column.end_s)
    tall = max(2.0, (_STRIP - 4) * column.fill)
    said = f"{column.name} ({column.kind}), {format_tick(column.start_s)} to "
    return element(
        "svg",
        element(
            "rect", width="100%", height="100%", class_=f"kind kind-{kinds.index(column.kind)}"
        ),
        element("title", said + format_tick(column.end_s)),
        x=f"{left}%",
        y=round(_STRIP - 2 - tall, 2),
        width=f"{max(0.1, right - left):.3f}%",
        height=round(tall, 2),
    )


@dataclass(frozen=True, kw_only=True)
class MemoryStrip:
    """One row's memory over its recording."""

    label: Markup
    said: str
    line: MemoryLine


def memory_plot(strips: Sequence[MemoryStrip], format_bytes: Callable[[float], str]) -> Markup:
    """Bytes in use over each recording, on one scale upwards; the mark is the peak."""
    high = max(max(strip.line.num_bytes) for strip in strips)
    low = min(0, *(min(strip.line.num_bytes) for strip in strips))
    upwards = Scale(low=low, high=high or 1, start=_CURVE - 2, end=8)
    lines: list[Markup] = []
    for strip in strips:
        line = strip.line
        last_s = line.times_s[-1] + (line.times_s[1] - line.times_s[0])
        across = Scale(low=0.0, high=last_s, start=2, end=98)
        drawn = [segment(2, upwards(value), 98, upwards(value), "grid") for value in (0, high)]
        ends_s = (*line.times_s[1:], last_s)
        for start_s, end_s, value in zip(line.times_s, ends_s, line.num_bytes, strict=True):
            left, right = across(start_s), across(end_s)
            top, bottom = sorted((upwards(value), upwards(0)))
            drawn.append(
                element(
                    "rect",
                    x=f"{left}%",
                    width=f"{right - left + 0.05:.3f}%",
                    y=top,
                    height=round(max(0.5, bottom - top), 2),
                    class_="held",
                )
            )
        drawn.append(
            element(
                "circle", cx=f"{across(line.peak_s)}%", cy=upwards(line.peak_bytes), r=3.5,
                class_="tail",
            )
        )  # fmt: skip
        if not lines:
            # The scale is one for all.
            drawn.append(tick_text(98, format_bytes(high), 3, "end"))
        lines.append(plot_line(strip.label, svg(_CURVE, *drawn, label=strip.said), strip.said))
    return element("div", *lines, class_="lines spaced")
