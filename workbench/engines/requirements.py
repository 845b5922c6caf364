"""The pinned distributions that an exported script needs."""

from __future__ import annotations

from workbench.engines.engine import engine
from workbench.levers.step import Context

# PyTorch publishes builds with a local version ("2.13.0+cpu") on indexes of its own only.
_PYTORCH_INDEX = "https://download.pytorch.org/whl"
_ON_PYTORCH_INDEX = ("torch", "torchvision", "torchaudio", "torchao")

# Distributions that serving a recipe needs beside the engine's own.
_BY_LEVER = {
    ("torch", "quantization"): ("torchao",),
    ("torch-compile", "quantization"): ("torchao",),
}


def requirements(context: Context) -> tuple[str, ...]:
    """Lines of `requirements.txt`: what serves this recipe, at the versions that ran.

    A build that lives on an index of its own is preceded by the line that names the index.
    """
    names = ["numpy", *engine(context.recipe.engine).serving]
    for lever, _ in context.recipe.levers:
        names += _BY_LEVER.get((context.recipe.engine, lever), ())
    names += context.model.requirements
    lines: list[str] = []
    for name in dict.fromkeys(names):
        if "==" in name or name not in context.host.packages:
            lines.append(name)
            continue
        version = context.host.packages[name]
        local = version.partition("+")[2]
        if local and name in _ON_PYTORCH_INDEX:
            lines.append(f"--extra-index-url {_PYTORCH_INDEX}/{local}")
        lines.append(f"{name}=={version}")
    return tuple(dict.fromkeys(lines))
