"""The README's support table is the one that the code gives."""

from __future__ import annotations

from tests.packaging.support_table import generated, written


def test_the_readmes_table_is_current() -> None:
    assert written(), "the README has no support table"
    assert written() == generated(), "run `make readme`"
