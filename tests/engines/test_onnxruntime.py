"""The engine ONNX Runtime: built in one process, served without torch in another."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.engines.onnx_sources import (
    CNN,
    H100,
    Sample,
    answer_of,
    as_onnx,
    build,
    cnn_sample,
    context_of,
    encoder_sample,
    error_of,
    host,
    linear_graph,
    prepared,
    serve,
    torch_sample,
    write_factory,
    write_onnx,
    write_source,
)
from workbench.core.errors import UnavailableError
from workbench.core.recipe import Recipe
from workbench.engines import engine, load_all
from workbench.engines.render import render
from workbench.levers import offer
from workbench.levers.table import warnings

load_all()
PLAIN = Recipe(engine="onnxruntime")
ROWS = {"x": np.arange(12, dtype="float32").reshape(3, 4)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return encoder_sample(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return cnn_sample(tmp_path_factory.mktemp("cnn"))


@pytest.fixture(scope="module")
def graph(cnn: Sample, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The convolutional net as an ONNX file of the user's."""
    folder = tmp_path_factory.mktemp("graph")
    artifact = build(cnn.source, context_of(cnn.model, PLAIN), folder / "work")
    return as_onnx(cnn, artifact, folder / "source")


def test_a_factory_is_exported_with_a_free_batch_and_served_without_torch(
    encoder: Sample, tmp_path: Path
) -> None:
    """P55 too: a dict comes back by name, None is kept and a number is an array."""
    served = serve(encoder.source, context_of(encoder.model, PLAIN), encoder.inputs, tmp_path)
    assert served.imported == ()
    assert served.names == ("hidden", "pooled", "cache", "layers")
    assert error_of(served, encoder) < 1e-5
    assert served.outputs["layers"] == 2
    assert served.evidence.device == "cpu"
    assert served.evidence.providers == ("CPUExecutionProvider",)
    assert served.evidence.num_threads == 1
    assert served.evidence.thread_wait == "passive"
    assert served.evidence.num_layers == 12
    assert served.evidence.labels == ("fp32", "batch 40")
    assert served.evidence.unmet == ()


def test_the_graph_names_no_path_of_the_machine_that_exported_it(
    cnn: Sample, tmp_path: Path
) -> None:
    artifact = build(cnn.source, context_of(cnn.model, PLAIN), tmp_path)
    for file in artifact.iterdir():
        assert str(cnn.source).encode() not in file.read_bytes()
        assert b"site-packages" not in file.read_bytes()


@pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
@pytest.mark.parametrize("kind", ["exported", "torchscript"])
def test_other_kinds_of_source_are_exported_too(kind: str, cnn: Sample, tmp_path: Path) -> None:
    import torch

    module = write_factory(tmp_path / "factory", CNN)
    source = tmp_path / "source"
    specs = write_source(source, kind, {"x": cnn.inputs["x"][:1]}, ["output"])
    rows = torch.from_numpy(cnn.inputs["x"])
    if kind == "exported":
        free = ({0: torch.export.Dim("rows")},)
        torch.export.save(
            torch.export.export(module, (rows,), dynamic_shapes=free), source / "program.pt2"
        )
    else:
        torch.jit.trace(module, rows).save(str(source / "module.pt"))
    served = serve(source, context_of(prepared(kind, specs), PLAIN), cnn.inputs, tmp_path / "work")
    assert error_of(served, cnn) < 1e-5
    assert served.imported == ()


def test_a_moved_artifact_runs_from_elsewhere_with_its_weights_in_a_file_beside_it(
    graph: Sample, tmp_path: Path
) -> None:
    """P65: an artefact in two parts is copied whole, and says nothing of where it was made."""
    import onnx

    source = tmp_path / "source"
    shutil.copytree(graph.source, source)
    model = onnx.load(source / "model.onnx")
    onnx.save_model(
        model,
        source / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
    )
    artifact = build(source, context_of(graph.model, PLAIN), tmp_path / "first")
    assert (artifact / "weights.bin").stat().st_size > 10_000
    shutil.rmtree(source)
    moved = tmp_path / "moved" / "elsewhere"
    moved.parent.mkdir()
    artifact.rename(moved)
    outputs = answer_of(moved, graph.inputs, tmp_path)
    assert np.abs(outputs["output"] - graph.reference["output"]).max() < 1e-5


