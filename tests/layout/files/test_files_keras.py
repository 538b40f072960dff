"""Keras files: what any Keras wrote is found, what is written runs in Keras, and the rest is refused."""

import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from containers import refusal
from saved_arrays import saved_arrays
from zoo import sigmoid

from stepnet.layout.files.keras import hdf5
from stepnet.layout.files.keras.file import KerasFile, read
from stepnet.layout.files.keras.write import NewLayer, write_legacy, write_model, write_weights

DATA = Path(__file__).parent / "data"
FILES = sorted(path.name for path in DATA.glob("keras[12]_*"))
KERNELS = ("kernel", "recurrent_kernel", "bias")

# Keras 3.15's own arrays warn where NumPy 2 reads them.
keras_reads = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


@pytest.fixture(scope="module")
def h5py() -> Any:
    return pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


def said(file: KerasFile) -> list[tuple[str, str | None, tuple[str, ...], list[str]]]:
    """The layers of a file in short, without what they are called in it."""
    return [(one.name, one.class_name, one.inputs, [own for own, _ in one.arrays]) for one in file.layers]


def directed(*names: str) -> list[str]:
    return [f"{direction}/{name}" for direction in ("forward", "backward") for name in names]


# HDF5


def with_everything(h5py: Any, path: Path, **options: Any) -> dict[str, np.ndarray]:
    """Writes arrays of every kind and attributes, and gives back what should be read."""
    draw = np.random.default_rng(0)
    halves, pair = draw.normal(size=3).astype(ml_dtypes.bfloat16), np.array([1, -2], np.float32)
    wanted = {
        "big": np.arange(3, dtype=">f4"),
        "group/deep/double": draw.normal(size=(3, 4)),
        "group/deep/empty": np.zeros((0, 4)),
        "group/half": draw.normal(size=5).astype(np.float16),
        "group/scalar": np.array(3.5, np.float32),
        "group/truth": np.array([True, False]),
        "group/whole": np.array([-3, 3], ">i2"),
        "group/long": np.array([(1 << 64) - 1], np.uint64),
    }
    with h5py.File(path, "w", **options) as file:
        for name, array in wanted.items():
            file[name] = array
        stored = file.create_dataset("group/brain", data=halves.view("V2"))
        stored.attrs["dtype"] = "bfloat16"  # as Keras marks it
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((2,))
        h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, compact).write(space, space, pair)
        file["text"], file["complex"] = ["abc", "de"], np.ones(3, complex)
        file["record"] = np.zeros(3, [("a", "f4")])
        file.attrs["text"], file.attrs["bytes"], file.attrs["nothing"] = "yö", b"bytes", ""
        file["group"].attrs["names"], file["group"].attrs["none"] = [b"a", b"bcd"], np.zeros(0)
        file["group"].attrs["texts"], file["group"].attrs["missing"] = ["a", "bcd"], h5py.Empty("f4")
        file["group"].attrs["matrix"] = np.arange(6).reshape(2, 3)
    return {**wanted, "group/brain": halves, "compact": pair}


@pytest.mark.parametrize(
    "options", [{}, {"libver": "latest"}, {"libver": ("v108", "v110")}, {"track_order": True}]
)
def test_arrays_and_attributes_of_every_kind(h5py: Any, tmp_path: Path, options: dict[str, Any]):
    wanted = with_everything(h5py, tmp_path / "made.h5", **options)
    arrays, attributes = hdf5.read(tmp_path / "made.h5")
    assert sorted(arrays) == sorted(wanted)
    for name, array in wanted.items():
        dtype = np.float32 if array.itemsize == 2 and array.dtype != ">i2" else array.dtype.newbyteorder("=")
        assert (arrays[name].dtype, arrays[name].shape) == (dtype, array.shape)
        assert arrays[name].flags.writeable
        np.testing.assert_array_equal(arrays[name], array.astype(dtype))
    assert attributes[""] == {"text": "yö", "bytes": "bytes", "nothing": ""}
    found = attributes["group"]
    assert (found.pop("names"), found.pop("texts")) == (("a", "bcd"), ("a", "bcd"))
    np.testing.assert_array_equal(np.asarray(found.pop("matrix")), np.arange(6).reshape(2, 3))
    assert np.asarray(found.pop("none")).shape == (0,)
    assert not found


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (7, 5)},
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "chunks": (16, 10)},
        {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (1, 33)},
        {"maxshape": (None, None), "fletcher32": True},
    ],
)
def test_arrays_in_packed_blocks(h5py: Any, tmp_path: Path, options: dict[str, Any]):
    array = np.random.default_rng(0).normal(size=(100, 33)).astype(np.float32)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset("x", data=array, **options)
        file.create_dataset("zeros", data=np.zeros(1 << 18), compression="gzip", chunks=(1 << 18,))
        file.create_dataset("empty", shape=(0, 3), dtype="f4", chunks=(1, 1), maxshape=(None, 3))
    arrays, _ = hdf5.read(tmp_path / "made.h5")
    np.testing.assert_array_equal(arrays["x"], array)
    assert not arrays["zeros"].any()
    assert arrays["empty"].shape == (0, 3)


