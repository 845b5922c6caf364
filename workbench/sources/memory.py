"""How much memory is free for this process, and a check before anything heavy starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from workbench.core.errors import TooLargeError
from workbench.core.units import format_bytes

_CGROUPS = Path("/sys/fs/cgroup")
# A v1 limit at or above this is the kernel's way of saying "none".
_NO_LIMIT = 1 << 60


def free_memory_bytes() -> int | None:
    """Bytes that this process may still take: the least of every limit that can be read.

    Limits are the machine's available memory, the container's (cgroup v2 or v1, its own and
    every parent's, page cache that can be dropped counted as free) and the process's own
    address-space limit. None where nothing can be read.
    """
    readings = [_machine(), _address_space(), *_cgroup_readings()]
    known = [reading for reading in readings if reading is not None]
    return max(0, min(known)) if known else None


def check_fits(num_bytes: int, what: str) -> None:
    """Raises TooLargeError where `num_bytes` is more than what is free."""
    free = free_memory_bytes()
    if free is not None and num_bytes > free:
        raise TooLargeError(
            f"{what} needs ~{format_bytes_short(num_bytes)}, {format_bytes_short(free)} free: "
            "close other processes, raise the container's memory limit, or load a smaller model."
        )


def format_bytes_short(value: int) -> str:
    """ "6 GB", "1.5 GB": two digits, for a sentence."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g} {unit}"
    return format_bytes(value)


def _machine() -> int | None:
    import psutil

    return int(psutil.virtual_memory().available)


def _address_space() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    import psutil

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    return int(soft - psutil.Process().memory_info().vms)


def _cgroup_readings() -> Iterator[int | None]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = Path(path.lstrip("/"))
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            roots = [_CGROUPS, _CGROUPS / "unified"]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            roots = [_CGROUPS / "memory"]
        else:
            continue
        for root in roots:
            # Inside a container the group's path may be the host's; the mount is then its root.
            for folder in {root, *(root / p for p in (relative, *relative.parents))}:
                yield _cgroup(folder, *names)


def _cgroup(folder: Path, limit_name: str, usage_name: str, cache_key: str) -> int | None:
    limit = _number(folder / limit_name)
    usage = _number(folder / usage_name)
    if limit is None or usage is None or limit >= _NO_LIMIT:
        return None
    cache = 0
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == cache_key:
                cache = int(value)
    except OSError:
        pass
    return limit - usage + cache


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
