"""A process that keeps one core busy, for as long as this one lives."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

# It leaves by itself where its parent was killed without a chance to end it.
_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def busy_core(wanted: bool = True) -> Iterator[None]:
    """Another process computes meanwhile, without a pause; nothing of it is left after."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _LOOP], stdin=subprocess.DEVNULL)
    try:
        yield
        # One that died would make this an ordinary trial under a wrong name.
        assert process.poll() is None, "the busy process ended early"
    finally:
        process.kill()
        process.wait()
