"""Source out of cells, and modules written as source."""

import ast
import sys

import pytest
import torch

from workbench.sources.cell import NoSourceError, collect_source
from workbench.sources.literals import NotLiteralError, literal
from workbench.sources.render import NotRenderedError, render

CELLS = """
from __future__ import annotations
import math
import torch.nn.functional as F
from torch import nn
from dataclasses import dataclass

SCALE = 2.5
LIMITS = (float("inf"), {"a": [1, None]})
twice = lambda x: x * 2

def activate(x):
    return twice(F.gelu(x)) * SCALE * math.sqrt(4)
"""
CLASSES = """
@dataclass
class Config:
    width: int = 3
    act: str = "a'b\\nc"

class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.width, config.width)

    def forward(self, x):
        return activate(self.layer(x)).clamp(max=LIMITS[0])
"""


def test_a_class_brings_what_it_uses_from_other_cells(notebook):
    notebook.run(CELLS).run(CLASSES)
    source = collect_source([notebook["Block"]])
    namespace = {"__name__": __name__}
    exec(compile(source.text, "elsewhere", "exec"), namespace)
    config = namespace["Config"](width=4)
    x = torch.randn(2, 4)
    theirs, ours = namespace["Block"](config), notebook["Block"](config)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs(x), ours(x))
    assert set(source.names) >= {"Block", "Config", "activate", "twice", "SCALE", "LIMITS"}
    assert "torch.nn" in source.modules


def test_a_global_of_the_same_name_as_a_local_stays_out(notebook):
    """Notebooks are full of a global `x`; a method's own `x` is another one."""
    notebook.run("import torch\nx = torch.ones(3)\nk = object()\n")
    notebook.run(
        "class A:\n    k = 3\n    j = k\n    def f(self, x):\n        return [x for k in x]\n"
    )
    source = collect_source([notebook["A"]])
    assert source.names == ("A",)


def test_the_cell_that_made_a_redefined_class_is_the_one_that_counts(notebook):
    notebook.run("class A:\n    def one(self):\n        return 1\n")
    first = notebook["A"]
    notebook.run("class A:\n    def one(self):\n        return 2\n")
    assert "return 1" in collect_source([first]).text
    with pytest.raises(NoSourceError, match="two different things"):
        collect_source([first, notebook["A"]])


def test_a_method_replaced_later_has_no_source(notebook):
    notebook.run("class A:\n    def one(self):\n        return 1\n")
    notebook.run("def other(self):\n    return 2\nA.one = other\n")
    with pytest.raises(NoSourceError):
        collect_source([notebook["A"]])


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (
            "def outer():\n    class A:\n        def f(self): pass\n    return A\nA = outer()",
            "inside",
        ),
        ("import torch\nT = torch.ones(1)\nclass A:\n    def f(self): return T", "global T"),
        ("k = 1\nA = (lambda y: lambda: y)(3)", "inside a function|no name"),
    ],
)
def test_what_has_no_source_says_why(notebook, cell, why):
    with pytest.raises(NoSourceError, match=why):
        collect_source([notebook.run(cell)["A"]])


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -3, 1.5, 1e-8, 2 + 3j, "it's \"\n", b"\x00", (), (1,), [1, [2]], {1, 2}),
        *({"a": (1,)}, frozenset({3}), range(1, 9, 2), torch.float16, torch.Size([1, 2])),
        *(torch.device("cpu"), torch.nn.functional.relu, torch.nn.Linear, int, torch.relu),
    ],
)
def test_a_literal_reads_back_as_itself(value):
    text, uses = literal(value)
    assert eval(text, dict(uses)) == value


def test_infinities_and_nan_are_literals():
    assert eval(literal(float("-inf"))[0]) == float("-inf")
    assert eval(literal(float("nan"))[0]) != eval(literal(float("nan"))[0])


def test_text_can_never_become_code():
    """Strings from models enter code only as literals."""
    text, _ = literal({"'); import os; ('": '"""\nraise SystemExit'})
    assert isinstance(ast.parse(text, mode="eval").body, ast.Dict)


def test_what_no_source_can_write_is_named():
    with pytest.raises(NotLiteralError, match=r"builtins\.object"):
        literal([object()])


def made(module, tmp_path, cell_names=(), cell=""):
    """The module that the rendered factory makes, with its weights."""
    from safetensors.torch import save_file

    rendered = render(module, cell_names=cell_names, cell=cell, no_cell="")
    path = tmp_path / "factory.py"
    path.write_text(rendered.text)
    if rendered.constants:
        save_file(rendered.constants, tmp_path / "constants.safetensors")
    namespace = {"__name__": "factory", "__file__": str(path)}
    exec(compile(rendered.text, str(path), "exec"), namespace)
    copy = namespace["make"]()
    copy.load_state_dict(module.state_dict())
    return copy, rendered.text


LAYERS = [
    torch.nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular", bias=False),
    torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.ReLU()),
    torch.nn.LSTM(4, 5, batch_first=True, bidirectional=True),
    torch.nn.GRU(4, 5, num_layers=2),
    torch.nn.MultiheadAttention(8, 2, bias=False),
    torch.nn.TransformerEncoderLayer(8, 2, 16),
    torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Embedding(4, 2)}),
    torch.nn.Linear(4, 2).half(),
    torch.nn.Linear(4, 2).double(),
]


@pytest.mark.parametrize("module", LAYERS, ids=lambda m: type(m).__name__)
def test_torchs_own_layers_are_written_and_made_again(module, tmp_path):
    copy, _ = made(module, tmp_path)
    ours, theirs = module.state_dict(), copy.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in ours)
    assert repr(copy.eval()) == repr(module.eval())


def test_a_constructor_is_called_as_its_user_would(tmp_path):
    _, text = made(torch.nn.Linear(4, 2, bias=False), tmp_path)
    assert "torch.nn.Linear(in_features=4, out_features=2, bias=False)" in text


PARTS = """
import torch
class Odd(torch.nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.x = torch.nn.Linear(a + 1, b)
        self.y = torch.nn.Linear(a + 1, b)
        self.y.weight = self.x.weight
        self.again = self.x
        self.refs = [self.y]
        self.register_buffer("mask", torch.randn(3), persistent=False)
        self.table = torch.ones(2)
    def forward(self, x):
        return self.refs[0](x) + self.again(x)
"""


def test_what_no_constructor_gives_is_put_together_from_its_parts(notebook, tmp_path):
    """Ties, shared modules, references, and tensors outside the state survive."""
    module = notebook.run(PARTS)["Odd"](1, 2)
    source = collect_source([notebook["Odd"]])
    copy, _ = made(module, tmp_path, source.names, source.text)
    assert copy.x.weight is copy.y.weight
    assert copy.again is copy.x
    assert copy.refs[0] is copy.y
    assert torch.equal(copy.mask, module.mask)
    assert torch.equal(copy.table, module.table)
    x = torch.randn(3, 2)
    assert torch.equal(copy(x), module(x))


def test_hooks_cannot_be_written():
    module = torch.nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(NotRenderedError, match="hooks"):
        render(module, cell_names=(), cell="", no_cell="")


def test_a_class_without_source_is_named():
    class Hidden(torch.nn.Module):
        pass

    assert "Hidden" not in vars(sys.modules[__name__])
    with pytest.raises(NotRenderedError, match="Hidden"):
        render(Hidden(), cell_names=(), cell="", no_cell="")
