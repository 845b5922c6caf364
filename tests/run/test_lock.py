"""The device lock: one holder, in order, released by death."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.run.lock import DeviceLock

HOLD = """
import sys, pathlib, time
from workbench.run.lock import DeviceLock
lock = DeviceLock("cpu", pathlib.Path(sys.argv[1]))
assert lock.try_acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_second_holder_waits_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = DeviceLock("cpu", tmp_path), DeviceLock("cpu", tmp_path)
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()


def test_devices_do_not_share_a_lock(tmp_path: Path) -> None:
    assert DeviceLock("cpu", tmp_path).try_acquire()
    assert DeviceLock("cuda:0", tmp_path).try_acquire()


def test_place_in_the_queue_counts_those_before(tmp_path: Path) -> None:
    locks = [DeviceLock("cpu", tmp_path) for _ in range(4)]
    assert locks[0].try_acquire()
    for lock in locks[1:]:
        assert not lock.try_acquire()
    assert [lock.place() for lock in locks[1:]] == [0, 1, 2]
    locks[0].release()
    assert not locks[2].try_acquire(), "the one before it has the turn"
    assert locks[1].try_acquire()
    assert locks[2].place() == 0


def test_death_of_the_holder_releases_the_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        lock = DeviceLock("cpu", tmp_path)
        assert not lock.try_acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert lock.try_acquire()


def test_a_dead_waiter_does_not_hold_the_queue(tmp_path: Path) -> None:
    first, second = DeviceLock("cpu", tmp_path), DeviceLock("cpu", tmp_path)
    (tmp_path / "cpu.ticket-00000000000000000001-1").touch()
    assert first.try_acquire()
    assert not second.try_acquire()
    assert second.place() == 0


def test_a_symbolic_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cpu.lock").symlink_to(victim)
    with pytest.raises(OSError):
        DeviceLock("cpu", tmp_path / "locks").try_acquire()
    assert victim.read_text() == "mine"


def test_the_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    lock = DeviceLock("cpu", tmp_path)
    assert lock.try_acquire()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        lock.release()
        assert DeviceLock("cpu", tmp_path).try_acquire()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
