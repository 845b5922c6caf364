"""Real sentences to judge a sentence encoder by: the standard library's own docstrings.

Nothing is shipped: they are read from the Python that runs, so their number and text depend
on its version.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from workbench.core.errors import LoadError
from workbench.sources.capture import save_arrays
from workbench.sources.data import CALIBRATION, EVALUATION
from workbench.sources.specs import Array

NUM_EVALUATION, NUM_CALIBRATION = 640, 128
# Long enough for all but the longest sentence, short enough to be quick on a laptop.
SEQUENCE = 64
_MIN_WORDS, _MAX_WORDS = 5, 40


def write_sentences(tokenizer_folder: Path, folder: Path) -> dict[str, Array]:
    """Write `evaluation.npz` and `calibration.npz`; return the first eight evaluation rows.

    Both hold input_ids and attention_mask, i64 (rows, 64). No sentence is in both.
    """
    from transformers import AutoTokenizer

    wanted = NUM_EVALUATION + NUM_CALIBRATION
    sentences = []
    for sentence in docstring_sentences():
        sentences.append(sentence)
        if len(sentences) == wanted:
            break
    if len(sentences) < wanted:
        raise LoadError(
            f"the standard library's source holds only {len(sentences)} sentences; wanted "
            f"{wanted}. Give rows of your own as evaluation= and calibration=."
        )
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder), local_files_only=True)
    encoded = tokenizer(
        sentences, padding="max_length", truncation=True, max_length=SEQUENCE, return_tensors="np"
    )
    rows = {
        name: np.ascontiguousarray(encoded[name].astype(np.int64))
        for name in ("input_ids", "attention_mask")
    }
    # Every seventh sentence calibrates, so that both kinds come from every module.
    calibrates = np.arange(wanted) % (wanted // NUM_CALIBRATION) == 0
    save_arrays(folder / EVALUATION, {n: a[~calibrates][:NUM_EVALUATION] for n, a in rows.items()})
    save_arrays(folder / CALIBRATION, {n: a[calibrates] for n, a in rows.items()})
    return {name: array[~calibrates][:8] for name, array in rows.items()}


def docstring_sentences() -> Iterator[str]:
    """First sentences of docstrings, each once, in the order of the library's files."""
    seen: set[str] = set()
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.glob("*.py")):
        try:
            with warnings.catch_warnings():
                # Old escapes in a library's strings are none of ours.
                warnings.simplefilter("ignore", SyntaxWarning)
                warnings.simplefilter("ignore", DeprecationWarning)
                tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = " ".join((ast.get_docstring(node) or "").split())
                sentence = re.split(r"(?<=[.!?]) ", text, maxsplit=1)[0]
                num_words = len(sentence.split())
                if _MIN_WORDS <= num_words <= _MAX_WORDS and sentence not in seen:
                    seen.add(sentence)
                    yield sentence
