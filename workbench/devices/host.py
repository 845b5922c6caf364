"""One look at this machine, through this interpreter or another."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec

from workbench.core.device import Device, Host
from workbench.core.errors import RunError
from workbench.devices.cpu import describe_cpu
from workbench.devices.nvidia import PROHIBITED, describe_gpus
from workbench.devices.packages import find_tools, installed_packages, onnxruntime_providers

_TIMEOUT_S = 120.0
# Names the device that studies use, as in WORKBENCH_DEVICE=cpu.
_CHOICE = "WORKBENCH_DEVICE"


def probe_host(python: str | None = None) -> Host:
    """What the interpreter `python` (this one for None) has to run a model with.

    Imports neither torch nor an engine into this process and makes no CUDA context.
    The device that a study uses comes first: the one that WORKBENCH_DEVICE names, else a GPU
    that an engine here is built for, else the CPU. Another interpreter is asked in a child.
    Raises RunError where that child cannot start or has no workbench, and where the device
    that is named is not here.
    """
    if python is not None and not _is_this(python):
        return _ask(python)
    packages = installed_packages()
    providers, reason = onnxruntime_providers(packages)
    gpus, notes = describe_gpus()
    return Host(
        python=sys.executable,
        python_version=platform.python_version(),
        platform=platform.platform(),
        devices=order_devices(
            (describe_cpu(), *gpus), packages, providers, os.environ.get(_CHOICE)
        ),
        packages=packages,
        providers=providers,
        tools=find_tools(),
        notes=(*notes, *((reason,) if reason else ())),
    )


def order_devices(
    devices: tuple[Device, ...],
    packages: dict[str, str],
    providers: tuple[str, ...],
    wanted: str | None,
) -> tuple[Device, ...]:
    """The devices, the one that a study uses first.

    Raises RunError where `wanted` names none of them.
    """
    if wanted:
        first = next((device for device in devices if device.id == wanted), None)
        if first is None:
            here = ", ".join(device.id for device in devices)
            raise RunError(f"{_CHOICE} is {wanted!r}, which is not here; there are {here}.")
    else:
        torch = packages.get("torch", "+cpu")
        built_for_gpus = "+cpu" not in torch or "CUDAExecutionProvider" in providers
        usable = [device for device in devices if built_for_gpus and _may_be_used(device)]
        first = usable[0] if usable else devices[0]
    return (first, *(device for device in devices if device is not first))


def _may_be_used(device: Device) -> bool:
    return device.kind == "cuda" and not any(n.startswith(PROHIBITED) for n in device.notes)


def _is_this(python: str) -> bool:
    # The paths as given: a virtual environment's python is a link to the one it was made
    # from, and following it would take them for the same.
    return Path(python).absolute() == Path(sys.executable).absolute()


def _ask(python: str) -> Host:
    command = [python, "-m", "workbench.devices.probe"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except OSError as error:
        raise RunError(f"{python} cannot be started: {error.strerror or error}.") from None
    except subprocess.TimeoutExpired:
        raise RunError(
            f"{python} did not describe itself within {_TIMEOUT_S:.0f} s; "
            "run `python -m workbench.devices.probe` with it to see why."
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(
            f"{python} cannot describe itself ({last}). Install the workbench there: "
            f'{python} -m pip install "accel-workbench[run]"'
        )
    try:
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Host)
    except (msgspec.DecodeError, IndexError) as error:
        raise RunError(
            f"{python} has a workbench of another version ({error}); "
            f"upgrade it: {python} -m pip install -U accel-workbench"
        ) from None
