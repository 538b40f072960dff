"""OpenVINO, Core ML, Orbax and SavedModel: what they wrote is read, and computes the same in PyTorch."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from command_line import refusal, stepnet
from containers import Array, assert_same, unpacked
from saved_arrays import saved_arrays
from tolerance import assert_close

from stepnet.errors import FileError, LayoutError
from stepnet.layout.files import read
from stepnet.layout.files.account import check_stack
from stepnet.layout.files.orbax import zarr
from stepnet.layout.files.store import Store

DATA = Path(__file__).parent / "data"
INPUTS, HIDDEN, STEPS = 2, 3, 5
Chain = dict[str, tuple[Callable[..., torch.nn.Module], int, dict[str, Any]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folders that frameworks wrote, unpacked once."""
    known: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in known:
            known[name] = unpacked(DATA / f"{name}.tar.xz", tmp_path_factory.mktemp(name))
        return known[name]

    return folder


def torch_chain(source: Path, out: Path, layers: Chain, x: Array, *options: object) -> Array:
    """The results of layers of torch for an input, one after another, with a converted file's weights."""
    code, _, stderr = stepnet("convert", source, "--to", "torch", "-o", out, "--force", "--verify", *options)
    assert code == 0, stderr
    state = torch.load(out, weights_only=True)
    y = torch.from_numpy(x)
    taken = 0
    for front, (make, width, settings) in layers.items():
        layer = make(width, HIDDEN, batch_first=True, **settings)
        held = {
            name.removeprefix(front): value.float() for name, value in state.items() if name.startswith(front)
        }
        layer.load_state_dict(held)
        taken += len(held)
        y = layer(y)[0]
    assert taken == len(state)
    return y.detach().numpy()


def close(found: Array, expected: Array, dtype: Any = np.float32) -> None:
    assert_close(found, expected, length=3 * STEPS, width=3 * HIDDEN, dtype=dtype)


def gru(**options: Any) -> tuple[Any, int, dict[str, Any]]:
    return torch.nn.GRU, INPUTS, options


def broken(source: Path, path: Path, copies: Any) -> None:
    """Every copy of a file that is spoilt gives a `FileError` that names it."""
    whole = path.read_bytes()
    try:
        for data in copies(whole):
            path.write_bytes(data)
            with pytest.raises(FileError) as caught:
                read(source)
            assert str(caught.value).startswith(str(source))
            assert str(caught.value).isprintable()
    finally:
        path.write_bytes(whole)


# ---- OpenVINO ----------------------------------------------------------------------------------------------


def test_openvino_in_torch(made: Callable[[str], Path], tmp_path: Path):
    folder = made("openvino")
    given = saved_arrays(folder / "outputs.npz")
    model = read(folder / "layers.xml")
    assert [(one.name, one.layouts, one.follows, one.reverse) for one in model.modules] == [
        ("encoder", ("openvino.gru",), "", False),
        ("both", ("openvino.lstm",), "encoder", False),
        ("last", ("openvino.rnn",), "both", True),
    ]
    x, expected = given["inputs"], given["outputs"]
    for file in ("layers.xml", "layers.bin"):
        layers: Chain = {"encoder.": gru(), "both.": (torch.nn.LSTM, HIDDEN, {"bidirectional": True})}
        out = tmp_path / "out.pt"
        y = torch_chain(folder / file, out, {**layers, "last.": (Backwards, 2 * HIDDEN, {})}, x)
        close(y, expected)
    half = torch_chain(
        folder / "halves.xml", tmp_path / "half.pt", {**layers, "last.": (Backwards, 2 * HIDDEN, {})}, x
    )
    close(half, expected, np.float16)
    assert torch.load(tmp_path / "half.pt")["both.weight_hh_l0"].dtype == torch.float16


