"""Records to JSON text and back, by msgspec."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import StudyError
from workbench.core.model import Model, Task, TensorSpec

T = TypeVar("T")


class _ModelWire(msgspec.Struct, kw_only=True):
    # `Json` is recursive by name, which msgspec cannot resolve; the rest is checked.
    name: str
    kind: str
    folder: str
    inputs: tuple[TensorSpec, ...]
    call: Any
    num_parameters: int | None = None
    num_bytes: int | None = None
    task: Task | None = None
    trusted: bool = False
    settings: dict[str, Any] = {}
    notes: tuple[str, ...] = ()


def encode(record: Any) -> str:
    """JSON text of a frozen dataclass, or of a tuple or dict of plain values.

    Infinities and NaN, which are no JSON, become the texts "inf", "-inf" and "nan".
    """
    plain = msgspec.to_builtins(record)
    return msgspec.json.encode(_spell_non_finite(plain)).decode()


def decode(text: str | bytes, kind: type[T]) -> T:
    """The record of type `kind` in `text`. Raises StudyError on any other shape."""
    try:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError:
            # Only a record with a non-finite number needs this, which is spelled as a text.
            return msgspec.json.decode(text, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        name = getattr(kind, "__name__", str(kind)).lstrip("_")
        raise StudyError(f"the study's record of a {name} cannot be read: {error}") from error


def decode_model(text: str | bytes) -> Model:
    """The Model in `text`, as `encode` wrote it. Raises StudyError on any other shape."""
    wire = decode(text, _ModelWire)
    return Model(**{field.name: getattr(wire, field.name) for field in dataclasses.fields(Model)})


def encode_calls(calls_s: NDArray[np.float64]) -> bytes:
    """Seconds of each call as little-endian float64, whatever the machine."""
    return np.ascontiguousarray(calls_s, dtype="<f8").tobytes()


def decode_calls(blob: bytes) -> NDArray[np.float64]:
    """Inverse of `encode_calls`; shape (num_calls,), read-only."""
    if len(blob) % 8:
        raise StudyError("the study's record of a round is cut short.")
    return np.frombuffer(blob, dtype="<f8").astype(np.float64, copy=False)


def _spell_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _spell_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_non_finite(item) for item in value]
    return value
