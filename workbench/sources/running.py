"""Running a model in a worker: named arrays in, named arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.json import Json
from workbench.core.model import TensorSpec
from workbench.core.structure import bind_inputs, flatten_outputs
from workbench.sources.specs import Array

Outputs = dict[str, Array | None]
Run = Callable[[Mapping[str, Array]], "Results"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """One call's outputs, and the dtypes that the model gave ("bfloat16" travels as f32)."""

    arrays: Outputs
    dtypes: dict[str, str]

    def specs(self) -> tuple[TensorSpec, ...]:
        """A spec for every output; one that is None has the dtype "none"."""
        return tuple(
            TensorSpec(
                name=name,
                dtype=self.dtypes[name],
                shape=() if array is None else tuple(array.shape),
            )
            for name, array in self.arrays.items()
        )


def torch_run(module: Any, call: Mapping[str, Json], specs: Sequence[TensorSpec]) -> Run:
    """Run a torch module in inference mode, from the same random state every time."""
    import torch

    dtypes = {spec.name: getattr(torch, spec.dtype) for spec in specs}
    template = dict(call)

    def run(arrays: Mapping[str, Array]) -> Results:
        tensors = {
            # Cloned, since the last bits can depend on how memory is aligned.
            name: torch.from_numpy(np.array(array)).clone().to(dtypes[name])
            for name, array in arrays.items()
        }
        args, kwargs = bind_inputs(template, tensors)
        torch.manual_seed(0)
        with torch.inference_mode():
            return to_results(module(*args, **kwargs))

    return run


def align(module: Any) -> Any:
    """Move a module's tensors into memory of torch's own, and return the module.

    A file's tensors start at any byte, and the last bits of a product can depend on that.
    """
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()
    return module


def to_results(value: object) -> Results:
    """A torch model's outputs as arrays. Raises TypeError where a leaf is no tensor."""
    arrays: Outputs = {}
    dtypes: dict[str, str] = {}
    for name, leaf in flatten_outputs(value).items():
        if leaf is None:
            arrays[name], dtypes[name] = None, "none"
        elif hasattr(leaf, "detach"):
            dtypes[name] = str(leaf.dtype).removeprefix("torch.")
            host = leaf.detach().to("cpu")
            if dtypes[name].startswith(("bfloat16", "float8")):
                host = host.float()
            arrays[name] = host.resolve_conj().resolve_neg().numpy().copy()
        else:
            number = np.asarray(leaf)
            arrays[name], dtypes[name] = number, str(number.dtype)
    return Results(arrays=arrays, dtypes=dtypes)


def onnx_run(path: Path, output_names: Sequence[str]) -> Run:
    """Run an ONNX file with ONNX Runtime on the CPU, its graph as it is written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(arrays: Mapping[str, Array]) -> Results:
        outputs = session.run(list(output_names), dict(arrays))
        found = {name: np.asarray(o) for name, o in zip(output_names, outputs, strict=True)}
        return Results(arrays=dict(found), dtypes={n: str(a.dtype) for n, a in found.items()})

    return run


def bit_equal(actual: Mapping[str, Array | None], expected: Mapping[str, Array | None]) -> str:
    """ "" where both hold the same names, dtypes, shapes and bits; else what differs."""
    if list(actual) != list(expected):
        return f"the outputs are {', '.join(actual)} instead of {', '.join(expected)}"
    for name, wanted in expected.items():
        got = actual[name]
        if wanted is None or got is None:
            if wanted is not None or got is not None:
                return f"the output {name!r} is None on one side only"
            continue
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return (
                f"the output {name!r} is {got.dtype}{list(got.shape)} instead of "
                f"{wanted.dtype}{list(wanted.shape)}"
            )
        same = np.array_equal(got, wanted, equal_nan=got.dtype.kind in "fc")
        if not same:
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            with np.errstate(invalid="ignore", over="ignore"):
                worst = float(np.nanmax(np.abs(got.astype(wide) - wanted.astype(wide))))
            return f"the output {name!r} differs by up to {worst:.3g}"
    return ""
