"""Every operation and NumPy function that a step may use: traced and interpreted, it gives what it gives on
arrays.

A case is a function of a and b [rows, 4], m [rows, 2, 3], s [rows], k [rows] (integers 0 to 4), t [rows, 4]
(booleans) and parameters W [4, 3], v [4], E [5, 3], B [2, 3]. Running it on NumPy arrays is the definition
of right.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import LevelSizes, interpret
from stepnet.compiler.trace import trace_step
from stepnet.compiler.values import transform

Case = Callable[[Any], Any]
ROWS = 5
SHAPES = {"a": (ROWS, 4), "b": (ROWS, 4), "m": (ROWS, 2, 3), "s": (ROWS,)}
PARAMETERS = {"W": (4, 3), "v": (4,), "E": (5, 3), "B": (2, 3), "one": (1,), "row": (1, 4)}
CLOSED = np.arange(8, dtype=np.float32).reshape(2, 4) / 8

ARITHMETIC: dict[str, Case] = {
    "add": lambda o: o.a + o.b,
    "subtract": lambda o: o.a - o.b,
    "multiply": lambda o: o.a * o.b,
    "divide": lambda o: o.a / (abs(o.b) + 1),
    "floor_divide": lambda o: o.a // 2,
    "remainder": lambda o: o.a % 3,
    "negative": lambda o: -o.a,
    "positive": lambda o: +o.a,
    "abs": lambda o: abs(o.a),
    "np.absolute": lambda o: np.absolute(o.a),
    "sign": lambda o: np.sign(o.a),
    "right operands": lambda o: 2 - o.a + 3 * o.b,
    "minimum": lambda o: np.minimum(o.a, o.b),
    "maximum": lambda o: np.maximum(o.a, 0),
    "clip": lambda o: np.clip(o.a, -1, 1),
    "clip below": lambda o: np.clip(o.a, 0, None),
    "method clip": lambda o: o.a.clip(-1, 2),
    "clip by keyword": lambda o: np.clip(o.a, a_min=-1, a_max=1),
    "clip by new keyword": lambda o: np.clip(o.a, min=-1, max=1),
    "clip by parameter": lambda o: np.clip(o.a, -abs(o.v), abs(o.v)),
    "square": lambda o: np.square(o.a) + o.a**2,
    "cube": lambda o: o.a**3,
    "power 0": lambda o: o.a**0,
    "power 1": lambda o: o.a**1,
    "power 7": lambda o: o.a**7,
    "equal": lambda o: o.a == o.b,
    "not_equal": lambda o: o.a != o.b,
    "less": lambda o: o.a < o.b,
    "less_equal": lambda o: o.a <= 0,
    "greater": lambda o: o.a > o.s[:, None],
    "greater_equal": lambda o: np.greater_equal(0, o.a),
    "and": lambda o: (o.a > 0) & (o.b > 0),
    "or": lambda o: (o.a > 0) | (o.b > 0),
    "xor": lambda o: (o.a > 0) ^ (o.b > 0),
    "not": lambda o: ~(o.a > 0),
    "logical_and": lambda o: np.logical_and(o.a > 0, o.t),
    "logical_or": lambda o: np.logical_or(o.a, o.b),
    "logical_xor": lambda o: np.logical_xor(o.t, o.b > 0),
    "logical_not": lambda o: np.logical_not(o.t),
    "where": lambda o: np.where(o.a > o.b, o.a, o.b),
    "where by parameter": lambda o: np.where(o.v > 0, o.a, 0),
    "where number": lambda o: np.where(o.t, 1, o.a),
    "where by array": lambda o: np.where(np.array([True, False, True, False]), o.a, -o.a),
    "zeros_like": lambda o: o.a + np.zeros_like(o.a),
    "ones_like": lambda o: np.ones_like(o.m),
    "full_like": lambda o: np.full_like(o.a, 3),
    "full_like of another dtype": lambda o: np.full_like(o.a, 0.5, dtype=np.float32),
    "copy": lambda o: np.copy(o.a) + o.a.copy(),
    "cast to float32": lambda o: o.a.astype(np.float32),
    "cast to float64": lambda o: o.a.astype(float),
    "cast to int32": lambda o: (4 * o.a).astype(np.int32),
    "cast to int64": lambda o: (4 * o.a).astype("int64"),
    "cast to bool": lambda o: o.a.astype(bool),
    "cast of comparison": lambda o: (o.a > 0).astype(o.a.dtype) * o.b,
    "cast of parameter": lambda o: o.a + o.v.astype(np.float64),
    "with parameter": lambda o: o.a * o.v + o.one,
    "with a row of parameters": lambda o: o.a + o.row,
    "with an array": lambda o: o.a * np.array([1, 2, 3, 4], o.a.dtype),
    "parameters alone": lambda o: o.a + (o.v * 2 - o.row[0]),
    "rank 0 beside rank 1": lambda o: o.a + o.s[:, None],
    "rank 0": lambda o: o.s * 2 + o.s,
    "broadcast features": lambda o: o.a[:, :, None] * o.b[:, None, :],
    "matmul of integers": lambda o: o.a @ o.W,  # and of floats
}

FLOATS: dict[str, Case] = {
    "floor": lambda o: np.floor(3 * o.a),
    "ceil": lambda o: np.ceil(3 * o.a),
    "rint": lambda o: np.rint(3 * o.a),
    "fabs": lambda o: np.fabs(o.a),
    "exp": lambda o: np.exp(o.a),
    "expm1": lambda o: np.expm1(o.a),
    "log": lambda o: np.log(1.5 + o.a),
    "log of what has none": lambda o: np.log(o.a),
    "log1p": lambda o: np.log1p(abs(o.a)),
    "sqrt": lambda o: np.sqrt(abs(o.a)),
    "reciprocal": lambda o: np.reciprocal(2 + o.a),
    "tanh": lambda o: np.tanh(o.a),
    "power -2": lambda o: (o.a + 2) ** -2,
    "power 0.5": lambda o: abs(o.a) ** 0.5,
    "power 1.7": lambda o: np.power(abs(o.a), 1.7),
    "power 100": lambda o: o.a**100.0,
    "isnan": lambda o: np.isnan(np.log(o.a)),
    "sigmoid": lambda o: sn.sigmoid(20 * o.a),
    "hard_sigmoid": lambda o: sn.hard_sigmoid(5 * o.a),
    "hard_sigmoid of Keras 2": lambda o: sn.hard_sigmoid(5 * o.a, slope=0.2),
    "relu": lambda o: sn.relu(o.a),
    "leaky_relu": lambda o: sn.leaky_relu(o.a, 0.3),
    "elu": lambda o: sn.elu(o.a, 1.5),
    "selu": lambda o: sn.selu(o.a),
    "softplus": lambda o: sn.softplus(30 * o.a),
    "softsign": lambda o: sn.softsign(o.a),
    "silu": lambda o: sn.silu(o.a),
    "gelu": lambda o: sn.gelu(o.a),
    "gelu approximate": lambda o: sn.gelu(o.a, approximate=True),
    "erf": lambda o: sn.erf(2 * o.a),
    "softmax": lambda o: sn.softmax(o.m, axis=1),
    "layer_norm": lambda o: sn.layer_norm(o.a, o.v, 0.5),
    "softmax as written by hand": lambda o: softmax_by_hand(o.a),
    "layer norm as written by hand": lambda o: layer_norm_by_hand(o.a, o.v, o.row[0]),
    "weak numbers": lambda o: 1.5 * o.a + 2 - o.b / 3,
    "numpy number of float32": lambda o: o.a * np.float32(0.5),
    "closed array": lambda o: o.a + CLOSED[0].astype(o.a.dtype),
    "closed array promotes": lambda o: o.a + CLOSED[1].astype(np.float64),
    "divide by parameter": lambda o: o.a / (o.v + 2),
    "sigmoid of a parameter": lambda o: o.a * sn.sigmoid(o.v),
    "matmul of a vector": lambda o: o.a @ o.v,
    "matmul of T": lambda o: o.m @ o.E.T,
    "np.matmul": lambda o: np.matmul(o.a, o.W),
    "np.dot": lambda o: np.dot(o.a, o.W) + o.a.dot(o.W),
    "matmul of parameters": lambda o: o.a @ (o.W @ o.B.T),
    "matmul of matrices": lambda o: o.m @ o.E[:3],
    "matmul of a slice": lambda o: o.a[:, :2] @ o.W[:2],
    "matmul of a row's own": lambda o: o.m @ np.swapaxes(o.m, 1, 2),
    "attention over a row's own": lambda o: (o.m[:, :1] @ np.swapaxes(o.m, 1, 2))[:, 0],
    "matmul of a closed array": lambda o: o.a @ CLOSED.T.astype(o.a.dtype),
    "bool in a product": lambda o: (o.a > 0) @ o.W,
    "mean": lambda o: np.mean(o.m, axis=(1, 2)),
    "var": lambda o: np.var(o.m, axis=2),
    "var ddof": lambda o: np.var(o.a, axis=1, ddof=1),
    "std": lambda o: np.std(o.a, axis=-1, keepdims=True),
    "method mean": lambda o: o.a.mean(-1) + o.m.mean(axis=(1, 2)),
    "method var": lambda o: o.a.var(axis=-1),
    "method std": lambda o: o.a.std(-1, keepdims=True),
}

FEATURES: dict[str, Case] = {
    "sum": lambda o: np.sum(o.a, axis=1),
    "sum keepdims": lambda o: o.m.sum(axis=-1, keepdims=True),
    "sum of two axes": lambda o: np.sum(o.m, axis=(1, 2)),
    "sum of the first": lambda o: o.m.sum(1),
    "sum of a parameter": lambda o: o.a * np.sum(o.v),
    "max": lambda o: np.max(o.m, axis=1),
    "amin": lambda o: np.amin(o.m, axis=-1, keepdims=True),
    "method max": lambda o: o.a.max(-1) + o.a.min(axis=1),
    "argmax": lambda o: np.argmax(o.a, axis=-1),
    "argmax keepdims": lambda o: np.argmax(o.m, axis=1, keepdims=True),
    "method argmax": lambda o: o.m.argmax(axis=2),
    "slice": lambda o: o.a[:, 1:3],
    "slice all": lambda o: o.a[:],
    "slice from the end": lambda o: o.a[:, -2:],
    "slice beyond": lambda o: o.a[:, 2:100],
    "slice step": lambda o: o.a[:, ::2],
    "slice backwards": lambda o: o.a[:, ::-1],
    "slice backwards in part": lambda o: o.a[:, 2:0:-1],
    "slice backwards by two": lambda o: o.a[:, ::-2],
    "slice of nothing": lambda o: o.a[:, 2:2],
    "slice of two axes": lambda o: o.m[:, 1:, ::-1],
    "one feature": lambda o: o.a[:, 2],
    "one feature from the end": lambda o: o.m[:, -1],
    "one of the last": lambda o: o.m[..., -1],
    "one number": lambda o: o.m[:, 1, 2],
    "ellipsis": lambda o: o.m[..., :2],
    "ellipsis in the middle": lambda o: o.m[:, ..., None],
    "only ellipsis": lambda o: o.a[...],
    "new axis": lambda o: o.a[:, None],
    "new axis at the end": lambda o: o.s[:, None],
    "two new axes": lambda o: o.a[:, None, :, None],
    "new axis after a number": lambda o: o.m[:, 0, None],
    "list": lambda o: o.a[:, [2, 0, 2, -1]],
    "array of places": lambda o: o.a[:, np.array([3, 1])],
    "list of the middle axis": lambda o: o.m[:, [1, 0]],
    "list and slice": lambda o: o.m[:, [1, 0], 1:],
    "numpy integer": lambda o: o.a[:, np.int64(1)],
    "take": lambda o: np.take(o.a, [1, 3], axis=1),
    "take one": lambda o: np.take(o.m, 1, axis=-1),
    "slice of a parameter": lambda o: o.a[:, :3] + o.W[1],
    "column of a parameter": lambda o: o.a + o.W[:, 2],
    "take of a parameter": lambda o: o.a[:, :2] + np.take(o.v, [0, 3], axis=0),
    "split": lambda o: tuple(np.split(o.a, 2, axis=1)),
    "split at places": lambda o: tuple(np.split(o.a, [1, 3], axis=-1)),
    "array_split": lambda o: tuple(np.array_split(o.a, 4, axis=1)),
    "array_split uneven": lambda o: tuple(np.array_split(o.a, 3, axis=1)),
    "split beyond": lambda o: np.split(o.a, [2, 7], axis=1)[1],
    "split of a parameter": lambda o: o.a[:, :2] + np.split(o.v, 2)[1],
    "concatenate": lambda o: np.concatenate([o.a, o.b], axis=1),
    "concatenate of different": lambda o: np.concatenate((o.a, o.a[:, :1], o.b > 0), axis=-1),
    "concatenate matrices": lambda o: np.concatenate([o.m, o.m[:, :1]], axis=1),
    "concatenate parameters": lambda o: o.a + np.concatenate([o.v[:1], o.v[1:]]),
    "stack": lambda o: np.stack([o.a, o.b], axis=1),
    "stack at the end": lambda o: np.stack([o.a, o.b, o.a], axis=-1),
    "stack of scalars": lambda o: np.stack([o.s, o.s], axis=1),
    "stack of parameters": lambda o: o.a[:, None] * np.stack([o.v, o.v]),
    "reshape by rows": lambda o: o.m.reshape(o.m.shape[0], 6),
    "reshape by -1": lambda o: o.a.reshape(-1, 2, 2),
    "reshape with an open size": lambda o: o.m.reshape(o.m.shape[0], -1),
    "reshape to a scalar": lambda o: o.a[:, :1].reshape(o.a.shape[0]),
    "np.reshape": lambda o: np.reshape(o.m, (o.m.shape[0], 3, 2)),
    "reshape of a tuple": lambda o: o.m.reshape((-1, 3, 2)),
    "reshape like another": lambda o: o.m.reshape(o.m.shape[0], 6)[:, :4].reshape(o.a.shape),
    "reshape of a parameter": lambda o: o.a + o.W[:, 0].reshape(1, 4),
    "transpose": lambda o: np.transpose(o.m, (0, 2, 1)),
    "method transpose": lambda o: o.m.transpose(0, 2, 1),
    "transpose of a parameter": lambda o: o.a[:, :3] + o.W.T[:, 0],
    "swapaxes": lambda o: np.swapaxes(o.m, 1, 2),
    "method swapaxes": lambda o: o.m.swapaxes(-1, 1),
    "moveaxis": lambda o: np.moveaxis(o.m, 1, -1),
    "expand_dims": lambda o: np.expand_dims(o.a, 1),
    "expand_dims at the end": lambda o: np.expand_dims(o.a, -1),
    "expand_dims twice": lambda o: np.expand_dims(o.a, (1, 3)),
    "expand_dims from the end": lambda o: np.expand_dims(o.a, (-1, -3)),
    "expand_dims of a list": lambda o: np.expand_dims(o.a, [2, 1]),
    "expand_dims nowhere": lambda o: np.expand_dims(o.a, ()),
    "squeeze": lambda o: np.squeeze(o.a[:, None], axis=1),
    "squeeze of all": lambda o: np.squeeze(o.a[:, None, :, None]),
    "broadcast_to": lambda o: np.broadcast_to(o.a[:, None], (o.a.shape[0], 3, 4)),
    "shape and ndim": lambda o: o.a * o.m.shape[1] + o.m.shape[-1] + np.ndim(o.m) + o.m.ndim,
    "np.shape": lambda o: o.a * np.shape(o.m)[2],
    "gather": lambda o: o.E[o.k],
    "gather by np.take": lambda o: np.take(o.E, o.k, axis=0),
    "gather from the end": lambda o: o.E[o.k - 5],
    "gather of several": lambda o: o.E[np.stack([o.k, 4 - o.k], axis=1)],
    "gather of numbers": lambda o: o.v[np.minimum(o.k, 3)],
    "gather of int32": lambda o: o.E[o.k.astype(np.int32)],
    "gather from a closed array": lambda o: table(o.k),
    "one_hot": lambda o: sn.one_hot(o.k, 5),
    "one_hot beyond": lambda o: sn.one_hot(o.k, 3, np.int64),
    "one_hot in a product": lambda o: sn.one_hot(o.k, 5, o.E.dtype) @ o.E,
    "index minus index": lambda o: o.k * 2 // 3 - o.k % 2,
}


def softmax_by_hand(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm_by_hand(x: Any, scale: Any, shift: Any) -> Any:
    centre = x.mean(axis=1)[:, None]
    return (x - centre) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-3) * scale + shift


def table(k: Any) -> Any:
    rows = np.arange(10.0).reshape(5, 2)
    return np.take(rows, k, axis=0) if isinstance(k, np.ndarray) else sn.one_hot(k, 5, np.float64) @ rows


def numbers(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    return (
        random.integers(0, 2, shape).astype(bool)
        if dtype == "bool"
        else random.integers(-4, 9, shape).astype(dtype)
    )


def operands(dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The operands of a case: values of rows, and parameters."""
    rows = {name: numbers(dtype, shape, seed) for seed, (name, shape) in enumerate(SHAPES.items())}
    rows |= {"k": np.array([3, 0, 4, 1, 1]), "t": numbers("bool", (ROWS, 4), 9)}
    params = {name: numbers(dtype, shape, seed + 20) for seed, (name, shape) in enumerate(PARAMETERS.items())}
    return rows, params


