"""Source folders made by hand, and variants of them built and served in processes of their own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.device import Device, Host
from workbench.core.evidence import Evidence
from workbench.core.json import Json
from workbench.core.model import BatchClaim, PreparedModel, TensorSpec
from workbench.core.recipe import Recipe
from workbench.engines.engine import engine
from workbench.engines.render import render
from workbench.levers.step import Context

Arrays = dict[str, NDArray[Any]]

CPU = Device(
    id="cpu",
    kind="cpu",
    name="a test CPU",
    num_cores=2,
    instruction_sets=("avx", "avx2", "fma"),
    native=("fp32",),
)
H100 = Device(
    id="cuda:0", kind="cuda", name="NVIDIA H100", capability=(9, 0), native=("fp32", "bf16")
)

_BUILD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pipeline", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.build(sys.argv[2], sys.argv[3])
"""

_SERVE = """
import importlib.util, json, sys
import numpy
folder, made = sys.argv[1:]
spec = importlib.util.spec_from_file_location("pipeline", folder + "/pipeline.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
pipeline = module.load(folder)
with numpy.load(made + "/inputs.npz") as archive:
    inputs = dict(archive)
outputs = pipeline.predict(inputs)
raw = pipeline.inspect(pipeline.place(inputs))
again = pipeline.predict(inputs)
assert all(
    value is None and again[name] is None or numpy.array_equal(value, again[name], equal_nan=True)
    for name, value in outputs.items()
), "a second call gave another answer"
numpy.savez(made + "/outputs.npz", **{k: v for k, v in outputs.items() if v is not None})
forbidden = [name for name in ("torch", "onnx", "workbench") if name in sys.modules]
with open(made + "/raw.json", "w") as stream:
    json.dump({"raw": raw, "names": list(outputs), "forbidden": forbidden}, stream)
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a served variant answered."""

    outputs: Arrays
    names: tuple[str, ...]
    raw: Json
    evidence: Evidence
    imported: tuple[str, ...]
    artifact: Path


@functools.cache
def host() -> Host:
    """This interpreter, with the CPU of the tests."""
    from workbench.devices.packages import installed_packages, onnxruntime_providers

    packages = installed_packages()
    return Host(
        python=sys.executable,
        python_version="3.11",
        platform="linux",
        devices=(CPU,),
        packages=packages,
        providers=onnxruntime_providers(packages)[0],
    )


def prepared(
    kind: str,
    inputs: tuple[TensorSpec, ...],
    *,
    dynamic: bool = True,
    example_size: int = 4,
    **changes: Any,
) -> PreparedModel:
    """A prepared model with what the engines look at."""
    values: dict[str, Any] = {
        "kind": kind,
        "origin": "importable factory",
        "inputs": inputs,
        "outputs": (),
        "batch": BatchClaim(
            axes={spec.name: 0 for spec in inputs},
            dynamic=dynamic,
            example_size=example_size,
            verified_sizes=(2, 3) if dynamic else (),
            reason="" if dynamic else f"the graph's batch is fixed at {example_size}",
        ),
        "num_parameters": None,
        "num_bytes": None,
        "digest": "0" * 64,
    }
    return PreparedModel(**{**values, **changes})


def write_source(
    folder: Path,
    kind: str,
    example: Arrays,
    outputs: list[str],
    *,
    call: Json = None,
    calibration: Arrays | None = None,
    batch_axes: dict[str, int] | None = None,
    free: bool = True,
) -> tuple[TensorSpec, ...]:
    """`source.json` and the arrays of a source folder. Returns the inputs' specs."""
    folder.mkdir(parents=True, exist_ok=True)
    axes = dict.fromkeys(example, 0) if batch_axes is None else batch_axes
    specs = tuple(
        TensorSpec(
            name=name,
            dtype=str(array.dtype),
            shape=tuple(
                "batch" if free and axis == axes.get(name) else size
                for axis, size in enumerate(array.shape)
            ),
        )
        for name, array in example.items()
    )
    template: Json = {"args": [["tensor", name] for name in example], "kwargs": {}}
    source = {
        "kind": kind,
        "call": template if call is None else call,
        "inputs": [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape)} for s in specs],
        "outputs": outputs,
        "batch_axes": axes,
        "output_batch_axes": {},
    }
    (folder / "source.json").write_text(json.dumps(source))
    np.savez(folder / "example.npz", **example)
    if calibration is not None:
        np.savez(folder / "calibration.npz", **calibration)
    return specs


