"""Replacements for functions of PyTorch in a trace, such as cells as equations, and dropout as an error.

The cells, and some others, are C++ code that needs the number of rows, which a step does not know.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepnet.compiler.trace.indexing import listed
from stepnet.errors import StepError
from stepnet.torch.lines import calls_of
from stepnet.torch.norms import group_norm_of_features, instance_norm
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
fx_traceback: Any = pytorch("torch.fx.traceback")
overrides: Any = pytorch("torch.overrides")
linear: Any = torch.nn.functional.linear


def gru_cell(x: Any, h: Any, W: Any, R: Any, b: Any = None, d: Any = None) -> Any:
    """Computes the next h of `torch.nn.GRUCell` from basic operations, in place of PyTorch's C++ function.

    W, R: weights of x and h, with the gates in the order r, z, n. b, d: their biases, or None.
    """
    x_r, x_z, x_n = linear(x, W, b).chunk(3, -1)
    h_r, h_z, h_n = linear(h, R, d).chunk(3, -1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return n + z * (h - n)


def lstm_cell(x: Any, state: Sequence[Any], W: Any, R: Any, b: Any = None, d: Any = None) -> tuple[Any, Any]:
    """Computes the next (h, c) of `torch.nn.LSTMCell` from basic operations, in place of PyTorch's C++
    function.

    state: (h, c). W, R: weights of x and h, with the gates in the order i, f, g, o. b, d: their biases, or
        None.
    """
    h, c = state
    i, f, g, o = (linear(x, W, b) + linear(h, R, d)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def rnn_tanh_cell(x: Any, h: Any, W: Any, R: Any, b: Any = None, d: Any = None) -> Any:
    """Computes the next h of `torch.nn.RNNCell` with tanh. W, R: weights of x and h. b, d: their biases."""
    return torch.tanh(linear(x, W, b) + linear(h, R, d))


def rnn_relu_cell(x: Any, h: Any, W: Any, R: Any, b: Any = None, d: Any = None) -> Any:
    """Computes the next h of `torch.nn.RNNCell` with relu. W, R: weights of x and h. b, d: their biases."""
    return torch.relu(linear(x, W, b) + linear(h, R, d))


def bilinear(a: Any, b: Any, W: Any, bias: Any = None) -> Any:
    """Computes `torch.nn.functional.bilinear`: y[k] = sum of a[i] W[k, i, j] b[j] over i and j, plus bias."""
    weighted = (a @ W.permute(1, 0, 2).flatten(1)).unflatten(-1, (W.shape[0], W.shape[2]))
    result = (weighted * b.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def einsum(equation: str, *operands: Any) -> Any:
    """Computes torch.einsum in a trace, in place of PyTorch's, which may put other axes ahead of the rows.

    A contraction of a value per row with a parameter, over some of the axes that both have, is done for each
    index of another such axis (a "head") separately. equation, operands: as of torch.einsum.
    """
    values: Sequence[Any] = listed(operands[0]) if len(operands) == 1 else operands
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(values) == len(terms) == 2 and "." not in inputs and has_rows(values[0]) != has_rows(values[1]):
        shared = [letter for letter in terms[0] if letter in terms[1]]
        heads = [letter for letter in shared if letter in output]
        if heads and len(heads) < len(shared):
            return by_heads(terms, output, values, heads[0])
    return torch.einsum(equation, *values)


def by_heads(terms: Sequence[str], output: str, values: Sequence[Any], head: str) -> Any:
    """Contracts two values for each index of an axis separately, and stacks the results, for `einsum`.

    terms, output: the letters of the operands' axes and of the result's, as in an einsum equation.
    head: the letter of an axis that both operands and the result have.
    """
    equation = f"{','.join(terms)}->{output}".replace(head, "")
    places = [term.index(head) for term in terms]
    parts = [
        einsum(equation, *(value.select(place, number) for value, place in zip(values, places, strict=True)))
        for number in range(values[0].shape[places[0]])
    ]
    return torch.stack(parts, output.index(head))


def has_rows(x: Any) -> bool:
    """Tells whether a traced tensor has an axis of rows (sequences), whose size is a symbol."""
    return not all(isinstance(size, int) for size in x.shape)


def unbound(x: Any, dim: int = 0) -> Any:
    """Replaces torch.unbind in the trace of a step: splits x along an axis, which may not be the rows."""
    if not isinstance(x.shape[dim], int):
        raise StepError(
            "a step cannot take rows apart, nor loop over a tensor of them: take features, as x[:, 0] or "
            "x.unbind(1)"
        )
    return torch.unbind(x, dim)


def refused(message: str) -> Callable[..., Any]:
    """Makes the replacement of a function that a step cannot call: it raises a `StepError`."""

    def rule(*_: Any, **__: Any) -> Any:
        """Raises the error, whatever the arguments."""
        raise StepError(message)

    return rule


def dropped(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Replaces dropout in the trace of a step: returns x in evaluation; raises `StepError` in training, if p
    is not 0. `inplace` is ignored, as the result is x itself.
    """
    if training and p > 0:
        raise StepError(
            "dropout draws anew at every step: call .eval() on the module, or multiply by a mask that is "
            "given as a static (one per sequence) or an input (one per step)"
        )
    return x


