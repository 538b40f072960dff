"""First mistakes with `stepnet.torch`: the message says what was given, what was expected and what to do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.errors import StepnetError

F: Any = nn.functional
LENGTHS = np.array([6, 4])
X = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


def module(forward: Callable[..., Any], **members: Any) -> Any:
    """A module of a function of its members and an input."""

    class OfFunction(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, member in members.items():
                setattr(self, name, member)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return OfFunction().eval()


def after_pooling(m: Any, x: Any) -> Any:
    y = F.max_pool1d(x.transpose(1, 2), 2).transpose(1, 2)
    return y + torch.arange(y.size(1))[None, :, None]


def traced(cell: Any, *example: Any) -> Callable[[], Any]:
    return lambda: stepnet.torch.trace(cell, example)


def graph(forward: Callable[..., Any], example: Any = X, **members: Any) -> Callable[[], Any]:
    return lambda: stepnet.torch.graph(module(forward, **members), example)


class LastOf(nn.Module):
    """The last output of each sequence, by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return torch.cat([*self.gru(packed)[1]], 1)


LAST: Any = stepnet.torch.graph(LastOf(), (X, torch.from_numpy(LENGTHS)))
PACKED = nn.utils.rnn.pack_padded_sequence(X, [6, 4], batch_first=True)

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a list for a tensor": (
        lambda: stepnet.torch.graph(nn.Linear(4, 4), [X]),
        "example is a list: give a tensor, a tuple of arguments, or a dict of them by name",
    ),
    "an array for a tensor": (
        lambda: stepnet.torch.graph(nn.Linear(4, 4), X.numpy()),
        r"argument input of the example is an array of NumPy, .*: give torch.from_numpy\(x\)",
    ),
    "a state that is no pair": (
        traced(nn.LSTMCell(3, 4), torch.zeros(1, 3), torch.zeros(1, 4)),
        r"the example of a torch.nn.LSTMCell is \(x, \(h, c\)\), not with a state array",
    ),
    "a state that is a pair": (
        traced(nn.GRUCell(3, 4), torch.zeros(1, 3), (torch.zeros(1, 4), torch.zeros(1, 4))),
        r"the example of a torch.nn.GRUCell is \(x, h\), not with a state \(array, array\)",
    ),
    "no rows": (
        traced(nn.GRUCell(3, 4), torch.zeros(3), torch.zeros(4)),
        r"has tensors \[rows, features\], and one of them is \[3\]: give x\[None\] for a single row",
    ),
    "a range over other steps": (
        graph(after_pooling),
        "a range is over the steps of an input: number them ahead of a convolution or pooling",
    ),
    "padding by steps": (
        graph(lambda m, x: m.c(x.transpose(1, 2)), c=nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular")),
        "steps are put at the ends of a sequence by reflect or replicate, not by 'circular'",
    ),
    "steps in a tensor of features": (
        graph(lambda m, x: x * torch.full((x.size(0), 1, 1), x.size(1))),
        r"a number of steps fills a tensor of one number for each sequence, as torch.full\(\(",
    ),
    "the number of sequences by len": (
        graph(lambda m, x: x[torch.arange(len(x)), -1]),
        "depend on the number of sequences, .*: let shapes broadcast, and write x.shape\\[0\\] for len",
    ),
    "an array for a layer": (
        lambda: stepnet.torch.LSTM(4, 3)(X.numpy()),
        r"layers of stepnet.torch take tensors, not ndarray: give torch.from_numpy\(x\)",
    ),
    "a list for a layer": (
        lambda: stepnet.torch.GRU(4, 3)([X[0], X[1]]),
        r"layers of stepnet.torch take tensors, not list: give torch.stack\(x\)",
    ),
    "an array for a cell": (
        lambda: stepnet.torch.LSTMCell(4, 3)(X[:, 0].numpy()),
        r"layers of stepnet.torch take tensors, not ndarray: give torch.from_numpy\(x\)",
    ),
    "a layer in float8": (
        lambda: stepnet.torch.GRU(4, 3).to(torch.float8_e4m3fn)(X.to(torch.float8_e4m3fn)),
        "or use torch.nn.GRU, as undo\\(\\) of what `accelerate` returned gives back",
    ),
    "lengths as a state": (
        lambda: LAST(X.numpy(), LENGTHS),
        "the lengths of sequences are an argument of their own: lengths=lengths; this model has no stream",
    ),
    "lengths as an input": (
        lambda: LAST((X.numpy(), LENGTHS)),
        r"this one is \(2,\): the lengths of sequences are an argument of their own: lengths=lengths",
    ),
    "packed sequences": (
        lambda: LAST(PACKED),
        "for a PackedSequence give its padded array, and lengths= as pad_packed_sequence returns them",
    ),
    "several examples": (
        lambda: stepnet.torch.graph(LastOf(), X, torch.from_numpy(LENGTHS)),
        r"the arguments of an example are one tuple: graph\(model, \(x, lengths\)\)",
    ),
    "NumPy's default dtype": (
        lambda: LAST(X.double().numpy(), lengths=LENGTHS),
        r"input x has dtype float64, and the example has float32: cast it, as x.astype\('float32'\)",
    ),
    "an example of NumPy's default dtype": (
        lambda: stepnet.torch.graph(nn.Linear(4, 4).double(), X.double())(X.numpy()),
        r"input input has dtype float32, and the example has float64: cast it, as input.astype\('float64'\)",
    ),
    "whole numbers for features": (
        lambda: LAST(np.ones((2, 6, 4), int), lengths=LENGTHS),
        "input x has dtype int64, and the example has float32",
    ),
    "a number of sequences": (
        graph(lambda m, x: x * torch.scalar_tensor(x.size(0))),
        "it makes a tensor of the number of sequences, which differs from call to call",
    ),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_first_mistake_is_named(mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(StepnetError, match=f"(?s){message}"):
        mistake()


def test_an_error_of_the_users_own_code_passes_through() -> None:
    def wrong(m: Any, x: Any) -> Any:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        graph(wrong)()


def test_attention_that_is_not_batch_first_has_time_first() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16).eval()
    x = torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(0))
    found = stepnet.torch.graph(layer, x)(x.numpy(), time_major=True)
    assert_close(found, layer(x).detach().numpy(), 7, 32)


