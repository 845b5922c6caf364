"""Opening a source folder with torch: portable functions of the torch engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.source import import_file, read_source
from workbench.levers.step import portable

if TYPE_CHECKING:
    import torch


@portable
def open_module(folder: str, device: str = "cpu") -> torch.nn.Module:
    """The module of a source folder with its weights, in evaluation mode, on the device.

    Opening an exported program or TorchScript runs code that the file brings.
    """
    import torch

    kind = read_source(folder)["kind"]
    if kind == "factory":
        module = make_module(folder)
        load_weights(module, folder)
        return module.to(device)
    if kind == "torchscript":
        module = torch.jit.load(f"{folder}/module.pt", map_location=device).eval()
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return module
    program = torch.export.load(f"{folder}/program.pt2")
    if device != "cpu":
        # Devices are written into an exported graph wherever it makes a tensor.
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return program.module().requires_grad_(False)


@portable
def make_module(folder: str) -> torch.nn.Module:
    """What `make()` in the folder's factory.py returns, its weights not yet loaded."""
    return import_file(folder, "factory").make().eval().requires_grad_(False)


@portable
def plain_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of a module's state by name, shared ones once.

    A quantized tensor is several plain ones: "fc.weight::qdata", "fc.weight::scale".
    """
    flat: dict[str, Any] = {}
    seen = set()

    def add(name: str, tensor: torch.Tensor) -> None:
        if hasattr(tensor, "__tensor_flatten__"):
            for part in tensor.__tensor_flatten__()[0]:
                add(f"{name}::{part}", getattr(tensor, part))
        else:
            flat[name] = tensor

    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            add(name, tensor)
    return flat


@portable
def save_weights(module: torch.nn.Module, folder: str) -> None:
    """Write the module's tensors, converted as they are, to weights.safetensors."""
    from safetensors.torch import save_file

    tensors = plain_tensors(module)
    save_file(
        {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()},
        f"{folder}/weights.safetensors",
    )


@portable
def load_weights(module: torch.nn.Module, folder: str) -> None:
    """Fill the module's tensors from weights.safetensors. Every one of them must be there."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(f"{folder}/weights.safetensors")
    if not stored:
        return  # make() brought weights of its own, in a form that this file cannot hold
    tensors = plain_tensors(module)
    # Of tensors that share memory a file holds one, under whichever name came first.
    by_memory: dict[Any, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        by_memory.setdefault(id(tensor), []).append(name)
    aliases = {name: set(names) for names in by_memory.values() for name in names}
    missing = [n for n in tensors if n not in stored and not aliases.get(n, set()) & set(stored)]
    unknown = [n for n in stored if n not in tensors and not aliases.get(n, set()) & set(tensors)]
    if missing or unknown:
        raise KeyError(
            f"weights.safetensors does not fit the model: {missing or 'nothing'} missing, "
            f"{unknown or 'nothing'} unknown"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            key = name if name in stored else next(iter(aliases[name] & set(stored)))
            if tensor.shape != stored[key].shape:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}, its weights {list(stored[key].shape)}"
                )
            tensor.copy_(stored[key])
