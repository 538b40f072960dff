"""`stepnet.torch.Recurrence` gives what its step gives in a loop, and the same gradients."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_packed_sequence

import stepnet.torch
from stepnet.errors import InputError, StepError
from tests.torch.layer_cases import (
    BATCH,
    FORMS,
    HIDDEN,
    INPUTS,
    LENGTHS,
    STEPS,
    assert_same,
    numbers,
    packed,
    tensors,
)


class Normed(torch.nn.Module):
    """A cell with layer normalisation, a buffer, and statics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(INPUTS, HIDDEN)
        self.outer = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.norm = torch.nn.LayerNorm(HIDDEN, eps=0.1)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor, state: Any, statics: torch.Tensor) -> Any:
        h, c = state
        c = c * self.scale + torch.tanh(self.norm(self.inner(x) + self.outer(h * statics)))
        h = torch.tanh(c)
        return h + c, (h, c)


EXAMPLE = torch.zeros(1, INPUTS), (torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN))


def normed(**options: Any) -> stepnet.torch.Recurrence:
    torch.manual_seed(3)
    module = stepnet.torch.Recurrence(Normed(), EXAMPLE, statics=torch.zeros(1, HIDDEN), **options)
    return module.double()


def looped(cell: Any, x: torch.Tensor, state: Any, statics: torch.Tensor) -> Any:
    """A cell called step by step, over [time, batch, features]."""
    outputs = []
    for one in x:
        output, state = cell(one, state, statics)
        outputs.append(output)
    return torch.stack(outputs), state


def given() -> tuple[torch.Tensor, Any, torch.Tensor]:
    """Sequences, a state and statics that require gradients."""
    state = tuple(numbers(BATCH, HIDDEN, dtype=torch.float64).mul(k).requires_grad_() for k in (1, 2))
    return numbers(STEPS, BATCH, INPUTS).requires_grad_(), state, numbers(BATCH, HIDDEN).requires_grad_()


def gradients(results: list[torch.Tensor], x: Any, state: Any, statics: Any, cell: Any) -> dict[str, Any]:
    weights = [numbers(*one.shape) for one in results]
    cell.zero_grad()
    sum((a * b).sum() for a, b in zip(results, weights, strict=True)).backward()  # type: ignore[union-attr]
    found = {f"result {place}": one for place, one in enumerate(results)}
    found |= {"x": x.grad, "statics": statics.grad, "h": state[0].grad, "c": state[1].grad}
    return found | {name: one.grad for name, one in cell.named_parameters()}


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_cell_gives_what_it_gives_in_a_loop(batch_first: bool):
    module = normed(batch_first=batch_first)
    x, states, statics = given()
    right = gradients(tensors(looped(module.cell, x, states, statics)), x, states, statics, module.cell)
    x, states, statics = given()
    outputs, last = module(x.transpose(0, 1) if batch_first else x, states, statics)
    outputs = outputs.transpose(0, 1) if batch_first else outputs
    assert_same(gradients([outputs, *last], x, states, statics, module.cell), right)
    with torch.no_grad():
        for _ in range(3):
            plain, _ = module(x.transpose(0, 1) if batch_first else x, states, statics)
            assert_same({"": plain.transpose(0, 1) if batch_first else plain}, {"": right["result 0"]})


def test_packed_sequences_have_states_and_statics_in_the_order_of_the_caller():
    module = normed()
    x, state, statics = given()
    outputs, last = module(packed(x, module), state, statics)
    rows = pad_packed_sequence(outputs)[0]
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        right, final = looped(module.cell, x[:length, one], tuple(s[one] for s in state), statics[one])
        assert_same({"": rows[:length, one]}, {"": right})
        assert_same(dict(enumerate(s[one] for s in last)), dict(enumerate(final)))  # type: ignore[arg-type]


