"""The tables of a study's database, and how a file is known to be one of ours."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from workbench.core.errors import SchemaTooNewError, StudyError

VERSION = 2

TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "variants": """
        CREATE TABLE variants (
            number INTEGER PRIMARY KEY,
            role TEXT NOT NULL,
            recipe TEXT NOT NULL,
            state TEXT NOT NULL,
            stage TEXT NOT NULL,
            options TEXT NOT NULL,
            submitted_s REAL,
            finished_s REAL,
            artifact TEXT,
            artifact_cached INTEGER,
            size_bytes INTEGER,
            items_per_call INTEGER,
            started_cold INTEGER,
            first_ratio REAL,
            device TEXT,
            evidence TEXT,
            cold_start TEXT,
            memory TEXT,
            energy TEXT,
            quality TEXT,
            failure TEXT,
            versions TEXT,
            notes TEXT NOT NULL
        )""",
    "visits": """
        CREATE TABLE visits (
            variant INTEGER NOT NULL REFERENCES variants (number) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            started_s REAL NOT NULL,
            host_load REAL,
            baseline_process INTEGER NOT NULL,
            variant_process INTEGER NOT NULL,
            PRIMARY KEY (variant, number)
        ) WITHOUT ROWID""",
    "rounds": """
        CREATE TABLE rounds (
            variant INTEGER NOT NULL,
            visit INTEGER NOT NULL,
            pair INTEGER NOT NULL,
            side TEXT NOT NULL,
            ran_first INTEGER NOT NULL,
            num_calls INTEGER NOT NULL,
            num_items INTEGER NOT NULL,
            wall_s REAL NOT NULL,
            cpu_s REAL,
            num_switches INTEGER,
            event_s REAL,
            sm_clock_mhz REAL,
            throttled TEXT,
            calls_s BLOB NOT NULL,
            PRIMARY KEY (variant, visit, pair, side),
            FOREIGN KEY (variant, visit) REFERENCES visits (variant, number) ON DELETE CASCADE
        )""",
    "profiles": """
        CREATE TABLE profiles (
            variant INTEGER NOT NULL REFERENCES variants (number) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (variant, number)
        ) WITHOUT ROWID""",
}
# The tables that came with each version after the first: what an older file lacks.
ADDED = {2: ("profiles",)}


def create(connection: sqlite3.Connection) -> None:
    """Make the tables and note their version, in the caller's transaction."""
    for name in TABLES:
        connection.execute(_text(name))
    connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(VERSION),))


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Give a verified file of an earlier version the tables that it lacks; for its writer."""
    version = _version(connection, path)
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for added, names in ADDED.items():
        for name in names if added > version else ():
            connection.execute(_text(name))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(VERSION),))
    connection.execute("COMMIT")


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that the file holds our tables as we made them, and nothing else.

    A stranger's file may carry views, triggers or generated columns that run when it is
    read; only the very text of our own tables is accepted. Raises StudyError, and
    SchemaTooNewError with both versions where a later workbench wrote it.
    """
    # In one transaction: a writer may upgrade the file meanwhile.
    connection.execute("BEGIN")
    try:
        _verify(connection, path)
    finally:
        connection.execute("ROLLBACK")


def _verify(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    # SQLite's own indexes of our keys have no text.
    tables = {name: " ".join(sql.split()) for _, name, sql in found if sql is not None}
    lacking = set[str]()
    if tables.get("meta") == _text("meta"):
        version = _version(connection, path)
        if version > VERSION:
            raise SchemaTooNewError(
                f"{path} was written with schema {version}; this workbench reads up to schema "
                f"{VERSION}. Upgrade accel-workbench to open it."
            )
        lacking = {name for v, names in ADDED.items() if v > version for name in names}
    if tables != {name: _text(name) for name in TABLES if name not in lacking}:
        raise StudyError(
            f"{path} is not a study's database: its tables are not the ones a workbench makes. "
            "Name a folder that `workbench run` or `Study` made."
        )


def _text(name: str) -> str:
    return " ".join(TABLES[name].split())


def _version(connection: sqlite3.Connection, path: Path) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise StudyError(f"{path} does not say which schema it was written with.")
    return int(row[0])
