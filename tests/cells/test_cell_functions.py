"""Cells of `FORMS`: as other libraries have them, ragged, in any batch, with gradients; what they refuse."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import cell_cases
import numpy as np
import pytest
from callers import threads
from gradcheck import assert_gradient, segments_of
from same_bits import assert_same_bits
from saved_arrays import saved_arrays
from tolerance import assert_close, distance

import stepnet as sn
from stepnet.cells import FORMS
from stepnet.cells.forms import AXES, axes_of
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError
from tests.peers.environments import saved

SCRIPT = "cell_functions"
LENGTHS = (4, 0, 1, 7)
WIDTH = 15
"""The most numbers that a step sums."""


@cache
def recurrence(cell: str, dtype: str) -> sn.RNN:
    """The recurrence of a cell whose inputs are known."""
    specs = transform(lambda one: sn.Spec(one.shape[2:], dtype), cell_cases.inputs(cell, 1, 1))
    params = cell_cases.parameters(cell, dtype)
    return sn.RNN(getattr(sn.cells, cell), params, memory=cell_cases.memory(cell), inputs=specs)


def close(actual: Any, right: Any, dtype: str) -> None:
    """Asserts that structures of arrays agree, by the one formula."""
    for one, other in zip(leaves(actual), leaves(right), strict=True):
        assert_close(one, other, max(LENGTHS), WIDTH, dtype)


# ---- as other libraries have them


@cache
def judged(path: Path) -> dict[str, Any]:
    return saved_arrays(path)


def part(path: Path, cell: str, name: str) -> Any:
    """The arrays of a saved case: x, memory, params, output or final."""
    front = f"{cell}|{name}|"
    found = {key.removeprefix(front): array for key, array in judged(path).items() if key.startswith(front)}
    return found.get("", found) if found else None


def check(path: Path, cell: str, engine: str, dtype: str) -> float:
    """Asserts that a cell gives what another library gave for the same arrays, in float32; how far it is."""
    x, memory, params = (
        transform(lambda one: one.astype(dtype), value)
        if (value := part(path, cell, name)) is not None
        else None
        for name in ("x", "memory", "params")
    )
    rnn = sn.RNN(getattr(sn.cells, cell), params, memory=cell_cases.memory(cell))
    output, final = rnn(x, initial=memory, engine=engine)
    actual, right = (output, final), (part(path, cell, "output"), part(path, cell, "final"))
    close(actual, right, "float32")
    return max(distance(one, other) for one, other in zip(leaves(actual), leaves(right), strict=True))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", FORMS)
def test_cell_is_the_function_of_another_library(cell: str, dtype: str):
    check(saved(SCRIPT), cell, "llvm" if dtype == "float32" else "interpret", dtype)


# ---- on every engine


def by_hand(cell: str, x: Any, memory: Any, length: int) -> tuple[list[Any], Any]:
    """The step called on plain arrays, once for each step."""
    outputs: list[Any] = []
    for number in range(length):
        now = transform(lambda one, at=number: one[:, at], x)
        output, memory = getattr(sn.cells, cell)(now, memory, cell_cases.parameters(cell))
        outputs.append(output)
    return outputs, memory


@pytest.mark.long(every=3)
@pytest.mark.parametrize("cell", FORMS)
def test_ragged_sequences_are_the_step_on_plain_arrays(cell: str):
    rows, dtype = len(LENGTHS), "float64"
    x, initial = cell_cases.inputs(cell, rows, max(LENGTHS)), cell_cases.initial(cell, rows)
    ragged = transform(lambda one: sn.Ragged.from_padded(one.astype(dtype), LENGTHS), x)
    output, final = recurrence(cell, dtype)(ragged, initial=cast_to(dtype, initial), engine="llvm")
    for row, length in enumerate(LENGTHS):
        steps, last = by_hand(cell, only(row, x), only(row, initial), length)
        assert len(output[row]) == length
        for number, right in enumerate(steps):
            close(output[row][number], right[0], dtype)
        close(only(row, final), last, dtype)


def only(row: int, value: Any) -> Any:
    """One row of arrays [rows, ...], as one row."""
    return transform(lambda one: one[row : row + 1], value)


def cast_to(dtype: str, value: Any) -> Any:
    return transform(lambda one: one.astype(dtype), value)


@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.long(every=3)
@pytest.mark.parametrize("cell", FORMS)
def test_bits_depend_on_no_batch_and_on_no_threads(cell: str):
    rows, rnn = len(LENGTHS), recurrence(cell, "float32")
    x, initial = cell_cases.inputs(cell, rows, 7, "float32"), cell_cases.initial(cell, rows, "float32")
    output, final = rnn(x, initial=initial, lengths=LENGTHS, engine="llvm")
    with threads(1):
        assert_same_bits(rnn(x, initial=initial, lengths=LENGTHS, engine="llvm"), (output, final))
    for row, length in enumerate(LENGTHS):
        alone, last = rnn(only(row, x), initial=only(row, initial), lengths=[length], engine="llvm")
        assert_same_bits(alone, only(row, output))
        assert_same_bits(last, only(row, final))


@pytest.mark.parametrize("cell", FORMS)
def test_gradients_are_those_of_differences(cell: str):
    net, lengths = recurrence(cell, "float64").net, (3, 0, 1)
    x = transform(lambda one: one[0], cell_cases.inputs(cell, 1, sum(lengths)))
    given = [x, cell_cases.initial(cell, len(lengths)), cell_cases.parameters(cell)]
    assert_gradient(net, segments_of(lengths), leaves([one for one in given if one is not None]))


# ---- large exponents, which are whole numbers here, so that none of them is rounded

Wide = np.longdouble


def log_sigmoid(x: Any) -> Any:
    return -np.logaddexp(0, -x)


def plain_mlstm(x: dict[str, Any], params: Any) -> list[Any]:
    """Equations 19 to 27 of the xLSTM's paper, with exponents as they are, for numbers of a wide range."""
    cell, norm, outputs = 0, 0, []
    for q, k, v, i, f in zip(*(x[name] for name in "qkvif"), strict=True):
        forget, new = np.exp(log_sigmoid(f)), np.exp(i)
        cell = forget[:, None, None] * cell + new[:, None, None] * k[:, :, None] * v[:, None, :]
        norm = forget[:, None] * norm + new[:, None] * k
        over = np.maximum(abs((q * norm).sum(-1)), 1)
        outputs.append(np.einsum("hk,hkv->hv", q, cell) / over[:, None])
    return outputs


