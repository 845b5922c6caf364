"""From a capture to a source folder that needs nothing of its maker.

P01, P54, P55, P58, P65; every kind of input.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from workbench.core.errors import InputError, LoadError, UntrustedFileError
from workbench.sources import load, prepare
from workbench.sources.capture import load_arrays

pytestmark = pytest.mark.slow


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A module beside the notebook, which uses another one."""
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "sources_helper.py").write_text(
        "import torch\nfrom sources_deeper import FACTOR\n"
        "class Block(torch.nn.Module):\n"
        "    def __init__(self, n):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(n, n)\n"
        "    def forward(self, x):\n"
        "        return torch.relu(self.layer(x)) * FACTOR\n"
        "def make():\n"
        "    return Block(4)\n"
        "def count():\n"
        "    return 3\n"
    )
    (folder / "sources_deeper.py").write_text("FACTOR = 2.0\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("sources_helper", "sources_deeper", "factory"):
        sys.modules.pop(name, None)


CELL = '''
import torch
from dataclasses import dataclass
from sources_helper import Block

@dataclass
class Output:
    logits: torch.Tensor
    aux: object
    n: int

class Net(torch.nn.Module):
    """Takes a dict and gives a dataclass."""
    def __init__(self, width):
        super().__init__()
        self.block = Block(width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, batch):
        x = self.drop(self.norm(self.block(batch["x"])))
        return Output(x + batch["bias"], None, 3)
'''


def test_a_cells_class_with_a_helper_and_dicts_leaves_as_source(notebook, prepared, helper):
    """P01, P54, P55: train mode, a dict in, a dataclass out, a helper module."""
    net = notebook.run(CELL)["Net"](4).train()
    inputs = {"x": torch.randn(2, 4) + 5, "bias": torch.randn(2, 4)}
    model, found, source = prepared(net, inputs)
    assert (found.kind, found.origin, found.not_exportable) == (
        "factory",
        "the cell's source",
        None,
    )
    assert any("training mode" in note for note in found.notes)
    assert net.training
    assert torch.equal(net.norm.running_mean, torch.zeros(4))
    assert [(spec.name, spec.dtype) for spec in found.outputs] == [
        ("logits", "float32"),
        ("aux", "none"),
        ("n", "int64"),
    ]
    with torch.inference_mode():
        expected = net.eval()(inputs).logits
    assert np.array_equal(load_arrays(source / "outputs.npz")["logits"], expected.numpy())
    assert found.batch.dynamic
    assert (source / "sources_helper.py").is_file()
    assert (source / "sources_deeper.py").is_file()
    described = json.loads((source / "source.json").read_text())
    assert described["kind"] == "factory"
    assert described["outputs"] == ["logits", "aux", "n"]
    assert described["batch_axes"] == {"x": 0, "bias": 0}
    assert described["output_batch_axes"] == {"logits": 0}
    assert [entry["shape"] for entry in described["inputs"]] == [["batch", 4], ["batch", 4]]
    assert not list(source.rglob("*.pkl"))
    assert model.kind == "module"
    assert helper.is_dir()


def test_two_preparations_are_the_same(notebook, helper, tmp_path):
    """P01: dropout and statistics do not move between runs."""
    net = notebook.run(CELL)["Net"](4).train()
    inputs = {"x": torch.randn(2, 4), "bias": torch.randn(2, 4)}
    models = [load(net, inputs), load(net, inputs)]
    folders = [tmp_path / "first", tmp_path / "second"]
    one, two = (
        prepare(Path(model.folder), folder) for model, folder in zip(models, folders, strict=True)
    )
    assert one.digest == two.digest
    first, second = ((folder / "outputs.npz").read_bytes() for folder in folders)
    assert first == second
    assert helper.is_dir()


@dataclass
class Leaves:
    logits: object
    rest: object


def test_a_class_inside_a_function_leaves_as_an_exported_program(prepared):
    """P55: outputs of any form are flattened, so that the program loads anywhere."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, *, scale):
            return Leaves(self.layer(x) * scale, ([x, x + 1], None, 3))

    inputs = {"x": torch.randn(2, 4), "scale": torch.tensor(2.0)}
    _, found, source = prepared(Hidden(), inputs)
    assert (found.kind, found.origin) == ("exported", "exported program")
    assert found.not_exportable is None
    names = ["logits", "rest.0.0", "rest.0.1", "rest.1", "rest.2"]
    assert [spec.name for spec in found.outputs] == names
    assert found.batch.dynamic
    assert (source / "program.pt2").is_file()
    assert any("Hidden" in note for note in found.notes)


def test_what_cannot_leave_still_runs_and_says_why(prepared):
    class Hidden(nn.Module):
        def forward(self, x):
            if x.sum().item() > 0:
                return x + 1
            return x - 1

    _, found, source = prepared(Hidden(), torch.randn(2, 4))
    assert found.kind == "factory"
    assert "Hidden" in found.not_exportable
    assert "exported program" in found.not_exportable
    assert (source / "private" / "payload.pkl").is_file()
    assert (source / "weights.safetensors").is_file()


def test_ties_ids_and_buffers_outside_the_state_survive(notebook, prepared):
    """P58: ids are drawn below 10, the mask is ones; P54: keyword-only and default None."""
    notebook.run(
        "import torch\n"
        "class Tied(torch.nn.Module):\n"
        "    def __init__(self, v, d):\n"
        "        super().__init__()\n"
        "        self.e = torch.nn.Embedding(v, d)\n"
        "        self.p = torch.nn.Embedding(6, d)\n"
        "        self.o = torch.nn.Linear(d, v, bias=False)\n"
        "        self.o.weight = self.e.weight\n"
        "        self.register_buffer('scale', torch.randn(d), persistent=False)\n"
        "    def forward(self, ids, mask=None, *, pos):\n"
        "        x = (self.e(ids) + self.p(pos)) * mask.unsqueeze(-1)\n"
        "        return {'logits': self.o(x * self.scale)}\n"
    )
    specs = "ids: i64[batch, 5]; mask: i64[batch, 5]; pos: i64[batch, 5]"
    _, found, source = prepared(notebook["Tied"](10, 4), specs)
    assert found.origin == "the cell's source"
    ids, mask, pos = found.inputs
    assert (ids.low, ids.high, mask.high, pos.high) == (0, 10, None, 6)
    example = load_arrays(source / "example.npz")
    assert example["ids"].max() < 10
    assert example["pos"].max() < 6
    assert (example["mask"] == 1).all()
    assert found.made_up == ("ids", "mask", "pos")
    assert any(note.startswith("made-up inputs") for note in found.notes)
    assert found.num_parameters == 10 * 4 + 6 * 4
    assert found.layers == {"Embedding": 2, "Linear": 1}


def test_variadic_inputs_run(notebook, prepared):
    """P54: forward(*inp)."""
    notebook.run(
        "import torch\n"
        "class Sum(torch.nn.Module):\n"
        "    def forward(self, *inp):\n"
        "        return sum(inp)\n"
    )
    _, found, _ = prepared(notebook["Sum"](), (torch.randn(2, 4), torch.randn(2, 4)))
    assert [spec.name for spec in found.inputs] == ["inp_0", "inp_1"]
    assert found.batch.dynamic
    assert found.num_parameters == 0


def test_torchs_own_layers_are_importable(prepared):
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2)
    ).eval()
    module(torch.zeros(1, 3, 5, 5))
    _, found, _ = prepared(module.bfloat16(), "x: bf16[batch, 3, 5, 5]")
    assert found.origin == "importable factory"
    assert found.outputs[0].dtype == "bfloat16"
    assert found.requirements == ()
    assert found.layers == {"BatchNorm2d": 1, "Conv2d": 1, "Linear": 1}


def test_a_factory_is_called_by_name_and_takes_a_state(prepared, helper, tmp_path):
    import sources_helper

    other = sources_helper.make()
    torch.save({"_orig_mod." + k: v for k, v in other.state_dict().items()}, tmp_path / "w.bin")
    x = torch.randn(3, 4)
    _, found, source = prepared("sources_helper:make", x, state=tmp_path / "w.bin")
    assert (found.kind, found.origin) == ("factory", "importable factory")
    with torch.inference_mode():
        expected = other(x).numpy()
    assert np.array_equal(load_arrays(source / "outputs.npz")["output"], expected)
    assert (source / "sources_helper.py").is_file()
    assert helper.is_dir()


def test_a_state_that_does_not_fit_is_refused(prepared, helper, tmp_path):
    torch.save({"layer.weight": torch.ones(3, 3)}, tmp_path / "w.pt")
    with pytest.raises(LoadError, match=r"does not fit Block.*layer\.bias"):
        prepared("sources_helper:make", torch.randn(3, 4), state=tmp_path / "w.pt")
    with pytest.raises(LoadError, match="no callable"):
        prepared("sources_helper:nothing", torch.randn(3, 4))
    with pytest.raises(LoadError, match="made a int"):
        prepared("sources_helper:count", torch.randn(3, 4))
    assert helper.is_dir()


def test_a_callable_from_a_cell_makes_the_module(notebook, prepared):
    notebook.run("import torch\nWIDTH = 4\ndef make():\n    return torch.nn.Linear(WIDTH, 2)\n")
    _, found, source = prepared(notebook["make"], torch.randn(3, 4))
    assert found.origin == "the cell's source"
    assert "WIDTH = 4" in (source / "factory.py").read_text()


def test_a_callable_with_a_name_is_a_factory(prepared):
    _, found, source = prepared(nn.Identity, "x: f32[batch, 4]")
    assert found.origin == "importable factory"
    assert "import Identity" in (source / "factory.py").read_text()


def test_a_helper_package_without_init_travels(tmp_path, monkeypatch, prepared):
    package = tmp_path / "beside" / "sources_models" / "deep"
    package.mkdir(parents=True)
    (package / "net.py").write_text("import torch\ndef make():\n    return torch.nn.ReLU()\n")
    (package.parent / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "beside"))
    _, found, source = prepared("sources_models.deep.net:make", "x: f32[batch, 4]")
    assert found.not_exportable is None
    assert (source / "sources_models" / "deep" / "net.py").is_file()


def test_an_untrusted_program_is_not_opened_by_a_worker_either(tmp_path):
    """P49: the capture remembers; nothing is opened with less safety later."""
    program = torch.export.export(nn.ReLU(), (torch.randn(3, 4),))
    model = load(program)
    path = Path(model.folder) / "capture.json"
    path.write_text(path.read_text().replace('"trusted": true', '"trusted": false'))
    with pytest.raises(UntrustedFileError, match="trusted=True"):
        prepare(Path(model.folder), tmp_path / "source")


def test_an_exported_program_is_taken_as_it_is(prepared, tmp_path):
    module = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    path = tmp_path / "model.bin"
    torch.export.save(program, str(path.with_suffix(".pt2")))
    path.with_suffix(".pt2").rename(path)
    model, found, source = prepared(path, trusted=True)
    assert str(model.inputs[0]) == "input: f32[batch, 4]"
    assert (found.kind, found.origin) == ("exported", "the file itself")
    assert found.batch.dynamic
    assert found.layers == {"Linear": 1}
    assert (source / "program.pt2").is_file()
    live, found, _ = prepared(program)
    assert (live.trusted, found.kind) == (True, "exported")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python")
def test_torchscript_with_a_baked_size_is_not_dynamic(prepared, tmp_path):
    """P60: traced with a batch of 2, it fails at 5."""

    class Baked(nn.Module):
        def forward(self, x):
            size = int(x.shape[0])
            return x.view(size, -1) + torch.zeros(size, 12)

    traced = torch.jit.trace(Baked(), torch.randn(2, 3, 4))
    traced.save(str(tmp_path / "model.pt"))
    _, found, source = prepared(tmp_path / "model.pt", torch.randn(2, 3, 4), trusted=True)
    assert found.kind == "torchscript"
    assert not found.batch.dynamic
    assert "one of 5 does not" in found.batch.reason
    assert (source / "module.pt").is_file()
    scripted, _, _ = prepared(torch.jit.script(nn.Linear(4, 2)), "x: f32[batch, 4]")
    assert scripted.kind == "torchscript"


def test_processing_travels_and_is_checked(notebook, prepared):
    notebook.run(
        "import numpy as np\n"
        "SCALE = 255\n"
        "def to_input(image):\n"
        "    return {'input': np.asarray(image, np.float32)[None] / SCALE}\n"
        "def postprocess(outputs):\n"
        "    return int(outputs['output'].argmax())\n"
        "outside = object()\n"
        "def bad(x):\n"
        "    return outside\n"
    )
    net = nn.Linear(4, 2).eval()
    options = {"preprocess": notebook["to_input"], "postprocess": notebook["postprocess"]}
    _, _, source = prepared(net, torch.randn(2, 4), **options, raw=[255, 0, 0, 0])
    assert json.loads((source / "raw.json").read_text()) == [255, 0, 0, 0]
    namespace = {}
    exec((source / "processing.py").read_text(), namespace)
    assert namespace["preprocess"]([255, 0, 0, 0])["input"].tolist() == [[1, 0, 0, 0]]
    assert "postprocess" in namespace
    with pytest.raises(LoadError, match="outside"):
        load(net, torch.randn(2, 4), preprocess=notebook["bad"])


def test_processing_that_does_not_fit_is_refused(notebook, prepared):
    notebook.run(
        "def preprocess(raw):\n"
        "    return {'input': [[float(raw)]]}\n"
        "def postprocess(outputs):\n"
        "    return outputs['nothing']\n"
    )
    net = nn.Linear(4, 2).eval()
    with pytest.raises(InputError, match=r"output of preprocess, input 'input' has size 1"):
        prepared(net, torch.randn(2, 4), preprocess=notebook["preprocess"], raw=3)
    with pytest.raises(LoadError, match=r"fresh process: KeyError: 'nothing'"):
        prepared(net, torch.randn(2, 4), postprocess=notebook["postprocess"])
    with pytest.raises(InputError, match="raw= is a"):
        load(net, torch.randn(2, 4), raw=object())


def test_outputs_that_change_from_run_to_run_are_noted(prepared):
    class Counts(nn.Module):
        calls = 0

        def forward(self, x):
            Counts.calls += 1
            return x + Counts.calls

    _, found, _ = prepared(Counts(), torch.randn(2, 4))
    assert any("from run to run" in note for note in found.notes)


def test_what_the_model_raises_names_its_inputs(prepared):
    with pytest.raises(RuntimeError) as error:
        prepared(nn.Linear(4, 2).eval(), torch.randn(2, 5))
    assert any("input: f32[2, 5]" in note for note in error.value.__notes__)


def test_an_old_capture_is_refused(tmp_path):
    model = load(nn.Linear(4, 2), torch.randn(2, 4))
    path = Path(model.folder) / "capture.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(LoadError, match="version 99"):
        prepare(Path(model.folder), tmp_path / "source")
    with pytest.raises(LoadError, match=r"no capture\.json"):
        prepare(tmp_path, tmp_path / "source")
