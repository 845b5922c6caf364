"""A module as an exported program whose outputs are one flat dict, so it loads anywhere."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.core.json import Json
from workbench.core.model import TensorSpec
from workbench.core.structure import bind_inputs, flatten_outputs
from workbench.sources.specs import Array


class NotExportedError(Exception):
    """Why a module cannot be exported, in one clause."""


def export(
    module: Any,
    call: Mapping[str, Json],
    specs: Sequence[TensorSpec],
    example: Mapping[str, Array],
    axes: Mapping[str, int],
    path: Path,
) -> None:
    """Write `path` (.pt2) with the axes in `axes` dynamic, all of them as one dimension.

    Raises NotExportedError with the first line of torch's reason.
    """
    import torch

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            outputs = flatten_outputs(self.module(*args, **kwargs))
            return {name: _as_tensor(leaf) for name, leaf in outputs.items()}

    tensors = {
        spec.name: torch.from_numpy(example[spec.name].copy()).to(getattr(torch, spec.dtype))
        for spec in specs
    }
    args, kwargs = bind_inputs(dict(call), tensors)
    # torch binds shapes by the forward's signature and trips over **kwargs in it.
    kinds = inspect.Parameter
    names = [f"arg_{i}" for i in range(len(args))]
    Flat.forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            kinds("self", kinds.POSITIONAL_OR_KEYWORD),
            *(kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in names),
            *(kinds(name, kinds.KEYWORD_ONLY) for name in kwargs),
        ]
    )
    dynamic: dict[str, Any] | None = None
    if axes:
        batch = torch.export.Dim("batch")
        shapes = {
            spec.name: {axes[spec.name]: batch} if spec.name in axes else None for spec in specs
        }
        shape_args, shape_kwargs = bind_inputs(_only_tensors(call), shapes)
        dynamic = {**dict(zip(names, shape_args, strict=True)), **shape_kwargs}
    try:
        with warnings.catch_warnings():
            # torch 2.13 warns of its own use of a deprecated pytree class while it exports.
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\..*")
            program = torch.export.export(
                Flat().eval(), args, kwargs, dynamic_shapes=dynamic, strict=False
            )
            torch.export.save(program, str(path))
    except Exception as error:
        # Tracing raises whatever the model and torch do; a program is one source among others.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = lines[0][:300] if lines else ""
        raise NotExportedError(f"{type(error).__name__}: {text}") from error


def _as_tensor(leaf: Any) -> Any:
    import torch

    if leaf is None or isinstance(leaf, torch.Tensor):
        return leaf
    return torch.from_numpy(leaf.copy())


def _only_tensors(call: Mapping[str, Json]) -> dict[str, Any]:
    """The template with everything that is no tensor as None: the form of dynamic shapes."""

    def strip(node: Any) -> Any:
        kind = node[0]
        if kind in ("tuple", "list"):
            return [kind, [strip(child) for child in node[1]]]
        if kind == "dict":
            return ["dict", [[key, strip(child)] for key, child in node[1]]]
        return node if kind == "tensor" else ["none"]

    args: Any = call["args"]
    kwargs: Any = call["kwargs"]
    return {
        "args": [strip(node) for node in args],
        "kwargs": {key: strip(node) for key, node in kwargs.items()},
    }
