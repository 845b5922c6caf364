"""ONNX files: versions, external data, sizes, inputs (P50, P61, P64, P65)."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from workbench.core.errors import (
    InputError,
    MissingDataError,
    UnsupportedFormatError,
    UntrustedFileError,
)
from workbench.sources import load, prepare
from workbench.sources.onnx_files import read_onnx


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def linear(path, *, batch="batch", opset=20, ir_version=10, weight=None):
    """y = x @ w, x (batch, 4)."""
    w = weight or numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [batch, 4])],
        [value("y", TensorProto.FLOAT, [batch, 2])],
        [w],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = ir_version
    path.write_bytes(model.SerializeToString())
    return path


def external(location, *, length=32, offset=None, shape=(4, 2)):
    """The weight of `linear`, kept elsewhere."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "length": str(length)}
    if offset is not None:
        entries["offset"] = str(offset)
    for key, item in entries.items():
        tensor.external_data.add(key=key, value=item)
    return tensor


DATA = np.ones((4, 2), np.float32).tobytes()


def test_inputs_come_from_the_file(tmp_path):
    model = load(linear(tmp_path / "m.onnx"))
    assert str(model.inputs[0]) == "x: f32[batch, 4]"
    assert (model.num_parameters, model.num_bytes) == (8, 32)
    assert model.kind == "onnx"


@pytest.mark.parametrize(
    ("ir_version", "opset", "words"),
    [
        (99, 20, ["ir_version 99", "up to ir_version", "newer onnxruntime"]),
        (10, 60, ["opset 60", "opset 7 to ", "opset_version="]),
        (10, 6, ["opset 6", "opset 7 and later", "convert_version"]),
    ],
)
def test_an_unread_version_names_the_files_the_supported_and_the_fix(
    tmp_path, ir_version, opset, words
):
    """P64: the file's and the supported versions, and what to do."""
    path = linear(tmp_path / "m.onnx", ir_version=ir_version, opset=opset)
    with pytest.raises(UnsupportedFormatError) as error:
        load(path)
    for word in words:
        assert word in str(error.value)


def test_an_old_opset_runs_with_a_note_on_quantizing(tmp_path):
    """P64: opset 7."""
    notes = load(linear(tmp_path / "m.onnx", opset=7, ir_version=3)).notes
    assert any("opset 7" in note and "opset 13" in note for note in notes)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "C:\\x.bin", "..\\x", ""]
)
def test_external_data_may_not_leave_the_folder(tmp_path, location):
    """P50: refused before anything is read."""
    (tmp_path / "secret.bin").write_bytes(DATA)
    folder = tmp_path / "model"
    folder.mkdir()
    path = linear(folder / "m.onnx", weight=external(location))
    with pytest.raises(UntrustedFileError, match="leads out"):
        load(path)


def test_a_path_that_leads_out_is_refused_even_when_trusted(tmp_path):
    """P50."""
    path = linear(tmp_path / "m.onnx", weight=external("../secret.bin"))
    with pytest.raises(UntrustedFileError):
        load(path, trusted=True)


@pytest.mark.parametrize("link", ["symbolic", "hard", "folder"])
def test_external_data_may_not_be_a_link(tmp_path, link):
    """P50: a symlink, a hard link, and a symlinked folder."""
    (tmp_path / "out").mkdir()
    secret = tmp_path / "out" / "secret.bin"
    secret.write_bytes(DATA)
    folder = tmp_path / "model"
    folder.mkdir()
    location = "w.bin"
    if link == "symbolic":
        (folder / "w.bin").symlink_to(secret)
    elif link == "hard":
        os.link(secret, folder / "w.bin")
    else:
        (folder / "sub").symlink_to(secret.parent)
        location = "sub/secret.bin"
    path = linear(folder / "m.onnx", weight=external(location))
    with pytest.raises(UntrustedFileError, match="link"):
        load(path)


def test_missing_external_data_is_named(tmp_path):
    """P65: the missing part, and the tensor that it holds."""
    path = linear(tmp_path / "m.onnx", weight=external("weights.bin"))
    with pytest.raises(MissingDataError, match=r"'w'.*weights\.bin"):
        load(path)


