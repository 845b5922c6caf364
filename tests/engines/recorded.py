"""Which cells of the support table have run, and on what: written by the tests that run them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from workbench.core.device import Device
from workbench.engines import table


def record(keys: Iterable[str], device: Device) -> None:
    """Note that these rows of the table ran. Does nothing unless WORKBENCH_RECORD_RUNS=1."""
    if os.environ.get("WORKBENCH_RECORD_RUNS") != "1":
        return
    path = table.RAN_ON
    ran = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for key in keys:
        ran[key] = sorted({*ran.get(key, ()), table.device_kind(device)})
    path.write_text(json.dumps(dict(sorted(ran.items())), indent=1) + "\n", encoding="utf-8")
