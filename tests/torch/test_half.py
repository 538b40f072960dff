"""Modules of `stepnet.torch` in bfloat16 and float16: stored so, and computed in float32."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import tolerance

import stepnet as sn
import stepnet.torch
from tests.torch.layer_cases import BATCH, HIDDEN, INPUTS, STEPS, numbers

pytestmark = pytest.mark.filterwarnings(  # those of torch about itself
    "ignore:.*_flat_weights:UserWarning",
    "ignore:LSTM with projections:UserWarning",
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning",
)
HALVES = torch.bfloat16, torch.float16
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gru": ("GRU", {}),
    "lstm": ("LSTM", {"batch_first": True}),
    "rnn": ("RNN", {"nonlinearity": "relu"}),
    "both directions": ("GRU", {"bidirectional": True}),
    "projected": ("LSTM", {"proj_size": 2}),
    "without biases": ("LSTM", {"bias": False}),
}


def pair(name: str, options: dict[str, Any], dtype: Any) -> tuple[Any, Any]:
    """A layer in half precision, and torch.nn's in float32 with the same weights."""
    torch.manual_seed(0)
    ours = getattr(stepnet.torch, name)(INPUTS, HIDDEN, **options).to(dtype)
    theirs = getattr(torch.nn, name)(INPUTS, HIDDEN, **options)
    theirs.load_state_dict({key: value.float() for key, value in ours.state_dict().items()})
    return ours, theirs


def flat(results: Any) -> list[Any]:
    outputs, last = results
    return [outputs, *(last if isinstance(last, tuple) else (last,))]


def assert_rounded(ours: Any, theirs: Any, dtype: Any, width: int = HIDDEN) -> None:
    """Checks numbers in half precision against float32: they differ by its error and one rounding."""
    assert ours.dtype == dtype
    exact = theirs.detach().double()
    most = tolerance("float32", STEPS, width) + torch.finfo(dtype).eps / 2
    assert ((ours.detach().double() - exact).abs() <= most * exact.abs().clamp(min=1)).all()


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("grad", [False, True], ids=["without gradients", "with gradients"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_computed_in_float32(name: str, dtype: Any, grad: bool):
    ours, theirs = pair(*LAYERS[name], dtype)
    x = numbers(STEPS, BATCH, INPUTS).to(dtype)
    with torch.set_grad_enabled(grad):
        for _ in range(3):  # calls are prepared at the second
            for own, other in zip(flat(ours(x)), flat(theirs(x.float())), strict=True):
                assert_rounded(own, other, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("form", ["packed", "jagged"])
def test_ragged_sequences(form: str, dtype: Any):
    ours, theirs = pair("LSTM", {"batch_first": True}, dtype)
    sequences = [numbers(steps, INPUTS).to(dtype) for steps in (5, 2, 4)]
    if form == "packed":
        x = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    else:
        x = torch.nested.nested_tensor(sequences, layout=torch.jagged)
    outputs, (h, c) = ours(x)
    for number, sequence in enumerate(sequences):
        _, (last, cell) = theirs(sequence.float())
        assert_rounded(h[:, number], last, dtype)
        assert_rounded(c[:, number], cell, dtype)
    assert (outputs.data if form == "packed" else outputs.values()).dtype == dtype


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_states_go_in_and_out(dtype: Any):
    ours, theirs = pair("GRU", {"num_layers": 2}, dtype)
    x, h = numbers(STEPS, BATCH, INPUTS).to(dtype), numbers(2, BATCH, HIDDEN).to(dtype)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            outputs, last = ours(x, h)
        expected, final = theirs(x.float(), h.float())
        # The second layer reads rounded outputs of the first.
        for own, other in ((outputs, expected), (last, final)):
            assert own.dtype == dtype
            assert ((own.float() - other).abs() <= tolerance(str(dtype).partition(".")[2], STEPS)).all()


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["gru", "lstm", "both directions"])
def test_gradients_are_rounded_once(name: str, dtype: Any):
    ours, theirs = pair(*LAYERS[name], dtype)
    x = numbers(STEPS, BATCH, INPUTS).to(dtype)
    own, other = x.clone().requires_grad_(), x.float().requires_grad_()
    weight = numbers(*ours(x)[0].shape).to(dtype)
    (ours(own)[0] * weight).float().sum().backward()
    (theirs(other)[0] * weight.float()).sum().backward()
    # The product with `weight` is rounded by PyTorch, its cotangent is exact.
    pairs = zip([own, *ours.parameters()], [other, *theirs.parameters()], strict=True)
    for mine, known in pairs:
        assert_rounded(mine.grad, known.grad, dtype, STEPS * BATCH * HIDDEN)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "RNNCell"])
def test_cells(name: str, dtype: Any):
    torch.manual_seed(0)
    ours, theirs = (
        getattr(stepnet.torch, name)(INPUTS, HIDDEN).to(dtype),
        getattr(torch.nn, name)(INPUTS, HIDDEN),
    )
    theirs.load_state_dict({key: value.float() for key, value in ours.state_dict().items()})
    x, h = numbers(BATCH, INPUTS).to(dtype), numbers(BATCH, HIDDEN).to(dtype)
    states = (h, -h) if name == "LSTMCell" else h
    wide = (h.float(), -h.float()) if name == "LSTMCell" else h.float()
    for own, other in zip(
        torch.stack([*ours(x, states)]), torch.stack([*theirs(x.float(), wide)]), strict=True
    ):
        assert_rounded(own, other, dtype)


