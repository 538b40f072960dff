"""Layers and recurrences that keep the states of some steps alone: gradients, what is kept and refused."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.func import functional_call
from turns import in_turns

import stepnet.torch
from stepnet.errors import InputError
from stepnet.torch import ready
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

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("GRU", {}),
    "LSTM": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2, "batch_first": True}),
    "RNN": ("RNN", {"bias": False, "num_layers": 3, "dropout": 0.4}),
}
SIZES = (1, 4, "sqrt", 100)


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("form", "case"), in_turns(FORMS, CASES))
def test_gradients_are_those_that_all_values_give(form: str, case: str) -> None:
    made = Case(*CASES[case])
    ours = made.modules()[1]
    for states in ([], made.states(ours)):
        ours.checkpoint = None
        right = answers(ours, FORMS[form], states)
        for size in SIZES:
            ours.checkpoint = size
            assert_same(answers(ours, FORMS[form], states), right)


def test_gradients_of_inputs_and_states_have_the_same_bits() -> None:
    made = Case("LSTM", {"num_layers": 2}, torch.float32)
    ours = made.modules()[1]
    right = answers(ours, FORMS["packed"], made.states(ours))
    ours.checkpoint = 2
    found = answers(ours, FORMS["packed"], made.states(ours))
    for name in ("x", "state 0", "state 1", "result 0", "result 1"):
        assert torch.equal(found[name], right[name])


@pytest.mark.parametrize("case", ["GRU", "LSTM"])
def test_gradients_are_those_of_differences(case: str) -> None:
    module = Case(*CASES[case]).modules()[1]
    module.checkpoint = 2
    names, parameters = zip(*module.named_parameters(), strict=True)
    states = Case(*CASES[case]).states(module)

    def call(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, others[len(states) :], strict=True))
        return tuple(
            tensors(
                functional_call(
                    module, given, (FORMS["packed"](x, module), in_form([*others[: len(states)]]))
                )
            )
        )

    inputs = [numbers(STEPS, BATCH, INPUTS), *states, *parameters]
    inputs = [one.detach().clone().requires_grad_() for one in inputs]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    if case == "GRU":  # gradients of gradients keep everything
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_gradients_by_torch_func() -> None:
    module, x = stepnet.torch.GRU(INPUTS, HIDDEN), numbers(STEPS, BATCH, INPUTS).float()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return module(x)[0].square().sum()

    right = torch.func.grad(loss)(x)
    module.checkpoint = 2
    assert torch.equal(torch.func.grad(loss)(x), right)


class Counting(torch.nn.Module):
    """A cell whose state has a count of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(INPUTS, HIDDEN)

    def forward(self, x: Any, state: Any) -> Any:
        h, count = state
        h = self.cell(x, h) * torch.where(count[:, None] % 2 == 0, 1.0, 0.5)
        return h, (h, count + 1)


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("form", "reverse"), in_turns(FORMS, [False, True]))
def test_a_recurrence_with_a_count_in_its_state(form: str, reverse: bool) -> None:
    torch.manual_seed(0)
    state = torch.zeros(1, HIDDEN), torch.zeros(1, dtype=torch.int64)
    rnn = stepnet.torch.Recurrence(Counting(), (torch.zeros(1, INPUTS), state), reverse=reverse)
    x, found = numbers(STEPS, BATCH, INPUTS).float().requires_grad_(), list[Any]()
    for size in (None, *SIZES):
        rnn.checkpoint, x.grad = size, None
        rnn.zero_grad()
        outputs, (h, count) = rnn(FORMS[form](x, rnn))
        (tensors(outputs)[0].square().sum() + h.sum()).backward()
        found.append({"x": x.grad, "count": count} | {name: one.grad for name, one in rnn.named_parameters()})
    for one in found[1:]:
        assert torch.equal(one["x"], found[0]["x"])
        assert_same(one, found[0])


