"""From a PyTorch module to an ONNX graph. Portable: runs in the build of a pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.structure import bind_inputs, flatten_outputs
from workbench.engines.onnx_graph import write_outputs
from workbench.engines.source import copy_source, read_source
from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@portable
def exporter_opset() -> int | None:
    """The operator set that the exporter picks by itself: None."""
    return None


@portable
def export_graph(
    module: torch.nn.Module,
    source_dir: str,
    out_dir: str,
    opset: int | None,
    dynamic: bool,
    batch_size: int | None,
) -> str:
    """Export a module as `model.onnx`; inputs and outputs keep their dotted names.

    With `dynamic` the batch axis stays free where torch.export can keep it so; else the graph
    is for `batch_size` rows, or for the example's where that is None. Returns its path.
    bfloat16 inputs and outputs are float32 at the border, as numpy has no bfloat16.
    """
    from pathlib import Path

    import torch

    copy_source(
        source_dir, out_dir, ["factory.py", "weights.safetensors", "program.pt2", "module.pt"]
    )
    source = read_source(source_dir)
    tensors = example_tensors(source_dir, source, dynamic, batch_size)
    flat = flat_module(module, source)
    with torch.no_grad():
        flat(*tensors)
    write_outputs(out_dir, flat.outputs)
    path = str(Path(out_dir) / "model.onnx")
    ends = {
        "input_names": [spec["name"] for spec in source["inputs"]],
        "output_names": [output["graph"] for output in flat.outputs if "graph" in output],
    }
    with quiet_export():
        if source["kind"] == "torchscript":
            # torch.export does not read TorchScript; the exporter that traces does, once the
            # module is traced with what is around it.
            traced = torch.jit.trace(flat, tuple(tensors), check_trace=False)
            axes = {name: {axis: "batch"} for name, axis in source["batch_axes"].items()}
            torch.onnx.export(
                traced,
                tuple(tensors),
                path,
                dynamo=False,
                dynamic_axes=axes if dynamic else None,
                **ends,
            )
            return path
        try:
            program = export_program(flat, tensors, source, dynamic)
        except torch._dynamo.exc.UserError:
            # It runs at other sizes, and yet its code fixes or bounds the batch when traced.
            if not dynamic:
                raise
            tensors = example_tensors(source_dir, source, False, batch_size)
            program = export_program(flat, tensors, source, False)
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, optimize=True, opset_version=opset, **ends
        )
    assert exported is not None
    # The exporter notes source lines in every node: paths of the building machine.
    for node in exported.model.graph.all_nodes():
        node.metadata_props.clear()
    exported.model.metadata_props.clear()
    exported.save(path)
    return path


@portable
def export_program(
    flat: torch.nn.Module, tensors: list[torch.Tensor], source: dict[str, Any], dynamic: bool
) -> Any:
    """The module as an exported program. Raises torch's UserError where the batch is not free."""
    import torch

    axes = free_axes(source, tensors, dynamic)
    return torch.export.export(flat, tuple(tensors), dynamic_shapes=axes, strict=False)


@portable
def open_traced(source_dir: str) -> torch.nn.Module:
    """The TorchScript module of a source folder. Opening it runs code that the file brings."""
    import torch

    with quiet_export():
        return torch.jit.load(f"{source_dir}/module.pt", map_location="cpu").eval()


@portable
def flat_module(module: torch.nn.Module, source: dict[str, Any]) -> Any:
    """The module behind flat tensors: positional in, a tuple of the tensors among its outputs out.

    `outputs` lists every output once it has run (see `write_outputs`).
    """
    import numpy
    import torch

    specs = source["inputs"]
    call = source["call"]
    taken = {spec["name"] for spec in specs}

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.outputs: list[dict[str, Any]] = []

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            named = {
                spec["name"]: tensor.bfloat16() if spec["dtype"] == "bfloat16" else tensor
                for spec, tensor in zip(specs, tensors, strict=True)
            }
            args, kwargs = bind_inputs(call, named)
            results = flatten_outputs(self.inner(*args, **kwargs))
            outputs: list[dict[str, Any]] = []
            leaves = []
            for name, leaf in results.items():
                if isinstance(leaf, torch.Tensor):
                    # A graph cannot have an input and an output of one name.
                    outputs.append(
                        {"name": name, "graph": f"{name}.out" if name in taken else name}
                    )
                    leaves.append(leaf.float() if leaf.dtype == torch.bfloat16 else leaf)
                elif leaf is None:
                    outputs.append({"name": name, "constant": None})
                else:
                    value = numpy.asarray(leaf)
                    outputs.append({"name": name, "constant": [str(value.dtype), value.tolist()]})
            if not leaves:
                raise TypeError("the model gives no tensor that an ONNX graph could compute")
            self.outputs = outputs
            return tuple(leaves)

    flat = Flat()
    # Not eval(): an exported program's module, in evaluation mode as it is, refuses the call.
    flat.training = False
    return flat


@portable
def example_tensors(
    source_dir: str, source: dict[str, Any], dynamic: bool, batch_size: int | None
) -> list[torch.Tensor]:
    """The example inputs in order, with as many rows as the export wants.

    torch.export takes an axis of length 1 for a constant, so that a free batch needs two
    rows or more.
    """
    from pathlib import Path

    import numpy
    import torch

    with numpy.load(Path(source_dir) / "example.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    axes = source["batch_axes"]
    tensors = []
    for spec in source["inputs"]:
        array = arrays[spec["name"]]
        axis = axes.get(spec["name"])
        if axis is not None:
            rows = array.shape[axis]
            wanted = max(rows, 2) if dynamic else batch_size or rows
            if wanted != rows:
                array = numpy.take(array, numpy.arange(wanted) % rows, axis=axis)
        # ascontiguousarray makes a row of a scalar.
        plain = numpy.ascontiguousarray(array).reshape(array.shape)
        tensors.append(torch.from_numpy(plain))
    return tensors


@portable
def free_axes(source: dict[str, Any], tensors: list[torch.Tensor], dynamic: bool) -> Any:
    """What torch.export is told of every input's axes: the batch by name, others by its own lights.

    An axis that the model was described with a name for may turn out constant (`Dim.AUTO`);
    the batch may not, since it was seen to vary: torch.export then raises.
    """
    import torch

    batch = torch.export.Dim("batch")
    shapes = []
    for spec, tensor in zip(source["inputs"], tensors, strict=True):
        axes: dict[int, Any] = {}
        for axis, size in enumerate(spec["shape"]):
            if axis == source["batch_axes"].get(spec["name"]):
                if dynamic:
                    axes[axis] = batch
            elif isinstance(size, str) and tensor.shape[axis] > 1:
                axes[axis] = torch.export.Dim.AUTO
        shapes.append(axes)
    return (tuple(shapes),)


@portable
def quiet_export() -> Any:
    """A context in which the exporter neither prints nor warns of itself."""
    import contextlib
    import logging
    import warnings

    @contextlib.contextmanager
    def quiet() -> Iterator[None]:
        # torchvision's absence and the exporter's own deprecations are not the user's concern.
        logger = logging.getLogger("torch.onnx")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                warnings.simplefilter("ignore", DeprecationWarning)
                warnings.simplefilter("ignore", UserWarning)
                yield
        finally:
            logger.setLevel(level)

    return quiet()
