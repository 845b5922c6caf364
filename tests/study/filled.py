"""A study with rows of every kind, written through the real Store.

The figures are drawn from a seeded generator around what the engines do to a small encoder
on a CPU; nothing in the package reads this module.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from workbench.core.device import Device, Host
from workbench.core.evidence import Evidence, GraphBreak, OperatorUse
from workbench.core.failure import Failure
from workbench.core.measurement import (
    ColdStart,
    EnergyReading,
    MemoryReading,
    Pair,
    Quality,
    Round,
    Visit,
)
from workbench.core.model import BatchClaim, Model, PreparedModel, TensorSpec
from workbench.core.profile import Profile
from workbench.core.recipe import Recipe
from workbench.core.variant import RunOptions
from workbench.study.store import Store

HOSTILE = "<img src=x onerror=alert(1)>\"'\n🙂 & </script>"
ITEM_S = 0.004
VERSIONS = {"python": "3.11.9", "torch": "2.13.0+cpu", "onnxruntime": "1.32.0", "numpy": "2.4.1"}


def model_at(folder: Path, name: str = "digits-cnn") -> Model:
    """A model as `load` would describe it, with its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "capture.json").write_text(json.dumps({"kind": "module"}))
    np.savez(folder / "example.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    return Model(
        name=name,
        kind="module",
        folder=str(folder),
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 1, 8, 8)),),
        call={"args": [["tensor", "x"]], "kwargs": {}},
        num_parameters=61_706,
        num_bytes=246_824,
        task="classification",
        settings={"num_threads": 2, "nested": {"tf32": [True, None]}},
    )


def profile(trace: str) -> Profile:
    """What a recording's record holds; there need be no file."""
    return Profile(
        trace=trace, tool="torch", num_iterations=2, recorded_s=1.0, call_s=0.004,
        recorded_call_s=0.005,
    )  # fmt: skip


def record_trace(path: Path, operators: list[str], *, step_us: int = 1000) -> None:
    """Two steps of these operators, each of an equal share, with an allocation each."""
    part_us = step_us // (len(operators) + 1)
    events: list[dict[str, object]] = []
    for step in range(2):
        start = 10_000 + step * 2 * step_us
        common = {"ph": "X", "pid": 1, "tid": 1}
        events.append(
            {**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": start,
             "dur": step_us}
        )  # fmt: skip
        for index, name in enumerate(operators):
            at = start + index * part_us
            events.append({**common, "cat": "cpu_op", "name": name, "ts": at, "dur": part_us})
            for sign, moment in ((1, at + 1), (-1, at + part_us - 1)):
                events.append(
                    {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]",
                     "pid": 1, "tid": 1, "ts": moment,
                     "args": {"Device Type": 0, "Device Id": -1, "Addr": 4096 + index,
                              "Bytes": sign * 1_000_000 * (index + 1),
                              "Total Allocated": 0, "Total Reserved": 0}}
                )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        json.dump({"traceEvents": events}, stream)


def host() -> Host:
    """A two-core machine without a GPU."""
    return Host(
        python="/opt/python/bin/python",
        python_version="3.11.9",
        platform="Linux-6.1-x86_64",
        devices=(
            Device(
                id="cpu",
                kind="cpu",
                name="Xeon at 2.20 GHz",
                num_cores=2,
                memory_bytes=8_000_000_000,
                instruction_sets=("avx", "avx2"),
            ),
        ),
        packages={"torch": "2.13.0+cpu", "onnxruntime": "1.32.0"},
        providers=("CPUExecutionProvider",),
    )


def prepared() -> PreparedModel:
    """What a worker would have found."""
    return PreparedModel(
        kind="factory",
        origin="the cell's source",
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 1, 8, 8)),),
        outputs=(TensorSpec(name="output", dtype="float32", shape=("batch", 10)),),
        batch=BatchClaim(axes={"x": 0}, dynamic=True, example_size=2, verified_sizes=(3, 5)),
        num_parameters=61_706,
        num_bytes=246_824,
        digest="ab" * 32,
        layers={"Conv2d": 2, "Linear": 2},
    )


