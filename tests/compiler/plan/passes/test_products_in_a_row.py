"""Two products with parameters as one: where it is made, where not, and that results and gradients stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradcheck import arrays_for, assert_gradient, segments_of
from hypothesis import given, settings
from hypothesis import strategies as st
from installed_onednn import missing_onednn
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import CONST, STEPS, Builder, Net, Type, interpret
from stepnet.compiler.plan import PIPELINE, optimised
from stepnet.compiler.plan.passes.absorb import absorb
from stepnet.compiler.plan.passes.chain import chain
from stepnet.compiler.plan.recognise import Recognised, recognise
from stepnet.compiler.targets import choose

Array = np.ndarray
Make = Callable[[Builder, int, int, int, int], list[int]]


def net_of(make: Make, k: int = 4, m: int = 6, n: int = 5, dtype: str = "float64") -> Net:
    """The net of values made of x [k], P [k, m], W [m, n] and c [m]."""
    builder = Builder()
    types = [Type(STEPS, (k,), dtype), *(Type(CONST, shape, dtype) for shape in ((k, m), (m, n), (m,)))]
    x, P, W, c = (builder.input(type_, name) for type_, name in zip(types, "xPWc", strict=True))
    return builder.net(make(builder, x, P, W, c))


def products(net: Net) -> list[tuple[int, ...]]:
    """The inner and outer features of each product with rows, bodies included."""
    bodies = [node.recur.body for node in net.nodes if node.operation == "recur"]
    own = [node for node in net.nodes if node.operation == "matmul" and node.type.extent != CONST]
    sizes = [net.type_of(node.inputs[1]).shape for node in own]
    return [*map(tuple, sizes), *(each for body in bodies for each in products(body))]


def two(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    return [b.add("matmul", b.add("matmul", x, P), W)]


def shifted(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    return [b.add("matmul", b.add("add", c, b.add("matmul", x, P)), W)]


def two_readers(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    between = b.add("matmul", x, P)
    other = b.add("multiply", W, W)
    return [b.add("tanh", b.add("matmul", between, W)), b.add("matmul", between, other)]


def three_in_a_row(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    first = b.add("matmul", b.add("matmul", x, P), W)
    return [b.add("matmul", first, b.add("transpose", W, order=(1, 0)))]


FIRES: dict[str, tuple[Make, list[tuple[int, int]]]] = {
    "two": (two, [(4, 5)]),
    "with a sum between": (shifted, [(4, 5)]),
    "two readers": (two_readers, [(4, 5), (4, 5)]),
    "three in a row": (three_in_a_row, [(4, 6)]),
}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name: str) -> None:
    make, left = FIRES[name]
    net = net_of(make)
    made = chain(net)
    assert products(made) == left
    segments = segments_of()
    given_ = arrays_for(net, segments)
    for one, other in zip(interpret(made, given_, segments), interpret(net, given_, segments), strict=True):
        assert_close(one, other, 1, 4 + 6 + 5)


def a_result(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    between = b.add("matmul", x, P)
    return [b.add("matmul", between, W), between]


def a_sum_that_is_a_result(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    between = b.add("add", b.add("matmul", x, P), c)
    return [b.add("matmul", between, W), between]


def read_elsewhere(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    between = b.add("matmul", x, P)
    return [b.add("matmul", between, W), b.add("tanh", between)]


def a_function_between(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    return [b.add("matmul", b.add("tanh", b.add("matmul", x, P)), W)]


def a_sum_of_values(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    between = b.add("matmul", x, P)
    return [b.add("matmul", b.add("add", between, b.add("matmul", b.add("tanh", x), P)), W)]


def in_two_dtypes(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    narrow = [b.add("cast", number, dtype="float32") for number in (x, P)]
    return [b.add("matmul", b.add("matmul", *narrow), W)]


def of_a_total(b: Builder, x: int, P: int, W: int, c: int) -> list[int]:
    between = b.add("matmul", x, P)
    other = b.add("tanh", b.add("matmul", b.add("tanh", x), P))
    return [b.add("matmul", between, b.add("contract", other, other))]


REFUSES: dict[str, tuple[Make, dict[str, int]]] = {
    "the value between is a result": (a_result, {}),
    "the sum between is a result": (a_sum_that_is_a_result, {}),
    "something else reads the value between": (read_elsewhere, {}),
    "a function is between": (a_function_between, {}),
    "a sum of two values is between": (a_sum_of_values, {}),
    "the products have two dtypes": (in_two_dtypes, {}),
    "a parameter is known in the end": (of_a_total, {"m": 5}),
    "a bottleneck costs less": (two, {"k": 6, "m": 3, "n": 6}),
    "a bottleneck with a sum costs less": (shifted, {"k": 6, "m": 3, "n": 6}),
}


@pytest.mark.parametrize("name", REFUSES)
def test_it_does_not_fire(name: str) -> None:
    make, sizes = REFUSES[name]
    net = net_of(make, **sizes)  # pyright: ignore[reportArgumentType]
    assert chain(net) == net


@pytest.mark.long(examples=15)
@settings(max_examples=60)
@given(k=st.integers(1, 9), m=st.integers(1, 9), n=st.integers(1, 9), name=st.sampled_from([*FIRES]))
def test_it_fires_where_that_takes_fewer_flops(k: int, m: int, n: int, name: str) -> None:
    net = net_of(FIRES[name][0], k, m, n)
    made = chain(net)
    before, after = (sum(2 * rows * columns for rows, columns in products(each)) for each in (net, made))
    assert after <= before
    if name == "two":
        assert (after < before) == (k * n < m * (k + n))
    segments = segments_of((2, 1))
    given_ = arrays_for(net, segments)
    for one, other in zip(interpret(made, given_, segments), interpret(net, given_, segments), strict=True):
        assert_close(one, other, 1, k + 2 * m + n)


def test_it_is_a_pass_and_the_product_of_parameters_is_known_when_these_are_bound() -> None:
    graph = sn.Graph(lambda x, p: np.tanh(x @ p["P"] @ p["W"]), {"P": np.ones((3, 4)), "W": np.ones((4, 3))})
    x = np.random.default_rng(0).normal(size=(2, 3, 3))
    assert_close(graph(x), graph(x, engine="interpret"), 1, 7)
    assert "once: 72 flop" in graph.explain()
    (plan,) = graph.schedule.plans
    assert products(optimised(plan.traced, PIPELINE)) == [(3, 3)]


# ---- cells -------------------------------------------------------------------------------------------------


def projected(x: Any, p: Any) -> Any:
    between = x @ p["P"] + p["c"] if "c" in p else x @ p["P"]
    return sn.cells.rnn("gru", p["gru"])(between)[0]


def params_of(bias: bool, inputs: int = 4, between: int = 5, dtype: str = "float32") -> dict[str, Any]:
    random = np.random.default_rng(0)
    made: dict[str, Any] = {
        "gru": sn.cells.CELLS["gru"].parameters(between, 6, dtype=dtype),
        "P": random.normal(size=(inputs, between)).astype(dtype),
    }
    return made | ({"c": random.normal(size=between).astype(dtype)} if bias else {})


@pytest.mark.parametrize("bias", [False, True])
def test_a_projection_ahead_of_a_gru_is_part_of_its_input_weights(bias: bool) -> None:
    params = params_of(bias)
    graph = sn.Graph(projected, params, inputs=4)
    (node,) = (node for node in absorb(graph.net).nodes if node.operation == "recur")
    known = recognise(node)
    assert isinstance(known, Recognised), str(known)
    assert (known.cell, known.inputs, known.projected) == ("gru", 4, None)
    names = [node.recur.body.nodes[number].name for number in node.recur.others]
    made = known.arrays([(params["gru"] | params)[name] for name in names])
    W = params["gru"]["W"].astype("float64")
    assert_close(made["W"], params["P"] @ W, 1, 4 + 5)
    both = params["gru"]["b"] + params["gru"]["d"] + (params["c"] @ W if bias else 0)
    assert_close(made["b"] + made["d"], both, 1, 4 + 5)


def test_a_bottleneck_ahead_of_a_gru_is_none_of_its_weights() -> None:
    graph = sn.Graph(projected, params_of(False, inputs=16, between=2), inputs=16)
    (node,) = (node for node in absorb(graph.net).nodes if node.operation == "recur")
    assert not isinstance(recognise(node), Recognised)


@pytest.mark.skipif(missing_onednn() is not None, reason=str(missing_onednn()))
@pytest.mark.parametrize("bias", [False, True])
def test_onednn_runs_the_gru_with_its_projection(bias: bool) -> None:
    sn.set_threads(1)
    graph = sn.Graph(projected, params_of(bias), inputs=4)
    chosen = choose(graph.program.schedule_for("onednn"), "onednn")[0]
    assert chosen.name == "onednn"
    assert len(graph.program.schedule_for("onednn").parts) == 1
    x = np.random.default_rng(1).normal(size=(3, 7, 4)).astype("float32")
    wide = sn.Graph(projected, params_of(bias, dtype="float64"))(x.astype("float64"), engine="interpret")
    for engine in ("onednn", "llvm"):
        assert_close(graph(x, engine=engine), wide, 7, 4 + 5 + 6)
    sn.set_threads(None)


@pytest.mark.parametrize("bias", [False, True])
def test_a_gradient_goes_through_both_parameters(bias: bool) -> None:
    graph = sn.Graph(projected, params_of(bias, dtype="float64"), inputs=4)
    assert_gradient(graph.net, segments_of((3, 0, 2)))
    x = np.random.default_rng(1).normal(size=(2, 5, 4))
    outputs, backward = sn.vjp(graph)(x)
    _, right = sn.vjp(graph)(x, engine="interpret")
    found, wanted = backward(outputs).params, right(outputs).params
    for name in ("P", *(["c"] if bias else [])):
        assert_close(found[name], wanted[name], 10, 15)
        assert np.abs(found[name]).max() > 1e-3
    assert_close(found["gru"]["W"], wanted["gru"]["W"], 10, 15)
