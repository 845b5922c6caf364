"""From a row of a study to the folder it leaves as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import ExportError, InputError
from workbench.core.json import Json
from workbench.engines import engines, load_all
from workbench.export import About, Bundle, readme, write
from workbench.run.rows import read_outputs, read_rows
from workbench.study.choice import best, name, quality_words
from workbench.study.comparison import Comparison, Row
from workbench.study.document import document, variant
from workbench.study.reader import StudyReader
from workbench.study.table import cell, executed

# Error that a check allows, as a share of an output's largest value, by the coarsest type
# that was executed. Another processor may sum in another order; a wrong type errs by more.
_TOLERANCES = {
    "fp64": 1e-9,
    "fp32": 5e-4,
    "tf32": 1e-2,
    "fp16": 1e-2,
    "bf16": 3e-2,
    "fp8": 1e-1,
    "int8": 5e-2,
    "uint8": 5e-2,
    "int4": 1e-1,
}


def export_row(
    reader: StudyReader,
    comparison: Comparison,
    which: int | str,
    out: Path,
    with_baseline: bool,
    force: bool,
) -> Path:
    """Write one row to a new folder and return it.

    Raises ExportError with the reason where the row cannot leave: it is not exportable, not
    finished, provisional, or its outputs are wrong. `force` overrides all but the first.
    """
    row = _chosen(comparison, which)
    prepared = comparison.prepared
    if prepared is not None and prepared.not_exportable is not None:
        raise ExportError(f"{name(row)} is not exportable: {prepared.not_exportable}.")
    reasons = _refusals(row)
    if reasons and not force:
        raise ExportError(
            f"{name(row)} is not exported: {'; '.join(reasons)}. "
            "force=True exports it all the same, with this reason in it."
        )
    caution = "; ".join([*reasons, *_cautions(row)])
    baseline = None
    speed = None
    if with_baseline and not row.is_baseline:
        baseline = _bundle(reader, comparison, comparison.baseline, "", None)
        speed = _speed(comparison, row)
    bundle = _bundle(reader, comparison, row, caution, speed)
    return write(out, bundle, baseline)


def _chosen(comparison: Comparison, which: int | str) -> Row:
    if isinstance(which, int):
        return comparison.row(which)
    if which.isdecimal():
        return comparison.row(int(which))
    if which != "best":
        raise ExportError(f'{which!r} is no variant: name its number, or "best".')
    choice = best(comparison)
    if choice.row is None:
        raise ExportError(choice.text + _advice(comparison))
    return choice.row


def _advice(comparison: Comparison) -> str:
    """What to do where no row leads; empty where nothing has been measured."""
    ranked = [row for row in comparison.rows if row.is_ranked and not row.is_baseline]
    if not ranked:
        return ""
    qualities = [row.variant.quality for row in ranked]
    is_unknown = any(quality is None or quality.status == "unknown" for quality in qualities)
    judge = "to judge them, give wb.load real rows (evaluation=...); " if is_unknown else ""
    advice = f"{judge}to take a row as it is, export it by its number."
    return f" {advice[0].upper()}{advice[1:]}"


def _refusals(row: Row) -> list[str]:
    """Why a row may leave only by force."""
    record, decision, quality = row.variant, row.decision, row.variant.quality
    reasons = []
    if quality is not None and quality.status in ("not_finite", "mismatch"):
        said = record.failure.message.rstrip(".") if record.failure else quality_words(quality)
        reasons.append(f"its outputs are wrong ({said})")
    elif record.state != "done":
        said = f" ({record.failure.message.rstrip('.')})" if record.failure else ""
        reasons.append(f"it is {record.state}{said}")
    elif not row.is_baseline and (decision is None or decision.provisional):
        reasons.append("its ratio is provisional")
    return reasons


def _cautions(row: Row) -> list[str]:
    """What whoever takes the row should know."""
    record, quality = row.variant, row.variant.quality
    said = [f"it did not do what was asked: {unmet}" for unmet in row.unmet]
    if (
        not row.is_baseline
        and quality is not None
        and quality.status
        in (
            "lost",
            "undecided",
            "unknown",
        )
    ):
        said.append(f"quality {quality_words(quality)}")
    decision = row.decision
    if decision is not None and not decision.provisional and decision.verdict == "slower":
        said.append(f"it is slower than the baseline: {row.verdict_text}")
    if record.evidence is None:
        said.append("what it executes was never read back, so the check fails")
    return said


def _bundle(
    reader: StudyReader, comparison: Comparison, row: Row, caution: str, speed: Json
) -> Bundle:
    record = row.variant
    artifact = reader.artifact_folder(record)
    if artifact is None or not artifact.is_dir():
        raise ExportError(
            f"{name(row)} has nothing to export: it was not built, or its artifact was removed. "
            "Run it again with rebuild=True."
        )
    inputs, outputs = _one_call(reader, row)
    document_ = document(comparison)
    return Bundle(
        artifact=artifact,
        readme=readme(_about(comparison, row, artifact, caution, has_speed=speed is not None)),
        measurement={
            **{key: document_[key] for key in ("schema_version", "workbench", "model", "device")},
            "baseline": comparison.baseline.variant.recipe.spec,
            "variant": variant(row),
        },
        inputs=inputs,
        outputs=outputs,
        evidence=_inspection(reader, row),
        tolerance=tolerance_of(row),
        caution=caution,
        speed=speed,
        processing=_processing(reader.folder / "source", artifact),
    )


# What a check of a model's own processing reads: names in `check/` and in the source folder.
_PROCESSING = {
    "raw.npy": "raw.npy",
    "raw.json": "raw.json",
    "preprocessed.npz": "preprocessed.npz",
    "postprocessed.npz": "outputs.npz",
    "answer.json": "answer.json",
}


def _processing(source: Path, artifact: Path) -> dict[str, Path]:
    if not (artifact / "processing.py").is_file():
        return {}
    found = {ours: source / theirs for ours, theirs in _PROCESSING.items()}
    return {ours: path for ours, path in found.items() if path.is_file()}


def _one_call(
    reader: StudyReader, row: Row
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Inputs of one call, and what the measured variant answered to them."""
    path = reader.variant_folder(row.number) / "outputs.npz"
    if not path.is_file():
        raise ExportError(
            f"{name(row)} has no stored outputs, so nothing could check it; run it again."
        )
    try:
        rows = read_rows(reader.folder / "model", reader.folder / "source")
    except (InputError, OSError, ValueError) as error:
        raise ExportError(f"the study's inputs cannot be read: {error}") from error
    stored = read_outputs(path)
    outputs = {key: value for key, value in stored.items() if value is not None}
    size = row.variant.items_per_call
    if size is None or not rows.axes:
        return rows.arrays, outputs
    num_rows = rows.num_rows
    for key, value in outputs.items():
        axis = rows.output_axes.get(key)
        if axis is not None and value.ndim > axis:
            # The worker's rows begin at 0 and wrap round, as the call's inputs do.
            index = np.arange(size) % min(num_rows, value.shape[axis])
            outputs[key] = np.take(value, index, axis=axis)
    return rows.batch(0, size), outputs