def plain_slstm(x: dict[str, Any], params: Any) -> list[Any]:
    """Equations 8 to 18 of the xLSTM's paper; R is 0."""
    c, n, outputs = 0, 0, []
    for i, f, z, o in zip(*(x[name] for name in "ifzo"), strict=True):
        forget, new = np.exp(log_sigmoid(f)), np.exp(i)
        c, n = forget * c + new * np.tanh(z), forget * n + new
        outputs.append(c / n * np.exp(log_sigmoid(o)))
    return outputs


def plain_rwkv4(x: dict[str, Any], params: Any) -> list[Any]:
    """Equation 16 of the RWKV's paper."""
    num, den, outputs = 0, 0, []
    for k, v in zip(x["k"], x["v"], strict=True):
        bonus = np.exp(params["u"] + k)
        outputs.append((num + bonus * v) / (den + bonus))
        num, den = (np.exp(params["w"]) * part + np.exp(k) * value for part, value in ((num, v), (den, 1)))
    return outputs


WIDE = {"mlstm": (plain_mlstm, "if"), "slstm": (plain_slstm, "if"), "rwkv4": (plain_rwkv4, "k")}


@pytest.mark.skipif(np.finfo(Wide).maxexp < 16384, reason="NumPy has no wider floating type here")
@pytest.mark.parametrize("cell", WIDE)
def test_large_exponents_overflow_nothing(cell: str):
    plain, large = WIDE[cell]
    x, random = cell_cases.inputs(cell, 1, 7), np.random.default_rng(4)
    x |= {name: random.integers(-600, 600, x[name].shape).astype("float64") for name in large}
    x[large[0]][:, 0] = -800  # where 0 is no exponent to start from
    if "f" in x:
        x["f"] = np.where(x["f"] > 0, 2000.0, -2000.0)  # its sigmoid is 1, or exp(-2000)
    params = {
        "mlstm": None,
        "slstm": transform(np.zeros_like, cell_cases.parameters("slstm")),
        "rwkv4": {"w": -np.arange(5.0) - 1, "u": 100 * np.arange(5.0)},
    }[cell]
    output, _ = sn.RNN(getattr(sn.cells, cell), params, memory=cell_cases.memory(cell))(x, engine="llvm")
    wide = transform(lambda one: one[0].astype(Wide), x)
    right = plain(wide, transform(lambda one: one.astype(Wide), params or {}))
    close(output[0], np.stack(right).astype("float64"), "float64")


