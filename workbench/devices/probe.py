"""`python -m workbench.devices.probe` prints what this interpreter has, as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from workbench.devices.host import probe_host


def main() -> None:
    """Print this interpreter's Host."""
    print(json.dumps(asdict(probe_host())))


if __name__ == "__main__":
    main()
