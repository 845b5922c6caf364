"""One model on one machine, and everything that was run of it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.device import Host
from workbench.core.errors import RunError, StudyError
from workbench.core.model import Model, PreparedModel
from workbench.core.profile import DEFAULT_ITERATIONS, Profile
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions, Variant
from workbench.study.choice import best
from workbench.study.comparison import Comparison, Goal, compare
from workbench.study.reader import StudyReader
from workbench.study.store import Store
from workbench.study.waiting import stop, wait_for

if TYPE_CHECKING:
    import pandas

    from workbench.traces.trace import Trace

DEFAULT_FOLDER = Path("workbench-studies")


class Study:
    """A study: variants of one model, built and measured in processes of their own.

    Nothing of the model runs in this process. The study is a folder; a scheduler works on
    it while there is work, whether or not this process lives on.

        study = Study(model)
        study.run(Recipe(engine="onnxruntime"), "engine=torch,precision=bf16")
        study.compare()
        study.export("best", "out/")
    """

    def __init__(
        self, model: Model, path: str | Path | None = None, *, python: str | None = None
    ) -> None:
        """Make a study of what `workbench.load` returned.

        `path` is a new folder ("workbench-studies/NAME-N" below the current one unless
        given); `python` the interpreter that runs the workers (this one unless given).
        Raises StudyError where the folder holds something or the interpreter is not there.
        """
        if not isinstance(model, Model):
            raise TypeError(
                f"a study is made of what workbench.load returned, not of a {type(model).__name__}"
            )
        folder = Path(path) if path is not None else _new_folder(model.name)
        Store.create(folder, model, python=_interpreter(python)).close()
        self._open(folder)

    @classmethod
    def open(cls, path: str | Path) -> Study:
        """Reopen a study. Raises StudyError, or SchemaTooNewError, where it cannot be."""
        study = cls.__new__(cls)
        study._open(Path(path))
        return study

    def _open(self, folder: Path) -> None:
        self._reader = StudyReader(folder)

    @property
    def reader(self) -> StudyReader:
        """The study's records, read-only."""
        return self._reader

    @property
    def folder(self) -> Path:
        """The study's folder, absolute."""
        return self._reader.folder

    @property
    def model(self) -> Model:
        """The model as it was loaded."""
        return self._reader.model()

    @property
    def prepared(self) -> PreparedModel | None:
        """What a worker found when it ran the model; None before the first run."""
        return self._reader.prepared()

    @property
    def host(self) -> Host | None:
        """What the workers' interpreter has; None before the first run."""
        return self._reader.host()

    def run(
        self,
        *recipes: Recipe | str,
        budget_s: float | None = None,
        wait: bool = True,
        progress: bool = True,
        **options: Any,
    ) -> list[int]:
        """Build and measure variants, and return their rows' numbers.

        A recipe is a Recipe or its text ("engine=onnxruntime,batch=8"). The first run of a
        study also runs the baseline, the model as it is now. `budget_s` bounds the seconds
        spent measuring each; `options` are those of `RunOptions` (threshold, tolerance,
        max_visits, early_stop_ratio, limits_s, rebuild, …); `profile=True` records calls of each
        row once all are measured. With `wait=False` it returns at
        once and the scheduler works on. Ctrl-C stops the rows; what was measured is kept.

        Raises RecipeError for what does not exist and RunError where the scheduler is gone.
        """
        from workbench.run.client import Client

        chosen = _options(budget_s, options)
        parsed = [r if isinstance(r, Recipe) else Recipe.parse(r) for r in recipes]
        with Client.connect(self.folder, python=self._reader.python()) as client:
            numbers = client.submit(parsed, chosen)
            if wait:
                wait_for(client, self._reader, numbers, progress=progress)
        return numbers

    def suggest(self, num: int = 12) -> list[Recipe]:
        """Recipes worth trying for this model on this device, out of the support table.

        Starts the baseline where nothing has run yet, since what can be had depends on the
        model. Raises RunError where the model cannot be prepared.
        """
        from workbench.study.suggest import context_of, suggest

        if not self.variants():
            self.run(wait=False)
        while (prepared := self.prepared) is None or (host := self.host) is None:
            first = self._reader.variant(1)
            if first.is_final:
                said = first.failure.message if first.failure else first.state
                raise RunError(f"the model could not be prepared: {said}")
            time.sleep(0.05)
        return suggest(context_of(host, prepared, self.model), num)

    def wait(self, *numbers: int, progress: bool = True) -> None:
        """Wait until these rows, or all, have ended and the profiles asked for are made.

        Ctrl-C stops them and keeps the rows.
        """
        from workbench.run.client import Client

        waiting = list(numbers) or [row.number for row in self.variants()]
        if all(self._reader.variant(number).is_final for number in waiting):
            # Only a profile may still be to come, and only from a scheduler that runs.
            try:
                client = Client.connect(self.folder, start=False)
            except RunError:
                return
        else:
            client = Client.connect(self.folder, python=self._reader.python())
        with client:
            wait_for(client, self._reader, waiting, progress=progress)

    def stop(self, *numbers: int) -> list[int]:
        """Stop these rows, or everything; returns the numbers. Measured rounds are kept."""
        return stop(self._reader, list(numbers) or None)

    def resume(
        self,
        *numbers: int,
        budget_s: float | None = None,
        wait: bool = True,
        progress: bool = True,
        **options: Any,
    ) -> list[int]:
        """Go on with rows that were stopped, interrupted or failed.

        A row that was stopped early is measured all the same. Options left out are those of
        the row's last run.
        """
        from workbench.run.client import Client

        changed = _options(budget_s, options) if options or budget_s is not None else None
        with Client.connect(self.folder, python=self._reader.python()) as client:
            resumed = list(client.resume(list(numbers), changed))
            if wait:
                wait_for(client, self._reader, resumed, progress=progress)
        return resumed

    def profile(
        self,
        which: int | str,
        *,
        iterations: int = DEFAULT_ITERATIONS,
        stacks: bool = False,
        progress: bool = True,
    ) -> Trace:
        """Record some calls of a row on its device, and return what was recorded, opened.

        A fresh server is started for it once nothing is measured any more, so that recording,
        which slows a model, is in no latency. `which` is a row's number or "best"; `stacks`
        records Python's frames too, which costs several times as much. The file lies below the
        study's `traces/` folder, which TensorBoard's PyTorch plugin opens. Raises RunError where
        nothing was recorded.
        """
        from workbench.study.recording import opened, record

        number = self._number(which)
        made = record(self._reader, number, iterations, stacks=stacks, progress=progress)
        return opened(self._reader, made)

    def profiles(self, which: int | str) -> Sequence[Profile]:
        """What was recorded of a row, oldest first."""
        return self._reader.profiles(self._number(which))

    def trace(self, which: int | str) -> Trace:
        """The latest recording of a row, opened. Raises StudyError where there is none."""
        from workbench.study.recording import latest, opened

        return opened(self._reader, latest(self._reader, self._number(which)))

    def _number(self, which: int | str) -> int:
        if which == "best":
            row = self.best()
            if row is None:
                raise StudyError(best(self.compare()).text)
            return row.number
        try:
            number = int(which)
        except ValueError:
            raise StudyError(f'{which!r} is no row; name a number, or "best".') from None
        return self._reader.variant(number).number

    def variants(self) -> list[Variant]:
        """Every row, by number. The control, which no table shows, is left out."""
        return [row for row in self._reader.variants() if row.role != "control"]

    def compare(
        self,
        baseline: int = 1,
        goal: Goal = "time-per-item",
        *,
        latency_limit_s: float | None = None,
    ) -> Comparison:
        """Every row against a baseline, ordered by a goal.

        `goal` is "time-per-item", "latency" (of a call) or "throughput", the last under
        `latency_limit_s` where that is given. The result shows itself as a table in a
        notebook and in a terminal.
        """
        return compare(self._reader, baseline=baseline, goal=goal, latency_limit_s=latency_limit_s)

    def export(
        self,
        which: int | str,
        out: str | Path,
        *,
        with_baseline: bool = False,
        force: bool = False,
    ) -> Path:
        """Write a row as a folder that runs without the workbench and checks itself.

        `which` is a row's number or "best". `with_baseline` adds the baseline, so that the
        check can measure the ratio. `force` takes a row that is unfinished or whose outputs
        are wrong, with the reason written into it; what is not exportable stays so. Raises
        ExportError with the reason, for "best" also where no row met the goal.
        """
        from workbench.study.leaving import export_row

        return export_row(self._reader, self.compare(), which, Path(out), with_baseline, force)

    def report(self, path: str | Path) -> Path:
        """Write the comparison as one HTML file that needs no network; returns its path."""
        from workbench.study.report import report_html

        path = Path(path)
        path.write_text(report_html(self._reader, self.compare()), encoding="utf-8")
        return path

    def to_dataframe(self) -> pandas.DataFrame:
        """One line a row, as a pandas data frame. Raises StudyError without pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise StudyError(
                "to_dataframe needs pandas, which is not installed here: pip install pandas. "
                "to_csv and to_json need nothing."
            ) from error
        from workbench.study.document import flat_rows

        return pd.DataFrame(flat_rows(self.compare())).set_index("number")

    def to_json(self, path: str | Path | None = None) -> str:
        """The comparison as one JSON document (see docs/json.md); written to `path` if given."""
        from workbench.study.document import document

        text = json.dumps(document(self.compare()), indent=2, ensure_ascii=False, allow_nan=False)
        return _written(text, path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line a row, with a header; written to `path` if given."""
        from workbench.study.document import csv_text

        return _written(csv_text(self.compare()), path)

    def log(self, number: int) -> str:
        """What the row's workers printed."""
        path = self._reader.variant_folder(number) / "log.txt"
        return path.read_text(errors="replace") if path.is_file() else ""

    def visits(self, number: int) -> Sequence[Any]:
        """The raw rounds of a row, visit by visit."""
        return self._reader.visits(number)

    def close(self) -> None:
        """Let go of the study's file. What runs goes on."""
        self._reader.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rows = self.variants()
        return f"<Study of {self.model.name} in {self.folder}: {len(rows)} variants>"

    def _repr_html_(self) -> str:
        from workbench.study.markup import element, join
        from workbench.study.notebook import comparison_html

        rows = self.variants()
        where = element("p", f"Study of {self.model.name} in ", element("code", str(self.folder)))
        if not rows:
            return join(where, element("p", "Nothing has been run yet."))
        return join(where, comparison_html(self.compare()))

    def __rich__(self) -> Any:
        from rich.text import Text

        return self.compare() if self.variants() else Text(repr(self))

    def best(self) -> Variant | None:
        """The row that `export("best", …)` takes, or None where none met the goal."""
        row = best(self.compare()).row
        return None if row is None else row.variant


def open_study(path: str | Path) -> Study:
    """Reopen a study. Raises StudyError, or SchemaTooNewError, where it cannot be."""
    return Study.open(path)


def _options(budget_s: float | None, options: dict[str, Any]) -> RunOptions:
    known = {field.name for field in dataclasses.fields(RunOptions)}
    unknown = options.keys() - known
    if unknown:
        raise TypeError(
            f"run has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
        )
    if isinstance(options.get("profile"), bool):
        options = {**options, "profile": DEFAULT_ITERATIONS if options["profile"] else None}
    if budget_s is not None:
        options = {**options, "budget_s": float(budget_s)}
    return RunOptions(**options)


def _new_folder(name: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "model"
    return next(path for path in _numbered(slug) if not path.exists())


def _numbered(slug: str) -> Iterable[Path]:
    number = 1
    while True:
        yield DEFAULT_FOLDER / f"{slug}-{number}"
        number += 1


def _interpreter(python: str | None) -> str | None:
    if python is None:
        return None
    found = shutil.which(python)
    if found is None:
        raise StudyError(f"python={python!r} is no interpreter that can be run here.")
    return found


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
