"""Times are the text's, to the nanosecond."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pytest

from workbench.traces.numbers import nanoseconds, whole_number
from workbench.traces.values import Growing


def test_a_timestamp_of_today_is_exact() -> None:
    """A float64 would give 1718000000000000.75 for the second."""
    found, known = nanoseconds([b"1718000000000000.001", b"1718000000000000.701", b"0"])
    assert known.all()
    assert found.tolist() == [1718000000000000001, 1718000000000000701, 0]


def test_every_plain_number_is_what_decimal_says() -> None:
    rng = random.Random(0)
    texts = []
    for _ in range(2000):
        digits = rng.randrange(0, 4)
        decimals = "." + "".join(rng.choice("0123456789") for _ in range(digits)) if digits else ""
        texts.append(f"{rng.randrange(9 * 10 ** rng.randrange(16))}{decimals}".encode())
    found, known = nanoseconds(texts)
    assert known.all()
    assert found.tolist() == [int(Decimal(text.decode()) * 1000) for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"12.5"', 12_500),
        (b"-3.25", -3_250),
        (b"1.7e3", 1_700_000),
        (b"0.0006", 1),
        (b"0.0004", 0),
        (b"", None),
        (b"null", None),
        (b"NaN", None),
        (b"Infinity", None),
        (b'"soon"', None),
        (b"1.2.3", None),
        (b"1\n2", None),
        (b"99999999999999999999", None),
        (b"9223372036854775.807", 2**63 - 1),
        (b"9223372036854775.808", None),
    ],
)
def test_what_is_no_plain_number_disturbs_no_other(text: bytes, expected: int | None) -> None:
    found, known = nanoseconds([b"1.5", text, b"2"])
    assert known.tolist() == [True, expected is not None, True]
    assert found.tolist() == [1_500, expected or 0, 2_000]


def test_no_texts_give_no_numbers() -> None:
    found, known = nanoseconds([])
    assert len(found) == len(known) == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        ("7", 7),
        (7.0, 7),
        (7.5, None),
        ("x", None),
        (None, None),
        (True, None),
        (2**70, None),
    ],
)
def test_identifiers_are_read_from_numbers_and_strings(value: object, expected: int | None) -> None:
    assert whole_number(value) == expected


def test_a_column_grows_in_place_and_is_as_long_as_what_was_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.traces.values._FIRST_ROWS", 5)
    grown = Growing(np.int32)
    parts = [np.arange(n, dtype=np.int64) + n for n in (3, 0, 4, 100, 1, 37)]
    for part in parts:
        grown.append(part)
    found = grown.taken()
    assert found.dtype == np.int32
    assert found.tolist() == np.concatenate(parts).tolist()
    assert Growing(np.float32).taken().tolist() == []
