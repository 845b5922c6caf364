"""A profile of a variant on PyTorch, in the process that serves it."""

from __future__ import annotations

import contextlib
import inspect
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.capture.captured import (
    STEP,
    TORCH_ENDING,
    Calls,
    Captured,
    Requests,
    file_name,
    num_to_record,
    record_steps,
)
from workbench.core.errors import RunError
from workbench.core.profile import DEFAULT_ITERATIONS
from workbench.traces.modules import MODULE_MARK
from workbench.traces.opening import open_trace
from workbench.traces.requests import REQUEST_MARK
from workbench.traces.trace import Trace

if TYPE_CHECKING:
    import torch

_MAX_MEMORY_EVENTS = 100_000


def capture_torch(
    pipeline: Any,
    placed: list[Any],
    folder: Path,
    name: str,
    *,
    iterations: int = DEFAULT_ITERATIONS,
    stacks: bool = False,
    raw: Any = None,
) -> Captured:
    """Record calls with torch.profiler: operators, kernels, copies, operands, memory.

    Each call is a step; with `raw`, what a model's own preprocessing takes, each whole request,
    with its parts marked. The parts of an eager module are marked by
    their paths; what a compiler made is left alone, because a hook would compile it anew. With
    `stacks` Python's frames are recorded too, which costs several times as much. On a GPU the
    allocator's snapshot is kept beside the trace. Raises RunError where nothing was recorded.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    calls = Calls(pipeline, placed)
    if raw is not None:
        calls = Requests(pipeline, raw, lambda part: record_function(REQUEST_MARK + part))
    call_s = calls.unrecorded_s()
    num = num_to_record(iterations, call_s)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(name, TORCH_ENDING)
    with contextlib.ExitStack() as entered:
        snapshot = entered.enter_context(_memory_history(path)) if on_gpu else None
        module = _module_of(pipeline)
        if module is not None and not stacks:
            entered.enter_context(_marked(module))
        settings = {"experimental_config": _with_sync_events()} if on_gpu else {}
        # A profiler's own first steps take long, and belong to no call.
        with profile(activities=activities):
            calls.once()
        with profile(
            activities=activities,
            record_shapes=True,
            profile_memory=True,
            with_stack=stacks,
            **settings,
        ) as profiler:
            seconds = record_steps(calls, num, lambda n: record_function(STEP.format(n)))
        profiler.export_chrome_trace(str(path))
    _refuse_empty(path)
    return Captured(
        path=path,
        num_iterations=len(seconds),
        call_s=call_s,
        recorded_call_s=statistics.median(seconds),
        snapshot=snapshot,
    )


def _refuse_empty(path: Path) -> None:
    found = open_trace(path, cached=False)
    assert isinstance(found, Trace)
    if not found.counts().get("operator") and not len(found.device_rows):
        path.unlink()
        raise RunError(
            "the profiler recorded nothing: another profile may be running in this process, or "
            "one was broken off. Profile the variant again, in a new process."
        )


def _module_of(pipeline: Any) -> torch.nn.Module | None:
    """The eager module that a pipeline calls; None where it calls what a compiler made."""
    import torch

    module = inspect.getclosurevars(pipeline.call).nonlocals.get("module")
    if not isinstance(module, torch.nn.Module) or hasattr(module, "_orig_mod"):
        return None
    # What torch.export or TorchScript gives is one graph: its parts are never called.
    return None if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule) else module


@contextlib.contextmanager
def _marked(module: torch.nn.Module) -> Iterator[None]:
    """While inside, each call of a part of the module is a span with the part's path."""
    import torch
    from torch.autograd.profiler import record_function

    handles = []
    for path, part in module.named_modules():
        # What is scripted takes no hook.
        if not path or isinstance(part, torch.jit.ScriptModule):
            continue
        opened: list[Any] = []

        def enter(*_: Any, path: str = path, opened: list[Any] = opened, **__: Any) -> None:
            span = record_function(MODULE_MARK + path)
            span.__enter__()
            opened.append(span)

        def leave(*_: Any, opened: list[Any] = opened, **__: Any) -> None:
            if opened:
                opened.pop().__exit__(None, None, None)

        handles.append(part.register_forward_pre_hook(enter))
        handles.append(part.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _memory_history(path: Path) -> Iterator[Path]:
    """While inside, the CUDA allocator keeps its history; it is written beside the trace."""
    import torch

    snapshot = path.with_name(path.name.removesuffix(TORCH_ENDING) + ".memory.pickle")
    torch.cuda.memory._record_memory_history(max_entries=_MAX_MEMORY_EVENTS)
    try:
        yield snapshot
        torch.cuda.memory._dump_snapshot(str(snapshot))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _with_sync_events() -> Any:
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig(enable_cuda_sync_events=True)
