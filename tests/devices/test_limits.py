"""Cores and memory are the container's, read from copies of the kernel's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from workbench.devices import limits


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """Half of a core and a half in the slice; 3 GB there, 2 GB in the scope."""
    return write(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/user.slice/job.scope\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": "3000000000\n",
            "sys/fs/cgroup/user.slice/memory.current": "2900000000\n",
            "sys/fs/cgroup/user.slice/memory.stat": "anon 1\ninactive_file 400000000\n",
            "sys/fs/cgroup/user.slice/job.scope/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/job.scope/memory.max": "2000000000\n",
            "sys/fs/cgroup/user.slice/job.scope/memory.current": "1200000000\n",
            "sys/fs/cgroup/user.slice/job.scope/memory.stat": "inactive_file 200000000\n",
        },
    )


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A container without a cgroup namespace: its paths count from the machine's root."""
    return write(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000000\n",
            "sys/fs/cgroup/memory/memory.stat": "cache 5\ntotal_inactive_file 300000000\n",
        },
    )


def test_the_tightest_cgroup_up_to_the_root_bounds_the_cores(v2: Path) -> None:
    assert limits.cpu_quota(v2) == 1.5
    assert limits.num_cores(v2) == min(2, limits.num_cores(Path("/nowhere")))


def test_the_tightest_cgroup_bounds_the_memory(v2: Path) -> None:
    assert limits.memory_limit_bytes(v2) == 2_000_000_000
    assert limits.total_memory_bytes(v2) <= 2_000_000_000


def test_free_memory_is_that_of_the_fullest_level_with_file_cache_counted_free(v2: Path) -> None:
    # The slice has 3.0 - (2.9 - 0.4) = 0.5 GB left, the scope 2.0 - (1.2 - 0.2) = 1.0 GB.
    assert limits.free_memory_bytes(v2) == 500_000_000


def test_version_1_is_read_where_the_mount_shows_only_the_container(v1: Path) -> None:
    assert limits.cpu_quota(v1) == 0.5
    assert limits.num_cores(v1) == 1
    assert limits.memory_limit_bytes(v1) == 1_000_000_000
    assert limits.free_memory_bytes(v1) == 400_000_000


def test_no_limit_is_none_in_both_versions(v1: Path) -> None:
    write(
        v1,
        {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert limits.cpu_quota(v1) is None
    assert limits.memory_limit_bytes(v1) is None
    write(v1, {"proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert limits.cpu_quota(v1) is None


def test_where_there_are_no_cgroups_the_machine_counts(tmp_path: Path) -> None:
    assert limits.cpu_quota(tmp_path) is None
    assert limits.memory_limit_bytes(tmp_path) is None
    assert limits.total_memory_bytes(tmp_path) <= psutil.virtual_memory().total
    assert limits.free_memory_bytes(tmp_path) > 0


def in_child(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_affinity_bounds_the_cores() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from workbench.devices import num_cores; print(num_cores())"
    )
    assert in_child(code) == "1"


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is POSIX's")
def test_ulimit_bounds_the_free_memory() -> None:
    """P35: a model of 6 GB is refused under `ulimit -v` of 2 GB before anything is read."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000,) * 2)\n"
        "from workbench.devices import free_memory_bytes, total_memory_bytes\n"
        "print(total_memory_bytes(), free_memory_bytes())"
    )
    total, free = map(int, in_child(code).split())
    assert total <= 2_000_000_000
    assert 0 < free < total
