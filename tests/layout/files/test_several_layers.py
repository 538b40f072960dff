"""Several layers told apart: their order, their names, and the statements about some of them."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import refusal, stepnet
from containers import unpacked
from safetensors.torch import save_file
from saved_arrays import saved_arrays
from tolerance import assert_close
from torch import nn

os.environ["KERAS_BACKEND"] = "torch"
import keras

from stepnet.layout.files import LayoutChoice, convert_file, read, weights

# Keras on PyTorch, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")

DATA = Path(__file__).parent / "data"
HIDDEN, TIME = 3, 6
X = np.random.default_rng(0).normal(size=(2, TIME, HIDDEN)).astype("float32")


def grus(*names: str) -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.GRU(HIDDEN, HIDDEN, batch_first=True) for name in names})


def in_a_row(layers: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The results of layers of PyTorch, each applied to the results of the one before."""
    y = torch.from_numpy(x)
    for layer in layers:
        y, _ = layer(y)
    return y.detach().numpy()


def run_onnx(path: Path) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: X})[0])


@pytest.fixture
def sorted_by_names(tmp_path: Path) -> tuple[Path, nn.ModuleDict]:
    """A file of safetensors has its arrays sorted by their names: the decoder is first."""
    model = grus("encoder", "decoder")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", model


def test_an_order_that_nobody_says_is_not_guessed(
    sorted_by_names: tuple[Path, nn.ModuleDict], tmp_path: Path
):
    source, model = sorted_by_names
    command = ("convert", source, "--to", "onnx", "-o", tmp_path / "out.onnx", "--stack", "--verify")
    said = refusal(*command)
    assert "does not keep the order of its layers, which are decoder, encoder by their names" in said
    advice = said.partition("as in --stack ")[2].partition(" (Python")[0].split()
    assert advice == ["--module", "encoder", "--module", "decoder"]
    assert stepnet(*command, *advice)[0] == 0
    assert_close(run_onnx(tmp_path / "out.onnx"), in_a_row(model.values(), X), length=TIME, width=HIDDEN)


def test_a_layer_that_is_named_twice(sorted_by_names: tuple[Path, nn.ModuleDict], tmp_path: Path):
    twice = ("--module", "decoder", "--module", "decoder.")
    said = refusal("convert", sorted_by_names[0], "--to", "torch", "-o", tmp_path / "out.pt", *twice)
    assert said.endswith("decoder is named twice (--module)")


def test_numbers_in_names_are_an_order(tmp_path: Path):
    """rnns.10 is before rnns.2 in such a file."""
    layers = nn.ModuleList([*grus(*map(str, range(11))).values()])
    save_file({f"rnns.{name}": one for name, one in layers.state_dict().items()}, tmp_path / "x.safetensors")
    convert_file(tmp_path / "x.safetensors", "onnx", tmp_path / "out.onnx", choice=LayoutChoice(stack=True))
    assert_close(run_onnx(tmp_path / "out.onnx"), in_a_row(layers, X), length=TIME, width=HIDDEN)


def test_weights_of_keras_are_in_the_order_of_their_classes(tmp_path: Path):
    rows = [
        keras.layers.LSTM(3, return_sequences=True, name="first"),
        keras.layers.GRU(3, return_sequences=True, name="above"),
    ]
    model = keras.Sequential([keras.Input((None, HIDDEN)), *rows])
    model.save_weights(tmp_path / "x.weights.h5")
    said = refusal(
        "convert", tmp_path / "x.weights.h5", "--to", "keras", "-o", tmp_path / "y.keras", "--stack"
    )
    assert "does not keep the order of its layers, which are above, first by their names" in said


@pytest.mark.parametrize("target", ["torch", "keras"])
def test_layers_of_a_list_become_one_of_several(tmp_path: Path, target: str):
    layers = nn.ModuleList([*grus("a", "b", "c").values()])
    torch.save(layers.state_dict(), tmp_path / "x.pt")
    out = tmp_path / ("out.pt" if target == "torch" else "out.keras")
    code, _, errors = stepnet("convert", tmp_path / "x.pt", "--to", target, "-o", out, "--stack", "--verify")
    assert (code, errors) == (0, "")
    if target == "torch":
        whole = nn.GRU(HIDDEN, HIDDEN, 3, batch_first=True)
        whole.load_state_dict(torch.load(out, weights_only=True))
        assert_close(in_a_row([whole], X), in_a_row(layers, X), length=TIME, width=HIDDEN)


