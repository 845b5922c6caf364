"""The engine `torch-compile`: TorchDynamo captures graphs, Inductor generates their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.engine import Engine, register
from workbench.engines.torch_compile_evidence import make_compiled_inspect
from workbench.engines.torch_eager import (
    BUILD_PHASES,
    LOAD_PHASES,
    torch_steps,
    torch_unavailable,
)
from workbench.engines.torch_reading import read_evidence
from workbench.engines.torch_static import static_steps
from workbench.levers.step import Context, Step, portable

if TYPE_CHECKING:
    import torch


def compile_steps(context: Context) -> tuple[Step, ...]:
    """The eager engine's steps, with the module compiled before it is called."""
    if context.recipe.get("quantization") == "int8-static":
        return static_steps(context)
    return (
        *torch_steps(context, called="compiled", inspect=make_compiled_inspect),
        Step(phase="load.mode", function=compile_options, writes="options"),
        Step(
            phase="load.compile",
            function=compile_module,
            reads=("module", "options"),
            writes="compiled",
        ),
    )


@portable
def compile_options() -> dict[str, Any]:
    """Options of torch.compile: its defaults, by which a shape that varies becomes dynamic."""
    return {"dynamic": None}


@portable
def compile_module(module: torch.nn.Module, options: dict[str, Any]) -> torch.nn.Module:
    """Compile at the first call with each kind of input."""
    import torch

    return torch.compile(module, **options)


def compile_unavailable(context: Context) -> str | None:
    """Why torch.compile cannot run this model here."""
    reason = torch_unavailable(context)
    if reason is not None:
        return reason
    if context.model.kind == "torchscript":
        return "the model is TorchScript, which is compiled already and which Dynamo cannot read"
    if context.device.kind == "cpu" and not (context.host.tools or {}).get("c++"):
        return "torch.compile on a CPU needs a C++ compiler (g++ or clang++); none was found"
    if context.device.kind == "cuda":
        if (context.device.capability or (0, 0)) < (7, 0):
            return f"Triton needs compute capability 7.0; this is {context.device.reading}"
        if not context.has("triton"):
            return "torch.compile on a GPU needs the package triton; it is not installed"
    return None


TORCH_COMPILE = register(
    Engine(
        name="torch-compile",
        title="torch.compile",
        help="captures the model as graphs and generates fused kernels for them.",
        accepts=("factory", "exported"),
        build_phases=BUILD_PHASES,
        load_phases=LOAD_PHASES,
        steps=compile_steps,
        unavailable=compile_unavailable,
        read_evidence=read_evidence,
        serves_with_torch=True,
        tool="torch",
        builds_with_torch=True,
        serving=("torch", "safetensors"),
        modules=("torch",),
        compiles=True,
    )
)
