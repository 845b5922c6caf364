"""The frame of the GPU suite: sections with limits, results on disk as they come, a table.

Each section runs in a process of its own. What it finds it appends, line by line, to a file;
so a section that hangs or dies leaves what it had, and the file of a finished one says that
it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.device.stand import ROOT, NoDeviceError, Stand, make_stand
from workbench.core.device import Host
from workbench.run.processes import become_subreaper, kill_strays, kill_tree

# A section is asked to come to an end so long before it is ended.
_NOTICE_S = 12.0
_WIDTH = 400


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the suite. `share` is its part of the suite's time.

    `run` measures, and hands every row and check to the notebook as soon as it has it. Of a
    row `columns` are printed below each other.
    """

    name: str
    title: str
    share: float
    run: Callable[[Stand, Notebook], None]
    columns: tuple[str, ...]


@dataclass(kw_only=True)
class Notebook:
    """Where a section writes: a line of JSON at once for each row, check and note."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def row(self, **values: Any) -> None:
        """One line of the section's table."""
        self._write({"kind": "row", **values})

    def check(self, name: str, holds: bool | None, detail: str = "") -> None:
        """Something that must hold on any GPU; None where it could not be tried."""
        self._write({"kind": "check", "name": name, "holds": holds, "detail": detail})

    def note(self, text: str) -> None:
        """What a reader should know."""
        self._write({"kind": "note", "text": text})

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False, default=str) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command was told."""

    out: Path
    limit_s: float
    device: str
    quick: bool


def run_suite(sections: Sequence[Section], options: Options) -> int:
    """Run the sections one after another; 0 where each was finished and every check holds.

    A section's limit is its share of what time is left, so that what one saves the next has.
    """
    from workbench.devices import probe_host

    become_subreaper()
    options.out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + options.limit_s
    host = probe_host()
    failed = False
    for index, section in enumerate(sections):
        shares = sum(each.share for each in sections[index:])
        limit_s = (until_s - time.monotonic()) * section.share / shares
        result = _run_apart(section, options, limit_s, host)
        print_section(section, result)
        failed = failed or result["status"] != "done"
        failed = failed or any(check["holds"] is False for check in result["checks"])
    return int(failed)


def _run_apart(section: Section, options: Options, limit_s: float, host: Host) -> dict[str, Any]:
    path = options.out / f"{section.name}.json"
    path.unlink(missing_ok=True)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="device-suite-") as scratch:
        lines = Path(scratch) / "lines.jsonl"
        command = [sys.executable, "-m", "tests.device", "--run", section.name]
        command += ["--lines", str(lines), "--out", str(options.out.resolve())]
        command += ["--device", options.device, "--limit-s", str(limit_s)]
        command += ["--quick"] if options.quick else []
        # In a session of its own, so that all of it can be ended at once.
        child = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            code = child.wait(timeout=limit_s)
            status = "done" if code == 0 else f"failed: it ended with {code}"
        except subprocess.TimeoutExpired:
            status = f"over its limit of {limit_s:.0f} s, and ended"
        finally:
            kill_tree(child.pid)
            child.wait()
            kill_strays(())
        found = _read(lines)
    errors = [line["text"] for line in found if line["kind"] == "error"]
    if errors:
        status = f"failed: {errors[-1]}"
    result = {
        "section": section.name,
        "title": section.title,
        "status": status,
        "seconds": round(time.monotonic() - started_s, 1),
        "quick": options.quick,
        "limit_s": round(limit_s, 1),
        **_machine(host, options.device),
        "checks": [line for line in found if line["kind"] == "check"],
        "notes": [line["text"] for line in found if line["kind"] == "note"],
        "rows": [_without_kind(line) for line in found if line["kind"] == "row"],
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return result


def _without_kind(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "kind"}


def _read(lines: Path) -> list[dict[str, Any]]:
    """Every whole line; the last may have been cut off."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in lines.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def _machine(host: Host, device_id: str) -> dict[str, Any]:
    device = host.device(device_id)
    names = ("torch", "triton", "torchao", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt")
    return {
        "device": device_id,
        "name": None if device is None else device.name,
        "capability": None if device is None else device.capability,
        "memory_bytes": None if device is None else device.memory_bytes,
        "driver": None if device is None else device.driver,
        "device_notes": [] if device is None else list(device.notes),
        "python": platform.python_version(),
        "torch": host.packages.get("torch"),
        "packages": {n: host.packages[n] for n in names if n in host.packages},
        "num_cores": os.cpu_count(),
    }


def run_section(section: Section, lines: Path, options: Options) -> int:
    """In the section's own process: make a stand, measure, leave nothing running."""
    notebook = Notebook(path=lines)
    with tempfile.TemporaryDirectory(prefix="device-stand-") as scratch:
        limit_s = max(1.0, options.limit_s - _NOTICE_S)
        try:
            stand = make_stand(options.device, Path(scratch) / "s", limit_s, quick=options.quick)
        except NoDeviceError as error:
            notebook._write({"kind": "error", "text": str(error)})
            return 2
        stand.out = options.out
        try:
            section.run(stand, notebook)
        except Exception as error:  # noqa: BLE001 - the boundary: what was found so far stays
            traceback.print_exc()
            notebook._write({"kind": "error", "text": f"{type(error).__name__}: {error}"[:500]})
            return 1
        finally:
            stand.close()
    return 0


def print_section(section: Section, result: dict[str, Any]) -> None:
    """The section's rows, its notes and its checks, as lines that a log keeps whole.

    The first columns stand below each other; of the others a row shows what it has.
    """
    on = f"{result['name']}, driver {result['driver'] or '–'}, torch {result['torch'] or '–'}"
    print(f"\n{section.name}. {section.title}: {result['status']} in {result['seconds']} s on {on}")
    rows = result["rows"]
    keys = section.columns
    widths = {key: max((len(_cell(row.get(key))) for row in rows), default=0) for key in keys}
    for row in rows:
        head = "  ".join(_cell(row.get(key)).ljust(widths[key]) for key in keys)
        rest = [f"{k} {_cell(v)}" for k, v in row.items() if k not in keys and _cell(v) != "–"]
        print(f"  {head}  {'; '.join(rest)}"[:_WIDTH])
    for note in result["notes"]:
        print(f"  {note}")
    words = {True: "holds", False: "DOES NOT HOLD", None: "not tried"}
    for check in result["checks"]:
        detail = f": {check['detail']}" if check["detail"] else ""
        print(f"  {words[check['holds']]:>13}  {check['name']}{detail}"[:_WIDTH])
    sys.stdout.flush()


def _cell(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_cell(part) for part in value)
    return str(value)
