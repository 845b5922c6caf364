"""A model from a real notebook kernel, with a helper module beside it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import workbench
from workbench.sources import prepare
from workbench.sources.capture import load_arrays

pytestmark = pytest.mark.slow

CELLS = [
    """
import sys
sys.path.insert(0, PACKAGE)
import torch
from torch import nn
from notebook_helper import Block
GAIN = 1.5
""",
    "%precision 3",
    """
class Net(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])

    def forward(self, batch):
        x = batch["x"]
        for block in self.blocks:
            x = block(x)
        return {"y": x * GAIN, "aux": None}
""",
    """
import shutil
from workbench.sources import load
net = Net(4, depth=3)
x = torch.arange(8.0).reshape(2, 4)
model = load(net, {"x": x})
shutil.copytree(model.folder, TARGET)
with torch.inference_mode():
    expected = net.eval()({"x": x})["y"].tolist()
import json
print(json.dumps([expected, torch.cuda.is_initialized(), repr(model)]))
""",
]
RUNNER = """
import json, sys
import nbformat
from nbclient import NotebookClient
cells = [nbformat.v4.new_code_cell(text) for text in json.load(open(sys.argv[1]))]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=200, resources={"metadata": {"path": sys.argv[2]}}).execute()
print(notebook.cells[-1].outputs[0].text)
"""


def test_a_class_in_a_cell_travels_and_leaves_as_source(tmp_path):
    beside = tmp_path / "notebooks"
    beside.mkdir()
    (beside / "notebook_helper.py").write_text(
        "import torch\n"
        "class Block(torch.nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(width, width)\n"
        "    def forward(self, x):\n"
        "        return torch.relu(self.layer(x))\n"
    )
    target = tmp_path / "captured"
    package = str(Path(workbench.__file__).parents[1])
    names = f"PACKAGE, TARGET = {package!r}, {str(target)!r}\n"
    cells = tmp_path / "cells.json"
    cells.write_text(json.dumps([names, *CELLS]))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(cells), str(beside)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected, cuda, shown = json.loads(done.stdout)
    assert cuda is False
    assert shown.startswith("<Model Net (module): 60 parameters")
    # The notebook's folder is gone when the worker starts.
    (beside / "notebook_helper.py").unlink()
    source = tmp_path / "source"
    try:
        found = prepare(target, source)
    finally:
        sys.modules.pop("notebook_helper", None)
    assert found.origin == "the cell's source", found.notes
    assert found.batch.dynamic
    text = (source / "factory.py").read_text()
    assert "GAIN = 1.5" in text
    assert "Net(width=" in text or "_assemble(Net" in text
    outputs = load_arrays(source / "outputs.npz")
    assert np.array_equal(outputs["y"], np.array(expected, np.float32))
