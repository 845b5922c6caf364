"""A Hugging Face folder, read statically: architecture, task, inputs, size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import (
    MissingDataError,
    UnsupportedFormatError,
    UntrustedFileError,
)
from workbench.core.model import Task
from workbench.sources.describe import check_state_pickle, read_safetensors_header

# The class that opens an architecture, by the end of its name, and what it is for.
_HEADS: tuple[tuple[str, str, Task | None], ...] = (
    ("ForSequenceClassification", "AutoModelForSequenceClassification", "classification"),
    ("ForImageClassification", "AutoModelForImageClassification", "classification"),
    ("ForAudioClassification", "AutoModelForAudioClassification", "classification"),
    ("ForTokenClassification", "AutoModelForTokenClassification", "classification"),
    ("ForQuestionAnswering", "AutoModelForQuestionAnswering", None),
    ("ForMaskedLM", "AutoModelForMaskedLM", None),
    ("ForCausalLM", "AutoModelForCausalLM", "language-model"),
    ("LMHeadModel", "AutoModelForCausalLM", "language-model"),
    ("ForConditionalGeneration", "AutoModelForSeq2SeqLM", None),
    ("Model", "AutoModel", "embedding"),
)
# What a folder may bring beside its weights: configuration and tokenizer, all plain text.
_KEEP_SUFFIXES = (".json", ".txt", ".model", ".jinja")
_MAX_SMALL_BYTES = 64 << 20
_SEQUENCE = 128


@dataclass(frozen=True, kw_only=True)
class HuggingFaceSummary:
    """What a folder says of itself.

    `auto_class` is the class of transformers that opens it. `specs` are the inputs that its
    config implies, () where it implies none. `weights` are file names; `has_pickles` says
    that they are pickled state dicts. `pools` is True for a sentence encoder, whose token
    outputs are averaged.
    """

    model_type: str
    architecture: str
    auto_class: str
    task: Task | None
    specs: tuple[str, ...]
    weights: tuple[str, ...]
    small_files: tuple[str, ...]
    has_pickles: bool
    remote_code: tuple[str, ...]
    pools: bool
    normalizes: bool
    num_parameters: int | None
    num_bytes: int


def read_folder(folder: Path, *, trusted: bool = False) -> HuggingFaceSummary:
    """Summarise a folder, and refuse it where opening it would run code.

    Raises UntrustedFileError on remote code without `trusted`, on pickles that are more than
    weights and on links that lead out, MissingDataError where a shard is absent,
    UnsupportedFormatError where it is no model of transformers.
    """
    config = _read_json(folder, "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedFormatError(
            f"the config.json in {str(folder)!r} names no model_type; it is no model of "
            "transformers."
        )
    remote = config.get("auto_map")
    code: tuple[str, ...] = ()
    if remote:
        if not trusted:
            raise UntrustedFileError(
                f"{folder.name!r} brings Python of its own (auto_map in config.json), which runs "
                "when it is opened. Load it with trusted=True if you trust its author."
            )
        code = tuple(sorted(p.name for p in folder.glob("*.py")))
    architecture = str((config.get("architectures") or ["Model"])[0])
    auto_class, task = next(
        ((auto, task) for end, auto, task in _HEADS if architecture.endswith(end)),
        ("AutoModel", None),
    )
    weights, has_pickles = _weights(folder)
    num_parameters: int | None = 0
    num_bytes = 0
    for name in weights:
        if has_pickles:
            check_state_pickle(folder / name)
            num_bytes += (folder / name).stat().st_size
            num_parameters = None
            continue
        for entry in read_safetensors_header(folder / name).values():
            num_bytes += entry["data_offsets"][1] - entry["data_offsets"][0]
            count = 1
            for dim in entry["shape"]:
                count *= dim
            num_parameters = (num_parameters or 0) + count
    where, pools, normalizes = _pooling(folder)
    small = tuple(
        sorted(
            p.name
            for p in folder.iterdir()
            if p.suffix in _KEEP_SUFFIXES
            and not p.name.endswith(".index.json")
            and p.is_file()
            and p.stat().st_size <= _MAX_SMALL_BYTES
        )
    )
    if where:
        small = (*small, where)
    for name in (*weights, *small, *code):
        _check_inside(folder, name)
    return HuggingFaceSummary(
        model_type=model_type,
        architecture=architecture,
        auto_class=auto_class,
        task="embedding" if pools else task,
        specs=_specs(config),
        weights=weights,
        small_files=small,
        has_pickles=has_pickles,
        remote_code=code,
        pools=pools,
        normalizes=normalizes,
        num_parameters=num_parameters,
        num_bytes=num_bytes,
    )


def declared_bytes(folder: Path) -> int | None:
    """The size that the folder's weight index declares, before any shard is looked at."""
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / name).is_file():
            total = _read_json(folder, name).get("metadata", {}).get("total_size")
            if isinstance(total, (int, float)):
                return int(total)
    return None


