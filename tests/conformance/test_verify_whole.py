"""`stepnet verify` of two files that specify whole models, and over the user's own sequences."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from command_line import stepnet
from constants import Constants

import stepnet as sn
from stepnet.errors import InputError, LayoutError
from stepnet.layout.files import verified
from stepnet.model.file import FileModel, read_model
from stepnet.model.verdict import verify_models
from tests.conformance.test_doors import tagger

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's exporter about itself
RANDOM = np.random.default_rng(0)


class Tagger(torch.nn.Module):
    """A GRU below a linear layer and a function."""

    def __init__(self, end: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(3, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 2)
        self.end = end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.head(self.gru(x)[0]))


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def exported(path: Path, end: Callable[[torch.Tensor], torch.Tensor] = softmax, scale: float = 1.0) -> Path:
    """A tagger as ONNX; models with the same `scale` have the same weights."""
    torch.manual_seed(0)
    model = Tagger(end).eval()
    with torch.no_grad():
        model.head.weight *= scale
    axes = {0: "N", 1: "T"}
    torch.onnx.export(
        model,
        (torch.zeros(2, 5, 3),),
        str(path),
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": axes, "y": axes},
        dynamo=False,
    )
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [RANDOM.normal(size=(5, 3)).tolist(), None, RANDOM.normal(size=(2, 3)).tolist()]
    path = tmp_path / "x.parquet"
    parquet.write_table(
        pa.table({"id": [1, 2, 3], "x": pa.array(rows, pa.list_(pa.list_(pa.float32())))}), path
    )
    return path


def test_models_that_are_the_same_agree_as_a_whole(tmp_path: Path):
    one, other = exported(tmp_path / "one.onnx"), exported(tmp_path / "other.onnx")
    code, text, _ = stepnet("verify", one, other)
    assert code == 0
    assert "\nwhole model: largest difference 0 (" in text
    assert "left out" not in text


@pytest.mark.parametrize(
    ("end", "scale"), [(torch.sigmoid, 1.0), (softmax, 1.01)], ids=["function", "weight"]
)
def test_models_that_differ_beside_their_recurrent_layers_differ(tmp_path: Path, end: Any, scale: float):
    one, other = exported(tmp_path / "one.onnx"), exported(tmp_path / "other.onnx", end, scale)
    code, text, said = stepnet("verify", one, other)
    assert code == 1
    assert said == "stepnet: whole model: the difference is more than rounding\n"
    assert "GRU: largest difference 0 (" in text
    found = json.loads(stepnet("verify", one, other, "--json")[1])
    x = np.random.default_rng(0).normal(size=(33, 3)).astype("float32")
    pair = [sn.load(path)(x[None])[0] for path in (one, other)]
    assert found["whole"]["difference"] > found["whole"]["allowed"]
    assert np.abs(pair[0] - pair[1]).max() > found["whole"]["allowed"]


def test_rounding_explains_what_rounding_the_weights_anew_changes():
    W = np.full((1, 2), 0.5, "float32")

    def scaled(factor: float) -> FileModel:
        return graph(lambda x, params: x @ (W * np.float32(factor)), 1)

    found = verify_models(scaled(1), scaled(1))
    x = np.random.default_rng(0).normal(size=(63, 1)).astype("float32")
    change = 16 * 2 * 0.5 * 2.0**-24 * np.abs(x).max()
    assert found.allowed == pytest.approx(change, rel=1e-6)
    assert verify_models(scaled(1), scaled(1 + 2.0**-22)).agrees
    assert verify_models(scaled(1), scaled(1 + 2.0**-17)).differs


class Strided(torch.nn.Module):
    """A convolution with a stride: a stride of 2 gives half as many steps as the inputs have."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 6, 3, padding=1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Translator(torch.nn.Module):
    """A GRU over one input that begins with the last state of another one, over another input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.GRU(4, 6, batch_first=True)
        self.decoder = torch.nn.GRU(3, 6, batch_first=True)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.decoder(b, self.encoder(a)[1])[0]


def with_graph(path: Path, module: torch.nn.Module, *shapes: tuple[int, ...]) -> FileModel:
    """The model of a file of torch.export."""
    torch.manual_seed(0)
    torch.export.save(torch.export.export(module.eval(), tuple(map(torch.zeros, shapes))), path)
    return read_model(path)


def test_outputs_of_other_numbers_of_steps_than_the_inputs_are_compared(tmp_path: Path):
    halved = with_graph(tmp_path / "halved.pt2", Strided(2), (3, 8, 4))
    assert verify_models(halved, halved).difference == 0
    other = with_graph(tmp_path / "other.pt2", Strided(1), (3, 8, 4))
    with pytest.raises(LayoutError, match=r"has 33 steps of .*halved\.pt2, and 63 of .*other\.pt2"):
        verify_models(halved, other)


def test_inputs_of_different_lengths_are_compared(tmp_path: Path):
    model = with_graph(tmp_path / "model.pt2", Translator(), (2, 7, 4), (2, 5, 3))
    found = verify_models(model, model)
    assert found.agrees
    assert found.largest > 0.1


@pytest.mark.parametrize(
    "case", ["other output is larger", "other feature is larger", "all is small", "softmax"]
)
def test_no_size_hides_a_difference(case: str):
    random = np.random.default_rng(1)
    heads = [random.normal(size=(3, 5000)).astype("float32") for _ in range(2)]
    scales = np.array([1e4, 1, 1], "float32")
    models: dict[str, Any] = {
        "other output is larger": lambda x, f: {"a": x * np.float32(1e4), "b": x * np.float32(f)},
        "other feature is larger": lambda x, f: x * (scales * np.array([1, f, 1], "float32")),
        "all is small": lambda x, f: np.tanh(x * np.float32(f * 1e-5)),
        "softmax": lambda x, f: sn.softmax(x @ heads[int(f > 1)]),
    }
    one, other = (graph(lambda x, params, f=f: models[case](x, f)) for f in (1.0, 1.001))
    assert verify_models(one, one).agrees
    assert verify_models(one, other).differs


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_the_final_states_of_a_written_file_are_compared_too(tmp_path: Path, data: Path, kind: str):
    layers = getattr(torch.nn, kind)(3, 4, 2, bidirectional=True)
    torch.save(layers.state_dict(), tmp_path / "m.pt")
    for to in ("keras", "onnx"):
        assert stepnet("convert", tmp_path / "m.pt", "--to", to, "-o", tmp_path / f"m.{to}")[0] == 0
    pair = tmp_path / "m.keras", tmp_path / "m.onnx"
    for inputs in ([], ["--inputs", data]):
        code, text, _ = stepnet("verify", *pair, *inputs)
        assert code == 0
        assert "whole model: largest difference " in text


def test_models_are_compared_on_the_users_sequences(tmp_path: Path, data: Path):
    one, other = exported(tmp_path / "one.onnx"), exported(tmp_path / "other.onnx", torch.sigmoid)
    code, text, _ = stepnet("verify", one, one, "--inputs", data)
    assert (code, text.partition(" (")[0]) == (0, "whole model: largest difference 0")
    assert text.endswith("; float64, 2 sequences, 7 steps)\n")
    code, text, _ = stepnet("verify", one, other, "--inputs", data, "--json")
    x = np.array(parquet.read_table(data)["x"][0].as_py(), "float32")
    pair = [sn.load(path)(x[None])[0] for path in (one, other)]
    assert code == 1
    assert json.loads(text)["whole"]["difference"] > 0.99 * np.abs(pair[0] - pair[1]).max() > 0.01


def test_weights_are_compared_on_the_users_sequences_as_recurrent_layers(tmp_path: Path, data: Path):
    model = exported(tmp_path / "m.onnx")
    torch.manual_seed(0)
    torch.save(Tagger(softmax).state_dict(), tmp_path / "m.pt")
    code, text, _ = stepnet("verify", model, tmp_path / "m.pt", "--inputs", data, "--column", "x")
    assert code == 0
    assert text.startswith("recurrent layers: largest difference ")
    assert "recurrent layers agree (" in text
    assert "head.weight" in text.splitlines()[-1]


def test_a_model_that_cannot_be_run_whole_is_not_verified(tmp_path: Path, data: Path):
    one = tagger(tmp_path / "one.keras")
    code, _, said = stepnet("verify", one, one)
    assert code == 3
    assert said.startswith(
        f"stepnet: not verified: {one}: it has dense (doors>Dense), which stepnet does not run"
    )
    assert stepnet("verify", one, one, "--recurrent-only")[0] == 0
    code, _, said = stepnet("verify", one, one, "--inputs", data)
    assert (code, "(doors>Dense), which stepnet does not run; say --recurrent-only" in said) == (3, True)
    assert stepnet("verify", one, one, "--inputs", data, "--recurrent-only")[0] == 0


def test_data_that_do_not_fit_are_refused_as_by_run(tmp_path: Path, data: Path):
    model = exported(tmp_path / "m.onnx")
    said = stepnet("verify", model, model, "--inputs", data, "--column", "y")[2]
    assert "there is no column `y`; there are id, x" in said
    code, _, said = stepnet("verify", "torch.gru", model, "--inputs", data)
    assert (code, "two model files, and torch.gru is a layout" in said) == (1, True)
    code, _, said = stepnet("verify", model, model, "--column", "y")
    assert (code, "--column names a column of --inputs" in said) == (2, True)


def test_small_weights_are_compared_at_their_size(tmp_path: Path):
    state = {name: value * 1e-7 for name, value in torch.nn.RNN(3, 4, bias=False).state_dict().items()}
    torch.save(state, tmp_path / "one.pt")
    torch.save({**state, "weight_ih_l0": -state["weight_ih_l0"]}, tmp_path / "other.pt")
    ask = ["--semantics", "candidate_activation=tanh"]
    assert stepnet("verify", tmp_path / "one.pt", tmp_path / "one.pt", *ask)[0] == 0
    assert stepnet("verify", tmp_path / "one.pt", tmp_path / "other.pt", *ask)[0] == 1


# ---- models in Python --------------------------------------------------------------------------------------


def graph(model: Any, inputs: Any = 3, **more: Any) -> FileModel:
    return FileModel(sn.Graph(model, inputs=inputs, **more), path=model.__name__)


def last(x: Any, params: Any) -> Any:
    return sn.reduce(x, "last")


def every(x: Any, params: Any) -> Any:
    return x * 1.0


def two(x: Any, params: Any) -> Any:
    return {"a": x * 1.0, "b": x * 2.0}


def wide(x: Any, params: Any) -> Any:
    return {"a": x * 1.0, "b": x @ np.ones((3, 5), "float32")}


def other_two(x: Any, params: Any) -> Any:
    return {"c": x * 1.0, "d": x * 2.0}


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            graph(last),
            graph(every),
            r"different outputs.*: last \[3\] for each sequence; every \[3\] at every step",
        ),
        (graph(every), graph(every, 4), r"different inputs.*: every \[3\], every \[4\]"),
        (graph(every), graph(two), r"every \[3\] at every step; two a \[3\] at every step, b \[3\] at every"),
        (graph(two), graph(other_two), "different outputs"),
    ],
)
def test_models_of_other_inputs_or_outputs_are_refused(one: FileModel, other: FileModel, words: str):
    with pytest.raises(LayoutError, match=words):
        verify_models(one, other)


def test_an_output_that_only_one_model_has_is_not_verified():
    for one, other in ((every, wide), (wide, every)):
        found = verify_models(graph(one), graph(other))
        assert not found.differs
        assert str(found) == "not verified: only one model has the outputs b"


def test_inputs_without_a_range_are_not_random():
    ids = FileModel(sn.Graph(lambda x, params: x + 1, inputs=sn.Spec((), "int64")), path="m")
    with pytest.raises(InputError, match="m: its input x is int64, for which no range is known"):
        verify_models(ids, ids)
    sequences = sn.Ragged.from_list([np.array([1, 2])])
    assert verify_models(ids, ids, [sequences]).steps == 2


def test_several_inputs_and_statics_are_random_too():
    def model(x: Any, params: Any, statics: Any) -> Any:
        return x["a"] @ np.ones((3, 2), "float32") + x["b"] * sn.expand(statics, x["b"])

    def negative(x: Any, params: Any, statics: Any) -> Any:
        return -model(x, params, statics)

    inputs, statics = {"a": sn.Spec(3, "float32"), "b": sn.Spec(2, "float32")}, sn.Spec(2, "float32")
    one, other = (graph(each, inputs, statics=statics) for each in (model, negative))
    assert verify_models(one, one).agrees
    assert verify_models(one, other).differs


def test_nan_on_both_sides_is_not_verified():
    def model(x: Any, params: Any) -> Any:
        return np.log(x)

    found = verify_models(graph(model), graph(model))
    assert not found.agrees
    assert not found.differs
    assert str(found).startswith("not verified: ")
    assert "are NaN or infinite on both sides" in str(found)
    assert str(verify_models(graph(last), graph(last), [])) == "not verified: there are no steps to compare"


def test_a_file_that_its_runtime_does_not_load_is_not_verified(tmp_path: Path, constants: Constants):
    def fails(path: Path) -> Any:
        raise ValueError("no such opset")

    constants(verified, RUNTIMES=(verified.Runtime("onnxruntime", ".onnx", fails),))
    torch.save(torch.nn.GRU(3, 4).state_dict(), tmp_path / "m.pt")
    code, text, said = stepnet(
        "convert", tmp_path / "m.pt", "--to", "onnx", "-o", tmp_path / "m.onnx", "--verify"
    )
    assert code == 3
    assert "onnxruntime itself: not compared: ValueError: no such opset" in text
    assert f"onnxruntime does not load {tmp_path / 'm.onnx'}: ValueError: no such opset" in said
