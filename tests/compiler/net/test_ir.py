"""Types and nets as values: they print, compare, and hold what they say."""

from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Type
from stepnet.compiler.net.types import Literal, extent_text


def gru(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    a, b = x @ p["W"] + p["b"], h @ p["R"]
    r, z = sn.sigmoid(a[:, :2] + b[:, :2]), sn.sigmoid(a[:, 2:4] + b[:, 2:4])
    h = z * h + (1 - z) * np.tanh(a[:, 4:] + r * b[:, 4:])
    return h, h


GOLDEN = """\
net(
    x: rows/steps f32[3],
    h: rows f32[2],
    W: const f32[3, 6],
    R: const f32[2, 6],
    b: const f32[6],
):
  %5 = recur x h W R b memories=1 reverse=False sequences=1 : rows/steps f32[2], rows f32[2]
    body(
        x: rows f32[3],
        h: rows f32[2],
        W: const f32[3, 6],
        R: const f32[2, 6],
        b: const f32[6],
    ):
      %5 = matmul x W : rows f32[6]
      %6 = add %5 b : rows f32[6]
      %7 = matmul h R : rows f32[6]
      %8 = slice %6 slices=((0,2,1),) : rows f32[2]
      %9 = slice %7 slices=((0,2,1),) : rows f32[2]
      %10 = add %8 %9 : rows f32[2]
      %11 = sigmoid %10 : rows f32[2]
      %12 = slice %6 slices=((2,4,1),) : rows f32[2]
      %13 = slice %7 slices=((2,4,1),) : rows f32[2]
      %14 = add %12 %13 : rows f32[2]
      %15 = sigmoid %14 : rows f32[2]
      %16 = multiply %15 h : rows f32[2]
      %17 = constant value=1.0 : const f32[]
      %18 = subtract %17 %15 : rows f32[2]
      %19 = slice %6 slices=((4,6,1),) : rows f32[2]
      %20 = slice %7 slices=((4,6,1),) : rows f32[2]
      %21 = multiply %11 %20 : rows f32[2]
      %22 = add %19 %21 : rows f32[2]
      %23 = tanh %22 : rows f32[2]
      %24 = multiply %18 %23 : rows f32[2]
      %25 = add %16 %24 : rows f32[2]
      return %25, %25
  %6 = result %5 of=0 : rows/steps f32[2]
  %7 = result %5 of=1 : rows f32[2]
  return %6, %7"""


def gru_net() -> Any:
    shapes = {"W": (3, 6), "R": (2, 6), "b": (6,)}
    params = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return sn.RNN(gru, params, memory=2, inputs=3).net


def test_a_gru_as_text() -> None:
    assert str(gru_net()) == GOLDEN


def test_equal_nets_are_equal_and_print_the_same() -> None:
    one, other = gru_net(), gru_net()
    assert one == other
    assert str(one) == str(other)
    assert hash(one) == hash(other)


def test_the_line_of_a_node_is_for_people_and_changes_no_net() -> None:
    def net(source: str) -> Any:
        builder = Builder()
        x = builder.input(Type(ROWS, (2,), "float32"), "x")
        return builder.net([builder.add("tanh", x, source=source)])

    assert net("here") == net("there")


def test_users() -> None:
    builder = Builder()
    x, w = (
        builder.input(Type(extent, (2,), "float32"), name) for extent, name in ((ROWS, "x"), (CONST, "w"))
    )
    total = builder.add("add", x, w)
    net = builder.net([builder.add("multiply", total, x)])
    assert net.users() == [[2, 3], [2], [3], []]


def test_what_no_result_needs_is_left_out_but_inputs_stay() -> None:
    builder = Builder()
    x, y = (builder.input(Type(ROWS, (), "float32"), name) for name in "xy")
    builder.add("tanh", y)
    assert str(builder.net([builder.add("exp", x)])) == (
        "net(\n    x: rows f32[],\n    y: rows f32[],\n):\n  %2 = exp x : rows f32[]\n  return %2"
    )


def test_two_inputs_of_one_name_are_told_apart() -> None:
    builder = Builder()
    x, y = (builder.input(Type(ROWS, (), "float32"), "x") for _ in range(2))
    text = str(builder.net([builder.add("add", x, y)]))
    assert "%1: rows f32[]" in text
    assert "add x %1" in text


@pytest.mark.parametrize(
    ("extent", "text"),
    [(CONST, "const"), (ROWS, "rows"), (STEPS, "rows/steps"), ((*STEPS, "words"), "rows/steps/words")],
)
def test_extents_as_text(extent: tuple[str, ...], text: str) -> None:
    assert extent_text(extent) == text
    assert str(Type(extent, (2, 3), "int64")) == f"{text} i64[2, 3]"


def test_a_type_knows_its_size() -> None:
    type_ = Type(ROWS, (2, 3), "float64")
    assert (type_.size, type_.itemsize, type_.is_float) == (6, 8, True)
    assert (Type(ROWS, (), "bool").size, Type(ROWS, (0, 4), "int32").size) == (1, 0)
    assert type_.at(CONST) == Type(CONST, (2, 3), "float64")


def test_literals_are_equal_by_their_bits() -> None:
    assert Literal(np.array(0.0)) != Literal(np.array(-0.0))
    assert Literal(np.zeros(2, np.float32)) != Literal(np.zeros(2, np.float64))
    assert Literal(np.zeros((2, 1))) != Literal(np.zeros((1, 2)))
    assert Literal(np.array([np.nan])) == Literal(np.array([np.nan]))
    assert str(Literal(np.arange(3))) == "[0, 1, 2]"
    large, other = Literal(np.arange(9.0)), Literal(np.arange(9.0) + 1)
    assert str(large).startswith("9 numbers #")
    assert str(large) != str(other)


def test_a_literal_is_a_copy_that_nobody_writes_to() -> None:
    array = np.zeros(2)
    literal = Literal(array)
    array[0] = 5
    assert literal.value.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        literal.value[0] = 1
