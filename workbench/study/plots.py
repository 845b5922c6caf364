"""Plots as inline SVG, drawn from plain records.

Across, everything is placed in per cent of the width, so that a plot fills a page of any
width while its text keeps its size; SVG paths know no per cent, so lines are made of
segments and marks are small drawings of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from workbench.study.comparison import Estimate
from workbench.study.markup import Markup, element, join
from workbench.study.table import Tone

_ROW_HEIGHT = 30
_SHAPES: dict[Tone, str] = {
    "good": "M0,-6 L6,5 L-6,5 Z",
    "bad": "M0,6 L6,-5 L-6,-5 Z",
    "warn": "M0,-6 L6,0 L0,6 L-6,0 Z",
    "quiet": "M-4,-4 L4,-4 L4,4 L-4,4 Z",
    "": "M-5,-2 L5,-2 L5,2 L-5,2 Z",
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A logarithmic or linear axis, from values to per cent of the width or pixels."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies; beyond the ends it stays at the end."""
        low, high = self._of(self.low), self._of(self.high)
        share = (self._of(value) - low) / (high - low) if high > low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 3)

    def _of(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.is_log else value

    def ticks(self, num: int = 6) -> list[float]:
        """Round values inside the axis, about as many as wanted."""
        if self.is_log:
            return self._log_ticks(num)
        step = _round_up((self.high - self.low) / max(1, num - 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_ticks(self, num: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 1.1, 1.2, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
            made = [d * 10.0**e for e in decades for d in digits]
            inside = [v for v in made if self.low <= v * (1 + 1e-9) and v <= self.high * (1 + 1e-9)]
            if len(inside) <= num:
                break
        return inside


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(d * power for d in (1, 2, 2.5, 5, 10) if d * power >= value * (1 - 1e-9))


@dataclass(frozen=True, kw_only=True)
class IntervalBar:
    """One line of the interval plot: a ratio with its interval."""

    label: Markup
    said: str
    tone: Tone
    ratio: float
    low: float | None
    high: float | None


def interval_plot(bars: Sequence[IntervalBar], floor: float | None) -> Markup:
    """Ratios on a log axis, with what the control can fake (a log ratio) behind them."""
    ends = [v for bar in bars for v in (bar.ratio, bar.low, bar.high) if v]
    low, high = min([0.9, *ends]), max([1.1, *ends])
    scale = Scale(low=low / 1.06, high=high * 1.06, start=2, end=98, is_log=True)
    ticks = scale.ticks(7)
    behind = [vertical(scale(tick), "grid") for tick in ticks]
    if floor:
        left, right = scale(math.exp(-floor)), scale(math.exp(floor))
        behind.insert(
            0,
            element(
                "rect", x=f"{left}%", width=f"{right - left}%", y=0, height="100%", class_="floor"
            ),
        )
    behind.append(vertical(scale(1.0), "axis"))
    lines = [plot_line(bar.label, _interval(bar, scale, behind), bar.said) for bar in bars]
    labels = [tick_text(scale(tick), f"{tick:g}×", 12) for tick in ticks]
    axis = svg(28, *labels, tick_text(2, "slower", 26, "start"), tick_text(98, "faster", 26, "end"))
    return element("div", *lines, plot_line(None, axis, ""), class_="lines")


def _interval(bar: IntervalBar, scale: Scale, behind: list[Markup]) -> Markup:
    middle = _ROW_HEIGHT / 2
    drawn = list(behind)
    if bar.low and bar.high:
        left, right = scale(bar.low), scale(bar.high)
        drawn.append(segment(left, middle, right, middle, f"whisker {bar.tone}"))
        for end in (left, right):
            drawn.append(segment(end, middle - 5, end, middle + 5, f"whisker {bar.tone}"))
    drawn.append(_mark(scale(bar.ratio), middle, bar.tone))
    return svg(_ROW_HEIGHT, *drawn, label=bar.said)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How often a call took how long: counts between edges that are even on a log axis."""

    label: Markup
    said: str
    edges_s: tuple[float, ...]
    counts: tuple[int, ...]
    median_s: float
    tails_s: tuple[float, ...]


def distribution_plot(
    distributions: Sequence[Distribution], format_tick: Callable[[float], str]
) -> Markup:
    """One small histogram a row on one log axis; a line at the median, dots at the tails."""
    low = min(d.edges_s[0] for d in distributions)
    high = max(d.edges_s[-1] for d in distributions)
    scale = Scale(low=low, high=high, start=2, end=98, is_log=True)
    ticks = scale.ticks(7)
    height = 38
    lines = []
    for each in distributions:
        highest = max(each.counts, default=1) or 1
        bars = []
        for (left_s, right_s), count in zip(pairwise(each.edges_s), each.counts, strict=True):
            if count:
                left, right = scale(left_s), scale(right_s)
                tall = max(1.0, (height - 8) * count / highest)
                bars.append(
                    element(
                        "rect",
                        x=f"{left}%",
                        width=f"{max(0.15, right - left):.3f}%",
                        y=round(height - tall, 2),
                        height=round(tall, 2),
                        class_="bin",
                    )
                )
        median = scale(each.median_s)
        tails = [
            element("circle", cx=f"{scale(t)}%", cy=height - 4, r=3, class_="tail")
            for t in each.tails_s
        ]
        grid = [vertical(scale(tick), "grid") for tick in ticks]
        drawn = svg(height, *grid, *bars, vertical(median, "median"), *tails, label=each.said)
        lines.append(plot_line(each.label, drawn, each.said))
    axis = svg(20, *(tick_text(scale(tick), format_tick(tick), 13) for tick in ticks))
    return element("div", *lines, plot_line(None, axis, ""), class_="lines")


@dataclass(frozen=True, kw_only=True)
class StackedBar:
    """One bar of parts that add up, in the order of the legend."""

    label: Markup
    said: str
    parts: tuple[float | None, ...]


def stacked_plot(
    bars: Sequence[StackedBar], names: Sequence[str], format_tick: Callable[[float], str]
) -> Markup:
    """Bars of parts on one linear axis from 0; the legend names the parts in their order."""
    high = max(sum(part or 0.0 for part in bar.parts) for bar in bars) or 1.0
    scale = Scale(low=0.0, high=high, start=2, end=98)
    ticks = scale.ticks(6)
    lines = []
    for bar in bars:
        drawn = [vertical(scale(tick), "grid") for tick in ticks]
        reached = 0.0
        for index, part in enumerate(bar.parts):
            if not part:
                continue
            left, right = scale(reached), scale(reached + part)
            title = element("title", f"{names[index]}: {format_tick(part)}")
            drawn.append(
                element(
                    "svg",
                    Markup(element("rect", width="100%", height=14, class_=f"part part-{index}")),
                    title,
                    x=f"{left}%",
                    y=8,
                    width=f"{max(0.1, right - left):.3f}%",
                    height=14,
                )
            )
            reached += part
        lines.append(plot_line(bar.label, svg(_ROW_HEIGHT, *drawn, label=bar.said), bar.said))
    axis = svg(20, *(tick_text(scale(tick), format_tick(tick), 13) for tick in ticks))
    named = [(name, f"part-{index}") for index, name in enumerate(names)]
    return join(legend(named), element("div", *lines, plot_line(None, axis, ""), class_="lines"))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One mark of a scatter plot."""

    name: str
    x: float
    y: Estimate
    tone: Tone
    said: str


def scatter_plot(
    points: Sequence[Point],
    *,
    x_title: str,
    y_title: str,
    format_y: Callable[[float], str],
    bound: float | None,
) -> Markup:
    """Ratios across (log axis) against a quality upwards, with the bound it must clear."""
    height, top, bottom = 340, 26, 292
    xs = [1.0, *(p.x for p in points)]
    ys = [v for p in points for v in (p.y.value, p.y.low, p.y.high) if v is not None]
    ys += [] if bound is None else [bound]
    pad = max((max(ys) - min(ys)) * 0.08, 1e-4)
    across = Scale(low=min(xs) / 1.15, high=max(xs) * 1.15, start=8, end=97, is_log=True)
    upwards = Scale(low=min(ys) - pad, high=max(ys) + pad, start=bottom, end=top)
    drawn = []
    for tick in across.ticks(7):
        drawn.append(segment(across(tick), top, across(tick), bottom, "grid"))
        drawn.append(tick_text(across(tick), f"{tick:g}×", bottom + 18))
    for tick in upwards.ticks(6):
        drawn.append(segment(8, upwards(tick), 97, upwards(tick), "grid"))
        drawn.append(tick_text(7.4, format_y(tick), upwards(tick) + 4, "end"))
    drawn.append(segment(across(1.0), top, across(1.0), bottom, "axis"))
    if bound is not None:
        drawn.append(segment(8, upwards(bound), 97, upwards(bound), "bound"))
        drawn.append(tick_text(97, "must be kept", upwards(bound) + 14, "end"))
    placed: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: p.x):
        x, y = across(point.x), upwards(point.y.value)
        if point.y.low is not None and point.y.high is not None:
            drawn.append(
                segment(
                    x, upwards(point.y.low), x, upwards(point.y.high), f"whisker thin {point.tone}"
                )
            )
        drawn.append(_mark(x, y, point.tone, point.said))
        label_y = y - 9
        while any(abs(x - px) < 2.5 and abs(label_y - py) < 13 for px, py in placed):
            label_y += 13
        placed.append((x, label_y))
        drawn.append(
            element(
                "svg",
                element("text", point.name, x=8, class_="name"),
                x=f"{x}%",
                y=label_y,
                overflow="visible",
            )
        )
    drawn.append(tick_text(97, x_title, bottom + 38, "end"))
    drawn.append(tick_text(8, y_title, 14, "start"))
    return element("div", svg(height, *drawn, label=f"{y_title} against {x_title}"), class_="plot")


def line_plot(
    points: Sequence[tuple[float, Estimate]], *, title: str, format_y: Callable[[float], str]
) -> Markup:
    """Values against batch size, both on log axes."""
    height, top, bottom = 240, 34, 196
    xs = [x for x, _ in points]
    ys = [v for _, y in points for v in (y.value, y.low, y.high) if v]
    across = Scale(low=min(xs) / 1.1, high=max(xs) * 1.1, start=16, end=95, is_log=True)
    upwards = Scale(low=min(ys) / 1.15, high=max(ys) * 1.15, start=bottom, end=top, is_log=True)
    drawn = [tick_text(2, title, 16, "start")]
    for tick in upwards.ticks(5):
        drawn.append(segment(16, upwards(tick), 95, upwards(tick), "grid"))
        drawn.append(tick_text(15, format_y(tick), upwards(tick) + 4, "end"))
    for x in xs:
        drawn.append(tick_text(across(x), f"{x:g}", bottom + 18))
    for (x0, y0), (x1, y1) in pairwise(points):
        drawn.append(segment(across(x0), upwards(y0.value), across(x1), upwards(y1.value), "curve"))
    for x, y in points:
        if y.low and y.high:
            drawn.append(
                segment(across(x), upwards(y.low), across(x), upwards(y.high), "whisker thin")
            )
        said = f"batch {x:g}: {format_y(y.value)}"
        drawn.append(
            _mark(
                across(x), upwards(y.value), "", said, shape="M-4,0 A4,4 0 1,0 4,0 A4,4 0 1,0 -4,0"
            )
        )
    drawn.append(tick_text(95, "batch size", bottom + 36, "end"))
    return element("div", svg(height, *drawn, label=title), class_="plot")


def legend(named: Sequence[tuple[str, str]]) -> Markup:
    """What colours stand for: names, each with the class of its swatch."""
    return element(
        "p",
        *(
            element("span", element("i", class_=f"swatch {kind}"), name, class_="legend")
            for name, kind in named
        ),
    )


def plot_line(label: Markup | None, drawn: Markup, said: str) -> Markup:
    """A row of a plot: its name, its drawing, and the same in words."""
    return join(
        element("div", label, class_="label"),
        element("div", drawn, class_="drawn"),
        element("div", said, class_="said"),
    )


def svg(height: float, *children: Markup, label: str = "") -> Markup:
    """A drawing of this height in pixels, as wide as its place."""
    return element(
        "svg",
        *children,
        width="100%",
        height=height,
        role="img" if label else None,
        aria_label=label or None,
    )


def segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A line; x in per cent of the width, y in pixels."""
    return element("line", x1=f"{x1}%", y1=y1, x2=f"{x2}%", y2=y2, class_=kind)


def vertical(x: float, kind: str) -> Markup:
    """A line from top to bottom at x per cent of the width."""
    return element("line", x1=f"{x}%", y1=0, x2=f"{x}%", y2="100%", class_=kind)


def tick_text(x: float, words: str, y: float, anchor: str = "middle") -> Markup:
    """A label of an axis; x in per cent of the width, y in pixels."""
    return element("text", words, x=f"{x}%", y=round(y, 2), text_anchor=anchor, class_="tick")


def _mark(x: float, y: float, tone: Tone, said: str = "", shape: str | None = None) -> Markup:
    inside: Iterable[Markup] = [
        element("path", d=shape or _SHAPES[tone], class_=f"mark {tone}"),
        *([element("title", said)] if said else []),
    ]
    return element("svg", *inside, x=f"{x}%", y=y, overflow="visible")
