"""The sources that may stand for a live module, in the order in which they are tried."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.json import Json
from workbench.core.model import SourceKind, TensorSpec
from workbench.sources.capture import Capture
from workbench.sources.exporting import NotExportedError, export
from workbench.sources.fresh import prove
from workbench.sources.local_modules import copy_local, imported_roots
from workbench.sources.modules import CELL, PAYLOAD, TENSORS
from workbench.sources.opening import import_file
from workbench.sources.render import NotRenderedError, render
from workbench.sources.running import Results, align, bit_equal, torch_run
from workbench.sources.specs import Array

FACTORY, WEIGHTS, CONSTANTS, PROGRAM = (
    "factory.py",
    "weights.safetensors",
    "constants.safetensors",
    "program.pt2",
)

_PAYLOAD_FACTORY = '''"""Makes the model from a pickled object, which only this study can use."""


def make():
    """The model, in eval mode. Opens a pickle that this machine's notebook wrote."""
    import pickle
    from pathlib import Path

    import torch
    from safetensors.torch import load_file

    private = Path(__file__).with_name("private")
    tensors = load_file(str(private / "tensors.safetensors"))
    made = {}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, key):
            _, name, is_parameter, requires_grad = key
            if (name, is_parameter) not in made:
                tensor = tensors[name]
                if is_parameter:
                    tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
                made[name, is_parameter] = tensor
            return made[name, is_parameter]

    # Aligned as torch's own tensors are, which the last bits of a product can depend on.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    with (private / "payload.pkl").open("rb") as file:
        net = Unpickler(file).load()
    if not isinstance(net, torch.nn.Module):
        net = net()
    return net.eval()
