"""A model file is read alike by `sn.load`, `run`, `build`, `explain`, `verify` and `stepnet.arrow`."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from command_line import refusal, stepnet
from safetensors.numpy import save_file
from tolerance import assert_close

import stepnet as sn
from stepnet import arrow
from stepnet.arrow.predictor import LEFT_OUT
from stepnet.errors import FileError, InputError, LayoutError, ModelError
from stepnet.model.file import read_model

X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")


@keras.saving.register_keras_serializable("doors")
class Dense(keras.layers.Dense):
    """A class of the user's, which is not read."""


def tagger(path: Path, activation: str = "relu", *, masked: bool = False) -> Path:
    """An LSTM below a layer that is not read, with the same weights for every activation."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.LSTM(4, return_sequences=True, name="lstm")]
    layers += [Dense(2, activation=activation, name="dense")]
    front = [keras.layers.Masking(name="masking")] if masked else []
    keras.Sequential([keras.layers.Input((None, 3)), *front, *layers]).save(path)
    return path


def table(path: Path, x: np.ndarray = X) -> Path:
    parquet.write_table(pa.table({"frames": x.tolist()}), path)
    return path


@pytest.mark.parametrize("command", ["run", "build", "explain", "load", "predict", "Predictor", "arrow.run"])
def test_every_door_refuses_what_is_more_than_recurrent_layers(tmp_path: Path, command: str):
    model, source = tagger(tmp_path / "tagger.keras"), table(tmp_path / "x.parquet")
    calls = {
        "load": lambda: sn.load(model),
        "predict": lambda: arrow.predict(parquet.read_table(source), model),
        "Predictor": lambda: arrow.Predictor(model),
        "arrow.run": lambda: arrow.run(source, model, tmp_path / "out"),
    }
    if command in calls:
        with pytest.raises(LayoutError) as raised:
            calls[command]()
        said = str(raised.value)
    else:
        said = refusal(command, model, *([source] if command == "run" else []), *to(command, tmp_path))
    assert said == (
        f"{model}: it has dense (doors>Dense), which stepnet does not run; say --recurrent-only "
        "(Python: recurrent_only=True) for lstm (keras.lstm) alone"
    )
    assert not (tmp_path / "out").exists()


def to(command: str, folder: Path) -> list[object]:
    return [] if command == "explain" else ["-o", folder / "out"]


@pytest.mark.parametrize("ask", [["--recurrent-only"], ["--module", "lstm"]])
def test_recurrent_layers_alone_say_what_is_left_out(tmp_path: Path, ask: list[str]):
    model, source = tagger(tmp_path / "tagger.keras", masked=True), table(tmp_path / "x.parquet")
    out, names = tmp_path / "y.parquet", ["masking (Masking)", "dense (doors>Dense)"]
    arrays = ["layers/dense/vars/0", "layers/dense/vars/1"]
    code, text, _ = stepnet("run", *ask, model, source, "-o", out, "--json")
    assert (code, json.loads(text)["left_out"]) == (0, [*names, *arrays])
    mark = json.loads(parquet.read_schema(out).metadata[b"stepnet"])
    assert mark["left_out"] == [*names, *arrays]
    code, text, _ = stepnet("explain", *ask, model)
    assert (code, text.splitlines()[-1]) == (
        0,
        f"recurrent layers alone; left out: {', '.join([*names, *arrays])}",
    )
    loaded: Any = keras.models.load_model(model)
    lstm = loaded.get_layer("lstm")
    found = np.array(parquet.read_table(out)["outputs"].to_pylist(), "float32")
    assert_close(found, keras.ops.convert_to_numpy(lstm(X)), 5, 7)


def test_the_schema_of_a_stream_says_what_is_left_out(tmp_path: Path):
    model = tagger(tmp_path / "tagger.keras")
    reader = arrow.predict(parquet.read_table(table(tmp_path / "x.parquet")), model, recurrent_only=True)
    assert json.loads(reader.schema.metadata[LEFT_OUT])[0] == "dense (doors>Dense)"
    with pytest.raises(InputError, match="recurrent_only applies to a model file"):
        arrow.Predictor(sn.load(model, recurrent_only=True), recurrent_only=True)


def test_a_file_of_weights_has_no_architecture(tmp_path: Path):
    gru = torch.nn.GRU(3, 4, batch_first=True)
    state = {f"rnn.{name}": value.detach().numpy() for name, value in gru.state_dict().items()}
    save_file({**state, "head.weight": np.ones((2, 4), "float32")}, tmp_path / "m.safetensors")
    with pytest.raises(LayoutError, match=r"it holds weights and no architecture.*; it also has head.weight"):
        sn.load(tmp_path / "m.safetensors")
    found = sn.load(tmp_path / "m.safetensors", recurrent_only=True)(X)[0]
    with torch.inference_mode():
        assert_close(found, gru(torch.tensor(X))[0].numpy(), 5, 7)


def test_a_last_output_is_the_models_output(tmp_path: Path):
    layers = [keras.layers.GRU(4, return_sequences=True), keras.layers.Bidirectional(keras.layers.LSTM(3))]
    model = keras.Sequential([keras.layers.Input((None, 3)), *layers])
    model.save(tmp_path / "m.keras")
    graph = sn.load(tmp_path / "m.keras")
    assert isinstance(graph, sn.Graph)
    assert_close(graph(X), model.predict_on_batch(X), 5, 10)


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # of torch.export
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            lambda x: torch.logit(x),
            "logit (aten.logit.default) is an operation that stepnet does not support",
        ),
    ],
)
def test_a_program_of_torch_says_what_is_not_supported(tmp_path: Path, code: object, words: str):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.GRU(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return code(self.rnn(x)[0])  # type: ignore[operator]

    torch.export.save(torch.export.export(Model().eval(), (torch.tensor(X),)), tmp_path / "m.pt2")
    with pytest.raises(ModelError) as raised:
        sn.load(tmp_path / "m.pt2")
    assert words in str(raised.value)


def test_the_parameters_of_a_program_are_not_the_program(tmp_path: Path):
    (tmp_path / "m.pdiparams").write_bytes(b"x")
    with pytest.raises(FileError, match=r"these are the parameters of a program: give the .json or .pdmodel"):
        sn.load(tmp_path / "m.pdiparams")


@pytest.mark.parametrize("ending", ["json", "pdmodel"])
def test_layers_of_a_program_cannot_be_taken_alone(tmp_path: Path, ending: str):
    program = tmp_path / f"m.{ending}"
    program.write_text('{"program": {}}')
    (tmp_path / "m.pdiparams").write_bytes(b"x")
    for command in (
        ("show", program, "--to", "torch"),
        ("explain", program, "--recurrent-only"),
        ("convert", program, "--to", "torch", "-o", tmp_path / "m.pt"),
    ):
        assert refusal(*command).startswith(f"{program}: it is a program of PaddlePaddle, which is run whole")


def test_a_program_without_its_parameters_is_no_raw_buffer(tmp_path: Path):
    weight = {"%": 1, "TT": {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [5], "NCHW", [], 0]}}
    operations = [{"#": "p", "A": [0, 1, 1, "bias"], "O": weight, "OA": [1, 0, 1]}]
    program = {"regions": [{"blocks": [{"ops": operations}]}]}
    (tmp_path / "m.json").write_text(json.dumps({"base_code": {"magic": "pir"}, "program": program}))
    with pytest.raises(FileError, match=r"m\.pdiparams: there is no such file"):
        sn.load(tmp_path / "m.json")


def test_what_is_said_of_layers_is_not_dropped_for_a_whole_graph(tmp_path: Path):
    gru = torch.nn.GRU(3, 4, batch_first=True)
    torch.save(gru.state_dict(), tmp_path / "m.pt")
    assert stepnet("convert", tmp_path / "m.pt", "--to", "onnx", "-o", tmp_path / "m.onnx")[0] == 0
    said = refusal("explain", tmp_path / "m.onnx", "--from", "onnx.gru")
    assert "its whole graph is read" in said


class Mean(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0].sum(1) / x.size(1)


@pytest.mark.filterwarnings("ignore")  # those of torch's exporter about itself
@pytest.mark.parametrize("axes", [{0: "N"}, {0: "N", 1: "T"}])
def test_a_number_of_steps_read_from_the_input_is_each_sequences(tmp_path: Path, axes: dict[int, str]):
    torch.manual_seed(0)
    model, path = Mean().eval(), tmp_path / "m.onnx"
    torch.onnx.export(
        model, (torch.tensor(X),), str(path), input_names=["x"], dynamic_axes={"x": axes}, dynamo=False
    )
    x = np.random.default_rng(1).normal(size=(2, 7, 3)).astype("float32")
    with torch.inference_mode():
        assert_close(sn.load(path)(x), model(torch.tensor(x)).numpy(), 7, 7)


@pytest.mark.parametrize("kind", ["onnx", "keras", "safetensors"])
def test_nan_in_the_weights_is_said(tmp_path: Path, kind: str):
    state = torch.nn.GRU(3, 4).state_dict()
    state["weight_hh_l0"][0, 0] = float("nan")
    torch.save(state, tmp_path / "m.pt")
    model, source = tmp_path / f"m.{kind}", table(tmp_path / "x.parquet")
    framework = {"safetensors": "torch"}.get(kind, kind)
    assert stepnet("convert", tmp_path / "m.pt", "--to", framework, "-o", model)[0] == 0
    ask = ["--recurrent-only"] if kind == "safetensors" else []
    code, text, _ = stepnet("run", model, source, "-o", tmp_path / "y.parquet", "--json", *ask)
    assert code == 0
    assert "NaN" in str(json.loads(text)["notes"])
    code, _, said = stepnet("verify", model, model)
    assert code == 3
    assert "outputs are NaN or infinite on both sides" in said


def test_finite_weights_have_no_note(tmp_path: Path):
    torch.save(torch.nn.GRU(3, 4).state_dict(), tmp_path / "m.pt")
    assert stepnet("convert", tmp_path / "m.pt", "--to", "onnx", "-o", tmp_path / "m.onnx")[0] == 0
    assert read_model(tmp_path / "m.onnx").notes == {}


# ---- verdicts ----------------------------------------------------------------------------------------------


def test_models_that_differ_beside_their_recurrent_layers_are_not_verified(tmp_path: Path):
    one = tagger(tmp_path / "one.keras")
    other = tagger(tmp_path / "other.keras", "sigmoid", masked=True)
    code, text, said = stepnet("verify", one, other)
    assert code == 3
    assert "recurrent layers agree (" in text
    assert "masking (Masking)" in text
    assert said.startswith(
        f"stepnet: not verified: {one}: it has dense (doors>Dense), which stepnet does not run"
    )
    code, text, _ = stepnet("verify", one, other, "--json")
    assert (code, json.loads(text)["unverified"].startswith(str(one))) == (3, True)


def test_a_verdict_on_weights_alone_says_so_if_nothing_is_left_out(tmp_path: Path):
    torch.save(torch.nn.GRU(3, 4).state_dict(), tmp_path / "m.pt")
    assert stepnet("convert", tmp_path / "m.pt", "--to", "keras", "-o", tmp_path / "m.keras")[0] == 0
    code, text, _ = stepnet("verify", tmp_path / "m.pt", tmp_path / "m.keras")
    assert (code, text.splitlines()[-1]) == (0, "recurrent layers agree (0 left out)")
    code, text, _ = stepnet("verify", tmp_path / "m.keras", tmp_path / "m.keras")
    assert (code, text.splitlines()[-1].partition(" (")[0]) == (0, "whole model: largest difference 0")


def test_a_conversion_that_drops_a_masking_is_not_called_verified(tmp_path: Path):
    model = tagger(tmp_path / "one.keras", masked=True)
    code, text, _ = stepnet("convert", model, "--to", "torch", "-o", tmp_path / "m.pt", "--verify")
    assert code == 0
    assert "verified" not in text
    assert "recurrent layers agree (4 left out: masking (Masking), dense (doors>Dense), " in text
