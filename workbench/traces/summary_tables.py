"""What a trace says, as tables in a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.core.units import format_bytes, format_count, format_seconds
from workbench.traces.arithmetic import RooflinePoint
from workbench.traces.findings import SMALLEST
from workbench.traces.summary import MemoryUse, Summary
from workbench.traces.tables import DeviceTime, KernelRow
from workbench.traces.trace import Reading

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_ROWS = 15
_HTML_WIDTH = 130
_NS = 1e-9


def tables(summary: Summary) -> RenderableType:
    """The summary for a terminal: where the device's time went, then the host's."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(_headline(summary), style="bold")]
    parts += [Text(_device_line(summary, device)) for device in summary.devices]
    parts += [Text(sentence, style="yellow") for sentence in faults(summary.reading)]
    parts += [Text(), *_found(summary)]
    if summary.steps:
        parts += [Text(), _step_table(summary)]
    if summary.kernels:
        parts += [Text(), _kernel_table(summary)]
    if summary.host_steps:
        parts += [Text(), _host_table(summary)]
    if summary.request:
        parts += [Text(), Text(_request_line(summary), style="bold")]
    if summary.operators:
        parts += [Text(), _operator_table(summary)]
    if summary.operators_by_shape:
        parts += [Text(), _shape_table(summary)]
    if summary.modules:
        parts += [Text(), _module_table(summary)]
    for use in summary.memory:
        parts += [Text(), Text(_memory_line(use), style="bold"), Text(_purpose_line(use))]
        if use.blocks:
            parts.append(_block_table(use))
    return Group(*parts)


