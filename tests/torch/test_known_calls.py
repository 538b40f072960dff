"""Calls of layers with gradients whose kind came before: results and gradients are those of torch.nn."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import stepnet.torch as st  # noqa: E402

KNOWN, MOST_KINDS = "_known_calls", 16

LAYERS = {
    "GRU": {},
    "LSTM": {"num_layers": 2, "bidirectional": True},
    "RNN": {"bias": False, "batch_first": True},
}


def pair(kind: str) -> tuple[Any, Any]:
    """A layer of stepnet and one of torch.nn with the same parameters."""
    torch.manual_seed(0)
    ours = getattr(st, kind)(5, 6, dtype=torch.float64, **LAYERS[kind])
    theirs = getattr(torch.nn, kind)(5, 6, dtype=torch.float64, **LAYERS[kind])
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def is_known(layer: Any, *arguments: Any) -> bool:
    """Tells whether a call of a layer is of a known kind: the others are checked by a method of torch.nn."""
    checked = list[Any]()
    layer.check_input = layer.check_forward_args = lambda *given: checked.append(given)
    layer(*arguments)
    del layer.check_input, layer.check_forward_args
    return not checked


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("part", ["outputs", "states"])
def test_gradients_of_known_calls_are_those_of_torch(kind: str, part: str) -> None:
    """With and without gradients of the data; a result that gets no cotangent; parameters that change."""
    ours, theirs = pair(kind)
    for wanted in (False, True):
        for _ in range(3):
            made = list[list[Any]]()
            x = torch.randn(3, 4, 5, dtype=torch.float64)
            for layer in (ours, theirs):
                layer.zero_grad()
                data = x.clone().requires_grad_(wanted)
                outputs, states = layer(data)
                states = states if kind == "LSTM" else (states,)
                chosen = outputs if part == "outputs" else torch.stack([*states]).sin()
                chosen.square().sum().backward()
                with torch.no_grad():
                    for parameter in layer.parameters():
                        parameter -= 0.1 * parameter.grad
                made.append([outputs, *states, *[p.grad for p in layer.parameters()], *[data.grad] * wanted])
            torch.testing.assert_close(*made, atol=1e-12, rtol=1e-10)
        data = torch.ones(3, 4, 5, dtype=torch.float64, requires_grad=wanted)
        assert is_known(ours, data)


def test_second_derivatives_and_batched_cotangents_of_known_calls() -> None:
    ours, _ = pair("GRU")
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    ours(x)
    weights = list(ours.parameters())[:1]
    call = lambda x, *_: ours(x)[0]  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (x, *weights), atol=1e-6)
    outputs = ours(x)[0]
    cotangents = torch.randn(3, *outputs.shape, dtype=torch.float64)
    (several,) = torch.autograd.grad(outputs, x, cotangents, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(outputs, x, own, retain_graph=True)[0] for own in cotangents]
    torch.testing.assert_close(several, torch.stack(each))


def test_what_a_known_call_depends_on_makes_another_kind() -> None:
    """Sizes, dropout, engines, parameters in other places, and tools that see operations."""
    ours, _ = pair("GRU")
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    assert not is_known(ours, x)
    assert is_known(ours, x.clone())
    assert not is_known(ours, x[:2])
    assert not is_known(ours, x, torch.zeros(1, 4, 6, dtype=torch.float64))
    with torch.no_grad():
        assert not is_known(ours, x)
    ours.checkpoint = 2
    assert not is_known(ours, x)
    weights = {name: 2 * value.detach() for name, value in ours.named_parameters()}
    doubled, theirs = torch.func.functional_call(ours, weights, (x,))[0], pair("GRU")[1]
    torch.testing.assert_close(doubled, torch.func.functional_call(theirs, weights, (x,))[0])


def test_kinds_are_bounded_and_not_copied() -> None:
    ours, _ = pair("GRU")
    for steps in range(1, MOST_KINDS + 3):
        ours(torch.zeros(steps, 1, 5, dtype=torch.float64))
    assert len(ours.__dict__[KNOWN]) == 2
    assert KNOWN not in copy.deepcopy(ours).__dict__
