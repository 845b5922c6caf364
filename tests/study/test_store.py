from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.study import filled
from workbench.core.errors import SchemaTooNewError, StudyError
from workbench.core.measurement import Quality, Round, Visit
from workbench.core.model import Model
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions
from workbench.run.records import Records
from workbench.study.codec import _ModelWire
from workbench.study.reader import StudyReader
from workbench.study.store import Store


def test_the_store_is_the_schedulers_records(empty: Store) -> None:
    records: Records = empty
    assert records.variants() == []


def test_a_row_comes_back_as_it_was_written(full: Store) -> None:
    with StudyReader(full.folder) as reader:
        assert list(reader.variants()) == list(full.variants())
        assert reader.variant(4) == full.variant(4)
        assert reader.host() == filled.host()
        assert reader.prepared() == filled.prepared()


def test_the_model_comes_back_with_its_own_copy_of_the_folder(empty: Store, tmp_path: Path) -> None:
    model = empty.model()
    assert dataclasses.replace(model, folder="") == dataclasses.replace(
        filled.model_at(tmp_path / "captured"), folder=""
    )
    assert Path(model.folder) == empty.folder / "model"
    assert (Path(model.folder) / "capture.json").is_file()


def test_a_study_can_be_moved(full: Store, tmp_path: Path) -> None:
    full.close()
    moved = tmp_path / "elsewhere"
    full.folder.rename(moved)
    with StudyReader(moved) as reader:
        assert Path(reader.model().folder) == moved / "model"


def test_the_stored_model_has_every_field_of_a_model() -> None:
    names = {field.name for field in dataclasses.fields(Model)}
    assert names == set(_ModelWire.__struct_fields__)


def test_rounds_come_back_bit_for_bit(empty: Store) -> None:
    row = empty.add_variant(Recipe(), "baseline", RunOptions())
    written = filled.visits(1.3, num_visits=3)
    for visit in written:
        empty.add_visit(row.number, visit)
    read = empty.visits(row.number)
    assert [v.number for v in read] == [0, 1, 2]
    for ours, theirs in zip(read, written, strict=True):
        for field in dataclasses.fields(Visit):
            if field.name != "pairs":
                assert getattr(ours, field.name) == getattr(theirs, field.name)
        for a, b in zip(ours.pairs, theirs.pairs, strict=True):
            assert a.baseline_first == b.baseline_first
            for side in ("baseline", "variant"):
                x, y = getattr(a, side), getattr(b, side)
                assert np.array_equal(x.calls_s, y.calls_s)
                for field in dataclasses.fields(Round):
                    if field.name != "calls_s":
                        assert getattr(x, field.name) == getattr(y, field.name), field.name
                assert x.event_s is None  # absent, not 0
                assert x.throttled is None


def test_a_number_that_is_not_finite_survives(empty: Store) -> None:
    row = empty.add_variant(Recipe(), "variant", RunOptions())
    quality = Quality(
        status="not_finite", metric="m", max_abs_error=float("inf"), details={"kl": float("-inf")}
    )
    empty.update(row.number, quality=quality)
    assert empty.variant(row.number).quality == quality


def test_numbers_of_rows_go_up_and_a_visit_is_kept_once(empty: Store) -> None:
    first = empty.add_variant(Recipe(), "baseline", RunOptions())
    assert empty.add_variant(Recipe(), "control", RunOptions()).number == 0
    second = empty.add_variant(Recipe(precision="bf16"), "variant", RunOptions())
    assert (first.number, second.number) == (1, 2)
    visit = filled.visits(1.0, num_visits=1)[0]
    empty.add_visit(2, visit)
    with pytest.raises(StudyError, match="visit 0 of variant 2"):
        empty.add_visit(2, visit)
    with pytest.raises(StudyError, match="variant 9"):
        empty.add_visit(9, visit)
    empty.update(2, state="measuring")
    assert len(empty.visits(2)) == 1, "an update must not lose the rounds"
    empty.clear_visits(2)
    assert empty.visits(2) == []
    assert empty._connection.execute("SELECT count(*) FROM rounds").fetchone() == (0,)


def test_an_unknown_row_is_named(empty: Store) -> None:
    with pytest.raises(StudyError, match="no variant 7"):
        empty.variant(7)
    with pytest.raises(StudyError, match="no variant 7"):
        empty.update(7, state="done")


