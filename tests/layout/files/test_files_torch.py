"""Files of torch.save: every kind is read bit for bit, and a hostile one gives a FileError, nothing else."""

import io
import os
import pickle
import pickletools
import random
import struct
import tarfile
import types
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from constants import Constants
from containers import refusal
from memory import memory

from stepnet.errors import FileError
from stepnet.layout.files.pickles.torch import read, write
from stepnet.layout.files.pickles.torch_tensor import DTYPES
from stepnet.layout.files.pickles.values import Name, Pairs, PersistentReference, PickledCall, dump

LEGACY = {"_use_new_zipfile_serialization": False}
FORMATS: dict[str, dict[str, Any]] = {"zip": {}, "stream": LEGACY}


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def same(array: np.ndarray, tensor: torch.Tensor) -> None:
    assert str(array.dtype) == str(tensor.dtype).removeprefix("torch.")
    assert array.shape == tuple(tensor.shape)
    assert array.tobytes() == bits(tensor)


def check(path: Path, expected: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    found = read(path)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        same(found[name], tensor)
    return found


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Some numbers of every bit pattern that a byte has, where the dtype has such."""
    if dtype == torch.bool:
        return torch.tensor([[True, False, True], [False, False, True]])
    data = bytearray(random.Random(0).randbytes(2 * 3 * dtype.itemsize))
    return torch.frombuffer(data, dtype=dtype).reshape(2, 3)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(tmp_path: Path, name: str, form: str):
    tensor = numbers(getattr(torch, name))
    torch.save({"x": tensor, "row": tensor[1], "column": tensor[:, 1]}, tmp_path / "x.pt", **FORMATS[form])
    found = check(tmp_path / "x.pt", {"x": tensor, "row": tensor[1], "column": tensor[:, 1]})
    assert found["x"].dtype == DTYPES[name]
    assert found["x"].flags.writeable


@pytest.mark.parametrize("form", FORMATS)
def test_state_dicts_of_modules(tmp_path: Path, form: str):
    torch.manual_seed(0)
    modules = torch.nn.ModuleDict({
        "rnn": torch.nn.LSTM(2, 3, 2, bidirectional=True, proj_size=2),
        "norm": torch.nn.BatchNorm1d(3),
        "out": torch.nn.Linear(3, 2, dtype=torch.bfloat16),
    })  # fmt: skip
    state = modules.state_dict()
    torch.save(state, tmp_path / "model.pth", **FORMATS[form])
    check(tmp_path / "model.pth", state)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_checkpoints(tmp_path: Path, protocol: int, form: str):
    model = torch.nn.GRU(2, 3)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 1, 2))[0].sum().backward()
    adam.step()
    checkpoint = {
        "epoch": 3,
        "state_dict": model.state_dict(),
        "optimizer": adam.state_dict(),
        "best": np.float64(0.5),
        "path": Path("somewhere"),
        "args": types.SimpleNamespace(lr=0.1),
        "loss": [1.0, 2.0, {"set"}, b"bytes", None, 1 << 70],
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "pair": (torch.ones(2), [torch.zeros(3), "text"]),
        7: torch.ones(1),
    }
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint, path, pickle_protocol=protocol, **FORMATS[form])
    expected = {f"state_dict.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in adam.state_dict()["state"].items():
        expected |= {f"optimizer.state.{index}.{name}": tensor for name, tensor in state.items()}
    expected |= {"pair.0": torch.ones(2), "pair.1.0": torch.zeros(3), "7": torch.ones(1)}
    check(path, expected)


@pytest.mark.parametrize("form", FORMATS)
def test_one_tensor_alone_and_none(tmp_path: Path, form: str):
    torch.save(torch.arange(3), tmp_path / "one.pt", **FORMATS[form])
    check(tmp_path / "one.pt", {"tensor": torch.arange(3)})
    torch.save([torch.arange(3), torch.arange(2)], tmp_path / "two.pt", **FORMATS[form])
    check(tmp_path / "two.pt", {"0": torch.arange(3), "1": torch.arange(2)})
    torch.save({"epoch": 3}, tmp_path / "none.pt", **FORMATS[form])
    assert read(tmp_path / "none.pt") == {}


@pytest.mark.parametrize("form", FORMATS)
def test_strides_and_shared_storages(tmp_path: Path, form: str):
    whole = torch.arange(60.0).reshape(3, 4, 5)
    views = {
        "whole": whole,
        "transposed": whole.transpose(0, 2),
        "step": whole[:, ::2, 1::3],
        "part": whole[1, 2:],
        "number": whole[2, 3, 4],
        "wide": whole[0, 0, :1].expand(4, 3),
        "windows": whole.reshape(-1).unfold(0, 4, 2),
        "odd stride": torch.empty_strided((1, 3), (10**9, 1)).fill_(2.0),
        "empty": whole[:0],
        "no axes": torch.tensor(5.0),
        "nothing": torch.zeros(0, 1 << 40),
    }
    torch.save(views, tmp_path / "views.pt", **FORMATS[form])
    found = check(tmp_path / "views.pt", views)
    assert np.shares_memory(found["whole"], found["transposed"])


@pytest.mark.parametrize("form", FORMATS)
def test_parameters_buffers_and_attributes(tmp_path: Path, form: str):
    parameter = torch.nn.Parameter(torch.ones(2))
    noted, tensor = torch.nn.Parameter(torch.zeros(2)), torch.arange(3.0)
    noted.note, tensor.note = {"text": 1}, 3  # type: ignore[attr-defined]
    values = {
        "p": parameter,
        "n": noted,
        "t": tensor,
        "b": torch.nn.Buffer(torch.ones(3, requires_grad=False)),
    }
    torch.save(values, tmp_path / "p.pt", **FORMATS[form])
    check(tmp_path / "p.pt", values)


def test_alignment_and_checksums_that_are_left_out(tmp_path: Path):
    state = torch.nn.GRU(2, 3).state_dict()
    config = import_module("torch.utils.serialization.config").save
    try:
        config.storage_alignment = 4096
        torch.serialization.set_crc32_options(False)
        torch.save(state, tmp_path / "model.pt")
    finally:
        config.storage_alignment = 64
        torch.serialization.set_crc32_options(True)
    assert {member.CRC for member in zipfile.ZipFile(tmp_path / "model.pt").infolist()} == {0}
    check(tmp_path / "model.pt", state)


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(
    path: Path, parts: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b""
) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
        archive.comment = comment
    return path


@pytest.mark.parametrize("name", ["float64", "bfloat16", "int16", "complex64", "uint8", "bool", "uint32"])
def test_files_of_machines_that_begin_with_the_highest_byte(tmp_path: Path, name: str):
    dtype = getattr(torch, name)
    tensor = numbers(dtype)
    torch.save({"x": tensor, "y": tensor.T}, tmp_path / "x.pt")
    word = dtype.itemsize // (2 if dtype.is_complex else 1)
    parts = members(tmp_path / "x.pt")
    parts["x/byteorder"] = b"big"
    parts["x/data/0"] = np.frombuffer(parts["x/data/0"], f"u{word}").byteswap().tobytes()
    packed(tmp_path / "big.pt", parts)
    check(tmp_path / "big.pt", {"x": tensor, "y": tensor.T})
    if name != "uint32":  # of which PyTorch turns no bytes, as its storages have no type
        same(tensor.numpy() if dtype != torch.bfloat16 else read(tmp_path / "x.pt")["x"],
             torch.load(tmp_path / "big.pt")["x"])  # fmt: skip
    parts["x/byteorder"] = b"middle"
    assert (
        refusal(read, packed(tmp_path / "x.pt", parts))
        == "its byte order is b'middle' in place of little or big"
    )
    del parts["x/byteorder"]
    parts["x/data/0"] = bits(tensor)
    check(packed(tmp_path / "x.pt", parts), {"x": tensor, "y": tensor.T})


def python_2(data: bytes) -> bytes:
    """A pickle with its texts as the strings that Python 2 writes."""
    codes: list[tuple[Any, Any, Any]] = [*pickletools.genops(data)]
    ends = [*(position for _, _, position in codes[1:]), len(data)]
    made = b""
    for (info, value, start), end in zip(codes, ends, strict=True):
        text = str(value) if info.name == "BINUNICODE" else None
        made += data[start:end] if text is None else b"U" + bytes([len(text)]) + text.encode()
    return made


def pickles(path: Path) -> tuple[list[bytes], bytes]:
    """The pickles that a file of the stream format begins with, and the rest."""
    data = path.read_bytes()
    found: list[bytes] = []
    for _ in range(5):
        end = max(position or 0 for _, _, position in pickletools.genops(data)) + 1
        found.append(data[:end])
        data = data[end:]
    return found, data


def test_files_of_python_2(tmp_path: Path):
    state = dict(torch.nn.GRU(2, 3).state_dict())
    torch.save(state, tmp_path / "model.pt", **LEGACY)
    parts, rest = pickles(tmp_path / "model.pt")
    (tmp_path / "model.pt").write_bytes(b"".join(python_2(part) for part in parts) + rest)
    assert b"U\x0cweight_ih_l0" in (tmp_path / "model.pt").read_bytes()
    check(tmp_path / "model.pt", state)

    class Pickler(pickle.Pickler):
        """Writes ordered dictionaries as Python 2 does: made of a list of lists."""

        def reducer_override(self, value: object) -> Any:
            if type(value) is OrderedDict and value:
                return OrderedDict, ([[key, item] for key, item in value.items()],)
            return NotImplemented

    module = types.SimpleNamespace(__name__="pickle", Pickler=Pickler, dump=pickle.dump)
    torch.save(OrderedDict(state), tmp_path / "model.pt", pickle_module=module, **LEGACY)
    check(tmp_path / "model.pt", state)


def test_views_in_the_stream_format(tmp_path: Path):
    torch.save({"x": torch.arange(10.0)}, tmp_path / "x.pt", **LEGACY)
    parts, rest = pickles(tmp_path / "x.pt")
    assert parts[3].count(b"K\nNt") == 1
    for view, expected in {(2, 5): slice(2, 7), (0, 10): slice(0, 10)}.items():
        tensor = b"K%c\x85" % view[1]
        part = parts[3].replace(b"K\nNt", b"K\n(U\x01vK%cK%ctt" % view).replace(b"K\n\x85", tensor)
        (tmp_path / "y.pt").write_bytes(b"".join([*parts[:3], part, parts[4], rest]))
        check(tmp_path / "y.pt", {"x": torch.arange(10.0)[expected]})
        same(read(tmp_path / "y.pt")["x"], torch.load(tmp_path / "y.pt")["x"])
    part = parts[3].replace(b"K\nNt", b"K\n(U\x01vK\x06K\x05tt")
    (tmp_path / "y.pt").write_bytes(b"".join([*parts[:3], part, parts[4], rest]))
    assert "is a view that reaches beyond it" in refusal(read, tmp_path / "y.pt")


def tar(path: Path, storages: bytes, tensors: bytes, value: bytes) -> Path:
    """A file as PyTorch before 0.1.10 wrote it."""
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        for name, data in {
            "sys_info": b"",
            "pickle": value,
            "tensors": tensors,
            "storages": storages,
        }.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a time that needs a note of its own before the file
            archive.addfile(info, io.BytesIO(data))
    return path


def pickled(value: object) -> bytes:
    stream = io.BytesIO()
    dump(value, stream.write, 2)
    return stream.getvalue()


def old_tensor(
    key: int, storage: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> bytes:
    words = (len(shape), *shape, *strides, offset)
    return pickled((key, storage, Name("torch.FloatTensor"))) + struct.pack(f"<{len(words)}q", *words)


def test_the_tar_format(tmp_path: Path):
    whole = torch.arange(12.0)
    storages = pickled(1) + pickled((11, "cpu", Name("torch.FloatStorage")))
    view = pickled((12, 11, 2, 9))[2:-1]
    storages += struct.pack("<q", 12) + bits(whole) + b"\x80\x02](" + view + b"e."
    tensors = pickled(2) + old_tensor(21, 11, 1, (2, 3), (1, 2)) + old_tensor(22, 12, 3, (), ())
    value = pickled(
        Pairs(
            [
                ("x", PersistentReference("21")),
                ("inner", Pairs([("y", PersistentReference("22"))])),
                ("epoch", 3),
            ]
        )
    )
    path = tar(tmp_path / "old.pt", storages, tensors, value)
    expected = {"x": whole.as_strided((2, 3), (1, 2), 1), "inner.y": whole[5]}
    check(path, expected)
    known = torch.load(path, weights_only=False)
    assert (known["x"] == expected["x"]).all()
    assert known["inner"]["y"] == expected["inner.y"]
    beyond = pickled(1) + old_tensor(21, 11, 1, (6, 5), (1, 2))
    late = storages.replace(view, pickled((12, 11, 2, 11))[2:-1])
    endless = storages.replace(struct.pack("<q", 12), b"\xff" * 7 + b"\x7f")
    broken = {
        "its pickle asks for a tensor that it does not hold": (
            storages,
            tensors,
            pickled(PersistentReference("5")),
        ),
        "'tensor' reaches to number 14 of a storage of 12": (
            storages,
            beyond,
            pickled(PersistentReference("21")),
        ),
        "its tar has a tensor without a key or a storage": (storages, pickled(1) + pickled(3), value),
        "its tar does not say how many storages or tensors it has": (storages, pickled(1 << 40), value),
        "its tar has a view that is none of a storage": (late, tensors, value),
        "its pickle is cut off": (endless, tensors, value),
    }
    for message, parts in broken.items():
        assert refusal(read, tar(tmp_path / "broken.pt", *parts)).startswith(message)
    data = path.read_bytes()
    for end in range(257 + 5, data.rindex(b"storages"), 511):
        path.write_bytes(data[:end])
        refusal(read, path)
    path.write_bytes(data.replace(b"storages", b"../../..", 1))
    assert refusal(read, path) == "this tar is none of torch.save's: it holds no storages"
    path.write_bytes(data.replace(b"tensors\0", b"tensors\0"[:7] + b"\0", 1)[:124] + b"9" * 12 + data[136:])
    refusal(read, path)


class Model(torch.nn.Module):
    """A module of a person's own."""

    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(2, 3)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("make", [lambda: torch.nn.GRU(2, 3), Model])
def test_whole_modules_are_their_state_dict(tmp_path: Path, make: Callable[[], torch.nn.Module], form: str):
    module = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the source that the stream format does not find
        torch.save(module, tmp_path / "model.pt", **FORMATS[form])
    check(tmp_path / "model.pt", module.state_dict())
    torch.save({"epoch": 3, "net": module}, tmp_path / "model.pt")
    check(tmp_path / "model.pt", {f"net.{name}": x for name, x in module.state_dict().items()})


class Odd(Model):
    """A module with tensors where a state dict has none, one that is shared, and objects in a circle."""

    def __init__(self):
        super().__init__()
        self.again = self.rnn
        self.weights = [self.rnn.weight_ih_l0, torch.arange(3)]
        self.register_buffer("mean", torch.ones(2))
        self.owner = types.SimpleNamespace(module=self, scale=torch.full((1,), 7.0))


def test_tensors_that_no_state_dict_has_come_last(tmp_path: Path):
    module = Odd()
    torch.save(module, tmp_path / "model.pt")
    more = {"weights.1": torch.arange(3), "owner.scale": torch.full((1,), 7.0)}
    check(tmp_path / "model.pt", {**module.state_dict(), **more})


@pytest.mark.parametrize("traced", [False, True])
def test_torchscript_is_its_state_dict(tmp_path: Path, traced: bool):
    module = Model().rnn.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which is what PyTorch warns of, too
        made = torch.jit.trace(module, torch.zeros(4, 2)) if traced else torch.jit.script(module)
        torch.jit.save(made, tmp_path / "model.pt")
    check(tmp_path / "model.pt", module.state_dict())


def refused_tensors() -> dict[str, tuple[torch.Tensor, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ones = torch.ones(2, 3)
        return {
            "quantized": (
                torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
                "is quantized; save tensor.dequantize()",
            ),
            "by channel": (
                torch.quantize_per_channel(ones, torch.ones(2), torch.zeros(2), 0, torch.quint8),
                "is quantized; save tensor.dequantize()",
            ),
            "sparse": (ones.to_sparse(), "is sparse; save tensor.to_dense()"),
            "sparse rows": (ones.to_sparse_csr(), "is sparse; save tensor.to_dense()"),
            "nested": (
                torch.nested.nested_tensor([ones, ones[:1]]),
                "is nested; save tensor.to_padded_tensor(0)",
            ),
            "meta": (torch.ones(2, device="meta"), "is on the device meta and has no numbers"),
            "conjugate": (
                torch.ones(2, dtype=torch.complex64).conj(),
                "has still to be conjugated; save tensor.resolve_conj()",
            ),
            "half complex": (
                torch.zeros(2, dtype=torch.complex32),
                "holds complex32, which stepnet does not read; save tensor.float()",
            ),
        }


@pytest.mark.parametrize("form", FORMATS)
def test_tensors_that_are_refused_by_name(tmp_path: Path, form: str):
    for name, (tensor, message) in refused_tensors().items():
        if (name, form) == ("half complex", "stream"):
            continue
        torch.save({"a": torch.ones(1), "layer": {name: tensor}}, tmp_path / "x.pt", **FORMATS[form])
        assert refusal(read, tmp_path / "x.pt") == f"'layer.{name}' {message}"


def tensor(
    storage: object = ("storage", Name("torch.FloatStorage"), "0", "cpu", 6),
    offset: object = 0,
    shape: object = (2, 3),
    strides: object = (3, 1),
    name: str = "torch._utils._rebuild_tensor_v2",
    rest: tuple[object, ...] = (False, None),
) -> PickledCall:
    return PickledCall(name, (PersistentReference(storage), offset, shape, strides, *rest))


def stored(
    kind: object = Name("torch.FloatStorage"), key: object = "0", count: object = 6
) -> tuple[object, ...]:
    return "storage", kind, key, "cpu", count


def zipped(path: Path, value: object, **others: bytes) -> Path:
    return packed(path, {"x/data.pkl": pickled(value), "x/data/0": bytes(24), **others})


PARTS = {
    "its storage, offset, shape or strides are none": [
        tensor(offset=-1),
        tensor(offset=1 << 62),
        tensor(offset=None),
        tensor(shape=(-2, 3)),
        tensor(shape=(True, 3)),
        tensor(shape=None),
        tensor(shape=(1 << 30, 1 << 30)),
        tensor(shape=(0, 1 << 60)),
        tensor(shape=(1,) * 65, strides=(1,) * 65),
        tensor(strides=None),
        tensor(strides=(-3, -1)),
        tensor(strides=(1 << 62, 1)),
        PickledCall("torch._utils._rebuild_tensor_v2", ()),
        PickledCall("torch._utils._rebuild_tensor_v2", (7, 0, (2, 3), (3, 1), False, None)),
    ],
    "axes and strides for": [tensor(strides=(1,)), tensor(strides=())],
    "reaches to number": [
        tensor(offset=1),
        tensor(offset=1 << 61),
        tensor(shape=(3, 3)),
        tensor(shape=(1 << 40,), strides=(1,)),
        tensor(strides=(4, 1)),
        tensor(strides=(1 << 61, 1)),
        tensor(stored(count=5)),
        tensor(stored(Name("torch.HalfStorage")), name="torch._utils._rebuild_tensor_v3",
               rest=(False, None, Name("torch.float64"))),
    ],
    "has 24 bytes of": [tensor(stored(count=count)) for count in (7, 1 << 61, (1 << 63) - 1)],
    "which the file lacks": [tensor(stored(key=key)) for key in ("1", "../data/0", "/etc/passwd", "")],
    "in a way that torch.save does not": [
        tensor(7),
        tensor(()),
        tensor(("module", Name("torch.FloatStorage"), "0", "cpu", 6)),
        tensor(stored(key=0)),
        tensor(stored(count=-1)),
        tensor(stored(count=None)),
    ],
    "is a view that reaches beyond it": [
        tensor((*stored(), ("v", 1, 6))),
        tensor((*stored(), ("v", -1, 6))),
        tensor((*stored(), 5)),
    ],
    "'x' holds qint8, which stepnet does not read": [tensor(stored(Name("torch.QInt8Storage")))],
    "times as large as itself": [tensor(stored(count=1), shape=(1 << 20,), strides=(0,))],
    "is no tensor in a form that stepnet knows": [
        PickledCall("torch._utils._rebuild_parameter", ()),
        PickledCall("torch._utils._rebuild_parameter", ("text", False, None)),
        PickledCall(
            "torch._tensor._rebuild_from_type_v2", (Name("numpy.ndarray"), Name("torch.Tensor"), (), None)
        ),
        PickledCall("torch._tensor._rebuild_from_type_v2", (7, Name("torch.Tensor"), (), None)),
    ],
}  # fmt: skip


def wrapped(call: PickledCall, times: int) -> PickledCall:
    for _ in range(times):
        call = PickledCall("torch._utils._rebuild_parameter", (call, False, None))
    return call


@pytest.mark.parametrize("message", PARTS)
def test_hostile_tensors(tmp_path: Path, message: str):
    zeros = {"x": torch.zeros(2, 3)}
    check(zipped(tmp_path / "x.pt", Pairs([("x", tensor())])), zeros)
    check(zipped(tmp_path / "x.pt", Pairs([("x", wrapped(tensor(), 3))])), zeros)
    for value in PARTS[message]:
        path = zipped(tmp_path / "x.pt", Pairs([("x", value)]))
        with memory() as peak:
            assert message in refusal(read, path)
            assert peak() < 1 << 20


def test_tensors_within_thousands_of_parameters(tmp_path: Path):
    assert "in a form that stepnet knows" in refusal(read, zipped(tmp_path / "x.pt", wrapped(tensor(), 50)))


def test_truth_values_are_0_or_1(tmp_path: Path):
    value = tensor(stored(Name("torch.BoolStorage"), "b"), 0, (2,), (1,))
    path = zipped(tmp_path / "x.pt", Pairs([("x", value)]), **{"x/data/b": bytes([0, 2, 1, 1, 0, 0])})
    assert refusal(read, path) == "'x' holds truth values other than 0 and 1"


def test_nothing_is_run(tmp_path: Path):
    mark = tmp_path / "ran"
    for name in [
        "posix.system",
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "builtins.getattr",
        "torch.load",
    ]:
        call = PickledCall(name, (f"echo > {mark}",))
        assert read(zipped(tmp_path / "x.pt", call)) == {}
        check(zipped(tmp_path / "x.pt", Pairs([("x", tensor()), ("y", call)])), {"x": torch.zeros(2, 3)})
        message = refusal(read, zipped(tmp_path / "x.pt", Pairs([("x", tensor(stored(call)))])))
        assert message == "its pickle asks for values outside it, in a way that torch.save does not"
        path = tmp_path / "stream.pt"
        torch.save({}, path, **LEGACY)
        parts, rest = pickles(path)
        for index in range(5):
            changed = [*parts]
            changed[index] = pickled(call)
            path.write_bytes(b"".join(changed) + rest)
            if index in (0, 1, 4):
                refusal(read, path)
            else:
                assert read(path) == {}
    assert not mark.exists()
    pickle.loads(pickled(PickledCall("posix.system", (f"echo > {mark}",))))
    assert mark.exists()  # and Python's own reader runs it


def test_zips_that_are_none_of_torch_save(tmp_path: Path):
    path, none = tmp_path / "x.pt", "this zip is none of torch.save's: it holds no data.pkl in one folder"
    for name in ["data.pkl", "../data.pkl/x", "../../data.pkl", "a/b/data.pkl", "x/data.pkl2"]:
        assert refusal(read, packed(path, {name: pickled(None)})) == none
    assert refusal(read, packed(path, {"a/data.pkl": pickled(None), "b/data.pkl": pickled(None)})) == none
    folder = packed(path, {"../data.pkl": pickled(Pairs([("x", tensor())])), "../data/0": bytes(24)})
    check(folder, {"x": torch.zeros(2, 3)})  # a name is no more than one
    assert sorted(os.listdir(tmp_path)) == ["x.pt"]
    parts = {"x/data.pkl": pickled(Pairs([("x", tensor())])), "x/data/0": bytes(24)}
    check(packed(path, parts, comment=b"a comment"), {"x": torch.zeros(2, 3)})


def test_compressed_and_encrypted_members_are_refused(tmp_path: Path):
    parts = {"x/data.pkl": pickled(Pairs([("x", tensor())])), "x/data/0": bytes(24)}
    bomb = {**parts, "x/data.pkl": pickled("a" * 10_000_000)}
    for one in (parts, bomb):
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            path = packed(tmp_path / "x.pt", one, method)
            with memory() as peak:
                assert "'x/data.pkl' is compressed or encrypted" in refusal(read, path)
                assert peak() < 1 << 20
    data = bytearray(packed(tmp_path / "x.pt", parts).read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "x.pt").write_bytes(data)
    assert "'x/data.pkl' is compressed or encrypted" in refusal(read, tmp_path / "x.pt")


def changed(data: bytes, field: int, form: str, *values: int, entry: bytes = b"x/data/0") -> bytes:
    """A zip with other numbers at a place of the entry of a member in the list of them."""
    start = data.rindex(entry) - 46 + field
    assert data[start - field : start - field + 4] == b"PK\1\2"
    return data[:start] + struct.pack(form, *values) + data[start + struct.calcsize(form) :]


def test_zips_with_wrong_lists(tmp_path: Path):
    path = packed(tmp_path / "x.pt", {"x/data.pkl": pickled(Pairs([("x", tensor())])), "x/data/0": bytes(24)})
    whole = path.read_bytes()
    end = whole.rindex(b"PK\5\6")
    broken = {
        "their checksum is wrong": changed(whole, 16, "<I", 7),
        "is compressed or encrypted": changed(whole, 20, "<I", 23),
        "has 23 bytes of 24 in the file": changed(whole, 20, "<2I", 23, 23),
        "its zip lists more bytes than it has": changed(whole, 20, "<2I", 1 << 31, 1 << 31),
        "'x/data/0' has no size": changed(whole, 20, "<2I", 0xFFFFFFFF, 0xFFFFFFFF),
        "'x/data/0' is not where the list has it": changed(whole, 42, "<I", 1),
        "'x/data/0' has another name where it lies": changed(whole, 42, "<I", 0),
        "two members of the name 'x/data.pk'": whole,
        "which cannot be": whole[: end + 8] + struct.pack("<2H", 60000, 60000) + whole[end + 12 :],
        "which cannot be ": whole[: end + 16] + struct.pack("<I", len(whole)) + whole[end + 20 :],
        "list of members is broken": whole[: end + 16] + struct.pack("<I", 0) + whole[end + 20 :],
        "the list of members at its end is missing": whole[:end],
    }
    double = {"x/data.pk": b"", "x/data.pkl": pickled(None), "y/data.pk": b""}
    broken["two members of the name 'x/data.pk'"] = packed(path, double).read_bytes().replace(b"y/", b"x/")
    for message, data in broken.items():
        path.write_bytes(data)
        assert message.strip() in refusal(read, path)


def test_members_that_share_bytes_are_refused(tmp_path: Path):
    parts = {
        "x/data.pkl": pickled(Pairs([("x", tensor())])),
        "x/data/0": bytes(24),
        "x/data/1": bytes(100_000),
    }
    data = packed(tmp_path / "x.pt", parts).read_bytes()
    where = changed(data, 0, "<0I", entry=b"x/data/1").rindex(b"x/data/1") - 46
    entry = data[where : data.rindex(b"PK\5\6")]
    many = b"".join(entry.replace(b"x/data/1", b"x/data/%c" % letter) for letter in b"abcdefgh")
    end = bytearray(data[data.rindex(b"PK\5\6") :])
    count, length = 11, struct.unpack_from("<I", end, 12)[0] + len(many)
    struct.pack_into("<2HI", end, 8, count, count, length)
    (tmp_path / "x.pt").write_bytes(data[: data.rindex(b"PK\5\6")] + many + bytes(end))
    assert refusal(read, tmp_path / "x.pt") == "its zip lists more bytes than it has"


def test_zips_with_numbers_of_64_bits(tmp_path: Path, constants: Constants):
    tensor = torch.arange(100.0)
    torch.save({"x": tensor}, tmp_path / "x.pt")
    constants(zipfile, ZIP64_LIMIT=50)  # as if members were larger than 4 gigabytes
    packed(tmp_path / "y.pt", members(tmp_path / "x.pt"))
    data = (tmp_path / "y.pt").read_bytes()
    entry = data.rindex(b"x/data/0") - 46
    assert data[entry + 20 : entry + 28] == b"\xff" * 8
    assert data[entry + 42 : entry + 46] == b"\xff" * 4
    check(tmp_path / "y.pt", {"x": tensor})
    assert (torch.load(tmp_path / "y.pt")["x"] == tensor).all()
    (tmp_path / "y.pt").write_bytes(data.replace(b"PK\6\6", b"PK\6\5"))
    assert refusal(read, tmp_path / "y.pt") == "its zip has no end where it says that it has one"


def test_files_that_are_none_of_torch_save(tmp_path: Path):
    path = tmp_path / "model.pt"
    none = "this is not a file of torch.save; write one with torch.save(model.state_dict(), path)"
    for data in [
        b"",
        b"abc",
        random.Random(0).randbytes(1000),
        pickle.dumps({"a": 1}),
        b"PK\5\6" + bytes(18),
    ]:
        path.write_bytes(data)
        assert refusal(read, path) == none


def test_changed_pickles_never_raise_anything_else(tmp_path: Path):
    path, draw = tmp_path / "x.pt", random.Random(1)
    state = torch.nn.GRU(2, 2).state_dict()
    torch.save({"model": state, "epoch": 3, "one": torch.ones(3, dtype=torch.float16)}, path)
    parts = members(path)
    data = parts["x/data.pkl"]
    refused = 0
    for _ in range(400):
        flipped = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            flipped[draw.randrange(len(flipped))] = draw.choice(
                [draw.randrange(256), 0, 255, ord("h"), ord(")")]
            )
        try:
            read(packed(path, {**parts, "x/data.pkl": bytes(flipped)}))
        except FileError:
            refused += 1
    assert refused > 200


def test_memory_is_that_of_the_arrays(tmp_path: Path):
    size = 4_000_000
    torch.save({"x": torch.zeros(size), "y": torch.zeros(size // 2).reshape(1000, -1).T}, tmp_path / "x.pt")
    with memory() as peak:
        found = read(tmp_path / "x.pt")
        assert peak() < 1.02 * 6 * size
    with memory() as peak:
        write(tmp_path / "y.pt", {"x": found["x"]})
        assert peak() < 1 << 20


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_written_torch_reads(tmp_path: Path, name: str):
    dtype = DTYPES[name]
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2, (3, 4)).astype(dtype) if dtype == np.bool_ else (
        np.frombuffer(rng.bytes(12 * dtype.itemsize), dtype).reshape(3, 4))  # fmt: skip
    arrays = {
        "plain": array,
        "transposed": array.T,
        "step": array[::2, ::-1],
        "number": array[1, 2].reshape(()),
        "empty": array[:0],
        "turned": array.astype(dtype.newbyteorder(">"))
        if dtype.kind in "fiuc" and name[:6] != "float8"
        else array,
        "räksmörgås/x.0": np.broadcast_to(array[0], (2, 4)),
    }
    write(tmp_path / "x.pt", arrays)
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    mapped = torch.load(tmp_path / "x.pt", weights_only=True, mmap=True)
    assert list(found) == list(arrays)
    for key, value in arrays.items():
        same(np.ascontiguousarray(value, dtype).reshape(value.shape), found[key])
        assert bits(mapped[key]) == bits(found[key])
        assert found[key].is_contiguous()
    again = check(tmp_path / "x.pt", found)
    write(tmp_path / "y.pt", again)
    assert (tmp_path / "x.pt").read_bytes() == (tmp_path / "y.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None
        data = (tmp_path / "x.pt").read_bytes()
        for info in archive.infolist():
            name_length, extra_length = struct.unpack_from("<2H", data, info.header_offset + 26)
            assert (info.header_offset + 30 + name_length + extra_length) % 64 == 0


def test_what_is_written_is_loaded_by_a_module(tmp_path: Path):
    model, other = torch.nn.LSTM(2, 3, bidirectional=True), torch.nn.LSTM(2, 3, bidirectional=True)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    write(tmp_path / "y.pt", read(tmp_path / "x.pt"))
    other.load_state_dict(torch.load(tmp_path / "y.pt"))
    for name, value in model.state_dict().items():
        assert bits(value) == bits(other.state_dict()[name])
    write(tmp_path / "y.pt", {}, force=True)
    assert torch.load(tmp_path / "y.pt") == {}


def test_large_members_have_their_place(tmp_path: Path, constants: Constants):
    constants("stepnet.layout.files.pickles.torch", WIDE=100)
    array = np.arange(100.0)
    write(tmp_path / "x.pt", {"x": array, "y": array[:5]})
    found = torch.load(tmp_path / "x.pt", mmap=True)
    assert (found["x"].numpy() == array).all()
    assert found["x"].data_ptr() % 64 == 0
    check(tmp_path / "x.pt", found)


def test_what_is_not_written(tmp_path: Path):
    path = tmp_path / "x.pt"
    for array, text in [
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.zeros(2, "m8[s]"), "timedelta64[s]"),
    ]:
        with pytest.raises(FileError) as caught:
            write(path, {"w": array})
        assert str(caught.value) == f"{path}: 'w' is of dtype {text}, which PyTorch does not have"
    with pytest.raises(FileError, match=r"'\\ud800' cannot be a name, as it cannot be printed$"):
        write(path, {"\ud800": np.zeros(1)})
    assert os.listdir(tmp_path) == []
