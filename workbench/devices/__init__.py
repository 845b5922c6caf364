"""Discover and describe the hardware; read its counters while something runs."""

from workbench.devices.checks import Check, checks
from workbench.devices.host import probe_host
from workbench.devices.limits import free_memory_bytes, num_cores, total_memory_bytes

__all__ = [
    "Check",
    "checks",
    "free_memory_bytes",
    "num_cores",
    "probe_host",
    "total_memory_bytes",
]
