"""Values through which no gradient goes: `detach`, as PyTorch has it."""

from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

import stepnet as sn
from stepnet.torch import trace

PARAMS = {
    name: torch.tensor(np.random.default_rng(place).normal(size=shape) / 2)
    for place, (name, shape) in enumerate({"W": (3, 4), "R": (4, 4)}.items())
}


def of_state(x: Any, h: Any, p: Any) -> Any:
    h = torch.tanh(x @ p["W"] + h.detach() @ p["R"])
    return h * h, h


def of_parameter(x: Any, h: Any, p: Any) -> Any:
    h = torch.tanh(x @ p["W"] + h @ p["R"].data)
    return h * h, h


def straight_through(x: Any, h: Any, p: Any) -> Any:
    a = x @ p["W"] + h @ p["R"]
    h = torch.tanh(a + (torch.sign(a) - a).detach())
    return h * a, h


@pytest.mark.long(each=True)
@pytest.mark.parametrize("step", [of_state, of_parameter, straight_through])
def test_gradients_end_where_a_value_is_detached(step: Any, engine: str) -> None:
    x = torch.tensor(np.random.default_rng(9).normal(size=(2, 5, 3)), requires_grad=True)
    params = {name: tensor.clone().requires_grad_() for name, tensor in PARAMS.items()}
    h, right = torch.zeros(2, 4, dtype=x.dtype), []
    for place in range(5):
        y, h = step(x[:, place], h, params)
        right.append(y)
    outputs = torch.stack(right, 1)
    leaves = [x, *params.values()]
    known = torch.autograd.grad(outputs.sum(), leaves, allow_unused=True)

    rnn = trace(step, (torch.zeros(1, 3, dtype=x.dtype), h[:1].detach(), PARAMS))
    (values, _), backward = sn.vjp(rnn)(x.detach().numpy(), engine=engine)
    assert_close(values, outputs.detach().numpy(), 5, 4)
    gradients = backward(np.ones_like(values))
    actual = [gradients.inputs, *(gradients.params[name] for name in PARAMS)]
    for ours, theirs, leaf in zip(actual, known, leaves, strict=True):
        assert_close(ours, np.zeros(leaf.shape) if theirs is None else theirs.numpy(), 5, 4)
