"""Engines: build, load, predict and inspect a model, one file each."""

from __future__ import annotations

from importlib import import_module

from workbench.engines.engine import Engine, engine, engines

# In the order in which engines and their levers are shown.
_MODULES = (
    "workbench.levers.precision_torch",
    "workbench.levers.quantization_torch",
    "workbench.levers.fusion_torch",
    "workbench.levers.fusion_torch_compile",
    "workbench.levers.attention_torch",
    "workbench.levers.batching_torch",
    "workbench.levers.layout_torch",
    "workbench.levers.threads_torch",
    "workbench.engines.torch_eager",
    "workbench.engines.torch_compile",
    "workbench.levers.onnx_provider",
    "workbench.levers.onnx_precision",
    "workbench.levers.onnx_quantization",
    "workbench.levers.onnx_fusion",
    "workbench.levers.onnx_threads",
    "workbench.levers.onnx_batching",
    "workbench.engines.onnxruntime",
    "workbench.levers.openvino_precision",
    "workbench.levers.openvino_quantization",
    "workbench.levers.openvino_threads",
    "workbench.engines.openvino",
)


def load_all() -> None:
    """Import every engine and lever file, so that the tables are full. Imports no engine's
    library: torch and its like stay out until a model is run."""
    for name in _MODULES:
        import_module(name)


__all__ = ["Engine", "engine", "engines", "load_all"]
