"""Starting the fresh process that proves a source folder, and reading what it found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.core import structure
from workbench.sources import verify
from workbench.sources.capture import load_arrays, save_arrays
from workbench.sources.running import Results, bit_equal
from workbench.sources.specs import Array

# What the two functions gave to the examples, for whoever checks them elsewhere.
PREPROCESSED, ANSWER = "preprocessed.npz", "answer.json"


def prove(
    folder: Path,
    probes: Sequence[Mapping[str, Array]],
    expected: Sequence[Results],
    num_threads: int,
    made: dict[str, Array] | None = None,
    keep_in: Path | None = None,
) -> str:
    """ "" where the folder's model gives bit-equal outputs in a fresh process; else why not.

    The process sees the folder and installed packages, nothing beside the notebook. With no
    probes it only runs `processing.py`; what its preprocess gives is put into `made`, and
    files of that and of the answer that postprocess gives are kept in `keep_in`.
    """
    with tempfile.TemporaryDirectory(prefix="workbench-verify-") as temporary:
        work = Path(temporary)
        for number, probe in enumerate(probes):
            save_arrays(work / f"probe_{number}.npz", probe)
        done = subprocess.run(
            [
                sys.executable,
                "-P",
                str(Path(verify.__file__).resolve()),
                str(folder.resolve()),
                str(work),
                str(Path(structure.__file__).resolve()),
                str(num_threads),
            ],
            cwd=work,
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            last = lines[-1][:300] if lines else f"exit status {done.returncode}"
            return f"it fails in a fresh process: {last}"
        report = json.loads((work / "report.json").read_text(encoding="utf-8"))
        if (folder / "processing.py").is_file() and not report["processing"]:
            return "processing.py defines neither preprocess nor postprocess"
        if made is not None and (work / PREPROCESSED).is_file():
            made.update(load_arrays(work / PREPROCESSED))
        for name in (PREPROCESSED, ANSWER):
            if keep_in is not None and (work / name).is_file():
                shutil.copyfile(work / name, keep_in / name)
        for number, wanted in enumerate(expected):
            got: dict[str, Array | None] = {}
            for key, array in load_arrays(work / f"result_{number}.npz").items():
                kind, _, name = key.partition(":")
                got[name] = None if kind == "none" else array
            difference = bit_equal(got, wanted.arrays)
            if difference:
                return f"in a fresh process {difference}"
    return ""


def _environment() -> dict[str, str]:
    """This environment without the notebook's own folders on Python's path."""
    environment = dict(os.environ)
    entries = environment.pop("PYTHONPATH", "").split(os.pathsep)
    installed = [entry for entry in entries if Path(entry).name.endswith("-packages")]
    if installed:
        environment["PYTHONPATH"] = os.pathsep.join(installed)
    return environment
