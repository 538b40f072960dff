"""The named cells: each a step function, its equations in a few lines, and one row of `CELLS`.

Parameters, with the gates concatenated along the last axis in the order of the row (rzn, ifgo, fn):

    W  [inputs, gates x hidden]     the inputs' weights
    R  [output, gates x hidden]     the recurrent weights; the output is the hidden state, or its projection
    b  [gates x hidden]             the input bias, optional
    d  [gates x hidden]             the recurrent bias, optional
    P  [hidden, projected]          the projection
    p  [3, hidden]                  the peepholes of the gates i f o, in this order

The step functions also run on plain arrays: x [rows, inputs], h and c [rows, hidden].
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from stepnet.compiler.trace.functions import relu, sigmoid
from stepnet.compiler.trace.spec import Step
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import (
    array_of,
    checked_integer,
    dtype_name,
    flag,
    is_one_of,
    mapping,
    short_repr,
)
from stepnet.compiler.values.fork_guard import module_late
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.recurrence import RNN

__all__ = [
    "CELLS",
    "Cell",
    "cell",
    "gru",
    "gru_reset_before",
    "lstm",
    "lstm_peephole",
    "lstm_projection",
    "minimal_gated_unit",
    "rnn",
    "simple_rnn",
    "simple_rnn_relu",
]

Parameters = Mapping[str, Any]


def part(values: Any, name: str, kind: str) -> Any:
    """Returns the array `name` of a cell's parameters or memory; raises `InputError` if it is missing.

    kind: "parameters" or "memory", for the message.
    """
    if not isinstance(values, Mapping) or name not in values:
        raise InputError(
            f"the {kind} of this cell are arrays by name, {name!r} among them, not {short_repr(values)}"
        )
    return cast("Parameters", values)[name]


def from_input(x: Any, params: Parameters) -> Any:
    """Computes x W + b: the part of all gates, side by side, from the input; `params` may lack b."""
    product = x @ part(params, "W", "parameters")
    return product + params["b"] if "b" in params else product


def from_state(h: Any, params: Parameters) -> Any:
    """Computes h R + d: the part of all gates, side by side, from the state; `params` may lack d."""
    product = h @ part(params, "R", "parameters")
    return product + params["d"] if "d" in params else product


# ---- the equations -----------------------------------------------------------------------------------------


def simple_rnn(x: Any, h: Any, params: Parameters, activation: Any = np.tanh) -> tuple[Any, Any]:
    """Computes a step of a simple recurrent network, h' = tanh(x W + b + h R + d); returns (h', h').

    J. L. Elman, "Finding structure in time", Cognitive Science 14 (1990).

    x [rows (sequences), inputs]; h [rows, hidden], which is also the output; params: W [inputs, hidden],
    R [hidden, hidden], and optional b, d [hidden]; activation: the function in place of tanh.

    >>> params = {"W": np.float32([[1]]), "R": np.float32([[2]])}
    >>> simple_rnn(np.float32([[4]]), np.float32([[-2]]), params)
    (array([[0.]], dtype=float32), array([[0.]], dtype=float32))
    """
    h = activation(from_input(x, params) + from_state(h, params))
    return h, h


def simple_rnn_relu(x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a simple recurrent network with relu in place of tanh; returns (output, memory).

    Q. V. Le, N. Jaitly and G. E. Hinton, "A simple way to initialize recurrent networks of rectified linear
    units", 2015. x [rows (sequences), inputs]; h [rows, hidden]; params: W [inputs, hidden], R [hidden,
    hidden], and optional b, d [hidden].

    >>> params = {"W": np.float32([[1]]), "R": np.float32([[2]])}
    >>> simple_rnn_relu(np.float32([[4]]), np.float32([[-1]]), params)
    (array([[2.]], dtype=float32), array([[2.]], dtype=float32))
    """
    return simple_rnn(x, h, params, relu)


