"""Each row of the table of docs/interchange.md, read from files that frameworks saved."""

import re
import tarfile
from pathlib import Path

import pytest
from containers import unpacked

from stepnet.files.choice import Choice
from stepnet.files.formats import FORMATS, kind, read
from stepnet.files.interchange import convert_file

DATA = Path(__file__).parent / "data"
CORPUS = Path(__file__).parent.parent / "peers" / "corpus" / "saved"
PAGE = Path(__file__).parent.parent.parent / "docs" / "interchange.md"

# By row of the table: files, each in an archive of the corpus, in one of the tests' data, or made of another.
ROWS: dict[str, tuple[str, ...]] = {
    "PyTorch `.pt` `.pth` `.pth.tar` `.th` `.ckpt` ...: state dicts, checkpoints, whole modules, "
    "TorchScript": (
        *("torch/state.pt", "torch/legacy.pth", "torch/checkpoint.tar", "torch/lightning.ckpt"),
        *("torch/model.pth", "torch/script.pt"),
    ),
    "`.safetensors`": ("torch/model.safetensors",),
    "a model in shards: `model.safetensors.index.json` or `pytorch_model.bin.index.json`, or any shard "
    "beside it": (
        "torch/shards/model.safetensors.index.json",
        "torch/shards/model-00001-of-00003.safetensors",
    ),
    "PyTorch `.pt2` of torch.export, folders of torch.distributed.checkpoint, `.nemo`": (
        *("torch/exported.pt2", "torch/distributed", "made/model.nemo"),
    ),
    "Keras `.keras`, `.weights.h5`, `.h5` of Keras 1 to 3": (
        *("keras/row.keras", "keras/normalised.weights.h5", "keras/normalised.h5"),
        *("tensorflow/speech.h5", "data/keras1_gru.h5"),
    ),
    "Chainer `.npz` and `.h5` of `save_npz` and `save_hdf5`": ("chainer/stacks.npz", "chainer/stacks.h5"),
    "ONNX": ("onnx/exported.onnx",),
    "TensorFlow checkpoints, of both versions, and SavedModel folders": (
        *("data/lstm_v1", "data/lstm.index", "tensorflow/saved", "saved_model/exported"),
    ),
    "frozen TensorFlow graphs, `.pb`": ("frozen/dynamic.pb",),
    "Orbax checkpoint folders: OCDBT, Zarr 2 and Zarr 3": (*("jax/orbax", "jax/orbax_zarr3", "orbax/zarr2"),),
    "OpenVINO `.xml` with its `.bin`": ("openvino/layers.xml",),
    "Core ML `.mlpackage` and `.mlmodel`": ("coreml/layers.mlpackage", "coreml/older.mlmodel"),
    "TFLite": ("tensorflow/stack.tflite",),
    "PaddlePaddle `.pdparams`, MXNet `.params`, Flax `.msgpack`, `.npz`": (
        *("paddle/speech.pdparams", "data/mxnet_export.params", "jax/linen.msgpack", "jax/haiku_lstm.npz"),
    ),
    "raw buffers for cuDNN and oneDNN: `.bin` with a `.json` beside it": ("made/raw.json",),
}
UNREAD = {"coreml/older.mlmodel"}  # which is refused with a reason


def documented() -> list[str]:
    """What the rows of the table are called."""
    table = PAGE.read_text(encoding="utf-8").split("| file | read | written |\n")[1].split("\n\n")[0]
    return [re.split(r" \| ", line.removeprefix("| "))[0] for line in table.splitlines()[1:]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all archives, each unpacked into one of its name, and of what is made of others."""
    folder = tmp_path_factory.mktemp("kinds")
    names = {file.partition("/")[0] for row in ROWS.values() for file in row}
    for name in names - {"data", "made"}:
        path = next(each / f"{name}.tar.xz" for each in (CORPUS, DATA) if (each / f"{name}.tar.xz").exists())
        unpacked(path, folder / name)
    (folder / "data").symlink_to(DATA)
    (folder / "made").mkdir()
    with tarfile.open(folder / "made" / "model.nemo", "w") as archive:
        archive.add(folder / "torch" / "state.pt", "./model_weights.ckpt")
    lone = Choice(module=read(folder / "torch" / "state.pt").modules[0].name)
    convert_file(folder / "torch" / "state.pt", "cudnn", folder / "made" / "raw.json", choice=lone)
    return folder


def test_the_table_has_these_rows():
    assert documented() == list(ROWS)


@pytest.mark.parametrize("file", [file for row in ROWS.values() for file in row if file not in UNREAD])
def test_a_kind_of_file_is_read(files: Path, file: str):
    assert read(files / file).modules


def test_all_kinds_are_in_the_table(files: Path):
    assert {kind(files / file).title for row in ROWS.values() for file in row} == {
        one.title for one in FORMATS
    }
