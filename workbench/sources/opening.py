"""Getting the live module out of a capture. Worker side: this runs what was captured."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

from workbench.core.errors import LoadError
from workbench.sources.capture import Capture
from workbench.sources.modules import PAYLOAD, TENSORS
from workbench.sources.state import read_state


def extend_path(folder: Path, capture: Capture) -> None:
    """Let imports find the captured helper modules first, and the client's own path last."""
    helpers = folder / "helpers"
    if helpers.is_dir() and str(helpers) not in sys.path:
        sys.path.insert(0, str(helpers))
    for entry in capture.path:
        if entry not in sys.path:
            sys.path.append(entry)


def open_module(folder: Path, capture: Capture) -> Any:
    """The module of a capture of a live object or a factory, with its state, in eval mode.

    Raises LoadError where a factory makes no module or a state dict does not fit.
    """
    import torch

    if capture.kind == "factory":
        made = call_factory(capture.payload)
    else:
        made = load_payload(folder)
        if capture.kind == "callable":
            made = made()
    if not isinstance(made, torch.nn.Module):
        raise LoadError(f"{capture.name} made a {type(made).__name__}; wanted an nn.Module.")
    if capture.state is not None:
        apply_state(made, folder / capture.state)
    return made.eval()


def call_factory(text: str) -> Any:
    """What "package.module:factory" returns. Raises LoadError where it is not there."""
    path, _, name = text.partition(":")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise LoadError(
            f"the factory {text!r} cannot be imported: {error}. Install the package, or run from "
            "the folder that holds it."
        ) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise LoadError(f"the module {path!r} has no callable {name!r}.")
    return factory()


def apply_state(module: Any, path: Path) -> None:
    """Load a state dict file into a module, strictly."""
    state = read_state(path)
    # torch.compile and data-parallel wrappers leave their name on every key.
    for prefix in ("_orig_mod.", "module."):
        if state and all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        lines = str(error).splitlines()
        shown = " ".join(line.strip() for line in lines[1:4]) or lines[0]
        raise LoadError(
            f"the state dict does not fit {type(module).__name__}: {shown[:400]}"
        ) from error


def load_payload(folder: Path) -> Any:
    """The object that the client pickled, its tensors put back."""
    import torch
    from safetensors.torch import load_file

    # A file's tensors start at any byte; torch's own are aligned, as the user's were, and
    # the last bits of a product can depend on that.
    tensors = {name: t.clone() for name, t in load_file(str(folder / TENSORS)).items()}
    made: dict[tuple[str, bool], Any] = {}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, key: Any) -> Any:
            _, name, is_parameter, requires_grad = key
            if (name, is_parameter) not in made:
                tensor = tensors[name]
                made[name, is_parameter] = (
                    torch.nn.Parameter(tensor, requires_grad=requires_grad)
                    if is_parameter
                    else tensor
                )
            return made[name, is_parameter]

    with (folder / PAYLOAD).open("rb") as file:
        return Unpickler(file).load()


def import_file(name: str, path: Path) -> Any:
    """A module from a file, its folder on the path while it is imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    # Dataclasses and pickling look their module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
