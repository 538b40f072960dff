"""Cells of PyTorch and of Keras, and modules written by hand, are recognised in their traced nets."""

from typing import Any

import keras
import numpy as np
import pytest
import torch
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.plan.recognise import Recognised, Refused, check, recognise
from stepnet.keras.recurrences import LoopSettings
from stepnet.keras.steps import StepArguments, trace_cell
from stepnet.keras.traces import recurrence_of
from stepnet.torch import trace
from tests.compiler.plan.recognise.cell_spellings import both

X, H = 3, 5
layers: Any = keras.layers


def recognised(rnn: sn.RNN, text: str) -> Recognised:
    """The name of the cell that is recognised; asserts that it is `text`, and that the results agree."""
    recur = rnn.program.traced.recur()
    known = recognise(recur)
    assert isinstance(known, Recognised), str(known)
    assert str(known).startswith(text)
    check(known)
    for ours, theirs in zip(*both(recur, known), strict=True):
        assert_close(theirs, ours, length=3, width=X + H, dtype="float32")
    return known


class Attic(torch.nn.Module):
    """A GRU as people write it: one layer for both gates of the input and state side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = torch.nn.Linear(X + H, 2 * H)
        self.candidate = torch.nn.Linear(X + H, H)

    def forward(self, x: Any, h: Any) -> Any:
        z, r = torch.sigmoid(self.gates(torch.cat([x, h], dim=-1))).chunk(2, dim=-1)
        n = torch.tanh(self.candidate(torch.cat([x, r * h], dim=-1)))
        return torch.lerp(h, n, z)


class Peephole(torch.nn.Module):
    """An LSTM with peepholes and four layers over the input and state."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleDict({name: torch.nn.Linear(X + H, H) for name in "ifgo"})
        self.peep = torch.nn.Parameter(torch.randn(3, H))

    def forward(self, x: Any, state: Any) -> Any:
        h, c = state
        i, f, g, o = (part(torch.cat((h, x), 1)) for part in self.parts.values())
        c = torch.sigmoid(f + self.peep[1] * c) * c + torch.sigmoid(i + self.peep[0] * c) * torch.tanh(g)
        h = torch.sigmoid(torch.addcmul(o, self.peep[2], c)) * torch.tanh(c)
        return h, c


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (torch.nn.GRUCell(X, H), "gru: reset='after', update='keep'; 5 units, W, R, b, d"),
        (torch.nn.GRUCell(X, H, bias=False), "gru: reset='after', update='keep'; 5 units, W, R"),
        (torch.nn.LSTMCell(X, H), "lstm; 5 units, W, R, b"),
        (torch.nn.RNNCell(X, H), "rnn; 5 units, W, R, b"),
        (torch.nn.RNNCell(X, H, nonlinearity="relu"), "rnn: candidate_activation='relu'; 5 units, W, R, b"),
        (Attic(), "gru: reset='before', update='write'; 5 units, W, R, b"),
        (Peephole(), "lstm; 5 units, W, R, b, p"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, torch.nn.Module) else "",
)
def test_a_module_of_pytorch_is_recognised(module: Any, text: str) -> None:
    states = torch.zeros(1, H)
    state = (states, states) if "lstm" in text else states
    recognised(trace(module, (torch.zeros(1, X), state)), text)


def test_a_module_whose_weights_are_computed_is_recognised() -> None:
    module = torch.nn.utils.parametrizations.weight_norm(torch.nn.GRUCell(X, H), "weight_hh")
    recur = trace(module, (torch.zeros(1, X), torch.zeros(1, H))).program.traced.recur()
    known = recognise(recur)
    assert isinstance(known, Recognised)
    check(known)


class Normalised(torch.nn.Module):
    """A GRU with a LayerNorm of what its state gives."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm = torch.nn.GRUCell(X, H), torch.nn.LayerNorm(H)

    def forward(self, x: Any, h: Any) -> Any:
        return self.cell(x, self.norm(h))


def test_a_module_with_more_in_it_is_refused() -> None:
    known = recognise(trace(Normalised(), (torch.zeros(1, X), torch.zeros(1, H))).program.traced.recur())
    assert isinstance(known, Refused)
    assert "it computes sum at" in known.reason


def of_keras(cell: Any, named: bool) -> sn.RNN:
    """The recurrence of a cell of Keras: by its equations as stepnet knows them, or traced."""
    cell.build((None, X))
    states = [torch.zeros(1, size) for size in np.ravel(cell.state_size)]
    form = StepArguments(torch.zeros(1, X), states, {})
    return (
        recurrence_of(cell, LoopSettings(False, False, False), form)
        if named
        else trace_cell(cell, form, False, {})[0]
    )


def test_softplus_of_pytorch_is_another_function() -> None:
    """It is the identity from 20 on, which in float64 is no rounding."""
    assert "greater" in str(recognise(of_keras(layers.GRUCell(H, activation="softplus"), False).net))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("named", [False, True], ids=["traced", "named"])
@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (lambda: layers.SimpleRNNCell(H), "rnn; 5 units, W, R, b"),
        (lambda: layers.GRUCell(H), "gru: reset='after', update='keep'; 5 units, W, R, b, d"),
        (
            lambda: layers.GRUCell(H, reset_after=False),
            "gru: reset='before', update='keep'; 5 units, W, R, b",
        ),
        (
            lambda: layers.GRUCell(H, recurrent_activation="hard_sigmoid"),
            "gru: reset='after', update='keep', gate_activation='hard_sigmoid'",
        ),
        (lambda: layers.LSTMCell(H), "lstm; 5 units, W, R, b"),
        (
            lambda: layers.LSTMCell(H, activation="relu", use_bias=False),
            "lstm: candidate_activation='relu', output_activation='relu'; 5 units, W, R",
        ),
        (
            lambda: layers.LSTMCell(H, activation="selu"),
            "lstm: candidate_activation='selu', output_activation='selu'; 5 units, W, R, b",
        ),
        (
            lambda: layers.LSTMCell(H, activation="softsign"),
            "lstm: candidate_activation='softsign', output_activation='softsign'",
        ),
        (
            lambda: layers.GRUCell(H, activation="silu"),
            "gru: reset='after', update='keep', candidate_activation='silu'",
        ),
        (
            lambda: layers.GRUCell(H, activation="elu"),
            "gru: reset='after', update='keep', candidate_activation='elu'",
        ),
        (
            lambda: layers.GRUCell(H, activation="gelu"),
            "gru: reset='after', update='keep', candidate_activation='gelu'",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_cell_of_keras_is_recognised(cell: Any, text: str, named: bool) -> None:
    recognised(of_keras(cell(), named), text)
