"""`accelerate` replaces the layers of a model in place, says what it did, and is undone."""

import functools
from typing import Any

import pytest
import torch

import stepnet.torch
from stepnet.errors import InputError
from tests.torch.layer_cases import BATCH, HIDDEN, INPUTS, STEPS, assert_same, numbers


class Own(torch.nn.GRU):
    """A class that may do something else."""


SUPPORTED = "only float32, float64, float16 and bfloat16 are supported"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.LSTM(INPUTS, HIDDEN, bidirectional=True, dtype=torch.float64)
        self.second = torch.nn.ModuleList([torch.nn.GRU(2 * HIDDEN, HIDDEN, dtype=torch.float64)])
        self.own = Own(INPUTS, HIDDEN)
        self.cell = torch.nn.LSTMCell(HIDDEN, HIDDEN, dtype=torch.float64)
        self.complex = torch.nn.RNN(INPUTS, HIDDEN, dtype=torch.complex64)
        self.done = stepnet.torch.RNN(INPUTS, HIDDEN)
        self.small = torch.nn.GRUCell(INPUTS, HIDDEN).to(torch.float8_e4m3fn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, state = self.second[0](self.first(x)[0])[0], None
        for one in outputs:
            state = self.cell(one, state)
        return outputs if state is None else outputs + state[0]


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
        assert outputs[-1]["cell.weight_ih"].any()
        if not run:
            done = stepnet.torch.accelerate(model)
            assert list(done.replaced) == ["first", "second.0", "cell"]
            assert isinstance(model.second[0], stepnet.torch.GRU)
            assert list(map(id, model.parameters())) == parameters
        elif done is not None:
            done.undo()
            assert type(model.second[0]) is torch.nn.GRU
    assert_same(outputs[1], outputs[0])
    assert done is not None
    assert str(done).splitlines()[2:] == [
        "cell: LSTMCell",
        "own: left, Own is a subclass, whose forward may compute something else",
        f"complex: left, its parameters are torch.complex64: {SUPPORTED}",
        "done: left, it is stepnet's already",
        f"small: left, its parameters are torch.float8_e4m3fn: {SUPPORTED}",
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_left_is_said_for_every_model() -> None:
    assert str(stepnet.torch.accelerate(torch.nn.Linear(2, 3))).startswith(
        "nothing was replaced: the model has"
    )
    scripted: Any = torch.jit.script(torch.nn.Sequential(torch.nn.GRU(2, 3)))
    assert stepnet.torch.accelerate(scripted).left == {
        "0": "torch.jit._script.RecursiveScriptModule is not the class of this name in torch.nn"
    }

    class GRU(torch.nn.Module):
        pass

    class Cached(torch.nn.Module):
        def forward(self, x: torch.Tensor, cache: Any) -> Any:
            return cache.update_recurrent_state(x, 0)

    done = stepnet.torch.accelerate(torch.nn.ModuleDict({"own": GRU(), "cached": Cached()}))
    assert "GRU is not the class of this name in torch.nn" in done.left["own"]
    assert done.left["cached"].startswith("its recurrence is written inside its class")
    assert not done.replaced


def test_a_layer_whose_forward_was_replaced_is_left() -> None:
    """Libraries that move weights between devices wrap the `forward` of a module in this way."""
    model = torch.nn.Sequential(torch.nn.GRU(2, 3), torch.nn.GRUCell(2, 3))
    for layer in model:
        layer.forward = functools.partial(layer.forward)
    why = "its forward was replaced on the layer itself, and may compute something else"
    done = stepnet.torch.accelerate(model)
    assert done.left == {"0": why, "1": why}
    assert not done.replaced


def test_what_is_no_module_is_refused():
    with pytest.raises(InputError, match=r"accelerate takes a torch\.nn\.Module, not a list"):
        stepnet.torch.accelerate([])


def test_undone_beneath_a_class_that_pytorch_derived_meanwhile() -> None:
    """`parametrize` gives a module a class of its own, and takes the base of it when it is removed."""
    from torch.nn.utils import parametrizations, parametrize

    layer = torch.nn.GRU(3, 4)
    done = stepnet.torch.accelerate(layer)
    parametrizations.weight_norm(layer, "weight_hh_l0")
    x = torch.randn(5, 2, 3)
    ours, _ = layer(x)
    done.undo()
    assert not isinstance(layer, stepnet.torch.GRU)
    assert isinstance(layer, torch.nn.GRU)
    assert torch.allclose(layer(x)[0], ours, atol=1e-5)
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert type(layer) is torch.nn.GRU


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_of_torchscript_holds_the_operators_of_pytorch() -> None:
    """A trace with stepnet's own operators would keep the sizes of its example."""

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cell = torch.nn.GRU(3, 4, batch_first=True), torch.nn.LSTMCell(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(self.layer(x)[0][:, -1])[0]

    model, example, others = Both(), torch.randn(2, 5, 3), torch.randn(3, 7, 3)
    expected = model(others)
    stepnet.torch.accelerate(model)
    traced: Any = torch.jit.trace(model, example, check_trace=False)
    assert torch.allclose(traced(others), expected, atol=1e-5)
