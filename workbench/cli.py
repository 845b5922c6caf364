"""The command line. `docs/cli.md` has the table of exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core import errors
from workbench.core.json import Json

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.core.device import Host
    from workbench.core.recipe import Recipe
    from workbench.engines.table import SupportRow
    from workbench.study.comparison import Comparison
    from workbench.study.study import Study

SCHEMA_VERSION = 1
OK, NOT_WELL, USAGE, LOAD, FAILED, STUDY, EXPORT, RUN, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130
# The first kind that fits decides.
_EXITS: tuple[tuple[type[errors.WorkbenchError], int], ...] = (
    (errors.LoadError, LOAD),
    (errors.InputError, LOAD),
    (errors.RecipeError, USAGE),
    (errors.StudyError, STUDY),
    (errors.ExportError, EXPORT),
    (errors.RunError, RUN),
)
_EPILOG = """\
exit codes:
  0    done
  1    doctor: something that is needed is missing
  2    a command, option, engine, lever or value that does not exist
  3    the model or its inputs cannot be taken in
  4    it ran, and some variant failed; the others are kept
  5    the study cannot be opened, or was written by a later version
  6    the variant cannot be exported
  7    the scheduler cannot do its work
  130  stopped by Ctrl-C; what was measured is kept
"""
# Wide enough for the whole table where no terminal says how wide it is.
_PIPED_WIDTH = 160


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is one sentence on stderr."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except errors.WorkbenchError as error:
        print(f"workbench: {' '.join(str(error).split())}", file=sys.stderr)
        return next((code for kind, code in _EXITS if isinstance(error, kind)), RUN)
    except KeyboardInterrupt:
        print("workbench: stopped.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter's last flush must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Make a model fast, cheap and small, and believe the result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from workbench import __version__

    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = _command(
        commands, "doctor", _doctor, "what is here, what works, what does not and why"
    )
    _json_option(doctor)
    _python_option(doctor)

    levers = _command(commands, "levers", _levers, "every engine and lever, for this device")
    _json_option(levers)
    _python_option(levers)
    levers.add_argument("--study", metavar="DIR", help="judge by this study's model")

    run = _command(commands, "run", _run, "build, run and compare variants of a model")
    run.add_argument(
        "model",
        metavar="MODEL",
        help="package.module:factory, a file, a Hugging Face folder, or sample:NAME",
    )
    run.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="SPEC",
        help="such as engine=onnxruntime,quantization=int8-dynamic,batch=8; may be repeated",
    )
    run.add_argument(
        "--all",
        action="store_true",
        help="a sensible set for this model and device; also without any --recipe",
    )
    run.add_argument(
        "--budget", type=_positive, metavar="S", help="seconds to measure each variant"
    )
    run.add_argument("--study", metavar="DIR", help="a new folder, or a study to go on with")
    run.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="SPEC",
        help='such as "x: f32[batch, 3, 224, 224]"; may be repeated',
    )
    run.add_argument("--state", metavar="FILE", help="a state dict for a factory")
    run.add_argument("--evaluation", metavar="FILE", help="rows to compare outputs on, an .npz")
    run.add_argument("--labels", metavar="FILE", help="their labels, an .npy")
    run.add_argument("--calibration", metavar="FILE", help="rows to calibrate on, an .npz")
    run.add_argument(
        "--task", choices=("classification", "embedding", "language-model", "regression")
    )
    run.add_argument(
        "--trusted", action="store_true", help="open files that run code when they are loaded"
    )
    _json_option(run)
    run.add_argument("--html", metavar="FILE", help="write the report there")
    _python_option(run)

    show = _command(commands, "show", _show, "a study's comparison")
    show.add_argument("study", metavar="STUDY")
    _json_option(show)
    show.add_argument("--html", metavar="FILE", help="write the report there")
    show.add_argument("--csv", metavar="FILE", help="write one line a variant there")
    show.add_argument("--baseline", type=int, default=1, metavar="N")
    show.add_argument(
        "--goal", choices=("time-per-item", "latency", "throughput"), default="time-per-item"
    )
    show.add_argument(
        "--latency-limit", type=_positive, metavar="S", help="for the goal throughput, in seconds"
    )

    export = _command(commands, "export", _export, "write a variant as a folder that checks itself")
    export.add_argument("study", metavar="STUDY")
    export.add_argument("variant", metavar="VARIANT", help='a number, or "best"')
    export.add_argument("out", metavar="OUT", help="a new folder")
    export.add_argument("--with-baseline", action="store_true", help="so that speed is checked too")
    export.add_argument(
        "--force", action="store_true", help="also a row that is unfinished or wrong; says so in it"
    )

    stop = _command(commands, "stop", _stop, "stop what runs in a study")
    stop.add_argument("study", metavar="STUDY")

    samples = _command(commands, "samples", _samples, "the bundled sample models")
    _json_option(samples)

    lab = _command(commands, "lab", _lab, "JupyterLab on the welcome notebook")
    lab.add_argument("--folder", default=".", help="where the notebook is copied to (here)")
    lab.add_argument("jupyter", nargs="*", help="options for JupyterLab, after --")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.set_defaults(command=function)
    return parser


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _python_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", metavar="FILE", help="the interpreter that runs the workers")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _doctor(arguments: argparse.Namespace) -> int:
    from workbench.devices import checks, probe_host

    host = probe_host(arguments.python)
    found = checks(host)
    is_well = all(check.ok is not False for check in found)
    if arguments.json:
        _print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "doctor",
                "well": is_well,
                "host": _plain(host),
                "checks": [_plain(check) for check in found],
            }
        )
        return OK if is_well else NOT_WELL
    from rich.text import Text

    marks = {True: ("✓", "green"), False: ("✕", "red"), None: ("–", "dim")}
    rows = []
    for check in found:
        mark, style = marks[check.ok]
        said = Text(check.text)
        if check.remedy:
            said.append(f"\n{check.remedy}", style="yellow")
        rows.append((Text(mark, style=style), Text(check.name), said))
    _print_rows(("", "", ""), rows)
    return OK if is_well else NOT_WELL


def _levers(arguments: argparse.Namespace) -> int:
    from workbench.devices import probe_host
    from workbench.engines.table import support
    from workbench.study.suggest import any_model, context_of

    if arguments.study:
        with _open(arguments.study) as study:
            host, prepared = study.host, study.prepared
            if host is None or prepared is None:
                raise errors.StudyError(
                    f"{study.folder} has not run its model yet; run something first."
                )
            rows = support(context_of(host, prepared, study.model))
    else:
        host = probe_host(arguments.python)
        rows = support(context_of(host, any_model()))
    if arguments.json:
        _print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "levers",
                "device": _plain(host.devices[0]),
                "rows": [{**_object(_plain(row)), "available": row.reason is None} for row in rows],
            }
        )
        return OK
    _print_levers(host, rows)
    return OK


def _print_levers(host: Host, rows: Sequence[SupportRow]) -> None:
    from rich.text import Text

    shown = []
    for row in rows:
        is_available = row.reason is None
        note = row.reason or "; ".join(row.warnings)
        ran_on = (", ".join(row.ran_on) or "never") if is_available else ""
        mark = Text("✓", style="green") if is_available else Text("✕", style="red")
        if is_available and row.warnings:
            mark = Text("⚠", style="yellow")
        choice = f"{row.lever}={row.value}" if row.lever else "(the engine itself)"
        style = "" if is_available else "dim"
        cells = (mark, Text(row.engine, style), Text(choice, style), Text(ran_on, "dim"))
        shown.append((*cells, Text(note, "dim")))
    _print_rows(("", "engine", "lever", "has run on", ""), shown)
    print(f"\nOn {host.devices[0].name}, {host.devices[0].reading}.")


def _run(arguments: argparse.Namespace) -> int:
    from workbench.core.recipe import Recipe

    # Before anything starts: a slip in a recipe should cost nothing.
    recipes = [Recipe.parse(spec) for spec in arguments.recipe]
    _check_recipes(recipes)
    study = _study_to_run(arguments)
    with study:
        print(f"Study: {study.folder}", file=sys.stderr)
        options = {} if arguments.budget is None else {"budget_s": arguments.budget}
        try:
            if arguments.all or not recipes:
                started = study.run(wait=False, **options) if not study.variants() else []
                recipes += [r for r in study.suggest() if r not in recipes]
            else:
                started = []
            started += study.run(*recipes, wait=False, **options)
            study.wait(*started)
        except KeyboardInterrupt:
            if study.variants():
                _show_comparison(study.compare(), as_json=arguments.json)
            print(f"Stopped; what was measured is kept in {study.folder}.", file=sys.stderr)
            return INTERRUPTED
        except errors.RunError:
            if study.variants():
                _show_comparison(study.compare(), as_json=arguments.json)
            raise
        if arguments.html:
            study.report(arguments.html)
            print(f"Report: {arguments.html}", file=sys.stderr)
        comparison = study.compare()
        _show_comparison(comparison, as_json=arguments.json)
        rows = [row for row in (comparison.baseline, *comparison.rows) if row.number in started]
        return FAILED if any(row.variant.state == "failed" for row in rows) else OK


def _check_recipes(recipes: Sequence[Recipe]) -> None:
    from workbench.engines import engine, load_all
    from workbench.levers.table import resolve

    load_all()
    for recipe in recipes:
        engine(recipe.engine)
        resolve(recipe)


def _study_to_run(arguments: argparse.Namespace) -> Study:
    from workbench.study.study import Study

    folder = Path(arguments.study) if arguments.study else None
    if folder is not None and (folder / "study.sqlite").exists():
        return Study.open(folder)
    from workbench.sources.load import load

    # A factory is named as `python -m` would find it: from where the command runs.
    sys.path.insert(0, str(Path.cwd()))
    model = load(
        arguments.model,
        arguments.inputs or None,
        trusted=arguments.trusted,
        state=arguments.state,
        evaluation=arguments.evaluation,
        labels=arguments.labels,
        calibration=arguments.calibration,
        task=arguments.task,
    )
    return Study(model, folder, python=arguments.python)


def _show(arguments: argparse.Namespace) -> int:
    from workbench.study.document import csv_text
    from workbench.study.report import report_html

    with _open(arguments.study) as study:
        if not study.variants():
            raise errors.StudyError(f"nothing has been run in {study.folder} yet.")
        comparison = study.compare(
            arguments.baseline, arguments.goal, latency_limit_s=arguments.latency_limit
        )
        if arguments.html:
            page = report_html(study.reader, comparison)
            Path(arguments.html).write_text(page, encoding="utf-8")
        if arguments.csv:
            Path(arguments.csv).write_text(csv_text(comparison), encoding="utf-8")
        _show_comparison(comparison, as_json=arguments.json)
    return OK


def _export(arguments: argparse.Namespace) -> int:
    with _open(arguments.study) as study:
        out = study.export(
            arguments.variant,
            arguments.out,
            with_baseline=arguments.with_baseline,
            force=arguments.force,
        )
    print(f"{out}\nCheck it: python {out / 'pipeline.py'} --check")
    return OK


def _stop(arguments: argparse.Namespace) -> int:
    with _open(arguments.study) as study:
        stopped = study.stop()
    names = ", ".join(f"#{number}" for number in stopped)
    print(f"Stopped {names}." if stopped else "Nothing was running.")
    return OK


def _samples(arguments: argparse.Namespace) -> int:
    from workbench.sources.samples import sample_names

    names = sample_names()
    if arguments.json:
        listed: list[Json] = list(names)
        _print_json({"schema_version": SCHEMA_VERSION, "kind": "samples", "samples": listed})
    else:
        print("\n".join(f"sample:{name}" for name in names))
    return OK


def _lab(arguments: argparse.Namespace) -> int:
    """JupyterLab on the welcome notebook: a copy below the folder, which is never replaced."""
    import importlib.util
    import shutil
    import subprocess

    if importlib.util.find_spec("jupyterlab") is None:
        raise errors.RunError(
            'JupyterLab is not installed here; pip install "accel-workbench[lab]" brings it.'
        )
    package = Path(__file__).parent
    homes = (package / "notebooks", package.parent / "notebooks")
    bundled = next(home / "welcome.ipynb" for home in homes if (home / "welcome.ipynb").exists())
    notebook = Path(arguments.folder) / bundled.name
    if not notebook.exists():
        notebook.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundled, notebook)
    command = [sys.executable, "-m", "jupyterlab", str(notebook), *arguments.jupyter]
    return subprocess.run(command, check=False).returncode


def _open(folder: str) -> Study:
    from workbench.study.study import Study

    return Study.open(folder)


def _show_comparison(comparison: Comparison, *, as_json: bool) -> None:
    if as_json:
        from workbench.study.document import document

        _print_json(document(comparison))
        return
    from workbench.study.terminal import comparison_table

    console = _console()
    console.print(comparison_table(comparison, width=console.width))


def _console() -> Console:
    from rich.console import Console

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=_PIPED_WIDTH)


def _print_rows(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.table import Table

    has_head = any(titles)
    table = Table(box=None, pad_edge=False, show_header=has_head, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, vertical="top", overflow="fold")
    for row in rows:
        table.add_row(*row)  # type: ignore[arg-type]
    _console().print(table)


def _print_json(value: dict[str, Json]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _plain(record: object) -> Json:
    from workbench.study.document import plain

    return plain(record)


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