def test_sequences_packed_with_all_of_their_steps() -> None:
    def forward(m: Any, x: Any) -> Any:
        lengths = torch.full((x.size(0),), x.size(1))
        return m.gru(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1][0]

    own = module(forward, gru=nn.GRU(4, 3, batch_first=True))
    model, sequences = stepnet.torch.graph(own, X), [X[0].numpy(), X[1, :2].numpy()]
    for found, each in zip(model(sn.Ragged.from_list(sequences)), sequences, strict=True):
        assert_close(found, own(torch.tensor(each)[None])[0].detach().numpy(), len(each), 7)


def test_a_stream_that_has_not_stepped_has_no_row_to_reset() -> None:
    rnn = sn.RNN(lambda x, total, p: (total + x, total + x), memory=())
    with pytest.raises(StepnetError, match="nothing was stepped yet, so no row is to be reset"):
        rnn.stream(rows=2).reset(rows=[0])
    with pytest.raises(StepnetError, match="nothing was stepped yet: give initial= and statics="):
        rnn.stream(rows=2).reset(initial=np.zeros(2))


def test_a_loss_of_other_arguments_is_named() -> None:
    rnn = sn.RNN(lambda x, h, p: (x + h, x), memory=4)
    with pytest.raises(StepnetError, match=r"is called as <lambda>\(outputs, targets\), and takes \(y\)"):
        sn.value_and_grad(lambda y: np.sum(y), rnn)  # pyright: ignore[reportArgumentType]
    train = sn.value_and_grad(lambda y, t: np.sum((y - t) ** 2, -1), rnn)
    with pytest.raises(StepnetError, match=r"None stands where a value or a number is needed: .*targets"):
        train(X.numpy())