def write_factory(folder: Path, code: str) -> Any:
    """`factory.py` from code with a `make()`, and weights from a fixed seed. Returns the module."""
    import torch
    from safetensors.torch import save_file

    from workbench.engines.torch_source import plain_tensors

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "factory.py").write_text(code)
    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "factory"}
    exec(code, space)
    module = space["make"]().eval()
    tensors = {k: v.detach().clone().contiguous() for k, v in plain_tensors(module).items()}
    save_file(tensors, folder / "weights.safetensors")
    return module


def context_of(
    model: PreparedModel, recipe: Recipe, *, device: Device = CPU, **settings: Json
) -> Context:
    """A context on this host."""
    return Context(
        host=host(),
        device=device,
        model=model,
        recipe=recipe,
        settings={"num_threads": 1} | settings,
    )


def serve(source: Path, context: Context, inputs: Arrays, work: Path) -> Served:
    """Build in one process, load and predict in another. Raises RuntimeError with its stderr."""
    return served(build(source, context, work), context, inputs, work)


def served(artifact: Path, context: Context, inputs: Arrays, work: Path) -> Served:
    """Load an artifact and predict, in a process of its own. Raises RuntimeError likewise."""
    outputs = answer_of(artifact, inputs, work)
    said = json.loads((work / "raw.json").read_text())
    return Served(
        outputs=outputs,
        names=tuple(said["names"]),
        raw=said["raw"],
        evidence=engine(context.recipe.engine).read_evidence(said["raw"], context),
        imported=tuple(said["forbidden"]),
        artifact=artifact,
    )


def answer_of(artifact: Path, inputs: Arrays, work: Path) -> Arrays:
    """What an artifact that lies anywhere answers, in a process of its own."""
    np.savez(work / "inputs.npz", **inputs)
    _run(_SERVE, str(artifact), str(work))
    with np.load(work / "outputs.npz") as archive:
        return dict(archive)


def build(source: Path, context: Context, work: Path) -> Path:
    """Render `pipeline.py` and run its `build` in a process of its own."""
    artifact = work / "artifact"
    artifact.mkdir(parents=True)
    (artifact / "pipeline.py").write_text(render(context))
    _run(_BUILD, str(artifact / "pipeline.py"), str(source), str(artifact))
    return artifact


def _run(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(arguments[0]).parent if Path(arguments[0]).is_file() else arguments[0],
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-4000:])
    assert done.stdout == "", f"it printed: {done.stdout[:500]}"


def record_here(recipe: Recipe) -> None:
    """Note in the support table that the recipe's cells ran on this machine's CPU."""
    from tests.engines.recorded import record
    from workbench.devices.cpu import describe_cpu

    cells = [f"{recipe.engine},{lever}={value}" for lever, value in recipe.levers]
    record([recipe.engine, *cells], describe_cpu())


CNN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x))
        x = nn.functional.max_pool2d(x, 2)
        return self.head(x.flatten(1))


def make():
    return Net()
"""

ATTENTION = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.out = nn.Linear(32, 32)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            layer(x).unflatten(-1, (4, 8)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        # Of one row for all queries, as a padding mask is.
        mask = (ids > 4)[:, None, None, :]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


def make():
    return Attention()
"""

