"""Refusals of steps written with PyTorch, most with the user's line."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepnet as sn
from stepnet.errors import InputError, StepError
from stepnet.torch import trace
from tests.torch.torch_cells import Deep, NormalisedLSTM, State

F: Any = torch.nn.functional
X, H, FIVE = torch.zeros(1, 3), torch.zeros(1, 4), torch.zeros(1, 5)
HELD = torch.ones(4)
OWN = torch.nn.Parameter(torch.ones(4))
PLACES = torch.tensor([2, 0])
HELD_CHANGES = "the step changes a tensor that it closes over in place, .* or call .eval\\(\\)"
DEPENDS = "its operations depend on the number of rows, which a step does not know"
NORM = torch.nn.BatchNorm1d(4)
GRU = torch.nn.GRU(4, 4, batch_first=True)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> Any:
        return arguments[1].sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def without_gradients(x: Any) -> Any:
    with torch.no_grad():
        return x * 2


READ = "aten._local_scalar_dense.default is not .*: a step cannot read a value as a number"
REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "not in the table": (
        lambda x, h: x.cummax(-1)[0],
        "aten.cummax.default is not an operation of a step",
    ),
    "sort": (
        lambda x, h: x.sort(-1)[0],
        "aten.sort.default is not an operation of a step: a step written with NumPy has np.sort",
    ),
    "mean over rows": (
        lambda x, h: x - x.mean(0),
        "aten.mean.dim: it goes over .*, which mixes them",
    ),
    "sum of all": (lambda x, h: x / x.sum(), "aten.sum.dim_IntList: it goes over the sequences"),
    "deviation of all": (lambda x, h: x / x.std(), "aten.var.correction: it goes over the sequences"),
    "largest of all": (lambda x, h: x / x.max(), "aten.max.default: it goes over the sequences"),
    "rows against rows": (
        lambda x, h: x[:, 0] + x[:, :1],
        "aten.add.Tensor: a tensor \\[sequences, sequences\\] has two axes of sequences",
    ),
    "loop over rows": (
        lambda x, h: torch.stack([row * 2 for row in x]),
        "a step cannot take rows apart, nor loop over a tensor of them: take features, as x\\[:, 0\\]",
    ),
    "rows taken apart": (lambda x, h: x.unbind()[0] + h, "a step cannot take rows apart"),
    "how many": (lambda x, h: x[x > 0], "aten.index.Tensor: the number of elements depends on values"),
    "one row": (lambda x, h: x[0] + h, "aten.select.int: it goes over the sequences"),
    "softmax over rows": (lambda x, h: x.softmax(0), "aten._softmax.default: it goes over the sequences"),
    "rows backwards": (lambda x, h: x.flip(0), "aten.flip.default: it goes over the sequences"),
    "rows rolled": (lambda x, h: x.roll(1, 0), "aten.roll.default: it goes over the sequences"),
    "rows rolled flat": (lambda x, h: x.roll(1), "aten.roll.default: it goes over the sequences"),
    "gradients off": (
        lambda x, h: without_gradients(x),
        "a step cannot turn gradients off or on for a part of",
    ),
    "a gradient of its own": (
        lambda x, h: Sign.apply(x),
        "a step cannot have the custom gradient of a torch",
    ),
    "some rows": (lambda x, h: x[1:], DEPENDS),
    "every other row": (lambda x, h: x[::2], DEPENDS),
    "rows replaced": (lambda x, h: in_rows(x), DEPENDS),
    "rows by rows": (lambda x, h: x @ x.T, "aten.mm.default: a tensor .* has two axes of sequences"),
    "rows below rows": (lambda x, h: torch.cat([x, h]), "a result of the step mixes rows: it is"),
    "rows repeated": (lambda x, h: x.repeat(2, 1), "aten.repeat.default: it goes over the sequences"),
    "rows flat": (lambda x, h: x.view(-1), "a result of the step mixes rows: it is \\[rows, features"),
    "rows of rows": (lambda x, h: x[x.argmax(-1)], "aten.index.Tensor: .*indexed by constants only"),
    "gather of rows": (lambda x, h: x.gather(0, x.long()), "aten.gather.default: it goes over the"),
    "norm over rows": (lambda x, h: x.norm(dim=0) * x, "aten.linalg_vector_norm.default: it goes over"),
    "rows counted": (
        lambda x, h: x + torch.arange(x.shape[0])[:, None],
        "aten.slice.Tensor: a value depends on the indices of seq",
    ),
    "number of rows": (lambda x, h: x / x.shape[0], "aten.div.Tensor: a value depends on the number of rows"),
    "branch on rows": (
        lambda x, h: x if x.shape[0] > 2 else torch.tanh(x),
        DEPENDS,
    ),
    "rows asked for": (
        lambda x, h: torch.take_along_dim(x, torch.tensor([[1, 0]]), 1),
        DEPENDS,
    ),
    "branch": (lambda x, h: x if x.sum() > 0 else h, "a step cannot branch on a value.*torch.where"),
    "number": (lambda x, h: x * x.sum(-1)[0].item(), READ),
    "item": (lambda x, h: x * h[0, 0].item(), READ),
    "float": (lambda x, h: x * float(x.sum()), "a step cannot branch on a value or read it as a number"),
    "any": (lambda x, h: x if (h > 0).any() else h, "a step cannot branch on a value"),
    "array": (lambda x, h: torch.from_numpy(x.numpy()), "PyTorch refuses: .*numpy"),
    "dropout": (lambda x, h: F.dropout(x, 0.5), "dropout draws anew at every step: call .eval\\(\\)"),
    "alpha dropout": (lambda x, h: F.alpha_dropout(x, 0.5, True), "dropout draws anew at every step"),
    "random": (lambda x, h: x * torch.rand(4), "aten.rand.default is not .*: random numbers enter a step as"),
    "random like": (lambda x, h: x + torch.randn_like(x), "aten.randn_like.default is not .*: random"),
    "random integers": (lambda x, h: x + torch.randint(0, 2, (4,)), "aten.randint.low is not .*: random"),
    "random order": (lambda x, h: x[:, torch.randperm(4)], "aten.randperm.default is not .*: random"),
    "noise in place": (lambda x, h: x.clone().normal_(), "aten.normal_functional.default is not .*: random"),
    "noise in empty": (lambda x, h: x + torch.empty(4).uniform_(), "aten.uniform.default is not .*: random"),
    "dropout of attention": (
        lambda x, h: F.scaled_dot_product_attention(x[:, None], h[:, None], h[:, None], dropout_p=0.1),
        "aten.bernoulli.p is not .*: random",
    ),
    "half": (lambda x, h: x.half().float(), "aten._to_copy.default: a value of dtype float16 is not one"),
    "constant of bytes": (
        lambda x, h: x * torch.ones(4, dtype=torch.uint8),
        "aten.full.default: a value of dtype uint8 is not one of a step",
    ),
    "held bytes": (lambda x, h: x * BYTES, "a constant of dtype uint8 cannot enter a step"),
    "held tensor changed within": (lambda x, h: x + F.relu(HELD, inplace=True), HELD_CHANGES),
    "held tensor written": (
        lambda x, h: torch.tanh(torch.zeros(4), out=HELD) + x,
        HELD_CHANGES,
    ),
    "held tensor changed": (lambda x, h: x + HELD.add_(1), HELD_CHANGES),
    "held parameter changed": (lambda x, h: x + OWN.mul_(2), HELD_CHANGES),
    "statistics kept": (lambda x, h: NORM(x), HELD_CHANGES),
    "statistics of rows": (
        lambda x, h: F.batch_norm(x, None, None, training=True),
        "aten._native_batch_norm_legit.no_stats is not .*: it takes means over rows: call .eval\\(\\)",
    ),
    "a layer": (lambda x, h: GRU(x[:, None])[0], "a layer of torch.nn that runs over steps itself is not"),
    "complex": (
        lambda x, h: torch.view_as_complex(x.view(-1, 2, 2)).abs(),
        "aten.view_as_complex.default is not an operation of a step: the values of a step are real",
    ),
    "what is no tensor": (lambda x, h: "a word", "the step returns a str, not a tensor"),
    "shapes": (lambda x, h: x @ torch.ones(3, 3), "PyTorch refuses: .*\\[rows, 4\\] X \\[3, 3\\]"),
    "an axis too many": (lambda x, h: x.sum(5), "PyTorch refuses: Dimension out of range"),
    "order 3": (lambda x, h: x.norm(3, -1, True), "aten.linalg_vector_norm.default: a norm of order 3"),
    "whole base": (lambda x, h: 2 ** x.long(), "aten.pow.Scalar: 2 to the power of integers .* 2.0 \\*\\* x"),
    "power of integers": (
        lambda x, h: x.long() ** h.long(),
        "aten.pow.Tensor_Tensor: a power of integers by integers that are values or an array is not",
    ),
    "a norm of neighbours": (
        lambda x, h: F.local_response_norm(x[:, None], 2)[:, 0],
        "a local response norm is not an operation of a step: write the mean of squares",
    ),
    "reflect": (lambda x, h: F.pad(x[:, None], (1, 1), mode="reflect"), "padding of mode reflect"),
    "every second feature": (
        lambda x, h: every_second(x),
        "aten.slice_scatter.default: features at a distance",
    ),
    "two axes at once": (
        lambda x, h: x.view(-1, 2, 2)[:, PLACES % 2, PLACES % 2],
        "aten.index.Tensor: features are picked along one axis",
    ),
    "scatter": (
        lambda x, h: x.scatter(-1, x.argmax(-1, keepdim=True), 1.0),
        "aten.scatter.value is not .*: write torch.where with torch.nn.functional.one_hot",
    ),
    "buckets": (
        lambda x, h: torch.bucketize(x, torch.arange(3.0)).float(),
        "aten.bucketize.Tensor is not .*: write \\(x\\[..., None\\] > bounds\\).sum",
    ),
    "a Fourier transform": (
        lambda x, h: torch.fft.rfft(x).abs(),
        "fft_rfft makes complex numbers, and the values of a step are real",
    ),
    "complex of two": (lambda x, h: torch.polar(x, h).real, "polar makes complex numbers, and"),
    "NumPy": (lambda x, h: np.tanh(x), "PyTorch refuses: .* a step written with PyTorch has torch.tanh"),
    "put": (lambda x, h: put(x), "aten.index_put.default is not .*: use torch.where"),
    "an operation of one's own": (
        lambda x, h: torch.ops.stepnet_tests.twice(x),
        "stepnet_tests.twice.default is not an operation of a step",
    ),
}
BYTES = torch.ones(4, dtype=torch.uint8)


@torch.library.custom_op("stepnet_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@twice.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


def in_rows(x: Any) -> Any:
    x = x.clone()
    x[1:] = 0
    return x


def every_second(x: Any) -> Any:
    x = x.clone()
    x[:, ::2] = 0
    return x


def put(x: Any) -> Any:
    x = x.clone()
    x[:, PLACES] = 0
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_step_cannot_do_is_refused_with_the_users_line(name: str) -> None:
    function, expected = REFUSED[name]

    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        return function(x, h), h

    with pytest.raises(StepError) as caught:
        trace(step, (torch.zeros(1, 4), torch.zeros(1, 4)))
    message, line, *_ = str(caught.value).split("\n")  # a line that holds what is expected is no message
    assert re.search(f"^{expected}", message), message
    assert line.startswith(f"  at {__file__}:"), line
    assert HELD.tolist() == [1] * 4


def test_pytorch_logs_nothing_beside_the_error() -> None:
    code = """