def test_a_batch_that_cannot_change_is_exported_for_the_rows_of_the_recipe(
    cnn: Sample, tmp_path: Path
) -> None:
    """P61: another batch is unavailable, with the model's reason, and the graph's is fixed."""
    fixed = prepared("factory", cnn.model.inputs, dynamic=False, example_size=1)
    reason = offer("batch", "onnxruntime", "8", context_of(fixed, PLAIN))
    assert reason == "the graph's batch is fixed at 1"
    one = {"x": cnn.inputs["x"][:1]}
    served = serve(cnn.source, context_of(fixed, PLAIN), one, tmp_path)
    assert served.raw["graph"]["batch"] == [1]
    assert served.outputs["output"].shape == (1, 10)


BOUNDED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        # Runs at any size; a trace takes the branch of its own rows for good.
        return self.layer(x) if x.shape[0] < 6 else self.layer(x) * 1.0


def make():
    return Net()
"""


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_batch_that_the_exporter_cannot_keep_free_is_said_to_be_fixed(
    name: str, tmp_path: Path
) -> None:
    """P60: the graph is for the rows of the recipe, and the row says so."""
    rows = {"x": np.ones((3, 4), dtype="float32")}
    sample = torch_sample(tmp_path / "source", BOUNDED, rows, ["output"])
    context = context_of(sample.model, Recipe(name, batch=3))
    served = serve(sample.source, context, rows, tmp_path / "work")
    assert error_of(served, sample) < 1e-5
    assert served.evidence.notes == (
        "the export fixed the batch: this graph takes 3 items and no other",
    )


def test_every_optimisation_level_computes_what_the_unoptimised_graph_does(
    tmp_path: Path,
) -> None:
    """P03: softmax and layer normalisation at the four levels, against "off"."""
    rng = np.random.default_rng(0)
    width = 16
    tensors = {
        "w": rng.standard_normal((width, width)).astype("float32"),
        "scale": np.ones(width, dtype="float32"),
        "shift": np.full(width, 0.5, dtype="float32"),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"]),
        helper.make_node("Add", ["s", "x"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "scale", "shift"], ["y"]),
    ]
    shape = ["batch", 4, width]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(array, name) for name, array in tensors.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    rows = {"x": rng.standard_normal((8, 4, width)).astype("float32")}
    specs = write_onnx(tmp_path / "source", model, rows, ["y"])
    served = {
        level: serve(
            tmp_path / "source",
            context_of(prepared("onnx", specs), PLAIN.replace(fusion=level)),
            rows,
            tmp_path / level,
        )
        for level in ("off", "basic", "extended", "all")
    }
    reference = served["off"].outputs["y"]
    for level, one in served.items():
        assert np.abs(one.outputs["y"] - reference).max() < 1e-5, level
        # The level is read back from the session, and named where it is not the default.
        assert (f"fusion {level}" in one.evidence.labels) == (level != "all")
        assert one.evidence.unmet == ()
    assert served["off"].evidence.fused == {}
    assert served["all"].evidence.fused == {"SkipLayerNormalization": 1}


def test_evidence_of_a_tiny_int8_layer_says_what_ran_and_warns_of_no_vnni(tmp_path: Path) -> None:
    """P11: no speed is claimed; what ran is listed, and the lever warns beforehand."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((32, 32)).astype("float32"), "w")
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "graph",
            [value("x", TensorProto.FLOAT, ["batch", 32])],
            [value("y", TensorProto.FLOAT, ["batch", 32])],
            [weights],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    rows = {"x": rng.standard_normal((1, 32)).astype("float32")}
    specs = write_onnx(tmp_path / "source", model, rows, ["y"])
    recipe = PLAIN.replace(quantization="int8-dynamic")
    context = context_of(prepared("onnx", specs, example_size=1), recipe)
    served = serve(tmp_path / "source", context, rows, tmp_path / "work")
    names = {use.name: use.dtype for use in served.evidence.operators}
    assert names == {"DynamicQuantizeMatMul": "int8"}
    assert served.evidence.precision_share == pytest.approx({"int8": 1})
    assert sum(use.share or 0 for use in served.evidence.operators) == pytest.approx(1)
    (warning,) = warnings(context)
    assert "no VNNI" in warning
    assert "slower" in warning


