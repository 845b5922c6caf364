"""Run a source folder in a fresh process: the proof that it needs nothing of its maker.

Run as a script, by path, with the folder, a work folder, the path of `core/structure.py` and
a number of threads. It imports no `workbench`. Reads `probe_N.npz` from the work folder,
writes `result_N.npz` and `report.json`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def main(argv: list[str]) -> int:
    """Exit status 0 where everything ran; the exception's otherwise."""
    folder, work, structure_path = (Path(argument) for argument in argv[:3])
    sys.path.insert(0, str(folder))
    report: dict[str, Any] = {"processing": None}
    if (folder / "processing.py").is_file():
        processing = _import("processing", folder / "processing.py")
        report["processing"] = [
            name for name in ("preprocess", "postprocess") if callable(getattr(processing, name, 0))
        ]
        structure = _import("workbench_structure", structure_path)
        _run_processing(processing, folder, work, structure)
    if (work / "probe_0.npz").is_file():
        _run_probes(folder, work, structure_path, int(argv[3]), report)
    (work / "report.json").write_text(json.dumps(report), encoding="utf-8")
    return 0


def _run_processing(processing: Any, folder: Path, work: Path, structure: Any) -> None:
    """Run both functions on the examples there are; what they make is kept."""
    raw: Any = None
    if (folder / "raw.npy").is_file():
        raw = np.load(folder / "raw.npy", allow_pickle=False)
    elif (folder / "raw.json").is_file():
        raw = json.loads((folder / "raw.json").read_text(encoding="utf-8"))
    if raw is not None and hasattr(processing, "preprocess"):
        made = processing.preprocess(raw)
        if not isinstance(made, dict):
            raise TypeError(f"preprocess gave a {type(made).__name__}; wanted a dict of arrays")
        _save(work / "preprocessed.npz", {key: np.asarray(value) for key, value in made.items()})
    if hasattr(processing, "postprocess") and (folder / "outputs.npz").is_file():
        with np.load(folder / "outputs.npz", allow_pickle=False) as archive:
            outputs: dict[str, Any] = {name: archive[name] for name in archive.files}
        described = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        made = processing.postprocess({name: outputs.get(name) for name in described["outputs"]})
        answer = json.dumps(structure.plain_answer(made), ensure_ascii=False)
        (work / "answer.json").write_text(answer, encoding="utf-8")


def _run_probes(
    folder: Path, work: Path, structure_path: Path, num_threads: int, report: dict[str, Any]
) -> None:
    import torch

    torch.set_num_threads(num_threads)
    structure = _import("workbench_structure", structure_path)
    source = json.loads((folder / "source.json").read_text(encoding="utf-8"))
    module = open_source(folder, source["kind"])
    dtypes = {spec["name"]: getattr(torch, spec["dtype"]) for spec in source["inputs"]}
    report["none"] = []
    for number in range(len(list(work.glob("probe_*.npz")))):
        with np.load(work / f"probe_{number}.npz", allow_pickle=False) as archive:
            tensors = {n: torch.from_numpy(archive[n]).clone().to(dtypes[n]) for n in archive.files}
        args, kwargs = structure.bind_inputs(source["call"], tensors)
        torch.manual_seed(0)
        with torch.inference_mode():
            outputs = structure.flatten_outputs(module(*args, **kwargs))
        arrays: dict[str, Any] = {}
        for name, leaf in outputs.items():
            if leaf is None:
                arrays[f"none:{name}"] = np.zeros(())
            else:
                arrays[f"some:{name}"] = _array(leaf)
        _save(work / f"result_{number}.npz", arrays)


def open_source(folder: Path, kind: str) -> Any:
    """The torch module of a source folder whose kind is "factory" or "exported"."""
    import torch

    if kind == "exported":
        return torch.export.load(str(folder / "program.pt2")).module()
    from safetensors.torch import load_file

    module = _import("factory", folder / "factory.py").make()
    module.load_state_dict(load_file(str(folder / "weights.safetensors")), strict=True)
    # Aligned as torch's own tensors are; a factory may have opened a file's.
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()
    return module.eval()


def _array(leaf: Any) -> Any:
    if not hasattr(leaf, "detach"):
        return np.asarray(leaf)
    host = leaf.detach().to("cpu")
    if str(host.dtype).startswith(("torch.bfloat16", "torch.float8")):
        host = host.float()
    return host.resolve_conj().resolve_neg().numpy()


def _save(path: Path, arrays: dict[str, Any]) -> None:
    """An .npz under any names: `numpy.savez` takes them as keywords and reserves some."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _import(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