# ---- names


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    ("names", "written"),
    [
        (("encoder", "net.decoder"), ("encoder", "net.decoder")),
        (("0", "2"), ("layer_0", "layer_2")),
        (("rnns.0", "rnns.1"), ("rnns_0", "rnns_1")),
        (("forward", "backward"), ("forward_layer", "backward_layer")),
        (("my_forward", "my_backward"), ("my_forward_layer", "my_backward_layer")),
        (("m.forward", "m.1"), ("m.forward_layer", "m_1")),
    ],
)
@pytest.mark.parametrize(("to", "file"), [("keras", "new.npz"), ("flax", "new.msgpack"), ("tf1", "new.npz")])
def test_no_name_is_read_as_the_place_of_a_layer(
    tmp_path: Path, names: tuple[str, ...], written: tuple[str, ...], to: str, file: str
):
    """nn.Sequential and nn.ModuleList call their layers by numbers, as a stack of Keras' is called."""
    layers = [nn.LSTM(HIDDEN, HIDDEN) for _ in names]
    state = [(name, layer.state_dict()) for name, layer in zip(names, layers, strict=True)]
    torch.save({f"{name}.{own}": one for name, held in state for own, one in held.items()}, tmp_path / "x.pt")
    out = tmp_path / file
    code, text, errors = stepnet("convert", tmp_path / "x.pt", "--to", to, "-o", out, "--verify")
    assert (code, errors, text.count("verified: ")) == (0, "", 2)
    said = dict.fromkeys(written, "tf1.basic_lstm") if to == "tf1" else {}
    assert {one.name[:-1] for one in read(out, None, said).modules} == {*written}
    # PyTorch's own names have their numbers elsewhere, and stay.
    convert_file(tmp_path / "x.pt", "torch", tmp_path / "y.pt")
    assert (
        torch.load(tmp_path / "y.pt", weights_only=True).keys()
        == torch.load(tmp_path / "x.pt", weights_only=True).keys()
    )


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("to", "file"), [("keras", "new.npz"), ("flax", "new.msgpack")])
@pytest.mark.parametrize(("last", "written"), [("2", "rnns_2"), ("my_forward", "rnns.my_forward_layer")])
def test_layers_have_names_by_one_rule_however_deep_they_are(
    tmp_path: Path, to: str, file: str, last: str, written: str
):
    layers = {
        "0": nn.LSTM(HIDDEN, HIDDEN),
        "1": nn.LSTM(HIDDEN, HIDDEN, 2),
        last: nn.LSTM(HIDDEN, HIDDEN, bidirectional=True),
    }
    state = {f"rnns.{name}.{own}": one for name, layer in layers.items()
             for own, one in layer.state_dict().items()}  # fmt: skip
    torch.save(state, tmp_path / "x.pt")
    command = ("convert", tmp_path / "x.pt", "--to", to, "-o", tmp_path / file, "--verify")
    code, text, errors = stepnet(*command)
    assert (code, errors, text.count("verified: ")) == (0, "", 3)
    found = read(tmp_path / file, to).modules
    assert {one.name[:-1]: one.solved_sizes().layers for one in found} == {
        "rnns_0": 1,
        "rnns_1": 2,
        written: 1,
    }
    assert [one.solved_sizes().directions for one in found if one.name[:-1] == written] == [2]


def test_layers_of_the_same_names_are_compared(sorted_by_names: tuple[Path, nn.ModuleDict], tmp_path: Path):
    source, model = sorted_by_names
    torch.save(model.state_dict(), tmp_path / "x.pt")
    code, text, errors = stepnet("verify", tmp_path / "x.pt", source)
    assert (code, errors) == (0, "")
    titles = [line.partition(":")[0] for line in text.splitlines() if line[0] != " "]
    assert titles == ["encoder", "decoder", "recurrent layers agree (0 left out)"]


# ---- what is said of some of them