def gru(x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of the gated recurrent unit with its reset after the recurrent product, as in cuDNN,
    PyTorch and Keras; returns (output, memory).

    K. Cho and others, "Learning phrase representations using RNN encoder-decoder", EMNLP 2014, in the first
    version on arXiv (1406.1078v1). The update gate z keeps the old memory: h' = z h + (1 - z) n.

    x [rows (sequences), inputs]; h [rows, hidden], also the output; params: W [inputs, 3 hidden],
    R [hidden, 3 hidden], optional b, d [3 hidden], with the gates r, z, n side by side.

    >>> zeros = np.zeros((1, 3), "f4")
    >>> params = {"W": zeros, "R": zeros}  # the gates are 1/2, the candidate is 0
    >>> gru(np.float32([[1]]), np.float32([[2]]), params)
    (array([[1.]], dtype=float32), array([[1.]], dtype=float32))
    """
    x_r, x_z, x_n = np.split(from_input(x, params), 3, axis=-1)
    h_r, h_z, h_n = np.split(from_state(h, params), 3, axis=-1)
    r = sigmoid(x_r + h_r)
    z = sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)
    h = n + z * (h - n)
    return h, h


def gru_reset_before(x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of the gated recurrent unit with its reset before the recurrent product, as first
    published; returns (output, memory).

    K. Cho and others, "Learning phrase representations using RNN encoder-decoder", EMNLP 2014 (arXiv
    1406.1078v3). n = tanh(x W + b + (r h) R + d): the bias is not reset. z keeps the old memory.

    x [rows (sequences), inputs]; h [rows, hidden], also the output; params: W [inputs, 3 hidden],
    R [hidden, 3 hidden], optional b, d [3 hidden], with the gates r, z, n side by side.

    >>> zeros = np.zeros((1, 3), "f4")
    >>> params = {"W": zeros, "R": zeros}  # the gates are 1/2, the candidate is 0
    >>> gru_reset_before(np.float32([[1]]), np.float32([[2]]), params)
    (array([[1.]], dtype=float32), array([[1.]], dtype=float32))
    """
    hidden = h.shape[-1]
    gates, candidate = slice(0, 2 * hidden), slice(2 * hidden, None)
    from_x = from_input(x, params)
    r, z = np.split(sigmoid(from_x[:, gates] + from_state(h, gate_weights(params, gates))), 2, axis=-1)
    n = np.tanh(from_x[:, candidate] + from_state(r * h, gate_weights(params, candidate)))
    h = n + z * (h - n)
    return h, h


def gate_weights(params: Parameters, gates: slice) -> dict[str, Any]:
    """Returns the columns of some gates of the recurrent weights R, and of the bias d if there is one, by
    name. params: the cell's parameters. gates: a slice of the columns of all gates.
    """
    return {name: params[name][..., gates] for name in ("R", "d") if name in params}


def minimal_gated_unit(x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of the minimal gated unit, whose one gate f resets the memory and lets the candidate n
    in; returns (output, memory).

    G.-B. Zhou and others, "Minimal gated unit for recurrent neural networks", International Journal of
    Automation and Computing 13 (2016). Here f writes, as in the paper: h' = (1 - f) h + f n.

    x [rows (sequences), inputs]; h [rows, hidden], also the output; params: W [inputs, 2 hidden],
    R [hidden, 2 hidden], optional b, d [2 hidden], with the gates f, n side by side.

    >>> zeros = np.zeros((1, 2), "f4")
    >>> params = {"W": zeros, "R": zeros}  # the gate is 1/2, the candidate is 0
    >>> minimal_gated_unit(np.float32([[1]]), np.float32([[2]]), params)
    (array([[1.]], dtype=float32), array([[1.]], dtype=float32))
    """
    hidden = h.shape[-1]
    gate, candidate = slice(0, hidden), slice(hidden, None)
    from_x = from_input(x, params)
    f = sigmoid(from_x[:, gate] + from_state(h, gate_weights(params, gate)))
    n = np.tanh(from_x[:, candidate] + from_state(f * h, gate_weights(params, candidate)))
    h = h + f * (n - h)
    return h, h


def lstm(x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of the long short-term memory with a forget gate, as all frameworks have it; returns
    (output, memory).

    S. Hochreiter and J. Schmidhuber, "Long short-term memory", Neural Computation 9 (1997), with the forget
    gate of F. A. Gers, J. Schmidhuber and F. Cummins, "Learning to forget", Neural Computation 12 (2000).

    x [rows (sequences), inputs]; memory {"h": ..., "c": ...}, both [rows, hidden]; the output is h; params:
    W [inputs, 4 hidden], R [hidden, 4 hidden], optional b, d [4 hidden], with the gates i, f, g, o side by
    side.

    >>> params = {"W": np.zeros((1, 4), "f4"), "R": np.zeros((1, 4), "f4")}  # the gates are 1/2, g is 0
    >>> h, memory = lstm(np.float32([[1]]), {"h": np.float32([[3]]), "c": np.float32([[2]])}, params)
    >>> memory["c"]
    array([[1.]], dtype=float32)
    """
    h, c = (part(memory, name, "memory") for name in "hc")
    i, f, g, o = np.split(from_input(x, params) + from_state(h, params), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, {"h": h, "c": c}


def lstm_peephole(x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of the LSTM with peepholes: the gates i and f read the old cell c, the gate o reads the
    new one. Returns (output h, memory {"h": ..., "c": ...}).

    F. A. Gers and J. Schmidhuber, "Recurrent nets that time and count", IJCNN 2000.

    x [rows (sequences), inputs]; memory h and c [rows, hidden]; params: as of `lstm`, and the peepholes
    p [3, hidden] of i, f, o.

    >>> zeros = np.zeros((1, 4), "f4")
    >>> params = {"W": zeros, "R": zeros, "p": np.zeros((3, 1), "f4")}  # the gates are 1/2, g is 0
    >>> h, memory = lstm_peephole(np.float32([[1]]), {"h": np.float32([[3]]), "c": np.float32([[2]])}, params)
    >>> memory["c"]
    array([[1.]], dtype=float32)
    """
    h, c = (part(memory, name, "memory") for name in "hc")
    p = part(params, "p", "parameters")
    p_i, p_f, p_o = p[0], p[1], p[2]
    i, f, g, o = np.split(from_input(x, params) + from_state(h, params), 4, axis=-1)
    c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * np.tanh(g)
    h = sigmoid(o + p_o * c) * np.tanh(c)
    return h, {"h": h, "c": c}


def lstm_projection(x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of the LSTM whose hidden state, which is also its output, is projected to fewer
    features; returns (output, memory).

    H. Sak, A. Senior and F. Beaufays, "Long short-term memory recurrent neural network architectures for
    large scale acoustic modeling", Interspeech 2014.

    x [rows (sequences), inputs]; memory {"h": [rows, projected], "c": [rows, hidden]}; params: as of `lstm`,
    with R [projected, 4 hidden], and the projection P [hidden, projected].

    >>> params = CELLS["lstm_projection"].parameters(inputs=1, hidden=8, projected=3)
    >>> memory = {"h": np.zeros((1, 3), "f4"), "c": np.zeros((1, 8), "f4")}
    >>> h, memory = lstm_projection(np.float32([[1]]), memory, params)
    >>> h.shape, memory["c"].shape
    ((1, 3), (1, 8))
    """
    h, c = (part(memory, name, "memory") for name in "hc")
    i, f, g, o = np.split(from_input(x, params) + from_state(h, params), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = (sigmoid(o) * np.tanh(c)) @ part(params, "P", "parameters")
    return h, {"h": h, "c": c}


# ---- the table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A named cell: its step and the form of its parameters. `CELLS` lists all.

    Attributes:
        step: The step function.
        gates: The order of the gates in the parameters.
        memories: "h", or "hc" for a memory {"h": ..., "c": ...}.
        further: The parameters other than W, R, b and d.

    >>> CELLS["lstm_projection"].shapes(inputs=5, hidden=8, projected=3)
    {'W': (5, 32), 'R': (3, 32), 'b': (32,), 'd': (32,), 'P': (8, 3)}
    """

    step: Step
    gates: str
    memories: str = "h"
    further: tuple[str, ...] = ()

    def memory(self, hidden: int, projected: int | None = None) -> Any:
        """Returns the sizes of this cell's memory in the form of `RNN`'s argument memory=: a number of
        features, such as 64, or {"h": 64, "c": 64}. Raises `InputError` for sizes that are no whole numbers.

        hidden: the number of hidden units. projected: the size of h if the cell projects it.

        >>> CELLS["gru"].memory(64), CELLS["lstm"].memory(64)
        (64, {'h': 64, 'c': 64})
        """
        hidden, projected = checked_integer(hidden, HIDDEN), projection(projected)
        if self.memories == "h":
            return hidden
        return {"h": hidden if projected is None else projected, "c": hidden}

    def shapes(self, inputs: int, hidden: int, projected: int | None = None) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each parameter of this cell, by name, optional biases too, at the given sizes.
        Raises `InputError` for a projected size of a cell that has no projection.
        """
        inputs, hidden = checked_integer(inputs, INPUTS), checked_integer(hidden, HIDDEN)
        projected = projection(projected)
        if projected is not None and "P" not in self.further:
            raise InputError(f"{self.step.__name__} has no projection; leave projected= out")
        gates, output = len(self.gates) * hidden, hidden if projected is None else projected
        further = {"P": (hidden, output), "p": (3, hidden)}
        shapes = {"W": (inputs, gates), "R": (output, gates), "b": (gates,), "d": (gates,)}
        return shapes | {name: further[name] for name in self.further}

    def parameters(
        self,
        inputs: int,
        hidden: int,
        projected: int | None = None,
        *,
        bias: bool = True,
        seed: "int | np.random.Generator" = 0,  # as text: NumPy loads its random numbers when they are named
        dtype: Any = "float32",
    ) -> dict[str, np.ndarray]:
        """Draws random parameters by name, uniform from -1 / sqrt(hidden) to 1 / sqrt(hidden), as in PyTorch.

        Args:
            inputs: The number of inputs.
            hidden: The number of hidden units.
            projected: The size of the projection, for a cell that has one.
            bias: Whether to make the biases b and d.
            seed: A whole number, or a generator of NumPy's.
            dtype: The dtype of the arrays.

        Raises:
            InputError: For sizes that are no whole numbers, and a projection for a cell that has none.

        >>> {name: array.shape for name, array in CELLS["gru"].parameters(inputs=5, hidden=8).items()}
        {'W': (5, 24), 'R': (8, 24), 'b': (24,), 'd': (24,)}
        """
        shapes = self.shapes(inputs, checked_integer(hidden, HIDDEN, 1), projected).items()
        numbers = module_late("numpy.random")
        if not isinstance(seed, numbers.Generator):
            seed = checked_integer(seed, "seed is a whole number from 0 on, or a generator of NumPy's")
        parameter_dtype, bias = dtype_name(dtype, "the parameters"), flag(bias, "bias")
        random, most = numbers.default_rng(seed), 1 / math.sqrt(hidden)
        drawn = {name: random.uniform(-most, most, shape).astype(parameter_dtype) for name, shape in shapes}
        return {name: value for name, value in drawn.items() if bias or name not in BIASES}

    def sizes(self, params: Parameters) -> tuple[int, int, int | None]:
        """Reads off the sizes of this cell's parameters; returns (inputs, hidden, projected or None).

        Raises:
            InputError: For parameters that do not fit the cell or each other.

        >>> CELLS["lstm_projection"].sizes(CELLS["lstm_projection"].parameters(5, 8, 3))
        (5, 8, 3)
        """
        arrays = mapping(params, f"parameters of {self.step.__name__} are arrays by name")
        shapes = {name: shape_of(value, name) for name, value in arrays.items()}
        needed = self.shapes(0, 0)
        missing = [name for name in needed if name not in shapes and name not in BIASES]
        unknown = [name for name in shapes if name not in needed]
        title = self.step.__name__
        if missing or unknown:
            arrays = f"it has {', '.join(needed)}, and given are {', '.join(shapes) or 'none'}"
            wrong = f"no parameter {missing[0]}" if missing else f"a parameter {unknown[0]} it does not know"
            raise InputError(f"{title} was given {wrong}: {arrays}")
        if len(shapes["W"]) != 2 or len(shapes["R"]) != 2:
            raise InputError(f"W and R of {title} have two axes, not {shapes['W']} and {shapes['R']}")
        sizes = shapes["W"][0], shapes["R"][1] // len(self.gates), None
        if "P" in self.further:
            sizes = *sizes[:2], shapes["R"][0]
        for name, expected in self.shapes(*sizes).items():
            if shapes.get(name, expected) != expected:
                raise InputError(
                    f"{name} of {title} has shape {shapes[name]} where {expected} fits the others: "
                    f"{len(self.gates)} gates ({self.gates}) of {sizes[1]}, {sizes[0]} inputs"
                )
        return sizes


BIASES = ("b", "d")
INPUTS, HIDDEN = "inputs is how many inputs there are", "hidden is how many units there are"


def shape_of(value: Any, name: str) -> tuple[int, ...]:
    """Returns the shape of a parameter: an array, or a constant of a traced model. name: for messages."""
    if isinstance(value, Traced) and value.is_constant:
        return value.type.shape
    return array_of(value, name).shape


def projection(projected: Any) -> int | None:
    """Checks the size of a projection that a caller gives, None for none, and returns it; raises `InputError`
    unless it is a whole number.
    """
    return (
        None
        if projected is None
        else checked_integer(projected, "projected is the size of the projection, or None")
    )


CELLS: dict[str, Cell] = {
    "simple_rnn": Cell(simple_rnn, "n"),
    "simple_rnn_relu": Cell(simple_rnn_relu, "n"),
    "gru": Cell(gru, "rzn"),
    "gru_reset_before": Cell(gru_reset_before, "rzn"),
    "minimal_gated_unit": Cell(minimal_gated_unit, "fn"),
    "lstm": Cell(lstm, "ifgo", "hc"),
    "lstm_peephole": Cell(lstm_peephole, "ifgo", "hc", ("p",)),
    "lstm_projection": Cell(lstm_projection, "ifgo", "hc", ("P",)),
}


def cell(name: str) -> Cell:
    """Looks up a cell in `CELLS` by its name, such as "gru".

    Raises:
        InputError: For any other name; the message lists the names.

    >>> cell("lstm").gates
    'ifgo'
    """
    if not is_one_of(name, CELLS):
        raise InputError(f"no cell is called {short_repr(name)}; there are {', '.join(CELLS)}")
    return CELLS[name]


def rnn(name: str, params: Parameters, *, reverse: bool = False) -> RNN:
    """Makes the recurrence of a named cell, in the sizes of its parameters.

    Args:
        name: One of `CELLS`: simple_rnn, simple_rnn_relu, gru, gru_reset_before, minimal_gated_unit, lstm,
            lstm_peephole, lstm_projection.
        params: The parameters by name: W, R, and those of b, d, P, p that the cell has. Inside a model or a
            step they may be parameters of the model or step, which then have gradients.
        reverse: Whether each sequence runs from its last step.

    Raises:
        InputError: For another name, and for parameters that do not fit the cell.

    >>> rnn("gru", CELLS["gru"].parameters(inputs=12, hidden=64))
    RNN(gru, ...)
    """
    kind = cell(name)
    inputs, hidden, projected = kind.sizes(params)
    return RNN(kind.step, params, memory=kind.memory(hidden, projected), inputs=inputs, reverse=reverse)
