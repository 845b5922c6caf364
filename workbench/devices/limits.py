"""What the container allows: cores, memory and the memory that is free.

Every reader takes `root`, the folder that stands for "/", so that any container's files can
be read from a copy. Where cgroups do not exist (macOS, Windows) the machine's figures hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Cgroup:
    """One folder of the control-group tree; `version` is 1 or 2."""

    folder: Path
    version: int

    def number(self, file: str) -> int | None:
        """The file's first integer; None where it is missing or says "max"."""
        words = _read(self.folder / file).split()
        return int(words[0]) if words and words[0].lstrip("-").isdigit() else None

    def field(self, file: str, key: str) -> int | None:
        """The integer after `key` in a file of "key value" lines."""
        for line in _read(self.folder / file).splitlines():
            name, _, value = line.partition(" ")
            if name == key and value.isdigit():
                return int(value)
        return None


def cgroups(controller: str, root: Path = Path("/")) -> Iterator[Cgroup]:
    """This process's cgroup for `controller` ("cpu", "memory") and each one above it.

    Where both versions are mounted, only the one that carries the controller has its files;
    folders without them are yielded too and read as "no limit".
    """
    paths = _own_paths(root)
    for mount in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = mount.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 5 or len(rest) < 3:
            continue
        inside, point = fields[3], root / fields[4].lstrip("/")
        if rest[0] == "cgroup2":
            version, own = 2, paths.get("")
        elif rest[0] == "cgroup" and controller in rest[2].split(","):
            version, own = 1, paths.get(controller)
        else:
            continue
        yield from _upwards(point, inside, own or "/", version)


def _own_paths(root: Path) -> dict[str, str]:
    """Controller to path, from /proc/self/cgroup; "" stands for version 2."""
    paths = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(","):
                paths[name] = parts[2]
    return paths


def _upwards(point: Path, inside: str, own: str, version: int) -> Iterator[Cgroup]:
    # In a container without a cgroup namespace the mount shows only a part of the tree,
    # the part named `inside`, while /proc/self/cgroup counts from the machine's root.
    relative = own
    if inside != "/":
        relative = own[len(inside) :] if own.startswith(inside) else "/"
    folder = point / relative.strip("/")
    while True:
        if folder.is_dir():
            yield Cgroup(folder=folder, version=version)
        if folder == point or point not in folder.parents:
            return
        folder = folder.parent


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the cgroups allow, or None without a limit."""
    quotas = []
    for group in cgroups("cpu", root):
        if group.version == 2:
            words = _read(group.folder / "cpu.max").split()
            if len(words) == 2 and words[0].isdigit():
                quotas.append(int(words[0]) / int(words[1]))
        else:
            quota = group.number("cpu.cfs_quota_us")
            period = group.number("cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                quotas.append(quota / period)
    return min(quotas, default=None)


def num_cores(root: Path = Path("/")) -> int:
    """Cores this process can keep busy: its affinity, capped by the cgroups' quota.

    A quota of 1.5 cores counts as 2: two threads do run at once, for part of the time.
    """
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = psutil.cpu_count() or 1
    quota = cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, -int(-quota // 1)))


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The tightest memory limit of the cgroups in bytes, or None without one."""
    limits = [limit for group in cgroups("memory", root) if (limit := _limit_bytes(group))]
    return min(limits, default=None)


def total_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process could have at most: of machine, container and ulimit."""
    bounds = [int(psutil.virtual_memory().total)]
    if (limit := memory_limit_bytes(root)) is not None:
        bounds.append(limit)
    if (limit := _address_space_bytes()) is not None:
        bounds.append(limit)
    return min(bounds)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that can still be had: of machine, container and ulimit, the least.

    File cache that the kernel would give back counts as free, as in MemAvailable.
    """
    bounds = [int(psutil.virtual_memory().available)]
    for group in cgroups("memory", root):
        limit = _limit_bytes(group)
        used = _used_bytes(group)
        if limit is not None and used is not None:
            bounds.append(max(0, limit - used))
    if (limit := _address_space_bytes()) is not None:
        bounds.append(max(0, limit - int(psutil.Process().memory_info().vms)))
    return min(bounds)


def _limit_bytes(group: Cgroup) -> int | None:
    limit = group.number("memory.max" if group.version == 2 else "memory.limit_in_bytes")
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def _used_bytes(group: Cgroup) -> int | None:
    if group.version == 2:
        used, cache = group.number("memory.current"), "inactive_file"
    else:
        used, cache = group.number("memory.usage_in_bytes"), "total_inactive_file"
    if used is None:
        return None
    return max(0, used - (group.field("memory.stat", cache) or 0))


def _address_space_bytes() -> int | None:
    """`ulimit -v` in bytes, or None where it is unlimited or unknown."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return soft if 0 < soft < _UNLIMITED_BYTES else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
