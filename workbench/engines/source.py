"""Reading a source folder: portable functions that every engine's pipeline uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@portable
def read_source(folder: str) -> dict[str, Any]:
    """`source.json`: the kind of source, the call template, inputs, outputs, batch axes."""
    import json
    from pathlib import Path

    return dict(json.loads((Path(folder) / "source.json").read_text(encoding="utf-8")))


@portable
def copy_source(source_dir: str, out_dir: str, leave_out: list[str]) -> None:
    """Copy what serving needs of a source folder. Example and calibration rows stay behind.

    `leave_out` names further files, such as weights that are saved in another format.
    """
    import shutil
    from pathlib import Path

    behind = {"example.npz", "calibration.npz", "evaluation.npz", "__pycache__", *leave_out}
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    for item in sorted(Path(source_dir).iterdir()):
        if item.name in behind:
            continue
        target = Path(out_dir) / item.name
        if item.is_dir():
            shutil.copytree(
                item, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copyfile(item, target)


@portable
def import_file(folder: str, name: str) -> ModuleType:
    """Import `name`.py from a folder, with the modules that lie beside it importable."""
    import importlib.util
    import sys
    from pathlib import Path

    where = str(Path(folder).resolve())
    unique = f"{name}_of_{Path(where).name}"
    spec = importlib.util.spec_from_file_location(unique, Path(where) / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{name}.py is not in {where}")
    module = importlib.util.module_from_spec(spec)
    # Registered under its name because dataclasses look their module up there.
    sys.modules[unique] = module
    sys.path.insert(0, where)
    try:
        spec.loader.exec_module(module)
    finally:
        # Last from now on: imports made later still work and shadow nothing.
        sys.path.remove(where)
        sys.path.append(where)
    return module


@portable
def load_processing(
    folder: str,
) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """`preprocess` and `postprocess` of the model, None where it brings none."""
    from pathlib import Path

    if not (Path(folder) / "processing.py").exists():
        return None, None
    module = import_file(folder, "processing")
    return getattr(module, "preprocess", None), getattr(module, "postprocess", None)


@portable
def checked_arrays(inputs: dict[str, Any], specs: list[dict[str, Any]]) -> dict[str, Any]:
    """The inputs as arrays of the dtypes that the model takes, in its order.

    Floats become other floats and integers other integers where no value is lost; anything
    else raises TypeError that names the input, what is wanted and what came. bfloat16 comes
    as float32, which numpy has.
    """
    import numpy

    missing = [spec["name"] for spec in specs if spec["name"] not in inputs]
    if missing:
        raise KeyError(f"no input {', '.join(missing)}: got {', '.join(inputs) or 'nothing'}")
    arrays = {}
    for spec in specs:
        name = spec["name"]
        array = numpy.asarray(inputs[name])
        wanted = numpy.dtype("float32" if spec["dtype"] == "bfloat16" else spec["dtype"])
        if array.dtype != wanted:
            both = array.dtype.kind + wanted.kind
            if both == "ff":
                cast = array.astype(wanted)
            elif set(both) <= set("iu"):
                cast = array.astype(wanted)
                if not numpy.array_equal(cast, array):
                    raise TypeError(f"input {name}: values of {array.dtype} do not fit {wanted}")
            else:
                raise TypeError(f"input {name}: wanted {wanted}, got {array.dtype}")
            array = cast
        if array.ndim != len(spec["shape"]):
            raise TypeError(
                f"input {name}: wanted {len(spec['shape'])} dimensions {spec['shape']}, "
                f"got {list(array.shape)}"
            )
        arrays[name] = array
    return arrays