def cosine_similarity(a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Computes `torch.cosine_similarity` from basic operations. eps: the least norm to divide by."""
    lengths = [value.norm(dim=dim, keepdim=True).clamp(min=eps) for value in (a, b)]
    return (a / lengths[0] * (b / lengths[1])).sum(dim)


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Pads features with a number, in place of PyTorch's function; refuses other modes than "constant".

    pad: pairs (before, after) of numbers of elements: for the last axis, then for the axis before it, and so
        on. Negative ones cut elements off. value: the number; None is 0.
    """
    if mode != "constant":
        raise StepError(f"padding of mode {mode} is not an operation of a step; use torch.cat")
    for place, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - place
        x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
        sides = [
            x.new_full((*x.shape[:dim], max(count, 0), *x.shape[dim + 1 :]), value or 0)
            for count in (before, after)
        ]
        x = torch.cat([sides[0], x, sides[1]], dim)
    return x


def refuse_grad_mode(enabled: Any) -> Any:
    """Raises `StepError` where a step turns gradients on or off, as torch.no_grad does: a graph of operations
    cannot express that. enabled: whether they are turned on.
    """
    raise StepError(
        "a step cannot turn gradients off or on for a part of it, as torch.no_grad does: write "
        "x.detach() for each value that should pass no gradient"
    )


LAYER = "a layer of torch.nn that runs over steps itself is not an operation of a step: use its cell"
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")

REWRITTEN: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.gru_cell: gru_cell,
    torch.lstm_cell: lstm_cell,
    torch.rnn_tanh_cell: rnn_tanh_cell,
    torch.rnn_relu_cell: rnn_relu_cell,
    torch.cosine_similarity: cosine_similarity,
    torch.nn.functional.pad: pad,
    torch.nn.functional.group_norm: group_norm_of_features,
    torch.nn.functional.instance_norm: instance_norm(group_norm_of_features),
    torch.nn.functional.local_response_norm: refused(
        "a local response norm is not an operation of a step: write the mean of squares of neighbouring "
        "channels by slices"
    ),
    torch.bilinear: bilinear,
    torch.einsum: einsum,
    torch.unbind: unbound,
    torch.Tensor.unbind: unbound,
    **{getattr(torch, name): refused(LAYER) for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")},
    torch.dropout: dropped,
    torch._C._set_grad_enabled: refuse_grad_mode,
    **{getattr(torch.nn.functional, name): dropped for name in DROPOUTS},
}


FUNCTION = torch.autograd.Function.apply.__code__
"""The code that calls a function with a custom gradient."""


class Rewritten(overrides.TorchFunctionMode):
    """Context in which calls of PyTorch's functions are traced as their replacements in a table.

    It also records the user's line for the operations of each function, and refuses custom autograd
    functions: a trace would have their operations but not their gradients.
    """

    def __init__(
        self, replaced: Mapping[Callable[..., Any], Callable[..., Any]], line: Callable[[], str]
    ) -> None:
        """Stores the table of replaced functions, and the function that returns the user's line."""
        super().__init__()  # type: ignore[misc]
        self.replaced, self.line = replaced, line
        # The whole trace may run inside custom autograd functions that do not belong to the step.
        self.around = calls_of(FUNCTION)

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Runs one function of PyTorch that is called in a trace (PyTorch calls this method for each): its
        replacement, or `function` itself if the table has none. Notes the user's line for the operations that
        it adds to the graph.

        Raises `StepError` inside a custom autograd function of the step.
        """
        fx_traceback.set_stack_trace([self.line()])
        if calls_of(FUNCTION) > self.around:
            raise StepError(
                "a step cannot have the custom gradient of a torch.autograd.Function: its gradient "
                "is that of its operations"
            )
        traced: Any = self.replaced.get(function) or function
        return traced(*arguments, **(options or {}))
