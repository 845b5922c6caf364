"""`python -m tests.device`: what has to be seen on a GPU, in one command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.device.faults import SECTION as FAULTS
from tests.device.levers import SECTION as LEVERS
from tests.device.rounds import SECTION as ROUNDS
from tests.device.suite import Options, run_section, run_suite

SECTIONS = (ROUNDS, LEVERS, FAULTS)


def main(arguments: list[str] | None = None) -> int:
    """0 where every section was finished and every check holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument(
        "--section", action="append", choices=[s.name for s in SECTIONS], help="only this one"
    )
    parser.add_argument("--out", type=Path, default=Path("device-results"))
    parser.add_argument("--limit-s", type=float, default=500.0, help="seconds for all of it")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu to try the code")
    parser.add_argument("--quick", action="store_true", help="small: shows that the code runs")
    parser.add_argument("--run", choices=[s.name for s in SECTIONS], help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    options = Options(
        out=chosen.out, limit_s=chosen.limit_s, device=chosen.device, quick=chosen.quick
    )
    by_name = {section.name: section for section in SECTIONS}
    if chosen.run:
        return run_section(by_name[chosen.run], chosen.lines, options)
    names = chosen.section or list(by_name)
    return run_suite([s for s in SECTIONS if s.name in names], options)


if __name__ == "__main__":
    sys.exit(main())
