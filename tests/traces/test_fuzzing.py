"""Damaged traces end in a refusal that names the file, or in what the oracle can recover."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.traces.fuzzing import contents, damaged_gzip, ends_well, excerpt, mutated, recoverable
from workbench.core.errors import WorkbenchError
from workbench.traces.opening import open_trace
from workbench.traces.summary import summarise
from workbench.traces.trace import Trace

NUM_INPUTS = int(os.environ.get("WORKBENCH_FUZZ_INPUTS", "2000"))
NUM_EVENTS = 25
# What one small file may take, whatever is in it.
LONGEST_S = 10
MOST_MEMORY_BYTES = 512 << 20


@pytest.mark.slow
def test_nothing_crashes_and_nothing_is_silently_short(tmp_path: Path) -> None:
    whole = contents()
    process = psutil.Process()
    before = process.memory_info().rss
    path = tmp_path / "t.json"
    for seed in range(NUM_INPUTS):
        rng = random.Random(seed)
        content = mutated(excerpt(rng.choice(whole), rng, NUM_EVENTS), rng)
        begun = time.perf_counter()
        assert ends_well(content, path) is None, seed
        assert time.perf_counter() - begun < LONGEST_S, seed
    assert process.memory_info().rss - before < MOST_MEMORY_BYTES


@pytest.mark.slow
def test_damaged_gzip_gives_what_could_be_unpacked(tmp_path: Path) -> None:
    whole = contents()
    path = tmp_path / "t.json.gz"
    for seed in range(200):
        rng = random.Random(seed)
        path.write_bytes(damaged_gzip(excerpt(rng.choice(whole), rng, NUM_EVENTS), rng))
        try:
            found = open_trace(path)
        except WorkbenchError as error:
            refusal = str(error)
        else:
            assert isinstance(found, Trace)
            summarise(found, "damaged")
            continue
        assert str(path) in refusal


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[{"ph": "X"}, {"ph": "M"}]', (2, 0)),
        (b'{"a": 1, "traceEvents": [{"ph": "X"}, {"ph": bad}, {"ph": "X"}]}', (2, 1)),
        (b'[{"a": [{"b": 1}, {"c": 2}]}, {}]', (2, 0)),
        (b'[{"a": "x"y"}]', (0, 1)),
        (b'[{"a": 1}', (1, 0)),
        (b"[]", (0, 0)),
        (b"hello", None),
    ],
)
def test_the_oracle_counts_what_stands_there(
    content: bytes, expected: tuple[int, int] | None
) -> None:
    assert recoverable(content) == expected
