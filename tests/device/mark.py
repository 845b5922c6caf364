"""`python -m tests.device.mark RESULTS/B.json`: note in the support table what ran on a GPU.

The suite runs where nothing that it changes comes back but its results; this puts them into
the clone's table, from which README's is made.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.engines.recorded import record
from workbench.core.device import Device
from workbench.core.recipe import Recipe


def keys_of(result: dict[str, Any]) -> list[str]:
    """The table's cells that a result of section B saw running, with nothing unmet.

    Raises ValueError for a quick run, and for one that was not on a GPU: they show nothing.
    """
    if result["quick"] or not str(result["device"]).startswith("cuda"):
        raise ValueError("a quick run, or one on a CPU, says nothing about a GPU")
    keys: set[str] = set()
    for row in result["rows"]:
        if row["state"] != "ran" or row["unmet"]:
            continue
        if not row["ran_on"].startswith(result["device"]):
            continue
        recipe = Recipe.parse(f"engine={row['recipe']}")
        keys.add(recipe.engine)
        keys |= {f"{recipe.engine},{lever}={value}" for lever, value in recipe.levers}
        if row["batch"]:
            keys.add(f"{recipe.engine},batch={row['batch']}")
    return sorted(keys)


def main(paths: list[str]) -> int:
    """Mark the cells of each file; prints how many."""
    for path in paths:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        keys = keys_of(result)
        os.environ["WORKBENCH_RECORD_RUNS"] = "1"
        record(keys, Device(id=result["device"], kind="cuda", name=result["name"]))
        print(f"{len(keys)} cells ran on {result['name']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
