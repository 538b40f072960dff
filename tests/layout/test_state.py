"""PyTorch's recurrent modules as ours: the same state gives the same outputs, and what is refused how."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.numpy import load_file
from tolerance import assert_close
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, LayoutError
from stepnet.layout import from_torch

# Torch says so for each projection; the path that it takes instead is as right.
pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections is not supported with oneDNN:UserWarning"
)

DATA = Path(sn.__file__).parent / "cli" / "data"
LENGTHS = (4, 1, 9, 6)
INPUTS, HIDDEN = 5, 7
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MODULES = {
    "tanh": lambda **options: nn.RNN(INPUTS, HIDDEN, **options),
    "relu": lambda **options: nn.RNN(INPUTS, HIDDEN, nonlinearity="relu", **options),
    "gru": lambda **options: nn.GRU(INPUTS, HIDDEN, **options),
    "lstm": lambda **options: nn.LSTM(INPUTS, HIDDEN, **options),
    "projected": lambda **options: nn.LSTM(INPUTS, HIDDEN, proj_size=3, **options),
}


def module(kind: str, dtype: str, **options: Any) -> Any:
    torch.manual_seed(4)
    return MODULES[kind](batch_first=True, dtype=DTYPES[dtype], **options)


def ours(theirs: Any, kind: str, engine: str, given: Any, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """Our outputs, and our final memories in torch's order: all h by layer and direction, then all c."""
    layers = from_torch(theirs.state_dict(), cell={"relu": "simple_rnn_relu", "tanh": "simple_rnn"}.get(kind))
    outputs, final = layers(given, engine=engine, **options)
    memories = leaves(final)
    return outputs, memories[::2] + memories[1::2] if kind in ("lstm", "projected") else memories


def flat(states: Any) -> list[np.ndarray]:
    """Torch's final states [layers and directions, batch, features] as a list of [batch, features]."""
    return [row.numpy() for state in (states if isinstance(states, tuple) else (states,)) for row in state]


def run(theirs: Any, given: Any, *initial: Any) -> tuple[Any, list[np.ndarray]]:
    with torch.no_grad():
        outputs, states = theirs(given, *initial)
    return outputs, flat(states)


def draw(dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.normal(size=(length, INPUTS)).astype(dtype) for length in LENGTHS]


CASES = [  # kind, dtype, layers, bidirectional, bias
    *((kind, "float64", 2, True, True) for kind in MODULES),
    *((kind, "float32", 1, False, False) for kind in MODULES),
    *((kind, "float32", 1, True, True) for kind in ("gru", "lstm")),
    *((kind, "float32", 2, False, True) for kind in ("gru", "lstm")),
]


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("kind", "dtype", "layers", "bidirectional", "bias"), CASES)
def test_outputs_are_torchs(kind: str, dtype: str, layers: int, bidirectional: bool, bias: bool, engine: str):
    theirs = module(kind, dtype, num_layers=layers, bidirectional=bidirectional, bias=bias)
    sequences = draw(dtype)
    outputs, final = ours(theirs, kind, engine, sn.Ragged.from_list(sequences))
    length, width = max(LENGTHS) * layers, INPUTS + 2 * HIDDEN
    for row, sequence in enumerate(sequences):
        expected, states = run(theirs, torch.from_numpy(sequence)[None])
        assert outputs[row].dtype == dtype
        assert_close(outputs[row], expected[0].numpy(), length, width)
        assert len(final) == len(states)
        for actual, state in zip(final, states, strict=True):
            assert_close(actual[row], state[0], length, width)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_ragged_batch_is_torchs_packed_sequence(kind: str, engine: str):
    theirs = module(kind, "float64", bidirectional=True)
    packed = pack_sequence([torch.from_numpy(each) for each in draw("float64")], enforce_sorted=False)
    expected, states = run(theirs, packed)
    padded = pad_packed_sequence(expected, batch_first=True)[0].numpy()
    ragged = sn.Ragged.from_packed(packed)
    x, lengths = ragged.to_padded()
    for given, options in ((ragged, {}), (x, {"lengths": lengths})):
        outputs, final = ours(theirs, kind, engine, given, **options)
        outputs = outputs if isinstance(outputs, np.ndarray) else outputs.to_padded()[0]
        assert_close(outputs, padded, max(LENGTHS), INPUTS + HIDDEN)
        for actual, state in zip(final, states, strict=True):
            assert_close(actual, state, max(LENGTHS), INPUTS + HIDDEN)