def visits(
    ratio: float,
    *,
    num_visits: int = 12,
    batch: int = 1,
    noise: float = 0.008,
    seed: int = 0,
    item_s: float = ITEM_S,
) -> list[Visit]:
    """Visits of six pairs in which the variant is `ratio` times as fast an item."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(num_visits):
        level = np.exp(rng.normal(0, 0.05))
        between = np.exp(rng.normal(0, noise))
        pairs = []
        for _ in range(6):
            base = _round(rng, item_s * level, 1)
            other = _round(rng, item_s * level / ratio * between, batch)
            pairs.append(
                Pair(baseline=base, variant=other, baseline_first=bool(rng.random() < 0.5))
            )
        made.append(
            Visit(
                number=number,
                started_s=1.75e9 + 3 * number,
                pairs=tuple(pairs),
                host_load=0.08,
                baseline_process=11,
                variant_process=20 + number % 2,
            )
        )
    return made


def _round(rng: np.random.Generator, item_s: float, batch: int) -> Round:
    call_s = item_s * batch
    num_calls = max(1, round(0.05 / call_s))
    calls_s = (
        call_s * rng.lognormal(0, 0.03, num_calls) * (1 + (rng.random(num_calls) < 0.02) * 0.6)
    )
    return Round(
        num_calls=num_calls,
        num_items=num_calls * batch,
        wall_s=float(calls_s.sum()),
        calls_s=calls_s,
        cpu_s=float(calls_s.sum() * 1.9),
        num_switches=int(rng.integers(0, 4)),
    )


def kept(value: float = 0.998) -> Quality:
    """Outputs that agree well enough on enough rows."""
    return Quality(
        status="kept",
        metric="top-1 agreement",
        value=value,
        low=0.9915,
        high=1.0,
        num_rows=600,
        tolerance=0.01,
        max_abs_error=0.012,
    )


def evidence(engine: str, *labels: str, **more: object) -> Evidence:
    """What ran, with a share of each label."""
    share = {labels[0]: 0.94, "fp32": 0.06} if labels else {"fp32": 1.0}
    return Evidence(
        device="cpu",
        engine_version=engine,
        num_threads=2,
        thread_wait="passive",
        precision_share=share,
        labels=labels,
        **more,  # type: ignore[arg-type]
    )


COMMON = {"device": "cpu", "versions": VERSIONS, "items_per_call": 1, "finished_s": 1.75e9}


def fill(store: Store) -> None:
    """Rows of every kind: decided, undecided, larger batches, failures of each sort."""
    store.set_host(host())
    store.set_prepared(prepared())
    add = _adder(store)
    add(
        "engine=torch",
        role="baseline",
        evidence=evidence(
            "torch 2.13.0+cpu",
            operators=(
                OperatorUse(name="addmm", dtype="fp32", num_calls=2, share=0.4),
                OperatorUse(name="convolution", dtype="fp32", num_calls=2, share=0.5),
            ),
        ),
        quality=Quality(
            status="kept",
            metric="top-1 agreement",
            value=1.0,
            low=0.9937,
            high=1.0,
            num_rows=600,
            tolerance=0.01,
        ),
        cold_start=ColdStart(
            build_s=0.4,
            load_s=0.9,
            first_call_s=0.03,
            copy_in_s=1e-5,
            copy_out_s=1e-5,
            num_warmup=20,
            warmup_stable=True,
        ),
        memory=MemoryReading(host_peak_bytes=31_000_000, host_start_bytes=190_000_000),
        size_bytes=260_000,
    )
    control = add("engine=torch", role="control")
    for visit in visits(1.0, seed=1, noise=0.006):
        store.add_visit(control, visit)
    fast = add(
        "engine=onnxruntime",
        evidence=evidence(
            "onnxruntime 1.32.0",
            providers=("CPUExecutionProvider",),
            fused={"FusedConv": 2, "Gemm": 2},
        ),
        quality=kept(1.0),
        cold_start=ColdStart(
            build_s=6.1,
            load_s=0.2,
            first_call_s=0.01,
            copy_in_s=1e-5,
            copy_out_s=1e-5,
            num_warmup=20,
            warmup_stable=True,
        ),
        memory=MemoryReading(host_peak_bytes=12_400_000, host_start_bytes=60_000_000),
        size_bytes=251_000,
    )
    _measure(store, fast, 1.41, seed=2)
    int8 = add(
        "engine=onnxruntime,quantization=int8-static",
        evidence=evidence(
            "onnxruntime 1.32.0",
            "int8",
            providers=("CPUExecutionProvider",),
            num_layers=4,
            num_layers_quantized=4,
            weights_quantized_share=0.99,
        ),
        quality=kept(),
        cold_start=ColdStart(
            build_s=9.8, load_s=0.15, first_call_s=0.01, num_warmup=20, warmup_stable=True
        ),
        memory=MemoryReading(host_peak_bytes=9_100_000, host_start_bytes=60_000_000),
        size_bytes=74_000,
    )
    _measure(store, int8, 2.35, seed=3)
    compiled = add(
        "engine=torch-compile",
        evidence=evidence(
            "torch 2.13.0+cpu",
            graph_breaks=(
                GraphBreak(
                    file="model.py", line=41, reason="data-dependent branch: x.max().item() > 0"
                ),
            ),
            num_compiles=2,
            num_recompiles=1,
        ),
        quality=kept(1.0),
        cold_start=ColdStart(
            build_s=0.4,
            compile_cold_s=31.5,
            compile_cached_s=3.2,
            load_s=1.0,
            first_call_s=0.02,
            num_warmup=20,
            warmup_stable=True,
        ),
        memory=MemoryReading(host_peak_bytes=88_000_000),
        size_bytes=1_900_000,
    )
    _measure(store, compiled, 1.08, seed=4, noise=0.05, num_visits=7)
    slow = add(
        "engine=torch,precision=bf16",
        evidence=evidence(
            "torch 2.13.0+cpu",
            "bf16",
            notes=("bf16 is emulated: this CPU has no AVX512-BF16 or AMX.",),
        ),
        quality=Quality(
            status="undecided",
            metric="top-1 agreement",
            value=0.985,
            low=0.971,
            high=0.992,
            num_rows=600,
            tolerance=0.01,
            reasons=("1,400 more samples would decide",),
        ),
        cold_start=ColdStart(build_s=0.4, load_s=0.9, first_call_s=0.05),
        size_bytes=130_000,
    )
    _measure(store, slow, 0.55, seed=5)
    same = add(
        "engine=torch,layout=channels-last",
        evidence=evidence("torch 2.13.0+cpu", channels_last=True),
        quality=kept(1.0),
        cold_start=ColdStart(build_s=0.4, load_s=0.9, first_call_s=0.03),
        size_bytes=260_000,
    )
    _measure(store, same, 1.001, seed=6, noise=0.003, num_visits=30)
    for batch, ratio in ((2, 1.6), (8, 2.6), (32, 3.1)):
        row = add(
            f"engine=onnxruntime,batch={batch}",
            evidence=evidence("onnxruntime 1.32.0", providers=("CPUExecutionProvider",)),
            quality=kept(1.0),
            items_per_call=batch,
            cold_start=ColdStart(build_s=6.1, load_s=0.2, first_call_s=0.02),
            memory=MemoryReading(host_peak_bytes=12_400_000 + batch * 400_000),
            size_bytes=251_000,
        )
        _measure(store, row, ratio, seed=10 + batch, batch=batch)
    young = add("engine=openvino", state="measuring", stage="measure", finished_s=None)
    _measure(store, young, 1.9, seed=20, num_visits=1)
    lost = add(
        "engine=torch,precision=fp16",
        state="failed",
        failure=Failure(
            kind="not_finite",
            stage="check",
            message="37 of 6,000 outputs are not finite.",
            remedy="Try precision=bf16, which has the range of fp32.",
        ),
        quality=Quality(
            status="not_finite",
            metric="top-1 agreement",
            num_rows=600,
            tolerance=0.01,
            max_abs_error=float("inf"),
        ),
    )
    assert lost
    add(
        "engine=torch,attention=flash",
        state="failed",
        failure=Failure(
            kind="crash",
            stage="warm-up",
            message="The worker crashed (signal 11).",
            remedy="Try another attention kernel.",
            detail=f"Fatal Python error\n{HOSTILE}",
        ),
        notes=(HOSTILE,),
    )
    add(
        "engine=torch,quantization=int8-dynamic",
        state="stopped-early",
        first_ratio=0.12,
        evidence=evidence(
            "torch 2.13.0+cpu",
            unmet=("int8: 0 of 4 layers were quantized",),
            num_layers=4,
            num_layers_quantized=0,
            weights_quantized_share=0.0,
        ),
        energy=EnergyReading(source="unavailable", reason="RAPL cannot be read without root"),
        failure=Failure(
            kind="stopped",
            stage="measure",
            message="Its first calls took 8.3 times as long as the baseline's.",
            remedy="Resume it to measure it all the same.",
        ),
    )
    add(
        "engine=torch,precision=fp8",
        state="failed",
        failure=Failure(
            kind="unavailable",
            stage="prepare",
            message="fp8 needs compute capability 8.9; this is a CPU with AVX2.",
        ),
    )
    add("engine=torch,threads=1", state="queued", finished_s=None)


def _adder(store: Store):  # type: ignore[no-untyped-def]
    def add(spec: str, *, role: str = "variant", **changes: object) -> int:
        row = store.add_variant(Recipe.parse(spec), role, RunOptions())  # type: ignore[arg-type]
        energy = EnergyReading(source="unavailable", reason="this machine has no RAPL counter")
        state = changes.pop("state", "done")
        values = {**COMMON, "energy": energy, "state": state, **changes}
        if values["state"] == "queued":
            values = {}
        store.update(row.number, **values)
        return row.number

    return add


def _measure(store: Store, number: int, ratio: float, **options: object) -> None:
    for visit in visits(ratio, **options):  # type: ignore[arg-type]
        store.add_visit(number, visit)
