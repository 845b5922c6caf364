"""Energy counters of the processor (RAPL), as Linux's powercap lists them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Domain:
    """One counter: `name` as the kernel spells it ("package-0", "dram", "psys").

    `energy_uj` counts microjoules and starts again at 0 above `max_energy_uj`.
    """

    name: str
    folder: Path
    max_energy_uj: int

    def read_uj(self) -> int:
        """The counter now. Raises OSError where it cannot be read."""
        return int((self.folder / "energy_uj").read_text())

    def joules_between(self, before_uj: int, after_uj: int) -> float:
        """Joules between two readings less than one turn of the counter apart."""
        used = after_uj - before_uj
        if used < 0:
            used += self.max_energy_uj + 1
        return used / 1e6


def find_domains(root: Path = Path("/")) -> tuple[tuple[Domain, ...], str | None]:
    """The counters that this user may read, and the reason where there are none.

    Packages come first; a domain inside a package (cores, memory) is part of its sum or
    beside it, so adding domains up counts twice.
    """
    folder = root / "sys/class/powercap"
    entries = sorted(folder.glob("*-rapl*:*")) if folder.is_dir() else []
    domains, refused = [], 0
    for entry in entries:
        try:
            domain = Domain(
                name=(entry / "name").read_text().strip(),
                folder=entry,
                max_energy_uj=int((entry / "max_energy_range_uj").read_text()),
            )
            domain.read_uj()
        except PermissionError:
            refused += 1
        except (OSError, ValueError):
            continue
        else:
            domains.append(domain)
    if domains:
        return tuple(sorted(domains, key=lambda d: not d.name.startswith("package"))), None
    if refused:
        return (), (
            "the energy counters are readable by root only: "
            "sudo chmod a+r /sys/class/powercap/*/energy_uj"
        )
    if sys.platform != "linux":
        return (), f"{sys.platform} offers no energy counter without root"
    return (), "the kernel lists no energy counter; a virtual machine seldom has one"
