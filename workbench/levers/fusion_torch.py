"""Fusion on eager torch: batch normalisation folded into convolutions, CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.structure import bind_inputs
from workbench.levers.fusion import Fusion
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def fusion_unavailable(value: str, context: Context) -> str | None:
    """Why eager torch cannot merge anything here."""
    if value == "cuda-graphs":
        if context.device.kind != "cuda":
            return f"CUDA graphs need an NVIDIA GPU; this is {context.device.reading}"
        return None
    if context.model.kind != "factory":
        return "folding replaces modules, and " + {
            "exported": "an exported program is one graph without any",
            "torchscript": "a TorchScript module is compiled already",
        }.get(context.model.kind, "this model has none")
    layers = context.model.layers
    if layers and not any("batchnorm" in kind.lower() for kind in layers):
        return "the model has no batch normalisation to fold"
    return None


@applies(Fusion, "torch", unavailable=fusion_unavailable, values=("conv-bn", "cuda-graphs"))
def plan_fusion(lever: Fusion, _context: Context) -> tuple[Step, ...]:
    """Find the pairs on the example when building, fold them in both; or record graphs."""
    if lever.value == "cuda-graphs":
        return (
            Step(
                phase="load.call",
                function=with_cuda_graphs,
                reads=("call",),
                writes="call",
            ),
        )
    return (
        Step(
            phase="build.convert",
            function=find_conv_bn,
            reads=("module", "source_dir", "out_dir"),
        ),
        Step(
            phase="build.convert",
            function=fold_conv_bn,
            reads=("module", "out_dir"),
            writes="module",
        ),
        Step(
            phase="load.convert",
            function=fold_conv_bn,
            reads=("module", "out_dir"),
            writes="module",
        ),
    )


@portable
def find_conv_bn(module: torch.nn.Module, source_dir: str, out_dir: str) -> None:
    """Write folded.json: the convolutions whose only reader is a batch normalisation.

    Read off one call on the example: what else reads a convolution's output would see it
    normalised, so such a pair is left alone.
    """
    import json
    from pathlib import Path

    import numpy
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    convolutions = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    norms = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    made_by: dict[int, str] = {}
    readers: dict[str, list[str]] = {}
    calls: dict[str, int] = {}
    kept = []
    inside: list[str] = []

    class Readers(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore
            for leaf in tree_leaves((args, kwargs or {})):
                if isinstance(leaf, torch.Tensor) and id(leaf) in made_by:
                    readers[made_by[id(leaf)]].append(inside[-1] if inside else "")
            return func(*args, **(kwargs or {}))

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: inside.append(name)

    def leave_norm(*_: Any) -> None:
        inside.pop()

    def leave_convolution(name: str) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: torch.Tensor) -> None:
            inside.pop()
            calls[name] = calls.get(name, 0) + 1
            kept.append(output)  # kept alive: a freed tensor's id would come again
            made_by[id(output)] = name
            readers.setdefault(name, [])

        return hook

    hooks = []
    for name, child in module.named_modules():
        if isinstance(child, (*norms, *convolutions)):
            hooks.append(child.register_forward_pre_hook(enter(name)))
            after = leave_convolution(name) if isinstance(child, convolutions) else leave_norm
            hooks.append(child.register_forward_hook(after))
    source = json.loads((Path(source_dir) / "source.json").read_text(encoding="utf-8"))
    with numpy.load(Path(source_dir) / "example.npz", allow_pickle=False) as archive:
        tensors = {name: torch.from_numpy(archive[name]) for name in archive.files}
    args, kwargs = bind_inputs(source["call"], tensors)
    with torch.inference_mode(), Readers():
        module(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    by_name = dict(module.named_modules())
    pairs = [
        [name, read[0]]
        for name, read in readers.items()
        if len(read) == 1
        and calls[name] == 1
        and isinstance(by_name.get(read[0]), norms)
        # A norm that runs after two convolutions cannot be folded into both.
        and sum(read[0] in others for others in readers.values()) == 1
        and getattr(by_name[read[0]], "running_mean", None) is not None
    ]
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    (Path(out_dir) / "folded.json").write_text(json.dumps(pairs), encoding="utf-8")


@portable
def fold_conv_bn(module: torch.nn.Module, out_dir: str) -> torch.nn.Module:
    """Scale convolutions as the batch normalisation after them would, and drop that."""
    import json
    from pathlib import Path

    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for convolution, norm in json.loads((Path(out_dir) / "folded.json").read_text("utf-8")):
        fused = fuse_conv_bn_eval(module.get_submodule(convolution), module.get_submodule(norm))
        nothing = torch.nn.Identity().eval()
        nothing.folded_into = convolution
        module.set_submodule(convolution, fused.requires_grad_(False))
        module.set_submodule(norm, nothing)
    return module


@portable
def with_cuda_graphs(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Record the launches of a call for each shape of its inputs, and replay them.

    Inputs are copied to where the graph reads them and outputs are cloned: the next replay
    overwrites both. Three calls warm a shape up before it is recorded.
    """
    import torch
    from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

    recorded: dict[Any, Any] = {}

    def record(placed: Any) -> Any:
        leaves, structure = tree_flatten(placed)
        static = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        bound = tree_unflatten(static, structure)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call(bound)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = call(bound)
        return graph, static, outputs

    def graph_call(placed: Any) -> Any:
        leaves = tree_flatten(placed)[0]
        key = tuple(
            (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        )
        with torch.inference_mode():
            if key not in recorded:
                recorded[key] = record(placed)
            graph, static, outputs = recorded[key]
            for target, leaf in zip(static, leaves, strict=True):
                if isinstance(leaf, torch.Tensor):
                    target.copy_(leaf)
            graph.replay()
            return tree_map_only(torch.Tensor, torch.clone, outputs)

    # For inspection: a replay shows kernels, this shows the operators behind them.
    vars(graph_call)["plain"] = call
    return graph_call