@pytest.mark.parametrize("kind", ["gru", "projected"])
def test_initial_memories_are_torchs(kind: str, engine: str):
    theirs = module(kind, "float64", num_layers=2, bidirectional=True)
    random = np.random.default_rng(2)
    x = random.normal(size=(3, 8, INPUTS))
    if kind == "gru":
        h = random.normal(size=(4, 3, HIDDEN))
        theirs_initial: Any = torch.from_numpy(h)
        memories: list[Any] = list(h)
    else:
        h, c = random.normal(size=(4, 3, 3)), random.normal(size=(4, 3, HIDDEN))
        theirs_initial = torch.from_numpy(h), torch.from_numpy(c)
        memories = [{"h": h[row], "c": c[row]} for row in range(4)]
    directions = [dict(zip(("forward", "backward"), memories[at : at + 2], strict=True)) for at in (0, 2)]
    expected, states = run(theirs, torch.from_numpy(x), theirs_initial)
    outputs, final = ours(theirs, kind, engine, x, initial=tuple(directions))
    assert_close(outputs, expected.numpy(), 16, INPUTS + 2 * HIDDEN)
    for actual, state in zip(final, states, strict=True):
        assert_close(actual, state, 16, INPUTS + 2 * HIDDEN)


def test_shipped_classifier_gives_what_was_recorded(engine: str):
    state, recorded = (
        load_file(DATA / "speaker_gru.safetensors"),
        load_file(DATA / "speaker_gru_outputs.safetensors"),
    )
    rows = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", "test")])
    frames = sn.Ragged.from_arrow(rows["frames"])
    outputs, final = from_torch(state)(frames, engine=engine)
    assert_close(outputs.values, recorded["states"], 29, 12 + 64)
    assert_close(final, recorded["last_states"], 29, 12 + 64)


def test_state_is_copied():
    theirs = module("gru", "float32")
    rnn = from_torch(theirs.state_dict())
    before = rnn(np.ones((1, 3, INPUTS), np.float32), engine="interpret")[0]
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.zero_()
    np.testing.assert_array_equal(rnn(np.ones((1, 3, INPUTS), np.float32), engine="interpret")[0], before)


# ---- finding the arrays


def state_of(kind: str, prefix: str = "", **options: Any) -> dict[str, Any]:
    return {prefix + name: value for name, value in module(kind, "float32", **options).state_dict().items()}


def test_one_module_is_found_wherever_it_is():
    head = {"head.weight": np.ones((2, 3)), "head.bias": np.ones(2, np.int64)}
    assert repr(from_torch(state_of("gru", "model.encoder.") | head)).startswith("RNN(gru, ")
    assert repr(from_torch(dict(module("lstm", "float32").named_parameters()))).startswith("RNN(lstm, ")


@pytest.mark.parametrize(
    ("kind", "cell"),
    [("tanh", "simple_rnn"), ("gru", "gru"), ("lstm", "lstm"), ("projected", "lstm_projection")],
)
@pytest.mark.parametrize("hidden", [1, 2, 3, 4, 12])
def test_cell_is_told_by_the_shapes(kind: str, cell: str, hidden: int):
    made = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}.get(kind, nn.LSTM)
    options = {"proj_size": 1} if kind == "projected" and hidden > 1 else {}
    state = made(3, hidden, **options).state_dict()
    if kind == "tanh":
        with pytest.raises(LayoutError, match="does not say whether a simple RNN has tanh"):
            from_torch(state)
    found = from_torch(state, cell="simple_rnn" if kind == "tanh" else None)
    assert repr(found).startswith(f"RNN({cell if options or kind != 'projected' else 'lstm'}, ")


@pytest.mark.parametrize("prefix", ["decoder", "decoder."])
def test_prefix_chooses(prefix: str):
    both = state_of("gru", "encoder.") | state_of("lstm", "decoder.")
    assert repr(from_torch(both, prefix)).startswith("RNN(lstm, ")
    half = {"encoder.weight_ih_l0": np.ones((3, 1), np.float16)}
    assert repr(from_torch(half | state_of("lstm", "decoder."), prefix)).startswith("RNN(lstm, ")


def test_layers_and_directions_are_what_the_names_say():
    assert isinstance(from_torch(state_of("gru", bidirectional=True)), sn.Bidirectional)
    found = from_torch(state_of("gru", bidirectional=True, num_layers=3))
    assert isinstance(found, sn.Stack)
    assert [type(layer) for layer in found.layers] == [sn.Bidirectional] * 3


