"""The tangent of every operation against central differences and against its adjoint."""

import numpy as np
import pytest
from gradcheck import arrays_for, assert_gradient, assert_tangent, segments_of

from stepnet.compiler.grad import jvp, vjp
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Precision, Recur, Type, interpret
from stepnet.errors import RefusedError
from tests.compiler.grad.test_adjoints import CASES, SEGMENTS, Values


def net_of(name: str) -> Net:
    values = Values()
    return values.builder.net([CASES[name](values)])


@pytest.mark.parametrize("name", CASES)
def test_a_tangent_agrees_with_central_differences(name: str) -> None:
    net = net_of(name)
    tangent = assert_tangent(net, SEGMENTS)
    assert_tangent(net, segments_of([]))
    assert_gradient(tangent, SEGMENTS)


@pytest.mark.parametrize("name", CASES)
def test_the_tangent_of_a_gradient_agrees_with_central_differences(name: str) -> None:
    assert_tangent(vjp(net_of(name)), SEGMENTS)


def chained(reverse: bool, precision: Precision | None = None) -> Net:
    """Three memories: the first has no tangent, the second gets one from the sequence, the third from it."""
    inside = Builder()
    x, a, b, c = (inside.input(Type(ROWS, (2,), "float64"), name) for name in "xabc")
    W = inside.input(Type(CONST, (2, 2), "float64"), "W")
    b_next = inside.add("tanh", inside.add("add", inside.add("matmul", b, W), x))
    c_next = inside.add("multiply", c, b)
    body = inside.net([c_next, inside.add("add", a, a), b_next, c_next])
    builder = Builder()
    inputs = [builder.input(Type(STEPS, (2,), "float64"), "x")]
    inputs += [builder.input(Type(ROWS, (2,), "float64"), name) for name in "abc"]
    inputs += [builder.input(Type(CONST, (2, 2), "float64"), "W")]
    results = Recur(body, 1, 3, reverse, precision=precision).add_results(builder, inputs)
    return builder.net([*results.outputs, *results.memories])


@pytest.mark.parametrize("reverse", [False, True])
def test_the_tangent_of_a_recurrence(reverse: bool) -> None:
    net = chained(reverse)
    assert_gradient(assert_tangent(net, SEGMENTS), SEGMENTS)
    assert_tangent(vjp(net), SEGMENTS)


@pytest.mark.parametrize(("place", "memories"), [(0, 2), (1, 1), (2, 2), (3, 1), (4, 2)])
def test_only_memories_that_can_have_a_tangent_get_one(place: int, memories: int) -> None:
    net = chained(False)
    tangent, whole = jvp(net, [place]), jvp(net)
    (recur,) = [node.recur for node in tangent.nodes if node.operation == "recur"]
    assert recur.memory_count == 3 + memories
    arrays = arrays_for(whole, SEGMENTS)
    given, moved = arrays[: len(net.inputs)], arrays[len(net.inputs) :]
    alone = [array if at == place else np.zeros_like(array) for at, array in enumerate(moved)]
    found = interpret(tangent, [*given, moved[place]], SEGMENTS)
    for one, right in zip(found, interpret(whole, [*given, *alone], SEGMENTS), strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-12, atol=1e-12)


TIES = ("maximum", "minimum of a number", "max", "min", "reduce max", "reduce max of rows")


@pytest.mark.parametrize("name", TIES)
def test_equal_values_share_a_tangent_as_they_share_a_gradient(name: str) -> None:
    net = net_of(name)
    assert_tangent(net, SEGMENTS, [np.ones_like(array) for array in arrays_for(net, SEGMENTS)], False)


def test_the_tangent_of_int8_is_refused() -> None:
    with pytest.raises(RefusedError, match="a recurrence in int8 has no derivatives: differentiate the one"):
        jvp(chained(False, Precision("int8")))