def test_statics_of_a_ready_recurrence() -> None:
    torch.manual_seed(0)
    rnn = ready.VariationalLSTM(INPUTS, HIDDEN, checkpoint=2)
    x, found = numbers(STEPS, BATCH, INPUTS).float(), list[dict[str, Any]]()
    for size in (2, None):
        rnn.checkpoint = size
        rnn.zero_grad()
        torch.manual_seed(1)
        rnn(x)[0].square().sum().backward()
        found.append({name: one.grad.clone() for name, one in rnn.named_parameters()})
    assert_same(*found)


def kept_by(module: Any, x: torch.Tensor) -> int:
    """The bytes that a forward pass keeps, besides its inputs and results."""
    kept: dict[int, torch.Tensor] = {}

    def pack(one: torch.Tensor) -> torch.Tensor:
        kept[one.data_ptr()] = one
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        outputs, last = module(x)
    outside = {one.data_ptr() for one in (x, *tensors([outputs, last]), *module.parameters())}
    return sum(one.nbytes for place, one in kept.items() if place not in outside)


def test_what_is_kept_is_the_states_of_each_piece() -> None:
    x = numbers(100, 2, INPUTS).float().requires_grad_()
    module = stepnet.torch.LSTM(INPUTS, HIDDEN, checkpoint="sqrt")
    assert kept_by(module, x) == 9 * 2 * 2 * HIDDEN * 4
    module.checkpoint = 30
    assert kept_by(module, x) == 3 * 2 * 2 * HIDDEN * 4
    module.checkpoint = None
    # In one tensor, some cache lines apart.
    assert kept_by(module, x) == 7 * (100 * 2 * HIDDEN * 4 + 9 * 64)


# ---- the attribute -----------------------------------------------------------------------------------------


def test_copies_have_it() -> None:
    state = torch.zeros(1, HIDDEN)
    for module in (
        stepnet.torch.GRU(INPUTS, HIDDEN, checkpoint=3),
        stepnet.torch.Recurrence(
            torch.nn.GRUCell(INPUTS, HIDDEN), (torch.zeros(1, INPUTS), state), checkpoint=3
        ),
    ):
        assert copy.deepcopy(module).checkpoint == 3
        assert pickle.loads(pickle.dumps(module)).checkpoint == 3
        assert "checkpoint" not in module.state_dict()


def test_accelerated_layers_have_none_until_it_is_set() -> None:
    model: Any = torch.nn.Sequential(torch.nn.GRU(INPUTS, HIDDEN))
    done = stepnet.torch.accelerate(model)
    assert model[0].checkpoint is None
    model[0].checkpoint = "sqrt"
    model(numbers(STEPS, BATCH, INPUTS).float())[0].sum().backward()
    done.undo()
    model(numbers(STEPS, BATCH, INPUTS).float())[0].sum().backward()


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.5, "log", True])
def test_what_no_checkpoint_is(value: Any) -> None:
    message = f"checkpoint is None, 'sqrt' or how many steps .*, not {value!r}"
    example = torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN)
    with pytest.raises(InputError, match=message):
        stepnet.torch.LSTM(INPUTS, HIDDEN, checkpoint=value)
    with pytest.raises(InputError, match=message):
        stepnet.torch.Recurrence(torch.nn.GRUCell(INPUTS, HIDDEN), example, checkpoint=value)
    module = stepnet.torch.GRU(INPUTS, HIDDEN)
    module.checkpoint = value
    with pytest.raises(InputError, match=message):
        module(numbers(STEPS, BATCH, INPUTS).float())


@pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself
@pytest.mark.parametrize("made", ["layer", "recurrence"])
def test_a_graph_has_none(made: str) -> None:
    module: Any = stepnet.torch.GRU(INPUTS, HIDDEN, checkpoint=2)
    if made == "recurrence":
        example = torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN)
        module = stepnet.torch.Recurrence(torch.nn.GRUCell(INPUTS, HIDDEN), example, checkpoint=2)
    torch.compiler.reset()
    x = numbers(STEPS, BATCH, INPUTS).float()
    with torch._dynamo.config.patch(allow_rnn=True):
        with pytest.raises(Exception, match="recurrences cannot use checkpoint="):
            torch.compile(module, backend="eager", fullgraph=True)(x)
        module.checkpoint = None
        torch.compile(module, backend="eager", fullgraph=True)(x)
