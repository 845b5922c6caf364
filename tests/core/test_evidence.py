"""What a row may be called."""

from __future__ import annotations

import pytest

from workbench.core.evidence import Evidence, thread_label


@pytest.mark.parametrize(
    ("quantized", "layers", "words"),
    [
        (1, 10, "int8 in 1 of 10 layers, 2 threads"),
        (10, 10, "int8, 2 threads"),
        (None, None, "int8, 2 threads"),
    ],
)
def test_a_label_of_some_layers_says_so(
    quantized: int | None, layers: int | None, words: str
) -> None:
    """P12: "1 of 2" is no int8 model."""
    evidence = Evidence(
        device="cpu",
        engine_version="1.32.0",
        num_layers=layers,
        num_layers_quantized=quantized,
        labels=("int8", "2 threads"),
    )
    assert evidence.reading == words


def test_one_thread_is_no_plural() -> None:
    assert [thread_label(n) for n in (1, 2)] == ["1 thread", "2 threads"]
