"""Write what a sample consists of: weights, rows to evaluate and calibrate on, and its card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn

Arrays = dict[str, np.ndarray]


def ship(
    folder: Path, *, model: nn.Module, card: dict, evaluation: Arrays, calibration: Arrays
) -> None:
    """Write `weights.safetensors`, `evaluation.npz`, `calibration.npz` and the two cards.

    `evaluation` has the inputs under the names of `forward`'s parameters, and "labels";
    `calibration` has the inputs only. `card` lacks `num_parameters`, which is counted here.
    """
    from safetensors.torch import save_file

    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "weights.safetensors")
    (folder / "weights.safetensors").chmod(0o644)
    np.savez_compressed(folder / "evaluation.npz", **evaluation)
    np.savez_compressed(folder / "calibration.npz", **calibration)
    card = {**card, "num_parameters": sum(p.numel() for p in model.parameters())}
    (folder / "card.json").write_text(
        json.dumps(card, indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    (folder / "card.md").write_text(card_text(card), "utf-8")


def card_text(card: dict) -> str:
    """The card as Markdown, made of nothing but `card.json`."""
    quality = card["quality"]
    lines = [
        f"# {card['title']}",
        "",
        card["about"],
        "",
        "| | |",
        "|---|---|",
        f"| load it with | `sample:{card['name']}` |",
        f"| task | {card['task']} |",
        f"| inputs | {_codes(card['inputs'])} |",
        f"| outputs | {_codes(card['outputs'])} |",
        f"| parameters | {card['num_parameters']:,} |",
        f"| quality | {quality['metric']} {quality['value']:.4f} on {quality['num_rows']} "
        f"held-out rows{_against(quality)} |",
        f"| licence | {card['licence']} |",
        "",
        f"**Data.** {card['data']}",
        "",
        f"**Training.** {card['training']}",
        "",
        f"**Limits.** {card['limits']}",
    ]
    if "classes" in card:
        lines += ["", f"**Classes, in the order of the outputs.** {', '.join(card['classes'])}"]
    return "\n".join(lines) + "\n"


def _codes(specs: list[str]) -> str:
    return ", ".join(f"`{spec}`" for spec in specs)


def _against(quality: dict) -> str:
    return f" ({quality['compare']})" if "compare" in quality else ""
