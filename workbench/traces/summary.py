"""What a trace says: every table of it, and all of them as one document."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from workbench.core.json import Json
from workbench.core.profile import Profile
from workbench.traces.arithmetic import RooflinePoint, roofline
from workbench.traces.enclosure import Enclosure, enclose
from workbench.traces.findings import findings
from workbench.traces.host import HostStep, host_steps
from workbench.traces.links import link
from workbench.traces.memory import Block, Curve, curves, live
from workbench.traces.modules import ModuleRow, module_rows
from workbench.traces.requests import RequestPart, request_parts
from workbench.traces.rules import Finding
from workbench.traces.steps import Step, steps
from workbench.traces.tables import (
    DeviceTime,
    KernelRow,
    OperatorRow,
    class_times,
    device_times,
    kernel_rows,
    operator_rows,
)
from workbench.traces.trace import DeviceProperties, Reading, Trace

SCHEMA_VERSION = 1
# Of the blocks in use at the peak.
_MOST_BLOCKS = 15
_NS = 1e-9


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The memory of one device (None: the host), before its first event and at its peak.

    `before_bytes` is None where the file gives no totals; then the peak is what was added.
    """

    device: int | None
    num_events: int
    before_bytes: int | None
    peak_bytes: int
    peak_time_ns: int
    reserved_bytes: int | None
    purposes: dict[str, int]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The tables of one trace. `span_s` goes from its first event to the end of the last."""

    name: str
    span_s: float
    counts: dict[str, int]
    reading: Reading
    properties: tuple[DeviceProperties, ...]
    devices: tuple[DeviceTime, ...]
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]
    host_steps: tuple[HostStep, ...]
    request: tuple[RequestPart, ...]
    num_unlinked: int
    num_before_launch: int
    classes: dict[str, int]
    kernels: tuple[KernelRow, ...]
    operators: tuple[OperatorRow, ...]
    operators_by_shape: tuple[OperatorRow, ...]
    roofline: tuple[RooflinePoint, ...]
    modules: tuple[ModuleRow, ...]
    memory: tuple[MemoryUse, ...]


def summarise(trace: Trace, name: str, profile: Profile | None = None) -> Summary:
    """Every table of a trace; `name` is what it is called in them.

    `profile` is the study's record of it, where it is one's: then the device's roof is known, and
    what recording added.
    """
    span_ns = int(trace.end_ns.max() - trace.start_ns.min()) if len(trace) else 0
    links, enclosure = link(trace), enclose(trace)
    found = steps(trace, links)
    slowdown = None if profile is None else profile.slowdown
    kernels = kernel_rows(trace)
    by_shape = operator_rows(trace, links, enclosure, by_shape=True) if trace.shapes else ()
    return Summary(
        name=name,
        span_s=span_ns * _NS,
        counts={str(kind): num for kind, num in trace.counts().items()},
        reading=trace.reading,
        properties=trace.devices,
        devices=device_times(trace),
        findings=findings(trace, slowdown, links=links, enclosure=enclosure, found=found),
        steps=found,
        host_steps=host_steps(trace),
        request=request_parts(trace),
        num_unlinked=links.num_unlinked,
        num_before_launch=links.num_before_launch,
        classes={str(kind): total_ns for kind, total_ns in class_times(kernels).items()},
        kernels=kernels,
        operators=operator_rows(trace, links, enclosure),
        operators_by_shape=by_shape,
        roofline=roofline(by_shape, None if profile is None else profile.peaks),
        modules=module_rows(trace, links, enclosure),
        memory=tuple(_memory_use(trace, curve, enclosure) for curve in curves(trace)),
    )


def _memory_use(trace: Trace, curve: Curve, enclosure: Enclosure) -> MemoryUse:
    found = live(trace, curve, enclosure=enclosure)
    reserved = curve.reserved_bytes
    return MemoryUse(
        device=curve.device,
        num_events=len(curve.rows),
        before_bytes=curve.before_bytes,
        peak_bytes=found.allocated_bytes,
        peak_time_ns=found.time_ns,
        reserved_bytes=None if reserved is None else int(reserved.max()),
        purposes={str(purpose): num for purpose, num in found.by_purpose().items()},
        blocks=found.blocks[:_MOST_BLOCKS],
    )


def document(summary: Summary) -> dict[str, Json]:
    """The summary as JSON; `docs/json.md` says what its keys hold. Times are nanoseconds."""
    made = asdict(summary)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace",
        **{key: _plain(value) for key, value in made.items()},
    }


def _plain(value: object) -> Json:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    assert value is None or isinstance(value, bool | int | float | str)
    return value
