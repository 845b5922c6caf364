"""What the scheduler, its workers and its clients say to each other.

Every frame is one typed message in msgpack; arrays travel as raw bytes. Nothing that
arrives is ever unpickled.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TypeVar

import msgspec

from workbench.core.profile import Peaks, Tool

MAX_FRAME_BYTES = 256 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of every message."""


# Scheduler to worker -------------------------------------------------------------------


class Assign(Message, frozen=True, kw_only=True):
    """Turn a spare into a worker of one variant: its log, its environment, its memory limit."""

    log: str
    environment: dict[str, str] = {}
    memory_limit_bytes: int | None = None


class Prime(Message, frozen=True, kw_only=True):
    """Make a spare ready to export: imports and tables that its first export would pay for."""


class Prepare(Message, frozen=True, kw_only=True):
    """Turn a captured model into a source folder; answered by Prepared."""

    model_folder: str
    source_dir: str


class Build(Message, frozen=True, kw_only=True):
    """Run `build` of a pipeline file; `compile_once` also loads and calls it once."""

    pipeline: str
    source_dir: str
    out_dir: str
    compile_once: bool
    batch_size: int | None


class Load(Message, frozen=True, kw_only=True):
    """Import a pipeline file, run `load`, make its inputs and warm up; answered by Loaded.

    `device` is where it is served, so that its clocks are read after each round.
    """

    folder: str
    source_dir: str
    model_folder: str
    modules: list[str]
    batch_size: int | None
    warm_up_s: float
    device: str = "cpu"


class Calls(Message, frozen=True, kw_only=True):
    """Run one round; answered by RoundDone."""

    num_calls: int


class Evaluate(Message, frozen=True, kw_only=True):
    """Predict the evaluation rows into `out`, for at most `max_s`; answered by Evaluated."""

    out: str
    max_rows: int
    max_s: float


class EvaluateExactly(Message, frozen=True, kw_only=True):
    """Run the first `num_rows` rows in float64 on the CPU into `out`; answered by Evaluated."""

    source_dir: str
    model_folder: str
    out: str
    num_rows: int


class Inspect(Message, frozen=True, kw_only=True):
    """Say what really executes; the worker is retired afterwards. Answered by Inspected."""


class Record(Message, frozen=True, kw_only=True):
    """Profile calls of what is served into `out`; the worker is retired afterwards.

    `folder` is the artifact's, which some profilers open anew. Answered by Recorded.
    """

    tool: Tool
    folder: str
    out: str
    iterations: int
    stacks: bool
    device: str
    all_threads: bool


class MeasureExtras(Message, frozen=True, kw_only=True):
    """Memory, copies and energy, outside every round; answered by Extras."""

    energy_window_s: float
    device: str


class Exit(Message, frozen=True, kw_only=True):
    """Leave."""


# Worker to scheduler -------------------------------------------------------------------


class Ready(Message, frozen=True, kw_only=True):
    """The worker is up; `torch` says whether it has imported it."""

    pid: int
    torch: bool


class Done(Message, frozen=True, kw_only=True):
    """An order was carried out in `seconds`."""

    seconds: float
    compile_s: float | None = None


class Prepared(Message, frozen=True, kw_only=True):
    """The prepared model, as JSON of `PreparedModel`."""

    prepared: bytes
    seconds: float


class Loaded(Message, frozen=True, kw_only=True):
    """A variant is ready to be called. Seconds; None where a thing did not happen."""

    load_s: float
    first_call_s: float
    call_s: float
    first_calls_s: list[float]
    items_per_call: int
    num_warmup: int
    is_stable: bool
    preprocess: bool = False


class RoundDone(Message, frozen=True, kw_only=True):
    """One round; `calls_s` is little-endian float64."""

    num_calls: int
    num_items: int
    wall_s: float
    calls_s: bytes
    cpu_s: float | None = None
    num_switches: int | None = None
    event_s: float | None = None
    sm_clock_mhz: float | None = None
    throttled: list[str] | None = None


class Evaluated(Message, frozen=True, kw_only=True):
    """`num_rows` rows were predicted into the file that was named."""

    num_rows: int
    seconds: float
    is_real: bool


class Inspected(Message, frozen=True, kw_only=True):
    """What `Pipeline.inspect` returned, as JSON, with the versions of what was imported."""

    raw: bytes
    versions: dict[str, str]


