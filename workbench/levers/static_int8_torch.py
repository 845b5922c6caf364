"""Static int8 on torch.compile: torchao's PT2E, calibrated on the model's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.step import Context, Step, portable

if TYPE_CHECKING:
    import torch


def plan_static(context: Context) -> tuple[Step, ...]:
    """Quantize the captured graph in build; the engine saves and compiles it."""
    has_vnni = any("vnni" in s or s == "amx_int8" for s in context.device.instruction_sets)
    return (
        Step(
            phase="build.convert",
            function=quantize_static,
            reads=("module", "source", "source_dir"),
            writes="module",
            params={"reduce_range": not has_vnni},
        ),
    )


@portable
def quantize_static(
    module: torch.fx.GraphModule, source: dict[str, Any], source_dir: str, reduce_range: bool
) -> torch.fx.GraphModule:
    """Quantize convolutions and linear layers: u8 activations, s8 weights per channel.

    Scales of activations come from the rows of calibration.npz. `reduce_range` keeps
    activations in seven bits: without VNNI the CPU adds products in sixteen, which eight
    would overflow.
    """
    import warnings
    from pathlib import Path

    import numpy
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config(reduce_range=reduce_range))
    with numpy.load(Path(source_dir) / "calibration.npz", allow_pickle=False) as archive:
        rows = dict(archive)
    axes = source["batch_axes"]
    with numpy.load(Path(source_dir) / "example.npz", allow_pickle=False) as archive:
        sizes = [archive[name].shape[axis] for name, axis in axes.items()]
    size = max(sizes, default=1)
    with warnings.catch_warnings():
        # torchao tells of its own deprecations.
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(module, quantizer)
        num_rows = min((rows[n].shape[a] for n, a in axes.items()), default=1)
        with torch.no_grad():
            for start in range(0, num_rows, size):
                batch = []
                for spec in source["inputs"]:
                    array = rows[spec["name"]]
                    axis = axes.get(spec["name"])
                    if axis is not None:
                        # The last batch is filled up with rows from the beginning.
                        chosen = numpy.arange(start, start + size) % num_rows
                        array = numpy.take(array, chosen, axis=axis)
                    batch.append(torch.from_numpy(numpy.ascontiguousarray(array)))
                prepared(*batch)
        quantized = convert_pt2e(prepared)
    # The fp32 weights stay behind, and would be saved beside their integers.
    read = {str(node.target) for node in quantized.graph.nodes if node.op == "get_attr"}
    for name in [n for n, _ in quantized.named_parameters() if n not in read]:
        owner, _, attribute = name.rpartition(".")
        delattr(quantized.get_submodule(owner), attribute)
    return quantized