class Backwards(torch.nn.Module):
    """A layer of torch that runs from the end, and relu."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__()
        self.layer = torch.nn.RNN(*sizes, nonlinearity="relu", **options)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return self.layer.load_state_dict(state_dict, strict, assign)

    def forward(self, x: torch.Tensor) -> Any:
        outputs, states = self.layer(x.flip(1))
        return outputs.flip(1), states


APART = {  # by the kind of file: what the layers are fed with, and start from
    "coreml/apart.mlpackage": (
        {
            "first_0": "",
            "last_0": "first_0",
            "behind_0": "",
            "final_0": "",
            "of_last_0": "",
            "learned_0": "first_0",
            "continued_0": "first_0",
            "given_0": "first_0",
        },
        ("one (expand_dims)", "between (tanh)"),
        "continued_0 as an ordinary layer, and it starts from what other operations compute "
        "(initial_h and initial_c)",
        "learned_0 has learned_initial_h_0, which coreml.lstm does not have",
    ),
    "openvino/apart.xml": (
        {
            "first": "",
            "given": "first",
            "continued": "first",
            "learned": "first",
            "final": "",
            "behind": "",
        },
        ("between (Tanh)",),
        "continued as an ordinary layer, and it starts from what other layers compute (first)",
        "learned has Constant_2, which openvino.lstm does not have",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_layers_that_are_no_row_are_none_whatever_is_said(
    made: Callable[[str], Path], tmp_path: Path, name: str
):
    folder, _, file = name.partition("/")
    source = made(folder) / file
    follows, layers, computed, learned = APART[name]
    model = read(source)
    assert {one.name: one.follows for one in model.modules} == follows
    assert model.layers == layers
    convert = ("convert", source, "--to", "onnx", "-o", tmp_path / "out.onnx", "--stack")
    assert learned in refusal(*convert)
    drop = ("--drop", next(name for one in model.modules for name in one.besides))
    assert computed in refusal(*convert, *drop)
    between = tuple(one for one in model.modules if one.name.startswith(("first", "behind")))
    for module in between[1:]:
        said = (
            f"out.onnx would run {module.name} over the outputs of {between[0].name}; the file says that it"
        )
        with pytest.raises(LayoutError, match=said):
            check_stack((between[0], module), "out.onnx", assumed=True)
    arrays = ("convert", source, "--to", "torch", "-o", tmp_path / "out.pt", *drop, "--json")
    notes = json.loads(stepnet(*arrays)[1])["notes"]
    (given,) = (said for one, said in notes.items() if one.startswith("given"))
    assert given[0].endswith("is given when the model runs")
    if folder == "coreml":
        assert notes["first_0 + last_0"] == [
            "its model uses only its last output, which the new file does not say"
        ]


def test_openvinos_cells(made: Callable[[str], Path]):
    folder = made("openvino")
    given = saved_arrays(folder / "outputs.npz")
    for module in read(folder / "cells.xml").modules:
        from stepnet.layout.files import weights

        outputs = weights(module).layers()(given["inputs"][:, :1])[0]
        close(outputs[:, 0], given[module.name])


def spoilt_xml(whole: bytes) -> list[bytes]:
    """Copies of an .xml, each with one thing wrong."""
    bomb = b'<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    return [
        whole.replace(b"?>", b"?>" + bomb, 1),
        whole.replace(b'offset="0"', b'offset="99999999"', 1),
        whole.replace(b'offset="0"', b'offset="-1"', 1),
        whole.replace(b'from-layer="0"', b'from-layer="9999"', 1),
        whole.replace(b'id="1"', b'id="0"', 1),
        whole.replace(b'activations_alpha=""', b'activations_alpha="2"', 1),
        whole.replace(b'shape="1, 9', b'shape="' + b"9" * 30 + b", 9", 1),
        whole.replace(b"<net ", b"<nets ", 1),
    ]


def test_broken_openvino_models(made: Callable[[str], Path]):
    source = made("openvino") / "layers.xml"
    broken(source, source, spoilt_xml)
    numbers = source.with_suffix(".bin")
    data = numbers.read_bytes()
    numbers.unlink()
    assert refusal("show", source) == f"{source}: its numbers are in layers.bin, which is not beside it"
    numbers.write_bytes(data)


# ---- Core ML -----------------------------------------------------------------------------------------------


def test_core_ml_has_the_weights_that_it_was_given(made: Callable[[str], Path], tmp_path: Path):
    folder = made("coreml")
    given = saved_arrays(folder / "weights.npz")
    package = folder / "layers.mlpackage"
    for source in (package, package / "Data" / "com.apple.CoreML" / "model.mlmodel"):
        model = read(source)
        assert [(one.name, one.reverse, one.follows) for one in model.modules] == [
            ("encoder_0", True, ""),
            ("both_0", False, "encoder_0"),
        ]
        for module, name in zip(model.modules, ("encoder", "both"), strict=True):
            front = f"{name}/"
            expected = {key.removeprefix(front): given[key] for key in given if key.startswith(front)}
            assert_same({key: module.arrays[key] for key in expected}, expected)
            assert len(module.arrays) == len(expected)
    options = ("--to", "torch", "-o", tmp_path / "out.pt", "--verify")
    assert stepnet("convert", package, *options)[0] == 0
    said = refusal("show", folder / "older.mlmodel")
    assert said.startswith(
        f"{folder}/older.mlmodel: it is no ML Program; convert it with convert_to='mlprogram'"
    )


def test_broken_core_ml_models(made: Callable[[str], Path]):
    package = made("coreml") / "layers.mlpackage"
    model = package / "Data" / "com.apple.CoreML" / "model.mlmodel"
    blob = model.parent / "weights" / "weight.bin"
    broken(package, blob, lambda whole: [whole.replace(struct.pack("<I", 0xDEADBEEF), bytes(4))])
    away = [b"@model_path/../../../../../../etc/abc", b"/etc/weights/weight.bin-and-so-on----"]
    name = b"@model_path/weights/weight.bin"
    broken(package, model, lambda whole: [whole.replace(name, other[: len(name)]) for other in away])
    manifest = package / "Manifest.json"
    place = b"com.apple.CoreML/model.mlmodel"
    broken(package, manifest, lambda whole: [b"{}", b"[" * 100000, whole.replace(place, b"../../../x"), b""])


# ---- Orbax -------------------------------------------------------------------------------------------------

FLAX = {"gru/": ("flax.gru", gru()), "lstm/": ("flax.optimized_lstm", (torch.nn.LSTM, HIDDEN, {}))}


@pytest.mark.parametrize("form", ["ocdbt", "ocdbt_zarr3", "zarr2", "zarr3", "manager/3"])
def test_orbax_in_torch(made: Callable[[str], Path], tmp_path: Path, form: str):
    folder = made("orbax")
    given = saved_arrays(folder / "outputs.npz")
    model = read(folder / form)
    front = "params/" if form == "manager/3" else ""
    assert [module.name for module in model.modules] == [f"{front}gru/", f"{front}lstm/"]
    options = ("--semantics", "gate_activation=sigmoid", "--semantics", "candidate_activation=tanh")
    layers: Chain = {f"{front}gru.": gru(), f"{front}lstm.": (torch.nn.LSTM, HIDDEN, {})}
    y = torch_chain(folder / form, tmp_path / "out.pt", layers, given["inputs"], *options)
    close(y, given["outputs"])
    if not front:
        halves = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
        assert_same(dict(model.rest), {"halves": halves, "step": np.array(7, model.rest["step"].dtype)})


def test_arrays_in_many_chunks(made: Callable[[str], Path]):
    given = saved_arrays(made("orbax") / "outputs.npz")
    assert_same(dict(read(made("orbax") / "chunks").rest), {"wide": given["wide"]})


def test_broken_orbax_checkpoints(made: Callable[[str], Path]):
    for form in ("ocdbt", "zarr2", "zarr3"):
        folder = made("orbax") / form
        files = [
            path for path in folder.rglob("*") if path.is_file() and path.parent.name != "array_metadatas"
        ]
        unread = {"_CHECKPOINT_METADATA", "_sharding", "commit_success.txt"}
        held = [path for path in files if path.name not in unread and "process_0/manifest" not in str(path)]
        assert len(held) > 5
        for path in held:
            if form != "ocdbt" and path.name == "_METADATA":
                continue
            whole = path.read_bytes()
            said = [wrong(folder, path, data) for data in (b"", whole[: len(whole) // 2], whole[:-1])]
            path.write_bytes(whole)
            # files of a process that the newest manifest does not lead to are never read
            assert all(text.startswith(str(folder)) for text in said) or "ocdbt.process_0" in str(path), path


def wrong(folder: Path, path: Path, data: bytes) -> str:
    """The faults of a folder in which a file has other bytes; none where that file is not read."""
    path.write_bytes(data)
    try:
        read(folder)
    except FileError as error:
        return str(error)
    return ""


def test_an_orbax_array_that_is_missing(made: Callable[[str], Path]):
    folder = made("orbax") / "zarr2"
    (folder / "gru.hn.bias").rename(folder.parent / "away")
    try:
        assert refusal("show", folder).endswith(
            "it does not hold the array 'gru/hn/bias' that its _METADATA tells of"
        )
    finally:
        (folder.parent / "away").rename(folder / "gru.hn.bias")


def described(**fields: Any) -> bytes:
    """A description of Zarr 2 with other fields."""
    usual: dict[str, Any] = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "<f4", "order": "C"}
    return json.dumps(usual | fields).encode()


HOSTILE = {
    "large": described(shape=[9999999, 9999999], chunks=[1000000, 1000000]),
    "many chunks": described(shape=[9999999], chunks=[1]),
    "no chunks": described(chunks=[0]),
    "less than none": described(shape=[-3]),
    "other axes": described(chunks=[3, 3]),
    "objects": described(dtype="|O"),
    "filtered": described(filters=[{"id": "delta"}]),
    "filled": described(fill_value=1),
    "packed": described(compressor={"id": "blosc"}),
    "no such order": described(order="A"),
    "no JSON": b"{",
    "deep": b"[" * 100000,
    "nothing": b"{}",
    "third": b'{"zarr_format":3}',
}
WHY = {
    "large": "it would fill more than",
    "many chunks": "in more than 1048576 chunks",
    "no chunks": "without a shape and chunks that fit",
    "less than none": "without a shape and chunks that fit",
    "other axes": "without a shape and chunks that fit",
    "objects": "'[|]O' that is filtered, or of no dtype that is read",
    "filtered": "'<f4' that is filtered, or of no dtype that is read",
    "filled": "filled with '1', and only zeros are read",
    "packed": "packed with 'blosc'",
    "no such order": "'<f4' that is filtered, or of no dtype that is read",
    "no JSON": "is no JSON",
    "deep": "is no JSON .maximum recursion depth",
    "nothing": "'None' that is filtered, or of no dtype that is read",
    "third": "or in chunks that are not read",
}
assert WHY.keys() == HOSTILE.keys()


def test_an_array_of_zarr(tmp_path: Path):
    found = zarr.array(described(), lambda key: b"xxxxyyyyzzzz" if key == "0" else None, Store(tmp_path, 0))
    assert found.tobytes() == b"xxxxyyyyzzzz"


def test_an_array_that_is_packed_otherwise_says_how_to_save_it(tmp_path: Path):
    with pytest.raises(FileError, match="packed with 'blosc', which is not read: save it with zstd or gzip"):
        zarr.array(HOSTILE["packed"], lambda _: b"x" * 12, Store(tmp_path, 0))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_of_zarr(tmp_path: Path, name: str):
    with pytest.raises(FileError, match=WHY[name]):
        zarr.array(HOSTILE[name], lambda _: b"x" * 12, Store(tmp_path, 0))


# ---- SavedModel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["exported", "saved", "saved/saved_model.pb"])
def test_a_saved_model_in_torch(made: Callable[[str], Path], tmp_path: Path, form: str):
    folder = made("saved_model")
    given = saved_arrays(folder / "outputs.npz")
    model = read(folder / form)
    found = {module.name: (module.layout, module.merge) for module in model.modules}
    assert found == {"encoder": ("keras.gru", "concat"), "both": ("keras.lstm", None)}
    head = {name: model.rest[name] for name in ("head/kernel", "head/bias")}
    assert_same(head, {name: given[name] for name in head})
    parts = {
        "encoder.": (torch.nn.GRU, 2, {}),
        "both.": (torch.nn.LSTM, 3, {"bidirectional": True}),
    }
    close(torch_chain(folder / form, tmp_path / "out.pt", parts, given["inputs"]), given["outputs"])


def test_broken_saved_models(made: Callable[[str], Path]):
    folder = made("saved_model") / "exported"
    (folder / "variables").rename(folder / "away")
    try:
        said = refusal("show", folder)
        saved = folder / "saved_model.pb"
        assert (
            said == f"{saved}: its graph has no constants that could be weights: save it with its variables"
        )
    finally:
        (folder / "away").rename(folder / "variables")