def test_a_newer_schema_is_refused_with_both_versions(full: Store) -> None:
    full._connection.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
    full._connection.execute("CREATE TABLE later (x)")
    full.close()
    for opens in (StudyReader, Store):
        with pytest.raises(SchemaTooNewError, match=r"schema 7; .* up to schema 2"):
            opens(full.folder)


def test_a_study_of_the_first_schema_is_read_and_upgraded_by_its_writer(full: Store) -> None:
    full._connection.execute("DROP TABLE profiles")
    full._connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    full.close()
    profile = filled.profile("traces/2-onnxruntime/variant.1.trace.json.gz")
    with StudyReader(full.folder) as reader:
        assert reader.profiles(2) == []
        num_rows = len(reader.variants())
    with Store(full.folder) as store:
        store.add_profile(2, profile)
        assert len(store.variants()) == num_rows
    with StudyReader(full.folder) as reader:
        assert list(reader.profiles(2)) == [profile]


def test_profiles_are_kept_in_order_and_go_with_no_update(full: Store) -> None:
    first, second = filled.profile("traces/a"), filled.profile("traces/b")
    full.add_profile(2, first)
    full.add_profile(2, second)
    full.update(2, state="done")
    assert list(full.profiles(2)) == [first, second]
    assert full.profiles(3) == []
    with pytest.raises(StudyError):
        full.add_profile(99, first)


@pytest.mark.parametrize(
    ("call_s", "recorded_s"), [(0.0, 1.0), (-1.0, 1.0), (5e-324, 1.0), (1.0, 0.0)]
)
def test_a_profile_without_times_is_damaged(full: Store, call_s: float, recorded_s: float) -> None:
    made = dataclasses.replace(
        filled.profile("traces/a"), call_s=call_s, recorded_call_s=recorded_s
    )
    full.add_profile(2, made)
    with pytest.raises(StudyError, match="profile of #2 holds no time"):
        full.profiles(2)


def test_a_recording_lies_in_the_studys_own_folder(full: Store) -> None:
    (full.folder / "traces").mkdir()
    (full.folder / "traces" / "here").write_bytes(b"x")
    assert full.recording("traces/here") == full.folder / "traces" / "here"
    for path in ("traces/../study.sqlite", "/etc/hostname", "traces/../../x"):
        with pytest.raises(StudyError, match="not to be trusted"):
            full.recording(path)
    with pytest.raises(StudyError, match="is gone; profile the variant again"):
        full.recording("traces/lost")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE more (x)",
        "CREATE VIEW watcher AS SELECT * FROM meta",
        "CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM variants; END",
        "DROP TABLE rounds",
        "ALTER TABLE variants ADD COLUMN extra TEXT",
    ],
)
def test_a_file_with_other_tables_is_no_study(full: Store, sql: str) -> None:
    full._connection.execute(sql)
    full.close()
    with pytest.raises(StudyError, match="not a study's database"):
        StudyReader(full.folder)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.sqlite").write_bytes(b"PK\x03\x04" + b"x" * 5000)
    with pytest.raises(StudyError, match="not a study's database"):
        StudyReader(tmp_path)
    (tmp_path / "study.sqlite").write_bytes(b"")
    with pytest.raises(StudyError, match="not a study's database"):
        StudyReader(tmp_path)
    with pytest.raises(StudyError, match="is not a study"):
        StudyReader(tmp_path / "nowhere")


def test_a_damaged_page_is_an_error_of_the_study(full: Store) -> None:
    for number in range(3, 9):
        full.clear_visits(number)
    full._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    full.close()
    data = bytearray(full.path.read_bytes())
    for start in range(8192, len(data), 4096):
        data[start : start + 64] = b"\xff" * 64
    full.path.write_bytes(data)
    with pytest.raises(StudyError):
        _read_all(full.folder)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("recipe", '{"engine": "../../x y", "levers": {}}'),
        ("recipe", "[]"),
        ("state", "'happy'"),
        ("options", '{"budget_s": "many"}'),
        ("size_bytes", "a lot"),
        ("evidence", "{"),
        ("notes", b"\xff\xfe"),
    ],
)
def test_a_record_of_another_shape_is_refused(full: Store, column: str, value: object) -> None:
    full._connection.execute(f"UPDATE variants SET {column} = ? WHERE number = 3", (value,))
    with pytest.raises(StudyError):
        full.variants()


