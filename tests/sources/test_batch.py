"""What is claimed of the batch, and what showed it (P10, P60)."""

import numpy as np
import torch
from torch import nn

from workbench.core.model import TensorSpec
from workbench.sources.axes import guess_axes
from workbench.sources.batch import examine, resize
from workbench.sources.running import bit_equal, torch_run


def find(module, *arrays, axes=None):
    """Findings for a module that takes these arrays by position."""
    names = ["x", "y", "z"][: len(arrays)]
    specs = tuple(
        TensorSpec(name=n, dtype=str(a.dtype), shape=a.shape)
        for n, a in zip(names, arrays, strict=True)
    )
    call = {"args": [["tensor", name] for name in names], "kwargs": {}}
    example = dict(zip(names, arrays, strict=True))
    run = torch_run(module.eval(), call, specs)
    return examine(run, example, run(example), specs, guess_axes(specs, axes))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


ROWS = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def test_dynamic_is_claimed_after_two_more_sizes_ran():
    found = find(nn.Linear(4, 2), ROWS)
    assert found.claim.dynamic
    assert len(set(found.claim.verified_sizes) - {2}) >= 2
    assert max(found.claim.verified_sizes) > 2
    assert found.output_axes == {"output": 0}


def test_a_baked_size_is_not_dynamic_and_the_failing_size_is_named():
    """P60: an example batch of 2 that is written into the model fails at 5."""

    def baked(x):
        return x.reshape(2, -1) + torch.zeros(2, 12)

    claim = find(Function(baked), ROWS).claim
    assert not claim.dynamic
    assert "a batch of 2 runs and one of 5 does not" in claim.reason


def test_reading_the_size_is_no_baking():
    """P60's own module is dynamic as long as Python reads the size anew."""

    def read(x):
        size = int(x.shape[0])
        return x.view(size, -1) + torch.zeros(size, 12)

    assert find(Function(read), ROWS).claim.dynamic


def test_a_size_that_is_broadcast_away_is_not_dynamic():
    """Runs at every size, and gives the wrong number of rows."""

    def constant(x):
        return x.mean(0, keepdim=True).expand(2, 3, 4)

    claim = find(Function(constant), ROWS).claim
    assert not claim.dynamic
    assert "no output grows" in claim.reason


def test_outputs_of_several_rows_per_item_are_told():
    claim = find(Function(lambda x: x.reshape(-1, 4)), ROWS).claim
    assert not claim.dynamic
    assert "one row per item" in claim.reason


def test_rows_of_an_mlp_are_independent_within_a_stated_tolerance():
    """P10 (a)."""
    found = find(nn.Sequential(nn.Flatten(), nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3)), ROWS)
    assert found.claim.rows_independent is True
    assert any("(allowed: 0.0001)" in note for note in found.notes)


def test_rows_that_depend_on_the_batch_are_flagged():
    """P10 (b): x.mean(0)."""
    claim = find(Function(lambda x: x - x.mean(0)), ROWS).claim
    assert claim.rows_independent is False
    assert "rows depend on the batch" in claim.reason


def test_equal_rows_do_not_hide_that_they_depend_on_each_other():
    """P10: an example of one row, or of equal ones, must not pass for independent."""
    claim = find(Function(lambda x: x - x.mean(0)), np.ones((1, 4), np.float32)).claim
    assert claim.rows_independent is False


def test_only_inputs_that_share_the_leading_size_carry_the_batch():
    positions = np.arange(3)

    def add(x, y):
        return x + y[:, None]

    found = find(Function(add), ROWS, positions)
    assert found.claim.axes == {"x": 0}
    assert found.claim.dynamic


def test_a_batch_on_another_axis_is_followed():
    rows = np.zeros((5, 2, 4), np.float32)
    found = find(Function(lambda x: (x * 2, x.sum(0))), rows, axes={"x": 1})
    assert found.claim.dynamic
    assert found.output_axes == {"0": 1, "1": 0}


def test_an_output_without_a_batch_does_not_stop_the_others():
    found = find(Function(lambda x: {"rows": x, "weight": torch.ones(3), "n": 3}), ROWS)
    assert found.claim.dynamic
    assert found.output_axes == {"rows": 0}


def test_a_model_without_a_batch_says_so():
    claim = find(Function(lambda x: x + 1), np.float32(1)).claim
    assert not claim.dynamic
    assert "no input" in claim.reason


def test_a_batch_of_one_that_fails_is_noted():
    def needs_two(x):
        if x.shape[0] == 1:
            raise ValueError("more than one row, please")
        return x * 2

    found = find(Function(needs_two), ROWS)
    assert found.claim.dynamic
    assert found.notes[0] == ("a batch of 1 does not run: ValueError: more than one row, please")


def test_resized_rows_keep_the_first_and_stay_in_range():
    ids = np.array([[1, 2, 3]])
    spec = TensorSpec(name="ids", dtype="int64", shape=(1, 3), low=0, high=5)
    resized = resize({"ids": ids}, {"ids": 0}, 50, [spec])["ids"]
    assert resized[0].tolist() == [1, 2, 3]
    assert resized.min() >= 0
    assert resized.max() < 5
    assert len(np.unique(resized, axis=0)) > 10
    again = resize({"ids": ids}, {"ids": 0}, 50, [spec])["ids"]
    assert (resized == again).all()


def test_bits_are_compared_and_not_a_number_equals_itself():
    left = {"a": np.array([np.nan, 1.0]), "b": None}
    assert bit_equal(left, {"a": np.array([np.nan, 1.0]), "b": None}) == ""
    assert "'a' differs by up to 0.5" in bit_equal({"a": np.ones(1)}, {"a": np.full(1, 0.5)})
    assert "None on one side" in bit_equal({"a": None}, {"a": np.ones(1)})
    assert "float32[1] instead of float64[1]" in bit_equal(
        {"a": np.ones(1, np.float32)}, {"a": np.ones(1)}
    )
