"""Preprocessing and postprocessing that a model brings: one file, importable by itself."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from workbench.core.errors import InputError, LoadError
from workbench.sources.cell import NoSourceError, collect_source
from workbench.sources.local_modules import copy_local, current_path, imported_roots
from workbench.sources.signature import to_array

PROCESSING, RAW_JSON, RAW_ARRAY = "processing.py", "raw.json", "raw.npy"
_ROLES = ("preprocess", "postprocess")


def write_processing(
    folder: Path,
    functions: Mapping[str, Callable[..., object] | None],
) -> tuple[str, ...]:
    """Write `processing.py` with the functions under the names of their roles.

    `functions` maps "preprocess" and "postprocess" to a plain function or None. Returns the
    helper modules that were copied. Raises LoadError with the reason where a function's
    source cannot be had.
    """
    given = {role: function for role, function in functions.items() if function is not None}
    if not given:
        return ()
    parts: list[object] = list(given.values())
    try:
        source = collect_source(parts)
    except NoSourceError as error:
        raise LoadError(
            f"{' and '.join(given)} must be plain functions whose source can be exported: "
            f"{error}. Define them with def at the top level of a cell or a module."
        ) from error
    lines = [source.text]
    for role, function in given.items():
        name = getattr(function, "__name__", role)
        if name != role and role in source.names:
            raise LoadError(f"{role}= is {name}, but its source also defines {role}; rename one.")
        if name != role:
            lines.append(f"{role} = {name}\n")
    text = "\n".join(lines)
    (folder / PROCESSING).write_text(text, encoding="utf-8")
    roots = imported_roots(text) | {name.partition(".")[0] for name in source.modules}
    return copy_local(sorted(roots), current_path(), folder / "helpers")


def write_raw(folder: Path, raw: object) -> None:
    """Keep an example of what `preprocess` takes: raw.npy for an array, else raw.json.

    Raises InputError where it is neither an array nor plain JSON.
    """
    if isinstance(raw, np.ndarray) or hasattr(raw, "detach"):
        np.save(folder / RAW_ARRAY, to_array(raw, "raw")[0], allow_pickle=False)
        return
    try:
        text = json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"raw= is a {type(raw).__name__}; wanted text, numbers, lists or dicts of them, or an "
            "array."
        ) from error
    (folder / RAW_JSON).write_text(text, encoding="utf-8")


def extract_processing(source: str) -> str | None:
    """The part of a module's source that its `preprocess` and `postprocess` need.

    Works on text alone, so that a sample's module, which imports torch, need not run. None
    where it defines neither.
    """
    tree = ast.parse(source)
    definitions: dict[str, ast.stmt] = {}
    future: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future.append(node)
        for name in _defined(node):
            definitions[name] = node
    wanted = [role for role in _ROLES if role in definitions]
    if not wanted:
        return None
    needed: set[str] = set()
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name in needed or name not in definitions or hasattr(builtins, name):
            continue
        needed.add(name)
        pending.extend(
            item.id for item in ast.walk(definitions[name]) if isinstance(item, ast.Name)
        )
    keep = {id(definitions[name]) for name in needed} | {id(node) for node in future}
    segments = [ast.get_source_segment(source, node) for node in tree.body if id(node) in keep]
    return "\n\n\n".join(segment for segment in segments if segment) + "\n"


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
