"""`accelerate` replaces the layers of a model in place, says what it did, and is undone."""

import pytest
import torch
from layer_cases import BATCH, HIDDEN, INPUTS, STEPS, assert_same, numbers

import stepnet.torch
from stepnet.errors import InputError


class Own(torch.nn.GRU):
    """A class that may do something else."""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.LSTM(INPUTS, HIDDEN, bidirectional=True, dtype=torch.float64)
        self.second = torch.nn.ModuleList([torch.nn.GRU(2 * HIDDEN, HIDDEN, dtype=torch.float64)])
        self.own = Own(INPUTS, HIDDEN)
        self.cell = torch.nn.LSTMCell(INPUTS, HIDDEN)
        self.half = torch.nn.RNN(INPUTS, HIDDEN, dtype=torch.float16)
        self.done = stepnet.torch.RNN(INPUTS, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second[0](self.first(x)[0])[0]


def test_layers_are_replaced_in_place_and_back():
    model, x = Model(), numbers(STEPS, BATCH, INPUTS)
    parameters = list(map(id, model.parameters()))
    outputs = []
    done = None
    for run in range(3):
        model.zero_grad()
        outputs.append({"y": model(x)})
        outputs[-1]["y"].square().sum().backward()
        outputs[-1] |= {n: p.grad for n, p in model.named_parameters()}
        if not run:
            done = stepnet.torch.accelerate(model)
            assert list(done.replaced) == ["first", "second.0"]
            assert isinstance(model.second[0], stepnet.torch.GRU)
            assert list(map(id, model.parameters())) == parameters
        elif done is not None:
            done.undo()
            assert type(model.second[0]) is torch.nn.GRU
    assert_same(outputs[1], outputs[0])
    assert done is not None
    assert str(done).splitlines()[2:] == [
        "own: left, Own is a class of its own, whose forward may be another",
        "cell: left, it runs single steps: stepnet.torch.Recurrence runs a cell over sequences",
        "half: left, its parameters are torch.float16: float32 and float64 are run",
        "done: left, it is stepnet's already",
    ]


def test_what_is_no_module_is_refused():
    with pytest.raises(InputError, match=r"accelerate takes a torch\.nn\.Module, not a list"):
        stepnet.torch.accelerate([])
