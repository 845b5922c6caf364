"""accel-workbench: make a model fast, cheap and small, and believe the result."""

__version__ = "0.1.0"