def test_external_data_that_is_cut_short_is_refused(tmp_path):
    (tmp_path / "w.bin").write_bytes(DATA[:10])
    with pytest.raises(MissingDataError, match="cut short"):
        load(linear(tmp_path / "m.onnx", weight=external("w.bin")))


def test_declared_sizes_are_checked(tmp_path):
    """P50: a shape that promises another size than its data has."""
    (tmp_path / "w.bin").write_bytes(DATA)
    with pytest.raises(UnsupportedFormatError, match="declares"):
        load(linear(tmp_path / "m.onnx", weight=external("w.bin", shape=(4, 2_000_000))))
    inline = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(4, 2), raw_data=b"\0" * 8)
    with pytest.raises(UnsupportedFormatError, match="declares 32 bytes and holds 8"):
        load(linear(tmp_path / "n.onnx", weight=inline))


def test_external_data_in_a_subgraph_is_checked_too(tmp_path):
    """P50: weights can hide in the branches of an If."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])],
        "b",
        [],
        [value("o", TensorProto.FLOAT, [4, 2])],
        [external("../secret.bin")],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph(
        [node],
        "g",
        [value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [4, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UntrustedFileError, match="leads out"):
        read_onnx(tmp_path / "m.onnx")


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = linear(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UnsupportedFormatError):
        load(path)


def test_a_moved_capture_with_external_data_is_whole(tmp_path):
    """P65: the capture is complete and relative."""
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "w.bin").write_bytes(DATA)
    model = load(linear(folder / "m.onnx", weight=external("data/w.bin")))
    shutil.rmtree(folder)
    moved = tmp_path / "elsewhere"
    shutil.move(model.folder, moved)
    prepared = prepare(moved, tmp_path / "source")
    assert (tmp_path / "source" / "data" / "w.bin").is_file()
    assert prepared.batch.dynamic


def test_a_fixed_batch_is_said_with_the_reason(tmp_path):
    """P61: [1, 4] sweeps to 1 only."""
    model = load(linear(tmp_path / "m.onnx", batch=1))
    prepared = prepare(Path(model.folder), tmp_path / "source")
    assert not prepared.batch.dynamic
    assert prepared.batch.example_size == 1
    assert "fixes dimension 0 of the input 'x' at 1" in prepared.batch.reason


def test_a_symbolic_batch_is_claimed_after_other_sizes_ran(tmp_path):
    model = load(linear(tmp_path / "m.onnx"), np.ones((2, 4)))
    assert any("float64 to float32" in note for note in model.notes)
    prepared = prepare(Path(model.folder), tmp_path / "source")
    assert prepared.batch.dynamic
    assert len(set(prepared.batch.verified_sizes) - {2}) >= 2
    assert prepared.batch.rows_independent is True
    assert prepared.inputs[0].shape == ("batch", 4)
    assert prepared.outputs[0].shape == ("batch", 2)
    assert prepared.layers == {"Linear": 1}


def test_other_symbolic_dimensions_ask_for_a_value(tmp_path):
    """P61."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["batch", "seq"])],
        [value("y", TensorProto.FLOAT, ["batch", "seq"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"'seq'.*seq=128"):
        load(path)
    assert load(path, "x: f32[batch, seq=7]").inputs[0].shape == ("batch", "seq")


def test_ids_are_bounded_by_the_table_they_index(tmp_path):
    """P58: an ONNX embedding; an id of -1 or 10 is refused here, since ONNX Runtime runs it."""
    table = numpy_helper.from_array(np.ones((10, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "ids"], ["y"])],
        "g",
        [value("ids", TensorProto.INT64, ["batch", 3])],
        [value("y", TensorProto.FLOAT, ["batch", 3, 4])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert (load(path).inputs[0].low, load(path).inputs[0].high) == (0, 10)
    with pytest.raises(InputError, match=r"holds -1; wanted values in 0\.\.10"):
        load(path, np.array([[0, 1, -1]]))


def test_wrong_inputs_name_input_wanted_and_got(tmp_path):
    """P59."""
    path = linear(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"'x'.*wanted x: f32\[batch, 4\], got float32\[2, 3\]"):
        load(path, np.ones((2, 3), np.float32))
    with pytest.raises(InputError, match="z unknown"):
        load(path, {"z": np.ones((2, 4))})
