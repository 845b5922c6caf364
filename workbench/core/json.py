"""What JSON can hold, and one canonical way to write it."""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def canonical(value: Json) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Raises ValueError on NaN and infinities, which are no JSON.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Json) -> str:
    """SHA-256 of the canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
