"""`stepnet.torch.GRU`, `LSTM` and `RNN` give what those of torch.nn give, and the same gradients."""

from typing import Any

import pytest
import torch
from pairs import pairwise
from torch.nn.utils.rnn import pad_packed_sequence
from turns import in_turns

import stepnet.torch
from stepnet.errors import InputError
from tests.torch.layer_cases import (
    BATCH,
    FORMS,
    HIDDEN,
    INPUTS,
    LENGTHS,
    OPTIONS,
    STEPS,
    Case,
    answers,
    assert_same,
    in_form,
    numbers,
    packed,
    tensors,
)

NAMES = ("GRU", "LSTM", "RNN")
pytestmark = [  # what torch warns of itself
    pytest.mark.filterwarnings("ignore:dropout option adds dropout"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


def title(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value.values()))


@pytest.mark.long(every=len(FORMS))
@pytest.mark.parametrize(("options", "form"), in_turns(pairwise(OPTIONS), FORMS), ids=title)
def test_results_and_gradients_are_those_of_torch(options: dict[str, Any], form: str):
    options = dict(options)
    (name, further), dtype, with_states = (options.pop(one) for one in ("kind", "dtype", "states"))
    case = Case(name, options | further, dtype)
    theirs, ours = case.modules()
    states = case.states(theirs) if with_states else []
    assert_same(answers(ours, FORMS[form], states), answers(theirs, FORMS[form], states))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_without_gradients_results_are_those_of_torch(name: str, form: str):
    case = Case(name, {"num_layers": 2, "bidirectional": True, "batch_first": True})
    theirs, ours = case.modules()
    x, states = numbers(STEPS, BATCH, INPUTS), in_form(case.states(theirs))
    with torch.no_grad():
        right = tensors(theirs(FORMS[form](x, theirs), states))
    for context in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.no_grad):
        with context():
            found = tensors(ours(FORMS[form](x, ours), states))
        assert not any(one.requires_grad for one in found)
        assert_same(dict(enumerate(found)), dict(enumerate(right)))  # type: ignore[arg-type]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_without_a_batch(name: str, batch_first: bool):
    case = Case(name, {"num_layers": 2, "batch_first": batch_first})
    theirs, ours = case.modules()
    states = case.states(theirs, None)
    right = answers(theirs, lambda x, _: x[:, 0], states)
    assert right["result 0"].shape == (STEPS, HIDDEN)
    assert_same(answers(ours, lambda x, _: x[:, 0], states), right)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_nested_tensors(name: str, holes: bool):
    case = Case(name, {"num_layers": 2, "bidirectional": True})
    theirs, ours = case.modules()
    x, states = numbers(STEPS, BATCH, INPUTS), case.states(theirs)
    results, last = theirs(packed(x, theirs), in_form(states))
    rows = pad_packed_sequence(results, batch_first=True)[0]
    rows = [row[:length] for row, length in zip(rows, LENGTHS, strict=True)]
    if holes:
        values = x.transpose(0, 1).reshape(-1, INPUTS).clone().requires_grad_()
        bounds = torch.arange(0, BATCH * STEPS + 1, STEPS)
        given = torch.nested.nested_tensor_from_jagged(values, bounds, torch.tensor(LENGTHS))
    else:
        parts = [x[:length, row].clone() for row, length in enumerate(LENGTHS)]
        given = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    outputs, found = ours(given, in_form(states))
    assert outputs.is_nested
    assert outputs.layout == torch.jagged
    assert_same(dict(enumerate(outputs.unbind())), dict(enumerate(rows)))  # type: ignore[arg-type]
    assert_same(dict(enumerate(tensors(found))), dict(enumerate(tensors(last))))  # type: ignore[arg-type]
    module_gradients = []
    for module, loss in ((theirs, results.data.sum()), (ours, outputs.values().sum())):
        loss.backward()
        module_gradients.append({n: p.grad for n, p in module.named_parameters()})
    assert_same(module_gradients[1], module_gradients[0])


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_no_sequences(name: str):
    case = Case(name, {"num_layers": 2, "bidirectional": True})
    _, ours = case.modules()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            outputs, last = ours(numbers(STEPS, 0, INPUTS))
            assert outputs.shape == (STEPS, 0, 2 * HIDDEN)
            assert {one.shape for one in tensors(last)} == {(4, 0, HIDDEN)}
    outputs, last = ours(numbers(STEPS, 0, INPUTS).requires_grad_())
    outputs.sum().backward()
    assert all(not one.grad.any() for one in ours.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_state_passed_on_is_the_whole_sequence(name: str):
    """Truncated backpropagation: values go on, gradients do not."""
    case = Case(name, {"num_layers": 2})
    found = []
    for module in case.modules():
        x, states, losses = numbers(STEPS, BATCH, INPUTS), None, []
        outputs: Any = None
        for piece in x.split(2):
            outputs, states = module(piece, states)
            states = tuple(one.detach() for one in states) if name == "LSTM" else states.detach()
            losses.append(outputs.square().sum())
        sum(losses).backward()  # type: ignore[union-attr]
        found.append({n: p.grad for n, p in module.named_parameters()} | {"last": outputs})
    assert_same(found[1], found[0])


def test_zero_copy_in_and_out():
    """Contiguous inputs are not copied: what runs reads their memory, which a view in NumPy shows."""
    from stepnet.torch.arrays import array_of, tensor_of

    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(3, 2, dtype=dtype)
        assert array_of(x).ctypes.data == x.data_ptr()
        assert tensor_of(array_of(x)).data_ptr() == x.data_ptr()


# ---- what is refused ---------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "features": lambda case, module: (numbers(STEPS, BATCH, 7), None),
    "axes": lambda case, module: (numbers(2, STEPS, BATCH, INPUTS), None),
    "dtype": lambda case, module: (numbers(STEPS, BATCH, INPUTS, dtype=torch.float32), None),
    "rows of the state": lambda case, module: (
        numbers(STEPS, BATCH, INPUTS),
        in_form(case.states(module, BATCH + 1)),
    ),
    "axes of the state": lambda case, module: (
        numbers(STEPS, BATCH, INPUTS),
        in_form(case.states(module, None)),
    ),
    "a state for one": lambda case, module: (numbers(STEPS, INPUTS), in_form(case.states(module))),
}


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("calls", [0, 3], ids=["first", "prepared"])
def test_wrong_shapes_are_refused_in_the_words_of_torch(calls: int, name: str, wrong: str):
    case = Case(name)
    said = []
    for module in case.modules():
        x, states = WRONG[wrong](case, module)
        with torch.set_grad_enabled(not calls):
            for _ in range(calls):
                module(numbers(STEPS, BATCH, INPUTS), in_form(case.states(module)))
            with pytest.raises((RuntimeError, ValueError)) as caught:
                module(x, states)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


