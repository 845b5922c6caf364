"""What each command does; each takes its parsed arguments and returns an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.codes import FAILED, INTERRUPTED, NOT_WELL, OK
from workbench.cli.printing import console, plain, print_json, print_rows, show_comparison
from workbench.core import errors
from workbench.core.json import Json

if TYPE_CHECKING:
    from workbench.core.device import Host
    from workbench.core.profile import Profile
    from workbench.core.recipe import Recipe
    from workbench.engines.table import SupportRow
    from workbench.study.study import Study
    from workbench.traces.trace import Trace

SCHEMA_VERSION = 1


def doctor(arguments: argparse.Namespace) -> int:
    """What is here, what works, what does not and why."""
    from workbench.devices import checks, probe_host

    host = probe_host(arguments.python)
    found = checks(host)
    is_well = all(check.ok is not False for check in found)
    if arguments.json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "doctor",
                "well": is_well,
                "host": plain(host),
                "checks": [plain(check) for check in found],
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
    print_rows(("", "", ""), rows)
    return OK if is_well else NOT_WELL


def levers(arguments: argparse.Namespace) -> int:
    """Every engine and lever, for this device or a study's model."""
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
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "levers",
                "device": plain(host.devices[0]),
                "rows": [{**_object(plain(row)), "available": row.reason is None} for row in rows],
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
    print_rows(("", "engine", "lever", "has run on", ""), shown)
    print(f"\nOn {host.devices[0].name}, {host.devices[0].reading}.")


def run(arguments: argparse.Namespace) -> int:
    """Build, run and compare variants of a model."""
    from workbench.core.recipe import Recipe

    # Before anything starts: a slip in a recipe should cost nothing.
    recipes = [Recipe.parse(spec) for spec in arguments.recipe]
    _check_recipes(recipes)
    study = _study_to_run(arguments)
    with study:
        print(f"Study: {study.folder}", file=sys.stderr)
        options: dict[str, Any] = {"profile": arguments.profile}
        if arguments.budget is not None:
            options["budget_s"] = arguments.budget
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
                show_comparison(study.compare(), as_json=arguments.json)
            print(f"Stopped; what was measured is kept in {study.folder}.", file=sys.stderr)
            return INTERRUPTED
        except errors.RunError:
            if study.variants():
                show_comparison(study.compare(), as_json=arguments.json)
            raise
        if arguments.html:
            study.report(arguments.html)
            print(f"Report: {arguments.html}", file=sys.stderr)
        comparison = study.compare()
        show_comparison(comparison, as_json=arguments.json)
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


def show(arguments: argparse.Namespace) -> int:
    """A study's comparison."""
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
        show_comparison(comparison, as_json=arguments.json)
    return OK


def profile(arguments: argparse.Namespace) -> int:
    """Record a variant's calls, and say where the time and the memory went."""
    with _open(arguments.study) as study:
        which = arguments.variant
        found = study.profile(which, iterations=arguments.iterations, stacks=arguments.stacks)
        made = study.profiles(which)[-1]
        path = study.reader.recording(made.trace)
    print(
        f"Recorded {made.num_iterations} calls in {path}; recording makes a call "
        f"{made.slowdown:.2f} times as long. TensorBoard: tensorboard --logdir {path.parents[1]}",
        file=sys.stderr,
    )
    if made.request is not None:
        where = study.reader.recording(made.request)
        print(f"Whole requests, with the model's own processing: {where}", file=sys.stderr)
    _show_trace(found, path.name, made, as_json=arguments.json)
    return OK


def export(arguments: argparse.Namespace) -> int:
    """Write a variant as a folder that checks itself."""
    with _open(arguments.study) as study:
        out = study.export(
            arguments.variant,
            arguments.out,
            with_baseline=arguments.with_baseline,
            force=arguments.force,
        )
    print(f"{out}\nCheck it: python {out / 'pipeline.py'} --check")
    return OK


def stop(arguments: argparse.Namespace) -> int:
    """Stop what runs in a study."""
    with _open(arguments.study) as study:
        stopped = study.stop()
    names = ", ".join(f"#{number}" for number in stopped)
    print(f"Stopped {names}." if stopped else "Nothing was running.")
    return OK


def trace(arguments: argparse.Namespace) -> int:
    """Where the time or the memory of a profiler's file went."""
    from workbench.traces import memory_summary
    from workbench.traces.opening import open_trace
    from workbench.traces.snapshot import Snapshot

    path = Path(arguments.file)
    found = open_trace(path)
    if arguments.diff is not None:
        other_path = Path(arguments.diff)
        other = open_trace(other_path)
        if isinstance(found, Snapshot) or isinstance(other, Snapshot):
            snapshot = path if isinstance(found, Snapshot) else other_path
            raise errors.LoadError(
                f"{snapshot} is a memory snapshot; --diff compares traces of time."
            )
        return _trace_difference(found, other, (path.name, other_path.name), arguments.json)
    if isinstance(found, Snapshot):
        if arguments.json:
            print_json(memory_summary.document(found, path.name))
        else:
            console().print(memory_summary.tables(found, path.name))
        return OK
    _show_trace(found, path.name, None, as_json=arguments.json)
    return OK


def _show_trace(found: Trace, name: str, profile: Profile | None, *, as_json: bool) -> None:
    from workbench.traces import summary, summary_tables

    made = summary.summarise(found, name, profile)
    if as_json:
        print_json(summary.document(made))
    else:
        console().print(summary_tables.tables(made))


def _trace_difference(a: Trace, b: Trace, names: tuple[str, str], as_json: bool) -> int:
    from workbench.traces import difference_summary
    from workbench.traces.difference import difference

    found = difference(a, b)
    if as_json:
        print_json(difference_summary.document(found, names))
    else:
        console().print(difference_summary.tables(found, names))
    return OK


def samples(arguments: argparse.Namespace) -> int:
    """The bundled sample models."""
    from workbench.sources.samples import sample_names

    names = sample_names()
    if arguments.json:
        listed: list[Json] = list(names)
        print_json({"schema_version": SCHEMA_VERSION, "kind": "samples", "samples": listed})
    else:
        print("\n".join(f"sample:{name}" for name in names))
    return OK


def lab(arguments: argparse.Namespace) -> int:
    """JupyterLab on the welcome notebook: a copy below the folder, which is never replaced."""
    import importlib.util
    import shutil
    import subprocess

    if importlib.util.find_spec("jupyterlab") is None:
        raise errors.RunError(
            'JupyterLab is not installed here; pip install "accel-workbench[lab]" brings it.'
        )
    package = Path(__file__).parents[1]
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


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
