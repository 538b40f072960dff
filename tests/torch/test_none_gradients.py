"""Gradients are None where torch.nn's are: of tensors that no result depends on, and of those that need none.

torch.nn is the oracle of which are None, and of the values of the others.
"""

from copy import deepcopy
from itertools import chain, combinations, product
from typing import Any

import pytest
import torch

from tests.torch import torch_tools as tools
from tests.torch.layer_cases import BATCH, FORMS, INPUTS, STEPS, Case, assert_same, in_form, numbers, tensors

CASES = {
    "GRU": Case("GRU", {"num_layers": 2}),
    "LSTM": Case("LSTM", {"bidirectional": True}),
    "LSTM with dropout": Case("LSTM", {"num_layers": 2, "dropout": 0.4}),
    "RNN": Case("RNN", {"bias": False}),
}
WANTED = ("all", "x", "state 0", "weight_hh_l0", "weight_ih_l0")
"""The tensors that require a gradient, in turn."""


def gradients(
    module: Any, form: str, states: list[torch.Tensor], wanted: str, results: tuple[int, ...]
) -> dict[str, torch.Tensor | None]:
    """The gradients of the sum of some results, by the names of the tensors that require one."""
    torch.manual_seed(3)
    x = numbers(STEPS, BATCH, INPUTS)
    given = {"x": x} | {f"state {place}": one.detach() for place, one in enumerate(states)}
    given |= dict(module.named_parameters())
    for name, tensor in given.items():
        tensor.requires_grad_(wanted in (name, "all"))
    states = [given[f"state {place}"] for place in range(len(states))]
    made = tensors(module(FORMS[form](x, module), in_form(states)))
    inputs = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    losses = [made[place].sum() for place in results]
    if not all(loss.requires_grad for loss in losses):
        return {"no result has a gradient": None}
    found = torch.autograd.grad(losses, list(inputs.values()), allow_unused=True)
    return dict(zip(inputs, found, strict=True))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("name", CASES)
def test_the_same_gradients_are_none(name: str, wanted: str, form: str):
    case = CASES[name]
    theirs, ours = case.modules()
    ours.engine = "interpret"
    places = range(1 + len(case.states(theirs)))
    for results, with_states in product(
        chain(*(combinations(places, n) for n in (1, len(places)))), (True, False)
    ):
        states = case.states(theirs) if with_states else []
        if wanted.startswith("state") and not states:
            continue
        found, right = (gradients(module, form, states, wanted, results) for module in (ours, theirs))
        assert_same(found, right)


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell"])
def test_the_same_gradients_of_a_cell_are_none(name: str):
    import stepnet.torch

    made = list[dict[str, Any]]()
    for package in (stepnet.torch, torch.nn):
        torch.manual_seed(0)
        cell = getattr(package, name)(INPUTS, 4, dtype=torch.float64)
        cell.weight_hh.requires_grad_(False)
        x, h = numbers(BATCH, INPUTS), numbers(BATCH, 4).requires_grad_()
        last = tensors(cell(x, (h, h.detach()) if name == "LSTMCell" else h))[-1]
        last.sum().backward()
        made.append({"x": x.grad, "h": h.grad} | {name: one.grad for name, one in cell.named_parameters()})
    assert made[1]["weight_hh"] is None
    assert_same(*made)


def test_unused_inputs_are_materialised_when_autograd_is_asked_to():
    for module in Case("GRU").modules():
        x, other = numbers(STEPS, BATCH, INPUTS).requires_grad_(), torch.ones(2, requires_grad=True)
        outputs, _ = module(x)
        found = torch.autograd.grad(outputs.sum(), [x, other], materialize_grads=True)
        assert torch.equal(found[1], torch.zeros(2))


# ---- recurrences and scans ---------------------------------------------------------------------------------


class Loop(torch.nn.Module):
    """The step of a module of `torch_tools.KINDS` in a loop of PyTorch, with the same parameters."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.cell: Any = getattr(module, "cell", None)
        self.params = module.params

    def forward(self, x: Any, h: Any) -> Any:
        outputs = list[Any]()
        for one in x:
            following = torch.tanh(one @ self.params["W"] + h @ self.params["R"]) if self.params else None
            h = self.cell(one, h) if following is None else following
            outputs.append(h)
        return torch.stack(outputs), h


@pytest.mark.parametrize("name", ["Recurrence", "Scan"])
def test_the_same_gradients_of_a_recurrence_are_none(name: str):
    """In float32 beside the loop in float64: two results in float64 may differ by twice the tolerance."""
    torch.manual_seed(0)
    module = tools.KINDS[name].make()
    loop = Loop(deepcopy(module).double())
    weights = [weight for weight, _ in module.named_parameters()]
    for wanted, results in product(("all", "x", "state 0", *weights), ((0,), (1,), (0, 1))):
        made = list[dict[str, Any]]()
        for run, dtype in ((module, torch.float32), (loop, torch.float64)):
            x, h = (numbers(*shape).float().to(dtype) for shape in ((5, 2, tools.INPUTS), (2, tools.HIDDEN)))
            given = {"x": x, "state 0": h} | dict(run.named_parameters())
            for place, tensor in given.items():
                tensor.requires_grad_(wanted in (place, "all"))
            outputs = run(x, h)
            inputs = {place: tensor for place, tensor in given.items() if tensor.requires_grad}
            losses = [outputs[place].square().sum() for place in results]
            found = torch.autograd.grad(losses, list(inputs.values()), allow_unused=True)
            made.append(dict(zip(inputs, found, strict=True)))
        assert_same(*made)


@pytest.mark.parametrize("name", ["Recurrence", "Scan"])
def test_a_recurrence_of_tensors_without_gradients_has_none(name: str):
    module = tools.KINDS[name].make().requires_grad_(False)
    assert not any(tensor.requires_grad for tensor in module(torch.ones(5, 2, tools.INPUTS)))
    x, other = torch.ones(5, 2, tools.INPUTS, requires_grad=True), torch.ones(2, requires_grad=True)
    outputs = module(x)[0].sum()
    found = torch.autograd.grad(outputs, [x, other], materialize_grads=True)
    assert found[0].any()
    assert torch.equal(found[1], torch.zeros(2))
