"""Inputs of every form, named by the signature (P54)."""

import inspect

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.core.structure import bind_inputs
from workbench.sources.signature import bind_again, bind_arguments

X = np.ones((2, 3), np.float32)
M = np.zeros((2, 3), np.float32)


def called(bound, function):
    """What `function` receives when the template is filled with the example."""
    args, kwargs = bind_inputs(bound.call, bound.arrays)
    return function(*args, **kwargs)


def bind(inputs, function):
    return bind_arguments(inputs, inspect.signature(function))


def names(bound):
    return [spec.name for spec in bound.specs]


def one(x):
    return ("one", x)


def masked(x, mask=None):
    return ("masked", x, mask)


def variadic(*inp):
    return ("variadic", inp)


def dictionary(batch: dict):
    return ("dictionary", batch)


def keyword(x, *, scale):
    return ("keyword", x, scale)


def test_a_lone_tensor_takes_the_parameters_name():
    bound = bind(X, one)
    assert names(bound) == ["x"]
    assert called(bound, one)[1] is X


def test_a_tuple_is_positional_and_defaults_may_stay_away():
    assert names(bind((X, M), masked)) == ["x", "mask"]
    assert called(bind((X,), masked), masked)[2] is None


def test_a_dict_of_arguments_goes_by_name():
    bound = bind({"mask": M, "x": X}, masked)
    assert names(bound) == ["x", "mask"]
    assert called(bound, masked)[2] is M


def test_variadic_inputs_are_numbered():
    bound = bind((X, M), variadic)
    assert names(bound) == ["inp_0", "inp_1"]
    assert called(bound, variadic)[1][1] is M


def test_one_dict_argument_keeps_its_keys_as_names():
    bound = bind({"ids": X, "mask": M}, dictionary)
    assert names(bound) == ["ids", "mask"]
    assert set(called(bound, dictionary)[1]) == {"ids", "mask"}


def test_a_dict_named_as_the_parameter_is_that_parameter():
    bound = bind({"batch": {"ids": X}}, dictionary)
    assert names(bound) == ["batch.ids"]
    assert set(called(bound, dictionary)[1]) == {"ids"}


def test_keyword_only_arguments_are_given_by_name():
    bound = bind({"x": X, "scale": M}, keyword)
    assert names(bound) == ["x", "scale"]
    assert called(bound, keyword)[2] is M
    with pytest.raises(InputError, match=r"scale; the model takes forward\(x, \*, scale\)"):
        bind((X,), keyword)


def test_nested_inputs_have_dotted_names():
    def recurrent(x, state):
        return (x, state)

    bound = bind((X, (M, [X, None, 3])), recurrent)
    assert names(bound) == ["x", "state.0", "state.1.0"]
    assert called(bound, recurrent)[1][1][1:] == [None, 3]


def test_many_inputs_for_one_parameter_become_its_tuple_with_a_note():
    def pair(both):
        return both

    bound = bind((X, M), pair)
    assert isinstance(called(bound, pair), tuple)
    assert "one tuple" in bound.notes[0]


def test_specs_bind_as_examples_do():
    bound = bind("x: f32[batch, 3]; mask: f32[batch, 3]", masked)
    assert bound.call == {"args": [["tensor", "x"], ["tensor", "mask"]], "kwargs": {}}
    assert bound.arrays == {}
    bound = bind(["ids: i64[batch, 4] in 0..10", "mask: i64[batch, 4]"], dictionary)
    assert bound.call["args"][0][0] == "dict"
    assert bound.specs[0].high == 10
    assert names(bind(["a: f32[2]", "b: f32[2]"], variadic)) == ["a", "b"]


def test_unknown_names_show_the_signature():
    with pytest.raises(InputError, match=r"z are no arguments.*forward\(x, \*, scale\)"):
        bind({"z": X}, keyword)


def test_too_many_inputs_show_the_signature():
    with pytest.raises(InputError, match=r"3 positional inputs.*forward\(x, mask=None\)"):
        bind((X, X, X), masked)


def test_an_empty_example_is_refused_by_name():
    """P59: an empty batch."""
    with pytest.raises(InputError, match=r"'x' is empty.*got float64\[0, 3\]"):
        bind(np.zeros((0, 3)), one)


def test_text_and_objects_are_no_inputs():
    with pytest.raises(InputError, match="wanted tensors"):
        bind((object(),), one)
    with pytest.raises(InputError, match="numbers or booleans"):
        bind(np.array(["a"]), one)
    with pytest.raises(InputError, match="no tensor"):
        bind((None,), one)


def test_a_call_is_bound_again_when_the_signature_is_known():
    bound = bind_arguments({"ids": X, "mask": M}, None)
    assert bound.call["kwargs"]
    again = bind_again(bound.given, inspect.signature(dictionary))
    args, kwargs = bind_inputs(again, bound.arrays)
    assert set(args[0]) == {"ids", "mask"}
    assert kwargs == {}


def test_two_inputs_may_not_share_a_name():
    def both(a, b):
        return a, b

    with pytest.raises(InputError, match="two inputs"):
        bind_arguments({"a": {"b": X}, "a.b": X}, inspect.signature(lambda **kw: kw))
