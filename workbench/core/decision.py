"""A verdict on two variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the visits so far say about a variant against its baseline.

    `ratio` is the baseline's time an item over the variant's: above 1 the variant is
    faster. `low` and `high` bound it at 95 %, for any time of looking; they are None while
    there are too few visits. `floor` is the control's, as a log ratio: how far two processes
    of one recipe may lie apart here, given how many processes the visits are spread over.
    `provisional` is True until the verdict may be relied on. `spread` is the standard
    deviation of the visits' log ratios (of the pairs', while there is one visit).
    `num_more_visits` estimates what a verdict still takes at this spread; None where none is
    needed, or where more visits of the same processes would not bring one. `num_processes`
    is how many pairs of processes the visits amount to.
    """

    verdict: Verdict
    provisional: bool
    num_visits: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    spread: float | None = None
    threshold: float = 0.02
    reason: str = ""
    num_more_visits: int | None = None
    num_processes: float | None = None

    @property
    def text(self) -> str:
        """The verdict in words that cannot be misread: "1.41× as fast (1.39–1.43)"."""
        if self.ratio is None:
            return self.reason or "not measured"
        if self.low is None or self.high is None:
            return f"about {_times(self.ratio)}, provisional"
        if self.verdict == "same":
            return f"same within {self.threshold * 100:g} %"
        if self.verdict == "slower":
            return f"{1 / self.ratio:.2f}× slower ({1 / self.high:.2f}–{1 / self.low:.2f})"
        words = f"{self.ratio:.2f}× as fast ({self.low:.2f}–{self.high:.2f})"
        if self.verdict == "faster":
            return words
        return f"undecided: {words}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}× as fast" if ratio >= 1 else f"{1 / ratio:.2f}× slower"
