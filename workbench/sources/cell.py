"""The source of what a notebook defined: one self-contained module out of its cells.

`inspect.getsource` of a class fails in a cell. The functions of a class know the file name
under which their cell was compiled, and `linecache` still has its text; so classes are found
through their methods, and everything else through the names that their source uses.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.sources.literals import NotLiteralError, importable, literal


class NoSourceError(Exception):
    """Why a definition's source cannot be had, in one clause."""


@dataclass(kw_only=True)
class CellSource:
    """Source text that defines some names, and the modules that it imports."""

    text: str
    names: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(kw_only=True)
class _Collector:
    blocks: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    objects: dict[str, object] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    files: dict[str, None] = field(default_factory=dict)
    namespaces: list[dict[str, object]] = field(default_factory=list)
    needs_future: bool = False


def collect_source(objects: list[object]) -> CellSource:
    """One module's text that defines these classes and functions and all that they use.

    Raises NoSourceError with the reason: no text, a definition inside a function, a name
    that means two things, a method replaced later, a global that no source can write.
    """
    found = _Collector()
    for item in objects:
        _add_definition(item, found)
    lines = sorted(set(found.imports.values()))
    future = ["from __future__ import annotations", ""] if found.needs_future else []
    text = "\n".join([*future, *lines, "", "", "\n\n\n".join(found.blocks.values()), ""])
    return CellSource(text=text, names=tuple(found.blocks), modules=tuple(sorted(found.modules)))


def is_notebook_object(item: object) -> bool:
    """Whether a class or function cannot be imported by its name in another process."""
    module = getattr(item, "__module__", None)
    if module == "__main__":
        return True
    return importable(item) is None


def _add_definition(item: object, found: _Collector) -> None:
    name = getattr(item, "__qualname__", None)
    if not isinstance(name, str):
        raise NoSourceError(f"{item!r} is no class or function")
    if isinstance(item, types.FunctionType) and item.__name__ == "<lambda>":
        raise NoSourceError("a lambda has no name of its own")
    if "<locals>" in name:
        raise NoSourceError(f"{name} is defined inside a function")
    if "." in name:
        raise NoSourceError(f"{name} is defined inside a class")
    _add(name, item, found)


def _add(name: str, item: object, found: _Collector) -> None:
    """Make `name` stand for `item` in the module, with everything that it uses."""
    if name in found.objects:
        if found.objects[name] is not item and not _equal_constants(found.objects[name], item):
            raise NoSourceError(f"{name} means two different things")
        return
    found.objects[name] = item
    if isinstance(item, types.ModuleType):
        _import(name, item, found)
        return
    path = importable(item)
    if path is not None:
        module, attribute = path
        alias = "" if attribute == name else f" as {name}"
        found.imports[name] = f"from {module} import {attribute}{alias}"
        found.modules.add(module)
        return
    if isinstance(item, type):
        _add_class(name, item, found)
    elif isinstance(item, types.FunctionType):
        _add_function(name, item, found)
    else:
        _add_constant(name, item, found)


def _import(name: str, module: types.ModuleType, found: _Collector) -> None:
    path = module.__name__
    if sys.modules.get(path) is not module or path == "__main__":
        raise NoSourceError(f"the module {name} cannot be imported by its name")
    found.modules.add(path)
    if name == path:
        found.imports[name] = f"import {path}"
    elif path.startswith(name + "."):
        found.imports[path] = f"import {path}"
    else:
        found.imports[name] = f"import {path} as {name}"


def _add_class(name: str, cls: type, found: _Collector) -> None:
    # Dataclasses and their like write methods that belong to no file.
    functions = [f for f in _own_functions(cls) if f.__code__.co_filename != "<string>"]
    if not functions:
        _add_bare_class(name, cls, found)
        return
    code = functions[0].__code__
    tree, lines = _parsed(code.co_filename, name)
    node = _enclosing_class(tree, name, code.co_firstlineno)
    if node is None:
        raise NoSourceError(f"the source of the class {name} is not to be had")
    for function in functions:
        inside = function.__code__.co_filename == code.co_filename and _first_line(
            node
        ) <= function.__code__.co_firstlineno <= (node.end_lineno or 0)
        if not inside:
            raise NoSourceError(f"{name}.{function.__name__} was replaced after the class was made")
    found.files[code.co_filename] = None
    _add_block(name, node, lines, functions[0].__globals__, _is_future(code), found)


def _add_bare_class(name: str, cls: type, found: _Collector) -> None:
    """A class without methods: looked for by name and members, in every cell there was."""
    members = {key for key in vars(cls) if not key.startswith("__")}
    members |= set(vars(cls).get("__annotations__", {}))
    matches: dict[str, tuple[ast.ClassDef, list[str]]] = {}
    cells = [file for file in linecache.cache if "ipython" in file or "ipykernel" in file]
    for file in dict.fromkeys([*found.files, *cells]):
        try:
            tree, lines = _parsed(file, name)
        except NoSourceError:
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                written = _members(node)
                if written <= members:
                    text = "".join(lines[_first_line(node) - 1 : node.end_lineno])
                    matches[text] = (node, lines)
    if len(matches) != 1:
        why = "is not to be had" if not matches else "could be any of several cells'"
        raise NoSourceError(f"the source of the class {name}, which has no methods, {why}")
    node, lines = next(iter(matches.values()))
    module = sys.modules.get(cls.__module__)
    spaces = [*found.namespaces, *([vars(module)] if module else [])]
    namespace = next((space for space in spaces if space.get(name) is cls), {})
    _add_block(name, node, lines, namespace, found.needs_future, found)


