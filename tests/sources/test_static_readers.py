"""Files are told by their content and read without running them (P49)."""

import io
import json
import pickle
import zipfile

import pytest

from workbench.core.errors import (
    MissingDataError,
    UnsupportedFormatError,
    UntrustedFileError,
)
from workbench.sources import describe, load
from workbench.sources.describe import check_state_pickle, read_safetensors_header
from workbench.sources.sniff import sniff


class Marks:
    """A pickle of this creates a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def evil(tmp_path, marker):
    """A pickle that creates the marker, under a name that promises something else."""
    path = tmp_path / "weights.onnx"
    path.write_bytes(pickle.dumps({"w": Marks(marker)}))
    return path


def torch_zip(path, entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(f"archive/{name}", data)
    return path


def safetensors(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_the_format_is_told_by_content_not_by_name(tmp_path, evil):
    assert sniff(evil) == "pickle"
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    assert sniff(safetensors(tmp_path / "model.bin", header, b"\0" * 4)) == "safetensors"
    script = {"constants.pkl": b"", "code/__torch__.py": b"", "data.pkl": b""}
    assert sniff(torch_zip(tmp_path / "a.onnx", script)) == "torchscript"
    assert sniff(torch_zip(tmp_path / "b.onnx", {"data.pkl": b""})) == "torch-pickle"
    program = {"archive_format": b"pt2", "models/model.json": b"{}"}
    assert sniff(torch_zip(tmp_path / "c.onnx", program)) == "exported"
    libraries = {"archive_format": b"pt2", "data/aotinductor/model/a.so": b""}
    assert sniff(torch_zip(tmp_path / "d.pt", libraries)) == "aotinductor"


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"GGUF....", "GGUF"), (b"\x89HDF\r\n", "Keras"), (b"hello", "no format"), (b"", "no format")],
)
def test_unknown_formats_are_named_with_what_can_be_read(tmp_path, content, what):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormatError, match=what) as error:
        load(path)
    assert "ONNX" in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"nothing\.onnx"):
        load(tmp_path / "nothing.onnx")


@pytest.mark.parametrize("trusted", [False, True])
def test_a_pickle_is_refused_and_never_opened(evil, marker, trusted):
    """P49: no marker; the refusal names weights_only; trust does not change it."""
    with pytest.raises(UntrustedFileError, match="weights_only"):
        load(evil, "x: f32[batch, 4]", trusted=trusted)
    assert not marker.exists()


def test_a_pickle_as_a_state_dict_is_refused_and_never_opened(evil, marker):
    """P49."""
    with pytest.raises(UntrustedFileError, match=r"io\.open.*weights_only"):
        load("sources.test_static_readers:Marks", "x: f32[1]", state=evil)
    assert not marker.exists()


def test_a_pickle_inside_a_torch_archive_is_refused(tmp_path, marker):
    """P49."""
    path = torch_zip(tmp_path / "w.pt", {"data.pkl": pickle.dumps(Marks(marker))})
    with pytest.raises(UntrustedFileError, match="weights_only"):
        check_state_pickle(path)
    assert not marker.exists()


def test_a_pickle_in_a_hugging_face_folder_is_refused(tmp_path, marker):
    """P49."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 10}))
    torch_zip(folder / "pytorch_model.bin", {"data.pkl": pickle.dumps(Marks(marker))})
    with pytest.raises(UntrustedFileError, match="weights_only"):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "entries",
    [
        {"archive_format": b"pt2", "models/model.json": b"{}"},
        {"constants.pkl": b"", "code/__torch__.py": b"", "data.pkl": b""},
    ],
)
def test_files_that_run_code_need_trust(tmp_path, entries):
    path = torch_zip(tmp_path / "model.bin", entries)
    with pytest.raises(UntrustedFileError, match="trusted=True"):
        load(path, "x: f32[batch, 4]")


def test_compiled_libraries_are_refused_even_when_trusted(tmp_path):
    entries = {"archive_format": b"pt2", "data/aotinductor/model/a.so": b""}
    with pytest.raises(UntrustedFileError, match="native code"):
        load(torch_zip(tmp_path / "m.pt2", entries), "x: f32[1]", trusted=True)


def test_description_lists_what_a_pickle_would_import(evil, marker, tmp_path):
    found = describe(evil)
    assert found["format"] == "pickle"
    assert found["runs_code"] is True
    # From Python 3.12 on a pickle names `open` by the module that it is written in.
    assert found["suspicious"] == [f"{open.__module__}.open"]
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(Marks(marker)))
    entries = {
        "archive_format": b"pt2",
        "models/model.json": b'{"graph_module": {}, "torch_version": "2.13.0"}',
        "data/sample_inputs/model.pt": inner.getvalue(),
    }
    found = describe(torch_zip(tmp_path / "m.pt2", entries))
    assert found["suspicious"]
    assert found["versions"] == {"torch": "2.13.0"}
    assert not marker.exists()


def test_a_malformed_pickle_is_refused(tmp_path):
    path = tmp_path / "w.pkl"
    path.write_bytes(b"\x80\x04\xff\xff")
    with pytest.raises(UnsupportedFormatError, match="malformed"):
        describe(path)


def test_declared_tensor_sizes_are_checked_against_the_file(tmp_path):
    """P50: a header that promises more than the file holds."""
    short = {"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}
    with pytest.raises(MissingDataError, match="cut short"):
        read_safetensors_header(safetensors(tmp_path / "a", short, b"\0" * 10))
    lying = {"w": {"dtype": "F32", "shape": [1000000], "data_offsets": [0, 4]}}
    with pytest.raises(UnsupportedFormatError, match="declares 4000000 bytes and holds 4"):
        read_safetensors_header(safetensors(tmp_path / "b", lying, b"\0" * 4))


def test_a_state_dict_alone_asks_for_its_factory(tmp_path):
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    path = safetensors(tmp_path / "w.safetensors", header, b"\0" * 4)
    with pytest.raises(Exception, match=r"package\.module:factory"):
        load(path, "x: f32[1]")


def test_remote_code_needs_trust(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    config = {"model_type": "own", "auto_map": {"AutoModel": "modeling.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UntrustedFileError, match="trusted=True"):
        load(folder)


def test_a_shard_outside_the_folder_is_refused(tmp_path):
    """P50: names in an index are file names, not paths."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    index = {"weight_map": {"w": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UntrustedFileError, match="leads out"):
        load(folder)


def test_a_missing_shard_is_named(tmp_path):
    """P65."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    index = {"weight_map": {"w": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MissingDataError, match="model-00002-of-00002"):
        load(folder)


def test_a_link_out_of_a_hugging_face_folder_is_refused_and_the_hubs_cache_is_not(tmp_path):
    """P50: the hub's snapshots are links into its own blobs."""
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    hub = tmp_path / "models--a--b"
    snapshot = hub / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    (hub / "blobs").mkdir()
    blob = safetensors(hub / "blobs" / "abc", header, b"\0" * 4)
    config = {"model_type": "bert", "vocab_size": 10}
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "model.safetensors").symlink_to(blob)
    assert load(snapshot).num_parameters == 1
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(safetensors(tmp_path / "secret", header, b"\0" * 4))
    with pytest.raises(UntrustedFileError, match="outside the model's folder"):
        load(snapshot)


def test_a_python_file_asks_for_the_function_in_it(tmp_path):
    path = tmp_path / "mymodel.py"
    path.write_text("def make(): ...\n")
    with pytest.raises(UnsupportedFormatError, match=r"mymodel:FUNCTION"):
        sniff(path)
