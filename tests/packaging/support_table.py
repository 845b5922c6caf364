"""The README's support table: `python -m tests.packaging.support_table` writes it anew."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from workbench.engines import engines, load_all
from workbench.engines.table import RAN_ON
from workbench.levers.table import cell, levers

README = Path(__file__).parents[2] / "README.md"
START, END = "<!-- support table -->", "<!-- /support table -->"


def generated() -> str:
    """The table as the lever table and the recorded runs give it now.

    A row is a lever with those values, next to each other, that ran on the same devices; a
    column is an engine.
    """
    load_all()
    ran: dict[str, list[str]] = json.loads(RAN_ON.read_text(encoding="utf-8"))
    names = list(engines())
    lines = [row("lever", "values", *names), row(*["---"] * (2 + len(names)))]
    lines.append(row("–", "the engine itself", *[devices(ran, name) for name in names]))
    for lever in levers():
        known = dict.fromkeys(
            value for name in names if (found := cell(lever, name)) for value in found.values
        )
        for texts, values in groupby(known, key=lambda value: texts_of(ran, lever, value)):
            lines.append(row(lever, ", ".join(values), *texts))
    return "\n".join(lines)


def texts_of(ran: dict[str, list[str]], lever: str, value: str) -> tuple[str, ...]:
    texts = []
    for name in engines():
        found = cell(lever, name)
        has = found is not None and value in found.values
        texts.append(devices(ran, f"{name},{lever}={value}") if has else "")
    return tuple(texts)


def devices(ran: dict[str, list[str]], key: str) -> str:
    return ", ".join(ran.get(key, ())) or "*never run*"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


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
