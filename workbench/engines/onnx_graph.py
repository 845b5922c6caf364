"""An ONNX graph on disk: copying it in, saving it, and saying what it holds. All portable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.source import copy_source
from workbench.levers.step import portable

if TYPE_CHECKING:
    import onnx


@portable
def copy_graph(source_dir: str, out_dir: str) -> str:
    """Copy an ONNX source folder, external data included. Returns the path of the graph.

    Raises RuntimeError where the file's IR or operator set is one that the installed
    packages do not read.
    """
    import json
    from pathlib import Path

    import onnx

    copy_source(source_dir, out_dir, leave_out=[])
    path = Path(out_dir) / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    check_versions(model)
    described = json.loads((Path(source_dir) / "source.json").read_text(encoding="utf-8"))
    names = [output.name for output in model.graph.output]
    write_outputs(out_dir, [{"name": n, "graph": n} for n in described["outputs"] if n in names])
    return str(path)


@portable
def check_versions(model: onnx.ModelProto) -> None:
    """Raise RuntimeError, with the file's version and ours, where the graph is too new or old."""
    import onnx

    if model.ir_version > onnx.IR_VERSION:
        raise RuntimeError(
            f"the file has ONNX IR version {model.ir_version}; the installed onnx "
            f"{onnx.__version__} reads up to {onnx.IR_VERSION}. Install a newer onnx and "
            "onnxruntime, or save the model with an older IR version"
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not 7 <= entry.version <= newest:
            raise RuntimeError(
                f"the file has operator set {entry.version}; ONNX Runtime with onnx "
                f"{onnx.__version__} supports 7 to {newest}. Convert it with "
                "onnx.version_converter.convert_version, or export it again with a "
                "supported opset_version"
            )


@portable
def write_outputs(out_dir: str, outputs: list[dict[str, Any]]) -> None:
    """Write `outputs.json`: each output's dotted name with its name in the graph.

    An output that is no tensor has {"constant": [dtype, value]}, or {"constant": None}.
    """
    import json
    from pathlib import Path

    Path(out_dir, "outputs.json").write_text(json.dumps(outputs, indent=1), encoding="utf-8")


@portable
def note_exported(path: str, out_dir: str) -> None:
    """Write `exported.json`: the operators of the graph before any lever changed it."""
    import json
    from pathlib import Path

    counted = count_operators(path)
    Path(out_dir, "exported.json").write_text(json.dumps(counted, indent=1), encoding="utf-8")


@portable
def count_operators(path: str) -> dict[str, dict[str, int]]:
    """Operators of a graph by name: {"all": {...}, "com.microsoft": {...}}."""
    from collections import Counter

    import onnx

    nodes = onnx.load(path, load_external_data=False).graph.node
    return {
        "all": dict(Counter(node.op_type for node in nodes)),
        "com.microsoft": dict(Counter(n.op_type for n in nodes if n.domain == "com.microsoft")),
    }


@portable
def describe_graph(path: str, out_dir: str) -> None:
    """Write `graph.json`: operators, layers and how many weights are held in which format.

    A layer is an operator of the matmul or convolution kind that one constant tensor of two
    or more dimensions goes into. It is read from the saved graph, whatever was asked for.
    Raises onnx.checker.ValidationError where the graph is not valid.
    """
    import json
    from collections import Counter
    from pathlib import Path

    import onnx

    model = onnx.load(path, load_external_data=False)
    check_versions(model)
    # The checker knows no operators of com.microsoft, which quantized graphs may hold.
    if all(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        onnx.checker.check_model(path)
    graph = model.graph
    formats = {
        onnx.TensorProto.FLOAT: "fp32",
        onnx.TensorProto.FLOAT16: "fp16",
        onnx.TensorProto.BFLOAT16: "bf16",
        onnx.TensorProto.DOUBLE: "fp64",
        onnx.TensorProto.INT8: "int8",
        onnx.TensorProto.UINT8: "int8",
        onnx.TensorProto.INT4: "int4",
        onnx.TensorProto.UINT4: "int4",
        onnx.TensorProto.FLOAT8E4M3FN: "fp8",
    }
    weights = {}
    for tensor in graph.initializer:
        num = 1
        for size in tensor.dims:
            num *= size
        weights[tensor.name] = (formats.get(tensor.data_type), num, len(tensor.dims))
    # Where in the inputs of an operator its weights are.
    places = {
        "Conv": 1,
        "ConvTranspose": 1,
        "MatMul": 1,
        "Gemm": 1,
        "FusedMatMul": 1,
        "FusedConv": 1,
        "FusedGemm": 1,
        "Attention": 1,
        "LSTM": 1,
        "GRU": 1,
        "RNN": 1,
        "MatMulInteger": 1,
        "ConvInteger": 1,
        "DynamicQuantizeMatMul": 1,
        "MatMulIntegerToFloat": 1,
        "DynamicQuantizeLSTM": 1,
        "QAttention": 1,
        "QLinearConv": 3,
        "QLinearMatMul": 3,
        "QGemm": 3,
        "MatMulNBits": 1,
    }
    producers = {name: node for node in graph.node for name in node.output}
    layers = []
    packed = {}
    scales = set()
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            scales |= set(node.input[1:])
        if node.op_type not in places or len(node.input) <= places[node.op_type]:
            continue
        name = node.input[places[node.op_type]]
        # Weights may be reached through what leaves their values alone, and through QDQ.
        while name not in weights and name in producers:
            before = producers[name]
            if before.op_type not in (
                "DequantizeLinear",
                "Transpose",
                "Reshape",
                "Identity",
                "Cast",
            ):
                break
            name = before.input[0]
        if name not in weights:
            continue
        held, num, rank = weights[name]
        if node.op_type == "MatMulNBits":
            said = {a.name: a.i for a in node.attribute}
            held, num = f"int{said.get('bits', 4)}", said["K"] * said["N"]
            packed[name] = (held, num)
            scales |= set(node.input[2:])
        elif rank < 2:
            continue
        layers.append({"op": node.op_type, "weights": held, "num": num})
    amount: dict[str, int] = Counter()
    for name, (held, num, rank) in weights.items():
        if name in scales or held is None or (held.startswith("int") and rank < 2):
            continue  # scales and zero points are no weights
        held, num = packed.get(name, (held, num))
        amount[held] += num
    exported = json.loads(Path(out_dir, "exported.json").read_text(encoding="utf-8"))
    counted = count_operators(path)
    described = {
        "ir_version": model.ir_version,
        "opset": {e.domain or "ai.onnx": e.version for e in model.opset_import},
        "operators": counted["all"],
        "exported_operators": exported["all"],
        "transformer_fusions": {
            name: num - exported["com.microsoft"].get(name, 0)
            for name, num in counted["com.microsoft"].items()
            if (name not in places or "Attention" in name)
            and num > exported["com.microsoft"].get(name, 0)
        },
        "layers": layers,
        "weights": dict(amount),
        "batch": [
            None if not d.HasField("dim_value") else d.dim_value
            for value in graph.input
            for d in value.type.tensor_type.shape.dim[:1]
        ],
    }
    Path(out_dir, "graph.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
