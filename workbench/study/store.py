"""A study's database as its one writer sees it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.core.device import Host
from workbench.core.errors import StudyError
from workbench.core.failure import Failure
from workbench.core.measurement import Round, Visit
from workbench.core.model import Model, PreparedModel
from workbench.core.profile import Profile
from workbench.core.recipe import Recipe, canonical
from workbench.core.variant import FINAL_STATES, Role, RunOptions, Variant
from workbench.study import schema
from workbench.study.codec import encode, encode_calls
from workbench.study.reader import BUSY_TIMEOUT_S, FILE, JSON_COLUMNS, StudyReader

_COLUMNS = tuple(field.name for field in dataclasses.fields(Variant))


class Store(StudyReader):
    """The writer of one study: `run.records.Records` on SQLite.

    Every method has committed when it returns, so that a killed scheduler loses nothing
    that was reported. `Store.create` makes a study, `Store(folder)` reopens one. The file
    is in WAL mode: readers never wait for the writer, nor it for them.
    """

    @classmethod
    def create(cls, folder: str | Path, model: Model, *, python: str | None = None) -> Store:
        """Make a study's folder for a model, and copy `model.folder` into it.

        Raises StudyError where the folder already holds something.
        """
        folder = Path(folder).expanduser().resolve()
        if folder.is_dir() and any(folder.iterdir()):
            raise StudyError(
                f"{folder} already holds something; name another folder, "
                "or open the study in it with Study.open."
            )
        if folder.exists() and not folder.is_dir():
            raise StudyError(f"{folder} is a file; a study needs a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("source", "artifacts", "variants", "caches"):
            (folder / part).mkdir()
        # What a model holds is the user's own business, on a machine that others use too.
        folder.chmod(0o700)
        shutil.copytree(model.folder, folder / "model")
        _make_database(folder, model, python)
        return cls(folder)

    def _connect(self) -> sqlite3.Connection:
        connection = _connect_writer(self.path)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StudyError(
                f"{self.path} is damaged or is not a study's database ({error})."
            ) from error
        return connection

    def _open(self, connection: sqlite3.Connection) -> None:
        super()._open(connection)
        schema.upgrade(connection, self.path)

    def __enter__(self) -> Store:
        return self

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _set_meta(self, key: str, value: str) -> None:
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def set_prepared(self, prepared: PreparedModel) -> None:
        """Note what a worker found when it prepared the model."""
        self._set_meta("prepared", encode(prepared))

    def set_host(self, host: Host) -> None:
        """Note what the study's interpreter has."""
        self._set_meta("host", encode(host))

    def add_variant(self, recipe: Recipe, role: Role, options: RunOptions) -> Variant:
        """A new row in state "queued"; its number is one more than the highest.

        The control, which no table shows, is number 0.
        """
        with self._writing() as db:
            highest = db.execute("SELECT coalesce(max(number), 0) FROM variants").fetchone()[0]
            variant = Variant(
                number=0 if role == "control" else highest + 1,
                role=role,
                recipe=recipe,
                state="queued",
                options=options,
                submitted_s=time.time(),
            )
            _write(db, variant)
        return variant

    def update(self, number: int, **changes: Any) -> Variant:
        """Replace fields of a row, `dataclasses.replace` style, and return it."""
        assert "number" not in changes, "a row keeps its number"
        with self._writing() as db:
            variant = dataclasses.replace(self.variant(number), **changes)
            _write(db, variant)
        return variant

    def add_visit(self, number: int, visit: Visit) -> None:
        """Keep a visit with its raw rounds. Raises StudyError where the row has it already."""
        with self._writing() as db:
            try:
                db.execute(
                    "INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        number,
                        visit.number,
                        visit.started_s,
                        visit.host_load,
                        visit.baseline_process,
                        visit.variant_process,
                    ),
                )
            except sqlite3.IntegrityError as error:
                raise StudyError(
                    f"visit {visit.number} of variant {number} cannot be kept: {error}."
                ) from error
            for index, pair in enumerate(visit.pairs):
                for side, round_, first in (
                    ("baseline", pair.baseline, pair.baseline_first),
                    ("variant", pair.variant, not pair.baseline_first),
                ):
                    row = (number, visit.number, index, side, int(first), *_columns(round_))
                    db.execute(f"INSERT INTO rounds VALUES ({', '.join('?' * len(row))})", row)

    def add_profile(self, number: int, profile: Profile) -> None:
        """Keep what was recorded of a row, beside earlier recordings of it."""
        with self._writing() as db:
            highest = db.execute(
                "SELECT coalesce(max(number), 0) FROM profiles WHERE variant = ?", (number,)
            ).fetchone()[0]
            db.execute(
                "INSERT INTO profiles VALUES (?, ?, ?)", (number, highest + 1, encode(profile))
            )

    def clear_visits(self, number: int) -> None:
        """Forget a row's visits, before it is measured anew."""
        with self._writing() as db:
            db.execute("DELETE FROM visits WHERE variant = ?", (number,))

    def mark_interrupted(self) -> list[int]:
        """Close the rows that a dead scheduler left open, and return their numbers.

        For a scheduler that opens the study: no other can be at work on it.
        """
        open_rows = [row for row in self.variants() if row.state not in FINAL_STATES]
        for row in open_rows:
            doing = f"while it was {row.state}" if row.state != "queued" else "before it began"
            self.update(
                row.number,
                state="interrupted",
                finished_s=time.time(),
                failure=Failure(
                    kind="interrupted",
                    stage=_stage_of(row),
                    message=f"The scheduler ended {doing}.",
                    remedy=f"Resume it: study.resume({row.number}). What was measured is kept.",
                ),
            )
        for row in self.variants():
            if row.state == "done" and row.options.profile is not None:
                self._note_lost_profile(row)
        return [row.number for row in open_rows]

    def _note_lost_profile(self, row: Variant) -> None:
        """Say of a row that was to be profiled, and was not, how it can be."""
        note = f"not profiled: the scheduler ended before; study.profile({row.number}) does it"
        told = any("profile failed" in one or one == note for one in row.notes)
        if not told and not self.profiles(row.number):
            self.update(row.number, notes=(*row.notes, note))


