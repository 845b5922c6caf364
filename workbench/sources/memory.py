"""A check that something fits into memory, before anything heavy starts."""

from __future__ import annotations

from workbench.core.errors import TooLargeError
from workbench.core.units import format_bytes
from workbench.devices.limits import free_memory_bytes


def check_fits(num_bytes: int, what: str) -> None:
    """Raises TooLargeError where `num_bytes` is more than what is free."""
    free = free_memory_bytes()
    if num_bytes > free:
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
