"""What changed between two traces: the time of a step, divided among what both of them did."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.errors import LoadError
from workbench.traces.alignment import Group, align
from workbench.traces.pieces import Piece, Sequence, sequence
from workbench.traces.trace import Trace
from workbench.traces.windows import Window, median_window, windows

IDLE = "idle"
_MOST_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: its step that was compared, and how the steps varied."""

    step: int | None
    num_steps: int
    wall_ns: int
    idle_ns: int
    unaligned_ns: int
    least_ns: int
    most_ns: int
    on_device: bool

    @property
    def unaligned_share(self) -> float:
        """The part of the step that has no counterpart, 0 to 1."""
        return self.unaligned_ns / self.wall_ns if self.wall_ns else 0.0


@dataclass(frozen=True, kw_only=True)
class DifferenceRow:
    """All groups in which the same names of A became the same names of B.

    Where one side is empty it had nothing of the kind; `is_aligned` is False then, unless the
    time went into another group's.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    num: int
    a_ns: int
    b_ns: int
    is_aligned: bool

    @property
    def difference_ns(self) -> int:
        """What B takes more than A; negative where it takes less."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two steps compared. The rows' differences add up to that of the steps' times."""

    a: Side
    b: Side
    rows: tuple[DifferenceRow, ...]

    @property
    def difference_ns(self) -> int:
        """What a step of B takes more than one of A."""
        return self.b.wall_ns - self.a.wall_ns


def difference(a: Trace, b: Trace) -> Difference:
    """The step of median time of each, compared; the largest difference first.

    Raises LoadError where one of them has nothing to compare.
    """
    a_window, b_window = _compared(a, "the first"), _compared(b, "the second")
    a_steps, b_steps = sequence(a, a_window), sequence(b, b_window)
    groups = align(a_steps.pieces, b_steps.pieces)
    rows = _rows(groups)
    if a_steps.idle_ns or b_steps.idle_ns:
        rows.append(
            DifferenceRow(
                a=(IDLE,), b=(IDLE,), num=1, a_ns=a_steps.idle_ns, b_ns=b_steps.idle_ns,
                is_aligned=True,
            )
        )  # fmt: skip
    return Difference(
        a=_side(a, a_window, a_steps, sum(g.a_ns for g in groups if not g.is_aligned)),
        b=_side(b, b_window, b_steps, sum(g.b_ns for g in groups if not g.is_aligned)),
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.difference_ns), row.a, row.b))),
    )


def _compared(trace: Trace, which: str) -> Window:
    found = median_window(trace)
    if found is None:
        raise LoadError(
            f"{which} trace has neither work of a device nor operators: nothing to compare."
        )
    return found


def _side(trace: Trace, window: Window, steps: Sequence, unaligned_ns: int) -> Side:
    walls = [one.wall_ns for one in windows(trace) if one.wall_ns > 0]
    return Side(
        step=window.number,
        num_steps=len(walls),
        wall_ns=steps.wall_ns,
        idle_ns=steps.idle_ns,
        unaligned_ns=unaligned_ns,
        least_ns=min(walls),
        most_ns=max(walls),
        on_device=steps.on_device,
    )


def _rows(groups: list[Group]) -> list[DifferenceRow]:
    """Groups with the same names on both sides, added up."""
    sums: dict[tuple[tuple[str, ...], tuple[str, ...], bool], list[int]] = {}
    for group in groups:
        key = (_names(group.a), _names(group.b), group.is_aligned)
        total = sums.setdefault(key, [0, 0, 0])
        total[0] += 1
        total[1] += group.a_ns
        total[2] += group.b_ns
    return [
        DifferenceRow(a=a, b=b, num=num, a_ns=a_ns, b_ns=b_ns, is_aligned=is_aligned)
        for (a, b, is_aligned), (num, a_ns, b_ns) in sums.items()
    ]


def _names(pieces: tuple[Piece, ...]) -> tuple[str, ...]:
    """What the pieces are called, each once, in order."""
    names = list(dict.fromkeys(piece.name for piece in pieces))
    if len(names) > _MOST_NAMES:
        return (*names[:_MOST_NAMES], f"and {len(names) - _MOST_NAMES} more")
    return tuple(names)
