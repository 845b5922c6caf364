"""Run one command: its errors become one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from workbench.cli.codes import EXITS, INTERRUPTED, OK, RUN
from workbench.cli.parser import parser
from workbench.core import errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is one sentence on stderr."""
    arguments = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except errors.WorkbenchError as error:
        print(f"workbench: {' '.join(str(error).split())}", file=sys.stderr)
        return next((code for kind, code in EXITS if isinstance(error, kind)), RUN)
    except KeyboardInterrupt:
        print("workbench: stopped.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter's last flush must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