def test_an_int8_variant_that_holds_nothing_quantized_is_not_called_int8(
    graph: Sample, tmp_path: Path
) -> None:
    """P12: convolutions are left alone by dynamic int8; with a linear layer it is 1 of 3."""
    import onnx

    recipe = PLAIN.replace(quantization="int8-dynamic")
    model = onnx.load(graph.source / "model.onnx")
    last = next(node for node in model.graph.node if node.op_type == "MaxPool")
    cut = onnx.utils.Extractor(model).extract_model(["x"], [last.output[0]])
    rows = {"x": graph.inputs["x"][:4]}
    specs = write_onnx(tmp_path / "conv", cut, rows, [last.output[0]])
    conv = serve(
        tmp_path / "conv", context_of(prepared("onnx", specs), recipe), rows, tmp_path / "one"
    ).evidence
    assert (conv.num_layers_quantized, conv.num_layers) == (0, 2)
    assert conv.weights_quantized_share == 0
    assert "int8" not in conv.labels
    assert conv.unmet[0].startswith("int8: 0 of 2 layers, 0 % of weights")

    both = serve(
        graph.source, context_of(graph.model, recipe), graph.inputs, tmp_path / "two"
    ).evidence
    assert (both.num_layers_quantized, both.num_layers) == (1, 3)
    assert "int8" in both.labels
    assert 0 < (both.weights_quantized_share or 0) < 1


def test_integer_weights_that_no_integer_kernel_multiplies_are_a_warning(
    graph: Sample, tmp_path: Path
) -> None:
    """P15: a QDQ file of the user's; its share of time in int8 kernels, and 0 % is said."""
    recipe = PLAIN.replace(quantization="int8-static")
    artifact = build(graph.source, context_of(graph.model, recipe), tmp_path / "quantize")
    qdq = as_onnx(graph, artifact, tmp_path / "source")
    merged = serve(qdq.source, context_of(qdq.model, PLAIN), qdq.inputs, tmp_path / "all")
    assert merged.evidence.precision_share == pytest.approx({"int8": 1})
    assert merged.evidence.labels == ("int8",)
    assert merged.evidence.fused["QLinearConv"] == 2

    off = PLAIN.replace(fusion="off")
    apart = serve(qdq.source, context_of(qdq.model, off), qdq.inputs, tmp_path / "off").evidence
    assert apart.precision_share == pytest.approx({"fp32": 1})
    assert "int8" not in apart.labels
    assert apart.unmet == (
        "3 of 3 layers have integer weights; 0 % of the time of matmuls and convolutions is in "
        "int8 kernels",
    )


def test_cuda_that_is_not_there_is_unavailable_and_never_a_heading(
    graph: Sample, tmp_path: Path
) -> None:
    """P17: asked for on a CPU it is refused; where it falls back in use, the row says CPU."""
    context = context_of(graph.model, PLAIN.replace(provider="cuda"))
    with pytest.raises(UnavailableError, match="CUDA unavailable: it needs an NVIDIA GPU"):
        render(context)
    reason = engine("onnxruntime").unavailable(context_of(graph.model, PLAIN, device=H100))
    assert reason is not None
    assert "no CUDAExecutionProvider" in reason

    # Compiled in, as the probe can tell, and yet not there when the session is opened.
    claimed = dataclasses.replace(host(), providers=("CUDAExecutionProvider",))
    elsewhere = dataclasses.replace(context_of(graph.model, PLAIN, device=H100), host=claimed)
    served = serve(graph.source, elsewhere, graph.inputs, tmp_path)
    assert served.evidence.providers == ("CPUExecutionProvider",)
    assert served.evidence.device.startswith("CPU (CUDA unavailable: this onnxruntime")
    assert served.evidence.unmet[0].startswith("CUDA unavailable")
    assert "CUDA" not in served.evidence.labels