def test_a_file_of_many_groups(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for number in range(400):
            file[f"layer_{number}/vars/{number % 3}"] = np.full(3, number, np.float32)
    arrays, _ = hdf5.read(tmp_path / "made.h5")
    assert len(arrays) == 400
    assert all(array.tolist() == [int(name.split("/")[0][6:])] * 3 for name, array in arrays.items())


def external(h5py: Any, file: Any) -> None:
    file["x"] = h5py.ExternalLink("other.h5", "/x")


def soft(h5py: Any, file: Any) -> None:
    file["x"] = h5py.SoftLink("/y")


def stored_elsewhere(h5py: Any, file: Any) -> None:
    file.create_dataset("x", (2,), "f4", external=[("numbers.bin", 0, 8)])


def virtual(h5py: Any, file: Any) -> None:
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "y", (2,))
    file.create_virtual_dataset("x", layout)


def twice(h5py: Any, file: Any) -> None:
    file["x"] = np.zeros(2)
    file["y"] = file["x"]


def circle(h5py: Any, file: Any) -> None:
    file["x/y"] = np.zeros(2)
    file["x/z"] = file


def bomb(h5py: Any, file: Any) -> None:
    file.create_dataset("x", (1 << 34,), "f4")


def packed_bomb(h5py: Any, file: Any) -> None:
    file.create_dataset("x", (1 << 34,), "f4", chunks=(1 << 20,), compression="gzip")[:4] = 1


def hole(h5py: Any, file: Any) -> None:
    file.create_dataset("x", (1 << 10,), "f4", chunks=(1 << 9,), compression="gzip")[:4] = 1


def wrong_bomb(h5py: Any, file: Any) -> None:
    made = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="gzip")
    made.id.write_direct_chunk((0,), zlib.compress(bytes(1 << 24)))


def wrong(h5py: Any, file: Any) -> None:
    made = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="gzip")
    made.id.write_direct_chunk((0,), b"no bytes of zlib")


def nothing_of_much(h5py: Any, file: Any) -> None:
    file.create_dataset("x", (0, 1 << 62), "f4")


def lzf(h5py: Any, file: Any) -> None:
    file.create_dataset("x", data=np.zeros((4, 4)), compression="lzf")


def quad(h5py: Any, file: Any) -> None:
    file["x"] = np.zeros(2, np.longdouble)


def named_kind(h5py: Any, file: Any) -> None:
    file["kind"] = np.dtype("f4")
    file.create_dataset("x", (2,), file["kind"])[:] = 1


def deep(h5py: Any, file: Any) -> None:
    file["/".join("x" * 200)] = np.zeros(2)


def long(h5py: Any, file: Any) -> None:
    file["/".join(["x" * 1000] * 5)] = np.zeros(2)


REFUSED: dict[Callable[[Any, Any], None], str] = {
    external: "it has links to other files, which stepnet does not follow",
    soft: "it has soft links, which stepnet does not follow",
    stored_elsewhere: "'x': its numbers lie in another file, which stepnet does not read",
    virtual: "'x': it is virtual, made of arrays of other files, which stepnet does not read",
    twice: "'y' is the same object as another, which stepnet does not read",
    circle: "'x/z' is the same object as another, which stepnet does not read",
    bomb: "'x': this is not a complete HDF5 file (an array of shape 17179869184 has 0 bytes)",
    packed_bomb: "'x': this is not a complete HDF5 file (an array of shape 17179869184 has ",
    hole: "'x': this is not a complete HDF5 file (it has 1 blocks of [512])",
    wrong_bomb: "'x': this is not a complete HDF5 file (a block of it has 404 bytes of 400)",
    wrong: "'x': this is not a complete HDF5 file (a block of it: Error -3 while decompressing data",
    nothing_of_much: "'x': this is not a complete HDF5 file (an array of shape 0, 4611686018427387904 has ",
    lzf: "'x': it is packed by filter 32000; save it with gzip or unpacked",
    quad: "'x': it holds numbers of 16 bytes that NumPy lacks; save it as float32",
    named_kind: "'x': its kind of numbers is named in another place, which stepnet does not read",
    deep: "its groups are nested more than 100 deep or have paths over 4096 long",
    long: "its groups are nested more than 100 deep or have paths over 4096 long",
}


@pytest.mark.parametrize("make", REFUSED)
def test_what_is_not_in_the_file_or_not_known_is_refused(
    h5py: Any, tmp_path: Path, make: Callable[[Any, Any], None]
):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        make(h5py, file)
    tracemalloc.start()
    message = refusal(hdf5.read, tmp_path / "made.h5")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message.startswith(REFUSED[make])
    assert peak < 1 << 20


