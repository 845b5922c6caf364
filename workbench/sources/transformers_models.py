"""Opening a Hugging Face folder in a worker, and writing the factory that stands for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from workbench.core.errors import LoadError
from workbench.sources.huggingface import HuggingFaceSummary
from workbench.sources.running import align
from workbench.sources.state import load_weights_only

MODEL = "model"

_POOLED = '''

class SentenceEmbedding(torch.nn.Module):
    """Token outputs averaged over what is not padding{normalized_doc}."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return {result}
'''


def factory_text(summary: HuggingFaceSummary, *, trusted: bool, dtype: str, weights: bool) -> str:
    """`factory.py` for a folder that lies beside it as `model/`.

    With `weights` it opens the folder's own; without, it makes the architecture from its
    configuration, and the weights come as for any factory.
    """
    remote = bool(trusted and summary.remote_code)
    lines = [
        '"""Makes the model from the configuration in model/, which lies beside this file."""',
        "",
        "import torch",
    ]
    text = "\n".join(lines) + "\n"
    if summary.pools:
        result = "torch.nn.functional.normalize(mean, dim=1)" if summary.normalizes else "mean"
        doc = ", then scaled to length 1" if summary.normalizes else ""
        text += _POOLED.format(result=result, normalized_doc=doc)
    auto = summary.auto_class
    make = [
        "",
        "",
        "def wrap(model):",
        '    """What is measured around the folder\'s own model."""',
        f"    return {'SentenceEmbedding(model)' if summary.pools else 'model'}.eval()",
        "",
        "",
        "def configuration():",
        '    """The folder\'s configuration, without a cache of past keys."""',
        "    from pathlib import Path",
        "",
        "    from transformers import AutoConfig",
        "",
        "    config = AutoConfig.from_pretrained(",
        f'        str(Path(__file__).with_name("{MODEL}")),',
        "        local_files_only=True,",
        f"        trust_remote_code={remote},",
        "    )",
        '    if hasattr(config, "use_cache"):',
        "        config.use_cache = False",
        "    return config",
        "",
        "",
        "def make():",
        '    """The model in eval mode."""',
    ]
    if weights:
        make += [
            "    from pathlib import Path",
            "",
            f"    from transformers import {auto}",
            "",
            f"    model = {auto}.from_pretrained(",
            f'        str(Path(__file__).with_name("{MODEL}")),',
            "        config=configuration(),",
            "        local_files_only=True,",
            "        use_safetensors=True,",
            f"        trust_remote_code={remote},",
            "    )",
        ]
    else:
        make += [
            f"    from transformers import {auto}",
            "",
            f"    model = {auto}.from_config(configuration(), trust_remote_code={remote})",
        ]
        if dtype != "float32":
            make.append(f"    model = model.to(torch.{dtype})")
    make.append("    return wrap(model)")
    return text + "\n".join(make) + "\n"


def open_folder(folder: Path, factory: Any, summary: HuggingFaceSummary, *, trusted: bool) -> Any:
    """The folder's model with its weights, wrapped as the factory wraps it."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise LoadError(
            "a Hugging Face folder takes transformers: pip install 'accel-workbench[huggingface]'."
        ) from error
    if summary.has_pickles:
        convert_pickles(folder, summary)
    auto = getattr(transformers, summary.auto_class)
    model = auto.from_pretrained(
        str(folder),
        config=factory.configuration(),
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=bool(trusted and summary.remote_code),
    )
    return align(factory.wrap(model))


def convert_pickles(folder: Path, summary: HuggingFaceSummary) -> None:
    """Turn pickled weights into safetensors, read with weights_only and nothing else."""
    from safetensors.torch import save_file

    state: dict[str, Any] = {}
    for name in summary.weights:
        state.update(load_weights_only(folder / name))
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
    save_file(plain, str(folder / "model.safetensors"), metadata={"format": "pt"})
    for name in summary.weights:
        (folder / name).unlink()


def copy_configuration(folder: Path, summary: HuggingFaceSummary, target: Path) -> None:
    """Copy what the factory needs beside it: configuration, tokenizer and trusted code."""
    destination = target / MODEL
    destination.mkdir(parents=True, exist_ok=True)
    for name in (*summary.small_files, *summary.remote_code):
        (destination / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / name, destination / name)
