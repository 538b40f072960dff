"""`stepnet build`, and libraries run from Python: nothing is loaded but what the caller trusts."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from command_line import MODEL, VOWELS, refusal, stepnet
from constants import Constants
from onnx import TensorProto, helper, numpy_helper
from pyarrow.parquet import read_table
from same_bits import assert_same_bits
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet import arrow
from stepnet.build import build, load
from stepnet.compiler.targets.library import Description
from stepnet.errors import FileError, InputError, LibraryError
from stepnet.onnx import load as load_onnx
from tests.build.libraries import given, library_of


def test_a_built_file_runs_over_data_as_its_model_does(tmp_path: Path):
    code, printed, _ = stepnet(
        "build", "--recurrent-only", MODEL, "-o", tmp_path / "built", "--weights", "beside"
    )
    assert code == 0
    paths = [line.split()[1] for line in printed.splitlines()[1:]]
    names = [
        "speaker_gru.h",
        "libspeaker_gru.a",
        "libspeaker_gru.so",
        "speaker_gru.json",
        "speaker_gru.weights",
    ]
    assert [Path(path).name for path in paths] == names
    header = " ".join(Path(paths[0]).read_text(encoding="utf-8").split())
    assert "The program computes what is left out: " in header
    assert all(name in header for name in printed.splitlines()[0].partition("left out: ")[2].split(", "))
    assert (
        stepnet(
            "run",
            "--recurrent-only",
            MODEL,
            "--input",
            VOWELS,
            "-o",
            tmp_path / "right.parquet",
            "--engine",
            "llvm",
        )[0]
        == 0
    )
    made = "run", "--trust-library", paths[2], "--input", VOWELS, "-o", tmp_path / "made.parquet"
    assert stepnet(*made)[0] == 0
    made_table, right_table = (read_table(tmp_path / f"{name}.parquet") for name in ("made", "right"))
    assert made_table.equals(right_table)  # of the files the marks differ: they name what made them


def test_nothing_is_loaded_that_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = build(rnn_of("gru", 12, 4), tmp_path, inputs=12)
    monkeypatch.setattr("stepnet.build.loaded.ctypes.CDLL", lambda path: pytest.fail(f"{path} was loaded"))
    options = "--input", VOWELS, "-o", tmp_path / "y.parquet"
    assert "a library is machine code, which may do all that this process may: --trust-library" in refusal(
        "run", made.shared, *options
    )
    assert "only the shared library itself, lib*.so, can be loaded" in refusal(
        "run", "--trust-library", made.manifest, *options
    )
    assert "only the shared library itself" in refusal("run", "--trust-library", MODEL, *options)
    assert "it has no" in refusal("run", made.manifest, *options)
    for trust in (False, None, 1):
        with pytest.raises(InputError, match="says that you trust it"):
            load(made.shared, trust=trust)  # type: ignore[arg-type]


def test_files_that_are_no_libraries(tmp_path: Path):
    path = tmp_path / "libx.so"
    for data in (b"", b"\x7fELF", b"MZ" * 100):
        path.write_bytes(data)
        with pytest.raises(FileError, match="this is not a shared library for Linux"):
            load(path, trust=True)
    whole = build(rnn_of("gru", 3, 4), tmp_path, inputs=3).shared.read_bytes()
    path.write_bytes(whole.replace(b"model_describe", b"model_descrive"))
    with pytest.raises(FileError, match="this is not a library that stepnet built"):
        load(path, trust=True)
    with pytest.raises(FileError, match="there is no such file"):
        load(tmp_path / "no.so", trust=True)


def test_a_library_that_ends_early_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The system's loader would end the process with a signal.
    monkeypatch.setattr("stepnet.build.loaded.ctypes.CDLL", lambda path: pytest.fail(f"{path} was loaded"))
    path = build(rnn_of("gru", 3, 4), tmp_path, inputs=3).shared
    whole = path.read_bytes()
    for size in (64, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError, match=f"the library has {size} of {len(whole)} bytes"):
            load(path, trust=True)


def test_a_library_that_was_replaced_while_it_was_loaded(tmp_path: Path):
    path = build(rnn_of("gru", 3, 4), tmp_path, name="one", inputs=3).shared
    x = sequences([3, 1], 3)
    library = load(path, trust=True)
    right = library({"x": x})
    for name, cause in (("two", "a function is missing "), ("one", "this process has loaded another")):
        other = build(rnn_of("lstm", 3, 5), tmp_path / name, name=name, inputs=3).shared
        other.replace(path)
        with pytest.raises(FileError, match=f"{cause}.*load it in a new process, or from another folder"):
            load(path, trust=True)
    assert_same_bits(library({"x": x}), right)


def test_a_folder_on_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    said = refusal("build", MODEL, "--recurrent-only", "-o", "s3://bucket/z")
    assert said.startswith("s3://bucket/z: a library is written to a folder of this machine")
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_is_no_text(tmp_path: Path):
    made = build(rnn_of("gru", 3, 4), tmp_path, inputs=3, weights="beside")
    assert made.weights is not None
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    x, right = sequences([3, 1], 3), load(made.shared, trust=True)
    for file in (made.shared, made.weights):
        shutil.copy(file, folder)
    assert_same_bits(load(folder / made.shared.name, trust=True)({"x": x}), right({"x": x}))


def test_arrays_without_names(tmp_path: Path):
    library = load(build(rnn_of("gru", 3, 4), tmp_path, inputs=3).shared, trust=True)
    for wrong in (None, [], sequences([3], 3)):
        with pytest.raises(InputError, match="a library takes a dict of arrays by name, not"):
            library(wrong)  # type: ignore[arg-type]


def test_weights_beside_are_found_and_checked(tmp_path: Path):
    made = build(rnn_of("gru", 8, 4), tmp_path, inputs=8, weights="beside")
    assert made.weights is not None
    x, moved = sequences([3, 1], 8), tmp_path / "moved"
    right = load(made.shared, trust=True)({"x": x})
    made.weights.rename(moved)
    with pytest.raises(FileError, match=r"model\.weights: there is no such file"):
        load(made.shared, trust=True)
    assert_same_bits(load(made.shared, trust=True, weights=moved)({"x": x}), right)
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    moved.write_bytes(data)
    with pytest.raises(LibraryError, match="the weights are damaged"):
        load(made.shared, trust=True, weights=moved)


def test_weights_that_code_does_not_reach_are_refused(tmp_path: Path, constants: Constants):
    constants("stepnet.compiler.targets.cpu.library.generate", MOST_INSIDE=100)
    with pytest.raises(
        InputError, match=r"the weights take \d+ bytes, and code reaches 100 .* --weights beside"
    ):
        build(rnn_of("gru", 8, 4), tmp_path, inputs=8)
    assert build(rnn_of("gru", 8, 4), tmp_path, inputs=8, weights="beside").weights is not None


def test_arrays_that_do_not_fit_a_library(tmp_path: Path):
    library = library_of(rnn_of("lstm", 8, 4), tmp_path, inputs=8)
    x = sequences([3, 1], 8)
    for arrays in ({}, {"x": x, "z": x}, {"initial_h": np.zeros((2, 4), "f")}):
        with pytest.raises(InputError, match="the library takes arrays called x, initial_h, initial_c, not"):
            library(arrays)
    with pytest.raises(InputError, match="x is a Ragged of one level"):
        library({"x": x.values})
    with pytest.raises(InputError, match=r"x is float32\[4, 8\], not float32\[4, 7\]"):
        library({"x": sequences([3, 1], 7)})
    with pytest.raises(InputError, match=r"initial_c is float32\[2, 4\], not float64\[2, 4\]"):
        library({"x": x, "initial_c": np.zeros((2, 4))})


def test_a_library_whose_calls_a_file_does_not_have(tmp_path: Path):
    model = sn.Graph(lambda x, p: {"a": x * p, "b": x + p}, np.ones(12, "float32"))
    made = build(model, tmp_path, inputs=12)
    options = "--input", VOWELS, "-o", tmp_path / "y.parquet"
    said = refusal("run", "--trust-library", made.shared, *options)
    assert (
        "this one takes x, and gives y_a, y_b: in Python, stepnet.build.load(path, trust=True)({'x': x})"
        in said
    )


@pytest.mark.parametrize(("how", "result"), [("each", "outputs"), ("once", "outputs"), ("once", "last")])
def test_a_library_gives_the_results_of_its_model(how: str, result: str, tmp_path: Path):
    outputs = {"each": lambda x, p: x * p, "once": lambda x, p: sn.reduce(x * p, "mean")}
    model = sn.Graph(outputs[how], np.ones(12, "float32"), inputs=12)
    made = build(model, tmp_path)
    options = "--input", VOWELS, "--result", result, "-o", tmp_path / "y.parquet"
    assert stepnet("run", "--trust-library", made.shared, *options)[0] == 0
    expected = arrow.predict(read_table(VOWELS), model, result=result).read_all()[result]
    assert read_table(tmp_path / "y.parquet")[result].to_pylist() == expected.to_pylist()


def test_the_last_output_is_not_asked_of_a_library_that_gives_all(tmp_path: Path):
    made = build(rnn_of("gru", 12, 4), tmp_path, inputs=12)
    options = "--input", VOWELS, "--result", "last", "-o", tmp_path / "y.parquet"
    assert "gives y of each step, and not the last of each sequence: leave out --result" in refusal(
        "run", "--trust-library", made.shared, *options
    )


def test_a_library_is_no_model_file(tmp_path: Path):
    path, load_model = build(rnn_of("gru", 3, 4), tmp_path, inputs=3).shared, cast("Any", sn.load)
    with pytest.raises(
        FileError, match=r"machine code: stepnet\.build\.load\(path, trust=True\) loads a library"
    ):
        load_model(path)
    with pytest.raises(InputError, match=r"load has no argument trust=: stepnet\.build\.load"):
        load_model(path, trust=True)


def test_an_onnx_file_is_built_whole(tmp_path: Path):
    random = np.random.default_rng(0)
    shapes = {"W": (1, 12, 3), "R": (1, 12, 4), "B": (1, 24), "P": (4, 2)}
    tensors = [
        numpy_helper.from_array(random.normal(size=shape).astype("float32"), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("GRU", ["frames", "W", "R", "B"], ["h", ""], hidden_size=4),
        helper.make_node("Squeeze", ["h", "axes"], ["s"]),
        helper.make_node("MatMul", ["s", "P"], ["scores"]),
    ]
    tensors.append(numpy_helper.from_array(np.array([1]), "axes"))
    value = helper.make_tensor_value_info
    x = value("frames", TensorProto.FLOAT, ["T", "N", 3])
    y = value("scores", TensorProto.FLOAT, ["T", "N", 2])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors), ir_version=8)
    model.opset_import[0].version = 14
    path = tmp_path / "2 taggers.onnx"
    onnx.save(model, path)
    code, printed, _ = stepnet("build", path, "-o", tmp_path, "--json")
    assert code == 0
    paths: dict[str, Any] = json.loads(printed)
    assert Path(paths["shared"]).name == "libmodel_2_taggers.so"
    library, sequences_ = load(paths["shared"], trust=True), sequences([4, 0, 2], 3)
    right = load_onnx(path)(sequences_, engine="llvm")
    assert_same_bits(list(library(given(library, sequences_)).values()), [right])
    header = Path(paths["header"]).read_text(encoding="utf-8")
    assert "x: `frames` of the model: [steps, 3], of each step" in header
    assert "y: `scores` of the model: out: [steps, 2], of each step" in header
    manifest = Path(paths["manifest"]).read_bytes()
    assert Description.read(manifest) == library.about


def test_files_are_replaced_only_where_that_is_asked(tmp_path: Path):
    model = rnn_of("gru", 3, 4)
    made = build(model, tmp_path, inputs=3)
    made.static.unlink()
    with pytest.raises(FileError, match="the file is there already; --force"):
        build(model, tmp_path, inputs=3)
    assert not made.static.exists()
    build(model, tmp_path, inputs=3, force=True)
    assert made.static.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="the folder cannot be made"):
        build(model, tmp_path / "file" / "x", inputs=3)
    with pytest.raises(
        FileError, match="this is a file, and a library has several files: name a folder for them"
    ):
        build(model, tmp_path / "file", inputs=3, force=True)
