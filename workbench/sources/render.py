"""Writing a live module as `factory.py`: by its constructor, or part by part.

Constructor arguments are not recorded anywhere. They are guessed from attributes of the same
name and believed only where the module built so has the same structure, attribute by
attribute; what no constructor gives is put together from its parts. Running both in a fresh
process is what proves either.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.sources.batch import RUN_ERRORS
from workbench.sources.literals import NotLiteralError, importable, literal
from workbench.sources.structure_check import INTERNAL, same_structure

_RNN = (
    *("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"),
    *("bidirectional", "proj_size", "nonlinearity"),
)
_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_state_dict_pre_hooks", "_state_dict_hooks"),
    "_load_state_dict_pre_hooks",
)

_ASSEMBLE = '''
def _assemble(cls, attributes, parameters, buffers, parts):
    """An instance made without its constructor, whose arguments nothing recorded."""
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    for name, value in attributes.items():
        object.__setattr__(module, name, value)
    for name, made in parameters.items():
        shape, dtype = made or (None, None)
        value = None if made is None else torch.nn.Parameter(
            torch.zeros(shape, dtype=dtype), requires_grad=False
        )
        module.register_parameter(name, value)
    for name, (value, persistent) in buffers.items():
        module.register_buffer(name, value, persistent=persistent)
    for name, part in parts.items():
        module.add_module(name, part)
    return module
'''
_CONSTANTS = '''
def _constants():
    """Tensors that belong to the model but not to its state dict."""
    from pathlib import Path

    from safetensors.torch import load_file

    return load_file(str(Path(__file__).with_name("constants.safetensors")))
'''


class NotRenderedError(Exception):
    """Why a module cannot be written as source, in one clause."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A factory's text, the tensors for `constants.safetensors`, and what it rests on."""

    text: str
    constants: dict[str, Any]
    uses_cell: bool


