"""`stepnet.jax` beside `jax.lax.scan` itself, and models that are called with JAX's arrays, check by check.

python jax_scan.py FILE        writes as JSON what each check says: nothing where it holds
"""

import doctest
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerance import assert_close, distance

import stepnet as sn
import stepnet.jax.function
import stepnet.jax.installed
import stepnet.jax.recurrence
import stepnet.jax.steps
from stepnet.compiler import targets
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.cuda import CudaEngine, EmulatedDevice
from stepnet.jax import scan

jax.config.update("jax_enable_x64", True)

TIME, BATCH, INPUTS, UNITS = 7, 5, 3, 4
LENGTHS = np.array([7, 0, 3, 1, 6])
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """One of the checks."""
    CHECKS[function.__name__] = function
    return function


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


class State(NamedTuple):
    """A carry of two arrays, of a class that stepnet does not know."""

    cell: Any
    hidden: Any


# Steps in JAX's form: they take NumPy's functions or JAX's, and are called with parameters.


def simple(np: Any, h: Any, x: Any, params: Any) -> Any:
    h = np.tanh(x @ params["W"] + h @ params["R"])
    return h, h


def lstm(np: Any, state: State, x: Any, params: Any) -> Any:
    gates = np.concatenate([x, state.hidden], axis=-1) @ params["K"] + params["bias"][0]
    i, f, g, o = (gates[:, place * UNITS : (place + 1) * UNITS] for place in range(4))
    cell = state.cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    hidden = np.tanh(cell) / (1 + np.exp(-o))
    return State(cell, hidden), {"hidden": hidden, "both": (cell, hidden * 2)}


def words(np: Any, h: Any, x: Any, params: Any) -> Any:
    numbers, scale = x["word"], x["scale"]
    h = np.tanh(params["table"][numbers] * scale + h)
    return h, (h.sum(-1), numbers + 1)


def without_output(np: Any, h: Any, x: Any, params: Any) -> Any:
    return np.where(x > 0, h + x, h * params), None


STEPS = {
    "simple": (simple, "h", "x", {"W": (INPUTS, UNITS), "R": (UNITS, UNITS)}),
    "lstm": (lstm, "lstm", "x", {"K": (INPUTS + UNITS, 4 * UNITS), "bias": [(4 * UNITS,)]}),
    "words": (words, "h", "words", {"table": (9, UNITS)}),
    "without_output": (without_output, "same", "x", (INPUTS,)),
    "one_number": (without_output, "same", "x", ()),
}


def arguments(name: str, dtype: str = "float64") -> tuple[Any, Any, Any]:
    """The carry, the sequences and the parameters of a step."""
    _, carry, sequences, shapes = STEPS[name]
    params = jax.tree.map(
        lambda shape: numbers(*shape, seed=1) / 2, shapes, is_leaf=lambda value: isinstance(value, tuple)
    )
    h, x = numbers(BATCH, UNITS, seed=2), numbers(TIME, BATCH, INPUTS)
    init = {"h": h, "lstm": State(h, numbers(BATCH, UNITS, seed=3)), "same": numbers(BATCH, INPUTS)}[carry]
    word = np.random.default_rng(5).integers(0, 9, (TIME, BATCH))
    xs = {"x": x, "words": {"word": word, "scale": numbers(TIME, BATCH, 1, seed=4)}}[sequences]
    return jax.tree.map(
        lambda array: jnp.asarray(array if array.dtype.kind == "i" else array.astype(dtype)),
        (init, xs, params),
    )


def ours(name: str, **options: Any) -> Callable[..., Any]:
    step = STEPS[name][0]
    return lambda init, xs, params: scan(
        lambda carry, x, params: step(np, carry, x, params), init, xs, params=params, **options
    )


def theirs(name: str, **options: Any) -> Callable[..., Any]:
    step = STEPS[name][0]
    return lambda init, xs, params: jax.lax.scan(
        lambda carry, x: step(jnp, carry, x, params), init, xs, **options
    )


