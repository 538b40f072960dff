"""The recurrences of `stepnet.torch.ready` give what their equations give in a loop of torch, and the same
gradients, for sequences of any lengths, in training and not.
"""

import copy
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_packed_sequence
from turns import in_turns

from stepnet.errors import InputError
from stepnet.torch import ready
from tests.torch.layer_cases import (
    BATCH,
    DTYPES,
    HIDDEN,
    INPUTS,
    LENGTHS,
    STEPS,
    assert_same,
    numbers,
    packed,
)

Tensor = torch.Tensor
SHARE, EPS = 0.4, 0.1


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    away = x - x.mean(-1, keepdim=True)
    return away / torch.sqrt(away.square().mean(-1, keepdim=True) + EPS) * weight + bias


def layer_norm_lstm(p: dict[str, Tensor], x: Tensor, state: Any, drawn: Any) -> Any:
    h, c = state
    gates = norm(h @ p["from_h.weight"].T, p["norm_h.weight"], p["norm_h.bias"])
    gates = gates + norm(x @ p["from_x.weight"].T, p["norm_x.weight"], p["norm_x.bias"]) + p["bias"]
    f, i, o, g = gates.split(HIDDEN, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * norm(c, p["norm_c.weight"], p["norm_c.bias"]).tanh(), c


def zoneout_gru(p: dict[str, Tensor], x: Tensor, state: Any, drawn: Any) -> Any:
    (h,) = state
    r_x, z_x, n_x = (x @ p["cell.weight_ih"].T + p["cell.bias_ih"]).split(HIDDEN, -1)
    r_h, z_h, n_h = (h @ p["cell.weight_hh"].T + p["cell.bias_hh"]).split(HIDDEN, -1)
    z = (z_x + z_h).sigmoid()
    new = (1 - z) * (n_x + (r_x + r_h).sigmoid() * n_h).tanh() + z * h
    return (drawn * h + (1 - drawn) * new,)


def variational_lstm(p: dict[str, Tensor], x: Tensor, state: Any, drawn: Any) -> Any:
    (h, c), (of_x, of_h) = state, drawn
    from_x, from_h = (x * of_x) @ p["cell.weight_ih"].T, (h * of_h) @ p["cell.weight_hh"].T
    i, f, g, o = (from_x + p["cell.bias_ih"] + from_h + p["cell.bias_hh"]).split(HIDDEN, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def minimal_gated_unit(p: dict[str, Tensor], x: Tensor, state: Any, drawn: Any) -> Any:
    (h,) = state
    f = (torch.cat([h, x], -1) @ p["gate.weight"].T + p["gate.bias"]).sigmoid()
    new = (torch.cat([f * h, x], -1) @ p["candidate.weight"].T + p["candidate.bias"]).tanh()
    return (h - f * h + f * new,)


def peephole_lstm(p: dict[str, Tensor], x: Tensor, state: Any, drawn: Any) -> Any:
    h, c = state
    i, f, g, o = (x @ p["from_x.weight"].T + p["from_x.bias"] + h @ p["from_h.weight"].T).split(HIDDEN, -1)
    p_i, p_f, p_o = p["peephole"]
    c = (f + c * p_f).sigmoid() * c + (i + c * p_i).sigmoid() * g.tanh()
    return (o + c * p_o).sigmoid() * c.tanh(), c


Step = Callable[[dict[str, Tensor], Tensor, Any, Any], Any]
CASES: dict[str, tuple[Callable[..., Any], Step, int]] = {
    "layer norm": (partial(ready.LayerNormLSTM, eps=EPS), layer_norm_lstm, 2),
    "zoneout": (partial(ready.ZoneoutGRU, zoneout=SHARE), zoneout_gru, 1),
    "variational": (
        partial(ready.VariationalLSTM, dropout=SHARE),
        variational_lstm,
        2,
    ),
    "minimal": (ready.MinimalGatedUnit, minimal_gated_unit, 1),
    "peephole": (ready.PeepholeLSTM, peephole_lstm, 2),
}


def drawn_for(case: str, training: bool, lead: tuple[int, ...], rows: int, dtype: torch.dtype) -> Any:
    """The random numbers of a call after seed 2: of each step, or masks of each sequence."""
    torch.manual_seed(2)
    if case == "zoneout":
        drawn = torch.zeros(*lead, HIDDEN, dtype=dtype)
        return drawn.bernoulli_(SHARE) if training else drawn + SHARE
    sizes = (INPUTS, HIDDEN) if case == "variational" else ()
    ones = [torch.ones(rows, size, dtype=dtype) for size in sizes]
    return [torch.nn.functional.dropout(one, SHARE, training) for one in ones]


@cache
def shared(case: str, dtype: torch.dtype, **options: Any) -> Any:
    """A module that tests share, as its step is traced when it is made; none changes its numbers."""
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        module = CASES[case][0](INPUTS, HIDDEN, **options)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or name.endswith("cell.bias"):
                parameter.uniform_(0.5, 1.5)
    return module


def module_of(case: str, dtype: torch.dtype, training: bool, **options: Any) -> Any:
    return shared(case, dtype, **options).train(training)


def gradients(module: Any, outputs: Tensor, last: Any, x: Tensor, states: list[Tensor]) -> dict[str, Any]:
    """All results, and the gradients of all that went in."""
    module.zero_grad()
    results = [outputs, *last]
    sum((one * numbers(*one.shape, dtype=one.dtype)).sum() for one in results).backward()  # type: ignore[union-attr]
    found = dict(enumerate(results)) | {"x": x.grad} | {f"h{k}": one.grad for k, one in enumerate(states)}
    return {str(name): one for name, one in found.items()} | {n: p.grad for n, p in module.named_parameters()}


def given(case: str, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    states = [numbers(BATCH, HIDDEN, dtype=dtype) * (k + 1) for k in range(CASES[case][2])]
    return numbers(STEPS, BATCH, INPUTS, dtype=dtype).requires_grad_(), [
        one.requires_grad_() for one in states
    ]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_padded_sequences_are_those_of_a_loop(case: str, dtype: torch.dtype, training: bool):
    module, step = module_of(case, dtype, training), CASES[case][1]
    x, states = given(case, dtype)
    drawn = drawn_for(case, training, (STEPS, BATCH), BATCH, dtype)
    state, outputs, params = tuple(states), list[Tensor](), dict(module.cell.named_parameters())
    for t in range(STEPS):
        state = step(params, x[t], state, drawn[t] if case == "zoneout" else drawn)
        outputs.append(state[0])
    right = gradients(module, torch.stack(outputs), state, x, states)
    x, states = given(case, dtype)
    torch.manual_seed(2)
    y, last = module(x, tuple(states) if len(states) > 1 else states[0])
    assert_same(gradients(module, y, last if len(states) > 1 else [last], x, states), right)
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(2)
            plain = module(x, tuple(states) if len(states) > 1 else states[0])[0]
            assert_same({"": plain}, {"": right["0"]})


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("case", "training"), in_turns(CASES, [True, False]))
def test_sequences_of_any_lengths_are_those_of_a_loop(case: str, training: bool):
    module, step = module_of(case, torch.float64, training), CASES[case][1]
    x, states = given(case, torch.float64)
    batch = packed(x, None)
    drawn = drawn_for(case, training, (len(batch.data),), BATCH, torch.float64)
    if case == "zoneout":
        drawn = pad_packed_sequence(batch._replace(data=drawn))[0]
    params, outputs, finals = dict(module.cell.named_parameters()), list[Tensor](), list[Any]()
    for row, length in enumerate(LENGTHS):
        state = tuple(one[row] for one in states)
        for t in range(length):
            masks = drawn[t, row] if case == "zoneout" else [one[row] for one in drawn]
            state = step(params, x[t, row], state, masks)
            outputs.append(state[0])
        finals.append(state)
    last = [torch.stack(kind) for kind in zip(*finals, strict=True)]
    right = gradients(module, torch.stack(outputs), last, x, states)
    x, states = given(case, torch.float64)
    torch.manual_seed(2)
    y, last = module(packed(x, None), tuple(states) if len(states) > 1 else states[0])
    rows = pad_packed_sequence(y)[0]
    flat = torch.cat([rows[:length, row] for row, length in enumerate(LENGTHS)])
    assert_same(gradients(module, flat, last if len(states) > 1 else [last], x, states), right)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("case", CASES)
def test_the_other_way_and_the_other_layout(case: str):
    x = numbers(STEPS, BATCH, INPUTS)
    ahead, back = (module_of(case, torch.float64, False, reverse=reverse) for reverse in (False, True))
    beside = module_of(case, torch.float64, False, batch_first=True)
    with torch.no_grad():
        right = ahead(x.flip(0))[0].flip(0)
        assert_same({"": back(x)[0]}, {"": right})
        assert_same({"": beside(x.flip(0).transpose(0, 1))[0].transpose(0, 1).flip(0)}, {"": right})


@pytest.mark.long(every=2)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_differences(case: str):
    module = module_of(case, torch.float64, False)
    x = numbers(2, 2, INPUTS).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x)[0], (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: module(x)[0], (x,), fast_mode=True)


@pytest.mark.parametrize("case", CASES)
def test_copies_and_state_dicts(case: str):
    module, x = module_of(case, torch.float64, False), numbers(STEPS, BATCH, INPUTS)
    right = module(x)[0].detach()
    for copied in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        other = copied(module)
        with torch.no_grad():
            assert torch.equal(other(x)[0], right)
            for parameter in other.parameters():
                parameter.zero_()
            assert not torch.equal(other(x)[0], right)
            other.load_state_dict(module.state_dict())
            assert torch.equal(other(x)[0], right)


@pytest.mark.parametrize(("case", "name"), [("zoneout", "zoneout"), ("variational", "dropout")])
def test_noise_is_new_at_each_call_and_gone_without_training(case: str, name: str):
    module, x = module_of(case, torch.float64, True), numbers(STEPS, BATCH, INPUTS)
    with torch.no_grad():
        assert not torch.equal(module(x)[0], module(x)[0])
        module.eval()
        assert torch.equal(module(x)[0], module(x)[0])
    kind: Any = type(module)
    with pytest.raises(InputError, match=f"{name} is a probability from 0, below 1, not 1.5"):
        kind(INPUTS, HIDDEN, 1.5)


@pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself
@pytest.mark.long(every=2)
@pytest.mark.parametrize("case", CASES)
def test_they_are_one_graph(case: str):
    module, x = module_of(case, torch.float64, False), numbers(STEPS, BATCH, INPUTS)
    torch.compiler.reset()
    found = torch.compile(module, backend="aot_eager", fullgraph=True)(x)[0]
    assert_same({"": found}, {"": module(x)[0]})