def test_a_layout_is_said_of_the_side_that_leaves_it_open(tmp_path: Path):
    torch.save(nn.LSTM(2, HIDDEN).state_dict(), tmp_path / "x.pt")
    convert_file(tmp_path / "x.pt", "equinox", tmp_path / "x.safetensors")
    sides = tmp_path / "x.pt", tmp_path / "x.safetensors"
    assert "fit equinox.lstm and coreml.lstm" in refusal("verify", *sides)
    assert stepnet("verify", *sides, "--from", "equinox")[0] == 0
    said = refusal("verify", *sides, "--from", "equinox.gru")
    assert (
        "--from says equinox.gru, which fits none of its layers: the layer is torch.lstm, the layer is "
        in said
    )


def test_a_layout_that_no_layer_has_is_refused(tmp_path: Path):
    torch.save(nn.GRU(2, HIDDEN).state_dict(), tmp_path / "x.pt")
    said = refusal("convert", tmp_path / "x.pt", "--to", "torch", "-o", tmp_path / "y.pt", "--from", "haiku")
    assert "x.pt: --from says haiku, which fits none of its layers: the layer is torch.gru" in said


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(DATA / "tf1_cells.tar.xz", tmp_path_factory.mktemp("cells"))


def test_what_is_said_of_a_file_takes_no_other_cell_apart(cells: Path):
    """The gates and the candidate of a GRUCell each have a kernel and a bias, as a BasicLSTMCell has."""
    choice = LayoutChoice("tf1.basic_lstm", semantics={"forget_bias": 1.0})
    model = read(cells / "stack.index", choice.layout)
    modules = choice.checked_modules(model)
    assert {one.name.split("/")[-2]: one.layout for one in modules} == {
        "gru_cell": "tf1.gru",
        "basic_lstm_cell": "tf1.basic_lstm",
    }
    numbers = saved_arrays(cells / "outputs.npz")
    y = numbers["stack:inputs"]
    for module in sorted(modules, key=lambda one: one.name):
        y, _ = weights(module).layers()(y)
    assert_close(y, numbers["stack:outputs"], length=5, width=7, dtype=np.float32)


@pytest.mark.parametrize("layout", ["tf1.basic_lstm", "tf1.rnn"])
def test_what_is_said_of_a_file_takes_no_other_layer_for_a_cell(cells: Path, layout: str):
    """By its shapes a BasicRNNCell of 4 units may be an LSTM of one, and a dense layer a BasicRNNCell."""
    (encoder,) = (one for one in read(cells / "joined.index", layout).modules if "encoder" in one.name)
    (decoder,) = (one for one in read(cells / "joined.index", layout).modules if "decoder" in one.name)
    assert (encoder.name, decoder.name) == (
        "encoder/rnn/basic_lstm_cell/",
        "decoder/rnn/basic_rnn_cell/",
    )
    assert ("tf1.basic_lstm" in encoder.layouts, decoder.layouts) == (True, ("tf1.rnn",))


def mixed(activation: str) -> nn.ModuleDict:
    return nn.ModuleDict({"a": nn.RNN(2, HIDDEN, nonlinearity=activation), "b": nn.LSTM(HIDDEN, HIDDEN)})


