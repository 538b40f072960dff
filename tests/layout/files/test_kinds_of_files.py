"""The table of all kinds of files: what is read of each row of docs/interchange.md, whether its layers come
back from another framework, and what becomes of a file that is cut off or changed, or is none at all.

A row is a file that a framework saved, in an archive of the corpus or of these tests' data, or one made here.
What is special to one kind stands in the file of its tests.
"""

import os
import pickle
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import changed, cut, refusal, samples, unpacked
from same_bits import assert_same_bits

from stepnet.errors import FileError, StepnetError
from stepnet.layout.files import FORMATS, LayoutChoice, checksums, convert_file, kind, read
from stepnet.layout.files.formats import BY_TITLE
from stepnet.layout.files.raw import write_buffers

DATA = Path(__file__).parent / "data"
CORPUS = Path(__file__).parents[2] / "peers" / "corpus" / "saved"
PAGE = Path(__file__).parents[3] / "docs" / "interchange.md"
SPEECH = "encoder. torch.lstm, decoder. torch.gru, and 3 others"
FLAX = "decoder_gru/ flax.gru, encoder_lstm/ flax.lstm, and 2 others"

# By row of that page: files, and the layers of each with their layouts, and how many other arrays it has.
ROWS: dict[str, dict[str, str]] = {
    "PyTorch `.pt` `.pth` `.pth.tar` `.th` `.ckpt` ...: state dicts, checkpoints, whole modules, "
    "TorchScript": {
        **dict.fromkeys(("torch/state.pt", "torch/legacy.pth", "torch/model.pth", "torch/script.pt"), SPEECH),
        "torch/checkpoint.tar": "model_state_dict.encoder. torch.lstm, model_state_dict.decoder. torch.gru, "
        "and 36 others",
        "torch/lightning.ckpt": "state_dict.model.encoder. torch.lstm, state_dict.model.decoder. torch.gru, "
        "and 36 others",
    },
    "`.safetensors`": {
        "torch/model.safetensors": "decoder. torch.gru, encoder. torch.lstm, and 3 others",
    },
    "a model in shards: `model.safetensors.index.json` or `pytorch_model.bin.index.json`, or any shard "
    "beside it": {
        "torch/shards/model.safetensors.index.json": SPEECH,
        "torch/shards/model-00001-of-00003.safetensors": SPEECH,
    },
    "PyTorch `.pt2` of torch.export, folders of torch.distributed.checkpoint, `.nemo`": {
        **dict.fromkeys(("torch/exported.pt2", "torch/distributed", "made/model.nemo"), SPEECH),
    },
    "Keras `.keras`, `.weights.h5`, `.h5` of Keras 1 to 3": {
        "keras/row.keras": "first keras.gru, second keras.lstm, third keras.rnn, and 0 others",
        "keras/normalised.weights.h5": "lower keras.lstm, upper keras.lstm, and 2 others",
        "keras/normalised.h5": "lower keras.lstm, upper keras.lstm, and 2 others",
        "tensorflow/speech.h5": "encoder keras2.gru, decoder keras2.lstm, and 4 others",
        "data/keras1_gru.h5": "gru_1 keras1.gru, and 0 others",
    },
    "Chainer `.npz` and `.h5` of `save_npz` and `save_hdf5`": {
        "chainer/stacks.npz": "gru/ chainer.nstep_gru, both_rnn/ chainer.nstep_birnn, "
        "both_gru/ chainer.nstep_bigru, lstm/ chainer.nstep_lstm, rnn/ chainer.nstep_rnn, "
        "both_lstm/ chainer.nstep_bilstm, and 2 others",
        "chainer/stacks.h5": "both_gru/ chainer.nstep_bigru, both_lstm/ chainer.nstep_bilstm, "
        "both_rnn/ chainer.nstep_birnn, gru/ chainer.nstep_gru, lstm/ chainer.nstep_lstm, "
        "rnn/ chainer.nstep_rnn, and 2 others",
    },
    "ONNX": {
        "onnx/exported.onnx": "node_lstm__2 onnx.lstm, node_GRU_157 onnx.gru, node_GRU_237 onnx.gru, "
        "and 3 others",
    },
    "TensorFlow checkpoints, of both versions, and SavedModel folders": {
        "data/lstm_v1": "model/rnn/lstm_cell/ tf1.lstm_projection, and 1 others",
        "data/lstm.index": "model/rnn/lstm_cell/ tf1.lstm_projection, and 1 others",
        "tensorflow/saved": "encoder keras2.gru, decoder keras2.lstm, and 4 others",
        "saved_model/exported": "encoder keras.gru, both keras.lstm, and 5 others",
    },
    "frozen TensorFlow graphs, `.pb`": {
        "frozen/dynamic.pb": "rnn/basic_lstm_cell/ tf1.basic_lstm|tf1.lstm|tf1.lstm_block|"
        "tf1.cudnn_compatible_lstm, and 1 others",
    },
    "Orbax checkpoint folders: OCDBT, Zarr 2 and Zarr 3": {
        "jax/orbax": FLAX,
        "jax/orbax_zarr3": FLAX,
        "orbax/zarr2": "gru/ flax.gru, lstm/ flax.lstm, and 2 others",
    },
    "OpenVINO `.xml` with its `.bin`": {
        "openvino/layers.xml": "encoder openvino.gru, both openvino.lstm, last openvino.rnn, and 12 others",
    },
    "Core ML `.mlpackage` and `.mlmodel`": {
        "coreml/layers.mlpackage": "encoder_0 coreml.lstm, both_0 coreml.lstm, and 4 others",
        "coreml/older.mlmodel": "",  # it is refused with a reason
    },
    "TFLite": {
        "tensorflow/stack.tflite": "tfl.unidirectional_sequence_lstm tflite.lstm, "
        "StatefulPartitionedCall:0 tflite.lstm, and 0 others",
    },
    "PaddlePaddle `.pdparams`, MXNet `.params`, Flax `.msgpack`, `.npz`": {
        "paddle/speech.pdparams": "encoder. paddle.lstm, decoder. paddle.gru, and 3 others",
        "data/mxnet_export.params": "model_lstm0_ mxnet.lstm, and 2 others",
        "jax/linen.msgpack": "params/decoder_gru/ flax.gru, params/encoder_lstm/ flax.lstm, and 2 others",
        "jax/haiku_lstm.npz": "lstm/ haiku.lstm, and 0 others",
    },
    "raw buffers for cuDNN and oneDNN: `.bin` with a `.json` beside it": {
        "made/raw.json": " cudnn.lstm, and 0 others",
    },
}
ACCOUNTS = {file: account for row in ROWS.values() for file, account in row.items()}
ACTIVATION = "say --semantics candidate_activation=VALUE"
NOT_BACK = {
    **dict.fromkeys(("keras.rnn", "openvino.rnn", "chainer.nstep_rnn", "chainer.nstep_birnn"), ACTIVATION),
    **dict.fromkeys(("tf1.lstm_projection", "tf1.basic_lstm"), "say --semantics forget_bias=VALUE"),
    "keras1.gru": "keras1.gru cannot become torch.gru: the source resets before the recurrent product",
    "tflite.lstm": "tflite.lstm cannot become torch.lstm: the source's cell_clip is 10.0",
}
"""By layout: the refusal of a conversion to another framework and back. All other layers come back."""


