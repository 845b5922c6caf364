"""Quantities as people read them."""

from __future__ import annotations


def format_seconds(value: float | None) -> str:
    """ "1.23 ms"; "–" for None. Three significant digits."""
    if value is None:
        return "–"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {unit}"
    return "0 s" if value == 0 else f"{value:.3g} s"


def format_bytes(value: float | None) -> str:
    """ "12.3 MB" (decimal units); "–" for None."""
    if value is None:
        return "–"
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {unit}"
    return f"{value:.0f} B"


def format_count(value: int | None) -> str:
    """ "5.1 M" from 5,100,000; "–" for None."""
    if value is None:
        return "–"
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {unit}"
    return str(value)


def _three(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"