def test_other_dtypes_are_refused():
    module = stepnet.torch.GRU(INPUTS, HIDDEN).to(torch.float8_e4m3fn)
    with pytest.raises(InputError, match=r"GRU runs in float32, .* torch.float8_e4m3fn: .*\.float\(\)"):
        module(torch.zeros(STEPS, BATCH, INPUTS).to(torch.float8_e4m3fn))


def test_mixed_dtypes_are_refused_by_name():
    module = stepnet.torch.LSTM(INPUTS, HIDDEN)
    x = torch.zeros(STEPS, BATCH, INPUTS)
    with pytest.raises(InputError, match=r"^hx\[1\] of LSTM is torch.float64 on cpu, and weight_ih_l0 is"):
        module(x, (torch.zeros(1, BATCH, HIDDEN), torch.zeros(1, BATCH, HIDDEN).double()))
    module.bias_hh_l0.data = module.bias_hh_l0.data.double()
    with pytest.raises(InputError, match=r"^bias_hh_l0 of LSTM is torch.float64 on cpu"):
        module(x)


def test_a_damaged_packed_sequence_is_refused():
    module = stepnet.torch.GRU(INPUTS, HIDDEN)
    given = torch.nn.utils.rnn.PackedSequence(torch.zeros(3, INPUTS), torch.tensor([1, 2]))
    with pytest.raises(InputError, match="batch_sizes must be positive, never rise"):
        module(given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_other_nested_tensors_are_refused():
    module = stepnet.torch.GRU(INPUTS, HIDDEN)
    strided = torch.nested.nested_tensor([torch.zeros(2, INPUTS)])
    with pytest.raises(InputError, match=r"layout=torch\.jagged"):
        module(strided)