@dataclass(frozen=True)
class Spoilt:
    """A file whose bytes are spoilt.

    Attributes:
        file: What is read.
        part: Of what is several files, the one that is spoilt.
        tail: How many bytes at its end may be missing: they say nothing.
        refused: The least share of changed copies that are refused; the others are read as something else.
        checked: Whether checksums tell each change: what is read is what was saved.
        copies: How many copies are changed.
        optional: Whether the part may be missing, as which an empty one counts.
    """

    file: str
    part: str = ""
    tail: int = 0
    refused: float = 0.5
    checked: bool = False
    copies: int = 100
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.file}-{self.part}" if self.part else self.file


ALL = 1 << 30  # as a tail: the whole file may be missing, or is not read at all
KERAS = sorted(path.name for path in DATA.glob("keras[12]_*"))
TABLES = ("basic_lstm.index", "lstm.index", "gru.index", "gru_2.index", "kinds.index", "lstm_v1", "kinds_v1")
PROTOCOLS = (2, 3, 4, 5)
SPOILT = (
    *(Spoilt(f"torch/{name}") for name in ("checkpoint.tar", "lightning.ckpt")),
    *(Spoilt(f"torch/{name}", checked=True, copies=400) for name in ("state.pt", "model.pth")),
    Spoilt("torch/legacy.pth", copies=400),
    Spoilt("torch/script.pt", checked=True),
    Spoilt("torch/exported.pt2", checked=True),
    *(Spoilt("torch/distributed", part) for part in (".metadata", "__0_0.distcp")),
    Spoilt("made/model.nemo", tail=4096),  # a tar ends in empty blocks
    Spoilt("torch/shards/model.safetensors.index.json"),
    Spoilt("torch/shards/model-00001-of-00003.safetensors"),
    Spoilt("made/arrays.safetensors", copies=600),
    Spoilt("keras/row.keras", checked=True),
    *(Spoilt(f"data/{name}", refused=0.3) for name in KERAS),
    *(Spoilt(f"keras/normalised{end}", refused=0.3) for end in (".weights.h5", ".h5")),
    Spoilt("made/arrays.npz", checked=True, copies=400),
    Spoilt("made/packed.npz", checked=True, copies=400),
    Spoilt("onnx/exported.onnx", tail=6, copies=600),
    *(Spoilt(f"data/{name}", checked=True, copies=150) for name in TABLES),
    Spoilt("data/lstm.index", "lstm.data-00000-of-00001", checked=True),
    *(
        Spoilt(folder, f"variables/variables.{end}", checked=True)
        for folder in ("tensorflow/saved", "saved_model/exported")
        for end in ("index", "data-00000-of-00001")
    ),
    Spoilt("tensorflow/saved", "keras_metadata.pb", checked=True, optional=True),
    # Nothing is read of these.
    Spoilt("tensorflow/saved", "fingerprint.pb", tail=ALL, refused=0, checked=True),
    Spoilt("saved_model/exported", "saved_model.pb", tail=ALL, refused=0, checked=True, copies=40),
    Spoilt("frozen/dynamic.pb", tail=7),
    *(Spoilt(f"jax/{name}", "manifest.ocdbt") for name in ("orbax", "orbax_zarr3")),
    *(Spoilt("jax/orbax", part) for part in ("_METADATA", "d/a5959b606f86cf3f2326c2a77c81c265")),
    *(Spoilt("orbax/zarr2", f"gru.hn.bias/{part}") for part in (".zarray", "0")),
    *(Spoilt("orbax/zarr3", part) for part in ("gru.hn.bias/zarr.json", "gru.hn.kernel/c/0/0")),
    Spoilt("openvino/layers.xml", tail=1),
    Spoilt("openvino/layers.xml", "layers.bin", refused=0),
    Spoilt("coreml/layers.mlpackage", "Data/com.apple.CoreML/model.mlmodel"),
    Spoilt("coreml/layers.mlpackage", "Data/com.apple.CoreML/weights/weight.bin", refused=0.2),
    Spoilt("coreml/layers.mlpackage", "Manifest.json", tail=1),
    Spoilt("tensorflow/stack.tflite"),
    Spoilt("data/keras_backwards.tflite", copies=800),
    Spoilt("paddle/speech.pdparams"),
    *(Spoilt(f"made/protocol{protocol}.pdparams", copies=400) for protocol in PROTOCOLS),
    Spoilt("data/mxnet_export.params", copies=300),
    Spoilt("made/arrays.params", refused=0.2, copies=500),
    Spoilt("jax/linen.msgpack", copies=300),
    Spoilt("made/arrays.msgpack", refused=0.2, copies=500),
    Spoilt("made/arrays.json", tail=1, copies=600),
    Spoilt("made/arrays.json", "arrays.bin", refused=0),
)
INDEXES = [one for one in SPOILT if f"{one.part or one.file}".endswith((*TABLES, "variables.index"))]
SEVERAL = (
    *("model in shards", "PyTorch distributed checkpoint", "Core ML", "OpenVINO", "Orbax"),
    *("TensorFlow checkpoint", "TensorFlow SavedModel"),
)


