"""Turning what the user has into a Model, and a Model into a source folder."""

from typing import TYPE_CHECKING

from workbench.sources.describe import describe
from workbench.sources.fit import fit_inputs
from workbench.sources.load import load
from workbench.sources.samples import sample_names

if TYPE_CHECKING:
    from workbench.sources.preparation import prepare

__all__ = ["describe", "fit_inputs", "load", "prepare", "sample_names"]


def __getattr__(name: str) -> object:
    # A client loads and never prepares: what only workers need is imported when they ask.
    if name == "prepare":
        from workbench.sources.preparation import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
