"""Which profiler records what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.capture.captured import Captured
from workbench.core.errors import RunError
from workbench.core.profile import DEFAULT_ITERATIONS, Tool


def capture(
    tool: Tool,
    load: Callable[[], Any],
    place: Callable[[Any], list[Any]],
    folder: Path,
    name: str,
    *,
    iterations: int = DEFAULT_ITERATIONS,
    stacks: bool = False,
) -> Captured:
    """Record calls of a pipeline into a new file of `folder` whose name begins with `name`.

    `load` gives the pipeline and `place(pipeline)` its inputs, one a call, taken in turns. ONNX
    Runtime and OpenVINO call both twice, since what records is opened anew. Raises RunError
    where nothing was recorded, and where stacks are asked for that the profiler does not have.
    """
    if tool == "torch":
        from workbench.capture.torch import capture_torch

        pipeline = load()
        return capture_torch(
            pipeline, place(pipeline), folder, name, iterations=iterations, stacks=stacks
        )
    if stacks:
        raise RunError("Python's stacks are recorded by PyTorch alone; profile without them.")
    if tool == "onnxruntime":
        from workbench.capture.onnxruntime import capture_onnxruntime

        return capture_onnxruntime(load, place, folder, name, iterations=iterations)
    from workbench.capture.openvino import capture_openvino

    return capture_openvino(load, place, folder, name, iterations=iterations)