@dataclass(kw_only=True)
class _Renderer:
    root: Any
    cell_names: tuple[str, ...]
    no_cell: str
    uses: dict[str, object] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)
    rendered: set[int] = field(default_factory=set)
    assembles: bool = False

    def expression(self, module: Any, path: str) -> str:
        """Source that makes `module`, which stands at `path` below the root."""
        if id(module) in self.rendered:
            first = self.known[id(module)]
            self.later.append(f"{self._holder(path)}.{_last(path)} = {first}")
            return "None"
        self.rendered.add(id(module))
        self._refuse_hooks(module)
        before = (dict(self.uses), dict(self.constants), list(self.later), set(self.rendered))
        constructed = self._constructor(module, path)
        if constructed is not None:
            return constructed
        self.uses, self.constants, self.later, self.rendered = before
        return self._parts(module, path)

    def _refuse_hooks(self, module: Any) -> None:
        for name in _HOOKS:
            hooks = getattr(module, name, None)
            if hooks:
                raise NotRenderedError(f"{type(module).__name__} has hooks ({name})")

    def _constructor(self, module: Any, path: str) -> str | None:
        """A call of the class, where it gives back the same structure; else None."""
        import torch

        cls = type(module)
        if cls in (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict):
            return self._container(module, path)
        arguments: dict[str, Any] = {}
        texts: dict[str, str] = {}
        names = _parameters_of(cls)
        if names is None:
            return None
        try:
            for name, required in names.items():
                found, value = _argument(module, name)
                if not found:
                    if required:
                        return None
                    continue
                if isinstance(value, torch.nn.Module):
                    texts[name] = self.expression(value, f"{path}.{name}" if path else name)
                    if texts[name] == "None":
                        return None
                else:
                    text, uses = literal(value)
                    self._use(uses)
                    texts[name] = text
                arguments[name] = value
        except NotLiteralError:
            return None
        try:
            made = cls(**arguments)
        except RUN_ERRORS:
            return None
        if same_structure(module, made):
            return None
        # Arguments that the constructor would have chosen itself are left out.
        try:
            for name in [n for n, required in names.items() if not required and n in arguments]:
                fewer = {k: v for k, v in arguments.items() if k != name}
                if not same_structure(module, cls(**fewer)):
                    arguments = fewer
                    texts.pop(name)
        except RUN_ERRORS:
            return None
        return f"{self._class(cls)}({', '.join(f'{k}={texts[k]}' for k in arguments)})"

    def _container(self, module: Any, path: str) -> str | None:
        import torch

        cls = type(module)
        children = list(module._modules.items())
        if any(id(child) in self.rendered or child is None for _, child in children):
            return None
        extra = {k for k in vars(module) if k not in INTERNAL}
        if extra or module._parameters or module._buffers:
            return None
        parts = []
        for name, child in children:
            parts.append((name, self.expression(child, f"{path}.{name}" if path else name)))
        if any(text == "None" for _, text in parts):
            return None
        ordered = [name for name, _ in parts] == [str(i) for i in range(len(parts))]
        if cls is torch.nn.ModuleList and not ordered:
            return None
        self.uses["torch"] = torch
        if ordered and cls is not torch.nn.ModuleDict:
            inner = ", ".join(text for _, text in parts)
            if cls is torch.nn.ModuleList:
                inner = f"[{inner}]"
        else:
            pairs = ", ".join(f"{name!r}: {text}" for name, text in parts)
            from collections import OrderedDict

            inner = f"{{{pairs}}}"
            if cls is torch.nn.Sequential:
                self.uses["OrderedDict"] = OrderedDict
                inner = f"OrderedDict({inner})"
        return f"torch.nn.{cls.__name__}({inner})"

    def _parts(self, module: Any, path: str) -> str:
        """A call of `_assemble`: the class, plain attributes, tensors and children."""
        import torch

        self.uses["torch"] = torch
        self.assembles = True
        attributes = []
        for key, value in vars(module).items():
            if key in INTERNAL:
                continue
            try:
                text, uses = literal(value, self._constant)
                self._use(uses)
                attributes.append(f"{key!r}: {text}")
            except NotLiteralError as error:
                try:
                    text, uses = literal(value, self._reference)
                except NotLiteralError:
                    where = f"{path}.{key}" if path else key
                    raise NotRenderedError(f"the attribute {where} is {error}") from error
                self._use(uses)
                self.later.append(f"object.__setattr__({self._at(path)}, {key!r}, {text})")
        parameters = [
            f"{name!r}: None" if p is None else f"{name!r}: ({list(p.shape)!r}, {p.dtype})"
            for name, p in module._parameters.items()
        ]
        buffers = [
            f"{name!r}: ({self._buffer(module, name, b)}, "
            f"{name not in module._non_persistent_buffers_set})"
            for name, b in module._buffers.items()
        ]
        parts = [
            f"{name!r}: "
            + ("None" if c is None else self.expression(c, f"{path}.{name}" if path else name))
            for name, c in module._modules.items()
        ]
        groups = (attributes, parameters, buffers, parts)
        inner = ", ".join("{" + ", ".join(group) + "}" for group in groups)
        return f"_assemble({self._class(type(module))}, {inner})"

    def _buffer(self, module: Any, name: str, buffer: Any) -> str:
        if buffer is None:
            return "None"
        if name not in module._non_persistent_buffers_set:
            return f"torch.zeros({list(buffer.shape)!r}, dtype={buffer.dtype})"
        text = self._constant(buffer)
        assert text is not None, name
        return text

    def _constant(self, value: Any) -> str | None:
        """Source of a tensor kept beside the factory; None for what is no tensor."""
        import torch

        if not isinstance(value, torch.Tensor) or id(value) in self.known:
            return None
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return None
        key = str(len(self.constants))
        self.constants[key] = value.detach().contiguous().clone()
        return f"constants[{key!r}]"

    def _reference(self, value: Any) -> str | None:
        """Source of a part of the model that another attribute refers to."""
        return self.known.get(id(value)) or self._constant(value)

    def _class(self, cls: type) -> str:
        text, uses = literal(cls)
        self._use(uses)
        return text

    def _use(self, uses: Mapping[str, object]) -> None:
        for name, item in uses.items():
            if self.uses.setdefault(name, item) is not item:
                raise NotRenderedError(f"{name} means two different things")

    def _at(self, path: str) -> str:
        return f"net.get_submodule({path!r})" if path else "net"

    def _holder(self, path: str) -> str:
        return self._at(path.rpartition(".")[0])


