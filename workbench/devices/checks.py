"""What `workbench doctor` says: one sentence a check, and what to do where it fails."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from workbench.core.device import Device, Host
from workbench.core.units import format_bytes
from workbench.devices.limits import cpu_quota, free_memory_bytes, memory_limit_bytes
from workbench.devices.nvidia import EXCLUSIVE, PROHIBITED
from workbench.devices.packages import ONNXRUNTIME
from workbench.devices.rapl import find_domains

_OLDEST_PYTHON = (3, 11)
_ENOUGH_MEMORY_BYTES = 4_000_000_000
_ENOUGH_SHARED_BYTES = 256_000_000


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding. `ok` is None where a thing is absent that nothing strictly needs.

    `text` is one sentence; `remedy` says what to do, "" where there is nothing to do.
    """

    name: str
    ok: bool | None
    text: str
    remedy: str = ""


def checks(host: Host, root: Path = Path("/")) -> tuple[Check, ...]:
    """Every check, in the order in which a person would want to fix them."""
    every = (
        _python(host),
        _torch(host),
        _onnxruntime(host),
        _compiler(host),
        _gpu(host),
        _gpu_build(host),
        _compute_mode(host),
        _cpu(host, root),
        _memory(root),
        _shared_memory(root),
        _energy(host, root),
        _disk(),
    )
    return tuple(check for check in every if check is not None)


def _python(host: Host) -> Check:
    version = tuple(int(part) for part in host.python_version.split(".")[:2])
    return Check(
        name="python",
        ok=version >= _OLDEST_PYTHON,
        text=f"Python {host.python_version} at {host.python}.",
        remedy="" if version >= _OLDEST_PYTHON else "Use Python 3.11 or newer.",
    )


def _torch(host: Host) -> Check:
    version = host.packages.get("torch")
    if version is None:
        return Check(
            name="torch",
            ok=False,
            text="torch is not installed, so no PyTorch model can run.",
            remedy='pip install "accel-workbench[run]"',
        )
    return Check(name="torch", ok=True, text=f"torch {version}.")


def _onnxruntime(host: Host) -> Check:
    found = [name for name in ONNXRUNTIME if name in host.packages]
    if not found:
        return Check(
            name="onnxruntime",
            ok=False,
            text="onnxruntime is not installed, so its engine is not offered.",
            remedy='pip install "accel-workbench[run]"',
        )
    if len(found) > 1:
        return Check(
            name="onnxruntime",
            ok=False,
            text=f"{' and '.join(found)} are both installed and overwrite each other's files.",
            remedy=f"pip uninstall {' '.join(found)}, then install the one that you need.",
        )
    version = host.packages[found[0]]
    if not host.providers:
        reason = next((note for note in host.notes if "onnxruntime" in note), "no reason given")
        return Check(
            name="onnxruntime",
            ok=False,
            text=f"{found[0]} {version} does not work: {reason}.",
            remedy=f"pip install --force-reinstall {found[0]}",
        )
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in host.providers)
    return Check(name="onnxruntime", ok=True, text=f"{found[0]} {version} with {names}.")


def _compiler(host: Host) -> Check:
    tools = host.tools or {}
    if "c++" not in tools:
        return Check(
            name="c++ compiler",
            ok=None,
            text="There is no C++ compiler, which torch.compile needs on a CPU.",
            remedy="Install g++ (Debian: apt install g++), or set CXX to a compiler.",
        )
    if "python.h" not in tools:
        return Check(
            name="c++ compiler",
            ok=None,
            text=f"{tools['c++']} is there but Python's headers are not; torch.compile needs both.",
            remedy="Install them (Debian: apt install python3-dev).",
        )
    return Check(name="c++ compiler", ok=True, text=f"{tools['c++']}, for torch.compile.")


