"""Outputs of any nesting by dotted name (P55)."""

import inspect
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

from workbench.core.structure import bind_inputs, flatten_outputs

T = np.ones((2, 3), np.float32)


@dataclass
class Output:
    logits: object
    aux: object
    n: int


Point = namedtuple("Point", "left right")


def test_a_lone_tensor_is_called_output():
    assert list(flatten_outputs(T)) == ["output"]
    assert flatten_outputs(T)["output"] is T


def test_none_and_numbers_are_kept():
    """P55: {'logits': t, 'aux': None, 'n': 3}."""
    flat = flatten_outputs({"logits": T, "aux": None, "n": 3})
    assert list(flat) == ["logits", "aux", "n"]
    assert flat["aux"] is None
    assert flat["n"].shape == ()
    assert flat["n"] == 3


def test_dataclasses_tuples_and_lists_nest():
    """P55: a dataclass, and a tuple of lists."""
    assert list(flatten_outputs(Output(T, None, 1))) == ["logits", "aux", "n"]
    assert list(flatten_outputs(([T, T], [T]))) == ["0.0", "0.1", "1.0"]
    assert list(flatten_outputs({"past": Point(T, (T,))})) == ["past.left", "past.right.0"]


def test_what_is_no_tensor_is_named():
    """P55: names the offending key."""
    with pytest.raises(TypeError, match=r"'cache\.0' is a builtins\.object"):
        flatten_outputs({"logits": T, "cache": [object()]})


def test_two_outputs_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"'a\.b'"):
        flatten_outputs({"a.b": T, "a": {"b": T}})


def test_every_node_of_a_call_is_filled():
    call = {
        "args": [["tensor", "x"], ["tuple", [["none"], ["const", 3]]]],
        "kwargs": {"d": ["dict", [["k", ["list", [["tensor", "x"]]]]]]},
    }
    assert bind_inputs(call, {"x": 1}) == ((1, (None, 3)), {"d": {"k": [1]}})
    with pytest.raises(ValueError, match="shell"):
        bind_inputs({"args": [["shell", "x"]], "kwargs": {}}, {})


@pytest.mark.parametrize("function", [bind_inputs, flatten_outputs])
def test_they_refer_to_no_global(function):
    """They are cut into a file of their own."""
    found = inspect.getclosurevars(function)
    assert not found.globals
    assert not found.nonlocals
