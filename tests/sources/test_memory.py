"""Free memory of the container, and refusing what does not fit (P35)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core.errors import TooLargeError
from workbench.sources import memory
from workbench.sources.memory import check_fits, free_memory_bytes


def test_free_memory_is_read():
    free = free_memory_bytes()
    assert free is not None
    assert 0 < free < 1 << 50


def test_the_message_says_needed_and_free(monkeypatch):
    """P35: 'needs ~6 GB, 1.5 GB free'."""
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 1_500_000_000)
    with pytest.raises(TooLargeError, match=r"needs ~6 GB, 1\.5 GB free"):
        check_fits(6_000_000_000, "the model")
    check_fits(1_000_000_000, "the model")


def test_unknown_memory_refuses_nothing(monkeypatch):
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: None)
    check_fits(1 << 60, "the model")


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (("memory.max", "memory.current", "inactive_file"), "0::/a/b"),
        (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            "4:memory:/a/b",
        ),
    ],
)
def test_the_containers_limit_counts_and_its_page_cache_is_free(
    tmp_path, monkeypatch, names, group
):
    """Both versions of cgroups, with the limit set on a parent."""
    limit, usage, cache = names
    root = tmp_path / "cgroup"
    parent = (root / "memory" if "memory" in group else root) / "a"
    parent.mkdir(parents=True)
    (parent / limit).write_text("1000000\n")
    (parent / usage).write_text("900000\n")
    (parent / "memory.stat").write_text(f"anon 1\n{cache} 300000\n")
    real = Path.read_text

    def read_text(self, *args, **kwargs):
        if str(self) == "/proc/self/cgroup":
            return group + "\n"
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(memory, "_CGROUPS", root)
    assert free_memory_bytes() == 400_000


def test_an_unlimited_group_is_no_limit(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert memory._cgroup(tmp_path, "memory.max", "memory.current", "inactive_file") is None
    (tmp_path / "memory.max").write_text("9223372036854771712\n")
    assert memory._cgroup(tmp_path, "memory.max", "memory.current", "inactive_file") is None


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