def cut(name: str, reverse: bool = False) -> Callable[..., Any]:
    """`jax.lax.scan` over the steps of each sequence alone, with zeros behind its outputs."""

    def alone(row: int, init: Any, xs: Any, params: Any) -> Any:
        length, one = int(LENGTHS[row]), slice(row, row + 1)
        carry, ys = theirs(name, reverse=reverse)(
            jax.tree.map(lambda array: array[one], init),
            jax.tree.map(lambda array: array[:length, one], xs),
            params,
        )
        behind = [(0, TIME - length)]
        return carry, jax.tree.map(lambda y: jnp.pad(y, behind + [(0, 0)] * (y.ndim - 1)), ys)

    def run(*given: Any) -> Any:
        carries, outputs = zip(*(alone(row, *given) for row in range(BATCH)), strict=True)
        return (
            jax.tree.map(lambda *rows: jnp.concatenate(rows), *carries),
            jax.tree.map(lambda *rows: jnp.concatenate(rows, 1), *outputs),
        )

    return run


def total(results: Any) -> Any:
    """One number of all results, in which no two numbers count the same."""
    floats = [one for one in jax.tree.leaves(results) if jnp.issubdtype(one.dtype, jnp.floating)]
    return sum(
        (one * jnp.cos(jnp.arange(one.size, dtype=one.dtype).reshape(one.shape))).sum() for one in floats
    )


