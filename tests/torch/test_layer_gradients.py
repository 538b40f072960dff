"""Gradients of the layers of `stepnet.torch` as PyTorch's autograd asks for them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from turns import in_turns

import stepnet.torch
from tests.torch.layer_cases import (
    BATCH,
    FORMS,
    HIDDEN,
    INPUTS,
    STEPS,
    Case,
    answers,
    assert_same,
    in_form,
    numbers,
    tensors,
)

KINDS = {
    "GRU": Case("GRU"),
    "LSTM": Case("LSTM"),
    "projected": Case("LSTM", {"proj_size": 2}),
    "tanh": Case("RNN"),
    "relu": Case("RNN", {"nonlinearity": "relu"}),
    "two directions": Case("GRU", {"bidirectional": True, "bias": False}),
}


def function_of(module: Any, form: str = "padded", steps: int = 3) -> Any:
    """A module as a function of everything that it is given, and that in float64."""
    case = Case(type(module).__name__)
    names, parameters = zip(*module.named_parameters(), strict=True)
    states = case.states(module)

    def call(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, others[len(states) :], strict=True))
        arguments = FORMS[form](x, module), in_form(list(others[: len(states)]))
        return tuple(tensors(functional_call(module, given, arguments)))

    inputs = [numbers(STEPS if "packed" in form else steps, BATCH, INPUTS), *states, *parameters]
    return call, [one.detach().clone().requires_grad_() for one in inputs]


@pytest.mark.long(every=5)
@pytest.mark.parametrize(("kind", "form"), in_turns(KINDS, ["padded", "packed"]))
def test_gradients_are_those_of_differences(kind: str, form: str):
    call, inputs = function_of(KINDS[kind].modules()[1], form)
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients_are_those_of_differences(kind: str):
    call, inputs = function_of(KINDS[kind].modules()[1])
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_a_third_derivative_is_that_of_torch():
    found = []
    for module in Case("RNN").modules():
        x = numbers(2, 1, INPUTS).requires_grad_()
        value, gradient = module(x)[0].sum(), x
        for _ in range(3):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            value = (gradient * numbers(*gradient.shape)).sum()
        found.append({"x": gradient.detach()})
    assert_same(found[1], found[0])


def test_gradients_by_torch_func():
    found = []
    for module in Case("LSTM").modules():
        x = numbers(STEPS, BATCH, INPUTS)

        def loss(params: Any, x: torch.Tensor, module: Any = module) -> torch.Tensor:
            return functional_call(module, params, (x,))[0].square().sum()

        gradients = torch.func.grad(loss, argnums=(0, 1))(dict(module.named_parameters()), x)

        def slope(x: torch.Tensor, module: Any = module, loss: Any = loss) -> torch.Tensor:
            return torch.func.grad(loss, 1)(dict(module.named_parameters()), x).square().sum()

        second = torch.func.grad(slope)(x)
        found.append(gradients[0] | {"x": gradients[1], "second": second})
    assert_same(found[1], found[0])


@pytest.mark.long(every=5)
@pytest.mark.parametrize(("name", "form"), in_turns(["GRU", "LSTM", "RNN"], ["padded", "packed"]))
def test_frozen_parameters_get_no_gradient(name: str, form: str):
    theirs, ours = Case(name, {"num_layers": 2}).modules()
    for module in (theirs, ours):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("hh" in name or name == "weight_ih_l1")
    found, right = (answers(module, FORMS[form], []) for module in (ours, theirs))
    assert found["bias_ih_l0"] is None
    assert found["weight_ih_l1"] is not None
    assert_same(found, right)


def test_inputs_alone():
    theirs, ours = Case("GRU").modules()
    for module in (theirs, ours):
        module.requires_grad_(False)
    assert_same(answers(ours, FORMS["padded"], []), answers(theirs, FORMS["padded"], []))


def test_cotangents_that_are_none_expanded_or_not_contiguous():
    for loss in (
        lambda outputs, h, c: c.sum(),  # none for the outputs and h
        lambda outputs, h, c: outputs.sum(),  # expanded: strides of 0
        lambda outputs, h, c: (outputs.transpose(0, 2) * numbers(HIDDEN, BATCH, STEPS)).sum(),
        lambda outputs, h, c: outputs[-1].sum() + h[:, ::2].sum(),
    ):
        found = []
        for module in Case("LSTM").modules():
            outputs, (h, c) = module(numbers(STEPS, BATCH, INPUTS))
            loss(outputs, h, c).backward()
            found.append({name: one.grad for name, one in module.named_parameters()})
        assert_same(found[1], found[0])


def test_nan_in_gradients_is_passed_on():
    _, ours = Case("GRU").modules()
    x: Any = numbers(STEPS, BATCH, INPUTS).requires_grad_()
    outputs, _ = ours(x)
    outputs.backward(torch.full_like(outputs, float("nan")))
    assert x.grad.isnan().all()
    assert ours.weight_hh_l0.grad.isnan().all()


def test_a_retained_graph_gives_the_same_twice():
    _, ours = Case("LSTM", {"bidirectional": True}).modules()
    loss = ours(numbers(STEPS, BATCH, INPUTS))[0].square().sum()
    first, second = (torch.autograd.grad(loss, list(ours.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_freed_graph_is_refused():
    _, ours = Case("GRU").modules()
    loss = ours(numbers(STEPS, BATCH, INPUTS))[0].sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_what_is_saved_and_changed_is_refused(name: str):
    _, ours = Case(name).modules()
    x = numbers(STEPS, BATCH, INPUTS).requires_grad_()
    for changed in (ours.weight_hh_l0, x):
        outputs, _ = ours(x)
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outputs.sum().backward()


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_results_that_are_changed_change_no_gradient(name: str):
    """Saved values have memory of their own; where one is a result, PyTorch would refuse the change."""
    found = []
    for change in (False, True):
        _, ours = Case(name).modules()
        results = tensors(ours(numbers(STEPS, BATCH, INPUTS)))
        losses = [one.sum() for one in results]
        if change:
            with torch.no_grad():
                for one in results:
                    one.zero_()
        sum(losses).backward()  # type: ignore[union-attr]
        found.append({name: one.grad for name, one in ours.named_parameters()})
    assert_same(found[1], found[0])


def test_gradients_share_no_memory():
    _, ours = Case("LSTM", {"num_layers": 2}).modules()
    x: Any = numbers(STEPS, BATCH, INPUTS).requires_grad_()
    ours(x)[0].sum().backward()
    ours.bias_ih_l0.grad.zero_()
    assert ours.bias_hh_l0.grad.any()
    addresses = [one.grad.data_ptr() for one in (x, *ours.parameters())]
    assert len(set(addresses)) == len(addresses)


def test_hooks_see_all_that_is_saved():
    found = []
    for hooked in (False, True):
        _, ours = Case("GRU").modules()
        seen: list[torch.Tensor] = []
        keep = torch.autograd.graph.saved_tensors_hooks(
            lambda one, seen=seen: seen.append(one) or one.clone(), lambda one: one
        )
        if hooked:
            with keep:
                loss = ours(numbers(STEPS, BATCH, INPUTS))[0].sum()
            assert len(seen) > 5
        else:
            loss = ours(numbers(STEPS, BATCH, INPUTS))[0].sum()
        loss.backward()
        found.append({name: one.grad for name, one in ours.named_parameters()})
    assert_same(found[1], found[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool):
    _, ours = Case("GRU").modules()
    x = numbers(STEPS, BATCH, INPUTS)
    found = []
    for run in (ours, lambda x: checkpoint(ours, x, use_reentrant=reentrant)):
        ours.zero_grad()
        x = x.detach().requires_grad_()
        run(x)[0].square().sum().backward()
        found.append({name: one.grad for name, one in ours.named_parameters()} | {"x": x.grad})
    assert_same(found[1], found[0])


def test_loss_curves_are_those_of_torch():
    """From the same seed, with dropout, by an optimiser that changes parameters in groups."""
    curves = []
    for module in Case("LSTM", {"num_layers": 2, "dropout": 0.3, "batch_first": True}).modules():
        torch.manual_seed(1)
        optimiser = torch.optim.Adam(module.parameters(), 0.01, foreach=True)
        curve = []
        for step in range(20):
            x = torch.from_numpy(np.random.default_rng(step).normal(size=(BATCH, STEPS, INPUTS)))
            loss = (module(x)[0] - x.mean(-1, keepdim=True)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
            curve.append(loss.detach())
        curves.append({"curve": torch.stack(curve)})
    assert curves[0]["curve"][-1] < curves[0]["curve"][0]
    assert_same(curves[1], curves[0])


def test_engines_are_the_same_as_without_gradients():
    """The same values with and without gradients, but for rounding."""
    module = stepnet.torch.GRU(INPUTS, HIDDEN)
    x = numbers(STEPS, BATCH, INPUTS, dtype=torch.float32)
    with torch.no_grad():
        plain = module(x)[0]
    assert_same({"": module(x)[0]}, {"": plain})
