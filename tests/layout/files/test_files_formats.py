"""Kinds of files through the command line: what is refused, in one line, with nothing left behind."""

import io
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from command_line import refusal, stepnet
from containers import Array, Runs, assert_same, savez, words_of
from safetensors.numpy import load_file, save_file
from saved_arrays import saved_arrays

from stepnet.errors import FileError
from stepnet.layout.files import FORMATS, Module, convert_file, kind, read, write

INPUTS, HIDDEN = 2, 3
SHAPES = {
    "weight_ih_l0": (3 * HIDDEN, INPUTS),
    "weight_hh_l0": (3 * HIDDEN, HIDDEN),
    "bias_ih_l0": (3 * HIDDEN,),
    "bias_hh_l0": (3 * HIDDEN,),
}
GRU: dict[str, Array] = {
    name: np.random.default_rng(place).normal(size=shape).astype("f4")
    for place, (name, shape) in enumerate(SHAPES.items())
}
HEAD = {"head.weight": np.arange(6, dtype="f4").reshape(2, 3), "step": np.array([7])}


def prefixed(front: str, arrays: dict[str, Array] = GRU, times: float = 1) -> dict[str, Array]:
    return {f"{front}{name}": (array * times).astype(array.dtype) for name, array in arrays.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(GRU, path)
    return path


def files(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


# ---- endings -----------------------------------------------------------------------------------------------

ENDINGS = {
    "a.pt": "PyTorch",
    "a.pth": "PyTorch",
    "pytorch_model.bin": "PyTorch",
    "A.SafeTensors": "safetensors",
    "a.keras": "Keras",
    "a.weights.h5": "Keras",
    "a.hdf5": "Keras",
    "a.onnx": "ONNX",
    "a.tflite": "TFLite",
    "a.npz": "NumPy",
    "a.msgpack": "Flax",
    "a.pdparams": "PaddlePaddle",
    "a.params": "MXNet",
    "a.index": "TensorFlow checkpoint",
    "model.ckpt-1000": "TensorFlow checkpoint",
    "model.ckpt-1000.data-00000-of-00001": "TensorFlow checkpoint",
    "a.json": "raw buffers",
}
READ_ALONE = (
    *(".index.json", ".pt2", ".distcp", ".metadata", ".nemo", ".mlpackage", ".mlmodel", ".xml"),
    *(".index", ".ckpt", ".pb"),
)


@pytest.mark.parametrize("name", ENDINGS)
def test_the_ending_tells_the_kind(tmp_path: Path, name: str):
    assert kind(tmp_path / name).title == ENDINGS[name]


def test_a_bin_with_a_json_beside_it_is_a_buffer(tmp_path: Path):
    (tmp_path / "a.json").write_text("{}")
    assert kind(tmp_path / "a.bin").title == "raw buffers"
    assert kind(tmp_path / "b.bin").title == "PyTorch"


@pytest.mark.parametrize("name", ["a", "a.zzz", "a.npz.gz", "npz"])
def test_other_endings_are_refused(tmp_path: Path, model: Path, name: str):
    known = [ending for one in FORMATS for ending in one.endings]
    new = [ending for ending in known if ending not in READ_ALONE]
    said = refusal("convert", model, "--to", "keras", "-o", tmp_path / name)
    assert said == f"{tmp_path / name}: no kind of new file has this ending; there are {', '.join(new)}"
    (tmp_path / name).write_bytes(b"what is this?")
    said = refusal("show", tmp_path / name)
    read_whole = ".stepnet, .pdmodel"
    assert said == (
        f"{tmp_path / name}: no kind of file has this ending; there are {read_whole}, {', '.join(known)}"
    )
    (tmp_path / name).write_bytes(model.read_bytes())
    assert len(read(tmp_path / name).modules) == 1  # the content tells


@pytest.mark.parametrize("name", ["a.ckpt", "a.index"])
def test_kinds_that_are_only_read(tmp_path: Path, model: Path, name: str):
    said = refusal("convert", model, "--to", "torch", "-o", tmp_path / name)
    assert said == f"{tmp_path / name}: stepnet reads TensorFlow checkpoint files, and does not write them"


CONTENTS = {
    "PyTorch": lambda path: torch.save({"a": torch.ones(2)}, path),
    "safetensors": lambda path: save_file({"a": np.ones(2)}, path),
    "NumPy": lambda path: path.write_bytes(zipped({"a": np.ones(2)})),
    "MXNet": lambda path: converted(path, "mxnet", ".params"),
    "TFLite": lambda path: converted(path, "tflite", ".tflite"),
    "Keras": lambda path: converted(path, "keras", ".h5"),
}


def zipped(arrays: dict[str, Array]) -> bytes:
    """The bytes of a .npz file."""
    stream = io.BytesIO()
    np.savez(stream, *arrays.values())
    return stream.getvalue()


def converted(path: Path, target: str, ending: str) -> None:
    """Writes a small LSTM as a file of a kind."""
    source, out = path.parent / "lstm.pt", path.parent / f"out{ending}"
    torch.save(torch.nn.LSTM(INPUTS, HIDDEN).state_dict(), source)
    assert stepnet("convert", source, "--to", target, "-o", out)[0] == 0
    out.rename(path)
    source.unlink()


@pytest.mark.long(each=True)
@pytest.mark.parametrize("title", CONTENTS)
@pytest.mark.parametrize("ending", ["", ".pt", ".safetensors", ".npz", ".bin", ".ckpt", ".onnx", ".pdparams"])
def test_the_content_tells_before_the_ending(tmp_path: Path, title: str, ending: str):
    path = tmp_path / f"file{ending}"
    CONTENTS[title](path)
    assert kind(path).title == title
    read(path)


# ---- the dtype ---------------------------------------------------------------------------------------------


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "halves.pt"
    torch.save(torch.nn.LSTM(INPUTS, HIDDEN).bfloat16().state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("target", "ending", "has"),
    [
        ("tflite", ".tflite", "TFLite file holds float32"),
        ("onnx", ".onnx", "ONNX file holds float32 or float64"),
        ("keras", ".h5", "Keras file holds float32 or float16 or float64"),
        ("torch", ".npz", "NumPy file holds float32 or float16 or float64"),
    ],
)
def test_a_dtype_that_the_target_lacks_is_asked_for(
    tmp_path: Path, halves: Path, target: str, ending: str, has: str
):
    out = tmp_path / f"out{ending}"
    options = ("convert", halves, "--to", target, "-o", out)
    said = refusal(*options)
    assert (
        said == f"{out}: these weights are bfloat16, and a {has}: --dtype float32 "
        "(Python: dtype='float32') converts them"
    )
    assert files(tmp_path) == ["halves.pt"]
    code, stdout, _ = stepnet(*options, "--dtype", "float32", "--verify")
    assert code == 0
    assert "largest difference" in stdout
    assert {a.dtype.name for module in read(out).modules for a in module.arrays.values()} == {"float32"}


def test_a_dtype_that_the_target_has_is_kept(tmp_path: Path, halves: Path):
    out = tmp_path / "out.safetensors"
    assert stepnet("convert", halves, "--to", "mlx", "-o", out)[0] == 0
    assert {array.dtype.name for array in load_file(out).values()} == {"bfloat16"}


def test_numbers_beyond_the_dtype_are_refused(tmp_path: Path):
    source, out = tmp_path / "source.pt", tmp_path / "out.h5"
    state = torch.nn.LSTM(INPUTS, HIDDEN).half().state_dict()
    state["bias_ih_l0"][4] = state["bias_hh_l0"][4] = 60000
    torch.save(state, source)
    said = refusal("convert", source, "--to", "keras", "-o", out)
    assert "bias[4] (b_f) would exceed the largest float16, 65504" in said
    assert "--dtype float32" in said
    assert files(tmp_path) == ["source.pt"]
    assert stepnet("convert", source, "--to", "keras", "-o", out, "--dtype", "float32", "--verify")[0] == 0
    said = refusal("convert", source, "--to", "keras", "-o", out, "--dtype", "int8", "--force")
    assert said.endswith("dtype is one of float16, bfloat16, float32, float64, not 'int8'")


def test_the_framework_alone_names_a_layout_that_can_be_written(tmp_path: Path):
    """The first LSTM of TFLite was the operator of one step, of which no model is written."""
    source, out = tmp_path / "source.pt", tmp_path / "out.tflite"
    torch.save(torch.nn.LSTM(INPUTS, HIDDEN).state_dict(), source)
    code, stdout, _ = stepnet("convert", source, "--to", "tflite", "-o", out, "--verify")
    assert code == 0
    assert stdout.startswith("torch.lstm -> tflite.lstm")
    assert read(out).modules[0].layouts == ("tflite.lstm",)
    said = refusal("convert", source, "--to", "tflite.basic_lstm", "-o", out, "--force")
    assert said == (
        f"{out}: a new TFLite model runs whole sequences, and tflite.basic_lstm is the operator of one step; "
        "convert to tflite.lstm"
    )


# ---- several modules, and other arrays ---------------------------------------------------------------------

TARGETS = {
    ".pt": ("torch", "."),
    ".safetensors": ("torch", "."),
    ".npz": ("keras", "/"),
    ".msgpack": ("haste", "/"),
    ".pdparams": ("paddle", "."),
    ".params": ("mxnet", "_"),
}


@pytest.mark.parametrize("ending", TARGETS)
def test_modules_and_the_rest_are_told_apart_by_name(tmp_path: Path, ending: str):
    target, separator = TARGETS[ending]
    source, out, back = tmp_path / "source.npz", tmp_path / f"out{ending}", tmp_path / "back.npz"
    given = {**prefixed("enc."), **prefixed("net.dec.", times=2), **HEAD}
    savez(source, given)
    options = ("--rest", "copy", "--verify")
    assert stepnet("convert", source, "--to", target, "-o", out, *options)[0] == 0
    found = read(out)
    assert [module.name for module in found.modules] == [f"enc{separator}", f"net.dec{separator}"]
    assert_same({name: found.rest[name] for name in sorted(found.rest)}, HEAD)
    layouts = ("--from", found.modules[0].layouts[0]) if ending == ".msgpack" else ()
    assert stepnet("convert", out, "--to", "torch", "-o", back, *layouts, *options)[0] == 0
    renamed = {name.replace("c.", "c/"): array for name, array in given.items()}
    assert_same(saved_arrays(back), renamed)


def test_one_module_alone_has_no_prefix(tmp_path: Path):
    savez(tmp_path / "source.npz", {**prefixed("enc."), **prefixed("dec."), **HEAD})
    options = ("--to", "torch", "-o", tmp_path / "out.safetensors", "--module", "enc.")
    assert stepnet("convert", tmp_path / "source.npz", *options)[0] == 0
    assert_same(load_file(tmp_path / "out.safetensors"), GRU)


CLASHES = {
    "of modules": ((("a.", GRU), ("a/", GRU)), {}, "a.weight_ih_l0"),
    "of the nameless": ((("", GRU), ("", GRU)), {}, "weight_ih_l0"),
    "with the rest": ((("a.", GRU),), {"x": np.ones(1), "a.bias_hh_l0": np.ones(1)}, "a.bias_hh_l0"),
    "with the rest alone": ((("", GRU),), {"bias_ih_l0": np.ones(1)}, "bias_ih_l0"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_two_arrays_of_one_name_are_refused(tmp_path: Path, name: str):
    given, rest, clash = CLASHES[name]
    modules = tuple(Module(front, ("torch.gru",), arrays) for front, arrays in given)
    with pytest.raises(FileError) as caught:
        write(tmp_path / "out.safetensors", modules, rest)
    assert str(caught.value) == f"{tmp_path}/out.safetensors: two arrays would be called {clash!r}"
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("\x1b[2J", "an array has the name '\\x1b[2J', which cannot be printed"),
        ("two\nlines", "an array has the name 'two\\nlines', which cannot be printed"),
        ("\ud800", "an array has the name '\\ud800', which cannot be printed"),
        ("a" * 1001, "an array has a name of more than 1000 characters"),
    ],
)
def test_names_that_are_no_names(tmp_path: Path, name: str, expected: str):
    out = tmp_path / "out.npz"
    with pytest.raises(FileError) as caught:
        write(out, (Module("", ("torch.gru",), GRU),), {name: np.ones(1)})
    assert str(caught.value) == f"{out}: {expected}"
    assert files(tmp_path) == []
    if name.isascii():
        savez(out, {name: np.ones(1)})
        assert refusal("show", out) == f"{out}: {expected}"


@pytest.mark.parametrize("ending", [".onnx", ".keras", ".h5", ".weights.h5", ".json"])
def test_kinds_with_no_place_for_the_rest(tmp_path: Path, ending: str):
    source, out = tmp_path / "source.safetensors", tmp_path / f"out{ending}"
    save_file({**GRU, **HEAD}, source)
    target = {".onnx": "onnx", ".json": "cudnn.gru"}.get(ending, "keras")
    said = refusal("convert", source, "--to", target, "-o", out)
    assert said == (
        f"{source}: the recurrent layer has head.weight, step, which torch.gru does not have: say --from "
        "LAYOUT (Python: layout=LAYOUT) if the layer has another layout, or --drop NAME "
        "(Python: drop=[NAME]) to leave an array out, or --rest copy (Python: rest='copy') "
        "if they are not part of the layer"
    )
    said = refusal("convert", source, "--to", target, "-o", out, "--rest", "copy", "--drop", "step")
    assert said.startswith(f"{out}: a ")
    assert said.endswith("say --rest drop (Python: rest='drop')")
    assert files(tmp_path) == ["source.safetensors"]
    drop = ("--drop", "step", "--drop", "head.weight")
    assert stepnet("convert", source, "--to", target, "-o", out, *drop)[0] == 0


def test_the_rest_is_dropped_or_copied(tmp_path: Path, model: Path):
    said = refusal("convert", model, "--to", "torch", "-o", tmp_path / "out.npz", "--rest", "keep")
    assert said == "rest is drop or copy, not 'keep'"


# ---- outputs that cannot be --------------------------------------------------------------------------------

WRITTEN = [
    ".pt",
    ".safetensors",
    ".npz",
    ".msgpack",
    ".pdparams",
    ".params",
    ".onnx",
    ".keras",
    ".h5",
    ".json",
]


def target_of(ending: str) -> str:
    return {".onnx": "onnx", ".keras": "keras", ".h5": "keras", ".json": "cudnn.gru"}.get(ending, "torch")


@pytest.mark.parametrize("ending", WRITTEN)
def test_an_output_that_cannot_be_leaves_nothing(tmp_path: Path, model: Path, ending: str):
    plain, folder = tmp_path / f"plain{ending}", tmp_path / f"folder{ending}"
    plain.write_text("mine")
    folder.mkdir()
    before = files(tmp_path)

    def said(out: Path, *options: str) -> str:
        text = refusal("convert", model, "--to", target_of(ending), "-o", out, *options)
        assert files(tmp_path) == before
        assert files(folder) == []
        assert text.startswith(f"{out}: ")
        return text.removeprefix(f"{out}: ")

    assert said(plain) == "the file is there already; --force (Python: force=True) replaces it"
    assert said(folder) == "this is a folder, not a file"
    assert said(folder, "--force") == "this is a folder, not a file"
    assert (
        said(tmp_path / "no" / f"a{ending}")
        == f"the file cannot be written (there is no folder {tmp_path}/no)"
    )
    assert said(plain / f"a{ending}", "--force") == f"the file cannot be written (there is no folder {plain})"
    assert said(tmp_path / f"{'a' * 250}{ending}") == "the name is longer than 220 bytes"
    assert plain.read_text() == "mine"
    plain.unlink()
    os.symlink("nowhere", plain)
    assert said(plain) == "the file is there already; --force (Python: force=True) replaces it"
    assert stepnet("convert", model, "--to", target_of(ending), "-o", plain, "--force")[0] == 0
    assert not plain.is_symlink()
    assert len(read(plain).modules) == 1


@pytest.mark.parametrize("ending", WRITTEN)
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, model: Path, ending: str, monkeypatch: pytest.MonkeyPatch
):
    """The write fails at the last moment, when the file is moved to its name."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    out = tmp_path / f"out{ending}"
    said = refusal("convert", model, "--to", target_of(ending), "-o", out)
    assert said.endswith(": the file cannot be written (No space left on device)")
    assert files(tmp_path) == ["model.safetensors"]


def test_an_output_is_refused_before_any_work(tmp_path: Path):
    for out, expected in (("", "no kind of new file has this ending"), ("no/out.npz", "there is no folder")):
        with pytest.raises(FileError, match=expected):
            convert_file(tmp_path / "missing.npz", "keras", tmp_path / (out or "out"))


# ---- inputs that cannot be ---------------------------------------------------------------------------------

READ = [ending for one in FORMATS for ending in one.endings]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("ending", READ)
@pytest.mark.parametrize("command", ["convert", "show", "verify"])
def test_an_input_that_is_none(tmp_path: Path, ending: str, command: str):
    options = {
        "convert": ("--to", "torch", "-o", tmp_path / "out.npz"),
        "show": (),
        "verify": (tmp_path / "other.npz",),
    }[command]
    source = tmp_path / f"source{ending}"
    assert refusal(command, source, *options) == f"{source}: there is no such file"
    source.mkdir()
    assert refusal(command, source, *options) == f"{source}: this is a folder, not a file"
    source.rmdir()
    source.write_bytes(b"")
    said = refusal(command, source, *options)
    assert said.startswith(f"{source}: ")
    assert said.count(str(tmp_path)) == (2 if "and there is no" in said else 1)
    assert files(tmp_path) == [source.name]


@pytest.mark.parametrize("ending", [*WRITTEN, ".index"])
def test_an_input_that_cannot_be_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / f"source{ending}"
    source.write_bytes(b"x" * 100)
    source.chmod(0)
    if os.access(source, os.R_OK):  # this user may read everything
        source.unlink()
        if not os.path.exists("/proc/self/mem"):
            pytest.skip("this user may read everything, and there is no file that cannot be read")
        os.symlink("/proc/self/mem", source)
    said = refusal("convert", source, "--to", "torch", "-o", tmp_path / "out.npz")
    assert said.startswith(f"{source}: ")
    assert files(tmp_path) == [source.name]


def tensors(value: Any) -> Any:
    return {**value, "rnn": {name: torch.from_numpy(array) for name, array in value["rnn"].items()}}


def as_torch(value: Any, path: Path) -> None:
    torch.save(tensors(value), path)


def as_old_torch(value: Any, path: Path) -> None:
    torch.save(tensors(value), path, _use_new_zipfile_serialization=False)


def as_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


def as_objects(value: Any, path: Path) -> None:
    savez(path, GRU, weights=np.array([value], object))


HOSTILE: dict[str, tuple[str, Callable[[Any, Path], None], str]] = {
    "paddle": ("a.pdparams", as_pickle, "the file asks to run posix.mkdir, which stepnet never does"),
    "objects": ("a.npz", as_objects, "its member 'weights.npy' holds '|O', and not numbers"),
    **{
        f"a pickle called {ending}": (f"a{ending}", as_pickle, "") for ending in READ if ending != ".pdparams"
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_that_wants_to_run_code_runs_nothing(tmp_path: Path, name: str):
    called, save, expected = HOSTILE[name]
    source, mark = tmp_path / called, tmp_path / "ran"
    save({"rnn": GRU, "x": Runs(os.mkdir, str(mark))}, source)
    for command in ("convert", "show", "explain"):
        options = ("--to", "torch", "-o", tmp_path / "out.npz") if command == "convert" else ()
        said = refusal(command, source, *options)
        assert said.startswith(f"{source}: {expected}")
        assert files(tmp_path) == [called]


@pytest.mark.parametrize("save", [as_torch, as_old_torch])
@pytest.mark.parametrize("ending", [".pt", ".bin", ".pth.tar", ".th", ".ckpt", ".model", ".pkl", ".onnx", ""])
def test_what_a_torch_file_wants_to_run_is_passed_over(
    tmp_path: Path, save: Callable[[Any, Path], None], ending: str
):
    source, out, mark = tmp_path / f"a{ending}", tmp_path / "out.npz", tmp_path / "ran"
    save({"rnn": GRU, "x": Runs(os.mkdir, str(mark))}, source)
    assert stepnet("convert", source, "--to", "torch", "-o", out)[0] == 0
    assert_same(saved_arrays(out), GRU)
    assert not mark.exists()


@pytest.mark.parametrize("ending", WRITTEN)
def test_a_truncated_input_is_refused(tmp_path: Path, model: Path, ending: str):
    source = tmp_path / f"source{ending}"
    assert stepnet("convert", model, "--to", target_of(ending), "-o", source)[0] == 0
    spoilt = source.with_suffix(".bin") if ending == ".json" else source
    whole, before = spoilt.read_bytes(), files(tmp_path)
    for end in (1, len(whole) // 2, len(whole) - 1):
        spoilt.write_bytes(whole[:end])
        said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.npz")
        assert said.startswith(f"{source}: ")
        assert said.count(str(tmp_path)) == 1
        assert files(tmp_path) == before


# ---- numbers that cannot be --------------------------------------------------------------------------------


def with_nans(dtype: Any) -> dict[str, Array]:
    """Weights with quiet and signaling NaNs, infinities, zeros below zero and the smallest numbers."""
    found = {name: array.astype(dtype) for name, array in GRU.items()}
    words = np.dtype(f"u{np.dtype(dtype).itemsize}")
    infinity = int(np.array(np.inf, dtype).view(words))
    sign = 1 << (8 * words.itemsize - 1)
    for array in found.values():
        array.reshape(-1).view(words)[:6] = (
            infinity + 1,
            sign | (infinity + 5),
            infinity,
            sign | infinity,
            sign,
            1,
        )
    return found


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize(
    "ending", [".pt", ".safetensors", ".npz", ".pdparams", ".params", ".msgpack", ".json"]
)
def test_every_bit_of_the_weights_is_kept(tmp_path: Path, dtype: Any, ending: str):
    given, source, out = with_nans(dtype), tmp_path / "source.safetensors", tmp_path / f"out{ending}"
    save_file(given, source)
    target = "cudnn.gru" if ending == ".json" else "haste.gru"
    arguments = ("convert", source, "--to", target, "-o", out)
    if (dtype, ending) == (ml_dtypes.bfloat16, ".npz"):
        assert refusal(*arguments) == (
            f"{out}: these weights are bfloat16, and a NumPy file holds float32 or float16 or float64: "
            "--dtype float32 (Python: dtype='float32') converts them"
        )
        assert files(tmp_path) == ["source.safetensors"]
        return
    assert stepnet(*arguments)[0] == 0
    back = ("convert", out, "--from", target, "--to", "torch.gru", "-o", tmp_path / "back.safetensors")
    assert stepnet(*back)[0] == 0
    assert_same(load_file(tmp_path / "back.safetensors"), given)


def test_nan_weights_are_verified_as_such(tmp_path: Path):
    save_file(with_nans(np.float32), tmp_path / "source.safetensors")
    arguments = ("convert", tmp_path / "source.safetensors", "--to", "keras", "-o", tmp_path / "out.npz")
    code, text, errors = stepnet(*arguments, "--verify")
    why = r"\d+ of 189 outputs are NaN or infinite on both sides"
    assert code == 3
    assert re.fullmatch(f"stepnet: not verified: the weights: {why}\n", errors)
    assert re.search(f"^  not verified: {why}$", text, re.MULTILINE)
    kernel = saved_arrays(tmp_path / "out.npz")["kernel"]
    given = with_nans(np.float32)["weight_ih_l0"]
    assert sorted(words_of(kernel).reshape(-1)) == sorted(words_of(given).reshape(-1))
    save_file(GRU, tmp_path / "other.safetensors")
    code, text, _ = stepnet("verify", tmp_path / "source.safetensors", tmp_path / "other.safetensors")
    assert code == 1
    assert "largest difference inf" in text


WRONG = {
    "int8": {name: (array * 50).astype("int8") for name, array in GRU.items()},
    "uint8": {name: (array * 50).astype("int8").view("uint8") for name, array in GRU.items()},
    "int64": {name: array.astype("int64") for name, array in GRU.items()},
    "bool": {name: array > 0 for name, array in GRU.items()},
    "complex64": {name: array.astype("complex64") for name, array in GRU.items()},
}


@pytest.mark.parametrize("dtype", WRONG)
def test_numbers_that_are_no_floats_are_refused_by_name(tmp_path: Path, dtype: str):
    source = tmp_path / "source.npz"
    savez(source, prefixed("rnn.", WRONG[dtype]))
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.npz")
    assert said == (
        f"{source}: rnn: weight_ih_l0 holds {dtype}; "
        "weights are one of float16, bfloat16, float32, float64: cast them"
    )
    assert files(tmp_path) == ["source.npz"]


def test_numbers_of_several_kinds_are_refused_by_name(tmp_path: Path):
    source = tmp_path / "source.npz"
    savez(source, {**GRU, "weight_hh_l0": GRU["weight_hh_l0"].astype("f8")})
    said = refusal("convert", source, "--to", "keras", "-o", tmp_path / "out.npz")
    assert said.startswith(f"{source}: the weights: the arrays have several dtypes (")
    assert "weight_hh_l0 is float64" in said
    assert files(tmp_path) == ["source.npz"]


def test_files_that_differ_are_told_so(tmp_path: Path, model: Path):
    other = tmp_path / "other.npz"
    changed = GRU["weight_hh_l0"].copy()
    changed[0, 0] += 1e-3
    savez(other, {**GRU, "weight_hh_l0": changed})
    code, text, errors = stepnet("verify", model, other)
    assert code == 1
    assert errors.startswith("stepnet: ")
    difference = float(text.split()[2].rstrip(","))
    assert 1e-6 < difference < 1e-3
    code, text, _ = stepnet("verify", model, other, "--json")
    (verdict,) = json.loads(text)["modules"].values()
    assert code == 1
    assert verdict["difference"] == pytest.approx(difference, rel=1e-2)
    savez(other, GRU)
    assert stepnet("verify", model, other)[0] == 0


def test_files_of_several_modules_are_compared_one_by_one(tmp_path: Path):
    one, other, three = (tmp_path / name for name in ("one.npz", "other.npz", "three.npz"))
    savez(one, {**prefixed("a."), **prefixed("b.")})
    savez(other, {**prefixed("a."), **prefixed("b.", times=1.5)})
    savez(three, {**prefixed("a."), **prefixed("b."), **prefixed("c.")})
    code, text, errors = stepnet("verify", one, other, "--json")
    verdicts = json.loads(text)["modules"]
    assert code == 1
    assert "b" in errors
    assert (verdicts["a"]["difference"], verdicts["b"]["difference"] > 1e-2) == (0, True)
    assert refusal("verify", one, three) == (
        f"{one} has 2 recurrent modules, and {three} has 3: choose one layer of "
        "each with --module NAME (Python: module=NAME)"
    )


def test_a_checkpoint_of_pytorch_lightning_is_a_file_of_pytorch(tmp_path: Path):
    torch = pytest.importorskip("torch")
    gru = torch.nn.GRU(2, 3)
    held = {f"encoder.{name}": value for name, value in gru.state_dict().items()}
    path = tmp_path / "epoch=3.ckpt"
    torch.save({"epoch": 3, "state_dict": held, "lr_schedulers": [], "loops": {"fit_loop": {}}}, path)
    (module,) = read(path).modules
    assert (module.name, module.layout) == ("state_dict.encoder.", "torch.gru")
    for name, array in module.arrays.items():
        np.testing.assert_array_equal(array, gru.state_dict()[name].numpy())
