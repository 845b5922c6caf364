"""One look at this machine, through this interpreter or another."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import msgspec

from workbench.core.device import Host
from workbench.core.errors import RunError
from workbench.devices.cpu import describe_cpu
from workbench.devices.nvidia import describe_gpus
from workbench.devices.packages import find_tools, installed_packages, onnxruntime_providers

_TIMEOUT_S = 120.0


def probe_host(python: str | None = None) -> Host:
    """What the interpreter `python` (this one for None) has to run a model with.

    Imports neither torch nor an engine into this process and makes no CUDA context.
    Another interpreter is asked in a child; raises RunError where that child cannot start
    or has no workbench.
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
        devices=(describe_cpu(), *gpus),
        packages=packages,
        providers=providers,
        tools=find_tools(),
        notes=(*notes, *((reason,) if reason else ())),
    )


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
