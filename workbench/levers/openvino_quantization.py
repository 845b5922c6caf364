"""Quantization on OpenVINO, by NNCF: calibrated int8, or weights alone in 8 or 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.json import Json
from workbench.levers.onnx_calibration import calibration_batches
from workbench.levers.onnx_quantization import saturates
from workbench.levers.quantization import Quantization
from workbench.levers.step import Context, Step, portable
from workbench.levers.table import applies

if TYPE_CHECKING:
    from collections.abc import Iterator

_VALUES = ("int8-static", "int8-weights", "int4-weights")


def quantization_unavailable(value: str, context: Context) -> str | None:
    """Why NNCF cannot quantize in this way here: the package or the model's rows."""
    if not context.has("nncf"):
        return "nncf is not installed: pip install 'accel-workbench[openvino]'"
    if value == "int8-static" and not context.model.has_calibration:
        return "the model has no calibration rows, which the activations' scales come from"
    return None


@portable
def calibrate_int8(
    out_dir: str, source_dir: str, fix_overflow: bool, batch_size: int | None
) -> None:
    """int8 weights and activations, with scales from the calibration rows.

    `fix_overflow` keeps weights to half their range, for CPUs that add int8 products in 16
    bits. `batch_size` is the graph's where its batch is fixed.
    """
    import openvino

    with quiet_nncf() as nncf:
        model = openvino.Core().read_model(f"{out_dir}/model.xml")
        batches = calibration_batches(source_dir, batch_size)
        kinds = {node.get_type_name() for node in model.get_ops()}
        attends = "Softmax" in kinds and "Convolution" not in kinds
        enable, disable = nncf.OverflowFix.ENABLE, nncf.OverflowFix.DISABLE
        quantized = nncf.quantize(
            model,
            nncf.Dataset(batches),
            subset_size=len(batches),
            model_type=nncf.ModelType.TRANSFORMER if attends else None,
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=enable if fix_overflow else disable
            ),
        )
        replace_model(quantized, out_dir)


@portable
def compress_weights(out_dir: str, bits: int, group_size: int) -> None:
    """Weights in 8 bits, a scale for each output channel, or in 4 bits, one for each group.

    Embeddings and the last layer are compressed as the others are.
    """
    import openvino

    with quiet_nncf() as nncf:
        model = openvino.Core().read_model(f"{out_dir}/model.xml")
        if bits == 8:
            mode, more = nncf.CompressWeightsMode.INT8_SYM, {}
        else:
            mode = nncf.CompressWeightsMode.INT4_SYM
            more = {"group_size": group_size, "all_layers": True}
        replace_model(nncf.compress_weights(model, mode=mode, **more), out_dir)


@portable
def replace_model(model: Any, out_dir: str) -> None:
    """Save a model over the one that it was made from, whose weights may be mapped still."""
    from pathlib import Path

    import openvino

    openvino.save_model(model, f"{out_dir}/quantized.xml", compress_to_fp16=False)
    del model
    for ending in ("xml", "bin"):
        Path(out_dir, f"quantized.{ending}").replace(Path(out_dir, f"model.{ending}"))


@portable
def quiet_nncf() -> Any:
    """A context that gives NNCF, kept from printing, and from reporting its use to its makers."""
    import contextlib
    import io
    import logging
    import os
    import warnings

    # Read when NNCF is imported: it sends events over the network where this is not set.
    os.environ.setdefault("NNCF_CI", "1")

    @contextlib.contextmanager
    def quiet() -> Iterator[Any]:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import nncf

            nncf.set_log_level(logging.ERROR)
            yield nncf

    return quiet()


@portable
def keep_activations_float(settings: dict[str, Any]) -> None:
    """Compressed weights are turned back into floats: activations are not quantized for them."""
    settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0


@applies(Quantization, "openvino", unavailable=quantization_unavailable, values=_VALUES)
def plan_quantization(lever: Quantization, context: Context) -> tuple[Step, ...]:
    """Rewrite the converted model."""
    if lever.value == "int8-static":
        batch = context.model.batch
        asked = context.recipe.get("batch")
        fixed = None if batch.dynamic else int(asked) if asked else batch.example_size
        return (
            Step(
                phase="build.quantize",
                function=calibrate_int8,
                reads=("out_dir", "source_dir"),
                params={"fix_overflow": saturates(context), "batch_size": fixed},
            ),
        )
    params: dict[str, Json] = {"bits": int(lever.dtype[3:]), "group_size": 32}
    return (
        Step(
            phase="build.quantize",
            function=compress_weights,
            reads=("out_dir",),
            params=params,
        ),
        Step(phase="load.quantize", function=keep_activations_float, reads=("settings",)),
    )