import torch, stepnet.torch
try:
    stepnet.torch.trace(lambda x, h, _: (x @ torch.ones(3, 3), h), (torch.zeros(1, 4), torch.zeros(1, 4)))
except stepnet.StepnetError as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("StepError\n", "")


def test_a_parameter_read_as_a_number_is_refused() -> None:
    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return x * params.sum().item(), h

    with pytest.raises(StepError, match=r"^aten._local_scalar_dense.default is .*cannot read a value as a"):
        trace(step, (torch.zeros(1, 4), torch.zeros(1, 4), torch.ones(3)))


def test_inner_sequences_are_refused() -> None:
    rnn = trace(torch.nn.GRUCell(3, 4), (X, H))
    with pytest.raises(
        StepError, match=r"^x holds inner sequences, which a step written with PyTorch cannot"
    ):
        rnn(sn.Ragged.from_list([[np.ones((2, 3), np.float32)], [np.ones((1, 3), np.float32)]]))


def test_a_buffer_that_changes_is_refused_by_its_name() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: Any
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: Any, state: Any) -> Any:
            self.count.add_(1)
            return state + x * self.count

    with pytest.raises(StepError, match=r"^the step changes `count` in place.*make it a memory") as caught:
        trace(Counting(), (torch.zeros(1, 4), torch.zeros(1, 4)))
    assert caught.value.args[0].count("\n  at ") == 1