def test_an_activation_is_said_of_the_layers_that_leave_it_open(tmp_path: Path):
    torch.save(mixed("relu").state_dict(), tmp_path / "x.pt")
    command = ("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "y.npz", "--verify")
    assert "say --semantics candidate_activation=VALUE" in refusal(*command)
    code, text, _ = stepnet(*command, "--semantics", "candidate_activation=relu")
    assert code == 0
    assert [line.strip() for line in text.splitlines() if "set there" in line] == [
        "set there: activation='relu'",
        "set there: recurrent_activation='sigmoid', activation='tanh'",
    ]


ONE_EACH = ("--semantics", "a:activation=relu", "--semantics", "b:nonlinearity=tanh")


def of_two_activations(path: Path) -> nn.ModuleDict:
    """Two layers of one class, which the file does not tell apart."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.RNN(HIDDEN, HIDDEN, nonlinearity="relu", batch_first=True),
                           "b": nn.RNN(HIDDEN, HIDDEN, batch_first=True)})  # fmt: skip
    torch.save({"state_dict": model.state_dict(prefix="module.")}, path)
    return model


def test_each_module_has_the_activation_that_is_said_of_it(tmp_path: Path):
    model = of_two_activations(tmp_path / "x.pt")
    out = tmp_path / "out.onnx"
    command = ("convert", tmp_path / "x.pt", "--to", "onnx", "-o", out, "--stack", "--verify")
    said = refusal(*command)
    assert (
        "the arrays of state_dict.module.a, state_dict.module.b do not determine candidate_activation" in said
    )
    assert "--semantics state_dict.module.a:candidate_activation=VALUE (Python: semantics={'state_di" in said
    assert stepnet(*command, *ONE_EACH)[0] == 0
    assert_close(run_onnx(out), in_a_row(model.values(), X), length=TIME, width=HIDDEN)


def test_what_is_said_of_a_module_goes_before_what_is_said_of_all(tmp_path: Path):
    model = of_two_activations(tmp_path / "x.pt")
    fields = {"candidate_activation": "tanh", "a:candidate_activation": "relu"}
    choice = LayoutChoice(stack=True, semantics=fields)
    convert_file(tmp_path / "x.pt", "onnx", tmp_path / "out.onnx", choice=choice)
    assert_close(run_onnx(tmp_path / "out.onnx"), in_a_row(model.values(), X), length=TIME, width=HIDDEN)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            "c:activation=relu",
            "no recurrent module is called 'c'; there are 'state_dict.module.a.', 'state_dict.module.b.': "
            "say --semantics MODULE:candidate_activation=VALUE",
        ),
        (":activation=relu", "no recurrent module is called ''; there are 'state_dict.module.a.', "),
        ("a:reset=after", "the cell rnn has no 'reset'; it has candidate_activation, clip"),
        ("a:activation=soft", "candidate_activation is one of 'sigmoid', "),
    ],
)
def test_what_cannot_be_said_of_a_module(tmp_path: Path, said: str, problem: str):
    of_two_activations(tmp_path / "x.pt")
    words = ("--semantics", "activation=tanh", "--semantics", said)
    for command in (
        ("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "out.npz"),
        ("explain", "--recurrent-only", tmp_path / "x.pt", "--stack"),
        ("verify", tmp_path / "x.pt", tmp_path / "x.pt"),
    ):
        assert problem in refusal(*command, *words)


def test_what_is_said_of_a_module_of_one_of_two_files(tmp_path: Path):
    of_two_activations(tmp_path / "x.pt")
    assert stepnet("convert", tmp_path / "x.pt", "--to", "keras", "-o", tmp_path / "x.npz", *ONE_EACH)[0] == 0
    with np.load(tmp_path / "x.npz") as held:
        names = {name: name.replace("state_dict.module.a", "first").replace("state_dict.module.b", "second")
                 for name in held.files}  # fmt: skip
        np.savez(tmp_path / "y.npz", **{new: held[name] for name, new in names.items()})
    words = [word.replace("a:", "first:") for word in ONE_EACH]
    code, _, errors = stepnet("verify", tmp_path / "x.pt", tmp_path / "y.npz", *ONE_EACH, *words)
    assert (code, errors) == (0, "")
    code, _, _ = stepnet("verify", tmp_path / "x.pt", tmp_path / "y.npz", *ONE_EACH)
    assert code == 1  # the layers of Keras are of tanh where nobody says anything else


def test_who_contradicts_a_file_is_told(tmp_path: Path):
    torch.save(nn.RNN(2, HIDDEN, nonlinearity="relu"), tmp_path / "x.pt")  # whole, with its activation
    choice = LayoutChoice(semantics={"candidate_activation": "tanh"})
    done = convert_file(tmp_path / "x.pt", "keras", tmp_path / "y.npz", choice=choice)
    assert done.notes == {"": ("the file says candidate_activation='relu', and --semantics 'tanh'",)}


def test_the_moments_of_an_optimiser_are_no_layers(tmp_path: Path):
    pytest.importorskip("pyarrow")
    unpacked(DATA / "orbax_training.tar.xz", tmp_path)
    assert [one.name for one in read(tmp_path / "training").modules] == ["weights/cell/"]
