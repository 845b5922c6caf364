"""Reading specs, drawing arrays, and making arrays fit (P58, P59)."""

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.core.model import TensorSpec
from workbench.sources.fit import fit_inputs
from workbench.sources.specs import draw, example_shape, parse_spec

X = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", 4), low=0, high=10)


def test_a_spec_names_its_dimensions():
    spec, sizes = parse_spec("x: f32[batch, 3, 224, 224]")
    assert spec == TensorSpec(name="x", dtype="float32", shape=("batch", 3, 224, 224))
    assert sizes == {}


def test_a_spec_may_hold_a_range_and_example_sizes():
    spec, sizes = parse_spec("ids: i64[batch=8, seq=128] in 0..30522")
    assert spec == TensorSpec(name="ids", dtype="int64", shape=("batch", "seq"), low=0, high=30522)
    assert sizes == {"batch": 8, "seq": 128}


def test_a_scalar_has_no_dimensions():
    assert parse_spec("scale: f64[]")[0].shape == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x f32[3]", "no input spec"),
        ("x: f33[3]", "f33"),
        ("x: f32[0, 3]", "'0'"),
        ("x: f32[a-b]", "a-b"),
        ("ids: i64[3] in 5..5", "empty"),
    ],
)
def test_a_bad_spec_is_refused_with_what_is_wrong(text, what):
    with pytest.raises(InputError, match=what):
        parse_spec(text)


def test_a_named_dimension_without_a_size_asks_for_one():
    """P61: symbolic dimensions prompt for values."""
    with pytest.raises(InputError, match="seq=128"):
        example_shape(parse_spec("ids: i64[batch, seq]")[0], {})


def test_the_batch_has_more_than_one_row_unless_said():
    assert example_shape(X, {})[0] > 1
    assert example_shape(X, {"batch": 2}) == (2, 3)


def test_ids_are_drawn_in_their_range():
    """P58: made-up ids lie in range."""
    drawn = draw(IDS, (1000, 4), np.random.default_rng(0))
    assert drawn.dtype == np.int64
    assert (drawn.min(), drawn.max()) == (0, 9)


def test_masks_are_drawn_as_ones():
    mask = TensorSpec(name="mask", dtype="int64", shape=("batch", 4))
    assert draw(mask, (2, 4), np.random.default_rng(0)).tolist() == [[1] * 4] * 2
    keep = TensorSpec(name="keep", dtype="bool", shape=("batch",))
    assert draw(keep, (3,), np.random.default_rng(0)).all()


def test_float64_becomes_float32_with_a_note():
    """P59: a float64 numpy array is cast, and said so."""
    fitted, notes = fit_inputs([X], {"x": np.ones((2, 3))})
    assert fitted["x"].dtype == np.float32
    assert notes == ("input 'x' was cast from float64 to float32",)


def test_int32_ids_become_int64_with_a_note():
    """P59."""
    fitted, notes = fit_inputs([IDS], {"ids": np.ones((2, 4), np.int32)})
    assert fitted["ids"].dtype == np.int64
    assert "int32 to int64" in notes[0]


def test_a_zero_dimensional_array_names_input_wanted_and_got():
    """P59."""
    with pytest.raises(InputError, match=r"'x' has 0 dimensions; wanted x: f32\[batch, 3\]") as e:
        fit_inputs([X], {"x": np.float32(1)})
    assert "got float32[]" in str(e.value)


def test_a_zero_dimensional_input_that_is_wanted_fits():
    scale = TensorSpec(name="scale", dtype="float32", shape=())
    assert fit_inputs([scale], {"scale": np.float32(2)})[0]["scale"].shape == ()


def test_an_empty_batch_is_refused():
    """P59."""
    with pytest.raises(InputError, match=r"'x' is empty.*got float32\[0, 3\]"):
        fit_inputs([X], {"x": np.ones((0, 3), np.float32)})


@pytest.mark.parametrize("bad", [-1, 10])
def test_an_id_out_of_range_is_refused(bad):
    """P58: ONNX Runtime takes -1 silently, so it must not get that far."""
    with pytest.raises(InputError, match=rf"holds {bad}; wanted values in 0..10"):
        fit_inputs([IDS], {"ids": np.array([[0, 1, 2, bad]])})


def test_values_that_a_cast_would_change_are_refused():
    with pytest.raises(InputError, match="int64"):
        fit_inputs([IDS], {"ids": np.full((1, 4), 0.5)})
    small = TensorSpec(name="s", dtype="int8", shape=(1,))
    with pytest.raises(InputError, match="cannot"):
        fit_inputs([small], {"s": np.array([300])})
    half = TensorSpec(name="h", dtype="float16", shape=(1,))
    with pytest.raises(InputError, match="overflows"):
        fit_inputs([half], {"h": np.array([1e6])})


def test_missing_and_unknown_inputs_are_named():
    with pytest.raises(InputError, match="x missing; y unknown"):
        fit_inputs([X], {"y": np.ones((1, 3))})


def test_one_name_has_one_size():
    other = TensorSpec(name="y", dtype="float32", shape=("batch",))
    with pytest.raises(InputError, match="'batch' is 2 in the input 'x' and 3 in 'y'"):
        fit_inputs([X, other], {"x": np.ones((2, 3)), "y": np.ones(3)})


def test_a_fixed_size_is_held():
    with pytest.raises(InputError, match="size 4 in dimension 1"):
        fit_inputs([X], {"x": np.ones((2, 4))})
