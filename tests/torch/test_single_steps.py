"""`GRUCell`, `LSTMCell` and `RNNCell` give what those of torch.nn give, and the same gradients."""

import copy
import pickle
from typing import Any

import pytest
import torch

import stepnet.torch
from stepnet.errors import InputError
from tests.torch.layer_cases import (
    BATCH,
    DTYPES,
    HIDDEN,
    INPUTS,
    STEPS,
    assert_same,
    in_form,
    numbers,
    tensors,
)

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("GRUCell", {}),
    "LSTM": ("LSTMCell", {}),
    "tanh": ("RNNCell", {}),
    "relu": ("RNNCell", {"nonlinearity": "relu"}),
    "no bias": ("GRUCell", {"bias": False}),
}


def cells(kind: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """Theirs and ours with the same parameters."""
    name, options = KINDS[kind]
    torch.manual_seed(5)
    theirs, ours = (
        getattr(package, name)(INPUTS, HIDDEN, dtype=dtype, **options)
        for package in (torch.nn, stepnet.torch)
    )
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def states_of(kind: str, *lead: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """h, and c of an LSTM."""
    return [numbers(*lead, HIDDEN, dtype=dtype) * k for k in range(1, 3 if kind == "LSTM" else 2)]


def answers(cell: Any, x: torch.Tensor, states: list[torch.Tensor]) -> dict[str, Any]:
    """The next state, and the gradients of all that a cell is given."""
    x, own = x.clone().requires_grad_(), [one.clone().requires_grad_() for one in states]
    results = tensors(cell(x, in_form(own)))
    cell.zero_grad()
    sum((one * numbers(*one.shape, dtype=one.dtype)).sum() for one in results).backward()  # type: ignore[union-attr]
    found = {f"result {place}": one for place, one in enumerate(results)} | {"x": x.grad}
    found |= {f"state {place}": one.grad for place, one in enumerate(own)}
    return found | {name: one.grad for name, one in cell.named_parameters()}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("lead", [(BATCH,), (1,), (0,), ()])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_of_torch(
    kind: str, dtype: torch.dtype, lead: tuple[int, ...], with_states: bool
):
    theirs, ours = cells(kind, dtype)
    x = numbers(*lead, INPUTS, dtype=dtype)
    states = states_of(kind, *lead, dtype=dtype) if with_states else []
    right = answers(theirs, x, states)
    assert_same(answers(ours, x, states), right)
    for context in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with context():
            plain = tensors(ours(x, in_form(states)))
        assert not any(one.requires_grad for one in plain)
        assert_same(
            {f"result {place}": one for place, one in enumerate(plain)},
            {name: one for name, one in right.items() if name.startswith("result")},
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_steps_is_that_of_torch(kind: str):
    found = []
    for cell in cells(kind):
        x = numbers(STEPS, BATCH, INPUTS).requires_grad_()
        state, outputs = None, []
        for one in x:
            state = cell(one, state)
            outputs.append(state[0] if kind == "LSTM" else state)
        y = torch.stack(outputs)
        y.square().sum().backward()
        found.append({"y": y, "x": x.grad} | {name: one.grad for name, one in cell.named_parameters()})
    assert_same(found[1], found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_steps_is_the_layer(kind: str):
    if kind == "no bias":
        return
    _, cell = cells(kind)
    options = {"nonlinearity": "relu"} if kind == "relu" else {}
    layer = getattr(stepnet.torch, KINDS[kind][0].removesuffix("Cell"))(
        INPUTS, HIDDEN, dtype=torch.float64, **options
    )
    layer.load_state_dict({f"{name}_l0": one for name, one in cell.state_dict().items()})
    x, state, outputs = numbers(STEPS, BATCH, INPUTS), None, list[torch.Tensor]()
    with torch.no_grad():
        for one in x:
            state = cell(one, state)
            outputs.append(tensors(state)[0])
        assert_same({"": torch.stack(outputs)}, {"": layer(x)[0]})


@pytest.mark.long(every=2)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind: str):
    _, ours = cells(kind)
    inputs = [one.requires_grad_() for one in (numbers(BATCH, INPUTS), *states_of(kind, BATCH))]

    def call(x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensors(ours(x, in_form(list(states)))))

    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_modules_of_torch_and_copies_are_their_own(kind: str, copied: Any):
    theirs, ours = cells(kind)
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    theirs.load_state_dict(ours.state_dict())
    x = numbers(BATCH, INPUTS)
    with torch.no_grad():
        before = tensors(ours(x))[0]
        other = copied(ours)
        for parameter in other.parameters():
            parameter.mul_(2)
        assert not torch.equal(tensors(other(x))[0], before)
        assert torch.equal(tensors(ours(x))[0], before)
        ours.weight_ih.data.add_(0.5)
        assert not torch.equal(tensors(ours(x))[0], before)


# ---- what is refused ---------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "features": lambda kind: (numbers(BATCH, 7), in_form(states_of(kind, BATCH))),
    "axes": lambda kind: (numbers(STEPS, BATCH, INPUTS), None),
    "no axes": lambda kind: (torch.tensor(1.0), None),
    "features of the state": lambda kind: (
        numbers(BATCH, INPUTS),
        in_form([one[:, :-1] for one in states_of(kind, BATCH)]),
    ),
    "rows of the state": lambda kind: (numbers(BATCH, INPUTS), in_form(states_of(kind, BATCH + 1))),
    "axes of the state": lambda kind: (numbers(BATCH, INPUTS), in_form(states_of(kind, 1, BATCH))),
    "a state for one": lambda kind: (numbers(BATCH, INPUTS), in_form(states_of(kind))),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_shapes_are_refused_in_the_words_of_torch(kind: str, wrong: str):
    said = []
    for cell in cells(kind):
        with pytest.raises((RuntimeError, ValueError, IndexError)) as caught:
            cell(*WRONG[wrong](kind))
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


def test_a_nonlinearity_that_is_none_is_refused_in_the_words_of_torch():
    for package in (torch.nn, stepnet.torch):
        cell = package.RNNCell(INPUTS, HIDDEN, nonlinearity="sine")
        with pytest.raises(RuntimeError, match="Unknown nonlinearity: sine"):
            cell(torch.zeros(BATCH, INPUTS))


def test_other_and_mixed_dtypes_are_refused_by_name():
    cell = stepnet.torch.LSTMCell(INPUTS, HIDDEN)
    x, h = torch.zeros(BATCH, INPUTS), torch.zeros(BATCH, HIDDEN)
    with pytest.raises(InputError, match=r"^hx\[1\] of LSTMCell is torch.float64 on cpu, and weight_ih is"):
        cell(x, (h, h.double()))
    with pytest.raises(InputError, match=r"LSTMCell runs in float32, .* torch.float8"):
        cell.to(torch.float8_e4m3fn)(x.to(torch.float8_e4m3fn))