def test_an_artifact_outside_the_study_is_refused(full: Store) -> None:
    for name in ("../../etc", "/etc", "a/b", ""):
        row = full.update(3, artifact=name)
        with pytest.raises(StudyError, match="not a folder of the study"):
            full.artifact_folder(row)


def test_a_study_on_a_read_only_medium_opens(full: Store) -> None:
    full.close()
    (full.folder / "study.sqlite").chmod(0o400)
    full.folder.chmod(0o500)
    try:
        with StudyReader(full.folder) as reader:
            assert len(reader.variants()) == 16
    finally:
        full.folder.chmod(0o700)


def test_a_folder_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("mine")
    with pytest.raises(StudyError, match="already holds something"):
        Store.create(taken, filled.model_at(tmp_path / "captured"))
    assert (taken / "thesis.txt").read_text() == "mine"


def test_a_folder_with_odd_characters_works(tmp_path: Path) -> None:
    model = filled.model_at(tmp_path / "captured")
    folder = tmp_path / "a?b#c%20d é"
    Store.create(folder, model).close()
    with StudyReader(folder) as reader:
        assert reader.model().name == "digits-cnn"


def test_two_readers_and_the_writer_at_once(empty: Store) -> None:
    row = empty.add_variant(Recipe(), "variant", RunOptions())
    readers = [StudyReader(empty.folder) for _ in range(2)]
    failures: list[BaseException] = []
    stop = threading.Event()

    def read(reader: StudyReader) -> None:
        try:
            while not stop.is_set():
                for visit in reader.visits(row.number):
                    assert len(visit.pairs) == 6, "a visit must be seen whole or not at all"
                reader.variants()
        except BaseException as error:  # noqa: BLE001  handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for visit in filled.visits(1.2, num_visits=25):
        empty.add_visit(row.number, visit)
        empty.update(row.number, state="measuring")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert [len(reader.visits(row.number)) for reader in readers] == [25, 25]


def test_a_reader_notices_that_something_was_written(empty: Store) -> None:
    with StudyReader(empty.folder) as reader:
        before = reader.revision()
        empty.add_variant(Recipe(), "variant", RunOptions())
        assert reader.revision() != before


def test_a_reader_cannot_write(full: Store) -> None:
    with StudyReader(full.folder) as reader, pytest.raises(sqlite3.OperationalError):
        reader._connection.execute("DELETE FROM variants")


def test_a_killed_writer_loses_nothing_it_reported(empty: Store) -> None:
    empty.close()
    script = """
import sys
sys.path.insert(0, sys.argv[2])
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions
from tests.study import filled
from workbench.study.store import Store
store = Store(sys.argv[1])
done = store.add_variant(Recipe(), "baseline", RunOptions())
store.update(done.number, state="done")
row = store.add_variant(Recipe(precision="bf16"), "variant", RunOptions())
store.add_variant(Recipe(precision="fp16"), "variant", RunOptions())
store.update(row.number, state="measuring")
for visit in filled.visits(1.2, num_visits=200):
    store.add_visit(row.number, visit)
    print(visit.number, flush=True)
"""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(empty.folder), str(root)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        reported = [int(process.stdout.readline()) for _ in range(10)][-1]
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
    process.wait()
    reported = max([reported, *map(int, rest)])
    with StudyReader(empty.folder) as reader:
        assert len(reader.visits(2)) >= reported + 1
        assert reader.variant(2).state == "measuring"
    with Store(empty.folder) as reopened:
        assert reopened.mark_interrupted() == [2, 3]
        assert [row.state for row in reopened.variants()] == ["done", "interrupted", "interrupted"]
        failure = reopened.variant(2).failure
        assert failure is not None
        assert failure.kind == "interrupted"
        assert "while it was measuring" in failure.message
        assert len(reopened.visits(2)) >= reported + 1
        assert reopened.mark_interrupted() == []


def test_the_study_is_the_users_own(empty: Store) -> None:
    assert empty.folder.stat().st_mode & 0o077 == 0


def test_a_study_opens_without_torch(full: Store) -> None:
    code = (
        "import sys; from workbench.study.reader import StudyReader; "
        f"assert len(StudyReader({str(full.folder)!r}).variants()) == 16; "
        "print([m for m in ('torch', 'onnxruntime', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def _read_all(folder: Path) -> None:
    with StudyReader(folder) as reader:
        for row in reader.variants():
            reader.visits(row.number)