def test_bf16_without_a_kernel_fails_its_own_row_with_the_operators_name(tmp_path: Path) -> None:
    """P20: ONNX Runtime has no bf16 Gemm on a CPU; the same layer in fp32 runs."""
    specs = write_onnx(tmp_path / "bf16", linear_graph(dtype="bfloat16"), ROWS, ["y"])
    with pytest.raises(RuntimeError, match=r"bf16 not supported by ONNX Runtime CPU: Gemm"):
        serve(tmp_path / "bf16", context_of(prepared("onnx", specs), PLAIN), ROWS, tmp_path / "a")
    specs = write_onnx(tmp_path / "fp32", linear_graph(), ROWS, ["y"])
    context = context_of(prepared("onnx", specs), PLAIN)
    reason = offer("precision", "onnxruntime", "bf16", context)
    assert reason == (
        "bf16 not supported by ONNX Runtime on a CPU: Gemm, MatMul, Conv have no such kernels; "
        "this is a CPU with AVX2"
    )
    served = serve(tmp_path / "fp32", context, ROWS, tmp_path / "b")
    assert served.outputs["y"].tolist() == (ROWS["x"] @ (np.arange(8).reshape(4, 2) / 8)).tolist()


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"ir_version": 99}, r"ONNX IR version 99; .* reads up to \d+"),
        ({"opset": 60}, r"operator set 60; .* supports 7 to \d+"),
        ({"opset": 5}, r"operator set 5; .* supports 7 to \d+"),
    ],
)
def test_a_version_that_is_not_read_is_named_with_those_that_are(
    versions: dict[str, int], said: str, tmp_path: Path
) -> None:
    """P64: the file's version, the supported ones and a way out."""
    specs = write_onnx(tmp_path / "source", linear_graph(**versions), ROWS, ["y"])
    with pytest.raises(RuntimeError, match=said):
        build(tmp_path / "source", context_of(prepared("onnx", specs), PLAIN), tmp_path / "work")


def test_the_oldest_supported_operator_set_runs(tmp_path: Path) -> None:
    """P64: opset 7 is old, and is run all the same."""
    specs = write_onnx(tmp_path / "source", linear_graph(opset=7, ir_version=4), ROWS, ["y"])
    served = serve(
        tmp_path / "source", context_of(prepared("onnx", specs), PLAIN), ROWS, tmp_path / "work"
    )
    assert served.outputs["y"].shape == (3, 2)


def test_a_session_that_cannot_open_a_version_says_so_too(tmp_path: Path) -> None:
    """P64 at session creation: onnx may be newer than the onnxruntime beside it."""
    from workbench.engines.onnx_session import open_session, session_options

    (tmp_path / "model.onnx").write_bytes(linear_graph(ir_version=99).SerializeToString())
    with pytest.raises(RuntimeError, match=r"IR version 99; onnxruntime .* reads up to \d+"):
        open_session(str(tmp_path), session_options(1, "passive"), [("CPUExecutionProvider", {})])
    (tmp_path / "model.onnx").write_bytes(linear_graph(opset=60).SerializeToString())
    with pytest.raises(RuntimeError, match=r"operator set 60; onnxruntime .* supports up to \d+"):
        open_session(str(tmp_path), session_options(1, "passive"), [("CPUExecutionProvider", {})])


def test_a_wrong_dtype_is_named_with_its_input(graph: Sample, tmp_path: Path) -> None:
    """P59: float64 is cast; integers for floats are refused by name."""
    context = context_of(graph.model, PLAIN)
    wide = {"x": graph.inputs["x"].astype("float64")}
    served = serve(graph.source, context, wide, tmp_path / "wide")
    assert error_of(served, graph) < 1e-5
    with pytest.raises(RuntimeError, match="input x: wanted float32, got int64"):
        serve(graph.source, context, {"x": np.ones((1, 1, 8, 8), "int64")}, tmp_path / "ids")


def test_the_file_needs_no_workbench_and_is_the_same_each_time(graph: Sample) -> None:
    context = context_of(graph.model, PLAIN.replace(quantization="int8-static", threads="1:active"))
    text = render(context)
    assert text == render(context)
    assert "import workbench" not in text
    assert "from workbench" not in text


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx"])
def test_a_package_that_is_missing_is_the_reason(missing: str, graph: Sample) -> None:
    packages = {name: version for name, version in host().packages.items() if name != missing}
    context = dataclasses.replace(
        context_of(graph.model, PLAIN), host=dataclasses.replace(host(), packages=packages)
    )
    reason = engine("onnxruntime").unavailable(context)
    assert reason is not None
    assert missing in reason
    assert "not installed" in reason