def traced(case: Case, rows: dict[str, Any], params: dict[str, Any]) -> Any:
    """The case as the interpreter computes its net, in its own structure."""
    inputs = transform(lambda array: sn.Spec(array.shape[1:], array.dtype), rows)
    step = trace_step(lambda x, h, p: (case(SimpleNamespace(**x, **p)), h), inputs, None, None, params)
    found = interpret(step.body, [*rows.values(), *params.values()], LevelSizes(len(rows["a"])))
    return found[0] if len(found) == 1 else tuple(found)


def check(case: Case, dtype: str) -> None:
    rows, params = operands(dtype)
    with np.errstate(all="ignore"):
        expected = case(SimpleNamespace(**rows, **params))
    actual = traced(case, rows, params)
    for one, right in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, expected)), strict=True):
        assert one.dtype == right.dtype
        assert_close(one, right, width=8)


def cases(*tables: dict[str, Case]) -> pytest.MarkDecorator:
    every = {name: case for table in tables for name, case in table.items()}
    return pytest.mark.parametrize("case", every.values(), ids=every.keys())


@pytest.mark.long(each=True)
@cases(ARITHMETIC, FLOATS, FEATURES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats(case: Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.long(each=True)
@cases(ARITHMETIC, FEATURES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(case: Case, dtype: str) -> None:
    check(case, dtype)


INTEGERS_TO_FLOATS = (
    "exp",
    "sqrt",
    "tanh",
    "log1p",
    "mean",
    "std",
    "divide by parameter",
    "sigmoid",
    "softplus",
)


@cases({name: FLOATS[name] for name in INTEGERS_TO_FLOATS})
def test_functions_of_integers_are_float64(case: Case) -> None:
    check(case, "int64")


@cases({n: c for n, c in FEATURES.items() if not n.startswith(("shape", "np.shape"))})
def test_features_of_booleans(case: Case) -> None:
    check(case, "bool")


MIXED: dict[str, Case] = {
    "float32 and float64": lambda o: o.a + o.v.astype(np.float64),
    "float32 and int32": lambda o: o.a * o.k.astype(np.int32)[:, None],
    "float32 and int64": lambda o: o.a * o.k[:, None],
    "float32 and bool": lambda o: o.a * o.t,
    "int64 and a float": lambda o: o.k * 0.5,
    "int64 and an integer": lambda o: o.k * 2 + 1,
    "bool and an integer": lambda o: o.t * 3 + o.t,
    "bool and bool": lambda o: o.t + o.t,
    "float32 or number": lambda o: np.where(o.t, o.a, 0.5),
    "float32 or float64": lambda o: np.where(o.t, o.a, o.v.astype(np.float64)),
    "a float32 number": lambda o: o.k * np.float32(2),
    "a float64 number": lambda o: o.a * np.float64(2),
    "a closed float32": lambda o: o.a + np.asarray(CLOSED[0]),
    "true": lambda o: o.a + True,
}


@cases(MIXED)
def test_dtypes_promote_as_in_numpy(case: Case) -> None:
    check(case, "float32")


def test_python_numbers_are_weak() -> None:
    rows, params = operands("float32")
    assert traced(lambda o: 1.5 * o.a + 2, rows, params).dtype == np.float32
    assert traced(lambda o: o.k * 2, rows, params).dtype == np.int64
    assert traced(lambda o: np.where(o.t, 0.5, 1), rows, params).dtype == np.float64


# NumPy finds no open size among no numbers; a traced step does.
OPEN = ("reshape with an open size",)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("rows", [0, 1])
@cases(ARITHMETIC, {name: case for name, case in FEATURES.items() if name not in OPEN})
def test_no_rows_and_one(case: Case, rows: int) -> None:
    given, params = operands("float32")
    given = {name: array[:rows] for name, array in given.items()}
    expected, actual = case(SimpleNamespace(**given, **params)), traced(case, given, params)
    for one, right in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, expected)), strict=True):
        if rows or np.ndim(right):
            assert one.shape == np.broadcast_to(right, one.shape).shape
            assert_close(one, np.broadcast_to(right, one.shape), width=8)


