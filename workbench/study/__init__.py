"""Records on disk, comparisons, reports."""

from workbench.study.comparison import Call, Comparison, Estimate, Row
from workbench.study.reader import StudyReader
from workbench.study.store import Store
from workbench.study.study import Study, open_study

__all__ = [
    "Call",
    "Comparison",
    "Estimate",
    "Row",
    "Store",
    "Study",
    "StudyReader",
    "open_study",
]