class Attending(torch.nn.Module):
    """A cell that attends to statics [rows, keys, features] of any number of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.mixed = torch.nn.Linear(HIDDEN, 2), torch.nn.Linear(INPUTS + 2, HIDDEN)

    def forward(self, x: torch.Tensor, h: torch.Tensor, statics: torch.Tensor) -> Any:
        weights = torch.einsum("bd,bkd->bk", self.query(h), statics).softmax(-1)
        h = torch.tanh(h + self.mixed(torch.cat([x, torch.einsum("bk,bkd->bd", weights, statics)], -1)))
        return h, h


@pytest.mark.parametrize("way", ["call", "grad of torch.func", "vmap"])
def test_statics_may_have_other_sizes_than_in_the_example(way: str) -> None:
    cell = Attending().double()
    example = torch.zeros(1, INPUTS).double(), torch.zeros(1, HIDDEN).double()
    module = stepnet.torch.Recurrence(cell, example, statics=torch.zeros(1, 6, 2).double())
    x, keys, h = numbers(STEPS, BATCH, INPUTS), numbers(BATCH, 9, 2), torch.zeros(BATCH, HIDDEN).double()
    right = looped(cell, x, h, keys)[0]
    gradients = torch.autograd.grad(right.square().sum(), list(cell.parameters()))
    if way == "vmap":
        made = torch.vmap(lambda each: module(x, statics=each)[0])(keys[None])[0]
        assert_same({"": made}, {"": right})
    elif way == "call":
        assert_same({"": module(x, statics=keys)[0]}, {"": right})
        made = torch.autograd.grad(module(x, statics=keys)[0].square().sum(), list(module.parameters()))
        assert_same(dict(enumerate(made)), dict(enumerate(gradients)))  # type: ignore[arg-type]
    else:

        def loss(params: Any) -> Any:
            outputs, _ = torch.func.functional_call(module, params, (x,), {"statics": keys})
            return outputs.square().sum()

        made = torch.func.grad(loss)({name: one.detach() for name, one in module.named_parameters()})
        assert_same(dict(enumerate(made.values())), dict(enumerate(gradients)))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sequence_alone_has_no_axis_of_the_batch(batch_first: bool) -> None:
    module = normed(batch_first=batch_first)
    x, state, statics = given()
    right, final = looped(module.cell, x[:, :1], tuple(one[:1] for one in state), statics[:1])
    outputs, last = module(x[:, 0], tuple(one[0] for one in state), statics[0])
    assert_same({"": outputs}, {"": right[:, 0]})
    assert_same(dict(enumerate(last)), {place: one[0] for place, one in enumerate(final)})  # type: ignore[arg-type]
    mapped = torch.vmap(lambda *given: module(given[0], given[1:3], given[3])[0], (1, 0, 0, 0), 1)
    assert_same({"": mapped(x, *state, statics)}, {"": looped(module.cell, x, state, statics)[0]})


def step(x: Any, h: Any, params: Any) -> Any:
    h = torch.tanh(x @ params["W"] + h @ params["R"])
    return h, h


def function(reverse: bool = False) -> stepnet.torch.Recurrence:
    params = {"W": numbers(INPUTS, HIDDEN), "R": numbers(HIDDEN, HIDDEN)}
    example = torch.zeros(1, INPUTS).double(), torch.zeros(1, HIDDEN).double(), params
    return stepnet.torch.Recurrence(step, example, reverse=reverse)


def test_a_function_has_parameters_of_its_own():
    module: Any = function(reverse=True)
    assert list(module.state_dict()) == ["params.R", "params.W"]
    theirs: Any = torch.nn.RNN(INPUTS, HIDDEN, bias=False, bidirectional=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_ih_l0_reverse.copy_(module.params["W"].T)
        theirs.weight_hh_l0_reverse.copy_(module.params["R"].T)
    for form in ("padded", "packed", "strided"):
        theirs.zero_grad()
        module.zero_grad()
        x = FORMS[form](numbers(STEPS, BATCH, INPUTS), theirs)
        right = tensors(theirs(x)[0])[0][..., HIDDEN:]
        found = tensors(module(x)[0])[0]
        right.square().sum().backward()
        found.square().sum().backward()
        assert_same(
            {"y": found, "W": module.params["W"].grad, "R": module.params["R"].grad},
            {"y": right, "W": theirs.weight_ih_l0_reverse.grad.T, "R": theirs.weight_hh_l0_reverse.grad.T},
        )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_modules_of_their_own(copied: Any):
    for module, others in ((function(), ()), (normed(), given()[1:])):
        x = numbers(STEPS, BATCH, INPUTS)
        with torch.no_grad():
            before = module(x, *others)[0]
            other = copied(module)
            assert torch.equal(other(x, *others)[0], before)
            for parameter in other.parameters():
                parameter.mul_(2)
            assert not torch.equal(other(x, *others)[0], before)
            assert torch.equal(module(x, *others)[0], before)


def test_gradients_of_gradients():
    module = function()
    x = numbers(2, 2, INPUTS).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: module(x)[0], (x,), fast_mode=True)


# ---- what is refused ---------------------------------------------------------------------------------------


def test_what_requires_a_gradient_outside_is_refused_by_name():
    extra = torch.nn.Parameter(torch.ones(HIDDEN))

    def uses(x: Any, h: Any, params: Any) -> Any:
        h = torch.tanh(x @ params["W"] + h * extra)
        return h, h

    example = torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN), {"W": torch.zeros(INPUTS, HIDDEN)}
    with pytest.raises(InputError, match="the step uses extra, which requires a gradient"):
        stepnet.torch.Recurrence(uses, example)
    extra.requires_grad_(False)
    assert stepnet.torch.Recurrence(uses, example)(torch.ones(2, 1, INPUTS))[0].shape == (2, 1, HIDDEN)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((numbers(STEPS, BATCH, 7),), r"it should be torch.float64\[6, 5, 3\]"),
        ((numbers(STEPS, BATCH, INPUTS, dtype=torch.float32),), r"is torch.float32\[6, 5, 3\]; it should be"),
        ((numbers(STEPS, BATCH, INPUTS).bfloat16(),), r"is torch.bfloat16\[6, 5, 3\]; it should be"),
        (
            (numbers(STEPS, BATCH, INPUTS), numbers(BATCH, HIDDEN).bfloat16()),
            r"is torch.bfloat16\[5, 4\]; it should be",
        ),
        ((numbers(STEPS, BATCH, INPUTS), numbers(BATCH + 2, HIDDEN)), r"\[7, 4\]; it should be .*\[5, 4\]"),
        (
            (numbers(STEPS, BATCH, INPUTS), numbers(STEPS, HIDDEN)),
            r"^state has 6 rows, .* by batch_first=False of this Recurrence: .*=True for",
        ),
        (
            (numbers(STEPS, BATCH, INPUTS), (numbers(BATCH, HIDDEN),) * 2),
            r"state= is \(array, array\); in the example it is array",
        ),
        ((numbers(STEPS, BATCH, INPUTS), None, numbers(BATCH, 1)), "statics= is"),
    ],
)
def test_wrong_tensors_are_refused(arguments: Any, said: str):
    for gradients_ in (True, False):
        with torch.set_grad_enabled(gradients_):
            module = function()
            for _ in range(3):  # without gradients the form is then prepared
                module(numbers(STEPS, BATCH, INPUTS), numbers(BATCH, HIDDEN))
            with pytest.raises(InputError, match=said):
                module(*arguments)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (({"a": torch.zeros(1, 3)}, torch.zeros(1, 4), None), "the input of a Recurrence is one tensor"),
        ((torch.zeros(1, 3), torch.zeros(1, 4), [torch.zeros(4)]), "a dict of tensors, not a list"),
    ],
)
def test_wrong_examples_are_refused(example: Any, said: str):
    with pytest.raises(InputError, match=said):
        stepnet.torch.Recurrence(lambda x, h, p: (h, h), example)


class Branching(torch.nn.Module):
    """A cell whose Python asks for a number that is not there when it is traced."""

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return h + x
        return h


def test_a_branch_on_numbers_is_refused_with_its_line():
    with pytest.raises(StepError, match=r"test_torch_recurrence\.py:\d+") as caught:
        stepnet.torch.Recurrence(Branching(), (torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN)))
    assert "if x.sum() > 0:" in str(caught.value)


def test_parameters_of_mixed_dtypes_are_refused_by_name():
    module: Any = function()
    module.params["R"].data = module.params["R"].data.float()
    with pytest.raises((InputError, StepError), match=r"float32"):
        module(numbers(STEPS, BATCH, INPUTS))


def test_a_state_dict_of_another_size_is_refused_in_the_words_of_torch():
    other = {"params.W": torch.zeros(INPUTS, HIDDEN + 1), "params.R": torch.zeros(HIDDEN, HIDDEN)}
    with pytest.raises(RuntimeError, match=r"size mismatch for params\.W: copying a param with shape"):
        function().load_state_dict(other)


@pytest.mark.parametrize("place", ["W", "x"])
def test_what_is_saved_and_changed_is_refused(place: str):
    module: Any = function()
    x = numbers(STEPS, BATCH, INPUTS).requires_grad_()
    outputs, _ = module(x)
    with torch.no_grad():
        (x if place == "x" else module.params["W"]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_a_freed_graph_is_refused_and_nan_is_passed_on():
    module: Any = function()
    outputs, _ = module(numbers(STEPS, BATCH, INPUTS))
    outputs.backward(torch.full_like(outputs, float("nan")))
    assert module.params["W"].grad.isnan().all()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        outputs.backward(torch.ones_like(outputs))


def test_cotangents_that_are_none_expanded_or_not_contiguous():
    state = numbers(BATCH, HIDDEN), numbers(BATCH, HIDDEN) * 2
    for loss in (
        lambda y, last: last[1].sum(),
        lambda y, last: y.sum(),
        lambda y, last: (y.transpose(0, 2) * numbers(HIDDEN, BATCH, STEPS)).sum() + last[0][:, ::2].sum(),
    ):
        module, found = normed(), []
        for run in (module, lambda *given: looped(module.cell, *given)):  # noqa: B023 - called in this round
            module.zero_grad()
            loss(*run(numbers(STEPS, BATCH, INPUTS), state, numbers(BATCH, HIDDEN))).backward()
            found.append({n: p.grad for n, p in module.named_parameters() if p.grad is not None})
        for name, one in found[1].items():
            assert_same({name: found[0][name]}, {name: one})


def test_batches_of_none_and_sequences_of_no_steps():
    module: Any = function()
    state = numbers(BATCH, HIDDEN).requires_grad_()
    outputs, last = module(numbers(0, BATCH, INPUTS), state)
    assert outputs.shape == (0, BATCH, HIDDEN)
    assert torch.equal(last, state)
    last.sum().backward()
    assert state.grad is not None
    assert (state.grad == 1).all()
    assert not module.params["W"].grad.any()
    outputs, last = module(numbers(STEPS, 0, INPUTS))
    assert outputs.shape == (STEPS, 0, HIDDEN)
    assert last.shape == (0, HIDDEN)


def test_modes_are_traced_once_each():
    """Going from training to testing and back makes nothing anew."""
    module = normed()
    ready = {mode: module.train(mode).enter() for mode in (True, False)}
    for mode in (True, False, True):
        assert module.train(mode).enter() is ready[mode]
    assert ready[True] is not ready[False]


def test_a_module_goes_through_dtypes_and_devices_that_it_does_not_run_with():
    module: Any = function()
    x = numbers(STEPS, BATCH, INPUTS)
    before = module(x)[0]
    saved = copy.deepcopy(module.state_dict())
    module.to(torch.float8_e4m3fn).train()
    said = r"a Recurrence cannot run: its parameters are torch\.float8_e4m3fn: only float32, .* \.float\(\)$"
    with pytest.raises(InputError, match=said):
        module(x.to(torch.float8_e4m3fn))
    module.to("meta").eval()
    module.to_empty(device="cpu").double().load_state_dict(saved)
    assert_same({"": module(x)[0]}, {"": before})


def test_threads_make_recurrences_at_once():
    """PyTorch records a function for the whole process: one thread after another may."""
    example = torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN)
    known = stepnet.torch.Recurrence(torch.nn.GRUCell(INPUTS, HIDDEN), example)
    x, before = torch.randn(STEPS, BATCH, INPUTS), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            made = [*pool.map(lambda _: copy.deepcopy(known)(x)[0], range(4))]
    finally:
        sys.setswitchinterval(before)
    for outputs in made:
        torch.testing.assert_close(outputs, known(x)[0], atol=0, rtol=0)