def test_a_step_may_return_what_is_the_same_in_every_row() -> None:
    rows, params = operands("float32")
    np.testing.assert_array_equal(traced(lambda o: o.v, rows, params), np.tile(params["v"], (ROWS, 1)))
    np.testing.assert_array_equal(traced(lambda o: CLOSED[0], rows, params), np.tile(CLOSED[0], (ROWS, 1)))
    assert traced(lambda o: np.float32(2), rows, params).tolist() == [2.0] * ROWS


def test_equal_work_is_traced_once() -> None:
    rows, params = operands("float32")
    inputs = transform(lambda array: sn.Spec(array.shape[1:], array.dtype), rows)
    body = trace_step(lambda x, h, p: (np.tanh(x["a"]) * np.tanh(x["a"]), h), inputs, None, None, params).body
    assert [node.operation for node in body.nodes if node.operation != "input"] == ["tanh", "multiply"]


def test_a_constant_is_a_copy() -> None:
    """The value at tracing counts; later changes to the array change nothing."""
    shift = np.ones(2, np.float32)
    rnn = sn.RNN(lambda x, h, p: (x + shift, h), memory=1, inputs=2)
    shift[:] = 100
    outputs, _ = rnn(np.zeros((1, 1, 2), np.float32), engine="interpret")
    assert outputs.tolist() == [[[1, 1]]]