def decayed(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    h = torch.tanh(x @ params["W"] + h * params["decay"])
    return h, h


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", ["cell", "function"])
def test_a_recurrence_of_ones_own(kind: str, dtype: Any):
    torch.manual_seed(0)
    x, h = numbers(STEPS, BATCH, INPUTS).float(), numbers(BATCH, HIDDEN).float()
    if kind == "cell":
        step, example = torch.nn.GRUCell(INPUTS, HIDDEN), (x[0], h)
    else:
        params = {"W": numbers(INPUTS, HIDDEN).float(), "decay": numbers(HIDDEN).float()}
        step, example = decayed, (x[0], h, params)
    module = stepnet.torch.Recurrence(step, example).to(dtype)
    wide = copy.deepcopy(module).float()
    x, h = x.to(dtype), h.to(dtype)
    with torch.no_grad():
        expected = wide(x.float(), h.float())
    outputs, last = module(x, h)
    with torch.no_grad():
        again = module(x, h)
    for own, other, third in zip((outputs, last), expected, again, strict=True):
        assert torch.equal(own, other.to(dtype))
        assert torch.equal(own, third)
    outputs.float().sum().backward()
    wide(x.float(), h.float())[0].sum().backward()
    for own, other in zip(module.parameters(), wide.parameters(), strict=True):
        assert_rounded(own.grad, other.grad, dtype, STEPS * BATCH)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_scan(dtype: Any):
    rnn = sn.RNN(lambda x, h, p: (y := np.tanh(x * p + h), y), numbers(INPUTS).numpy(), memory=INPUTS)
    module = stepnet.torch.Scan(rnn)
    x = numbers(BATCH, STEPS, INPUTS)
    module, wide = module.to(dtype), copy.deepcopy(module)
    wide.load_state_dict({key: value.float() for key, value in module.state_dict().items()})
    x = x.to(dtype)
    for own, other in zip(module(x), wide(x.float()), strict=True):
        assert torch.equal(own, other.to(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_models_may_become_half_before_and_after(dtype: Any):
    torch.manual_seed(0)
    before = torch.nn.Sequential(torch.nn.GRU(INPUTS, HIDDEN, batch_first=True)).to(dtype)
    after = torch.nn.Sequential(torch.nn.GRU(INPUTS, HIDDEN, batch_first=True))
    after.load_state_dict({key: value.float() for key, value in before.state_dict().items()})
    assert list(stepnet.torch.accelerate(before).replaced) == ["0"]
    stepnet.torch.accelerate(after)
    x = numbers(BATCH, STEPS, INPUTS)
    wide = after(x.to(dtype).float())[0]
    after.to(dtype)
    for model in (before, after):
        assert torch.equal(model(x.to(dtype))[0], wide.to(dtype))


def test_changed_weights_are_seen():
    module = stepnet.torch.GRU(INPUTS, HIDDEN).bfloat16()
    x = numbers(STEPS, BATCH, INPUTS).bfloat16()
    with torch.no_grad():
        first = module(x)[0]
        assert torch.equal(module(x)[0], first)
        module.weight_hh_l0.mul_(2)
        assert not torch.equal(module(x)[0], first)
        module.weight_hh_l0.div_(2)
        assert torch.equal(module(x)[0], first)


def test_mixed_halves_are_refused_in_the_words_of_torch():
    module = stepnet.torch.GRU(INPUTS, HIDDEN).bfloat16()
    with pytest.raises(ValueError, match=r"torch.float16\) does not match weight dtype \(torch.bfloat16"):
        module(numbers(STEPS, BATCH, INPUTS).half())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_graph_of_torch_has_the_same_numbers(dtype: Any):
    module = stepnet.torch.GRU(INPUTS, HIDDEN).to(dtype)
    x, h = numbers(STEPS, BATCH, INPUTS).to(dtype), numbers(1, BATCH, HIDDEN).to(dtype)
    program = torch.export.export(module, (x, h))
    for own, other in zip(program.module()(x, h), module(x, h), strict=True):
        assert own.dtype == dtype
        assert torch.equal(own, other)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_graph_of_a_module_rounds_its_result_once(dtype: Any):
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Embedding(9, INPUTS), torch.nn.LayerNorm(INPUTS), torch.nn.Linear(INPUTS, 2)
    ).to(dtype)
    ids = torch.arange(8).reshape(2, 4)
    result = stepnet.torch.graph(module, ids)(ids.numpy())
    with torch.no_grad():
        exact = module.float()(ids)
    assert_rounded(torch.from_numpy(result.astype("f4")).to(dtype), exact, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_transforms_of_torch_func(dtype: Any):
    ours, theirs = pair("GRU", {}, dtype)
    x, direction = numbers(STEPS, BATCH, INPUTS).to(dtype), numbers(STEPS, BATCH, INPUTS).flip(0).to(dtype)
    values = torch.func.jvp(lambda x: ours(x)[0], (x,), (direction,))
    exact = torch.func.jvp(lambda x: theirs(x)[0], (x.float(),), (direction.float(),))
    for own, other in zip(values, exact, strict=True):
        assert_rounded(own, other, dtype)
    assert_rounded(
        torch.func.grad(lambda x: ours(x)[0].float().sum())(x),
        torch.func.grad(lambda x: theirs(x)[0].sum())(x.float()),
        dtype,
    )
