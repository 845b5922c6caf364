"""The figures beside the rounds, and what really ran."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from workbench.core.errors import RunError
from workbench.core.measurement import EnergyReading, MemoryReading
from workbench.engines.engine import engine
from workbench.run import protocol
from workbench.run.crew import Crew
from workbench.run.failures import RowStopped
from workbench.run.live import Live
from workbench.run.records import Records

_ENERGY_WINDOW_S = 2.0


def close_books(crew: Crew, records: Records, live: Live, number: int) -> None:
    """Keep memory, copies, energy and evidence of a server as those of row `number`.

    The evidence comes last, under a profiler: the worker must not be timed afterwards. What
    cannot be read is absent, with a note that says why; it costs no row its verdict.
    """
    for part in (_extras, _evidence):
        try:
            part(crew, records, live, number)
        except RowStopped:
            raise
        except RunError as error:
            row = records.variant(number)
            what = "what really ran" if part is _evidence else "memory and energy"
            records.update(number, notes=(*row.notes, f"{what} could not be read: {error}"))
            return


def _extras(crew: Crew, records: Records, live: Live, number: int) -> None:
    answer = crew.ask(
        live.server,
        protocol.MeasureExtras(energy_window_s=_ENERGY_WINDOW_S, device=live.context.device.id),
        stage="measure",
        limit_s=live.limit_s("measure"),
    )
    assert isinstance(answer, protocol.Extras)
    cold = records.variant(number).cold_start
    if cold is not None:
        cold = replace(
            cold,
            copy_in_s=answer.copy_in_s,
            copy_out_s=answer.copy_out_s,
            preprocess_s=answer.preprocess_s,
            postprocess_s=answer.postprocess_s,
        )
    memory = msgspec.json.decode(answer.memory, type=MemoryReading)
    if live.device_used_bytes is not None:
        # Seen from outside, so that the worker's own context and libraries are in it.
        memory = replace(memory, device_used_bytes=live.device_used_bytes)
    elif memory.device_used_bytes is not None:
        note = "the device's memory is without the CUDA context: NVML did not answer"
        memory = replace(memory, notes=(*memory.notes, note))
    records.update(
        number,
        cold_start=cold,
        memory=memory,
        energy=msgspec.json.decode(answer.energy, type=EnergyReading),
    )


def _evidence(crew: Crew, records: Records, live: Live, number: int) -> None:
    answer = crew.ask(
        live.server,
        protocol.Inspect(),
        stage="measure",
        limit_s=live.limit_s("measure"),
    )
    assert isinstance(answer, protocol.Inspected)
    raw = msgspec.json.decode(answer.raw)
    inspection = records.folder / "variants" / str(number) / "inspection.json"
    inspection.write_bytes(answer.raw)
    evidence = engine(live.recipe.engine).read_evidence(raw, live.context)
    records.update(number, evidence=evidence, versions=answer.versions, device=evidence.device)