def gradients(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The results of a function, and the gradients of all its floating-point arguments."""

    def value(*given: Any) -> Any:
        made = run(*given)
        return total(made), made

    return jax.value_and_grad(value, (0, 1, 2), has_aux=True, allow_int=name == "words")


def assert_same(made: Any, right: Any, dtype: str = "float64") -> None:
    """Asserts that trees agree but for rounding in `dtype`: both may be off by the tolerance."""
    assert jax.tree.structure(made) == jax.tree.structure(right), (made, right)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(right), strict=True):
        if one.dtype == jax.dtypes.float0:
            assert other.dtype == jax.dtypes.float0
            continue
        assert one.dtype == (dtype if other.dtype == "float64" else other.dtype), (one.dtype, other.dtype)
        halves = [
            np.asarray(each) / 2 if each.dtype.kind == "f" else np.asarray(each) for each in (one, other)
        ]
        assert_close(*halves, TIME, INPUTS + UNITS, dtype if one.dtype.kind == "f" else None)


@check
def results_and_gradients() -> None:
    for name in STEPS:
        right = gradients(theirs(name), name)(*arguments(name))
        for dtype in ("float64", "float32"):
            made = jax.jit(gradients(ours(name), name))(*arguments(name, dtype))
            assert_same(made, right, dtype)


@check
def outside_of_jit() -> None:
    for name in STEPS:
        assert_same(ours(name)(*arguments(name)), theirs(name)(*arguments(name)))
        assert_same(
            gradients(ours(name), name)(*arguments(name)), gradients(theirs(name), name)(*arguments(name))
        )


@check
def backwards() -> None:
    for name in ("simple", "lstm"):
        made = jax.jit(gradients(ours(name, reverse=True, unroll=2), name))(*arguments(name))
        assert_same(made, gradients(theirs(name, reverse=True), name)(*arguments(name)))


@check
def lengths() -> None:
    for name, reverse in (("simple", False), ("lstm", True), ("words", True), ("lstm", False)):
        right = gradients(cut(name, reverse), name)(*arguments(name))
        made = gradients(ours(name, reverse=reverse, lengths=LENGTHS), name)(*arguments(name))
        assert_same(made, right)
        inside = jax.jit(
            lambda lengths, *given, name=name, reverse=reverse: gradients(
                ours(name, reverse=reverse, lengths=lengths), name
            )(*given)
        )
        assert_same(inside(jnp.asarray(LENGTHS), *arguments(name)), right)


@check
def what_lies_behind_a_sequence_has_no_effect() -> None:
    init, xs, params = arguments("simple")
    behind = (np.arange(TIME)[:, None] >= LENGTHS)[:, :, None]
    clean, spoilt = (
        jax.jit(gradients(ours("simple", lengths=LENGTHS), "simple"))(init, each, params)
        for each in (xs, jnp.where(behind, jnp.nan, xs))
    )
    for one, other in zip(jax.tree.leaves(clean), jax.tree.leaves(spoilt), strict=True):
        np.testing.assert_array_equal(one, other)


@check
def second_gradients() -> None:
    def second(run: Callable[..., Any]) -> Callable[..., Any]:
        first = jax.grad(lambda *given: total(run(*given)), (0, 1, 2))
        return jax.jit(jax.grad(lambda *given: total(jax.tree.map(jnp.sin, first(*given))), (0, 1, 2)))

    for name, mine, right in (
        ("simple", ours("simple"), theirs("simple")),
        ("simple", ours("simple", lengths=LENGTHS), cut("simple")),
        ("lstm", ours("lstm", reverse=True), theirs("lstm", reverse=True)),
    ):
        made, known = second(mine)(*arguments(name)), second(right)(*arguments(name))
        assert_same(*(jax.tree.map(lambda one: one / 16, each) for each in (made, known)))


def many(tree: Any, axis: int = 0) -> Any:
    """Three of each array, which differ."""
    return jax.tree.map(lambda array: jnp.stack([array, array * 0.5, -array], axis), tree)


@check
def under_vmap() -> None:
    init, xs, params = arguments("lstm")
    for axes, given in (
        ((None, 0, None), (init, many(xs), params)),
        ((None, 2, None), (init, many(xs, 2), params)),
        ((0, None, None), (many(init), xs, params)),
        ((0, 0, None), (many(init), many(xs), params)),
        ((None, None, 0), (init, xs, many(params))),
        ((0, 1, 0), (many(init), many(xs, 1), many(params))),
    ):
        mine, right = ours("lstm"), theirs("lstm")
        for change in (lambda run: run, lambda run: gradients(run, "lstm")):
            made = jax.jit(jax.vmap(change(mine), axes))(*given)
            assert_same(made, jax.jit(jax.vmap(change(right), axes))(*given))


@check
def one_number_as_a_parameter_under_vmap() -> None:
    init, xs, params = arguments("one_number")
    for axes, given in (
        ((None, 0, None), (init, many(xs), params)),
        ((None, None, 0), (init, xs, many(params))),
    ):
        made, right = (
            jax.vmap(gradients(run("one_number"), "one_number"), axes)(*given) for run in (ours, theirs)
        )
        assert_same(made, right)


@check
def gradients_of_each_sequence() -> None:
    """Of batches of one sequence, which are one call with the bits of each alone; and their gradients."""

    def slope(run: Any, init: Any, order: int = 1) -> Any:
        def loss(params: Any, xs: Any) -> Any:
            return total(run(init, xs, params))

        if order == 1:
            return jax.grad(loss)
        return jax.grad(lambda params, xs: total(jax.grad(loss)(params, xs)))

    for name in ("simple", "lstm"):
        init, xs, params = arguments(name)
        one, several = jax.tree.map(lambda array: array[:1], init), many(xs[:, :1])
        for order in (1, 2):
            made, right = (
                jax.jit(jax.vmap(slope(run(name), one, order), (None, 0)))(params, several)
                for run in (ours, theirs)
            )
            assert_same(made, right)
        found = jax.vmap(slope(ours(name), one), (None, 0))(params, several)
        alone = [slope(ours(name), one)(params, each) for each in several]
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *alone)
        jax.tree.map(np.testing.assert_array_equal, found, stacked)


@check
def under_vmap_twice_and_with_lengths() -> None:
    init, xs, params = arguments("simple")
    for outer, given in (
        ((None, 0, None), (init, many(many(xs)), params)),
        ((None, None, 0), (init, many(xs), many(params))),
    ):
        made, right = (
            jax.vmap(jax.vmap(run("simple"), (None, 0, None)), outer)(*given) for run in (ours, theirs)
        )
        assert_same(made, right)
    by_lengths = jax.vmap(lambda lengths: ours("simple", lengths=lengths)(init, xs, params))
    rows = np.stack([LENGTHS, LENGTHS[::-1]])
    alone = [ours("simple", lengths=each)(init, xs, params) for each in rows]
    assert_same(by_lengths(jnp.asarray(rows)), jax.tree.map(lambda *each: jnp.stack(each), *alone))


@check
def a_sequence_has_the_same_bits_alone_and_under_vmap() -> None:
    init, xs, params = arguments("lstm", "float32")
    whole = ours("lstm")(init, xs, params)
    for row in range(BATCH):
        one = jax.tree.map(lambda array, row=row: array[row : row + 1], init)
        carry, ys = ours("lstm")(one, xs[:, row : row + 1], params)
        for alone, beside in zip(jax.tree.leaves(carry), jax.tree.leaves(whole[0]), strict=True):
            np.testing.assert_array_equal(alone[0], beside[row])
        for alone, beside in zip(jax.tree.leaves(ys), jax.tree.leaves(whole[1]), strict=True):
            np.testing.assert_array_equal(alone[:, 0], beside[:, row])
    stacked = jax.vmap(ours("lstm"), (None, 0, None))(init, many(xs), params)
    np.testing.assert_array_equal(stacked[1]["hidden"][0], whole[1]["hidden"])


@check
def empty_batches_and_sequences() -> None:
    init, xs, params = arguments("lstm")
    for given in ((init, xs[:0], params), (jax.tree.map(lambda one: one[:0], init), xs[:, :0], params)):
        made = jax.jit(gradients(ours("lstm"), "lstm"))(*given)
        assert_same(made, gradients(theirs("lstm"), "lstm")(*given))


@check
def half_precision() -> None:
    init, xs, params = arguments("simple", "bfloat16")
    made = jax.jit(gradients(ours("simple"), "simple"))(init, xs, params)
    right = gradients(theirs("simple"), "simple")(*arguments("simple"))
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(right), strict=True):
        assert one.dtype == "bfloat16" or not one.ndim
        away = distance(np.asarray(one, "float32") / 2, np.asarray(other) / 2)
        assert away <= tolerance("bfloat16", TIME, INPUTS + UNITS)


def decaying(np: Any, S: Any, x: Any, params: Any) -> Any:
    """A linear attention of 16 keys and values that decays, or whose keys do, each by itself."""
    k = x["k"] * params
    S = np.exp(x["g"])[:, :, None] * S + k[:, :, None] * x["v"][:, None, :]
    return S, (S * x["q"][:, :, None]).sum(1)


@check
def gradients_of_a_matrix_in_chunks() -> None:
    """On the emulated GPU, with the kernels of chunks, which second ones have for the first."""
    names, launched = list[str](), EmulatedDevice.launch

    def launch(device: Any, code: Any, *others: Any) -> None:
        names.append(code.name)
        launched(device, code, *others)

    def slope(step: Callable[..., Any], run: Any, order: int) -> Any:
        first = jax.grad(lambda *given: total(run(step, *given)), (0, 1, 2))
        if order == 1:
            return first
        return jax.grad(lambda *given: total(jax.tree.map(jnp.sin, first(*given))), (0, 1, 2))

    def ours(step: Any, init: Any, xs: Any, params: Any) -> Any:
        return scan(partial(step, np), init, xs, params=params, engine="cuda-emulated")

    def theirs(step: Any, init: Any, xs: Any, params: Any) -> Any:
        return jax.lax.scan(lambda S, x: step(jnp, S, x, params), init, xs)

    EmulatedDevice.launch = launch
    try:
        for order, time, decays in ((1, 20, 1), (2, 3, 1), (1, 20, 16), (2, 3, 16)):
            xs = {name: numbers(time, 2, 16, seed=seed) / 4 for seed, name in enumerate("qkv")}
            xs["g"] = -abs(numbers(time, 2, decays))
            given = numbers(2, 16, 16) / 4, xs, numbers(16)
            single = jax.tree.map(lambda one: jnp.asarray(one, "float32"), given)
            made = jax.jit(slope(decaying, ours, order))(*single)
            assert_same(made, jax.jit(slope(decaying, theirs, order))(*given), "float32")
            assert "gradients of a matrix" in names
            names.clear()
    finally:
        EmulatedDevice.launch = launched


@check
def traced_once_for_each_kind_of_arguments() -> None:
    kept = stepnet.jax.recurrence.KEPT
    kept.clear()
    for time, batch, features in ((3, 2, 4), (5, 1, 4), (3, 2, 4), (3, 2, 6)):
        scan(lambda h, x: (h + x.sum(-1), h), jnp.zeros(batch), jnp.ones((time, batch, features)))
    assert len(kept) == 2
    scale, made = np.array(2.0), list[Any]()
    for factor in (2, 2, 3):
        scale[...] = factor
        made.append(scan(lambda h, x: (h + scale * x, h), jnp.zeros(1), jnp.ones((3, 1)))[0])
    assert np.concatenate(made).tolist() == [6, 6, 9]
    assert len(kept) == 4


# ---- refusals ----------------------------------------------------------------------------------------------


def says(words: str, call: Callable[[], Any], kind: Any = sn.StepnetError) -> None:
    """Asserts that a call raises an error whose message has these words."""
    with pytest.raises(kind, match=f"(?s){words}"):
        call()


@check
def refusals() -> None:
    h, xs, W = jnp.zeros((2, 3)), jnp.ones((4, 2, 3)), jnp.ones((3, 3))

    def plain(h: Any, x: Any) -> Any:
        return h + x, h

    def captured(W: Any) -> Any:
        return scan(lambda h, x: (h + x @ W, h), h, xs)[0].sum()

    assert captured(W) == 72
    says(
        "a constant is float64.3, 3. that JAX traces .*params= are what a step captures",
        lambda: jax.grad(captured)(W),
    )
    for function in (lambda x: jnp.tanh(x), lambda x: jax.nn.sigmoid(x), lambda x: jnp.dot(x, W)):
        says(
            "np.tanh in place of jnp.tanh\n  at .*jax_scan.py:",
            lambda f=function: scan(lambda h, x: (h + f(x), h), h, xs),
        )
    says("enters the step as .* and leaves as", lambda: scan(lambda h, x: ((h, h), x), h, xs))
    says(
        r"enters the step as f64\[3\] and leaves as f32",
        lambda: scan(lambda h, x: (h.astype("float32"), x), h, xs),
    )
    says("returns .carry, y., as one tuple of two", lambda: scan(lambda h, x: h, h, xs))
    says("is called as plain.carry, x, params.", lambda: scan(plain, h, xs, params=W))
    says("f is a function f.carry, x.", lambda: scan(3, h, xs))
    says(r"init is \[1, 3\]; its first axis should be the 2 sequences", lambda: scan(plain, h[:1], xs))
    says(r"xs is \[3\]; .* a batch of one: xs\[:, None\]", lambda: scan(plain, h, xs[0, 0]))
    says(
        r"xs\['b'\] is \[3, 2, 3\], and other sequences are \[4, 2, ...\]",
        lambda: scan(plain, h, {"a": xs, "b": xs[1:]}),
    )
    says("init has no array", lambda: scan(plain, (), xs))
    says("xs has no array", lambda: scan(plain, h, None))
    says(r"lengths\[0\] is 5; the array has 4 steps", lambda: scan(plain, h, xs, lengths=[5, 1]))
    given = jax.jit(lambda lengths: scan(plain, h, xs, lengths=lengths))
    says(
        r"lengths\[0\] is 5; the array has 4 steps",
        lambda: given(jnp.array([5, 1])),
        jax.errors.JaxRuntimeError,
    )
    says("reverse is True or False, not 2", lambda: scan(plain, h, xs, reverse=2))
    says("no engine is called 'x'", lambda: scan(plain, h, xs, engine="x"))
    forward = jax.jit(lambda x: jax.jvp(lambda x: scan(plain, h, x)[0], (x,), (x,)))
    says("can't apply forward-mode", lambda: forward(xs), TypeError)


@check
def without_64_bits() -> None:
    with jax.enable_x64(False):
        h, xs = jnp.zeros((2, 3)), jnp.ones((4, 2, 3))
        assert scan(lambda h, x: (h + x, x), h, xs)[0].dtype == "float32"
        cast = "y is float64, which JAX has with .*x64.* cast it in the step, .astype.np.float32"
        says(cast, lambda: scan(lambda h, x: (h, x.astype("float64")), h, xs))
        says("y is int64", lambda: scan(lambda h, x: (h, x.argmax(-1)), h, xs))


@check
def another_device() -> None:
    known = jax.default_backend
    jax.default_backend = lambda: "gpu"
    try:
        says(
            "JAX runs on gpu, and machine code is for the CPU", lambda: scan(lambda h, x: (h, x), None, None)
        )
    finally:
        jax.default_backend = known


# ---- models that are called with arrays of JAX -------------------------------------------------------------

GRU = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=INPUTS, hidden=UNITS))
BACKWARD = sn.RNN(GRU.step, GRU.params, memory=UNITS, reverse=True)


def assert_of_jax(made: Any, right: Any) -> None:
    """Asserts that results are those of NumPy's arrays, bit by bit, and arrays of JAX."""
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(right), strict=True):
        if isinstance(one, sn.Ragged):
            assert all(map(np.array_equal, one.offsets, other.offsets))
            one, other = one.values, other.values
        assert isinstance(one, jax.Array), type(one)
        np.testing.assert_array_equal(one, other, strict=False)
        assert one.dtype == other.dtype