def test_lists_as_sequences() -> None:
    rnn = sn.RNN(lambda x, h, p: (x + h, x), memory=4)
    with pytest.raises(StepnetError, match=r"a list is several inputs of a step: for one .*np.array\(list\)"):
        rnn([[[1.0, 2, 3, 4]]])


RECURRENCE = stepnet.torch.Recurrence(nn.GRUCell(4, 3), (torch.zeros(1, 4), torch.zeros(1, 3)))
OF_DICT = stepnet.torch.Recurrence(
    lambda x, h, p, statics: (h, h + statics["notes"] * statics["keep"]),
    (torch.zeros(1, 3), torch.zeros(1, 3), None),
    statics={"notes": torch.zeros(1, 3), "keep": torch.zeros(1, 3)},
)
SCAN = stepnet.torch.Scan(sn.RNN(lambda x, h, p: (h, h + x), memory=4))


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "an array": (lambda: RECURRENCE(X.numpy()), r"take tensors, not ndarray: give torch.from_numpy\(x\)$"),
    "a list": (lambda: RECURRENCE([X[0]]), r"not list: give torch.stack\(x\), or pack_sequence\(x, enforce"),
    "a Ragged": (
        lambda: RECURRENCE(sn.Ragged.from_list([X[0].numpy()])),
        r"not Ragged: give x.to_packed\(\)$",
    ),
    "one axis": (lambda: RECURRENCE(X[0, 0]), r"sequences \[time, batch, ...\], not one of 1 axes$"),
    "a state": (lambda: RECURRENCE(X, np.zeros((6, 3))), "^state is a ndarray; it should be a tensor$"),
    "a number": (lambda: RECURRENCE(X, 0.0), "^state is a float; it should be a tensor$"),
    "statics": (
        lambda: OF_DICT(X[..., :3], statics={"notes": sn.Ragged.from_list([X[0].numpy()]), "keep": X}),
        "^statics notes is a Ragged; it should be a tensor$",
    ),
    "lengths": (
        lambda: RECURRENCE(X, lengths=[2]),
        "lengths=: .* are a PackedSequence, or a jag",
    ),
    "hx": (lambda: RECURRENCE(X, hx=X), "^a call of a Recurrence has no argument hx=: .* is state=$"),
    "mask": (lambda: RECURRENCE(X, mask=X), "no argument mask=: padding .* an input of the step"),
    "a misspelt argument": (lambda: RECURRENCE(X, static=X), r"static=: did you mean statics=\?"),
    "mask of a scan": (
        lambda: SCAN(X, mask=X),
        "^a call of a Scan has no .* mask=: .* by lengths=; a mask",
    ),
    "a misspelt argument of a scan": (lambda: SCAN(X, length=[2]), r"length=: did you mean lengths=\?"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_of_a_module_is_named(name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(StepnetError, match=message):
        call()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (RECURRENCE, "ArgumentError: a call of a Recurrence has no argument hx=: .* is state="),
        (SCAN, "ArgumentError: a call of a Scan has no argument hx="),
    ],
)
def test_a_wrong_argument_is_named_in_a_graph_of_torch_compile(module: Any, message: str) -> None:
    graph: Any = torch.compile(module, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=message):
        graph(X, hx=X)


@pytest.mark.parametrize("name", ["inv", "cholesky", "qr", "solve", "matrix_exp"])
def test_linear_algebra_is_refused_as_numpys(name: str) -> None:
    """`torch.linalg` of a step, also of a parameter alone."""
    function = getattr(torch.linalg, name)

    def step(x: Any, h: Any, p: Any) -> Any:
        found = function(p["A"], p["A"]) if name == "solve" else function(p["A"])
        return h @ (found[0] if name == "qr" else found), h

    with pytest.raises(
        StepnetError, match=r"(?s)^aten._?linalg_.* no linear algebra .* as a parameter\n  at "
    ):
        stepnet.torch.trace(step, (X[0, :, :3], torch.zeros(6, 2), {"A": torch.eye(2)}))
