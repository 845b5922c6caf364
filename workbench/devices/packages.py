"""What an interpreter has: distributions, ONNX Runtime's providers and compilers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

# The flavours of ONNX Runtime install the same module under different names.
ONNXRUNTIME = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")

_ASK_PROVIDERS = (
    "import json, onnxruntime; print(json.dumps(onnxruntime.get_available_providers()))"
)


def normalise(name: str) -> str:
    """A distribution's name as PEP 503 spells it: "Onnxruntime_GPU" is "onnxruntime-gpu"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_packages() -> dict[str, str]:
    """Every installed distribution and its version, the one that an import would find."""
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        name, version = distribution.name, distribution.version
        # Interrupted uninstalls leave folders without metadata behind.
        if name and version:
            packages.setdefault(normalise(name), version)
    return dict(sorted(packages.items()))


def onnxruntime_providers(packages: dict[str, str]) -> tuple[tuple[str, ...], str | None]:
    """ONNX Runtime's execution providers, and the reason where there are none.

    They are compiled into the library, so it is asked in a child: this process stays free
    of its thread pools. Compiled in does not mean usable: a missing driver shows only when
    a session reads its providers back.
    """
    if not any(name in packages for name in ONNXRUNTIME):
        return (), "onnxruntime is not installed: pip install onnxruntime"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_PROVIDERS],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return (), "onnxruntime did not import within 60 s"
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return (), f"onnxruntime is installed but cannot be imported: {last}"
    return tuple(str(name) for name in json.loads(lines[-1])), None


def find_tools() -> dict[str, str]:
    """Paths of what a compiler needs: "c++" for torch.compile on a CPU, "cc" for Triton.

    The C++ compiler is the one that torch's Inductor would take: CXX, else g++ (clang++ on
    macOS, cl on Windows), with no second choice. "python.h" is the header folder that both
    include.
    """
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    found = {
        "c++": shutil.which(os.environ.get("CXX") or default),
        "cc": next(
            (
                path
                for name in (os.environ.get("CC"), "gcc", "clang", "cc")
                if name and (path := shutil.which(name))
            ),
            None,
        ),
        "python.h": _header(),
    }
    return {name: path for name, path in found.items() if path is not None}


def _header() -> str | None:
    path = Path(sysconfig.get_path("include")) / "Python.h"
    return str(path) if path.is_file() else None