ENCODER = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.before = nn.LayerNorm(width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        mixed = (scores @ v).transpose(1, 2).reshape(x.shape)
        x = self.before(x + self.out(mixed))
        return self.after(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 64)
        self.blocks = nn.ModuleList(Block(64, 4) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return {"hidden": x, "pooled": x.mean(1), "cache": None, "layers": 2}


def make():
    return Encoder()
"""


def linear_graph(
    *,
    ir_version: int = 8,
    opset: int = 17,
    dtype: str = "float32",
    rows: int | str = "batch",
    op: str = "Gemm",
) -> Any:
    """An ONNX model of one layer: y = x @ w (+ c), x of shape (rows, 4)."""
    from onnx import TensorProto, helper, numpy_helper

    kind = {"float32": TensorProto.FLOAT, "bfloat16": TensorProto.BFLOAT16}[dtype]
    weights = np.arange(8, dtype="float32").reshape(4, 2) / 8
    if dtype == "bfloat16":
        import ml_dtypes

        held = numpy_helper.from_array(weights.astype(ml_dtypes.bfloat16), "w")
        zero = numpy_helper.from_array(np.zeros(2).astype(ml_dtypes.bfloat16), "c")
    else:
        held = numpy_helper.from_array(weights, "w")
        zero = numpy_helper.from_array(np.zeros(2, dtype="float32"), "c")
    inner = helper.make_node(op, ["x", "w", "c"] if op == "Gemm" else ["x", "w"], ["y"], name="fc")
    graph = helper.make_graph(
        [inner],
        "graph",
        [helper.make_tensor_value_info("x", kind, [rows, 4])],
        [helper.make_tensor_value_info("y", kind, [rows, 2])],
        [held, zero] if op == "Gemm" else [held],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = ir_version
    return model


def write_onnx(folder: Path, model: Any, example: Arrays, outputs: list[str], **more: Any) -> Any:
    """A source folder of kind "onnx". Returns the inputs' specs."""
    folder.mkdir(parents=True, exist_ok=True)
    # Written as bytes: a graph of a version that does not exist is no valid model to save.
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return write_source(folder, "onnx", example, outputs, **more)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A source folder, the model that it prepares, rows, and what torch answers to them."""

    source: Path
    model: PreparedModel
    inputs: Arrays
    reference: Arrays


def torch_sample(folder: Path, code: str, inputs: Arrays, outputs: list[str]) -> Sample:
    """A factory source of `code`, whose example is the first row of `inputs`."""
    import torch

    module = write_factory(folder, code)
    example = {name: array[:1] for name, array in inputs.items()}
    specs = write_source(folder, "factory", example, outputs, calibration=inputs)
    with torch.no_grad():
        answer = module(*(torch.from_numpy(array) for array in inputs.values()))
    answer = answer if isinstance(answer, dict) else {"output": answer}
    return Sample(
        source=folder,
        model=prepared("factory", specs, example_size=1, has_calibration=True),
        inputs=inputs,
        reference={k: v.numpy() for k, v in answer.items() if isinstance(v, torch.Tensor)},
    )


def cnn_sample(folder: Path) -> Sample:
    """Two convolutions, a normalisation and a linear layer over 8×8 images."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((40, 1, 8, 8)).astype("float32")
    return torch_sample(folder, CNN, {"x": images}, ["output"])


def encoder_sample(folder: Path) -> Sample:
    """Two transformer blocks over twelve ids; its outputs are a dict with None and a number."""
    ids = np.random.default_rng(1).integers(0, 64, (40, 12))
    return torch_sample(folder, ENCODER, {"ids": ids}, ["hidden", "pooled", "cache", "layers"])


def as_onnx(sample: Sample, artifact: Path, folder: Path) -> Sample:
    """The same model as an ONNX source, from a graph that an engine exported for it."""
    import shutil

    folder.mkdir(parents=True)
    shutil.copyfile(artifact / "model.onnx", folder / "model.onnx")
    rows = sample.inputs
    specs = write_source(folder, "onnx", rows, list(sample.reference), calibration=rows)
    num_rows = len(next(iter(rows.values())))
    return Sample(
        source=folder,
        model=prepared("onnx", specs, example_size=num_rows, has_calibration=True),
        inputs=rows,
        reference=sample.reference,
    )


def error_of(served: Served, sample: Sample) -> float:
    """The largest error over an output's largest value, among all outputs."""
    return max(
        float(np.abs(served.outputs[name] - wanted).max() / np.abs(wanted).max())
        for name, wanted in sample.reference.items()
    )
