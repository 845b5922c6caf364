"""Static int8 under torch.compile: the steps, and their portable functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.onnx_export import example_tensors, flat_module, free_axes
from workbench.engines.onnx_graph import write_outputs
from workbench.engines.source import checked_arrays, copy_source, read_source
from workbench.engines.torch_compile_evidence import make_compiled_inspect
from workbench.engines.torch_eager import (
    environment_step,
    flags_steps,
    pipeline_step,
    running_steps,
)
from workbench.engines.torch_source import open_module
from workbench.levers.fusion_torch_compile import set_freezing
from workbench.levers.step import Context, Step, portable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def static_steps(context: Context) -> tuple[Step, ...]:
    """Flatten and, after the lever has quantized it, save the graph; compile and run it."""
    dynamic = context.model.batch.dynamic
    kept = {"make_place", "make_call", "make_fetch", "make_inspect"}
    return (
        Step(phase="build.open", function=read_source, reads=("source_dir",), writes="source"),
        Step(phase="build.open", function=open_module, reads=("source_dir",), writes="module"),
        Step(
            phase="build.open",
            function=flatten_module,
            reads=("module", "source", "source_dir", "out_dir"),
            writes="module",
            params={"dynamic": dynamic},
        ),
        Step(
            phase="build.copy",
            function=copy_source,
            reads=("source_dir", "out_dir"),
            params={"leave_out": ["factory.py", "weights.safetensors", "program.pt2"]},
        ),
        Step(
            phase="build.save",
            function=save_program,
            reads=("module", "source", "source_dir", "out_dir"),
            params={"dynamic": dynamic},
        ),
        environment_step(context),
        *flags_steps(context),
        # Packed weights have to be constants of the compiled graph.
        Step(phase="load.flags", function=set_freezing),
        Step(phase="load.open", function=open_program, reads=("out_dir",), writes="module"),
        Step(
            phase="load.compile", function=compile_quantized, reads=("module",), writes="compiled"
        ),
        Step(phase="load.place", function=make_flat_place, reads=("source",), writes="place"),
        Step(phase="load.call", function=make_flat_call, reads=("compiled",), writes="call"),
        Step(phase="load.inspect", function=make_flat_fetch, reads=("out_dir",), writes="fetch"),
        Step(
            phase="load.inspect",
            function=make_compiled_inspect,
            reads=("module", "source"),
            writes="inspect",
            params={"device": "cpu"},
        ),
        *(s for s in running_steps(context) if s.function.__name__ not in kept),
        pipeline_step(),
    )


@portable
def flatten_module(
    module: torch.nn.Module, source: dict[str, Any], source_dir: str, out_dir: str, dynamic: bool
) -> torch.nn.Module:
    """Capture the module behind flat tensors as one graph; its outputs' names go to a file."""
    from pathlib import Path

    import torch

    tensors = example_tensors(source_dir, source, dynamic, None)
    flat = flat_module(module, source)
    with torch.no_grad():
        flat(*tensors)
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    write_outputs(out_dir, flat.outputs)
    shapes = free_axes(source, tensors, dynamic)
    with torch.no_grad():
        program = torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
    graph = program.module()
    # Nodes that nobody reads crash the quantizer on transformer encoders (torchao 0.18).
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


@portable
def save_program(
    module: torch.nn.Module, source: dict[str, Any], source_dir: str, out_dir: str, dynamic: bool
) -> None:
    """Save the graph as an exported program, `quantized.pt2`."""
    import torch

    tensors = example_tensors(source_dir, source, dynamic, None)
    # A graph lists its inputs one by one, where the flat module takes any number.
    (shapes,) = free_axes(source, tensors, dynamic)
    with torch.no_grad():
        program = torch.export.export(module, tuple(tensors), dynamic_shapes=shapes, strict=False)
    torch.export.save(program, f"{out_dir}/quantized.pt2")


@portable
def open_program(out_dir: str) -> torch.nn.Module:
    """The graph that build() saved."""
    import torch

    # Its quantizing operators are registered by this import.
    import torchao.quantization.pt2e

    assert torchao.quantization.pt2e is not None
    return torch.export.load(f"{out_dir}/quantized.pt2").module()


@portable
def compile_quantized(module: torch.nn.Module) -> Callable[..., Any]:
    """Compile the graph; quantize, compute and dequantize become one x86 int8 kernel each.

    torchao's passes that merge them are registered by this import. They run when weights are
    frozen. Lowering the graph with torchao first and then compiling it would run them twice,
    and the second time stumbles over what the first merged (torchao 0.18).
    """
    import torch
    import torchao.quantization.pt2e.lowering

    assert torchao.quantization.pt2e.lowering is not None
    compiled: Callable[..., Any] = torch.compile(module)
    return compiled


@portable
def make_flat_place(source: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """A function that copies arrays to tensors, in the order of the model's inputs."""
    import torch

    def place(inputs: dict[str, Any]) -> Any:
        arrays = checked_arrays(inputs, source["inputs"])
        return [torch.tensor(array) for array in arrays.values()]

    return place


@portable
def make_flat_call(compiled: Callable[..., Any]) -> Callable[[Any], Any]:
    """A function that runs the compiled graph on placed inputs, without autograd."""
    import torch

    def call(placed: Any) -> Any:
        with torch.inference_mode():
            return compiled(*placed)

    return call


@portable
def make_flat_fetch(out_dir: str) -> Callable[[Any], dict[str, Any]]:
    """A function that gives outputs their dotted names back, as numpy arrays."""
    import json
    from pathlib import Path

    import numpy

    outputs = json.loads((Path(out_dir) / "outputs.json").read_text(encoding="utf-8"))

    def fetch(raw: Any) -> dict[str, Any]:
        tensors = iter(raw)
        arrays: dict[str, Any] = {}
        for output in outputs:
            if "graph" in output:
                arrays[output["name"]] = next(tensors).numpy()
            elif output["constant"] is None:
                arrays[output["name"]] = None
            else:
                dtype, value = output["constant"]
                arrays[output["name"]] = numpy.array(value, dtype=dtype)
        return arrays

    return fetch
