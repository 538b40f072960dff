"""Inputs and parameters of every cell of `stepnet.cells` whose gates are far from zero."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cell_cases
import numpy as np

import stepnet as sn
from stepnet.cells import CELLS, FORMS
from stepnet.compiler.values import transform

Array = np.ndarray
Row = tuple[float, str, int]
"""A size of gates, their signs, and how far they are from it at most."""
Rows = Sequence[Row]
SIZES = (30.0, 100.0, 300.0)
SIGNS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "open": lambda random, shape: np.ones(shape),
    "closed": lambda random, shape: -np.ones(shape),
    "mixed": lambda random, shape: random.choice([-1.0, 1.0], shape),
}
"""The signs of the gates of a row."""

FAR: Rows = tuple((size, signs, 3) for size in SIZES for signs in SIGNS)
EQUAL: Rows = ((0, "open", 0), (2, "closed", 0), (2, "open", 0))
HIDDEN = 4

GATES = {
    "min_gru": "z",
    "min_lstm": "f i",
    "mlstm": "i f",
    "rg_lru": "r i",
    "rwkv4": "k",
    "slstm": "i f o",
}
"""The inputs that are gates before their functions. Those of other cells are results of `FUNCTIONS`."""


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    **dict.fromkeys(["g", "w"], lambda x: -softplus(-x)),  # the logarithm of a sigmoid
    "dt": softplus,
    **dict.fromkeys(["beta", "eta"], lambda x: np.exp(-softplus(-x))),
}


@dataclass(frozen=True)
class Gated:
    """A cell with its arguments in float64."""

    step: Callable[..., Any]
    memory: Any
    params: Any
    x: Any
    initial: Any

    def rnn(self, dtype: str) -> sn.RNN:
        """Its recurrence."""
        return sn.RNN(self.step, cast_to(dtype, self.params), memory=self.memory)


def cast_to(dtype: str, value: Any) -> Any:
    return None if value is None else transform(lambda one: one.astype(dtype), value)


def gates(random: np.random.Generator, shape: tuple[int, ...], rows: Rows) -> Array:
    """Gates [rows, ...]: eighths, so that sums of exponents are not rounded."""
    drawn = [
        SIGNS[signs](random, shape[1:]) * (size + eighths(random, spread, shape[1:]))
        for size, signs, spread in rows
    ]
    return np.stack(drawn)


def eighths(random: np.random.Generator, most: int, shape: tuple[int, ...]) -> Array:
    return random.integers(-8 * most, 8 * most + 1, shape) / 8


def gated(cell: str, steps: int, rows: Rows = FAR, seed: int = 0) -> Gated:
    """A cell with such gates at all of so many steps. All numbers are those of float32."""
    random = np.random.default_rng(seed)
    made = (named if cell in CELLS else of_forms)(cell, steps, rows, random)
    rounded = (cast_to("float64", cast_to("float32", one)) for one in (made.params, made.x, made.initial))
    return Gated(made.step, made.memory, *rounded)


def named(name: str, steps: int, rows: Rows, random: np.random.Generator) -> Gated:
    """A gated cell, each of whose inputs goes to one gate of one unit."""
    kind = CELLS[name]
    width = len(kind.gates) * HIDDEN
    projected = 3 if "P" in kind.further else None
    params = kind.parameters(width, HIDDEN, projected, seed=random, dtype="float64")
    params["W"] = np.eye(width)
    if name == "simple_rnn_relu":
        params["R"] /= 2  # so that nothing grows
    x = gates(random, (len(rows), steps, width), rows)
    candidates = [place for place, gate in enumerate(kind.gates) if gate in "ng"]
    for place in candidates if len(kind.gates) > 1 else []:
        at = slice(place * HIDDEN, (place + 1) * HIDDEN)
        x[..., at] = random.normal(size=x[..., at].shape)
    memory = kind.memory(HIDDEN, projected)
    initial = transform(lambda size: random.normal(size=(len(rows), size)), memory)
    return Gated(kind.step, memory, params, x, initial)


def of_forms(cell: str, steps: int, rows: Rows, random: np.random.Generator) -> Gated:
    """A cell of `FORMS`."""
    x, initial = cell_cases.inputs(cell, len(rows), steps), cell_cases.initial(cell, len(rows))
    for name in x if isinstance(x, dict) else ():
        if name in GATES.get(cell, "").split():
            x[name] = gates(random, x[name].shape, rows)
        elif name in FUNCTIONS:
            x[name] = FUNCTIONS[name](gates(random, x[name].shape, rows))
    params = cell_cases.parameters(cell)
    if cell in WELL_CONDITIONED:
        WELL_CONDITIONED[cell](random, rows, x, initial, params)
    return Gated(getattr(sn.cells, cell), cell_cases.memory(cell), params, x, initial)


def positive_keys(random: np.random.Generator, rows: Rows, x: Any, initial: Any, params: Any) -> None:
    """A normaliser q n far from zero."""
    for part, name in ((x, "q"), (x, "k"), (initial, "n")):
        part[name] = np.abs(part[name])
    initial["m"] = eighths(random, 1, initial["m"].shape)


def own_exponents(random: np.random.Generator, rows: Rows, x: Any, initial: Any, params: Any) -> None:
    """Exponents that are those of the inputs alone."""
    initial["m"] = eighths(random, 1, initial["m"].shape)
    params |= {name: 0 * params[name] for name in ("Ri", "Rf")}


def whole_exponents(random: np.random.Generator, rows: Rows, x: Any, initial: Any, params: Any) -> None:
    """Exponents whose sums are not rounded."""
    for part, name in ((initial, "max"), (params, "w"), (params, "u")):
        part[name] = eighths(random, 1, part[name].shape) - 1


def removed_keys(random: np.random.Generator, rows: Rows, x: Any, initial: Any, params: Any) -> None:
    """A memory from which is removed at most what its key reads, as in models."""
    x["a"] /= -np.linalg.norm(x["a"], axis=-1, keepdims=True)
    x["b"] = -x["a"] * FUNCTIONS["beta"](gates(random, x["b"].shape[:-1], rows))[..., None]


def far_apart(random: np.random.Generator, rows: Rows, x: Any, initial: Any, params: Any) -> None:
    """Features whose standard deviation is far from zero, which training does not make smaller."""
    initial["b"] += [-30, 0, 30]


WELL_CONDITIONED = {
    "mlstm": positive_keys,
    "rwkv4": whole_exponents,
    "rwkv7": removed_keys,
    "slstm": own_exponents,
    "ttt_linear": far_apart,
}
"""Changes of the numbers of `cell_cases` for which small errors stay small."""


ALL = (*CELLS, *FORMS)