def render(module: Any, *, cell_names: tuple[str, ...], cell: str, no_cell: str) -> Rendered:
    """The text of `factory.py` for a module, with `make()`.

    `cell` is the source of the notebook's definitions, `cell_names` what it defines. Raises
    NotRenderedError with the reason where a part of the module cannot be written.
    """
    import torch

    renderer = _Renderer(root=module, cell_names=cell_names, no_cell=no_cell)
    ties = _ties(module)
    for path, part in module.named_modules():
        renderer.known[id(part)] = f"net.get_submodule({path!r})" if path else "net"
    for path, parameter in module.named_parameters():
        renderer.known[id(parameter)] = f"net.get_parameter({path!r})"
    for path, buffer in module.named_buffers():
        if not _is_free(module, path):
            renderer.known[id(buffer)] = f"net.get_buffer({path!r})"
    try:
        expression = renderer.expression(module, "")
    except NotLiteralError as error:
        raise NotRenderedError(f"its class is {error}") from error
    uses_cell = False
    imports = {"import torch"}
    for name, item in renderer.uses.items():
        if inspect.ismodule(item):
            imports.add(f"import {item.__name__}" if item.__name__ == name else "")
            continue
        place = importable(item)
        if place is not None:
            imports.add(f"from {place[0]} import {place[1]}")
        elif name in cell_names:
            uses_cell = True
        else:
            why = no_cell or "it belongs to no module that can be imported"
            raise NotRenderedError(f"the source of {name} cannot be taken along: {why}")
    body = [f"    net = {expression}", *(f"    {line}" for line in renderer.later)]
    if renderer.assembles:
        body += [f"    {line}" for line in ties]
    if renderer.constants:
        body.insert(0, "    constants = _constants()")
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if len(dtypes) == 1 and dtypes != {torch.float32} and not renderer.assembles:
        body.append(f"    net = net.to({next(iter(dtypes))})")
    # What a part of the model does differently in eval mode was never measured in training.
    body.append("    return net.eval()")
    blocks = []
    if uses_cell:
        blocks.append(cell.rstrip("\n"))
    blocks.append("\n".join(sorted(filter(None, imports))))
    if renderer.assembles:
        blocks.append(_ASSEMBLE.strip("\n"))
    if renderer.constants:
        blocks.append(_CONSTANTS.strip("\n"))
    doc = '    """The model without its weights, in eval mode."""'
    blocks.append("\n".join(["def make():", doc, *body]))
    return Rendered(
        text="\n\n\n".join(blocks) + "\n", constants=renderer.constants, uses_cell=uses_cell
    )


def _ties(module: Any) -> list[str]:
    """Assignments that make parameters one again which were one object."""
    first: dict[int, str] = {}
    lines = []
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in first:
            first[id(parameter)] = path
            continue
        holder, _, name = path.rpartition(".")
        owner = f"net.get_submodule({holder!r})" if holder else "net"
        lines.append(f"{owner}.{name} = net.get_parameter({first[id(parameter)]!r})")
    return lines


def _is_free(module: Any, path: str) -> bool:
    """Whether a buffer is left out of the state dict."""
    holder, _, name = path.rpartition(".")
    return name in module.get_submodule(holder)._non_persistent_buffers_set


def _parameters_of(cls: type) -> dict[str, bool] | None:
    """Constructor parameters, True where required; None where it cannot be called by name."""
    import torch

    if issubclass(cls, torch.nn.RNNBase) and cls.__module__.startswith("torch."):
        names = [n for n in _RNN if n != "nonlinearity" or cls is torch.nn.RNN]
        names = [n for n in names if n != "proj_size" or cls is torch.nn.LSTM]
        return {name: name in ("input_size", "hidden_size") for name in names}
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return None
    found = {}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return None
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name not in ("device", "dtype"):
            found[parameter.name] = parameter.default is parameter.empty
    return found


def _argument(module: Any, name: str) -> tuple[bool, Any]:
    """Whether an attribute tells the value of a constructor's parameter, and the value."""
    if name == "bias" and "in_proj_bias" in module._parameters:  # MultiheadAttention
        return True, module.in_proj_bias is not None
    if name in module._modules and module._modules[name] is not None:
        return True, module._modules[name]
    if name in module._parameters:
        # torch's layers take bias=True and keep the parameter, or None, under that name.
        return True, module._parameters[name] is not None
    if name in vars(module) and name not in INTERNAL:
        return True, vars(module)[name]
    return False, None


def _last(path: str) -> str:
    return path.rpartition(".")[2]
