"""What a warm process may do before an ONNX export is asked for."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

# Imported by the exporter when it is first used. By their CPU time on the machine that this
# was written on: 2.4 s together, with what they import.
_LATE = (
    "onnx",
    "onnx_ir",
    "onnxscript",
    "torch.onnx",
    "torch.export",
    "torch.export._trace",
    "torch.onnx._internal.exporter._core",
    "onnxscript.function_libs.torch_lib.ops",
)


def prime_export() -> None:
    """Make the first export of a process as quick as any later one, and that quicker.

    Imports what the exporter imports late, keeps its table of operators and exports one
    linear layer: of a small net's 4.2 s of CPU time 0.7 s remain. Does nothing where a
    package is missing; the export itself says so then. Takes about 4 s of CPU time.
    """
    try:
        modules = {name: importlib.import_module(name) for name in _LATE[:5]}
    except ImportError:
        return
    for name in _LATE[5:]:
        # Private, so that a later release may name them otherwise: then they are not warm.
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            continue
    _keep_registry()
    _export_one_layer()


def _keep_registry() -> None:
    """Build the exporter's table of operators once a process, not once an export (0.6 s).

    Nothing of ours adds to the table, which is what a fresh one each time would guard
    against. To be removed when torch keeps it itself.
    """
    try:
        registration: ModuleType = importlib.import_module(
            "torch.onnx._internal.exporter._registration"
        )
        registry = registration.ONNXRegistry
        made = registry.from_torchlib
    except (ImportError, AttributeError):
        return
    if hasattr(made, "cache_info"):
        return
    registry.from_torchlib = staticmethod(functools.cache(made))


def _export_one_layer() -> None:
    import torch

    from workbench.engines.onnx_export import quiet_export

    layer = torch.nn.Linear(2, 2).eval()
    rows = torch.zeros(2, 2)
    with quiet_export():
        program = torch.export.export(
            layer, (rows,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
        )
        torch.onnx.export(program, dynamo=True, verbose=False)