def _is_future(code: types.CodeType) -> bool:
    """Whether code was compiled with `from __future__ import annotations`."""
    return bool(code.co_flags & __future__.annotations.compiler_flag)


def _members(node: ast.ClassDef) -> set[str]:
    names: set[str] = set()
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.add(item.target.id)
        elif isinstance(item, ast.Assign):
            names |= {t.id for t in item.targets if isinstance(t, ast.Name)}
    return names


def _add_function(name: str, function: types.FunctionType, found: _Collector) -> None:
    function = inspect.unwrap(function)
    if function.__closure__:
        raise NoSourceError(f"{name} is a closure over {', '.join(function.__code__.co_freevars)}")
    code = function.__code__
    tree, lines = _parsed(code.co_filename, name)
    for node in tree.body:
        first, last = _first_line(node), node.end_lineno or 0
        if not first <= code.co_firstlineno <= last:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            found.files[code.co_filename] = None
            _add_block(name, node, lines, function.__globals__, _is_future(code), found)
            return
        if function.__name__ != "<lambda>" or not isinstance(node, ast.Assign):
            continue
        if [getattr(target, "id", None) for target in node.targets] == [name]:
            _add_block(name, node, lines, function.__globals__, _is_future(code), found)
            return
    raise NoSourceError(f"the source of the function {name} is not to be had")


def _add_constant(name: str, value: object, found: _Collector) -> None:
    try:
        text, uses = literal(value)
    except NotLiteralError as error:
        raise NoSourceError(f"the global {name} is {error}") from error
    for used_name, used in uses.items():
        _add(used_name, used, found)
    found.blocks[name] = f"{name} = {text}"


def _add_block(
    name: str,
    node: ast.stmt,
    lines: list[str],
    namespace: dict[str, object],
    future: bool,
    found: _Collector,
) -> None:
    if name in found.pending:
        return
    found.pending.add(name)
    found.namespaces.append(namespace)
    # In a notebook the import counts for every later cell, so code objects are asked.
    found.needs_future = found.needs_future or future
    for used in sorted(_used_names(node, future=future) - {name}):
        if used in namespace:
            value = namespace[used]
            if isinstance(value, types.ModuleType):
                for path in _submodules_used(node, used, value):
                    found.imports[path] = f"import {path}"
            _add(used, value, found)
        elif not hasattr(builtins, used):
            # A local of the block, or a name it never reaches; running it will tell.
            continue
    text = "".join(lines[_first_line(node) - 1 : node.end_lineno]).rstrip("\n")
    found.blocks[name] = text


def _own_functions(cls: type) -> Iterator[types.FunctionType]:
    for value in vars(cls).values():
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if inspect.isfunction(value):
            unwrapped = inspect.unwrap(value)
            # Wrappers such as torch.no_grad() are functions of another file.
            if isinstance(unwrapped, types.FunctionType):
                yield unwrapped


def _parsed(filename: str, name: str) -> tuple[ast.Module, list[str]]:
    lines = linecache.getlines(filename)
    if not lines:
        raise NoSourceError(f"the source of {name} is not to be had")
    try:
        return ast.parse("".join(lines)), lines
    except SyntaxError as error:
        # A cell with magics: what Python compiled is not what was typed.
        raise NoSourceError(f"the cell that defines {name} is no plain Python") from error


def _enclosing_class(tree: ast.Module, name: str, line: int) -> ast.ClassDef | None:
    for node in tree.body:
        inside = _first_line(node) <= line <= (node.end_lineno or 0)
        if inside and isinstance(node, ast.ClassDef) and node.name == name:
            return node
    return None


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _used_names(node: ast.stmt, *, future: bool) -> set[str]:
    """The globals that a definition reads, by Python's own scoping.

    A cell's global `x` is none of the business of a method that has an `x` of its own.
    """
    flags = __future__.annotations.compiler_flag if future else 0
    code = compile(
        ast.Module(body=[node], type_ignores=[]), "<cell>", "exec", flags, dont_inherit=True
    )
    names: set[str] = set()
    pending = [code]
    while pending:
        current = pending.pop()
        pending.extend(c for c in current.co_consts if isinstance(c, types.CodeType))
        loaded, stored = set(), set()
        for instruction in dis.get_instructions(current):
            if instruction.opname in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                loaded.add(instruction.argval)
            elif instruction.opname == "LOAD_GLOBAL":
                names.add(instruction.argval)
            elif instruction.opname == "STORE_NAME":
                stored.add(instruction.argval)
        names |= loaded - stored
    # Every module has its own of these.
    return {name for name in names if not (name.startswith("__") and name.endswith("__"))}


def _submodules_used(node: ast.stmt, name: str, module: types.ModuleType) -> list[str]:
    """Submodules reached as attributes ("torch.nn.functional"), which need an import."""
    paths = set()
    for item in ast.walk(node):
        chain: list[str] = []
        current: ast.AST = item
        while isinstance(current, ast.Attribute):
            chain.insert(0, current.attr)
            current = current.value
        if not (isinstance(current, ast.Name) and current.id == name):
            continue
        value: object = module
        for attribute in chain:
            value = getattr(value, attribute, None)
            if not isinstance(value, types.ModuleType):
                break
            if value.__name__.startswith(module.__name__ + ".") and module.__name__ == name:
                paths.add(value.__name__)
    return sorted(paths)


def _equal_constants(a: object, b: object) -> bool:
    simple = (bool, int, float, str, bytes, type(None))
    return isinstance(a, simple) and type(a) is type(b) and a == b
