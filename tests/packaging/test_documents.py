"""What the documents name is there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"]


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", text_of(document))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_folders_exist(document: str) -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|\.toml|\.txt|/))`", text_of(document))
    # pipeline.py and the like are written by an export.
    ours = [name for name in named if name not in {"pipeline.py", "out/"}]
    places = (ROOT, ROOT / "workbench")
    assert [name for name in ours if not any((p / name).exists() for p in places)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([\w.-]+):", text_of("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^ +|`)make ([\w.-]+)", text_of(document), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_that_are_run_exist(document: str) -> None:
    named = set(
        re.findall(r"python3? -m ((?:benchmarks|workbench|tests)[\w.]*)", text_of(document))
    )
    assert {name for name in named if find_spec(name) is None} == set()