def test_a_parameter_that_changes_is_refused_by_its_name() -> None:
    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        params["in"]["W"][0] = 0
        return x @ params["in"]["W"], h

    with pytest.raises(StepError, match=r"^the step changes `in.W` in place, which would outlive the step"):
        trace(step, (torch.zeros(1, 4), torch.zeros(1, 4), {"in": {"W": torch.ones(4, 4)}}))


def test_statistics_that_change_in_training_are_refused_by_their_name() -> None:
    module = Deep(3, 5)
    example = X, ((FIVE, FIVE), [FIVE, FIVE])
    with pytest.raises(
        StepError, match=r"^the step changes `norm.*` in place.*or call .eval\(\) on a module"
    ):
        trace(module, example)
    trace(module.eval(), example)


def test_places_in_a_buffer_are_no_constants() -> None:
    class Shuffled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.order: Any
            self.register_buffer("order", torch.tensor([2, 0, 1]))

        def forward(self, x: Any, state: Any) -> Any:
            return state + x[:, self.order]

    with pytest.raises(StepError, match=r"^aten.index.Tensor: .* \(a list; a buffer is a param"):
        trace(Shuffled(), (X, X))


def test_dropout_in_training_is_refused_and_in_evaluation_left_out() -> None:
    module = NormalisedLSTM(3, 5)
    example = X, State(FIVE, FIVE)
    with pytest.raises(StepError, match=r"dropout draws anew .* given as a static") as caught:
        trace(module, example)
    assert 'return {"h": self.drop(h)' in str(caught.value)
    trace(module.eval(), example)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a layer": (
        lambda: trace(torch.nn.LSTM(3, 4), (X, H)),
        "torch.nn.LSTM runs over the steps itself; .*LSTMCell",
    ),
    "a layer of another kind": (
        lambda: trace(torch.nn.GRU(3, 4), (X, H)),
        "torch.nn.GRU runs over the steps itself; .*torch.nn.GRUCell",
    ),
    "no cell": (
        lambda: trace(torch.nn.Linear(3, 4), (X, H)),
        "Linear is not a cell, which is called with \\(x, state\\): too many positional arguments",
    ),
    "a class": (
        lambda: trace(torch.nn.GRUCell, (X, H)),
        "a step is a torch.nn.Module or a function, not the class GRUCell",
    ),
    "no step": (lambda: trace(3, (X, H)), "a step is a torch.nn.Module or a function, not a int"),
    "no example": (
        lambda: trace(torch.nn.GRUCell(3, 4), X),
        "example is .* a tuple \\(x, state\\), not a Tensor",
    ),
    "too many": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X, H, {})),
        "example is .* a tuple \\(x, state\\), not a tuple of 3",
    ),
    "too few": (lambda: trace(put, (X,)), "example is .* a tuple \\(x, memory, params\\), not a tuple of 1"),
    "no tensor": (lambda: trace(torch.nn.GRUCell(3, 4), (X, 4)), "a memory of the example is .*, not a int"),
    "no rows": (
        lambda: trace(torch.nn.GRUCell(3, 4), (torch.tensor(1.0), H)),
        r"the example of .* has tensors \[rows, features\], and one of them is \[\]: give",
    ),
    "a list": (
        lambda: trace(torch.nn.GRUCell(3, 4), ([X], H)),
        r"the input of a torch.nn.GRUCell is one tensor \[rows, features\], not a list",
    ),
    "no input": (
        lambda: trace(torch.nn.GRUCell(3, 4), (None, H)),
        r"the input of a torch.nn.GRUCell is one tensor \[rows, features\], not a NoneType",
    ),
    "no state": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X, None)),
        "the example has no state, .* second argument",
    ),
    "no memory": (lambda: trace(put, (X, None)), "the example has no state, .* second argument"),
    "complex": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X.to(torch.complex64), H)),
        "an input .* has dtype complex64; use one",
    ),
    "other rows": (
        lambda: trace(lambda x, h, _: (x, h), (torch.zeros(3), torch.zeros(8))),
        r"the tensors of the example are \[rows, features...\] with the same rows, and not \[3\], \[8\]",
    ),
    "a function without parameters": (
        lambda: trace(lambda u, m: (u, m), (X, H)),
        r"<lambda> is called as <lambda>\(x, memory, params\), and takes \(u, m\)",
    ),
    "complex memory": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X, H.to(torch.complex64))),
        "a memory .* has dtype complex64; use one of float32, float64, int32, int64, bool, float16, bfloat16",
    ),
    "weights in float8": (
        lambda: trace(torch.nn.GRUCell(3, 4).to(torch.float8_e4m3fn), (X, H)),
        "a parameter has dtype float8_e4m3fn",
    ),
    "statics": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X, H), statics=X),
        "statics were given, but the step has no parameter named `statics`",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_step_or_example_is_refused(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(InputError, match=f"^{message}"):
        make()


def test_arguments_that_trace_has_not() -> None:
    wrong: dict[str, Any] = {"engine": "llvm"}
    with pytest.raises(TypeError, match=r"^trace\(\) got an unexpected keyword argument 'engine'"):
        trace(torch.nn.GRUCell(3, 4), (X, H), **wrong)


def test_a_state_of_another_structure_is_refused() -> None:
    class Pair(torch.nn.Module):
        def forward(self, x: Any, state: Any) -> Any:
            return x, state, state

    with pytest.raises(StepError, match=r"Pair is given the state array and gives \(array, array, array\);"):
        trace(Pair(), (X, H))


def test_sizes_that_do_not_fit_are_said_by_pytorch_with_the_users_line() -> None:
    with pytest.raises(StepError, match=r"^PyTorch refuses: .*\[rows, 4\] X \[3, 12\]") as caught:
        trace(torch.nn.GRUCell(3, 4), (H, H))
    assert "trace(torch.nn.GRUCell(3, 4), (H, H))" in str(caught.value)


def test_one_tensor_for_two_is_refused() -> None:
    with pytest.raises(StepError, match=r"^a step cannot take rows apart"):
        trace(lambda x, h, _: (x, sum(h)), (X, H))


def test_a_memory_of_another_shape_is_refused() -> None:
    with pytest.raises(
        StepError, match=r"the memory `\w+` enters the step as f32\[4\] and leaves as f32\[8\]"
    ):
        trace(lambda x, h, _: (h, torch.cat([h, h], -1)), (X, H))
