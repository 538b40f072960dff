"""The files that mutants are made of: small real ones that the tests keep, and one of each kind written here.

An original is a folder's worth of files, as a checkpoint and a raw buffer are several.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from stepnet.cli.report.verdicts import random_module
from stepnet.layout import record
from stepnet.layout.files import FORMATS, LayoutChoice, Module, kind, write
from stepnet.layout.files.interchange import converted, converted_module

TESTS = Path(__file__).parent.parent
LARGEST = 40_000  # bytes
LAYOUTS = {
    ".pt": "torch.lstm",
    ".safetensors": "torch.gru",
    ".npz": "stepnet.gru",
    ".msgpack": "flax.gru",
    ".keras": "keras.gru",
    ".weights.h5": "keras.lstm",
    ".h5": "keras2.gru",
    ".onnx": "onnx.lstm",
    ".tflite": "tflite.lstm",
    ".pdparams": "paddle.gru",
    ".params": "mxnet.lstm",
    ".json": "cudnn.gru",
}


@dataclass(frozen=True)
class Original:
    """Files by name; `main` is the one that is read."""

    name: str
    main: str
    files: Mapping[str, bytes]

    @property
    def kind(self) -> str:
        """The ending that says its kind."""
        return self.main.partition(".")[2].partition("-")[0]


def originals() -> tuple[Original, ...]:
    """All of them, in an order that stays."""
    with TemporaryDirectory() as folder:
        made = list(written(Path(folder)))
    return (*kept(), *made)


def kept() -> Iterator[Original]:
    """The small files that the tests keep."""
    endings = tuple(ending for form in FORMATS for ending in form.endings)
    for folder in (TESTS / "layout" / "files" / "data", TESTS / "peers" / "saved"):
        for path in sorted(folder.iterdir()):
            known = path.name.endswith(endings) or path.name.endswith("_v1")
            if not known or path.stat().st_size > LARGEST:
                continue
            beside = sorted(folder.glob(f"{path.stem}.data-*")) if path.suffix == ".index" else []
            main = f"{path.name}.ckpt" if path.name.endswith("_v1") else path.name
            files = {main: path.read_bytes(), **{one.name: one.read_bytes() for one in beside}}
            yield Original(path.name, main, files)


def written(folder: Path) -> Iterator[Original]:
    """A file of every kind that stepnet, PyTorch and ONNX write."""
    for ending, layout in LAYOUTS.items():
        path = folder / f"written{ending}"
        write(path, (small(layout),))
        yield taken(path)
    state = torch.nn.LSTM(2, 3, num_layers=2, bidirectional=True).state_dict()
    saved = {"epoch": 3, "model": state, "order": [1.5, None, True], "head": torch.ones(2, 3)[:, 1:]}
    torch.save(saved, folder / "checkpoint.pt")
    torch.save(saved, folder / "old.pt", _use_new_zipfile_serialization=False)
    onnx.save(nested_model(), folder / "nested.onnx")
    with warnings.catch_warnings():  # of torch.export, about attributes of a GRU
        warnings.filterwarnings("ignore", "The tensor attributes")
        program = torch.export.export(Tagger().eval(), (torch.ones(3, 7, 2),))
    torch.export.save(program, folder / "tagger.pt2")
    for name in ("checkpoint.pt", "old.pt", "nested.onnx", "tagger.pt2"):
        yield taken(folder / name)
    golden = TESTS / "model" / "stored" / "golden"
    for name in ("gru", "structures", "inner_sequences", "graph", "quantized_stack"):
        yield taken(golden / "version_1" / f"{name}.stepnet")


class Tagger(torch.nn.Module):
    """A model with layers around its recurrent one, of many operators of torch.export."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 3, 3, padding=1)
        self.rnn = torch.nn.GRU(3, 4, bidirectional=True, batch_first=True)
        self.norm, self.out = torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, h = self.rnn(torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))
        a, b = self.norm(y).flatten(1).view(3, 7, 8).chunk(2, -1)
        y = torch.cat([a * torch.sigmoid(b), b[..., :4] + torch.arange(4)], -1)
        return self.out(y).log_softmax(-1), torch.stack([h[0], h[1]], 1).sum(1) + y[:, -1, :4] + y.mean(1)[
            :, 4:
        ]


def small(layout: str) -> Module:
    """A module of random weights."""
    choice = LayoutChoice(sizes={"inputs": 2, "hidden": 3})
    plain = random_module(record(layout), choice, 0)
    arrays = {name: array.astype(np.float32) for name, array in plain.arrays.items()}
    module = Module("layer", plain.layouts, arrays, sizes=plain.sizes, semantics=plain.semantics)
    return converted_module(module, converted(module, layout, exact=False))


def taken(path: Path) -> Original:
    """A file that was written, with what lies beside it under the same name."""
    beside = path.with_suffix(".bin")
    raw = path.suffix != ".stepnet" and kind(path).module == "raw"
    files = [path, beside] if raw else [path]
    return Original(path.name, path.name, {one.name: one.read_bytes() for one in files})


def nested_model() -> onnx.ModelProto:
    """A GRU in a function, one in the body of an If, and weights that are moved before they are used."""
    random = np.random.default_rng(0)
    weights = {
        "W": random.normal(size=(1, 2, 9)).astype("f4"),
        "R": random.normal(size=(1, 3, 9)).astype("f4"),
        "half": random.normal(size=(1, 9)).astype("f2"),
    }
    node = helper.make_node
    gru = node("GRU", ["x", "w", "r", "b", "", "h"], ["y"], hidden_size=3, linear_before_reset=1)
    body = [
        node("Transpose", ["W"], ["w"], perm=[0, 2, 1]),
        node("Transpose", ["R"], ["r"], perm=[0, 2, 1]),
        node("Cast", ["half"], ["one"], to=TensorProto.FLOAT),
        node("Concat", ["one", "one"], ["b"], axis=1),
        node("Constant", [], ["shape"], value_ints=[1, 1, 3]),
        node("ConstantOfShape", ["shape"], ["h"]),
        gru,
    ]
    inputs = ["x", *weights]
    function = helper.make_function("own", "Layer", inputs, ["y"], body, [helper.make_opsetid("", 18)])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    branch = helper.make_graph([*body], "branch", [], [y])
    nodes = [
        node("Layer", inputs, ["z"], domain="own"),
        node("If", ["choose"], ["u"], then_branch=branch, else_branch=branch),
    ]
    graph = helper.make_graph(
        nodes,
        "nested",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", 2]),
            helper.make_tensor_value_info("choose", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("u", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
