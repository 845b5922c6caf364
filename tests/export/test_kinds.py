"""One model of each kind that `load` takes, from every engine that ran it.

Each is exported, moved, and checks itself where the workbench is not to be found.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.study import ran
from tests.study.ran import end
from workbench.core.model import Model
from workbench.sources import load
from workbench.study import Study, open_study

pytestmark = pytest.mark.slow

CONVERTED = ["engine=onnxruntime", "engine=openvino"]
CELL = """
import sys
sys.path.insert(0, "lib")
import torch
import workbench as wb
from scaling import Scale

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale()
        self.head = torch.nn.Linear(8, 3)

    def forward(self, batch):
        return {"logits": self.head(self.scale(batch["a"])), "aux": None, "n": 3}

model = wb.load(Net(), inputs={"batch": {"a": torch.randn(4, 8)}})
study = wb.Study(model, "study")
study.run("engine=onnxruntime", "engine=torch-compile", budget_s=0.01, early_stop_ratio=None)
study.compare()
"""
SCALING = """
import torch

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(8.0))

    def forward(self, x):
        return x * self.weight
"""


PROCESSING = """
def to_input(numbers):
    import numpy as np

    return {"x": np.asarray(numbers, dtype=np.float32)[None] / 6}


def to_answer(outputs):
    row = outputs["y"][0]
    return {"which": int(row.argmax()), "value": float(row.max())}
"""


class DictNet(torch.nn.Module):
    """A dict in and a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(8, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Logits of shape (batch, 3)."""
        return {"logits": self.head(batch["a"] - batch["b"]), "parts": (batch["a"].sum(1), None)}


def make_dict_net() -> DictNet:
    """The net with the same weights in every process."""
    torch.manual_seed(3)
    return DictNet()


def _factory(_folder: Path) -> Model:
    example = {"batch": {"a": torch.randn(4, 8), "b": torch.randn(4, 8)}}
    return load("tests.export.test_kinds:make_dict_net", example)


def _state_dict(folder: Path) -> Model:
    torch.manual_seed(9)
    path = folder / "weights.pt"
    torch.save(ran.Small().state_dict(), path)
    return load("tests.study.ran:make", "x: f32[batch, 32]", state=path)


def _onnx(folder: Path) -> Model:
    rng = np.random.default_rng(0)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [6, 2], rng.normal(size=12))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "net.onnx")
    (folder / "net_processing.py").write_text(PROCESSING)
    processing = importlib.import_module("net_processing")
    return load(
        folder / "net.onnx",
        "x: f32[4, 6]",
        preprocess=processing.to_input,
        postprocess=processing.to_answer,
        raw=[1, 2, 3, 4, 5, 6],
    )


def _exported_program(folder: Path) -> Model:
    batch = torch.export.Dim("batch", min=1, max=64)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh()).eval()
    program = torch.export.export(net, (torch.randn(3, 5),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "net.pt2")
    return load(folder / "net.pt2", trusted=True)


def _torchscript(folder: Path) -> Model:
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh()).eval()
    torch.jit.trace(net, torch.randn(3, 5)).save(str(folder / "net.pt"))
    return load(folder / "net.pt", "x: f32[batch, 5]", trusted=True)


def _huggingface(folder: Path) -> Model:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder / "bert")
    specs = ["input_ids: i64[batch, 12] in 0..60", "attention_mask: i64[batch, 12] in 1..2"]
    return load(folder / "bert", specs)


def _checks(study: Study, folder: Path) -> list[str]:
    """Export every row that ran, move it, check it there; the engines whose check passed."""
    passed = []
    for row in study.variants():
        assert row.state == "done", f"{row.recipe.spec}: {row.failure}"
        out = study.export(row.number, folder / "first" / str(row.number), force=True)
        moved = folder / f"moved {row.number}"
        shutil.move(out, moved)
        done = subprocess.run(
            [sys.executable, str(moved / "pipeline.py"), "--check"],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{row.recipe.spec}: {done.stdout}{done.stderr}"
        if (moved / "processing.py").exists():
            assert "processing: preprocess and postprocess as when it was" in done.stdout
        passed.append(row.recipe.engine)
    return passed


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "recipes", "engines"),
    [
        (_factory, CONVERTED, ["torch", "onnxruntime", "openvino"]),
        (_state_dict, CONVERTED, ["torch", "onnxruntime", "openvino"]),
        (
            _onnx,
            ["engine=onnxruntime,threads=1", "engine=openvino"],
            ["onnxruntime", "onnxruntime", "openvino"],
        ),
        (_exported_program, CONVERTED, ["torch", "onnxruntime", "openvino"]),
        (_torchscript, ["engine=torch,threads=1"], ["torch", "torch"]),
        (_huggingface, CONVERTED, ["torch", "onnxruntime", "openvino"]),
    ],
    ids=["factory", "state-dict", "onnx", "pt2", "torchscript", "huggingface"],
)
def test_a_model_of_every_kind_leaves_and_checks_itself(
    make: Callable[[Path], Model],
    recipes: list[str],
    engines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    study = Study(make(tmp_path), tmp_path / "study")
    try:
        study.run(*recipes, budget_s=0.01, progress=False, early_stop_ratio=None)
        assert _checks(study, tmp_path) == engines
    finally:
        end(study)


def test_a_class_from_a_cell_leaves_with_its_helper_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "scaling.py").write_text(SCALING)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    kernel = nbclient.NotebookClient(
        notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}
    )
    try:
        kernel.execute()
        shown = [
            o["data"] for o in notebook.cells[0].outputs if o["output_type"] == "execute_result"
        ]
        assert "<table>" in shown[-1]["text/html"]
        assert "onnxruntime" in shown[-1]["text/plain"]
        # Progress was one line that was replaced, not one for every message.
        displays = [o for o in notebook.cells[0].outputs if o["output_type"] == "display_data"]
        assert len(displays) == 1
        study = open_study(tmp_path / "study")
        assert _checks(study, tmp_path) == ["torch", "onnxruntime", "torch-compile"]
        assert "the cell" in (tmp_path / "moved 1" / "README.md").read_text()
    finally:
        if (tmp_path / "study" / "study.sqlite").exists():
            end(open_study(tmp_path / "study"))


def test_an_environment_of_its_requirements_alone_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    study = Study(_onnx(tmp_path), tmp_path / "study")
    try:
        study.run(budget_s=0.01, progress=False)
        out = study.export(1, tmp_path / "out", force=True)
    finally:
        end(study)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-qq", "-r", out / "requirements.txt"], check=True
    )
    done = subprocess.run(
        [python, out / "pipeline.py", "--check"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
