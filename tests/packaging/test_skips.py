"""In CI a skipped test needs one of two reasons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the run of these tests was told is not passed on.
_PLAIN = {"WORKBENCH_STRICT_SKIPS": "", "WORKBENCH_REQUIRE_CORPUS": ""}


def outcome(tmp_path: Path, body: str, **environment: str) -> str:
    """pytest's last line for a file with this body, with our conftest as its plugin."""
    file = tmp_path / "test_sample.py"
    file.write_text(f"import pytest\n{body}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", os.devnull, file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **_PLAIN, **environment},
    )
    return done.stdout.strip().splitlines()[-1]


def skipping(reason: str) -> str:
    return f"@pytest.mark.skip(reason={reason!r})\ndef test_it(): pass"


@pytest.mark.parametrize("reason", ["no GPU", "no corpus", "no GPU: two are needed"])
def test_no_gpu_and_no_corpus_are_reasons(tmp_path: Path, reason: str) -> None:
    last = outcome(tmp_path, skipping(reason), WORKBENCH_STRICT_SKIPS="1")
    assert last.startswith("1 skipped")


@pytest.mark.parametrize(
    "body",
    [
        skipping("no compiler"),
        "def test_it(): pytest.importorskip('not_there_at_all')",
        "pytest.importorskip('not_there_at_all')\ndef test_it(): pass",
        "pytestmark = pytest.mark.skipif(True, reason='not here')\ndef test_it(): pass",
    ],
)
def test_any_other_reason_fails(tmp_path: Path, body: str) -> None:
    last = outcome(tmp_path, body, WORKBENCH_STRICT_SKIPS="1")
    assert last.startswith(("1 failed", "1 error"))
    assert outcome(tmp_path, body).startswith("1 skipped")


def test_a_corpus_can_be_required(tmp_path: Path) -> None:
    environment = {"WORKBENCH_STRICT_SKIPS": "1", "WORKBENCH_REQUIRE_CORPUS": "1"}
    assert outcome(tmp_path, skipping("no corpus"), **environment).startswith("1 error")
    assert outcome(tmp_path, skipping("no GPU"), **environment).startswith("1 skipped")


def test_a_known_failure_is_no_skip(tmp_path: Path) -> None:
    body = "@pytest.mark.xfail(reason='known')\ndef test_it(): assert False"
    assert outcome(tmp_path, body, WORKBENCH_STRICT_SKIPS="1").startswith("1 xfailed")
