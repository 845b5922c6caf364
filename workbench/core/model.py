"""A model: how to get it in any process, and what goes in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from workbench.core.json import Json
from workbench.core.units import format_bytes, format_count

SourceKind = Literal["factory", "exported", "torchscript", "onnx"]
Task = Literal["classification", "embedding", "language-model", "regression"]


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output tensor.

    `dtype` is spelled as numpy does ("float32", "int64", "bool"; "bfloat16" for torch's).
    A dimension is a number, or a name where it may vary. Integers drawn for this input lie
    in [low, high).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    low: int | None = None
    high: int | None = None

    def __str__(self) -> str:
        short = {
            "float32": "f32",
            "float64": "f64",
            "float16": "f16",
            "bfloat16": "bf16",
            "int64": "i64",
            "int32": "i32",
            "int8": "i8",
            "uint8": "u8",
            "bool": "bool",
        }
        dims = ", ".join(map(str, self.shape))
        return f"{self.name}: {short.get(self.dtype, self.dtype)}[{dims}]"


@dataclass(frozen=True, kw_only=True)
class BatchClaim:
    """Whether the batch may change, and what showed it.

    `axes` maps an input to the axis that carries the batch. `dynamic` is True only after
    `verified_sizes` (two beside the example's) have run; else `reason` says why not.
    `rows_independent` is False where a row's output changed with the rows beside it, and
    None where that was not tried.
    """

    axes: dict[str, int]
    dynamic: bool
    example_size: int | None
    verified_sizes: tuple[int, ...] = ()
    rows_independent: bool | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as a client describes it. Nothing of it has run yet.

    `folder` holds what travels to a worker: `capture.json` and the payload it names,
    `example.npz`, and where the model brings them `evaluation.npz`, `calibration.npz` (both
    with the inputs' names as keys), `labels.npy`, and `processing.py` with `raw.json` or
    `raw.npy`, an example of what its `preprocess` takes. `call` is the template of the
    arguments (see `workbench.sources.signature`). `settings` are the global flags of the
    notebook that loaded it (threads, tf32, default dtype).
    """

    name: str
    kind: str
    folder: str
    inputs: tuple[TensorSpec, ...]
    call: Json
    num_parameters: int | None = None
    num_bytes: int | None = None
    task: Task | None = None
    trusted: bool = False
    settings: dict[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        inputs = "; ".join(map(str, self.inputs))
        size = f"{format_count(self.num_parameters)} parameters, {format_bytes(self.num_bytes)}"
        lines = [f"{self.name} ({self.kind}): {size}, takes {inputs}"]
        return "\n  ".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return f"<Model {self}>"


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """What a worker found when it turned a Model into a source folder and ran it.

    `kind` is what `source_dir` holds; `origin` says in words how it was made ("importable
    factory", "the cell's source", "exported program", "the file itself"). `not_exportable`
    is the reason why a variant of it cannot leave as a script, or None. `digest` is the
    SHA-256 of the source folder. `made_up` names the inputs whose example was drawn and not
    given. `layers` counts what holds parameters ("Linear", "Conv2d", …), and calls of
    "scaled_dot_product_attention". An output that is None has the dtype "none".
    """

    kind: SourceKind
    origin: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch: BatchClaim
    num_parameters: int | None
    num_bytes: int | None
    digest: str
    has_calibration: bool = False
    has_evaluation: bool = False
    made_up: tuple[str, ...] = ()
    layers: dict[str, int] = field(default_factory=dict)
    not_exportable: str | None = None
    requirements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