class Extras(Message, frozen=True, kw_only=True):
    """JSON of MemoryReading and EnergyReading, and the seconds of a copy each way."""

    memory: bytes
    energy: bytes
    copy_in_s: float | None = None
    copy_out_s: float | None = None
    preprocess_s: float | None = None
    postprocess_s: float | None = None


class Recorded(Message, frozen=True, kw_only=True):
    """Where the recording and a GPU's memory snapshot are, a call's seconds, and the roof."""

    path: str
    num_iterations: int
    call_s: float
    recorded_call_s: float
    peaks: Peaks | None = None
    snapshot: str | None = None
    request: str | None = None


class Failed(Message, frozen=True, kw_only=True):
    """An order raised. `kind` is "exception" or "out_of_memory"."""

    kind: str
    error: str
    message: str
    traceback: str


class Note(Message, frozen=True, kw_only=True):
    """Progress in words, while an order is carried out."""

    text: str


# Client to scheduler and back ----------------------------------------------------------


class Submit(Message, frozen=True, kw_only=True):
    """Queue these recipes (specs); answered by Accepted or Refused. Options are JSON."""

    recipes: list[str]
    options: bytes


class Profile(Message, frozen=True, kw_only=True):
    """Record calls of these rows once nothing is measured any more; answered by Accepted.

    `token` comes back with what is told of them, and in what they leave.
    """

    numbers: list[int]
    iterations: int
    stacks: bool
    token: str


class Resume(Message, frozen=True, kw_only=True):
    """Queue these rows again, keeping what was measured where the process allows."""

    numbers: list[int]
    options: bytes | None = None


class Stop(Message, frozen=True, kw_only=True):
    """Stop these rows, or with None everything that is queued or running.

    `token` names profiles that one client asked for: then only these are stopped.
    """

    numbers: list[int] | None
    token: str | None = None


class Status(Message, frozen=True, kw_only=True):
    """Ask for the current state; answered by StatusReply."""


class Shutdown(Message, frozen=True, kw_only=True):
    """Stop everything and leave."""


class Accepted(Message, frozen=True, kw_only=True):
    """The numbers of the rows that were queued."""

    numbers: list[int]


class Refused(Message, frozen=True, kw_only=True):
    """Why a request was not taken: the error's class and its sentence."""

    error: str
    message: str


class StatusReply(Message, frozen=True, kw_only=True):
    """What runs and what waits; `profiling` are the rows with a profile to come."""

    pid: int
    active: list[int]
    queued: list[int]
    num_spares: int
    profiling: list[int] = []
    waiting_for_device: int | None = None


class Event(Message, frozen=True, kw_only=True):
    """One Progress, as JSON."""

    progress: bytes


ToWorker = (
    Assign
    | Prime
    | Prepare
    | Build
    | Load
    | Calls
    | Evaluate
    | EvaluateExactly
    | Inspect
    | Record
    | MeasureExtras
    | Exit
)
FromWorker = (
    Ready
    | Done
    | Prepared
    | Loaded
    | RoundDone
    | Evaluated
    | Inspected
    | Recorded
    | Extras
    | Failed
    | Note
)
ToScheduler = Submit | Profile | Resume | Stop | Status | Shutdown
FromScheduler = Accepted | Refused | StatusReply | Event

_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_to_scheduler = msgspec.msgpack.Decoder(ToScheduler)
_from_scheduler = msgspec.msgpack.Decoder(FromScheduler)
_encoder = msgspec.msgpack.Encoder()

C = TypeVar("C", bound="Connection")


def send(connection: Connection, message: Message) -> None:
    """Write one frame. Raises OSError where the other side is gone."""
    connection.send_bytes(_encoder.encode(message))


def receive_order(connection: Connection) -> ToWorker:
    """The next order, in a worker. Raises EOFError where the scheduler is gone."""
    return _to_worker.decode(connection.recv_bytes(MAX_FRAME_BYTES))


def receive_answer(connection: Connection) -> FromWorker:
    """The next answer of a worker. Raises EOFError or msgspec.ValidationError."""
    return _from_worker.decode(connection.recv_bytes(MAX_FRAME_BYTES))


def receive_request(connection: Connection) -> ToScheduler:
    """The next request of a client."""
    return _to_scheduler.decode(connection.recv_bytes(MAX_FRAME_BYTES))


def receive_reply(connection: Connection) -> FromScheduler:
    """The next message of the scheduler, in a client."""
    return _from_scheduler.decode(connection.recv_bytes(MAX_FRAME_BYTES))
