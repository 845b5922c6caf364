"""Turning what the user has into a Model, and a Model into a source folder."""

from workbench.sources.describe import describe
from workbench.sources.fit import fit_inputs
from workbench.sources.load import load
from workbench.sources.memory import free_memory_bytes
from workbench.sources.prepare import prepare
from workbench.sources.samples import sample_names

__all__ = ["describe", "fit_inputs", "free_memory_bytes", "load", "prepare", "sample_names"]
