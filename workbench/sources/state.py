"""State dicts: copied by the client, opened by the worker, never as a free pickle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from workbench.core.errors import LoadError, UnsupportedFormatError, UntrustedFileError
from workbench.sources.describe import check_state_pickle, read_safetensors_header
from workbench.sources.memory import check_fits
from workbench.sources.sniff import sniff

# torch.load(weights_only=True) could be made to run code before this version
# (CVE-2025-32434).
MIN_TORCH = (2, 6)


def copy_state(state: str | Path | None, folder: Path) -> str | None:
    """Check a state dict file and copy it into the capture; its name there.

    Raises UnsupportedFormatError where it is something else, UntrustedFileError where it is a
    pickle of more than tensors, TooLargeError where it would not fit.
    """
    if state is None:
        return None
    path = Path(state).expanduser()
    form = sniff(path)
    if form == "safetensors":
        read_safetensors_header(path)
        name = "state.safetensors"
    elif form in ("torch-pickle", "pickle"):
        check_state_pickle(path)
        name = "state.pt"
    else:
        raise UnsupportedFormatError(
            f"state= wants a state dict (.safetensors or .pt); {path.name!r} is {form}."
        )
    check_fits(path.stat().st_size, f"the state dict {path.name}")
    shutil.copyfile(path, folder / name)
    return name


def read_state(path: Path) -> dict[str, Any]:
    """The tensors of a state dict file, on the CPU. Worker side.

    A checkpoint that keeps them below "state_dict" or "model" is unwrapped. Raises
    UntrustedFileError where weights_only refuses, LoadError where there are no tensors.
    """
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(str(path)))
    content = load_weights_only(path)
    for key in ("state_dict", "model_state_dict", "model"):
        inner = content.get(key) if isinstance(content, dict) else None
        if isinstance(inner, dict):
            content = inner
    if not isinstance(content, dict) or not content:
        raise LoadError(f"{path.name!r} holds no state dict.")
    return content


def load_weights_only(path: Path) -> Any:
    """`torch.load(weights_only=True)`, and nothing with less safety after it."""
    import pickle

    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MIN_TORCH:
        raise UntrustedFileError(
            f"torch {torch.__version__} cannot open pickles safely, even with weights_only; "
            f"install torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or later, or give safetensors."
        )
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UntrustedFileError(
            f"{path.name!r} holds more than weights, so weights_only refused it: save the state "
            "alone, with safetensors or torch.save(model.state_dict(), ...)."
        ) from error
