"""The README of an exported folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.core.model import TensorSpec


@dataclass(frozen=True, kw_only=True)
class About:
    """What a README says, as plain texts; `sentences` are facts of the measurement."""

    model: str
    spec: str
    engine: str
    origin: str
    device: str
    inputs: Sequence[TensorSpec]
    items_per_call: int | None
    sentences: Sequence[str]
    caution: str
    has_speed: bool
    has_processing: bool
    index_lines: Sequence[str]


def readme(about: About) -> str:
    """Markdown. Texts that come from a model are shown as code and can do nothing."""
    parts = [f"# {code(about.model)}, served with {about.engine}"]
    if about.caution:
        parts.append(f"> **Caution.** {plain(about.caution)}")
    parts += [
        f"Recipe: {code(about.spec)}. Made from {plain(about.origin)}; measured on "
        f"{plain(about.device)}.",
        "`pipeline.py` is the very file that was measured. It needs the packages in "
        "`requirements.txt` and nothing else.",
        "## Run",
        "    python -m venv env\n    env/bin/pip install -r requirements.txt",
        _example(about),
        "## Check",
        "    env/bin/python pipeline.py --check",
        "The check fails where a file is missing or has changed, where the outputs are not those "
        "that were measured, or where something else is executed than was measured. "
        + (
            "It also measures the ratio to the baseline in `baseline/`."
            if about.has_speed
            else "Speed is not checked: this folder was exported without its baseline."
        ),
    ]
    if about.index_lines:
        parts.append(
            "`requirements.txt` names the index of builds that no default index has: "
            + ", ".join(code(line) for line in about.index_lines)
            + "."
        )
    if about.sentences:
        parts.append("## Measured")
        parts.append("\n".join(f"- {plain(sentence)}" for sentence in about.sentences))
        parts.append("The whole row is in `measurement.json`.")
    return "\n\n".join(parts) + "\n"


def _example(about: About) -> str:
    lines = ["import numpy as np", "from pipeline import load", ""]
    lines += [f"# {spec}" for spec in about.inputs]
    arrays = ", ".join(
        f"{json.dumps(spec.name)}: np.zeros({_shape(spec, about.items_per_call)}, "
        f"{json.dumps(_numpy_dtype(spec))})"
        for spec in about.inputs
    )
    lines += [
        'model = load(".")  # the folder of this file',
        f"outputs = model.predict({{{arrays}}})",
    ]
    if about.has_processing:
        lines += [
            "",
            "# With the model's own processing: model.preprocess(...) makes the inputs,",
            "# model.postprocess(outputs) the answer.",
        ]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def _shape(spec: TensorSpec, items: int | None) -> str:
    sizes = [size if isinstance(size, int) else (items or 1) for size in spec.shape]
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def _numpy_dtype(spec: TensorSpec) -> str:
    return "float32" if spec.dtype == "bfloat16" else spec.dtype


def code(value: str) -> str:
    """A text as inline code, whatever it holds."""
    flat = " ".join(value.split())
    longest = max((len(run) for run in re.findall("`+", flat)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def plain(value: str) -> str:
    """A text on one line, with what Markdown or HTML would act on made harmless."""
    flat = " ".join(value.split())
    return re.sub(r"([\\`*_\[\]<>|#!])", r"\\\1", flat)