def documented() -> list[str]:
    """The names of the rows of the table."""
    table = PAGE.read_text(encoding="utf-8").split("| file | read | written |\n")[1].split("\n\n")[0]
    return [re.split(r" \| ", line.removeprefix("| "))[0] for line in table.splitlines()[1:]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all archives, each unpacked into one of its name, of other data, and of what is made."""
    folder = tmp_path_factory.mktemp("kinds")
    for name in {file.partition("/")[0] for file in (*ACCOUNTS, *map(str, SPOILT))} - {"data", "made"}:
        path = next(each / f"{name}.tar.xz" for each in (CORPUS, DATA) if (each / f"{name}.tar.xz").exists())
        unpacked(path, folder / name)
    shutil.copytree(DATA, folder / "data", ignore=shutil.ignore_patterns("*.tar.xz", "*.py"))
    (folder / "made").mkdir()
    with tarfile.open(folder / "made" / "model.nemo", "w") as archive:
        archive.add(folder / "torch" / "state.pt", "./model_weights.ckpt")
    lone = LayoutChoice(module=read(folder / "torch" / "state.pt").modules[0].name)
    convert_file(folder / "torch" / "state.pt", "cudnn", folder / "made" / "raw.json", choice=lone)
    arrays: dict[str, Any] = {name: each for name, each in samples(np.float32).items() if each.ndim}
    for title, ending in (("safetensors", "safetensors"), ("NumPy", "npz"), ("Flax", "msgpack")):
        BY_TITLE[title].code.write(folder / "made" / f"arrays.{ending}", arrays)
    BY_TITLE["MXNet"].code.write(folder / "made" / "arrays.params", arrays)
    write_buffers(folder / "made" / "arrays.json", arrays, {"layout": "cudnn.gru", "sizes": {"hidden": 3}})
    np.savez_compressed(folder / "made" / "packed.npz", **arrays)
    for protocol in PROTOCOLS:
        saved = {"w": np.ones((9, 3), "f4"), "n": np.array(3), "e": np.zeros((0, 4)), "b": np.array([True])}
        (folder / "made" / f"protocol{protocol}.pdparams").write_bytes(pickle.dumps(saved, protocol))
    return folder


def test_the_table_has_these_rows():
    assert documented() == list(ROWS)


@pytest.mark.parametrize("file", [file for file, account in ACCOUNTS.items() if account])
def test_a_kind_of_file_is_read(files: Path, file: str):
    model = read(files / file)
    layers = [f"{module.name} {'|'.join(module.layouts)}" for module in model.modules]
    assert ", ".join([*layers, f"and {len(model.rest)} others"]) == ACCOUNTS[file]


def test_all_kinds_are_in_the_table(files: Path):
    assert {kind(files / file).title for file in ACCOUNTS} == {one.title for one in FORMATS}


@pytest.mark.parametrize("file", [file for file, account in ACCOUNTS.items() if account])
def test_layers_come_back_bit_by_bit_or_are_refused(files: Path, file: str, tmp_path: Path):
    """From PyTorch, or from PaddlePaddle if PyTorch saved the file: Keras has one bias for their two."""
    there, back = tmp_path / "there.safetensors", tmp_path / "back.npz"
    for module in read(files / file).modules:
        layout = module.layouts[0]
        cell = next(name for name in ("gru", "lstm", "rnn") if name in layout)
        other = f"{'paddle' if layout.startswith('torch.') else 'torch'}.{cell}"
        own = LayoutChoice(module=module.name, layout=layout if len(module.layouts) > 1 else None)

        def converted(own: LayoutChoice = own, layout: str = layout, other: str = other) -> None:
            convert_file(files / file, other, there, choice=own, force=True)
            convert_file(there, layout, back, choice=LayoutChoice(layout=other), force=True)

        if layout in NOT_BACK:
            with pytest.raises(StepnetError, match=re.escape(NOT_BACK[layout])) as caught:
                converted()
            assert str(caught.value).startswith(
                (f"{files / file}: {module.name.rstrip('./')}: ", f"{there}: ")
            )
            continue
        converted()
        with np.load(back) as found:
            assert {*found} == {*module.arrays}
            assert_same_bits([found[name] for name in module.arrays], [*module.arrays.values()])


# ---- what is spoilt, or no file ----------------------------------------------------------------------------


@contextmanager
def each_copy(files: Path, spoilt: Spoilt) -> Iterator[tuple[bytes, Callable[[bytes], Any]]]:
    """The bytes of a file, and a function of other bytes that reads it with these: what is in it, or a
    message.
    """
    source = files / spoilt.file
    path = (source if source.is_dir() else source.parent) / spoilt.part if spoilt.part else source
    whole = path.read_bytes()

    def contents(data: bytes) -> Any:
        path.write_bytes(data)
        try:
            model = read(source)
        except FileError as error:
            message = str(error)
            assert message.startswith(f"{source.parent}/")
            assert message.count(f"{source}: ") <= 1
            assert message.isprintable()
            assert len(message) < 2000
            return message
        arrays = [*(module.arrays for module in model.modules), model.rest]
        layers = [(module.name, module.layouts, module.semantics) for module in model.modules]
        return layers, [
            {name: (array.shape, str(array.dtype), array.tobytes()) for name, array in each.items()}
            for each in arrays
        ]

    try:
        yield whole, contents
    finally:
        path.write_bytes(whole)


@pytest.fixture
def part(pytestconfig: pytest.Config) -> int:
    """The factor by which fewer copies are spoilt here than by `make test-long`."""
    return 1 if pytestconfig.option.long else 4


@pytest.mark.long
@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
def test_a_file_that_is_cut_off_is_refused(files: Path, spoilt: Spoilt, part: int):
    with each_copy(files, spoilt) as (whole, contents):
        right = contents(whole)
        assert not isinstance(right, str)
        for data in cut(whole, 60 // part, 64 // part):
            found = contents(data)
            if not isinstance(found, str) and (data or not spoilt.optional):
                assert len(data) >= len(whole) - spoilt.tail
                assert found == right


@pytest.mark.long
@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
def test_changed_bytes_are_refused_or_read(files: Path, spoilt: Spoilt, part: int):
    copies = spoilt.copies // part
    with each_copy(files, spoilt) as (whole, contents):
        right = contents(whole)
        found = [contents(data) for data in changed(whole, copies)]
    read = [each for each in found if not isinstance(each, str)]
    assert len(found) - len(read) >= spoilt.refused * copies
    if spoilt.checked:
        assert all(each == right for each in read)


@pytest.mark.long
@pytest.mark.parametrize("spoilt", INDEXES, ids=str)
def test_changed_bytes_with_checksums_made_anew_are_refused_or_read(
    files: Path, spoilt: Spoilt, part: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checksums, "is_whole", lambda *_: True)
    with each_copy(files, spoilt) as (whole, contents):
        found = [contents(data) for data in changed(whole, 150 // part)]
    assert sum(isinstance(each, str) for each in found) > 50 // part


@pytest.mark.parametrize("title", BY_TITLE)
def test_paths_that_are_no_files(tmp_path: Path, title: str):
    """The reader of one file says so itself; of what is several, that of all kinds does."""
    form = BY_TITLE[title]
    path = tmp_path / f"model{form.endings[0] if form.endings else ''}"

    def own(path: Path) -> Any:
        return form.code.read(path, None, {}) if form.asks else form.code.read(path)

    for reader in (read,) if title in SEVERAL else (read, own):
        assert refusal(reader, path).startswith("there is no such file")
        assert refusal(reader, tmp_path / ("long" * 5000)).startswith("there is no such file")
        path.mkdir()
        assert refusal(reader, path)
        path.rmdir()
        os.mkfifo(path)
        assert "a device" in refusal(reader, path)
        path.unlink()
