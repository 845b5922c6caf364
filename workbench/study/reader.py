"""A study as its clients see it: read-only, while the scheduler writes."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from workbench.core.device import Host
from workbench.core.errors import RecipeError, StudyError
from workbench.core.evidence import Evidence
from workbench.core.failure import Failure
from workbench.core.measurement import (
    ColdStart,
    EnergyReading,
    MemoryReading,
    Pair,
    Quality,
    Round,
    Visit,
)
from workbench.core.model import Model, PreparedModel
from workbench.core.profile import Profile
from workbench.core.recipe import Recipe
from workbench.core.variant import Role, RunOptions, State, Variant
from workbench.study import schema
from workbench.study.codec import decode, decode_calls, decode_model

FILE = "study.sqlite"
BUSY_TIMEOUT_S = 20.0
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
# Columns of `variants` that hold a record as JSON, and its type.
JSON_COLUMNS: dict[str, Any] = {
    "options": RunOptions,
    "evidence": Evidence,
    "cold_start": ColdStart,
    "memory": MemoryReading,
    "energy": EnergyReading,
    "quality": Quality,
    "failure": Failure,
    "versions": dict[str, str],
    "notes": tuple[str, ...],
}
BOOL_COLUMNS = ("artifact_cached", "started_cold")
_VISIT_COLUMNS = ("number", "started_s", "host_load", "baseline_process", "variant_process")
_ROUND_COLUMNS = (
    "ran_first",
    "num_calls",
    "num_items",
    "wall_s",
    "cpu_s",
    "num_switches",
    "event_s",
    "sm_clock_mhz",
    "throttled",
    "calls_s",
)
T = TypeVar("T")


class StudyReader:
    """Reads one study's database; any number may be open beside the writer.

    Every method raises StudyError where the file is damaged. Safe to use from several
    threads.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.path = self.folder / FILE
        if not self.path.is_file():
            raise StudyError(
                f"{self.folder} is not a study: it has no {FILE}. "
                "Name a folder that `workbench run` or `Study` made."
            )
        self._lock = threading.RLock()
        self._connection = self._connect()
        try:
            with self._reading():
                self._open(self._connection)
        except StudyError:
            self._connection.close()
            raise

    def _open(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA trusted_schema = OFF")
        schema.verify(connection, self.path)

    def _connect(self) -> sqlite3.Connection:
        return connect_read_only(self.path)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> StudyReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.OperationalError as error:
                raise StudyError(f"{self.path} cannot be read: {error}.") from error
            except sqlite3.DatabaseError as error:
                raise StudyError(
                    f"{self.path} is damaged or is not a study's database ({error}). "
                    "Restore it from a copy, or start a new study."
                ) from error

    def revision(self) -> int:
        """A number that changes when another process has written something."""
        with self._reading() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])

    def _meta(self, key: str) -> str | None:
        with self._reading() as db:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def model(self) -> Model:
        """The model that the study is about; its folder is absolute."""
        text = self._meta("model")
        if text is None:
            raise StudyError(f"{self.path} names no model; start a new study.")
        return replace(decode_model(text), folder=str(self.folder / "model"))

    def prepared(self) -> PreparedModel | None:
        """The prepared model, or None before a worker made it."""
        text = self._meta("prepared")
        return None if text is None else decode(text, PreparedModel)

    def host(self) -> Host | None:
        """What the study's interpreter has, or None before it was probed."""
        text = self._meta("host")
        return None if text is None else decode(text, Host)

    def python(self) -> str | None:
        """The interpreter that runs the workers; None where the client's own does."""
        return self._meta("python")

    def created_s(self) -> float | None:
        """When the study was made, in seconds since the epoch."""
        text = self._meta("created_s")
        return None if text is None else float(text)

    def workbench_version(self) -> str | None:
        """The version of the workbench that made the study."""
        return self._meta("workbench")

    def variants(self) -> Sequence[Variant]:
        """Every row, the control included, by number."""
        with self._reading() as db:
            cursor = db.execute("SELECT * FROM variants ORDER BY number")
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        return [_variant(dict(zip(names, row, strict=True))) for row in rows]

    def variant(self, number: int) -> Variant:
        """One row. Raises StudyError where there is none of that number."""
        with self._reading() as db:
            cursor = db.execute("SELECT * FROM variants WHERE number = ?", (number,))
            names = [column[0] for column in cursor.description]
            row = cursor.fetchone()
        if row is None:
            raise StudyError(f"the study {self.folder} has no variant {number}.")
        return _variant(dict(zip(names, row, strict=True)))

    def visits(self, number: int) -> Sequence[Visit]:
        """Every visit of a row against the baseline, in order."""
        with self._reading() as db:
            # One statement, so that a visit written meanwhile is seen whole or not at all.
            rows = db.execute(
                f"""SELECT {", ".join(f"v.{name}" for name in _VISIT_COLUMNS)}, r.pair, r.side,
                           {", ".join(f"r.{name}" for name in _ROUND_COLUMNS)}
                    FROM visits v LEFT JOIN rounds r ON r.variant = v.variant
                         AND r.visit = v.number
                    WHERE v.variant = ? ORDER BY v.number, r.pair, r.side""",
                (number,),
            ).fetchall()
        num = len(_VISIT_COLUMNS)
        grouped: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
        for row in rows:
            pair, side, *rest = row[num:]
            pairs = grouped.setdefault(row[:num], {})
            if pair is not None:
                pairs.setdefault(pair, {})[side] = dict(zip(_ROUND_COLUMNS, rest, strict=True))
        return [self._visit(visit, list(pairs.values())) for visit, pairs in grouped.items()]

    def _visit(self, columns: tuple[Any, ...], pairs: list[dict[str, Any]]) -> Visit:
        row = _convert(dict(zip(_VISIT_COLUMNS, columns, strict=True)), _VisitRow)
        made = {name: getattr(row, name) for name in _VISIT_COLUMNS}
        return Visit(pairs=tuple(self._pair(sides) for sides in pairs), **made)

    def _pair(self, sides: dict[str, Any]) -> Pair:
        if sides.keys() != {"baseline", "variant"}:
            raise StudyError(f"{self.path} holds half a pair of rounds; it is damaged.")
        return Pair(
            baseline=_round(sides["baseline"]),
            variant=_round(sides["variant"]),
            baseline_first=bool(sides["baseline"]["ran_first"]),
        )

    def profiles(self, number: int) -> Sequence[Profile]:
        """What was recorded of a row, oldest first."""
        with self._reading() as db:
            # A study of an earlier schema that is only read has no such table.
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'profiles'").fetchone():
                return []
            rows = db.execute(
                "SELECT record FROM profiles WHERE variant = ? ORDER BY number", (number,)
            ).fetchall()
        found = [decode(record, Profile) for (record,) in rows]
        for one in found:
            seconds = (one.call_s, one.recorded_call_s)
            if not all(0 < s < math.inf for s in seconds) or one.slowdown == math.inf:
                raise StudyError(
                    f"the record of a profile of #{number} holds no time; it is damaged."
                )
        return found

    def recording(self, path: str) -> Path:
        """A recording's file, by its path in a Profile.

        Raises StudyError where the record points outside the study, or the file is gone.
        """
        try:
            found = (self.folder / path).resolve()
            is_there = found.is_file()
        except (OSError, ValueError) as error:
            raise StudyError(f"a profile names a file that no system has: {error}.") from error
        if not found.is_relative_to(self.folder / "traces"):
            raise StudyError(
                f"a profile names {path!r} as its recording, which is not one of the study's; the "
                "record is not to be trusted."
            )
        if not is_there:
            raise StudyError(f"{found} is gone; profile the variant again.")
        return found

    def artifact_folder(self, variant: Variant) -> Path | None:
        """The folder that building the row left, or None where it has none.

        Raises StudyError where the record points outside the study.
        """
        if variant.artifact is None:
            return None
        if not _FOLDER_NAME.match(variant.artifact):
            raise StudyError(
                f"variant {variant.number} names {variant.artifact!r} as its artifact, which is "
                "not a folder of the study; the record is not to be trusted."
            )
        return self.folder / "artifacts" / variant.artifact

    def variant_folder(self, number: int) -> Path:
        """Where the row's log.txt and outputs.npz lie."""
        return self.folder / "variants" / str(int(number))


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a database for reading, also one on a read-only medium.

    Raises StudyError where it cannot be opened at all.
    """
    # `?`, `#` and `%` in a folder's name would otherwise be read as parts of the address.
    uri = path.as_uri()
    first: sqlite3.Error | None = None
    # A WAL database needs its -shm file, which a read-only folder cannot get; what lies
    # there has no writer either, so it may be read as it is.
    for flags in ("mode=ro", "mode=ro&immutable=1"):
        try:
            connection = sqlite3.connect(
                f"{uri}?{flags}", uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
            )
        except sqlite3.Error as error:
            first = first or error
            continue
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            first = first or error
            connection.close()
            continue
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StudyError(
                f"{path} is not a study's database ({error}). "
                "Name a folder that `workbench run` or `Study` made."
            ) from error
        return connection
    raise StudyError(f"{path} cannot be opened: {first}.") from first


class _VariantRow(msgspec.Struct, kw_only=True):
    # SQLite does not hold a column to its type, least of all in a stranger's file.
    number: int
    role: Role
    recipe: str
    state: State
    stage: str
    options: str
    submitted_s: float | None
    finished_s: float | None
    artifact: str | None
    artifact_cached: int | None
    size_bytes: int | None
    items_per_call: int | None
    started_cold: int | None
    first_ratio: float | None
    device: str | None
    evidence: str | None
    cold_start: str | None
    memory: str | None
    energy: str | None
    quality: str | None
    failure: str | None
    versions: str | None
    notes: str


class _VisitRow(msgspec.Struct, kw_only=True):
    number: int
    started_s: float
    host_load: float | None
    baseline_process: int
    variant_process: int


class _RoundRow(msgspec.Struct, kw_only=True):
    ran_first: int
    num_calls: int
    num_items: int
    wall_s: float
    cpu_s: float | None
    num_switches: int | None
    event_s: float | None
    sm_clock_mhz: float | None
    throttled: str | None
    calls_s: bytes


def _variant(columns: dict[str, Any]) -> Variant:
    row = _convert(columns, _VariantRow)
    values: dict[str, Any] = {name: getattr(row, name) for name in columns}
    for column, kind in JSON_COLUMNS.items():
        text = values[column]
        values[column] = None if text is None else decode(text, kind)
    for column in BOOL_COLUMNS:
        values[column] = None if values[column] is None else bool(values[column])
    try:
        values["recipe"] = Recipe.from_json(decode(row.recipe, dict[str, Any]))
    except RecipeError as error:
        raise StudyError(f"the recipe of variant {row.number} cannot be read: {error}") from error
    return Variant(**values)


def _round(columns: dict[str, Any]) -> Round:
    row = _convert(columns, _RoundRow)
    if not math.isfinite(row.wall_s) or row.num_items < 1 or row.num_calls < 1:
        raise StudyError("the study's record of a round holds no time; it is damaged.")
    return Round(
        num_calls=row.num_calls,
        num_items=row.num_items,
        wall_s=row.wall_s,
        calls_s=decode_calls(row.calls_s),
        cpu_s=row.cpu_s,
        num_switches=row.num_switches,
        event_s=row.event_s,
        sm_clock_mhz=row.sm_clock_mhz,
        throttled=None if row.throttled is None else decode(row.throttled, tuple[str, ...]),
    )


def _convert(columns: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(columns, kind)
    except msgspec.ValidationError as error:
        raise StudyError(f"a record of the study cannot be read: {error}.") from error