# ---- what does not fit


def changed(kind: str, name: str, value: Any = None, **options: Any) -> dict[str, Any]:
    """A state with one array removed, or put in another one's place."""
    state = {key: each.numpy() for key, each in state_of(kind, "rnn.", **options).items()}
    assert name in state
    rest = {key: each for key, each in state.items() if key != name}
    return rest if value is None else rest | {name: value}


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        ({}, {}, "no recurrent layer is here: no array has a name of a layout; the arrays are none"),
        (
            {"head.weight": np.ones(2), "head.bias": np.ones(2)},
            {},
            "no array has a name of a layout; the arrays are head.weight (2,), head.bias (2,)",
        ),
        (
            state_of("gru", "encoder.") | state_of("gru"),
            {},
            "there are 2 recurrent modules; choose one by prefix=, one of 'encoder.', ''",
        ),
        (state_of("gru", "a."), {"prefix": "b"}, "no recurrent layer has the prefix 'b'; there are 'a.'"),
        (
            state_of("gru"),
            {"cell": "elman"},
            "cell is one of simple_rnn, simple_rnn_relu, gru, lstm, not 'elman'",
        ),
        (changed("gru", "rnn.weight_hh_l0"), {}, "rnn.weight_hh_l0 is missing"),
        (changed("gru", "rnn.bias_hh_l0"), {}, "bias_hh_l0 is missing, and bias_ih_l0 is there"),
        (
            changed("gru", "rnn.bias_ih_l1", num_layers=2),
            {},
            "bias_ih_l1 is missing, and bias_ih_l0 is there",
        ),
        (changed("projected", "rnn.weight_hr_l1", num_layers=2), {}, "rnn.weight_hr_l1 is missing"),
        (
            changed("gru", "rnn.weight_ih_l0_reverse", bidirectional=True),
            {},
            "rnn.weight_ih_l0_reverse is missing",
        ),
        (
            {name: value for name, value in state_of("gru", num_layers=3).items() if "_l1" not in name},
            {},
            "weight_ih_l1 is missing",
        ),
        (
            changed("gru", "rnn.weight_hh_l0", np.ones((10, 4), "f")),
            {},
            "rnn.weight_hh_l0 has shape (10, 4) where ",
        ),
        (
            changed("gru", "rnn.weight_ih_l0", np.ones((20, 5), "f")),
            {},
            "torch.gru comes nearest, but rnn.weight_ih_l0 has shape (20, 5) where (21, 5) is",
        ),
        (
            changed("gru", "rnn.weight_ih_l1", np.ones((21, 7), "f"), num_layers=2, bidirectional=True),
            {},
            "rnn.weight_ih_l1 has shape (21, 7) where (21, 14) is expected of 5 inputs, 7 hidden, 2",
        ),
        (
            changed("lstm", "rnn.bias_hh_l0", np.ones(27, "f")),
            {},
            "rnn.bias_hh_l0 has shape (27,) where (28,) is expected of 5 inputs, 7 hidden",
        ),
        (
            changed("lstm", "rnn.bias_hh_l0", np.ones((28, 1), "f")),
            {},
            "rnn.bias_hh_l0 has shape (28, 1) where (28,) is expected",
        ),
        (
            changed("projected", "rnn.weight_hr_l0", np.ones((4, 7), "f")),
            {},
            "rnn.weight_hr_l0 has shape (4, 7) where (3, 7) is expected of 5 inputs, 7 hidden, 3 projected",
        ),
        (
            state_of("gru"),
            {"cell": "lstm"},
            "weight_ih_l0 has an axis of 21, which is not 4 hidden",
        ),
        (
            state_of("projected"),
            {"cell": "gru"},
            "weight_ih_l0 has an axis of 28, which is not 3 hidden",
        ),
        (
            changed("gru", "rnn.weight_ih_l0", np.ones((21, 5), np.float16)),
            {},
            "is float32, weight_ih_l0 is float16): cast them to one",
        ),
        (
            changed("gru", "rnn.weight_ih_l0", torch.ones(21, 5, dtype=torch.bfloat16)),
            {},
            "is float32, weight_ih_l0 is bfloat16): cast them to one",
        ),
        (
            changed("gru", "rnn.weight_ih_l0", [[1.0]]),
            {},
            "rnn.weight_ih_l0 has shape (1, 1) where (21, 1) is expected",
        ),
    ],
)
def test_state_that_does_not_fit(state: dict[str, Any], options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        from_torch(state, **options)
