"""Collect the text: `python -m sample_models.byte_gpt.data` (needs CPython's own library).

Reads the documentation strings of the standard library and the language reference that
`help()` prints, and writes `corpus.json.xz`, so that training and the proof that no text is in
two parts do not depend on the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import lzma
import sysconfig
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "corpus.json.xz"
LENGTH = 128
NUM_CALIBRATION, NUM_EVALUATION = 128, 640
# In per cent of the documents; the rest trains.
EVALUATION_SHARE, CALIBRATION_SHARE = 10, 3
# Not the library's own text: tests, programs on top of it, and others' packages.
_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "ensurepip"}


def collect() -> None:
    """Write {part: documents}: one document a module or topic, each in one part."""
    documents = {**_docstrings(), **_topics()}
    parts: dict[str, list[str]] = {"train": [], "calibration": [], "evaluation": []}
    for name, text in sorted(documents.items()):
        parts[_part(name)].append(text)
    content = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    FILE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    for part, texts in parts.items():
        print(part, len(texts), "documents", sum(map(len, texts)), "characters")


def split() -> dict[str, np.ndarray]:
    """Bytes as u8: "train" in one row, "calibration" and "evaluation" (rows, 129).

    The held-out rows do not overlap, and neither half of one occurs anywhere in the training
    text: boilerplate that modules copy from each other would make the figure too good.
    """
    parts = {
        part: "\n\n".join(documents).encode()
        for part, documents in json.loads(lzma.decompress(FILE.read_bytes())).items()
    }
    rng = np.random.default_rng(7)
    split = {"train": np.frombuffer(parts["train"], dtype=np.uint8)}
    for part, num_rows in (("calibration", NUM_CALIBRATION), ("evaluation", NUM_EVALUATION)):
        starts = rng.permutation(len(parts[part]) // (LENGTH + 1)) * (LENGTH + 1)
        windows = (parts[part][start : start + LENGTH + 1] for start in starts)
        fresh = (window for window in windows if not _known(window, parts["train"]))
        rows = [np.frombuffer(next(fresh), dtype=np.uint8) for _ in range(num_rows)]
        split[part] = np.stack(rows)
    return split


def _known(window: bytes, text: bytes) -> bool:
    return window[: LENGTH // 2] in text or window[LENGTH // 2 : LENGTH] in text


def _docstrings() -> dict[str, str]:
    root = Path(sysconfig.get_path("stdlib"))
    documents = {}
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        if _LEFT_OUT.intersection(name.parts):
            continue
        nodes = ast.walk(ast.parse(path.read_bytes()))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
        document = "\n\n".join(text for text in texts if text)
        if document:
            documents[name.as_posix()] = document
    return documents


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics

    return {f"topic {name}": text.strip() for name, text in topics.items()}


def _part(name: str) -> str:
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    if place < EVALUATION_SHARE:
        return "evaluation"
    return "calibration" if place < EVALUATION_SHARE + CALIBRATION_SHARE else "train"


if __name__ == "__main__":
    collect()
