"""What a torch model is made of: layers by kind, parameters, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

_FUNCTIONS = ("scaled_dot_product_attention",)
_ATEN = {
    "linear": "Linear",
    "addmm": "Linear",
    "conv1d": "Conv1d",
    "conv2d": "Conv2d",
    "conv3d": "Conv3d",
    "batch_norm": "BatchNorm2d",
    "layer_norm": "LayerNorm",
    "group_norm": "GroupNorm",
    "embedding": "Embedding",
    "lstm": "LSTM",
    "gru": "GRU",
    "scaled_dot_product_attention": "scaled_dot_product_attention",
}


def count_layers(module: Any) -> dict[str, int]:
    """Modules that hold parameters, by the name of torch's class that they are.

    Attention is counted too, as "MultiheadAttention". A class of the user's own counts by
    its own name.
    """
    import torch

    counts: Counter[str] = Counter()
    for part in module.modules():
        public = next(
            (
                base.__name__
                for base in type(part).__mro__
                if getattr(torch.nn, base.__name__, None) is base and base is not torch.nn.Module
            ),
            None,
        )
        own = any(p is not None for p in part._parameters.values())
        scripted = getattr(part, "original_name", None)
        if own:
            counts[str(scripted or public or type(part).__name__)] += 1
    return dict(sorted(counts.items()))


def count_functions(run: Callable[[], object]) -> dict[str, int]:
    """How often attention is called as a function in one run."""
    from torch.overrides import TorchFunctionMode

    counts: Counter[str] = Counter()

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            name = getattr(function, "__name__", "")
            if name in _FUNCTIONS:
                counts[name] += 1
            return function(*args, **(kwargs or {}))

    with Watch():
        run()
    return dict(counts)


def count_nodes(program: Any) -> dict[str, int]:
    """The layers of an exported program, by its operators."""
    counts: Counter[str] = Counter()
    for node in program.graph.nodes:
        if node.op == "call_function":
            name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
            if name in _ATEN:
                counts[_ATEN[name]] += 1
    return dict(sorted(counts.items()))


def module_bytes(module: Any) -> tuple[int, int]:
    """(parameters, bytes of parameters and buffers), tied ones counted once."""
    tensors = [*module.parameters(), *module.buffers()]
    num_parameters = sum(p.numel() for p in module.parameters())
    return num_parameters, sum(t.numel() * t.element_size() for t in tensors)