def _weights(folder: Path) -> tuple[tuple[str, ...], bool]:
    for single, pickled in (("model.safetensors", False), ("pytorch_model.bin", True)):
        index = folder / f"{single}.index.json"
        if (folder / single).is_file():
            return (single,), pickled
        if index.is_file():
            shards = _read_json(folder, index.name).get("weight_map", {}).values()
            names = tuple(sorted({str(name) for name in shards}))
            for name in names:
                if Path(name).name != name:
                    raise UntrustedFileError(
                        f"{index.name} keeps weights in {name!r}, which leads out of the folder."
                    )
                if not (folder / name).is_file():
                    raise MissingDataError(
                        f"{index.name} names {name!r}, which is not in {str(folder)!r}. Copy that "
                        "file beside the others."
                    )
            return names, pickled
    raise MissingDataError(
        f"{str(folder)!r} holds neither model.safetensors nor pytorch_model.bin, so there are no "
        "weights to open."
    )


def _check_inside(folder: Path, name: str) -> None:
    """Links may stay inside the folder or inside the hub's cache that it is a snapshot of."""
    resolved = (folder / name).resolve()
    home = folder.resolve()
    cache = home.parent.parent if home.parent.name == "snapshots" else home
    if not resolved.is_relative_to(home) and not resolved.is_relative_to(cache / "blobs"):
        raise UntrustedFileError(
            f"{name!r} in {str(folder)!r} is a link to {str(resolved)!r}, outside the model's "
            "folder. Copy the file itself there (cp -L)."
        )


def _pooling(folder: Path) -> tuple[str, bool, bool]:
    """Where a sentence encoder says how it pools; whether by averaging; whether it scales."""
    if not (folder / "modules.json").is_file():
        return "", False, False
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    where, pools, normalizes = "", False, False
    for module in modules if isinstance(modules, list) else ():
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            path = str(module.get("path", ""))
            if Path(path).name == path and (folder / path / "config.json").is_file():
                where = f"{path}/config.json"
                pools = bool(_read_json(folder, where).get("pooling_mode_mean_tokens"))
        normalizes = normalizes or kind == "Normalize"
    return where, pools, normalizes


def _specs(config: dict[str, Any]) -> tuple[str, ...]:
    return tuple(_iter_specs(config))


def _iter_specs(config: dict[str, Any]) -> Iterator[str]:
    vocabulary = config.get("vocab_size")
    size, channels = config.get("image_size"), config.get("num_channels", 3)
    if config.get("is_encoder_decoder"):
        return
    if isinstance(vocabulary, int) and size is None:
        limit = config.get("max_position_embeddings") or config.get("n_positions") or _SEQUENCE
        length = min(_SEQUENCE, int(limit))
        yield f"input_ids: i64[batch, seq={length}] in 0..{vocabulary}"
        yield f"attention_mask: i64[batch, seq={length}] in 1..2"
    elif isinstance(size, int) and vocabulary is None:
        yield f"pixel_values: f32[batch, {int(channels)}, {size}, {size}]"


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedFormatError(f"{os.fspath(folder / name)!r} is no JSON.") from error
    if not isinstance(content, dict):
        raise UnsupportedFormatError(f"{os.fspath(folder / name)!r} is no JSON object.")
    return content
