"""The second opening of a trace parses nothing."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.causes import CAUSES
from tests.traces.corpus import each_kineto_file
from tests.traces.machine import Machine
from workbench.traces import cache, opening
from workbench.traces.opening import open_trace
from workbench.traces.records import records
from workbench.traces.summary import document, summarise
from workbench.traces.trace import Trace


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, which also keeps small traces."""
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "_SMALLEST_BYTES", 0)
    return tmp_path / "kept"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    machine = Machine()
    CAUSES["copies"](machine)
    machine.operator("aten::\U0001f600 <b>")
    return machine.write(tmp_path / "t.json")


def opened(path: Path) -> Trace:
    found = open_trace(path)
    assert isinstance(found, Trace)
    return found


def no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the file was parsed again")

    monkeypatch.setattr(opening, "EventStream", refuse)


def same(one: Any, other: Any) -> bool:
    """Whether two traces, or parts of them, are equal, columns and their types included."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    return bool(one == other)


def test_what_was_read_comes_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(path)
    no_parsing(monkeypatch)
    second = opened(path)
    assert same(first, second)
    assert records(second, [3]) == records(first, [3])


def test_a_file_that_was_moved_finds_its_entry(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(path)
    no_parsing(monkeypatch)
    moved = path.rename(tmp_path / "elsewhere.json")
    found = opened(moved)
    assert found.source is not None
    assert found.source.path == str(moved)
    assert len(records(found, [0])) == 1


def test_a_file_that_has_changed_does_not(path: Path) -> None:
    before = len(opened(path))
    state = path.stat()
    text = path.read_text().replace('"aten::layer_norm"', '"aten::LAYER_NORM"')
    path.write_text(text)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    found = opened(path)
    assert len(found) == before
    assert "aten::LAYER_NORM" in found.names


def test_a_damaged_entry_is_read_past(path: Path, kept: Path) -> None:
    first = opened(path)
    (entry,) = kept.glob("*.arrow")
    whole = entry.read_bytes()
    for content in (b"", b"ARROW1\0\0 no more", whole[: len(whole) // 2]):
        entry.write_bytes(content)
        assert same(opened(path), first)
    assert entry.stat().st_size == len(whole), "written anew"


def test_a_cache_that_cannot_be_written_is_none(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "file"))
    assert len(opened(path)) == len(opened(path))


def test_small_traces_are_not_kept(path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_SMALLEST_BYTES", 1 << 20)
    opened(path)
    assert not kept.exists()


def test_the_oldest_makes_room(
    path: Path, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(path)
    (first,) = kept.glob("*.arrow")
    os.utime(first, ns=(1, 1))
    monkeypatch.setattr(cache, "_MOST_BYTES", int(1.5 * first.stat().st_size))
    other = tmp_path / "other.json"
    other.write_text(path.read_text().replace("aten::linear", "aten::Linear"))
    opened(other)
    assert len(list(kept.glob("*"))) == 1
    assert not first.exists()


@each_kineto_file(at_most_bytes=2_000_000)
def test_real_traces_come_back_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(path)
    no_parsing(monkeypatch)
    second = opened(path)
    assert same(first, second)
    assert document(summarise(second, "x")) == document(summarise(first, "x"))