@check
def models_give_arrays_of_jax() -> None:
    x = numbers(BATCH, TIME, INPUTS).astype("float32")
    graph = sn.Graph(lambda x, params: {"mean": sn.reduce(GRU(x)[0], "mean"), "x": 2 * x})
    for model in (GRU, sn.Stack([GRU]), sn.Bidirectional(GRU, BACKWARD), graph):
        for _ in range(3):  # unprepared and prepared
            assert_of_jax(model(jnp.asarray(x)), model(x))
    given = jnp.asarray(x)
    assert_of_jax(GRU(given, lengths=jnp.asarray(LENGTHS)), GRU(x, lengths=LENGTHS))
    assert_of_jax(
        GRU(given, last_only=True, mask=given[..., 0] > 0), GRU(x, last_only=True, mask=x[..., 0] > 0)
    )
    initial = jnp.ones((BATCH, UNITS), "float32")
    assert_of_jax(GRU(given, initial=initial), GRU(x, initial=np.asarray(initial)))
    assert isinstance(GRU(x, initial=initial)[0], np.ndarray)
    total = sn.RNN(lambda x, h, p: (h + x["a"] * x["b"], h), memory=INPUTS)
    assert_of_jax(total({"a": given, "b": x}), total({"a": x, "b": x}))


@check
def raggeds_of_jax() -> None:
    values, offsets = numbers(12, INPUTS).astype("float32"), (np.array([0, 4, 4, 12]),)
    ragged, known = sn.Ragged(jnp.asarray(values), offsets), sn.Ragged(values, offsets)
    assert isinstance(ragged.values, jax.Array)
    for _ in range(3):
        made, right = GRU(ragged), GRU(known)
        assert_of_jax(list(made), list(right))
    for change in (
        lambda one: one[2],
        lambda one: one[1:],
        lambda one: one.take([2, 0]),
        lambda one: one.reversed(),
        lambda one: one.group([2, 1]),
        lambda one: one.with_values(one.values * 2),
    ):
        assert_of_jax([change(ragged)], [change(known)])
    assert ragged.equal(known)
    np.testing.assert_array_equal(ragged.to_padded()[0], known.to_padded()[0])
    says("values is float32.* that JAX traces", lambda: jax.jit(lambda x: sn.Ragged(x, offsets))(values))
    says("must be .* NumPy .* array of JAX, of shape", lambda: sn.Ragged(values, (jnp.asarray(offsets[0]),)))


