"""Refusing what does not fit into memory (P35)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core.errors import TooLargeError
from workbench.sources import memory
from workbench.sources.memory import check_fits


def test_the_message_says_needed_and_free(monkeypatch):
    """P35: 'needs ~6 GB, 1.5 GB free'."""
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 1_500_000_000)
    with pytest.raises(TooLargeError, match=r"needs ~6 GB, 1\.5 GB free"):
        check_fits(6_000_000_000, "the model")
    check_fits(1_000_000_000, "the model")


def test_a_folder_that_declares_too_much_is_refused_before_it_is_opened(tmp_path):
    """P35: an address space of 2 GB and a folder that declares 6 GB; the process lives."""
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 10}))
    index = {
        "metadata": {"total_size": 6_000_000_000},
        "weight_map": {"w": "model-00001-of-00001.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))\n"
        "from workbench.core.errors import TooLargeError\n"
        "from workbench.sources.load import load\n"
        "try:\n"
        "    load(sys.argv[1])\n"
        "except TooLargeError as error:\n"
        "    print(error)\n"
        "print('alive')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(memory.__file__).parents[2],
    )
    refusal, alive = done.stdout.splitlines()
    assert "needs ~6 GB" in refusal
    assert "GB free" in refusal
    assert alive == "alive"
