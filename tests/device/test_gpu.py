"""What must hold on any GPU. `python -m tests.device` prints the figures beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.device import faults, levers
from tests.device.faults import GRAPHS, judge_memory
from tests.device.levers import Measured
from tests.device.peaks import peak_flops
from tests.device.stand import (
    Arrays,
    Server,
    Stand,
    Subject,
    build,
    cnn,
    encoder,
    make_stand,
    probe,
)
from tests.device.suite import Notebook
from workbench.core.failure import Failure
from workbench.core.recipe import Recipe

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.timeout(600)]

DEVICE = "cuda:0"
Serve = Callable[..., Measured]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = make_stand(DEVICE, tmp_path_factory.mktemp("gpu") / "stand", 3600, quick=False)
    made.out = made.folder
    yield made
    made.close()


@pytest.fixture(scope="module")
def images(stand: Stand) -> Subject:
    return cnn(stand)


@pytest.fixture(scope="module")
def sequences(stand: Stand) -> Subject:
    return encoder(stand)


@pytest.fixture(scope="module")
def serve(stand: Stand) -> Serve:
    """Build and measure a recipe once; `environment` is what its worker gets besides."""
    known: dict[tuple[str, str], Measured] = {}
    truths: dict[str, Arrays] = {}

    def served(subject: Subject, recipe: Recipe, **environment: str) -> Measured:
        sized = recipe.replace(batch=16)
        key = subject.name, sized.spec + json.dumps(environment)
        if key not in known:
            if subject.name not in truths:
                truths[subject.name] = levers.reference(subject, levers.num_rows(stand))
            folder = build(stand, [(subject, sized)], limit_s=240)[sized]
            assert not isinstance(folder, Failure), folder
            with_torch = recipe.engine != "onnxruntime"
            with Server(stand, with_torch=with_torch, environment=environment) as server:
                known[key] = levers.measure(
                    stand, subject, sized, folder, truths[subject.name], server
                )
        return known[key]

    return served


def judged(
    stand: Stand, part: Callable[..., None], subject: Any, tmp_path: Path
) -> dict[str, bool | None]:
    """What a part of the suite's third section finds, by check."""
    notebook = Notebook(path=tmp_path / "lines.jsonl")
    part(stand, notebook, subject)
    return {line["name"]: line["holds"] for line in notebook.lines if line["kind"] == "check"}


def test_a_matmul_takes_what_its_arithmetic_takes(stand: Stand) -> None:
    """P23: 8192³ in fp16 by the wall and by events; launching it returns long before."""
    found = probe(stand, "matmul")
    peak = peak_flops(stand.device)
    assert found["event_s"] is not None
    assert found["event_s"] <= found["wall_s"] * 1.001
    assert found["launch_s"] < found["wall_s"] / 2
    if peak is not None:
        assert found["event_s"] >= found["flops"] / peak


def test_three_kinds_of_gpu_memory_are_told_apart(stand: Stand) -> None:
    """P34."""
    found = probe(stand, "memory_kinds")
    assert set(judge_memory(found).values()) == {True}, found


def test_rounds_have_the_devices_own_times_and_clocks(serve: Serve, images: Subject) -> None:
    found = serve(images, Recipe(engine="torch"))
    assert found.event_s is not None
    assert 0 < found.event_s <= found.call_s * 1.001
    assert found.sm_clock_mhz is not None
    assert found.sm_clock_mhz > 100


def test_a_row_takes_more_of_the_card_than_its_allocator_holds(
    serve: Serve, images: Subject
) -> None:
    """P34: the context and the libraries' own memory are in the difference alone."""
    found = serve(images, Recipe(engine="torch"))
    memory = found.memory
    assert memory.allocator_peak_bytes is not None
    assert memory.allocator_reserved_bytes is not None
    assert found.device_used_bytes is not None
    assert 0 < memory.allocator_peak_bytes <= memory.allocator_reserved_bytes
    assert memory.allocator_reserved_bytes < found.device_used_bytes


def test_tf32_is_read_back_for_every_leaf(serve: Serve, images: Subject) -> None:
    tf32 = serve(images, Recipe(engine="torch", precision="tf32"))
    fp32 = serve(images, Recipe(engine="torch", precision="fp32"))
    assert set((levers.fp32_precision(tf32.raw) or {}).values()) == {"tf32"}
    assert set((levers.fp32_precision(fp32.raw) or {}).values()) == {"ieee"}
    assert "fp32" in fp32.evidence.labels
    assert "fp32" not in tf32.evidence.labels
    # Ten bits of mantissa against twenty-three.
    assert tf32.error_max > 10 * fp32.error_max


def test_torchs_own_default_is_named_for_what_it_is(serve: Serve, images: Subject) -> None:
    """Convolutions in tf32 and matmuls not: no strict fp32."""
    found = serve(images, Recipe(engine="torch"))
    leaves = levers.fp32_precision(found.raw) or {}
    assert leaves["cuda.matmul"] == "ieee"
    assert leaves["cudnn.conv"] == "tf32"
    assert "fp32" not in found.evidence.labels