@check
def memory_is_shared_where_it_can_be() -> None:
    x = jnp.ones((64, 100, 64), "float32")
    seen = list[int]()
    total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=64)
    array = sn.RNN.read

    def read(self: Any, sequences: Any, *given: Any, **further: Any) -> Any:
        seen.append(sequences.ctypes.data)
        return array(self, sequences, *given, **further)

    sn.RNN.read = read
    try:
        outputs, _ = total(x)
    finally:
        sn.RNN.read = array
    assert seen == [x.unsafe_buffer_pointer()]
    known = np.from_dlpack(outputs)
    assert known.ctypes.data == outputs.unsafe_buffer_pointer()
    assert float(outputs[0, -1, 0]) == 100


@check
def half_precision_of_models() -> None:
    x = jnp.asarray(numbers(2, 3, 4), "bfloat16")
    total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=4)
    assert_of_jax(total(x), total(np.asarray(x)))


class Lent:
    """An array of JAX as it is on a GPU: by its own DLPack, on a device that is emulated on the CPU."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("as of bfloat16")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)


@check
def arrays_on_a_device_enter_and_leave_by_dlpack() -> None:
    device = EmulatedDevice()
    made = CudaEngine(device, name="placed", devices=("cpu",))
    targets.ENGINES["placed"] = lambda: made
    rnn = sn.RNN(lambda x, h, p: (h + x * p, h + x * p), np.ones(3, "f4"), memory=3)
    for dtype in ("float32", "bfloat16"):
        x = jnp.asarray(numbers(BATCH, TIME, INPUTS)).astype(dtype)
        read = made.array_of(Lent(x))
        assert read is not None
        assert (read.address, read.shape, read.dtype) == (x.unsafe_buffer_pointer(), x.shape, dtype)
        results = rnn(Lent(x), lengths=LENGTHS, engine="placed")
        right = rnn(np.asarray(x, "f8"), lengths=LENGTHS, engine="interpret")
        for one, other in zip(results, right, strict=True):
            taken = jax.dlpack.from_dlpack(one)
            assert isinstance(taken, jax.Array)
            assert_close(np.asarray(taken, "f8"), other, TIME, 8, dtype=dtype)
        again = rnn(Lent(x), Lent(jax.dlpack.from_dlpack(results[1])), engine="placed")
        assert_close(
            again[1].numpy().astype("f8"),
            rnn(np.asarray(x, "f8"), np.asarray(right[1]), engine="interpret")[1],
            2 * TIME,
            8,
            dtype=dtype,
        )


@check
def vmap_of_one_sequence_that_shares_its_init() -> None:
    init, params = jnp.ones((1, 3)), jnp.eye(3)

    def mine(x: Any) -> Any:
        return scan(lambda h, x, params: (np.tanh(h @ params + x), h), init, x, params=params)

    def theirs(x: Any) -> Any:
        return jax.lax.scan(lambda h, x: (jnp.tanh(h @ params + x), h), init, x)

    for time in (5, 0):
        xs = jnp.arange(12.0 * time).reshape(4, time, 1, 3) / 50
        made, right = (
            jax.vmap(lambda x, run=run: (run(x), jax.grad(lambda x: total(run(x)))(x)))(xs)
            for run in (mine, theirs)
        )
        assert_same(made, right)


@check
def captured_arrays_are_read_again() -> None:
    xs, init = jnp.zeros((2, 1, 0)), jnp.ones((1, 3))
    for number in (2.0, 3.0, 4.0):
        factor = jnp.full(3, number)
        carry, _ = scan(lambda h, x: (h * factor, h), init, xs)  # noqa: B023
        np.testing.assert_array_equal(carry, np.full((1, 3), number**2))


@check
def traced_arrays_are_refused() -> None:
    x = jnp.ones((BATCH, TIME, INPUTS), "float32")
    says("an input is float32.* that JAX traces .jit, grad, vmap.", lambda: jax.jit(GRU)(x))
    says("that JAX traces", lambda: jax.grad(lambda x: GRU(x)[0].sum())(x))


@check
def examples() -> None:
    modules = stepnet.jax.installed, stepnet.jax.function, stepnet.jax.steps, stepnet.jax.recurrence
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    with jax.enable_x64(False):
        for module in modules:
            assert not doctest.testmod(module, optionflags=options).failed, module
        page = str(Path(__file__).parents[2] / "docs" / "jax.md")
        assert not doctest.testfile(page, module_relative=False, optionflags=options).failed


if __name__ == "__main__":
    said = dict[str, str]()
    for name, function in CHECKS.items():
        try:
            function()
            said[name] = ""
        except Exception:
            said[name] = traceback.format_exc()[-3000:]
        print(name, said[name] or "holds", flush=True)
    Path(sys.argv[1]).write_text(json.dumps(said), encoding="utf-8")
