"""The engine `torch`: PyTorch runs the model operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.core.json import Json
from workbench.engines.engine import Engine, register
from workbench.engines.pipeline import Pipeline
from workbench.engines.source import copy_source, load_processing, read_source
from workbench.engines.torch_evidence import make_inspect
from workbench.engines.torch_reading import read_evidence
from workbench.engines.torch_run import (
    make_call,
    make_fetch,
    make_memory,
    make_place,
    make_synchronize,
    set_torch_flags,
    use_device,
    with_events,
)
from workbench.engines.torch_source import load_weights, make_module, open_module, save_weights
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import plan
from workbench.levers.threads import set_thread_environment, threads_of

if TYPE_CHECKING:
    import torch

BUILD_PHASES = (
    "build.open",
    "build.convert",
    "build.copy",
    "build.save",
)
LOAD_PHASES = (
    "load.environment",
    "load.flags",
    "load.open",
    "load.convert",
    "load.weights",
    "load.device",
    "load.layout",
    "load.mode",
    "load.compile",
    "load.place",
    "load.call",
    "load.inspect",
    "load.pipeline",
)

# Flags of the notebook that a torch engine takes over, as `Model.settings` spells them.
_FLAGS = (
    "default_dtype",
    "num_threads",
    "deterministic",
    "float32_matmul_precision",
    "cudnn_benchmark",
    "cuda_matmul_fp32_precision",
    "cudnn_conv_fp32_precision",
    "cudnn_rnn_fp32_precision",
)


def environment_step(context: Context) -> Step:
    """Say how threads wait; first of all, before torch is imported."""
    wait = threads_of(context.recipe, context.settings).wait
    return Step(
        phase="load.environment",
        function=set_thread_environment,
        params={"wait": wait, "num_threads": None, "engine_module": "torch"},
    )


def flags_steps(context: Context) -> tuple[Step, ...]:
    """Set the notebook's flags, where there are any."""
    flags: dict[str, Json] = {k: context.settings[k] for k in _FLAGS if k in context.settings}
    if not flags:
        return ()
    return (Step(phase="load.flags", function=set_torch_flags, params={"flags": flags}),)


def opening_steps(context: Context) -> tuple[Step, ...]:
    """Copy and open the source.

    A lever that converts weights runs in `build`, where they are saved as they then are,
    and again in `load`, on a module whose weights are filled in afterwards. What an exported
    program or TorchScript holds cannot be saved apart, so it is converted in `load`.
    """
    converts = any(step.phase == "build.convert" for step in plan(context))
    copied = Step(phase="build.copy", function=copy_source, reads=("source_dir", "out_dir"))
    device = context.device.id
    if not converts:
        return (
            copied_with(copied, []),
            Step(
                phase="load.open",
                function=open_module,
                reads=("out_dir",),
                writes="module",
                params={} if device == "cpu" else {"device": device},
            ),
        )
    steps = [
        Step(phase="build.open", function=open_module, reads=("source_dir",), writes="module"),
        copied_with(copied, ["weights.safetensors"]),
        Step(phase="build.save", function=save_weights, reads=("module", "out_dir")),
        Step(phase="load.open", function=make_module, reads=("out_dir",), writes="module"),
        Step(phase="load.weights", function=load_weights, reads=("module", "out_dir")),
    ]
    if device != "cpu":
        steps.append(
            Step(
                phase="load.device",
                function=to_device,
                reads=("module",),
                writes="module",
                params={"device": device},
            )
        )
    return tuple(steps)


def copied_with(step: Step, leave_out: list[str]) -> Step:
    """The copying step, leaving these files behind."""
    return Step(
        phase=step.phase,
        function=step.function,
        reads=step.reads,
        params={"leave_out": list(leave_out)},
    )


@portable
def to_device(module: torch.nn.Module, device: str) -> torch.nn.Module:
    """Move a module's tensors."""
    return module.to(device)


def running_steps(
    context: Context,
    *,
    called: str = "module",
    inspect: Callable[..., object] = make_inspect,
) -> tuple[Step, ...]:
    """Place, call, fetch and inspect. `called` is the variable that holds what is called."""
    device: dict[str, Json] = {"device": context.device.id}
    return (
        Step(phase="load.open", function=read_source, reads=("out_dir",), writes="source"),
        Step(
            phase="load.place",
            function=make_place,
            reads=("source",),
            writes="place",
            params=device,
        ),
        Step(phase="load.call", function=make_call, reads=(called,), writes="call"),
        Step(phase="load.inspect", function=make_fetch, writes="fetch"),
        Step(
            phase="load.inspect",
            function=make_synchronize,
            writes="synchronize",
            params=device,
        ),
        Step(
            phase="load.inspect",
            function=make_memory,
            reads=("used_before",) if context.device.kind == "cuda" else (),
            writes="memory",
            params=device,
        ),
        Step(
            phase="load.inspect",
            function=inspect,
            reads=("module", "source"),
            writes="inspect",
            params=device,
        ),
        Step(
            phase="load.inspect",
            function=load_processing,
            reads=("out_dir",),
            writes="preprocess, postprocess",
        ),
    )


def pipeline_step() -> Step:
    """The last line of `load`."""
    return Step(
        phase="load.pipeline",
        function=Pipeline,
        reads=(
            "place",
            "call",
            "fetch",
            "synchronize",
            "inspect",
            "memory",
            "preprocess",
            "postprocess",
        ),
        writes="pipeline",
    )


def torch_steps(
    context: Context,
    *,
    called: str = "module",
    inspect: Callable[..., object] = make_inspect,
) -> tuple[Step, ...]:
    """The steps that both torch engines share."""
    first: tuple[Step, ...] = ()
    last: tuple[Step, ...] = ()
    if context.device.kind == "cuda":
        device: dict[str, Json] = {"device": context.device.id}
        used = Step(phase="load.flags", function=use_device, writes="used_before", params=device)
        first = (used,)
        last = (
            Step(
                phase="load.pipeline",
                function=with_events,
                reads=("pipeline",),
                writes="pipeline",
                params=device,
            ),
        )
    return (
        environment_step(context),
        *first,
        *flags_steps(context),
        *opening_steps(context),
        *running_steps(context, called=called, inspect=inspect),
        pipeline_step(),
        *last,
    )


def torch_unavailable(context: Context) -> str | None:
    """Why torch cannot run this model here."""
    if context.model.kind == "onnx":
        return "the model is an ONNX graph, which torch does not run"
    if not context.has("torch", "safetensors"):
        missing = [name for name in ("torch", "safetensors") if not context.has(name)]
        return f"{' and '.join(missing)} not installed (pip install accel-workbench[run])"
    return None


TORCH = register(
    Engine(
        name="torch",
        title="PyTorch",
        help="runs the model operator by operator, as the notebook does.",
        accepts=("factory", "exported", "torchscript"),
        build_phases=BUILD_PHASES,
        load_phases=LOAD_PHASES,
        steps=torch_steps,
        unavailable=torch_unavailable,
        read_evidence=read_evidence,
        serves_with_torch=True,
        tool="torch",
        builds_with_torch=True,
        serving=("torch", "safetensors"),
        modules=("torch",),
    )
)
