"""Taking in live modules: nothing runs, nothing changes (P01, P54, P58, P59)."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import workbench
from workbench.core.errors import InputError, LoadError
from workbench.sources import load
from workbench.sources.capture import load_arrays, read_capture
from workbench.sources.opening import load_payload


class Refuses(nn.Module):
    """A client that ran this would know."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, mask=None, *, scale):
        raise AssertionError(f"the client ran the model on {x}, {mask}, {scale}")


def snapshot(module):
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return state, [m.training for m in module.modules()], [id(p) for p in module.parameters()]


def test_the_users_module_is_neither_run_nor_changed():
    """P01: statistics, mode, parameters and gradients stay as they are."""
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    module(torch.randn(8, 4) + 5).sum().backward()
    state, modes, identities = snapshot(module)
    gradient = module[2].weight.grad.clone()
    model = load(module, torch.randn(8, 4) + 5)
    after, modes_after, identities_after = snapshot(module)
    assert all(torch.equal(state[name], after[name]) for name in state)
    assert (modes, identities) == (modes_after, identities_after)
    assert torch.equal(module[2].weight.grad, gradient)
    assert "was in training mode; an eval copy is measured" in model.notes


def test_loading_never_calls_forward():
    model = load(Refuses(), {"x": torch.ones(2, 4), "scale": torch.ones(())})
    assert [str(spec) for spec in model.inputs] == ["x: f32[2, 4]", "scale: f32[]"]


def test_a_module_without_inputs_shows_its_signature():
    with pytest.raises(InputError, match=r"Refuses needs inputs.*\(x, mask=None, \*, scale\)"):
        load(Refuses())


def test_the_description_is_worth_reading():
    model = load(nn.Linear(4, 2).eval(), torch.ones(3, 4), name="tiny")
    assert str(model) == "tiny (module): 10 parameters, 40 B, takes input: f32[3, 4]"
    assert repr(model).startswith("<Model tiny")
    assert (model.num_parameters, model.num_bytes) == (10, 40)


def test_a_float64_example_is_cast_with_a_note():
    """P59."""
    model = load(nn.Linear(4, 2).eval(), np.ones((3, 4)))
    assert model.inputs[0].dtype == "float32"
    assert any("'input' was cast from float64 to float32" in note for note in model.notes)
    assert load_arrays(Path(model.folder) / "example.npz")["input"].dtype == np.float32


def test_a_float64_model_keeps_its_float64_example():
    model = load(nn.Linear(4, 2).double(), np.ones((3, 4)))
    assert model.inputs[0].dtype == "float64"


def test_bfloat16_inputs_keep_their_name():
    model = load(nn.Linear(4, 2).bfloat16(), torch.ones(3, 4, dtype=torch.bfloat16))
    assert model.inputs[0].dtype == "bfloat16"
    assert load_arrays(Path(model.folder) / "example.npz")["input"].dtype == np.float32


def test_an_empty_batch_is_refused():
    """P59."""
    with pytest.raises(InputError, match="'input' is empty"):
        load(nn.Linear(4, 2), torch.ones(0, 4))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_wrappers_are_taken_off():
    """P78: no prefix of torch.compile on the keys."""
    module = nn.Linear(4, 2).eval()
    model = load(torch.compile(module), torch.ones(1, 4))
    assert model.name == "Linear"
    assert any("compiled" in note for note in model.notes)
    assert load(nn.DataParallel(module), torch.ones(1, 4)).name == "Linear"


def test_tensors_that_have_no_values_are_refused():
    with pytest.raises(LoadError, match="not initialized"):
        load(nn.LazyLinear(3), torch.ones(1, 4))
    with pytest.raises(LoadError, match="meta device"):
        load(nn.Linear(4, 2, device="meta"), torch.ones(1, 4))


def test_what_cannot_travel_asks_for_a_factory():
    module = nn.Linear(4, 2)
    module.lock = threading.Lock()
    with pytest.raises(LoadError, match=r"package\.module:factory"):
        load(module, torch.ones(1, 4))


def test_the_payload_keeps_ties_and_buffers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("mask", torch.arange(3), persistent=False)
            self.view = self.a.weight.detach()[0]
            self.half = torch.ones(2, dtype=torch.bfloat16)

    net = Net()
    copy = load_payload(Path(load(net, torch.ones(1, 4)).folder))
    assert copy.a.weight is copy.b.weight
    assert isinstance(copy.a.weight, nn.Parameter)
    assert torch.equal(copy.mask, net.mask)
    assert torch.equal(copy.view, net.view)
    assert copy.half.dtype == torch.bfloat16
    assert load(net, torch.ones(1, 4)).num_parameters == 16


def test_the_notebooks_flags_are_taken_over():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = load(nn.Linear(4, 2), torch.ones(1, 4)).settings
    finally:
        torch.set_num_threads(before)
    assert settings["num_threads"] == 1
    assert settings["float32_matmul_precision"] == "highest"
    assert settings["cudnn_conv_fp32_precision"] == "tf32"
    assert "default_dtype" not in settings


def test_rows_and_labels_are_kept_beside_the_model():
    module = nn.Linear(4, 2).eval()
    rows = np.random.default_rng(0).standard_normal((10, 4))
    model = load(
        module, torch.ones(2, 4), evaluation=rows, labels=np.arange(10), calibration=rows[:5] + 1
    )
    folder = Path(model.folder)
    assert load_arrays(folder / "evaluation.npz")["input"].shape == (10, 4)
    assert load_arrays(folder / "calibration.npz")["input"].dtype == np.float32
    assert np.load(folder / "labels.npy").tolist() == list(range(10))
    assert any("evaluation input 'input' was cast" in note for note in model.notes)


def test_labels_must_be_as_many_as_rows():
    with pytest.raises(InputError, match="10 evaluation rows"):
        load(nn.Linear(4, 2), torch.ones(2, 4), evaluation=np.ones((10, 4)), labels=np.arange(9))


def test_a_model_is_not_judged_by_the_rows_it_is_calibrated_on():
    rows = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    with pytest.raises(InputError, match="calibration row is an evaluation row"):
        load(nn.Linear(4, 2), torch.ones(2, 4), evaluation=rows, calibration=rows[2:6])
    model = load(
        nn.Linear(4, 2),
        torch.ones(2, 4),
        evaluation=rows[:5],
        calibration=rows[4:],
    )
    assert "1 of 6 calibration rows are evaluation rows too" in model.notes


def test_the_batch_axis_can_be_given():
    model = load(nn.LSTM(4, 2), torch.ones(7, 3, 4), batch_axes={"input": 1})
    assert read_capture(Path(model.folder)).batch_axes == {"input": 1}
    with pytest.raises(InputError, match="axis 3"):
        load(nn.LSTM(4, 2), torch.ones(7, 3, 4), batch_axes={"input": 3})


def test_what_is_no_model_is_refused():
    with pytest.raises(LoadError, match="no model"):
        load(3, torch.ones(1))


def test_a_failed_load_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError):
        load(nn.Linear(4, 2), "x: f32[")
    assert list(tmp_path.iterdir()) == []


def test_a_client_without_torch_loads_samples_factories_and_files():
    """Loading imports torch nowhere, and leaves no folder when the process ends."""
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from workbench.sources.load import load\n"
        "from workbench.sources.samples import sample_names\n"
        "model = load('sample:' + sample_names()[0])\n"
        "factory = load('json.decoder:JSONDecoder', 'x: f32[batch, 4]')\n"
        "assert factory.settings == {}\n"
        "print(model.folder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(workbench.__file__).parents[1],
    )
    assert not Path(done.stdout.strip()).exists()
