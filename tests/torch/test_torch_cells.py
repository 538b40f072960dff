"""Cell modules of PyTorch: a recurrence of one gives what the module gives, called one step after another."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves, transform
from stepnet.compiler.values.structure import skeleton
from stepnet.errors import StepError
from stepnet.torch import trace
from tests.torch.torch_cells import CELLS, Deep, H, MaskedGRU, NormalisedLSTM, State, Twice, X
from tests.torch.torch_loop import (
    LENGTHS,
    agree,
    agree_at_the_end,
    arrays,
    drawn,
    numbers,
    ragged,
    rows,
    stepped,
    wide,
)

F: Any = torch.nn.functional


def as_step(module: Any, state: Any) -> Callable[..., Any]:
    """The module as a step, as the documentation says: its state alone gives the first of it as output."""

    def step(x: Any, memory: Any, _: Any, **further: Any) -> tuple[Any, Any]:
        found = module(x, memory, **further)
        return (leaves(found)[0], found) if skeleton(found) == skeleton(state) else found

    return step


# Both dtypes of each cell, first the one that `make test` takes: another from cell to cell.
DTYPES = torch.float32, torch.float64
IN_BOTH = [(name, DTYPES[(place + turn) % 2]) for place, name in enumerate(CELLS) for turn in (0, 1)]


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("name", "dtype"), IN_BOTH, ids=str)
def test_a_cell_is_what_pytorch_gives(name: str, dtype: Any) -> None:
    torch.manual_seed(1)
    cell = CELLS[name]()
    module = cell.module.to(dtype).eval()
    x, state, statics = transform(
        lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, (cell.x, cell.state, cell.statics)
    )
    rnn = trace(module, (x, state), statics=statics)
    assert repr(rnn).startswith(f"RNN({type(module).__name__}")

    sequences = [drawn(x, length, length) for length in LENGTHS]
    initial, given = drawn(state, len(LENGTHS), 5), drawn(statics, len(LENGTHS), 9)
    expected, finals = stepped(
        as_step(copy.deepcopy(module).double(), state),  # the numbers are the same, the oracle is in float64
        [wide(sequence) for sequence in sequences],
        rows(wide(initial)),
        statics=None if statics is None else rows(wide(given)),
        index=statics is not None,
    )
    for engine in ("interpret", "llvm"):
        outputs, final = rnn(ragged(sequences), arrays(initial), arrays(given), engine=engine)
        agree(outputs, expected, width=20, dtypes=dtype == torch.float64)
        agree_at_the_end(final, finals, width=20)
        assert skeleton(final) == skeleton(state)
        assert [f"torch.{leaf.dtype}" for leaf in leaves(final)] == [
            str(leaf.dtype) for leaf in leaves(state)
        ]


# ---- parameters --------------------------------------------------------------------------------------


def test_parameters_and_buffers_keep_their_names_and_are_copies() -> None:
    module = NormalisedLSTM(3, 5).eval()
    rnn = trace(module, (X, State(H, H)))
    names = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    assert set(rnn.params) == names
    assert "norm_c.weight" in names
    inputs = {rnn.net.nodes[number].name for number in rnn.net.inputs}
    assert names <= inputs
    before = rnn.params["norm.weight"].copy()
    with torch.no_grad():
        module.norm.weight.mul_(2)
    assert np.array_equal(rnn.params["norm.weight"], before)


def test_shared_weights_are_one_parameter() -> None:
    rnn = trace(Twice(5), (H, {"below": H, "above": H}))
    shared = {f"below.{kind}_{side}" for kind in ("weight", "bias") for side in ("ih", "hh")}
    assert set(rnn.params) == {*shared, "third.weight_ih"}


def test_a_parameter_of_two_names_in_one_module_is_one_and_no_constant() -> None:
    class Same(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(torch.full((2,), 0.5))
            self.second = self.first

        def forward(self, x: Any, state: Any) -> Any:
            return self.first * state + self.second * x

    rnn = trace(Same(), (torch.zeros(1, 2), torch.zeros(1, 2)))
    assert set(rnn.params) == {"first"}
    assert "constant" not in str(rnn.net)
    _, final = rnn(np.array([[[1, 2], [3, 4]]], np.float32))
    assert final.tolist() == [[1.75, 2.5]]


def test_parameters_of_a_function_keep_their_structure() -> None:
    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return None, torch.tanh(x @ params["in"][0] + h @ params["in"][1])

    params = {"in": (torch.ones(2, 3), torch.eye(3))}
    rnn = trace(step, (torch.zeros(1, 2), torch.zeros(1, 3), params))
    assert rnn.params["in"][0].shape == (2, 3)
    outputs, final = rnn(np.ones((1, 1, 2), np.float32))
    assert outputs is None
    assert_close(final, np.tanh(np.full((1, 3), 2, np.float32)))


# ---- how a step is called ----------------------------------------------------------------------------


def test_without_parameters_and_backwards() -> None:
    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        h = 0.5 * h + x
        return h, h

    rnn = trace(step, (torch.zeros(1, 1), torch.zeros(1, 1)), reverse=True)
    outputs, final = rnn(np.array([[[1], [2], [4]]], np.float32))
    assert outputs[0, :, 0].tolist() == [3, 4, 4]
    assert final.tolist() == [[3]]


def test_a_function_gets_statics_and_the_index() -> None:
    def step(x: Any, h: Any, params: Any, statics: Any, index: Any) -> tuple[Any, Any]:
        h = torch.where((index == 0)[:, None], statics, h) * params + x
        return h, h

    rnn = trace(step, (torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor(2.0)), statics=torch.zeros(1, 1))
    outputs, _ = rnn(np.ones((2, 3, 1), np.float32), statics=np.array([[3], [0]], np.float32))
    assert outputs[:, :, 0].tolist() == [[7, 15, 31], [1, 3, 7]]


def test_tensors_may_be_given_to_the_recurrence() -> None:
    cell = torch.nn.GRUCell(3, 4)
    x = numbers((2, 5, 3), 1, torch.float32)
    rnn = trace(cell, (x[:, 0], torch.zeros(2, 4)))
    outputs, _ = rnn(x)
    h = torch.zeros(2, 4)
    for at in range(5):
        h = cell(x[:, at], h)
        assert_close(outputs[:, at], h.detach(), 5, 8)


def test_numbers_may_be_returned_and_stand_for_every_row() -> None:
    rnn = trace(lambda x, h, _: ((1.5, x[:, 0]), h + x), (torch.zeros(1, 1), torch.zeros(1, 1)))
    (constant, first), _ = rnn(np.array([[[1], [2]], [[3], [4]]], np.float32))
    assert (constant.dtype, constant.tolist()) == (np.float32, [[1.5, 1.5], [1.5, 1.5]])
    assert first.tolist() == [[1, 2], [3, 4]]


def test_tensors_made_in_a_step_may_change_and_those_it_closes_over_may_not() -> None:
    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        made = torch.tensor([1.0, 2.0])
        made.add_(1)
        made[0] = 5
        h.mul_(0.5).add_(x)
        F.relu(h, inplace=True)
        x.zero_()
        return h * made + x, h

    rnn = trace(step, (torch.zeros(1, 2), torch.zeros(1, 2)))
    x, h = numbers((1, 3, 2), 1, torch.float32), torch.zeros(1, 2)
    outputs, _ = rnn(x)
    for at in range(3):
        output, h = step(x[:, at].clone(), h.clone(), None)
        assert_close(outputs[:, at], output)


def test_another_dtype_is_traced_anew_and_pytorch_says_what_does_not_fit() -> None:
    rnn = trace(lambda x, h, _: (h + x, h + x), (torch.zeros(1, 1), torch.zeros(1, 1)))
    outputs, _ = rnn(np.array([[[1], [2]]], np.int32))
    assert (outputs.dtype, outputs[0, :, 0].tolist()) == (np.float32, [1, 3])
    rnn = trace(torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4)))
    with pytest.raises(StepError, match=r"^aten.addmm.default: PyTorch multiplies matrices of one dtype"):
        rnn(np.ones((1, 2, 3), np.float64))


def test_a_module_is_as_it_was_after_it_is_traced() -> None:
    torch.manual_seed(2)
    module = Deep(3, 5).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trace(module, (X, ((H, H), [H, H])))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    loss = module(X, ((H, H), [H, H]))[0].sum()
    loss.backward()
    assert module.first.weight_ih.grad is not None


def test_where_pytorch_is_told_not_to_keep_track_it_is_traced_as_well() -> None:
    with torch.inference_mode():
        rnn = trace(torch.nn.GRUCell(3, 5), (X, H))
    assert "addmm" not in str(rnn.net)
    assert "matmul" in str(rnn.net)


# ---- the user's lines --------------------------------------------------------------------------------


def sources(rnn: sn.RNN) -> dict[str, str]:
    """The lines that the step's operations come from; of several of a kind the last one's."""
    body = next(node for node in rnn.net.nodes if node.operation == "recur").attributes["body"]
    return {node.operation: node.source for node in body.nodes if node.operation != "input"}


def test_the_users_line_is_in_the_net() -> None:
    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        h = torch.tanh(x - h)  # here
        h = F.silu(
            h,
        )
        return h, h

    found = sources(trace(step, (torch.zeros(1, 1), torch.zeros(1, 1))))
    assert found["tanh"].endswith("h = torch.tanh(x - h)  # here")
    assert found["subtract"] == found["tanh"]
    assert __file__ in found["tanh"]
    assert found["sigmoid"].endswith("h = F.silu(")


def test_the_lines_of_a_module_are_in_the_net_and_in_what_a_trace_of_steps_shows() -> None:
    rnn = trace(MaskedGRU(3, 5), (X, H), statics={"mask": H, "other": H})
    lines = sources(rnn)
    assert lines["where"].endswith(
        'torch.where((index % 3 == 2)[:, None], statics["other"], statics["mask"])'
    )
    assert lines["tanh"].endswith("return self.cell(x, state * other)")


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5}])
def test_elu_has_its_derivative_at_zero(options: dict[str, float]):
    traced = trace(lambda x, h, p: (F.elu(x, **options), h), (torch.zeros(1, 3), torch.zeros(1, 1), {}))
    (outputs, _), backward = sn.vjp(traced)(np.zeros((1, 1, 3), "float32"))
    x = torch.zeros(3, requires_grad=True)
    F.elu(x, **options).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(backward(np.ones_like(outputs)).inputs[0, 0], x.grad.numpy())
