"""What every engine must do, whichever it is: add one to the table and it is tested here."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engines.onnx_sources import (
    Sample,
    as_onnx,
    build,
    cnn_sample,
    context_of,
    encoder_sample,
    error_of,
    host,
    serve,
)
from workbench.core.recipe import Recipe
from workbench.engines import engine, engines, load_all
from workbench.engines.table import check_available
from workbench.levers.step import Context

load_all()

# Largest error of an fp32 engine over an output's largest value.
TOLERANCE = 1e-4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    folder = tmp_path_factory.mktemp("samples")
    return {"cnn": cnn_sample(folder / "cnn"), "encoder": encoder_sample(folder / "encoder")}


def context_for(name: str, sample: Sample) -> Context:
    context = context_of(sample.model, Recipe(engine=name))
    equipped = replace(context, host=replace(host(), tools={"c++": "g++"}))
    check_available(equipped)
    return equipped


@pytest.mark.parametrize("kind", ["cnn", "encoder"])
@pytest.mark.parametrize("name", sorted(engines()))
def test_an_engine_keeps_the_contract(
    name: str, kind: str, samples: dict[str, Sample], tmp_path: Path
) -> None:
    sample = samples[kind]
    if "factory" not in engine(name).accepts:
        pytest.fail(f"{name} takes no factory: give it a sample of its own here")
    context = context_for(name, sample)
    served = serve(sample.source, context, sample.inputs, tmp_path)

    # The reference, by dotted name, with None where the model gave None.
    assert error_of(served, sample) < TOLERANCE
    names = json.loads((sample.source / "source.json").read_text())["outputs"]
    assert list(served.names) == names
    given = {n for n in names if n in served.outputs}
    assert set(names) - given == ({"cache"} if kind == "encoder" else set())
    if kind == "encoder":
        assert served.outputs["layers"].shape == ()
        assert int(served.outputs["layers"]) == 2

    # Inspection is JSON, and says what a check compares.
    assert isinstance(served.raw, dict)
    assert served.raw["executed"]
    assert json.loads(json.dumps(served.raw)) == served.raw

    # What is served needs no workbench; an engine without torch brings none along.
    assert "workbench" not in served.imported
    if not engine(name).serves_with_torch:
        assert "torch" not in served.imported

    # Evidence comes from the run and not from the recipe.
    evidence = served.evidence
    assert evidence.device == "cpu"
    assert evidence.unmet == ()
    assert evidence.precision_share.get("fp32", 0) > 0.9
    assert evidence.operators
    assert evidence.num_threads == 1
    assert evidence.thread_wait in ("passive", None)
    halved = replace(context, recipe=Recipe(engine=name, precision="fp16"))
    claimed = engine(name).read_evidence(served.raw, halved)
    assert "fp16" not in claimed.labels
    assert any("fp16" in words for words in claimed.unmet)


@pytest.mark.parametrize("name", sorted(engines()))
def test_an_artifact_holds_no_pickle_and_none_of_the_users_rows(
    name: str, samples: dict[str, Sample], tmp_path: Path
) -> None:
    artifact = build(samples["cnn"].source, context_for(name, samples["cnn"]), tmp_path)
    files = sorted(p.relative_to(artifact).as_posix() for p in artifact.rglob("*") if p.is_file())
    assert "pipeline.py" in files
    assert not [f for f in files if f.endswith((".npz", ".npy", ".pkl", ".pickle", ".pyc"))]
    for path in artifact.rglob("*"):
        if path.is_file() and zipfile.is_zipfile(path):
            assert path.suffix == ".pt2", path


@pytest.mark.parametrize("name", [n for n in engines() if "onnx" in engine(n).accepts])
def test_an_engine_that_reads_onnx_keeps_the_contract_on_a_graph(
    name: str, samples: dict[str, Sample], tmp_path: Path
) -> None:
    exported = build(samples["cnn"].source, context_for("onnxruntime", samples["cnn"]), tmp_path)
    sample = as_onnx(samples["cnn"], exported, tmp_path / "onnx")
    served = serve(sample.source, context_for(name, sample), sample.inputs, tmp_path / "served")
    assert error_of(served, sample) < TOLERANCE
    assert np.isfinite(served.outputs["output"]).all()
