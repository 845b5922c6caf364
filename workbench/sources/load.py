"""`load`: take in whatever the user has, without running it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError, LoadError, UntrustedFileError
from workbench.core.model import Model, Task
from workbench.sources.capture import Capture, new_folder
from workbench.sources.files import (
    load_exported,
    load_huggingface,
    load_onnx,
    load_sample,
    load_torchscript,
)
from workbench.sources.finish import Draft, finish
from workbench.sources.literals import importable
from workbench.sources.local_modules import copy_local, current_path, find_local
from workbench.sources.modules import (
    PAYLOAD,
    capture_object,
    forward_signature,
    module_notes,
    module_size,
    unwrap,
)
from workbench.sources.sniff import READABLE, sniff
from workbench.sources.state import copy_state

_FACTORY = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)\Z")


def load(
    x: Any,
    inputs: object = None,
    *,
    name: str | None = None,
    trusted: bool = False,
    evaluation: object = None,
    labels: object = None,
    calibration: object = None,
    task: Task | None = None,
    preprocess: Callable[..., object] | None = None,
    postprocess: Callable[..., object] | None = None,
    raw: object = None,
    state: str | Path | None = None,
    batch_axes: Mapping[str, int] | None = None,
) -> Model:
    """Describe a model so that any process can have it. Runs nothing of it.

    `x` is an `nn.Module` (its class may live in a notebook cell), "package.module:factory",
    a callable that makes a module, the path of an ONNX file, a .pt2 or TorchScript file (both
    run code when opened, so only with `trusted=True`) or a Hugging Face folder, or
    "sample:NAME". `state` is a state dict (.safetensors, or .pt read with weights_only) for a
    module or factory. Files are told by their content.

    `inputs` is an example (a tensor or array, a tuple of arguments, a dict of arguments by
    name) or specs: "x: f32[batch, 3, 224, 224]", "ids: i64[batch, 128] in 0..30522".
    `evaluation` and `calibration` are rows in the same form or the path of an .npz, `labels`
    belong to the evaluation rows. `batch_axes` maps inputs to the axis of the batch where it
    is not the shared leading one. `preprocess` makes the inputs, a dict of arrays, from raw
    data; `postprocess` makes the answer from the dict of outputs. `raw` is an example of that
    data (text, numbers, or an array), by which both are checked and timed.

    Raises LoadError and its kinds, and InputError.
    """
    folder = new_folder()
    try:
        draft = _draft(x, inputs, folder, name=name, trusted=trusted, state=state)
        return finish(
            draft,
            folder,
            evaluation=evaluation,
            labels=labels,
            calibration=calibration,
            task=task,
            preprocess=preprocess,
            postprocess=postprocess,
            raw=raw,
            batch_axes=batch_axes,
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _draft(
    x: Any,
    inputs: object,
    folder: Path,
    *,
    name: str | None,
    trusted: bool,
    state: str | Path | None,
) -> Draft:
    if isinstance(x, (str, Path)):
        return _draft_text(str(x), inputs, folder, name=name, trusted=trusted, state=state)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.jit.ScriptModule):
        x.save(str(folder / "module.pt"))
        return load_torchscript(None, inputs, folder, name=name or "scripted", trusted=True)
    if torch is not None and type(x).__name__ == "ExportedProgram":
        torch.export.save(x, str(folder / "program.pt2"))
        return load_exported(None, inputs, folder, name=name or "exported", trusted=True)
    if torch is not None and isinstance(x, torch.nn.Module):
        return _draft_module(x, inputs, folder, name=name, state=state)
    if callable(x):
        return _draft_callable(x, inputs, folder, name=name, state=state)
    raise LoadError(
        f"a {type(x).__module__}.{type(x).__qualname__} is no model; give an nn.Module, "
        f"'package.module:factory', 'sample:NAME', or the path of {READABLE}."
    )


def _draft_text(
    text: str,
    inputs: object,
    folder: Path,
    *,
    name: str | None,
    trusted: bool,
    state: str | Path | None,
) -> Draft:
    if text.startswith("sample:"):
        _no_state(state, text)
        return load_sample(text.removeprefix("sample:"), inputs, folder, name=name)
    path = Path(text).expanduser()
    factory = _FACTORY.match(text)
    if factory is not None and not path.exists():
        return _draft_factory(factory, inputs, folder, name=name, state=state)
    form = sniff(path)
    if form in ("safetensors", "torch-pickle", "pickle"):
        if form != "safetensors":
            # Tells what is in the pickle where it is more than a state dict.
            copy_state(path, folder)
        raise LoadError(
            f"{path.name!r} is a state dict, which has weights but no model; give what makes the "
            f"module: load('package.module:factory', inputs=..., state={text!r})."
        )
    _no_state(state, text)
    if form == "onnx":
        return load_onnx(path, inputs, folder, name=name, trusted=trusted)
    if form == "huggingface":
        return load_huggingface(path, inputs, folder, name=name, trusted=trusted)
    if form == "aotinductor":
        raise UntrustedFileError(
            f"{path.name!r} is a package of compiled libraries (AOTInductor), which would run "
            "native code. Give the exported program or the module that it was compiled from."
        )
    if not trusted:
        what = "an exported program" if form == "exported" else "TorchScript"
        raise UntrustedFileError(
            f"{path.name!r} is {what}, and opening it can run code from it (weights_only does "
            "not cover this). workbench.sources.describe shows what is in it; load it with "
            "trusted=True if you trust its author."
        )
    if form == "exported":
        return load_exported(path, inputs, folder, name=name, trusted=trusted)
    return load_torchscript(path, inputs, folder, name=name, trusted=trusted)


def _draft_module(
    module: Any, inputs: object, folder: Path, *, name: str | None, state: str | Path | None
) -> Draft:
    module, wrappers = unwrap(module)
    signature = forward_signature(module)
    if inputs is None:
        raise InputError(
            f"{type(module).__name__} needs inputs; its forward is {signature}. Give an example, "
            "inputs=tensor, a tuple or a dict by name, or specs such as 'x: f32[batch, 4]'."
        )
    num_parameters, num_bytes = module_size(module)
    captured = capture_object(module, folder)
    floats = {str(t.dtype) for t in [*module.parameters(), *module.buffers()]}
    return Draft(
        capture=Capture(
            kind="module",
            name=name or type(module).__name__,
            payload=PAYLOAD,
            inputs=(),
            call={},
            path=tuple(current_path()),
            helpers=captured.helpers,
            cell_names=captured.cell_names,
            no_cell=captured.no_cell,
            state=copy_state(state, folder),
            trusted=True,
            notes=(*wrappers, *module_notes(module)),
        ),
        inputs=inputs,
        signature=signature,
        num_parameters=num_parameters,
        num_bytes=num_bytes,
        narrows_floats="torch.float32" in floats and "torch.float64" not in floats,
    )


def _draft_callable(
    factory: Callable[..., object],
    inputs: object,
    folder: Path,
    *,
    name: str | None,
    state: str | Path | None,
) -> Draft:
    place = importable(factory)
    named = _FACTORY.match(":".join(place)) if place is not None else None
    if named is not None:
        return _draft_factory(named, inputs, folder, name=name, state=state)
    label = getattr(factory, "__name__", type(factory).__name__)
    _need_inputs(inputs, label)
    captured = capture_object(factory, folder)
    return Draft(
        capture=Capture(
            kind="callable",
            name=name or label,
            payload=PAYLOAD,
            inputs=(),
            call={},
            path=tuple(current_path()),
            helpers=captured.helpers,
            cell_names=captured.cell_names,
            no_cell=captured.no_cell,
            state=copy_state(state, folder),
            trusted=True,
        ),
        inputs=inputs,
    )


def _draft_factory(
    found: re.Match[str],
    inputs: object,
    folder: Path,
    *,
    name: str | None,
    state: str | Path | None,
) -> Draft:
    import importlib.util

    text = found[0]
    _need_inputs(inputs, text)
    root = found["module"].partition(".")[0]
    # The working directory is where a command line's modules are; Python's own path of a
    # console script does not have it.
    path = [*current_path(), str(Path.cwd())]
    if find_local(root, path) is None and importlib.util.find_spec(root) is None:
        raise LoadError(
            f"there is no module {root!r} for the factory {text!r}; run from the folder that "
            "holds it, or install it."
        )
    helpers = copy_local([root], path, folder / "helpers")
    return Draft(
        capture=Capture(
            kind="factory",
            name=name or found["name"],
            payload=text,
            inputs=(),
            call={},
            path=tuple(path),
            helpers=helpers,
            state=copy_state(state, folder),
            trusted=True,
        ),
        inputs=inputs,
    )


def _need_inputs(inputs: object, label: str) -> None:
    if inputs is None:
        raise InputError(
            f"{label} needs inputs, since nothing tells what it takes: give an example, or specs "
            "such as inputs='x: f32[batch, 3, 224, 224]'."
        )


def _no_state(state: object, text: str) -> None:
    if state is not None:
        raise LoadError(f"state= goes with a module or a factory; {text!r} has its own weights.")
