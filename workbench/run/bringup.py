"""From a queued row to a server: prepare, build, load, check."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from workbench.core.device import Device, Host
from workbench.core.errors import RecipeError, RunError
from workbench.core.failure import Failure, Stage
from workbench.core.measurement import ColdStart, Quality
from workbench.core.model import PreparedModel
from workbench.core.recipe import Recipe
from workbench.core.variant import State, Variant
from workbench.engines.engine import engine
from workbench.engines.render import steps_of
from workbench.engines.source import copy_source
from workbench.engines.table import check_available
from workbench.levers.step import Context
from workbench.levers.threads import process_environment, threads_of
from workbench.measure.quality import compare
from workbench.run import protocol
from workbench.run.artifacts import Artifact
from workbench.run.crew import Crew
from workbench.run.failures import RowFailed, RowStopped
from workbench.run.live import Live, grown_bytes, limit_s, used_bytes
from workbench.run.processes import Worker
from workbench.run.records import Records
from workbench.run.rows import first_rows, num_rows_of, output_axes, read_labels, read_outputs
from workbench.run.yardstick import NUM_ROWS as YARDSTICK_ROWS
from workbench.run.yardstick import fits, rounds, yardstick_path

# Evaluating must not take longer than measuring: what fits is compared, and its number of
# rows is said.
_MAX_ROWS = 2000
_MAX_EVALUATE_S = 20.0
_WARM_UP_S = 4.0
# What the order of float32 sums explains, generously, in a recipe that computes the same.
_LOSSLESS_ERROR = 1e-3
# How long spinning threads go on after a call: GNU's OpenMP spins for seconds where told to,
# but is bounded by its own count; a fifth of a second covers what was seen.
_SPIN_S = 0.2

Report = Callable[[State, str], None]


class BringUp:
    """Makes servers for one study."""

    def __init__(self, records: Records, crew: Crew, host: Host, device: Device) -> None:
        self._records = records
        self._crew = crew
        self._host = host
        self._device = device
        self._study = records.folder
        self.stage: Stage = "build"
        self.worker: Worker | None = None
        self._num_processes = max(
            (
                process
                for row in records.variants()
                for visit in records.visits(row.number)
                for process in (visit.baseline_process, visit.variant_process)
            ),
            default=0,
        )

    def context(self, row: Variant, prepared: PreparedModel) -> Context:
        """What the row's recipe is planned and judged by."""
        return Context(
            host=self._host,
            device=self._device,
            model=prepared,
            recipe=row.recipe,
            settings=self._records.model().settings,
        )

    def log(self, number: int) -> Path:
        """The row's log; its folder is made."""
        folder = self._study / "variants" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "log.txt"

    def prepare(self, number: int, report: Report) -> PreparedModel:
        """The prepared model, made by a worker where it is not there yet."""
        known = self._records.prepared()
        if known is not None:
            return known
        self.stage = "prepare"
        report("building", "preparing the model")
        row = self._records.variant(number)
        source = self._study / "source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        worker = self._take(number, with_torch=True, environment={})
        answer = self._crew.ask(
            worker,
            protocol.Prepare(model_folder=str(self._study / "model"), source_dir=str(source)),
            stage="prepare",
            limit_s=limit_s(row.options, "prepare"),
            on_note=lambda text: report("building", text),
        )
        assert isinstance(answer, protocol.Prepared)
        self._crew.dismiss(worker)
        prepared = msgspec.json.decode(answer.prepared, type=PreparedModel)
        self._records.set_prepared(prepared)
        return prepared

    def serve(self, row: Variant, context: Context, report: Report, *, again: bool = False) -> Live:
        """Build where no artifact is cached, then load it in a fresh worker.

        `again` says that the row was served before, and what it says of its start stays.

        Raises RowFailed where the recipe cannot be had here, and what `Crew.ask` raises.
        """
        self.stage = "build"
        artifact = self._artifact(context)
        receipt = None if row.options.rebuild and not again else artifact.receipt()
        cached = receipt is not None
        if receipt is None:
            report("building", "building")
            receipt = self._build(row, artifact, context)
        first = self._records.variant(row.number).cold_start
        if not again:
            self._records.update(
                row.number,
                artifact=artifact.key,
                artifact_cached=cached,
                size_bytes=artifact.size_bytes(),
            )
        self.stage = "load"
        report("loading", "loading")
        chosen = engine(row.recipe.engine)
        environment = process_environment(row.recipe, context.settings)
        worker, cold = self._take_for(
            row.number,
            with_torch=chosen.serves_with_torch,
            environment=environment,
            cache=artifact.key,
        )
        batch = row.recipe.get("batch")
        # Read by this process, which opens no context of its own on the device. Nothing else
        # of the study changes meanwhile.
        used_before = used_bytes(context)
        loaded = self._crew.ask(
            worker,
            protocol.Load(
                folder=str(artifact.folder),
                source_dir=str(self._study / "source"),
                model_folder=str(self._study / "model"),
                modules=list(chosen.modules),
                batch_size=int(batch) if batch else context.model.batch.example_size,
                warm_up_s=_WARM_UP_S,
                device=context.device.id,
            ),
            stage="load",
            limit_s=limit_s(row.options, "load"),
        )
        assert isinstance(loaded, protocol.Loaded)
        used_after = used_bytes(context)
        started = {} if again else {"started_cold": cold}
        self._records.update(
            row.number,
            items_per_call=loaded.items_per_call,
            **started,
            cold_start=first
            or ColdStart(
                build_s=receipt.get("build_s"),
                compile_cold_s=receipt.get("compile_cold_s"),
                compile_cached_s=loaded.first_call_s if chosen.compiles else None,
                load_s=loaded.load_s,
                first_call_s=loaded.first_call_s,
                num_warmup=loaded.num_warmup,
                warmup_stable=loaded.is_stable,
            ),
        )
        self.worker = None
        self._num_processes += 1
        spins = threads_of(row.recipe, context.settings).wait == "active"
        return Live(
            number=row.number,
            role=row.role,
            recipe=row.recipe,
            options=row.options,
            context=context,
            worker=worker,
            loaded=loaded,
            process=self._num_processes,
            call_s=loaded.call_s,
            rest_s=_SPIN_S if spins else 0.0,
            visits=list(self._records.visits(row.number)),
            device_used_bytes=grown_bytes(used_before, used_after),
            folder=artifact.folder,
        )

    def evaluate(self, live: Live) -> protocol.Evaluated:
        """Predict the evaluation rows into the row's folder."""
        self.stage = "check"
        out = self._outputs(live.number)
        answer = self._crew.ask(
            live.server,
            protocol.Evaluate(out=str(out), max_rows=_MAX_ROWS, max_s=_MAX_EVALUATE_S),
            stage="check",
            limit_s=live.limit_s("check"),
        )
        assert isinstance(answer, protocol.Evaluated)
        return answer

    def measure_yardstick(self, live: Live) -> None:
        """Keep the float64 outputs of a baseline that rounds, for a few rows.

        Where the model cannot be cast the row says so, and is compared without.
        """
        context, out = live.context, yardstick_path(self._study)
        if out.exists() or not rounds(context.model, context.device, context.settings):
            return
        self.stage = "check"
        try:
            if not fits(context.model):
                raise RunError("float64 weights do not fit into memory.")
            worker = self._take(live.number, with_torch=True, environment={})
            self._crew.ask(
                worker,
                protocol.EvaluateExactly(
                    source_dir=str(self._study / "source"),
                    model_folder=str(self._study / "model"),
                    out=str(out),
                    num_rows=YARDSTICK_ROWS,
                ),
                stage="check",
                limit_s=live.limit_s("check"),
            )
        except RowStopped:
            raise
        except RunError as error:
            note = f"its error against float64 is unknown: {error}"
            notes = self._records.variant(live.number).notes
            self._records.update(live.number, notes=(*notes, note))
        if self.worker is not None:
            self._crew.dismiss(self.worker)
            self.worker = None

    def check(self, live: Live, baseline: int) -> Quality:
        """Compare the row's outputs with the baseline's.

        Raises RowFailed where they are not finite, empty or of another shape.
        """
        done = self.evaluate(live)
        found = self._compare(live, baseline, done)
        self._records.update(live.number, quality=found)
        if found.status in ("not_finite", "mismatch"):
            raise RowFailed(
                Failure(
                    kind="not_finite" if found.status == "not_finite" else "mismatch",
                    stage="check",
                    message="; ".join(found.reasons) or f"outputs are {found.status}",
                    remedy="Values overflowed this type: try bf16, or leave the layer in fp32."
                    if found.status == "not_finite"
                    else "The conversion changed the result: try another engine or lever.",
                )
            )
        return found

    def _compare(self, live: Live, baseline: int, done: protocol.Evaluated) -> Quality:
        reference = read_outputs(self._outputs(baseline))
        outputs = read_outputs(self._outputs(live.number))
        model = self._records.model()
        axes = output_axes(self._study / "source")
        if axes:
            # Each side evaluates what fits its time: the rows that both have are compared.
            num_rows = min(num_rows_of(reference, axes), done.num_rows)
            reference = first_rows(reference, axes, num_rows)
            outputs = first_rows(outputs, axes, num_rows)
            labels = read_labels(self._study / "model", num_rows)
        else:
            labels = None
        exact = yardstick_path(self._study)
        return compare(
            reference,
            outputs,
            labels=labels,
            task=model.task,
            tolerance=live.options.tolerance,
            is_real=done.is_real,
            batch_axes=axes,
            exact_reference=read_outputs(exact) if exact.exists() else None,
            lossless_error=None if changes_arithmetic(live.recipe) else _LOSSLESS_ERROR,
        )

    def _outputs(self, number: int) -> Path:
        return self.log(number).with_name("outputs.npz")

    def _artifact(self, context: Context) -> Artifact:
        try:
            check_available(context)
        except RecipeError as error:
            raise RowFailed(
                Failure(
                    kind="unavailable",
                    stage="build",
                    message=str(error),
                    remedy="`workbench levers` lists what this device, model and set of "
                    "packages offer.",
                )
            ) from error
        return Artifact(self._study, context)

    def _build(self, row: Variant, artifact: Artifact, context: Context) -> dict[str, float | None]:
        chosen = engine(row.recipe.engine)
        artifact.start()
        worker, _ = self._take_for(
            row.number,
            # Copying needs no torch; a spare still starts faster, if another is left to serve.
            with_torch=self._crew.num_spares > 1 or _converts(context),
            environment=process_environment(row.recipe, context.settings),
            cache=artifact.key,
            # An engine that serves without torch but builds with it exports.
            to_export=not chosen.serves_with_torch and _converts(context),
        )
        batch = row.recipe.get("batch")
        answer = self._crew.ask(
            worker,
            protocol.Build(
                pipeline=str(artifact.folder / "pipeline.py"),
                source_dir=str(self._study / "source"),
                out_dir=str(artifact.folder),
                compile_once=chosen.compiles,
                batch_size=int(batch) if batch else context.model.batch.example_size,
            ),
            stage="build",
            limit_s=limit_s(row.options, "build"),
        )
        assert isinstance(answer, protocol.Done)
        self._crew.let_go(worker)
        self.worker = None
        artifact.finish(build_s=answer.seconds, compile_cold_s=answer.compile_s)
        return {"build_s": answer.seconds, "compile_cold_s": answer.compile_s}

    def _take(self, number: int, *, with_torch: bool, environment: dict[str, str]) -> Worker:
        return self._take_for(number, with_torch=with_torch, environment=environment, cache="")[0]

    def _take_for(
        self,
        number: int,
        *,
        with_torch: bool,
        environment: dict[str, str],
        cache: str,
        to_export: bool = False,
    ) -> tuple[Worker, bool]:
        caches = self._study / "caches" / (cache or "none")
        assign = protocol.Assign(
            log=str(self.log(number)),
            environment={
                # Private to the study, so that a cold compile is really cold.
                "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
                "TRITON_CACHE_DIR": str(caches / "triton"),
            },
        )
        self.worker, cold = self._crew.take(
            with_torch=with_torch, environment=environment, assign=assign, to_export=to_export
        )
        return self.worker, cold


def _converts(context: Context) -> bool:
    """Whether the build imports torch, and does more than copy the source."""
    chosen = engine(context.recipe.engine)
    if not chosen.builds_with_torch or context.model.kind == "onnx":
        return False
    in_build = [step for step in steps_of(context) if step.phase in chosen.build_phases]
    return chosen.compiles or any(step.function is not copy_source for step in in_build)


def changes_arithmetic(recipe: Recipe) -> bool:
    """Whether a recipe asks for other numbers than the baseline's, and not only faster ones."""
    return recipe.get("precision") is not None or recipe.get("quantization") is not None


def first_ratio(baseline: Live, variant: Live) -> float:
    """The baseline's time an item over the variant's, by the median of three warm calls."""
    ours_s = median(variant.loaded.first_calls_s[-3:]) / variant.num_items
    theirs_s = median(baseline.loaded.first_calls_s[-3:]) / baseline.num_items
    return theirs_s / ours_s
