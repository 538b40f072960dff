"""No file takes more memory or time than its size allows, however it is packed, shared or nested.

Each file is made by the framework's own library where that can write it, and read in a process of its own,
whose largest resident size the kernel says (`readers.py`).
"""

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import stepnet

from stepnet.errors import FileError, LayoutError
from stepnet.layout.files import read
from stepnet.layout.files.checkpoint import sstable
from stepnet.layout.files.checksums import crc32c, masked
from stepnet.layout.files.store import SPARE, TIMES
from tests.layout.files.readers import Reading

onnx = pytest.importorskip("onnx")
h5py = pytest.importorskip("h5py")
pytest.importorskip("msgpack")


# ---- ONNX --------------------------------------------------------------------------------------------------


def delimited(field: int, data: bytes) -> bytes:
    """A field of a message of Protocol Buffers that is bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """A number in groups of seven bits."""
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def saved(path: Path, nodes: list[Any], arrays: dict[str, Any], functions: Any = ()) -> Path:
    """A model of some nodes and initializers."""
    made, typed = onnx.helper, onnx.TensorProto.FLOAT
    x = made.make_tensor_value_info("x", typed, ["T", "N", 100])
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = made.make_graph(nodes, "graph", [x], [], tensors)
    onnx.save(made.make_model(graph, functions=list(functions)), path)
    return path


def empty_nodes(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(b"\x08\x08" + delimited(7, delimited(1, b"") * 3_000_000))
    return path


def empty_names(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(b"\x08\x08" + delimited(7, delimited(1, delimited(1, b"") * 3_000_000)))
    return path


def one_weight_transposed_for_many(folder: Path) -> Path:
    node = onnx.helper.make_node
    nodes = [node("Transpose", [name], [name.lower()], perm=[0, 2, 1]) for name in "WR"]
    nodes += [node("GRU", ["x", "w", "r"], [f"y{n}"], hidden_size=100) for n in range(8000)]
    return saved(folder / "model.onnx", nodes, dict.fromkeys("WR", np.zeros((1, 100, 300), "f4")))


def a_large_node_called_often(folder: Path) -> Path:
    node, opset = onnx.helper.make_node, onnx.helper.make_opsetid("", 18)
    large = node("Own", ["a"] * 20000, ["b"], name="n" * 20000)
    function = onnx.helper.make_function("own", "F", ["a"], ["b"], [large], [opset])
    nodes = [node("F", ["x"], [f"y{place}"], domain="own") for place in range(20000)]
    return saved(folder / "model.onnx", nodes, {}, [function])


def zeros_of_zeros(folder: Path) -> Path:
    node, count = onnx.helper.make_node, 4000
    nodes = [node("ConstantOfShape", ["x"], ["z0"])]
    nodes += [node("Concat", ["z0", f"z{n}"], [f"z{n + 1}"], axis=0) for n in range(count)]
    nodes += [
        node("GRU", ["x", "W", "R", "", "", f"z{count}"], [f"y{n}"], hidden_size=1) for n in range(count)
    ]
    weights = dict.fromkeys("WR", np.zeros((1, 3, 1), "f4"))
    return saved(folder / "model.onnx", nodes, weights)


# ---- Keras and HDF5 ----------------------------------------------------------------------------------------


def keras(path: Path, config: str) -> Path:
    """A .keras file with a configuration."""
    weights = BytesIO()
    with h5py.File(weights, "w") as file:
        file["layers/lstm/cell/vars/0"] = np.zeros((2, 12), "f4")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config)
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", weights.getvalue())
    return path


def a_long_name_before_many(folder: Path) -> Path:
    layers = [{"class_name": "Dense", "config": {"name": str(n)}} for n in range(20000)]
    inner = {"class_name": "Sequential", "config": {"name": "n" * 400_000, "layers": layers}}
    config = {"class_name": "Sequential", "config": {"layers": [inner]}}
    return keras(folder / "model.keras", json.dumps(config))


def empty_objects(folder: Path) -> Path:
    return keras(folder / "model.keras", '{"a": [' + '{"":{"":1}},' * 300_000 + "0]}")


def packed_zeros(folder: Path) -> Path:
    with h5py.File(folder / "model.weights.h5", "w") as file:
        numbers = {"shape": (60, 1 << 20), "chunks": (1, 1 << 20), "dtype": "f4"}
        dataset = file.create_dataset("layers/lstm/cell/vars/0", compression="gzip", **numbers)
        for row in range(60):
            dataset[row] = 0
    return folder / "model.weights.h5"


def short_texts(folder: Path) -> Path:
    with h5py.File(folder / "model.h5", "w") as file:
        for n in range(60):
            file.create_group(f"g{n}").attrs["layer_names"] = np.array([b"ab"] * 32000)
    return folder / "model.h5"


# ---- TensorFlow's checkpoints ------------------------------------------------------------------------------


def index(path: Path, block: bytes, packed: int = sstable.STORED) -> Path:
    """A table of one block."""
    place = varint(0) + varint(len(block))
    rows = varint(0) + varint(1) + varint(len(place)) + b"z" + place + struct.pack("<II", 0, 1)
    data = block + bytes([packed])
    data += struct.pack("<I", masked(crc32c(data)))
    end = varint(0) * 2 + varint(len(data)) + varint(len(rows))
    checksum = masked(crc32c(rows + b"\0"))
    data += rows + struct.pack("<BI", 0, checksum) + end.ljust(40, b"\0")
    path.write_bytes(data + sstable.MAGIC.to_bytes(8, "little"))
    return path


def keys_that_share_a_beginning(folder: Path) -> Path:
    first = varint(0) + varint(5000) + varint(0) + b"a" * 5000
    rows = [varint(5000) + varint(7) + varint(0) + b"%07d" % n for n in range(200_000)]
    return index(folder / "model.index", first + b"".join(rows) + struct.pack("<II", 0, 1))


def many_fields(folder: Path) -> Path:
    value = b"\x10\x01" * 1_000_000
    entry = varint(0) + varint(0) + varint(len(value)) + value
    return index(folder / "model.index", entry + struct.pack("<II", 0, 1))


def snappy(folder: Path) -> Path:
    count = 2_700_000
    data = varint(1 + 64 * count) + b"\0a" + b"\xfe\1\0" * count
    return index(folder / "model.index", data, sstable.SNAPPY)


# ---- pickles, MessagePack and others -----------------------------------------------------------------------


def empty_dictionaries(folder: Path) -> Path:
    (folder / "model.pdparams").write_bytes(b"\x80\2(" + b"}" * 2_000_000 + b"t.")
    return folder / "model.pdparams"


def one_array_under_many_names(folder: Path) -> Path:
    array = np.zeros(1, "f4")
    tree = {"k" * 900: {str(n): array for n in range(100_000)}}
    (folder / "model.pdparams").write_bytes(pickle.dumps(tree, 4))
    return folder / "model.pdparams"


def dictionaries_in_a_dictionary(folder: Path) -> Path:
    pairs = b"".join(b"\xa4%04x\x80" % n for n in range(1 << 16))
    (folder / "model.msgpack").write_bytes(b"\xdc\0\x20" + (b"\xde\xff\xff" + pairs[6:]) * 32)
    return folder / "model.msgpack"


def arrays_in_a_description(folder: Path) -> Path:
    (folder / "model.bin").write_bytes(bytes(64))
    said = {"format": "stepnet raw 1", "layout": "cudnn.gru", "dtype": "float32", "byteorder": "little"}
    arrays = [{"name": str(n), "shape": [0], "offset": 0} for n in range(300_000)]
    (folder / "model.json").write_text(json.dumps({**said, "file": "model.bin", "arrays": arrays}))
    return folder / "model.json"


def deflated_zeros(folder: Path) -> Path:
    np.savez_compressed(folder / "model.npz", kernel=np.zeros((1000, 60_000), "f4"))
    return folder / "model.npz"


# ---- OpenVINO, Core ML, shards and whole modules -----------------------------------------------------------


def empty_layers(folder: Path) -> Path:
    layers = "".join(f'<layer id="{n}"/>' for n in range(300_000))
    (folder / "model.xml").write_text(f"<net><layers>{layers}</layers></net>")
    return folder / "model.xml"


def empty_operations(folder: Path) -> Path:
    block = b"".join(delimited(3, delimited(3, delimited(1, b"%06d" % n))) for n in range(300_000))
    function = delimited(3, delimited(2, block))
    (folder / "model.mlmodel").write_bytes(delimited(502, delimited(2, delimited(2, function))))
    return folder / "model.mlmodel"


def empty_lists_in_an_index(folder: Path) -> Path:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [' + "[]," * 1_000_000 + "0]}")
    return folder / "model.safetensors.index.json"


def empty_dictionaries_beside_tensors(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\2(" + b"}" * 2_000_000 + b"t.")
    return folder / "model.pt"


def empty_dictionaries_in_metadata(folder: Path) -> Path:
    (folder / ".metadata").write_bytes(b"\x80\2(" + b"}" * 2_000_000 + b"t.")
    return folder / ".metadata"


HOSTILE: tuple[Callable[[Path], Path], ...] = (
    *(empty_nodes, empty_names, one_weight_transposed_for_many, a_large_node_called_often),
    *(a_long_name_before_many, empty_objects, packed_zeros, short_texts),
    *(keys_that_share_a_beginning, many_fields, snappy),
    *(empty_dictionaries, one_array_under_many_names, dictionaries_in_a_dictionary),
    *(arrays_in_a_description, deflated_zeros),
    *(empty_layers, empty_operations, empty_lists_in_an_index),
    *(empty_dictionaries_beside_tensors, empty_dictionaries_in_metadata),
)


@pytest.mark.parametrize("make", HOSTILE)
def test_what_would_fill_the_memory_is_refused(
    tmp_path: Path, reading: Reading, make: Callable[[Path], Path]
):
    path = make(tmp_path)
    count, said = reading.taken(path)
    assert said.endswith(
        "far more than the file has; --most BYTES ahead of the command (Python: most=BYTES) allows more"
    )
    assert count < 2 * SPARE + 2 * TIMES * path.stat().st_size


def test_what_would_take_for_ever_is_refused(tmp_path: Path, reading: Reading):
    assert (
        "its values depend on each other through too many nodes" in reading.taken(zeros_of_zeros(tmp_path))[1]
    )


def test_the_limit_can_be_raised(tmp_path: Path):
    path = tmp_path / "model.npz"
    np.savez_compressed(path, kernel=np.zeros((1000, 20_000), "f4"))
    with pytest.raises(FileError, match=r"with its array 'kernel\.npy' it would fill more than"):
        read(path)
    assert read(path, most=1 << 28).rest["kernel"].shape == (1000, 20_000)
    with pytest.raises(FileError, match="fill more than 1000 bytes of memory"):
        read(path, most=1000)


# ---- names -------------------------------------------------------------------------------------------------


def named(path: Path, name: str) -> Path:
    """A model of one GRU with a name."""
    weights = {"W": np.zeros((1, 9, 2), "f4"), "R": np.zeros((1, 9, 3), "f4")}
    node = onnx.helper.make_node("GRU", ["x", "W", "R"], ["y"], name=name, hidden_size=3)
    return saved(path, [node], weights)


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\u202eb"])
def test_a_name_that_a_terminal_obeys_is_refused(tmp_path: Path, name: str):
    with pytest.raises(FileError) as caught:
        read(named(tmp_path / "model.onnx", name))
    assert str(caught.value).endswith(f"a layer or an array has the name {name!a}, which cannot be printed")


@pytest.mark.parametrize("name", ["[red]gru[/red]", "[/]", "[link=file:///etc]x[/link]", ":smile:"])
def test_a_name_that_is_markup_is_shown_as_it_is(tmp_path: Path, name: str):
    path = named(tmp_path / "model.onnx", name)
    for arguments in (["show"], ["--most", "100000000", "show"]):
        code, shown, _ = stepnet(*arguments, path, "--semantics", "reset=after")
        assert (code, name in shown) == (0, True), shown
    assert "would fill more than 10 bytes of memory" in stepnet("--most", 10, "show", path)[2]
    assert read(path).modules


@pytest.mark.parametrize("layers", [2**70, 10**9, 1025])
def test_more_layers_than_any_model_has_are_refused(tmp_path: Path, layers: int):
    said = {"format": "stepnet raw 1", "layout": "cudnn.gru", "dtype": "float32", "byteorder": "little"}
    arrays = [{"name": "weight_space", "shape": [63], "offset": 0}]
    sizes = {"inputs": 2, "hidden": 3, "layers": layers}
    (tmp_path / "model.bin").write_bytes(bytes(252))
    (tmp_path / "model.json").write_text(json.dumps({**said, "sizes": sizes, "arrays": arrays}))
    with pytest.raises(LayoutError, match="layers is 1024 at most, not "):
        read(tmp_path / "model.json").modules[0].solved_sizes()


def test_constants_and_merges_that_are_none(tmp_path: Path):
    node = onnx.helper.make_node
    constant = node("Constant", [], ["W"], value=1.5)
    gru = node("GRU", ["x", "W", "R"], ["y"], hidden_size=3)
    path = saved(tmp_path / "model.onnx", [constant, gru], {"R": np.zeros((1, 9, 3), "f4")})
    with pytest.raises(FileError, match="its W is 'W', and that Constant holds no array of numbers"):
        read(path)
    inner = {"class_name": "LSTM", "config": {"name": "lstm", "units": 3}}
    both = {"name": "both", "merge_mode": [], "layer": inner}
    layer = {"class_name": "Bidirectional", "config": both}
    config = {"class_name": "Sequential", "config": {"layers": [layer]}}
    path = keras(tmp_path / "model.keras", json.dumps(config))
    with h5py.File(tmp_path / "weights", "w") as file:
        for way in ("forward", "backward"):
            for place, shape in enumerate([(2, 12), (3, 12)]):
                file[f"layers/bidirectional/{way}_layer/cell/vars/{place}"] = np.zeros(shape, "f4")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.write(tmp_path / "weights", "model.weights.h5")
    with pytest.raises(FileError, match=r"'both' has merge_mode '\[\]', which gives no one output"):
        read(path)
