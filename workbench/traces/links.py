"""Which launch a kernel came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.traces.trace import ABSENT, Trace
from workbench.traces.vocabulary import LAUNCHES


@dataclass(frozen=True, kw_only=True)
class Links:
    """`launch` is, for each row of `work`, the row of the host's call it came from, or -1.

    A call may own many kernels: a replayed graph owns hundreds.
    """

    work: NDArray[np.intp]
    launch: NDArray[np.intp]

    @property
    def num_unlinked(self) -> int:
        """Work of a device without a launch in this trace; it counts as work all the same."""
        return int((self.launch == ABSENT).sum())


def link(trace: Trace) -> Links:
    """Tie the device's work to the calls that launched it, by correlation.

    Where a runtime call and the driver call inside it carry one number, the runtime's is taken:
    it is the one that an operator made.
    """
    work = trace.device_rows
    calls = np.concatenate([trace.rows(kind) for kind in reversed(LAUNCHES)])
    calls = calls[trace.correlation[calls] != ABSENT]
    launch = np.full(len(work), ABSENT, dtype=np.intp)
    if len(calls) == 0:
        return Links(work=work, launch=launch)
    # Stable, so that of equal numbers the last one, a runtime call, stands last.
    order = np.argsort(trace.correlation[calls], kind="stable")
    calls = calls[order]
    numbers = trace.correlation[calls]
    wanted = trace.correlation[work]
    place = np.searchsorted(numbers, wanted, side="right") - 1
    found = (place >= 0) & (wanted != ABSENT)
    found[found] = numbers[place[found]] == wanted[found]
    launch[found] = calls[place[found]]
    return Links(work=work, launch=launch)