def _inspection(reader: StudyReader, row: Row) -> Json:
    path = reader.variant_folder(row.number) / "inspection.json"
    if not path.is_file():
        return None
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def tolerance_of(row: Row) -> float:
    """The error that a check allows, from the coarsest type that was executed."""
    evidence = row.variant.evidence
    if evidence is None:
        return _TOLERANCES["fp32"]
    types = [dtype for dtype, share in evidence.precision_share.items() if share > 0]
    known = [_TOLERANCES[t] for t in (*types, *evidence.labels) if t in _TOLERANCES]
    return max(known, default=_TOLERANCES["fp32"])


def _speed(comparison: Comparison, row: Row) -> Json:
    decision = row.decision
    if decision is None or decision.ratio is None or decision.low is None or decision.high is None:
        return None
    return {
        "ratio": decision.ratio,
        "low": decision.low,
        "high": decision.high,
        "items": row.variant.items_per_call or 1,
        "baseline_items": comparison.baseline.variant.items_per_call or 1,
    }


def _about(
    comparison: Comparison, row: Row, artifact: Path, caution: str, *, has_speed: bool
) -> About:
    load_all()
    prepared, record = comparison.prepared, row.variant
    known = engines().get(record.recipe.engine)
    requirements = artifact / "requirements.txt"
    lines = requirements.read_text(encoding="utf-8").splitlines() if requirements.is_file() else []
    host = comparison.host
    device = host.device(record.device) if host and record.device else None
    return About(
        model=comparison.model.name,
        spec=record.recipe.spec,
        engine=known.title if known else record.recipe.engine,
        origin=prepared.origin if prepared else comparison.model.kind,
        device=device.name if device else (record.device or "an unknown device"),
        inputs=prepared.inputs if prepared else comparison.model.inputs,
        items_per_call=record.items_per_call,
        sentences=_sentences(row),
        caution=caution,
        has_speed=has_speed,
        has_processing=(artifact / "processing.py").is_file(),
        index_lines=[line for line in lines if line.startswith("--")],
    )


def _sentences(row: Row) -> list[str]:
    record = row.variant
    said = []
    if row.verdict_text:
        said.append(f"Speed: {row.verdict_text}")
    for title, key in (("A call", "call"), ("Quality", "quality"), ("Peak memory", "memory")):
        made = cell(row, key)  # type: ignore[arg-type]
        if made.text != "–":
            said.append(f"{title}: {made.text}" + (f" ({made.detail})" if made.detail else ""))
    if record.evidence is not None:
        said.append(f"Executed: {executed(row)}")
    return said
