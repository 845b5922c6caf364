"""Nothing outlives the one who started it, and no secret travels."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from workbench.run.processes import Worker, kill_tree, scrubbed_environment

# A child that leaves the group and the session, as a compiler's pool does.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""

# A warden as the scheduler's process has it, around a child that is killed from outside.
WARDEN = """
import os, sys, time, subprocess
from workbench.run.processes import become_subreaper, kill_strays
assert become_subreaper()
child = os.fork()
if child == 0:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                              start_new_session=True)
    print(os.getpid(), worker.pid, flush=True)
    time.sleep(600)
os.waitpid(child, 0)
kill_strays(())
"""


def wait_gone(pid: int, limit_s: float = 5.0) -> bool:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_kill_tree_reaches_a_grandchild_in_a_session_of_its_own() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    with parent:
        grandchild = int(parent.stdout.readline())
        assert psutil.pid_exists(grandchild)
        kill_tree(parent.pid)
        parent.wait()
    assert wait_gone(grandchild)


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
def test_a_warden_kills_what_a_killed_child_leaves() -> None:
    warden = subprocess.Popen([sys.executable, "-c", WARDEN], stdout=subprocess.PIPE, text=True)
    assert warden.stdout is not None
    with warden:
        child, worker = map(int, warden.stdout.readline().split())
        os.kill(child, 9)
        warden.wait(timeout=10)
    assert wait_gone(worker)


def test_secrets_do_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "OPENAI_API_KEY")
    for name in secrets:
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    kept = scrubbed_environment()
    assert not set(secrets) & set(kept)
    assert kept["TOKENIZERS_PARALLELISM"] == "false"
    assert kept["PATH"] == os.environ["PATH"]


def test_a_worker_leaves_when_its_parent_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from workbench.run.processes import Worker\n"
        "w = Worker(sys.executable, with_torch=False, environment={},"
        " log=pathlib.Path(sys.argv[1]))\n"
        "w.connection.recv_bytes()\n"
        "print(w.pid, flush=True)\n"
        "import os; os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert wait_gone(int(done.stdout))


def test_workers_are_groups_of_their_own_in_one_session(tmp_path: Path) -> None:
    """Linux places the threads of a session by what that session did lately ("autogroup").

    A baseline that is called in every visit, in a session of its own, came out 10 to 25 %
    faster than its twins beside a busy core.
    """
    worker = Worker(sys.executable, with_torch=False, environment={}, log=tmp_path / "log")
    try:
        assert os.getsid(worker.pid) == os.getsid(0)
        assert os.getpgid(worker.pid) == worker.pid
    finally:
        worker.close()