# ---- what they refuse


def delta(**changes: Any) -> Any:
    """Inputs of `delta_rule`, some of them others; None takes one out."""
    made = cell_cases.inputs("delta_rule", 1, 2) | changes
    return {name: value for name, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (delta(beta=None), "delta_rule has no input beta: it takes a dict of q, k, v, beta, not q, k, v"),
        (delta(g=np.ones((1, 2, 4))), "delta_rule was given 'g' as input: it takes a dict of q, k, v, beta"),
        (np.ones((1, 2, 3)), "delta_rule has no input q: it takes a dict of q, k, v, beta, not a Traced"),
        (
            delta(beta=np.ones((1, 2, 3))),
            "beta of delta_rule has 3 heads where q has 4: the axes of beta are rows, heads",
        ),
        (
            delta(beta=np.ones((1, 2, 4, 1))),
            "beta of delta_rule has the axes rows, heads, not 3 axes",
        ),
        (
            delta(v=np.ones((1, 2, 4, 6))),
            "the memory of delta_rule has 5 value where v has 6: the axes of the memory are",
        ),
    ],
)
def test_inputs_that_do_not_fit(x: Any, message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        sn.RNN(sn.cells.delta_rule, memory=cell_cases.memory("delta_rule"))(x)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (None, "mamba has no parameter A: it takes a dict of A, D (optional), not None"),
        ({"D": np.ones(5)}, "mamba has no parameter A: it takes a dict of A, D (optional), not D"),
        (
            {"A": -np.ones((5, 3)), "d": np.ones(5)},
            "mamba was given 'd' as parameter: it takes a dict of A, D",
        ),
        (
            {"A": -np.ones((5, 4))},
            "A of mamba has 4 states where B has 3: the axes of A are channels, states",
        ),
        (np.ones((5, 3)), "mamba has no parameter A: it takes a dict of A, D (optional), not a Traced"),
    ],
)
def test_parameters_that_do_not_fit(params: Any, message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        sn.RNN(sn.cells.mamba, params, memory=(5, 3))(cell_cases.inputs("mamba", 1, 2))


def test_parameters_of_a_cell_without():
    wrong = "delta_rule was given a Traced as parameter: it takes none"
    with pytest.raises(InputError, match=wrong):
        sn.RNN(sn.cells.delta_rule, np.ones(2), memory=cell_cases.memory("delta_rule"))(delta())


def test_heads_that_groups_do_not_share_evenly():
    x = cell_cases.inputs("mamba2", 1, 2) | {name: np.ones((1, 2, 3, 3)) for name in "BC"}
    with pytest.raises(InputError, match="mamba2 has 4 heads, which must be a multiple of its 3 groups"):
        sn.RNN(sn.cells.mamba2, cell_cases.parameters("mamba2"), memory=cell_cases.memory("mamba2"))(x)


def test_kernel_and_memory_of_a_convolution():
    message = "the memory holds 3 inputs, and the kernel has length 3: causal_convolution has a"
    with pytest.raises(InputError, match=message):
        sn.RNN(sn.cells.causal_convolution, {"weight": np.ones((5, 3))}, memory=(5, 3))(np.ones((1, 2, 5)))


@pytest.mark.parametrize("cell", FORMS)
def test_memory_by_sizes(cell: str):
    letters = "".join(axes_of(FORMS[cell].memory).values())
    assert sn.cells.memory(
        cell, **{AXES[one]: cell_cases.SIZES[one] for one in letters}
    ) == cell_cases.memory(cell)


@pytest.mark.parametrize(
    ("cell", "sizes", "message"),
    [
        ("delta", {}, "no cell is called 'delta'; there are causal_convolution, "),
        ("mamba", {"channels": 2}, "the memory of mamba has the sizes channels, states, not channels"),
        ("mamba", {"channels": 2, "states": 1.5}, "states is a size, not 1.5"),
    ],
)
def test_memory_of_wrong_sizes(cell: str, sizes: Any, message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        sn.cells.memory(cell, **sizes)


def test_cells_are_found_in_the_families_of_their_rows():
    assert set(FORMS) <= set(sn.cells.__all__)
    for name, form in FORMS.items():
        assert getattr(sn.cells, name).__module__ == f"stepnet.cells.{form.family}"
    with pytest.raises(AttributeError, match=r"module 'stepnet\.cells' has no attribute 'mambo'"):
        _ = sn.cells.mambo