def test_large_forms_are_refused_by_name(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "group.h5", "w", libver="latest") as file:
        for number in range(20):
            file[f"x{number}"] = np.zeros(2)
    assert refusal(hdf5.read, tmp_path / "group.h5").startswith("a group is written in the large form of")
    with h5py.File(tmp_path / "attributes.h5", "w", libver="latest") as file:
        for number in range(20):
            file.attrs[f"x{number}"] = number
    assert refusal(hdf5.read, tmp_path / "attributes.h5").startswith(
        "its attributes are written in the large"
    )
    with h5py.File(tmp_path / "blocks.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=np.zeros((4, 4)), chunks=(2, 2))
    assert refusal(hdf5.read, tmp_path / "blocks.h5").startswith("'x': it is laid out in form 2 of version")


def test_texts_that_many_attributes_share_are_read_once(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.attrs["names"] = ["first", "second"]
    data = (tmp_path / "made.h5").read_bytes()
    place = data.index(struct.pack("<I", 5), data.index(b"names\0"))
    second = data[place + 16 : place + 32]
    assert second[:4] == struct.pack("<I", 6)
    (tmp_path / "made.h5").write_bytes(data[:place] + second + data[place + 16 :])
    assert "there is no text 1 of 6 bytes" in refusal(hdf5.read, tmp_path / "made.h5")


def test_a_tree_that_leads_back_to_itself(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["x"] = np.zeros(2)
    data = bytearray((tmp_path / "made.h5").read_bytes())
    tree = data.index(b"TREE")
    data[tree + 5] = 1  # no leaf, but a node
    data[tree + 32 : tree + 40] = struct.pack("<Q", tree)
    (tmp_path / "made.h5").write_bytes(data)
    assert "parts of it overlap or lead in circles" in refusal(hdf5.read, tmp_path / "made.h5")


def test_a_file_that_is_cut_off_is_told_by_its_size(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["x"] = np.zeros(1000)
    data = (tmp_path / "made.h5").read_bytes()
    (tmp_path / "made.h5").write_bytes(data[:-1])
    wanted = f"this is not a complete HDF5 file (it has {len(data) - 1} bytes of {len(data)})"
    assert refusal(hdf5.read, tmp_path / "made.h5") == wanted


FOREIGN = {
    "empty": (b"", "this is not an HDF5 file: it does not begin as one"),
    "foreign": (b"abc" * 100, "this is not an HDF5 file: it does not begin as one"),
    "signature alone": (b"\x89HDF\r\n\x1a\n", "this is not a complete HDF5 file"),
    "too new": (b"\x89HDF\r\n\x1a\n\x09" + bytes(90), "the file has version 9 of HDF5's superblock"),
    "short addresses": (
        b"\x89HDF\r\n\x1a\n" + bytes(5) + b"\4\4" + bytes(90),
        "the file's addresses have 4 bytes",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_hdf5_file(tmp_path: Path, name: str):
    data, problem = FOREIGN[name]
    (tmp_path / "made.h5").write_bytes(data)
    assert refusal(hdf5.read, tmp_path / "made.h5").startswith(problem)


# Files of Keras 1 and 2, as they are


GATES = {"LSTM": "icfo", "GRU": "zrh"}  # in the order of Keras 1
KERAS_1 = {cell: [f"{kind}_{gate}" for gate in GATES[cell] for kind in "WUb"] for cell in GATES}
ONE_LAYER = {
    "keras1_lstm": ("LSTM", KERAS_1["LSTM"]),
    "keras1_gru": ("GRU", KERAS_1["GRU"]),
    "keras1_bidirectional": ("Bidirectional", directed(*KERAS_1["GRU"])),
    "keras2_lstm": ("LSTM", [*KERNELS]),
    "keras2_gru": ("GRU", [*KERNELS]),
    "keras2_gru_before": ("GRU", [*KERNELS]),
    "keras2_bidirectional": ("Bidirectional", directed(*KERNELS)),
    "keras2_cudnn_gru": ("CuDNNGRU", [*KERNELS]),
    "keras2_cudnn_lstm": ("CuDNNLSTM", [*KERNELS]),
}


@pytest.mark.parametrize("name", ONE_LAYER)
def test_a_layer_of_keras_1_and_2(name: str):
    file = read(DATA / f"{name}.h5")
    ((_, class_name, inputs, names),) = said(file)
    assert (class_name, names) == ONE_LAYER[name]
    assert file.version == ("1" if name.startswith("keras1") else "2.21.0")
    assert len(inputs) == (0 if file.version == "1" else 1)
    assert file.layers[0].config is not None
    assert "return_sequences" in str(file.layers[0].config)


def run(cell: str, arrays: Mapping[str, np.ndarray], inputs: np.ndarray, gate: Any = sigmoid) -> np.ndarray:
    """The results of Keras' equations, with its arrays in Keras 2's order."""
    W, R, b = (arrays[name].astype(np.float64) for name in KERNELS)
    b, d = b if b.ndim == 2 else (b, np.zeros(()))
    after, outputs = d.ndim == 1, []
    h = c = np.zeros((len(inputs), len(R)))
    for x in inputs.swapaxes(0, 1):
        if cell == "LSTM":
            i, f, g, o = np.split(x @ W + h @ R + b, 4, axis=1)
            c = gate(f) * c + gate(i) * np.tanh(g)
            h = gate(o) * np.tanh(c)
        else:
            (xz, xr, xn), (hz, hr, hn) = np.split(x @ W + b, 3, axis=1), np.split(h @ R + d, 3, axis=1)
            z, r = gate(xz + hz), gate(xr + hr)
            n = np.tanh(xn + (r * hn if after else (r * h) @ np.split(R, 3, axis=1)[2]))
            h = z * h + (1 - z) * n
        outputs.append(h)
    return np.stack(outputs, axis=1)


def joined(cell: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of one direction as Keras 2 has them."""
    if "kernel" in arrays:
        return dict(arrays)
    order = "ifco" if cell == "LSTM" else "zrh"
    kinds = zip(KERNELS, "WUb", strict=True)
    return {name: np.concatenate([arrays[f"{kind}_{g}"] for g in order], axis=-1) for name, kind in kinds}


@pytest.mark.parametrize("name", [name for name in ONE_LAYER if "cudnn" not in name])
def test_the_arrays_are_what_their_names_say(name: str):
    file, numbers = read(DATA / f"{name}.h5"), saved_arrays(DATA / "keras.npz")
    inputs, outputs = numbers[f"{name}:inputs"], numbers[f"{name}:outputs"]
    arrays = {own: file.arrays[place] for own, place in file.layers[0].arrays}
    cell = "LSTM" if name in ("keras1_lstm", "keras2_lstm", "keras2_bidirectional") else "GRU"
    if "bidirectional" in name:
        parts = [
            joined(
                cell, {own.partition("/")[2]: array for own, array in arrays.items() if own.startswith(start)}
            )
            for start in ("forward", "backward")
        ]
        forward = run(cell, parts[0], inputs)
        backward = run(cell, parts[1], inputs[:, ::-1])[:, ::-1]
        found = (
            forward + backward if name.startswith("keras2") else np.concatenate([forward, backward], axis=-1)
        )
    elif name == "keras2_gru_before":
        found = run(cell, arrays, inputs, lambda x: np.clip(0.2 * x + 0.5, 0, 1))[:, -1]
    else:
        found = run(cell, joined(cell, arrays), inputs)
    np.testing.assert_allclose(found, outputs, atol=2e-6)


CELLS = [f"cells/{cell}/{name}" for cell in (0, 1) for name in KERNELS]
NESTED = [
    ("lstm_2", "LSTM", ("input_5",), [*KERNELS]),
    ("inner/gru_2", "GRU", ("lstm_2",), [*KERNELS]),
    ("inner/dense", "Dense", ("inner/gru_2",), ["kernel", "bias"]),
    ("lstm_3", "LSTM", ("inner/dense", "lstm_2"), [*KERNELS]),
    ("rnn", "RNN", ("inner/dense",), CELLS),
]


def test_a_model_in_a_model():
    assert said(read(DATA / "keras2_nested.h5")) == NESTED
    assert said(read(DATA / "keras2_nested.keras")) == NESTED
    alone = read(DATA / "keras2_nested_weights.h5")
    assert said(alone) == [(name, None, (), names) for name, _, _, names in NESTED]
    assert (alone.config, alone.version) == (None, "2.21.0")
    for name in ("keras2_nested.keras", "keras2_nested_weights.h5"):
        file, other = read(DATA / name), read(DATA / "keras2_nested.h5")
        for mine, theirs in zip(file.layers, other.layers, strict=True):
            for (_, place), (_, there) in zip(mine.arrays, theirs.arrays, strict=True):
                np.testing.assert_array_equal(file.arrays[place], other.arrays[there])


# Files of the Keras that is installed


def models(keras: Any) -> dict[str, Any]:
    """Models of several layers, with weights that differ everywhere."""
    keras.utils.clear_session()  # so that names have no numbers
    layers = keras.layers
    inputs = layers.Input((None, 2), name="start")
    steps, *states = layers.LSTM(3, return_sequences=True, return_state=True, name="first")(inputs)
    inside = layers.Input((None, 3))
    within = layers.Dense(2, name="dense")(layers.GRU(3, return_sequences=True, name="gru")(inside))
    steps = keras.Model(inside, within, name="inner")(layers.Dropout(0.1)(steps)) + 1
    last = layers.LSTM(3, name="last")(steps, initial_state=states)
    both = layers.Bidirectional(layers.LSTM(2, dropout=0.1, use_bias=False), name="both")(steps)
    spread = layers.TimeDistributed(layers.Dense(2), name="spread")(steps)
    cells = layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2), layers.LSTMCell(2)])
    stack = layers.RNN(cells, name="stack")(steps)
    made = {
        "functional": keras.Model(inputs, [last, both, spread, stack]),
        "sequential": keras.Sequential(
            [
                layers.Input((None, 2), name="start"),
                layers.SimpleRNN(3, return_sequences=True, name="one"),
                keras.Sequential([layers.GRU(3, return_sequences=True, name="gru")], name="inner"),
                layers.Dropout(0.5),
                layers.GRU(3, name="two"),
            ]
        ),
    }
    draw = np.random.default_rng(0)
    for model in made.values():
        model.set_weights([draw.normal(size=weight.shape) for weight in model.get_weights()])
        model.compile("sgd", "mse")
    return made


LAYERS = {
    "functional": [
        ("first", "LSTM", ("start",), [*KERNELS]),
        ("inner/gru", "GRU", ("first",), [*KERNELS]),
        ("inner/dense", "Dense", ("inner/gru",), ["kernel", "bias"]),
        ("last", "LSTM", ("add", "first"), [*KERNELS]),
        ("both", "Bidirectional", ("add",), directed("kernel", "recurrent_kernel")),
        ("spread/dense", "Dense", ("spread",), ["kernel", "bias"]),
        ("stack", "RNN", ("add",), [*CELLS, *(f"cells/2/{name}" for name in KERNELS)]),
    ],
    "sequential": [
        ("one", "SimpleRNN", ("start",), [*KERNELS]),
        ("inner/gru", "GRU", ("one",), [*KERNELS]),
        ("two", "GRU", ("inner/gru",), [*KERNELS]),
    ],
}


def same_weights(file: KerasFile, model: Any) -> None:
    """Compares the arrays of every layer with those of the model's."""
    for layer in file.layers:
        twin = model
        for part in layer.name.split("/"):
            twin = twin.layer if hasattr(twin, "layer") else twin.get_layer(part)  # of a TimeDistributed
        weights = [weight for weight in twin.get_weights() if weight.dtype == np.float32]  # no random states
        for (_, place), weight in zip(layer.arrays, weights, strict=True):
            np.testing.assert_array_equal(file.arrays[place], weight)


@pytest.mark.long(each=True)
@keras_reads
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_models_that_keras_3_saves(keras: Any, tmp_path: Path, name: str, ending: str):
    model = models(keras)[name]
    model.save(tmp_path / f"made{ending}")
    file = read(tmp_path / f"made{ending}")
    assert said(file) == LAYERS[name]
    assert file.version == keras.__version__
    same_weights(file, model)


@keras_reads
def test_weights_that_keras_3_saves(keras: Any, tmp_path: Path):
    model = models(keras)["sequential"]
    model.save_weights(tmp_path / "made.weights.h5")
    file = read(tmp_path / "made.weights.h5")
    assert (file.config, file.version) == (None, None)
    found = {name: (class_name, own) for name, class_name, _, own in said(file)}
    assert found == {name: (None, [*KERNELS]) for name in ("one", "inner/gru", "two")}
    same_weights(file, model)


@keras_reads
def test_numbers_of_another_kind(keras: Any, tmp_path: Path):
    model = keras.Sequential([keras.layers.Input((None, 2)), keras.layers.GRU(3, dtype="bfloat16")])
    weights = [np.float32(weight) for weight in model.get_weights()]
    for name in ("made.keras", "made.weights.h5"):
        (model.save if name.endswith(".keras") else model.save_weights)(tmp_path / name)
        file = read(tmp_path / name)
        for (_, place), weight in zip(file.layers[0].arrays, weights, strict=True):
            assert file.arrays[place].dtype == np.float32
            np.testing.assert_array_equal(file.arrays[place], weight)


# What is written


def parts(keras: Any, layer: Any, name: str) -> NewLayer:
    """A layer of Keras as one to write."""
    weights, config = layer.get_weights(), layer.get_config()
    if isinstance(layer, keras.layers.Bidirectional):
        names = directed(*KERNELS[: len(weights) // 2])
    else:
        names = KERNELS[: len(weights)]
    arrays = dict(reversed(list(zip(names, weights, strict=True))))  # the order is the writer's to know
    return NewLayer(name, type(layer).__name__, arrays, config)


def stacks(keras: Any, dtype: str) -> dict[str, Any]:
    layers = keras.layers
    deep: dict[str, Any] = {"return_sequences": True, "dtype": dtype}
    made = {
        "lstm": [layers.LSTM(3, dtype=dtype)],
        "grus": [
            layers.GRU(3, **deep),
            layers.GRU(2, reset_after=False, go_backwards=True, **deep),
            layers.SimpleRNN(4, activation="relu", **deep),
        ],
        "both": [
            layers.Bidirectional(layers.GRU(3, use_bias=False, **deep), merge_mode="sum", dtype=dtype),
            layers.Bidirectional(layers.LSTM(2, recurrent_activation="hard_sigmoid", **deep), dtype=dtype),
        ],
        "bare": [layers.LSTM(3, use_bias=False, **deep), layers.LSTM(3, activation=None, dtype=dtype)],
    }
    draw = np.random.default_rng(0)
    models = {name: keras.Sequential([layers.Input((None, 2)), *inner]) for name, inner in made.items()}
    for model in models.values():
        model.set_weights([draw.normal(size=weight.shape) for weight in model.get_weights()])
    return models


@pytest.mark.long(each=True)
@keras_reads
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["lstm", "grus", "both", "bare"])
def test_keras_runs_what_is_written(keras: Any, tmp_path: Path, name: str, dtype: str):
    model = stacks(keras, dtype)[name]
    inputs = np.random.default_rng(1).normal(size=(3, 5, 2)).astype(dtype)
    wanted = model.predict(inputs, verbose=0)
    assert wanted.dtype == dtype
    layers = [parts(keras, layer, f"layer_{number}") for number, layer in enumerate(model.layers)]
    write_model(tmp_path / "made.keras", layers)
    loaded = keras.models.load_model(tmp_path / "made.keras")
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), wanted)
    for path, write in ((tmp_path / "made.weights.h5", write_weights), (tmp_path / "made.h5", write_legacy)):
        write(path, layers)
        twin = keras.models.clone_model(model)
        twin.load_weights(path)
        np.testing.assert_array_equal(twin.predict(inputs, verbose=0), wanted)
    for ending in (".keras", ".weights.h5", ".h5"):
        file = read(tmp_path / f"made{ending}")
        found = {
            layer.name: {own: file.arrays[place] for own, place in layer.arrays} for layer in file.layers
        }
        assert list(found) == [layer.name for layer in layers]
        for layer in layers:
            assert sorted(found[layer.name]) == sorted(layer.arrays)
            for own, array in layer.arrays.items():
                np.testing.assert_array_equal(found[layer.name][own], array)


@keras_reads
def test_weights_of_layers_of_any_class(keras: Any, tmp_path: Path):
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(7, 2, name="words"),
            layers.LSTM(3, dropout=0.1, return_sequences=True, name="steps"),
            layers.Dropout(0.2),
            layers.LayerNormalization(name="norm"),
            layers.Dense(2, name="dense"),
        ]
    )
    model.build((None, None))
    draw = np.random.default_rng(0)
    names = {"words": ("embeddings",), "steps": KERNELS, "norm": ("0", "1"), "dense": ("kernel", "bias")}
    new: list[NewLayer] = []
    for name, own in names.items():
        layer = model.get_layer(name)
        arrays = {
            key: draw.normal(size=weight.shape) for key, weight in zip(own, layer.weights, strict=False)
        }
        new.append(
            NewLayer(name, type(layer).__name__, {key: one.astype(np.float32) for key, one in arrays.items()})
        )
    write_weights(tmp_path / "made.weights.h5", new)
    model.load_weights(tmp_path / "made.weights.h5")
    for layer in new:
        for array, weight in zip(
            layer.arrays.values(), model.get_layer(layer.name).get_weights(), strict=False
        ):
            np.testing.assert_array_equal(array, weight)


def gru(name: str = "gru", inputs: int = 2, units: int = 3, **config: Any) -> NewLayer:
    shapes = ((inputs, 3 * units), (units, 3 * units), (2, 3 * units))
    arrays = {key: np.ones(shape, np.float32) for key, shape in zip(KERNELS, shapes, strict=True)}
    return NewLayer(name, "GRU", arrays, config)


def both(**config: Any) -> NewLayer:
    arrays = {f"{way}/{key}": array for way in ("forward", "backward") for key, array in gru().arrays.items()}
    inner = {"class_name": "GRU", "config": {"return_sequences": True}}
    return NewLayer("both", "Bidirectional", arrays, {"layer": inner, **config})


def changed(layer: NewLayer, **arrays: Any) -> NewLayer:
    return NewLayer(layer.name, layer.class_name, {**layer.arrays, **arrays}, layer.config)


def backwards(*, go_backwards: bool) -> NewLayer:
    return both(layer={"class_name": "GRU", "config": {"go_backwards": go_backwards}})


HALF = np.ones((3, 9), ml_dtypes.bfloat16)
UNWRITABLE: dict[str, tuple[list[NewLayer], str]] = {
    "nothing": ([], "a model needs a layer"),
    "two of a name": ([gru(return_sequences=True), gru(inputs=3)], "two layers have the same name"),
    "no name": ([gru("")], "'' is no name of a layer or array"),
    "a path": ([gru("../gru")], "'../gru' is no name of a layer or array"),
    "inputs": ([gru(return_sequences=True), gru("b")], "the layer 'b' takes 2 inputs, and gets 3"),
    "sequences": ([gru(), gru("b", 3)], "the layer 'gru' is under another, and so needs return_sequences"),
    "no bias": (
        [changed(gru(), bias=np.ones(3))],
        "the layer 'gru' has 'bias' of shape (3,); GRU of 3 units",
    ),
    "no arrays": (
        [NewLayer("gru", "GRU", {})],
        "the layer 'gru' has no arrays, and needs kernel, recurrent_k",
    ),
    "more arrays": ([changed(gru(), x=HALF)], "the layer 'gru' has 'x', which no GRU has"),
    "half": (
        [changed(gru(), recurrent_kernel=HALF)],
        "the layer 'gru' has 'recurrent_kernel' of bfloat16; Keras",
    ),
    "kinds": (
        [changed(gru(), bias=np.ones((2, 9)))],
        "the layer 'gru' has arrays of float32 and float64; Keras",
    ),
    "activation": (
        [gru(activation=np.tanh)],
        "the layer 'gru' has activation <ufunc 'tanh'>; the name of one",
    ),
    "class": (
        [NewLayer("d", "Dense", {"kernel": np.ones((2, 2))})],
        "the layer 'd' is a Dense; a .keras file is written",
    ),
    "merge": (
        [both(merge_mode=None)],
        "the layer 'both' has merge_mode None; a model of one output has concat",
    ),
    "backwards": (
        [backwards(go_backwards=True)],
        "the layer 'both' has directions of different sizes or kinds",
    ),
    "no side": ([changed(both(), kernel=HALF)], "the layer 'both' has forward/kernel, "),
    "sides": ([changed(both(), **{"forward/x": HALF})], "the layer 'both' has 'x', which no GRU has"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_models_that_cannot_be_written(h5py: Any, tmp_path: Path, name: str):
    layers, problem = UNWRITABLE[name]
    message = refusal(lambda path: write_model(path, layers), tmp_path / "made.keras")
    assert message.startswith(problem)
    assert not list(tmp_path.iterdir())


def test_directions_of_different_sizes(h5py: Any, tmp_path: Path):
    wide = {f"backward/{key}": array for key, array in gru(units=4).arrays.items()}
    message = refusal(lambda path: write_model(path, [changed(both(), **wide)]), tmp_path / "made.keras")
    assert message.startswith("the layer 'both' has directions of different sizes or kinds")


def test_two_layers_of_a_name_in_a_file_of_keras_2(h5py: Any, tmp_path: Path):
    message = refusal(lambda path: write_legacy(path, [gru(), gru()]), tmp_path / "made.h5")
    assert message == "two layers have the same name"


def test_names_of_files(h5py: Any, tmp_path: Path):
    for write, name in ((write_model, "a.h5"), (write_weights, "a.h5"), (write_legacy, "a.weights.h5")):
        message = refusal(lambda path, write=write: write(path, [gru()]), tmp_path / name)
        assert message.startswith("Keras loads such a file only where its name ends in .")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("write", "name"), [(write_model, "a.keras"), (write_weights, "a.weights.h5"), (write_legacy, "a.h5")]
)
def test_a_file_is_replaced_only_if_forced_and_is_the_same_every_time(
    h5py: Any, tmp_path: Path, write: Callable[..., None], name: str
):
    path = tmp_path / name
    path.write_text("precious")
    message = refusal(lambda path: write(path, [gru()]), path)
    assert message == "the file is there already; --force (Python: force=True) replaces it"
    assert path.read_text() == "precious"
    write(path, [gru()], force=True)
    once = path.read_bytes()
    write(path, [gru()], force=True)
    assert path.read_bytes() == once
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert refusal(lambda path: write(path, [gru()]), tmp_path / "no" / name).startswith("the file cannot be")


# What is no Keras file


def zipped(path: Path, members: Mapping[str, bytes | str], method: int = zipfile.ZIP_STORED) -> Path:
    names = {"config": "config.json", "metadata": "metadata.json", "weights": "model.weights.h5"}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(names.get(name, name), data)
    return path


def whole() -> dict[str, bytes]:
    with zipfile.ZipFile(DATA / "keras2_nested.keras") as archive:
        names = {"config": "config.json", "metadata": "metadata.json", "weights": "model.weights.h5"}
        return {key: archive.read(name) for key, name in names.items()}


def test_zips_that_are_no_keras_files(tmp_path: Path):
    path, members = tmp_path / "made.keras", whole()
    for changes, problem in {
        (("weights", None),): "this is not a .keras file: its zip has no model.weights.h5",
        (("config", None),): "this is not a .keras file: its zip has no config.json",
        (("config", b"{"),): "its config.json is no JSON (Expecting property name",
        (("config", b"[" * 100000),): "its config.json is no JSON (",
        (("config", b"\xff\xfe"),): "its config.json is no JSON (",
        (("config", b"[]"),): "its config.json is no JSON object",
        (("metadata", b"3"),): "its metadata.json is no JSON object",
        (("weights", b"foreign"),): "model.weights.h5: this is not an HDF5 file: it does not begin as one",
    }.items():
        data = {key: value for key, value in {**members, **dict(changes)}.items() if value is not None}
        assert refusal(read, zipped(path, data)).startswith(problem)
    assert refusal(read, zipped(path, members, zipfile.ZIP_DEFLATED)).endswith(
        "zip it without, as Keras does"
    )
    data = zipped(path, members).read_bytes()
    place = data.index(b"\x89HDF") + 1000
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    assert refusal(read, path) == "its model.weights.h5 is damaged: its checksum is wrong"
    del members["metadata"]
    assert read(zipped(path, members)).version is None


def model_in_models(depth: int) -> dict[str, Any]:
    model: dict[str, Any] = {"class_name": "LSTM", "config": {"name": "lstm"}}
    for _ in range(depth):
        model = {"class_name": "Sequential", "config": {"name": "model", "layers": [model]}}
    return model


def test_configurations_that_cannot_be(tmp_path: Path):
    many = [{"class_name": "Dense", "config": {"name": f"d{n}"}, "inbound_nodes": []} for n in range(2000)]
    last = {"class_name": "Add", "name": "add", "inbound_nodes": [[[f"d{n}", 0, 0] for n in range(2000)]]}
    wide = {"class_name": "Functional", "config": {"layers": [*many, last], "input_layers": []}}
    path = tmp_path / "made.keras"
    for config, problem in (
        (model_in_models(40), "its configuration has models in models more than 30 deep"),
        (wide, "its configuration has a layer that 2000 others feed"),
    ):
        zipped(path, {"weights": whole()["weights"], "config": json.dumps(config)})
        assert refusal(read, path) == problem


def test_layers_that_the_configuration_does_not_tell_are_found_all_the_same(tmp_path: Path):
    members = {"weights": whole()["weights"], "config": '{"class_name": "Mine"}'}
    path = zipped(tmp_path / "made.keras", members)
    assert [(layer.name, layer.class_name) for layer in read(path).layers] == [
        ("functional/dense", None),
        ("functional/gru", None),
        ("lstm", None),
        ("lstm_1", None),
        ("rnn", None),
    ]


def test_hdf5_that_is_no_keras_file(h5py: Any, tmp_path: Path):
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(2)
    file = read(path)  # as Chainer's, whose layers are found by the names of arrays
    assert (file.foreign, file.layers, [*file.arrays]) == (True, (), ["x"])
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [b"lstm"]
        file.create_group("lstm").attrs["weight_names"] = [b"lstm/kernel:0"]
    assert refusal(read, path) == "it has no array 'lstm/lstm/kernel:0', which it lists"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"], file.attrs["model_config"] = [b"lstm"], "{"
    assert refusal(read, path).startswith("its model_config is no JSON (")


def test_states_of_random_generators_are_no_weights(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.weights.h5", "w") as file:
        for number in range(3):
            file[f"layers/lstm/cell/vars/{number}"] = np.zeros(2)
        file["layers/lstm/cell/seed_generator/vars/0"] = np.zeros(2, np.uint32)
        file["layers/dropout/seed_generator/vars/0"] = np.zeros(2, np.uint32)
    assert said(read(tmp_path / "made.weights.h5")) == [("lstm", None, (), [*KERNELS])]


def test_a_layer_may_be_called_as_a_direction(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.attrs["layer_names"] = [b"forward_lstm"]
        file.create_group("forward_lstm").attrs["weight_names"] = [b"forward_lstm/kernel:0"]
        file["forward_lstm/forward_lstm/kernel:0"] = np.zeros(2)
    assert said(read(tmp_path / "made.h5")) == [("forward_lstm", None, (), ["kernel"])]


def test_lists_that_are_too_long_for_one_attribute(h5py: Any, tmp_path: Path):
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for number in range(3):
            file.attrs[f"layer_names{number}"] = [f"layer_{number}".encode()]
            group = file.create_group(f"layer_{number}")
            group.attrs["weight_names"] = [b"kernel:0"]
            group["kernel:0"] = np.zeros(2)
    assert [layer.name for layer in read(tmp_path / "made.h5").layers] == ["layer_0", "layer_1", "layer_2"]