def _gpu(host: Host) -> Check:
    gpus = [device for device in host.devices if device.kind == "cuda"]
    if not gpus:
        return Check(name="gpu", ok=None, text="No NVIDIA GPU is visible; models run on the CPU.")
    return Check(name="gpu", ok=True, text=f"{'; '.join(_card(gpu) for gpu in gpus)}.")


def _card(gpu: Device) -> str:
    notes = f" ({', '.join(gpu.notes)})" if gpu.notes else ""
    return (
        f"{gpu.id} is {gpu.reading} with {format_bytes(gpu.memory_bytes)}, "
        f"driver {gpu.driver or 'unknown'}{notes}"
    )


def _gpu_build(host: Host) -> Check | None:
    version = host.packages.get("torch", "")
    if not any(device.kind == "cuda" for device in host.devices) or "+cpu" not in version:
        return None
    return Check(
        name="gpu build",
        ok=False,
        text=f"There is a GPU, but torch {version} is built without CUDA.",
        remedy="Install a CUDA build of torch: see the selector on pytorch.org.",
    )


def _compute_mode(host: Host) -> Check | None:
    for device in host.devices:
        for note in device.notes:
            if note.startswith(PROHIBITED):
                return Check(
                    name="compute mode",
                    ok=False,
                    text=f"{device.id} may not be used: {note}.",
                    remedy="sudo nvidia-smi -c DEFAULT",
                )
            if note.startswith(EXCLUSIVE):
                return Check(
                    name="compute mode",
                    ok=None,
                    text=f"{device.id} is in {note}, so the two sides of a comparison "
                    "take turns in processes of their own, which needs more time.",
                    remedy="sudo nvidia-smi -c DEFAULT",
                )
    return None


def _cpu(host: Host, root: Path) -> Check | None:
    cpu = host.device("cpu")
    if cpu is None:
        return None
    quota = cpu_quota(root)
    cores = f"{cpu.num_cores} cores" if quota is None else f"{quota:g} cores' time by quota"
    sets = ", ".join(cpu.instruction_sets) or "unknown instruction sets"
    return Check(name="cpu", ok=True, text=f"{cpu.name}, {cores}, {sets}.")


def _memory(root: Path) -> Check:
    free = free_memory_bytes(root)
    limit = memory_limit_bytes(root)
    bound = f", limited to {format_bytes(limit)} by the container" if limit else ""
    ok = free >= _ENOUGH_MEMORY_BYTES
    return Check(
        name="memory",
        ok=ok or None,
        text=f"{format_bytes(free)} are free{bound}.",
        remedy=""
        if ok
        else "Two processes hold the model at a time: close what is not needed, or raise the "
        "container's limit.",
    )


def _shared_memory(root: Path) -> Check | None:
    folder = root / "dev/shm"
    if not folder.is_dir():
        return None
    free = shutil.disk_usage(folder).free
    ok = free >= _ENOUGH_SHARED_BYTES
    return Check(
        name="shared memory",
        ok=ok or None,
        text=f"{format_bytes(free)} are free in /dev/shm.",
        remedy="" if ok else "Start the container with more, such as docker run --shm-size=1g.",
    )


def _energy(host: Host, root: Path) -> Check:
    gpus = [device for device in host.devices if device.kind == "cuda"]
    domains, reason = find_domains(root)
    if domains:
        return Check(
            name="energy",
            ok=True,
            text=f"Energy counters: {', '.join(domain.name for domain in domains)}.",
        )
    remedy = reason.partition(": ")[2] if reason and "sudo" in reason else ""
    text = f"The CPU's energy is not available: {(reason or 'unknown').partition(': ')[0]}."
    if gpus:
        text += " The GPU's is read from its driver."
    return Check(name="energy", ok=None, text=text, remedy=remedy)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    ok = free >= _ENOUGH_MEMORY_BYTES
    return Check(
        name="disk",
        ok=ok or None,
        text=f"{format_bytes(free)} are free where studies go ({Path.cwd()}).",
        remedy="" if ok else "Artifacts are copies of the model: name another folder with --study.",
    )
