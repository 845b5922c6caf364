"""The README's support table: `python -m tests.packaging.support_table` writes it anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
START, END = "<!-- support table -->", "<!-- /support table -->"


def generated() -> str:
    """The table as the lever table and the recorded runs give it now."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench.engines.table", "--markdown"],
        capture_output=True,
        text=True,
        check=True,
        cwd=README.parent,
    )
    return done.stdout.strip()


def written() -> str:
    """The table in the README."""
    return README.read_text(encoding="utf-8").partition(START)[2].partition(END)[0].strip()


def main() -> None:
    """Put the generated table into the README."""
    before, _, rest = README.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{START}\n\n{generated()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
