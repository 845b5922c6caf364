"""The folder that a variant leaves as: the file that was measured, and what proves it.

pipeline.py          the very file that was measured
(weights, graph)     what its build left
recipe.json          what was asked for
requirements.txt     the versions that ran
README.md            what it is, how it was made, how to run and check it
measurement.json     the row, as in the study's JSON document
check/               inputs, outputs, evidence, tolerance, digests of every file
baseline/            the same of the baseline, where it was asked for
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import ExportError
from workbench.core.json import Json

Arrays = Mapping[str, NDArray[np.generic]]

# What no script needs: the receipt of the build, and the rows that came with the model, which
# are the user's data.
_LEFT_OUT = frozenset(
    {
        "answer.json",
        "build.json",
        "calibration.npz",
        "evaluation.npz",
        "example.npz",
        "labels.npy",
        "outputs.npz",
        "preprocessed.npz",
    }
)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One variant, ready to leave.

    `artifact` is the folder that was served. `inputs` are one call's, `outputs` what the
    measured variant answered to them. `evidence` is what `Pipeline.inspect` returned, None
    where it never was asked. `tolerance` is the error that a check allows, as a share of an
    output's largest value. `speed` is what `check/speed.json` holds, for a bundle with its
    baseline. `processing` are the files that a check of preprocess and postprocess reads, by the
    names they get in `check/`. `caution` says what is wrong with a row that was exported all
    the same.
    """

    artifact: Path
    readme: str
    measurement: Json
    inputs: Arrays
    outputs: Arrays
    evidence: Json
    tolerance: float
    caution: str = ""
    speed: Json = None
    processing: Mapping[str, Path] = field(default_factory=dict)


def write(out: Path, bundle: Bundle, baseline: Bundle | None = None) -> Path:
    """Write a bundle to a new folder and return it, absolute.

    Raises ExportError where the folder holds something, or the artifact is incomplete. What
    lies there is whole or absent: an interrupted export leaves nothing behind.
    """
    out = out.expanduser().resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} already holds something; name a folder that does not exist yet.")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.parent / f".{out.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _write_into(draft, bundle)
        if baseline is not None:
            _write_into(draft / "baseline", baseline)
            _write_digests(draft / "baseline")
        _write_digests(draft)
        if out.exists():
            out.rmdir()
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def _write_into(folder: Path, bundle: Bundle) -> None:
    _copy_artifact(bundle.artifact, folder)
    (folder / "README.md").write_text(bundle.readme, encoding="utf-8")
    _write_json(folder / "measurement.json", bundle.measurement)
    check = folder / "check"
    check.mkdir()
    for name, arrays in (("inputs.npz", bundle.inputs), ("outputs.npz", bundle.outputs)):
        with (check / name).open("wb") as stream:
            np.savez(stream, **dict(arrays))  # type: ignore[arg-type]
    if bundle.evidence is not None:
        _write_json(check / "evidence.json", bundle.evidence)
    _write_json(check / "tolerance.json", {"relative": bundle.tolerance})
    if bundle.speed is not None:
        _write_json(check / "speed.json", bundle.speed)
    for name, path in bundle.processing.items():
        shutil.copyfile(path, check / name)
    if bundle.caution:
        (check / "CAUTION.txt").write_text(bundle.caution + "\n", encoding="utf-8")


def _copy_artifact(artifact: Path, folder: Path) -> None:
    if not (artifact / "pipeline.py").is_file():
        raise ExportError(
            f"the artifact {artifact} has no pipeline.py; run the variant again with rebuild=True."
        )
    for root, folders, files in os.walk(artifact):
        folders[:] = [name for name in folders if name != "__pycache__"]
        here = Path(root)
        there = folder / here.relative_to(artifact)
        there.mkdir(parents=True, exist_ok=True)
        for name in (*folders, *files):
            # A link would make the bundle depend on, or leak, what lies elsewhere.
            if (here / name).is_symlink():
                raise ExportError(f"the artifact holds a link, {here / name}; nothing is exported.")
        for name in files:
            if name not in _LEFT_OUT:
                shutil.copyfile(here / name, there / name)


def _write_digests(folder: Path) -> None:
    """`check/files.json`: SHA-256 of every file but itself, by relative path."""
    listing = folder / "check" / "files.json"
    digests = {
        path.relative_to(folder).as_posix(): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != listing
    }
    _write_json(listing, dict(digests))


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_json(path: Path, value: Json) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