'''


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was kept: its kind, how it was made, and why it cannot leave (or None)."""

    kind: SourceKind
    origin: str
    not_exportable: str | None = None
    dynamic: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Live:
    """A running module and what it gave: the yardstick of every candidate.

    `probes` are inputs, the example first and other batch sizes after it; `expected` are the
    module's own outputs for them.
    """

    module: Any
    call: Mapping[str, Json]
    specs: tuple[TensorSpec, ...]
    axes: Mapping[str, int]
    probes: Sequence[Mapping[str, Array]]
    expected: Sequence[Results]
    dynamic: bool


def choose(folder: Path, capture: Capture, live: Live, target: Path) -> Chosen:
    """Write into `target` the first candidate that gives the same bits in a fresh process.

    Where none does, the pickled object itself is kept, to run but not to leave.
    """
    reasons: list[str] = []
    for title, write in _factories(folder, capture, live):
        _clear(target)
        try:
            origin = write(target)
            write_weights(live.module, target / WEIGHTS)
            problem = check_here(target, live)
        except (NotRenderedError, NotStorableError) as error:
            problem = str(error)
        else:
            problem = problem or prove_folder(target, "factory", live, live.probes)
        if not problem:
            return Chosen(kind="factory", origin=origin, notes=_not_kept(reasons))
        reasons.append(f"{title}: {problem}")
    _clear(target)
    exported = _try_export(target, live, reasons)
    if exported is not None:
        return exported
    _clear(target)
    return _keep_payload(folder, capture, live, target, "; ".join(reasons))


def _factories(
    folder: Path, capture: Capture, live: Live
) -> list[tuple[str, Callable[[Path], str]]]:
    helpers = [str(folder / "helpers")]

    def finish(target: Path, text: str) -> None:
        (target / FACTORY).write_text(text, encoding="utf-8")
        copy_local(sorted(imported_roots(text)), helpers, target)

    def by_name(target: Path) -> str:
        module, _, name = capture.payload.partition(":")
        finish(target, _call_text(f"from {module} import {name}", name))
        return "importable factory"

    def by_cell(target: Path) -> str:
        finish(target, _call_text(_cell(folder), capture.cell_names[-1]))
        return "the cell's source"

    def by_structure(target: Path) -> str:
        rendered = render(
            live.module,
            cell_names=capture.cell_names,
            cell=_cell(folder),
            no_cell=capture.no_cell,
        )
        finish(target, rendered.text)
        if rendered.constants:
            _save_tensors(rendered.constants, target / CONSTANTS)
        return "the cell's source" if rendered.uses_cell else "importable factory"

    factories: list[tuple[str, Callable[[Path], str]]] = []
    if capture.kind == "factory":
        factories.append(("the factory", by_name))
    if capture.kind == "callable" and capture.cell_names:
        factories.append(("the cell's source", by_cell))
    factories.append(("its source", by_structure))
    return factories


def _call_text(preamble: str, name: str) -> str:
    return (
        f"{preamble.rstrip()}\n\n"
        f"_factory = {name}\n\n\n"
        "def make():\n"
        '    """The model without its weights, in eval mode."""\n'
        "    return _factory().eval()\n"
    )


def _cell(folder: Path) -> str:
    path = folder / CELL
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def check_here(target: Path, live: Live) -> str:
    """The same check in this process first, which costs no import of torch."""
    from safetensors.torch import load_file

    try:
        module = import_file("factory", target / FACTORY).make()
        module.load_state_dict(load_file(str(target / WEIGHTS)), strict=True)
        run = torch_run(align(module.eval()), live.call, live.specs)
        # The smallest batch is the cheapest.
        least = min(range(len(live.probes)), key=lambda i: _rows(live.probes[i], live.axes))
        return bit_equal(run(live.probes[least]).arrays, live.expected[least].arrays)
    except Exception as error:  # noqa: BLE001 - the user's code raises what it likes
        # Whatever it raises when it is rebuilt says the same: not this way.
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:300]}"


def prove_folder(
    target: Path, kind: SourceKind, live: Live, probes: Sequence[Mapping[str, Array]]
) -> str:
    import torch

    write_source(target, kind, live.call, live.specs, (), {}, {})
    expected = live.expected[: len(probes)]
    return prove(target, probes, expected, torch.get_num_threads())


def _try_export(target: Path, live: Live, reasons: list[str]) -> Chosen | None:
    """The exported program with a dynamic batch where that works, else with the example's."""
    attempts = [True, False] if live.dynamic else [False]
    static_reason = ""
    for dynamic in attempts:
        probes = live.probes if dynamic else live.probes[:1]
        # torch takes a size of 1 for a constant, so a dynamic export starts from more rows.
        example = max(probes, key=lambda p: _rows(p, live.axes)) if dynamic else probes[0]
        try:
            export(
                live.module,
                live.call,
                live.specs,
                example,
                live.axes if dynamic else {},
                target / PROGRAM,
            )
            problem = prove_folder(target, "exported", live, probes)
        except NotExportedError as error:
            problem = str(error)
        if not problem:
            notes = _not_kept(reasons)
            if static_reason:
                notes = (f"its batch is fixed: {static_reason}", *notes)
            return Chosen(kind="exported", origin="exported program", dynamic=dynamic, notes=notes)
        static_reason = problem
        if dynamic == attempts[-1]:
            reasons.append(f"exported program: {problem}")
    return None


def _not_kept(reasons: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"not kept: {reason}" for reason in reasons)


def _rows(probe: Mapping[str, Array], axes: Mapping[str, int]) -> int:
    return next((probe[name].shape[axis] for name, axis in axes.items()), 0)


def _keep_payload(folder: Path, capture: Capture, live: Live, target: Path, reason: str) -> Chosen:
    private = target / "private"
    private.mkdir()
    if capture.kind == "factory":
        module, _, name = capture.payload.partition(":")
        (target / FACTORY).write_text(
            _call_text(f"from {module} import {name}", name), encoding="utf-8"
        )
    else:
        (target / FACTORY).write_text(_PAYLOAD_FACTORY, encoding="utf-8")
        shutil.copyfile(folder / PAYLOAD, private / PAYLOAD)
        shutil.copyfile(folder / TENSORS, private / TENSORS)
    if (folder / "helpers").is_dir():
        shutil.copytree(folder / "helpers", target, dirs_exist_ok=True)
    try:
        write_weights(live.module, target / WEIGHTS)
    except NotStorableError as error:
        reason = f"{reason}; {error}"
        _save_tensors({}, target / WEIGHTS)
    return Chosen(kind="factory", origin="the pickled object", not_exportable=reason)


class NotStorableError(Exception):
    """Why a state dict cannot be kept as safetensors, in one clause."""


def write_weights(module: Any, path: Path) -> None:
    import torch

    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise NotStorableError(f"its state holds a {type(value).__name__} ({name})")
    _save_tensors(state, path)


def _save_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        if tensor.layout.__repr__() != "torch.strided":
            raise NotStorableError(f"its state holds a sparse tensor ({name})")
        host = tensor.detach().to("cpu").contiguous()
        pointer = host.untyped_storage().data_ptr()
        # safetensors refuses tied tensors; each name gets its own copy.
        if pointer in seen or host.untyped_storage().nbytes() != host.nbytes:
            host = host.clone()
        seen.add(host.untyped_storage().data_ptr())
        plain[name] = host
    try:
        save_file(plain, str(path))
    except (KeyError, ValueError, RuntimeError) as error:
        raise NotStorableError(f"its state cannot be kept as safetensors: {error}") from error
    path.chmod(0o644)


def write_source(
    folder: Path,
    kind: SourceKind,
    call: Mapping[str, Json],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    batch_axes: Mapping[str, int],
    output_batch_axes: Mapping[str, int],
) -> None:
    """Write `source.json`, which the engines' portable functions read."""
    content: dict[str, object] = {
        "kind": kind,
        "call": dict(call),
        "inputs": [
            {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)} for spec in inputs
        ],
        "outputs": list(outputs),
        "batch_axes": dict(batch_axes),
        "output_batch_axes": dict(output_batch_axes),
    }
    (folder / "source.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def _clear(target: Path) -> None:
    for entry in target.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