def _stage_of(row: Variant) -> Any:
    stages = {"loading": "load", "checking": "check", "measuring": "measure"}
    return stages.get(row.state, "build")


def _columns(round_: Round) -> tuple[object, ...]:
    return (
        round_.num_calls,
        round_.num_items,
        round_.wall_s,
        round_.cpu_s,
        round_.num_switches,
        round_.event_s,
        round_.sm_clock_mhz,
        None if round_.throttled is None else encode(round_.throttled),
        encode_calls(round_.calls_s),
    )


def _write(db: sqlite3.Connection, variant: Variant) -> None:
    values: dict[str, Any] = {}
    for name in _COLUMNS:
        value = getattr(variant, name)
        if name == "recipe":
            value = canonical(value.to_json())
        elif name in JSON_COLUMNS and value is not None:
            value = encode(value)
        elif isinstance(value, bool):
            value = int(value)
        values[name] = value
    names = ", ".join(values)
    updates = ", ".join(f"{name} = excluded.{name}" for name in values if name != "number")
    # No REPLACE: it deletes the row first, and with it the row's visits.
    db.execute(
        f"INSERT INTO variants ({names}) VALUES ({', '.join('?' * len(values))}) "
        f"ON CONFLICT (number) DO UPDATE SET {updates}",
        tuple(values.values()),
    )


def _connect_writer(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA foreign_keys = ON")
    # The log survives a killed process; only a power cut may cost the last commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _make_database(folder: Path, model: Model, python: str | None) -> None:
    # Made under another name, so that a half-made database is never taken for a study.
    from workbench import __version__

    draft = folder / f".{FILE}.{os.getpid()}"
    connection = _connect_writer(draft)
    try:
        connection.execute("BEGIN IMMEDIATE")
        schema.create(connection)
        meta = {
            "model": encode(dataclasses.replace(model, folder="model")),
            "created_s": repr(time.time()),
            "workbench": __version__,
            **({"python": python} if python else {}),
        }
        connection.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    draft.rename(folder / FILE)


__all__ = ["Store"]