@pytest.mark.parametrize("recipe", GRAPHS, ids=str)
def test_a_graph_hands_out_answers_of_its_own(
    stand: Stand, images: Subject, recipe: Recipe
) -> None:
    """Two different inputs in a row: the first answer survives the second call."""
    sized = recipe.replace(batch=8)
    folder = build(stand, [(images, sized)], limit_s=240)[sized]
    assert not isinstance(folder, Failure), folder
    rows = faults.write_rows(stand, images, 16)
    found = probe(stand, "two_inputs", folder=str(folder), rows=str(rows), batch=8, limit_s=200)
    assert found["held_error"] < 1e-3
    assert found["inputs_differ_by"] > 1e-2


@pytest.mark.parametrize("recipe", GRAPHS, ids=str)
def test_a_graph_is_launched_and_keeps_its_precision(
    serve: Serve, images: Subject, recipe: Recipe
) -> None:
    found = serve(images, recipe.replace(precision="bf16"))
    assert found.evidence.num_graph_launches is not None
    assert found.evidence.num_graph_launches >= 1
    assert "cuda-graphs" in found.evidence.labels
    assert found.evidence.precision_share.get("bf16", 0.0) > 0.5
    assert found.evidence.unmet == ()


def test_eager_calls_launch_no_graph(serve: Serve, images: Subject) -> None:
    found = serve(images, Recipe(engine="torch"))
    assert found.evidence.num_graph_launches == 0
    assert "cuda-graphs" not in found.evidence.labels


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(engine="torch", attention="flash", precision="bf16"),
        Recipe(engine="torch", attention="cudnn", precision="bf16"),
        Recipe(engine="torch", attention="efficient"),
        Recipe(engine="torch", attention="math"),
    ],
    ids=str,
)
def test_a_forced_attention_kernel_is_seen(
    stand: Stand, serve: Serve, sequences: Subject, recipe: Recipe
) -> None:
    reason = levers.unavailable(stand, sequences, recipe)
    if reason is not None:
        pytest.skip(f"no GPU: {reason}")
    found = serve(sequences, recipe)
    assert found.evidence.attention == recipe.get("attention")
    assert found.evidence.unmet == ()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_short_format_is_seen_and_costs_accuracy(
    serve: Serve, sequences: Subject, precision: str
) -> None:
    found = serve(sequences, Recipe(engine="torch", precision=precision))
    plain = serve(sequences, Recipe(engine="torch", precision="fp32"))
    assert found.evidence.precision_share.get(precision, 0.0) > 0.9
    assert plain.error_max < 1e-4 < found.error_max < 0.2


def test_onnxruntime_says_where_it_ran(stand: Stand, serve: Serve, images: Subject) -> None:
    """P17: the CUDA provider is read back; with the GPU hidden the row says CPU, and why."""
    if "CUDAExecutionProvider" not in stand.host.providers:
        pytest.skip("no GPU: the installed onnxruntime has no CUDA provider")
    found = serve(images, Recipe(engine="onnxruntime"))
    assert found.evidence.providers[0] == "CUDAExecutionProvider"
    assert found.evidence.device == DEVICE
    assert "CUDA" in found.evidence.labels
    hidden = serve(images, Recipe(engine="onnxruntime"), CUDA_VISIBLE_DEVICES="")
    assert hidden.evidence.device.startswith("CPU (CUDA unavailable")
    assert hidden.evidence.unmet
    assert "CUDA" not in hidden.evidence.labels


@pytest.mark.parametrize("part", [faults.out_of_memory, faults.kill, faults.stop])
def test_what_ends_gives_its_memory_back(
    stand: Stand, images: Subject, tmp_path: Path, part: Callable[..., None]
) -> None:
    sized = Recipe(engine="torch").replace(batch=8)
    built = build(stand, [(images, sized)], limit_s=240)
    ground = faults.Ground(subject=images, batch=8, built={Recipe(engine="torch"): built[sized]})
    found = judged(stand, part, ground, tmp_path)
    assert found
    assert False not in found.values(), found


def test_a_study_runs_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the scheduler: evidence, events and memory come from the card."""
    monkeypatch.setenv("WORKBENCH_DEVICE", DEVICE)
    monkeypatch.setenv("WORKBENCH_IDLE_EXIT_S", "10")
    study = wb.Study(wb.load("sample:digits-cnn"), tmp_path / "study")
    (_, number) = study.run("engine=torch,precision=bf16", budget_s=5, progress=False)
    row = study.compare().row(number).variant
    assert row.state == "done", row.failure
    assert row.evidence is not None
    assert row.evidence.device.startswith(DEVICE)
    assert row.memory is not None
    assert row.memory.device_used_bytes is not None
    assert row.memory.allocator_peak_bytes is not None
    visits = study.reader.visits(number)
    assert all(pair.variant.event_s is not None for visit in visits for pair in visit.pairs)