def html(shown: RenderableType) -> str:
    """The same for a notebook: text of even width, with its styles inside."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=_HTML_WIDTH, force_jupyter=False)
    console.print(shown)
    # The braces are those of rich's template; it escapes the text itself.
    frame = '<pre style="white-space:pre;overflow-x:auto;line-height:1.35">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=frame)


def faults(reading: Reading) -> list[str]:
    """What was wrong with the file, in sentences; none where it was whole."""
    counted = (
        (reading.num_dropped, "could not be read and are left out"),
        (reading.num_mended, "were written wrongly and are mended"),
        (reading.num_without_time, "have no time and are left out"),
        (reading.num_without_duration, "have no duration and count as 0"),
        (reading.num_negative_durations, "have a negative duration and count as 0"),
        (reading.num_not_understood, "are of a kind that is not read"),
    )
    num_all = reading.num_events + reading.num_dropped
    said = [f"{num} of {num_all} events {what}." for num, what in counted if num]
    return said + [note[:1].upper() + note[1:] + "." for note in reading.notes]


def _headline(summary: Summary) -> str:
    num = sum(summary.counts.values())
    kinds = ", ".join(f"{format_count(n)} {kind}" for kind, n in _most(summary.counts))
    span = format_seconds(summary.span_s)
    return f"{summary.name}: {format_count(num)} events in {span} ({kinds})"


def _device_line(summary: Summary, device: DeviceTime) -> str:
    named = next((p for p in summary.properties if p.number == device.device), None)
    name = f"Device {device.device}" if device.device is not None else "A device without a number"
    name += f" ({named.name})" if named and named.name else ""
    share = device.busy_ns / device.span_ns if device.span_ns else 0.0
    line = (
        f"{name}: busy {format_seconds(device.busy_ns * _NS)} of the "
        f"{format_seconds(device.span_ns * _NS)} from its first work to its last ({share:.0%})"
    )
    if summary.num_unlinked and len(summary.devices) == 1:
        line += f"; {summary.num_unlinked} of {device.num} have no launch in the trace"
    if device.num_clipped:
        line += (
            f"; {device.num_clipped} seem to outlast the next on their stream, and count until it"
        )
    return line


def _found(summary: Summary) -> list[RenderableType]:
    """The findings, or that there is none; nothing where there was nothing to look at."""
    from rich.text import Text

    if not summary.steps and not summary.host_steps:
        return []
    if not summary.findings:
        return [Text(f"No finding: no known cause takes {SMALLEST:.0%} of a step or more.")]
    parts: list[RenderableType] = [Text("What holds a step back", style="bold")]
    for one in summary.findings:
        parts.append(Text(f"{one.title} (at most {one.prize:.0%} of a step)", style="yellow"))
        tries = f" Try {' or '.join(one.levers)}." if one.levers else ""
        parts.append(Text(f"  {one.evidence} {one.advice}{tries}"))
    return parts


def _step_table(summary: Summary) -> RenderableType:
    rows = [
        (str(step.number) if step.number is not None else "all", str(step.device),
         _time(step.wall_ns), *(_share(part, step.wall_ns) for part in (
             step.compute_ns, step.communication_ns, step.copy_ns, step.loading_ns,
             step.host_bound_ns, step.synchronising_ns, step.dependency_ns + step.latency_ns,
             step.unexplained_ns)),
         "" if step.queue_depth is None else f"{step.queue_depth:.1f}")
        for step in summary.steps[:_SHOWN_ROWS]
    ]  # fmt: skip
    titles = (
        "step", "device", "time", "computing", "communicating", "copying", "idle: data",
        "idle: host", "idle: sync", "idle: latency", "idle: ?", "queued",
    )  # fmt: skip
    return _table(titles, rows, len(summary.steps), "Steps, and what the device did in them")


def _kernel_table(summary: Summary) -> RenderableType:
    rows = [
        (row.short, row.kind, str(row.num), _time(row.total_ns), f"{row.share:.1%}",
         _time(row.total_ns // row.num), _time(row.most_ns), _achieved(row))
        for row in summary.kernels[:_SHOWN_ROWS]
    ]  # fmt: skip
    total_ns = sum(summary.classes.values())
    classes = ", ".join(f"{kind} {ns / total_ns:.0%}" for kind, ns in summary.classes.items() if ns)
    titles = ("kernel or copy", "kind", "calls", "total", "share", "mean", "longest",
              "achieved")  # fmt: skip
    return _table(titles, rows, len(summary.kernels), f"Work of the device: {classes}")


def _host_table(summary: Summary) -> RenderableType:
    rows = [
        (str(step.number) if step.number is not None else "all", _time(step.wall_ns),
         *(_share(part, step.wall_ns) for part in (
             step.operators_ns, step.waiting_ns, step.loading_ns, step.overhead_ns,
             step.python_ns)))
        for step in summary.host_steps[:_SHOWN_ROWS]
    ]  # fmt: skip
    titles = ("step", "time", "operators", "waiting", "loading data", "profiler", "Python between")
    return _table(titles, rows, len(summary.host_steps), "What the host's thread did in them")


def _request_line(summary: Summary) -> str:
    said = ", ".join(f"{part.name} {_time(part.ns)} ({part.share:.0%})" for part in summary.request)
    return f"A request: {said}"


def _operator_table(summary: Summary) -> RenderableType:
    rows = [
        (row.name, str(row.num), _time(row.device_self_ns), _time(row.device_ns),
         _time(row.self_ns), _time(row.host_ns))
        for row in summary.operators[:_SHOWN_ROWS]
    ]  # fmt: skip
    titles = ("operator", "calls", "device, own", "device, all", "host, own", "host, all")
    on_device = bool(summary.devices)
    headline = "Operators, by what they launched" if on_device else "Operators"
    return _table(titles, rows, len(summary.operators), headline, on_device=on_device)


def _shape_table(summary: Summary) -> RenderableType:
    known = [row for row in summary.operators_by_shape if row.shape is not None]
    points = {(point.name, point.shape): point for point in summary.roofline}
    rows = [
        (row.name, row.shape or "", str(row.num), _time(row.device_self_ns), _time(row.self_ns),
         *_roof(points.get((row.name, row.shape or ""))))
        for row in known[:_SHOWN_ROWS]
    ]  # fmt: skip
    titles = (
        "operator",
        "operands",
        "calls",
        "device, own",
        "host, own",
        "achieved",
        "of the roof",
    )
    headline, on_device = "Operators by their operands", bool(summary.devices)
    return _table(titles, rows, len(known), headline, on_device=on_device)


def _module_table(summary: Summary) -> RenderableType:
    rows = [
        (".".join(row.path), "" if row.num is None else str(row.num), _time(row.device_ns),
         _time(row.own_device_ns), _time(row.host_ns), _time(row.own_host_ns))
        for row in summary.modules[:_SHOWN_ROWS]
    ]  # fmt: skip
    titles = ("part", "calls", "device, all", "device, own", "host, all", "host, own")
    num_all, on_device = len(summary.modules), bool(summary.devices)
    return _table(titles, rows, num_all, "Parts of the model", on_device=on_device)


def _memory_line(use: MemoryUse) -> str:
    where = "the host" if use.device is None else f"device {use.device}"
    if use.before_bytes is None:
        # What was freed but never seen allocated may be more than what was.
        return f"Memory of {where}: at most {format_bytes(use.peak_bytes)} more than at the start"
    line = (
        f"Memory of {where}: at most {format_bytes(use.peak_bytes)} in use, "
        f"{format_bytes(use.before_bytes)} before the first of {use.num_events} events"
    )
    if use.reserved_bytes is not None:
        line += f"; {format_bytes(use.reserved_bytes)} reserved"
    return line


def _purpose_line(use: MemoryUse) -> str:
    said = ", ".join(f"{purpose} {format_bytes(num)}" for purpose, num in use.purposes.items())
    return f"At the peak: {said}" if said else "What it was for is not recorded"


def _block_table(use: MemoryUse) -> RenderableType:
    rows = [
        (format_bytes(block.num_bytes), block.purpose, block.operator or "–",
         ".".join(block.part or ()))
        for block in use.blocks
    ]  # fmt: skip
    return _table(("bytes", "kind", "operator", "part"), rows, len(rows), "Largest blocks then")


def _table(
    titles: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    num_all: int,
    headline: str,
    *,
    on_device: bool = True,
) -> RenderableType:
    """Titled rows; without a device the columns of its time are left out."""
    from rich.table import Table
    from rich.text import Text

    if not on_device:
        kept = [place for place, title in enumerate(titles) if not title.startswith("device, ")]
        titles = tuple(titles[place] for place in kept)
        rows = [tuple(row[place] for place in kept) for row in rows]

    more = f" ({len(rows)} of {num_all})" if num_all > len(rows) else ""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title=Text(headline + more),
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    for title in titles:
        is_text = title in ("kernel or copy", "kind", "operator", "operands", "part")
        table.add_column(title, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        # Names are data: nothing in them is markup.
        table.add_row(*map(Text, row))
    return table


def _roof(point: RooflinePoint | None) -> tuple[str, str]:
    """Operations a second, and their share of what the device reaches at that intensity."""
    if point is None:
        return "", ""
    share = point.share_of_roof
    return _rate(point.rate), "" if share is None else f"{share:.0%}"


def _rate(flops: float) -> str:
    """ "1.2 TFLOP/s"."""
    for scale, unit in ((1e12, "T"), (1e9, "G")):
        if flops >= scale:
            return f"{flops / scale:.3g} {unit}FLOP/s"
    return f"{flops / 1e6:.3g} MFLOP/s"


def _achieved(row: KernelRow) -> str:
    if row.bandwidth is not None:
        return f"{format_bytes(row.bandwidth)}/s"
    return "" if row.occupancy is None else f"{row.occupancy:.0%} occupied"


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: -pair[1])[:5]


def _share(part_ns: int, whole_ns: int) -> str:
    return f"{part_ns / whole_ns:.0%}" if part_ns and whole_ns else ""


def _time(ns: int) -> str:
    return format_seconds(ns * _NS)
