"""The command line. `docs/cli.md` has the table of exit codes."""

from workbench.cli.main import main

__all__ = ["main"]
