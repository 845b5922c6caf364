"""What the five commands share: options, samples on disk, the table, the document, the exit."""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from benchmarks.claims import Claim, all_hold, complete
from workbench.core.json import Json
from workbench.devices.cpu import describe_cpu

SCHEMA_VERSION = 1
# As a shell counts a command that SIGINT ended.
INTERRUPTED = 130
RESULTS = Path(__file__).resolve().parent / "results"
ROOT = Path(__file__).resolve().parent.parent
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A small table beside the claims; every cell is text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a benchmark is asked to run. `out` is where raw samples go."""

    quick: bool
    out: Path
    extra: argparse.Namespace = field(default_factory=argparse.Namespace)


@dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[S]):
    """One command.

    `measure` runs it and returns its samples, `judge` turns samples into claims (`quick`
    says that few trials are enough) and `figures` into tables; both are functions of the
    samples alone. `claims` names every claim: one that `judge` leaves out does not hold.
    `relevant` takes the samples of a file that still count.
    `keeps_own_file` says that `measure` has already written `path_of(out)`.
    """

    name: str
    about: str
    claims: tuple[str, ...]
    sample_type: Any
    measure: Callable[[Options], list[S]]
    judge: Callable[[Sequence[S], bool], list[Claim]]
    figures: Callable[[Sequence[S]], list[Figures]]
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    relevant: Callable[[list[S]], list[S]] = list
    keeps_own_file: bool = False

    def path_of(self, out: Path) -> Path:
        """Where this benchmark's raw samples lie below `out`."""
        return out / f"{self.name}.jsonl"


def run(benchmark: Benchmark[S], argv: Sequence[str] | None = None) -> int:
    """Run a benchmark's command line; returns its exit code.

    0 where every claim holds, 1 where one does not, is absent, or rests on nothing.
    """
    options, arguments = _parse(benchmark, argv)
    if arguments.samples is not None:
        path = arguments.samples
        samples = read_samples(path, benchmark.sample_type)
    else:
        path = benchmark.path_of(options.out)
        options.out.mkdir(parents=True, exist_ok=True)
        try:
            with _terminable():
                samples = benchmark.measure(options)
        except KeyboardInterrupt:
            say(f"{benchmark.name}: stopped; what was not finished is not judged.")
            return INTERRUPTED
        if not benchmark.keeps_own_file:
            write_samples(path, samples)
    samples = benchmark.relevant(samples)
    claims = complete(benchmark.judge(samples, options.quick), benchmark.claims)
    tables = benchmark.figures(samples)
    if arguments.json:
        print(json.dumps(document(benchmark.name, options, path, claims, tables), indent=2))
    else:
        _print(benchmark, options, path, claims, tables)
    return 0 if all_hold(claims) else 1


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind as an exit: schedulers and busy processes are ended on the way out."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parse(
    benchmark: Benchmark[S], argv: Sequence[str] | None
) -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{benchmark.name}", description=benchmark.about
    )
    parser.add_argument("--json", action="store_true", help="print one document")
    parser.add_argument("--quick", action="store_true", help="a sanity run: few trials")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="DIR", help="folder for raw samples"
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="measure nothing: judge the raw samples that an earlier run kept",
    )
    if benchmark.add_arguments is not None:
        benchmark.add_arguments(parser)
    arguments = parser.parse_args(argv)
    out = arguments.out
    if arguments.quick and out == RESULTS:
        # A sanity run must not replace the samples that published figures rest on.
        out = RESULTS / "quick"
    return Options(quick=arguments.quick, out=out, extra=arguments), arguments


# Samples ----------------------------------------------------------------------------------


def read_samples(path: Path, sample_type: Any) -> list[Any]:
    """Samples of a file, one a line; [] where there is no file.

    Raises msgspec.ValidationError where a line is no sample of that type.
    """
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(sample_type)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line.strip()]


def write_samples(path: Path, samples: Iterable[object]) -> None:
    """Write samples, one a line, in place of what was there."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))
    draft.replace(path)


def append_samples(path: Path, samples: Iterable[object]) -> None:
    """Add samples to a file in one write, so that no line is ever half there."""
    data = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
    with path.open("ab") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


# Output -----------------------------------------------------------------------------------


def document(
    name: str, options: Options, path: Path, claims: Sequence[Claim], tables: Sequence[Figures]
) -> dict[str, Json]:
    """What `--json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": name,
        "quick": options.quick,
        "created_s": time.time(),
        "machine": machine(),
        "code": code_digest(),
        "samples": str(path),
        "claims": [asdict(claim) for claim in claims],
        "holds": all_hold(claims),
        "figures": [
            {
                "title": table.title,
                "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
            }
            for table in tables
        ],
    }


def machine() -> dict[str, Json]:
    """The machine and the versions that figures hold for."""
    cpu = describe_cpu()
    names = ("torch", "onnxruntime", "openvino", "torchao", "numpy", "accel-workbench")
    versions: dict[str, Json] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu.name,
        "reading": cpu.reading,
        "num_cores": cpu.num_cores,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": versions,
    }


def code_digest(root: Path = ROOT) -> str:
    """SHA-256 of what the measuring and scheduling code below `root` does.

    Taken of the syntax tree without docstrings: comments and layout make no other code.
    """
    parts = []
    for room in ("measure", "run"):
        for path in sorted((root / "workbench" / room).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            parts.append(f"{path.relative_to(root).as_posix()}\n{ast.dump(_undocumented(tree))}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _undocumented(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


def _print(
    benchmark: Benchmark[S],
    options: Options,
    path: Path,
    claims: Sequence[Claim],
    tables: Sequence[Figures],
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        # A file or a pipe has no width of its own; rich would fold the table at 80.
        console = Console(width=140)
    for figures in tables:
        table = Table(title=figures.title, title_justify="left")
        for column in figures.columns:
            table.add_column(Text(column), overflow="fold")
        for row in figures.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    title = f"{benchmark.name}: {benchmark.about}" + (" (quick)" if options.quick else "")
    table = Table(title=title, title_justify="left")
    for column in ("claim", "value", "bound", "holds", "arithmetic"):
        table.add_column(column, overflow="fold")
    for claim in claims:
        style = "green" if claim.holds else "bold red"
        bound = "" if claim.bound is None else f"{claim.relation} {number(claim.bound)}"
        table.add_row(
            Text(claim.name),
            Text("–" if claim.value is None else f"{number(claim.value)} {claim.unit}".strip()),
            Text(f"{bound} {claim.unit}".strip()),
            Text("yes" if claim.holds else "NO", style=style),
            Text(claim.note),
        )
    console.print(table)
    console.print(Text(f"Raw samples: {path}"))


def number(value: float) -> str:
    """A figure with four significant digits."""
    return f"{value:.4g}"


def say(text: str) -> None:
    """Progress for whoever watches; standard output belongs to the result."""
    print(text, file=sys.stderr, flush=True)
