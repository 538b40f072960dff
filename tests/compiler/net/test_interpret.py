"""The interpreter, on nets that tracing alone does not make: expand, reduce and contract between extents, and
windows of steps.
"""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, LevelSizes, Recur, Type, interpret, widened
from stepnet.errors import InputError, NetError

WORDS = (*STEPS, "words")
OFFSETS = (np.array([0, 2, 2, 3]), np.array([0, 1, 3, 3]))
SEGMENTS = LevelSizes(3, OFFSETS)
VALUES = {
    CONST: np.array([1.0, 2.0]),
    ROWS: np.arange(6.0).reshape(3, 2),
    STEPS: np.arange(6.0).reshape(3, 2) + 10,
    WORDS: np.arange(6.0).reshape(3, 2) + 20,
}


def result_of(operation: str, extents: Any, **attributes: Any) -> np.ndarray:
    builder = Builder()
    operands = [builder.input(Type(extent, (2,), "float64"), f"a{i}") for i, extent in enumerate(extents)]
    net = builder.net([builder.add(operation, *operands, **attributes)])
    return interpret(net, [VALUES[extent] for extent in extents], SEGMENTS)[0]


def test_counts() -> None:
    assert [SEGMENTS.count(extent) for extent in (CONST, ROWS, STEPS, WORDS)] == [1, 3, 3, 3]


def test_expand() -> None:
    assert result_of("expand", [CONST], extent=ROWS).tolist() == [[1, 2]] * 3
    assert result_of("expand", [ROWS], extent=STEPS).tolist() == [[0, 1], [0, 1], [4, 5]]
    assert result_of("expand", [STEPS], extent=WORDS).tolist() == [[10, 11], [12, 13], [12, 13]]
    assert result_of("expand", [ROWS], extent=WORDS).tolist() == [[0, 1]] * 3
    assert result_of("expand", [CONST], extent=WORDS).tolist() == [[1, 2]] * 3


@pytest.mark.parametrize(
    ("how", "first", "third"),
    [("sum", 22, 14), ("mean", 11, 14), ("max", 12, 14), ("first", 10, 14), ("last", 12, 14)],
)
def test_reduce_gives_zeros_where_there_are_none(how: str, first: float, third: float) -> None:
    found = result_of("reduce", [STEPS], how=how)
    assert found[:, 0].tolist() == [first, 0, third]


def test_reduce_over_rows_and_words() -> None:
    assert result_of("reduce", [ROWS], how="sum").tolist() == [6, 9]
    assert result_of("reduce", [WORDS], how="sum").tolist() == [[20, 21], [46, 48], [0, 0]]


def test_windows_are_of_one_sequence() -> None:
    found = result_of("windows", [STEPS], size=3, dilation=1, before=1)
    assert found[..., 0].tolist() == [[0, 10, 12], [10, 12, 0], [0, 14, 0]]
    far = result_of("windows", [STEPS], size=2, dilation=5, before=5)
    assert far[..., 0].tolist() == [[0, 10], [0, 12], [0, 14]]
    inner = result_of("windows", [WORDS], size=2, dilation=1, before=1)
    assert inner[..., 0].tolist() == [[0, 20], [0, 22], [22, 24]]


def test_overlap_adds_windows_up() -> None:
    found = result_of("overlap", [STEPS], size=2, dilation=1, before=1)
    assert found.tolist() == [11 + 12, 13, 15]


def test_arrange_turns_each_sequence_around() -> None:
    assert result_of("arrange", [STEPS], steps="steps", reverse=True)[:, 0].tolist() == [12, 10, 14]
    whole = {"all steps": OFFSETS[0]}
    builder = Builder()
    made = builder.add(
        "arrange", builder.input(Type(STEPS, (2,), "float64"), "x"), steps="all steps", reverse=False
    )
    assert str(builder.type_of(made)) == "rows/all steps f64[2]"
    net = builder.net([builder.add("reduce", made, how="last")])
    assert interpret(net, [VALUES[STEPS]], LevelSizes(3, OFFSETS, beside=whole))[0][:, 0].tolist() == [
        12,
        0,
        14,
    ]


@pytest.mark.parametrize(("extent", "axis"), [(STEPS, "steps[+0/2]"), (ROWS, "steps"), (WORDS, "words")])
def test_arrange_leads_to_the_same_steps(extent: Any, axis: str) -> None:
    with pytest.raises(NetError, match="arrange leads from steps to the same steps, not from"):
        result_of("arrange", [extent], steps=axis, reverse=True)


def test_steps_that_no_input_has() -> None:
    with pytest.raises(InputError, match=r"values at steps\[b\], and no input of the call has these steps"):
        result_of("expand", [ROWS], extent=("rows", "steps[b]"))


@pytest.mark.parametrize(
    ("operation", "extent", "window", "message"),
    [
        (
            "windows",
            STEPS,
            (0, 1, 0),
            "a window has at least one step, and a dilation and a stride of at least one",
        ),
        (
            "windows",
            STEPS,
            (2, 0, 0),
            "a window has at least one step, and a dilation and a stride of at least one",
        ),
        ("windows", STEPS, (2, 1, 2), "a window has its own step between its first and its last one"),
        ("windows", STEPS, (2, 1, -1), "a window has its own step between its first and its last one"),
        ("windows", ROWS, (2, 1, 0), r"a window is of the steps of a sequence, which rows f64\[2\] has not"),
        ("overlap", STEPS, (3, 1, 0), r"overlap adds windows of 3 steps, which rows/steps f64\[2\] is not"),
    ],
)
def test_windows_that_there_are_not(operation: str, extent: Any, window: Any, message: str) -> None:
    size, dilation, before = window
    with pytest.raises(NetError, match=message):
        result_of(operation, [extent], size=size, dilation=dilation, before=before)


def test_a_body_reads_no_other_steps() -> None:
    inside = Builder()
    x = inside.input(Type(STEPS, (2,), "float64"), "x")
    h = inside.input(Type(ROWS, (2,), "float64"), "h")
    read = inside.add("reduce", inside.add("windows", x, size=2, dilation=1, before=1), how="last")
    body = inside.net([inside.add("sum", read, axes=(-2,)), h])
    outer = Builder()
    operands = outer.input(Type(WORDS, (2,), "float64"), "x"), outer.input(Type(ROWS, (2,), "float64"), "h")
    with pytest.raises(NetError, match="a body has one step at a time, and windows reads others"):
        Recur(body, 1, 1).add(outer, operands)


def test_contract_is_the_sum_of_outer_products() -> None:
    expected = sum(np.outer(a, a) for a in VALUES[STEPS])
    assert_close(result_of("contract", [STEPS, STEPS]), expected)


def test_widened_keeps_whole_numbers() -> None:
    builder = Builder()
    x = builder.input(Type(ROWS, (), "float32"), "x")
    whole = builder.add("cast", x, dtype="int32")
    net = builder.net(
        [
            builder.add(
                "multiply", builder.add("cast", whole, dtype="float32"), builder.constant(np.float32(0.5))
            )
        ]
    )
    assert net.type_of(net.results[0]).dtype == "float32"
    wide = widened(net)
    assert [wide.type_of(number).dtype for number in range(3)] == ["float64", "int32", "float64"]
    assert interpret(wide, [np.array([3.7])], LevelSizes(1))[0].tolist() == [1.5]


def test_widened_keeps_names_and_the_users_lines() -> None:
    builder = Builder()
    table, x = builder.input(Type(CONST, (3, 2), "float32"), "E"), builder.input(Type(ROWS, (), "int64"), "x")
    net = builder.net([builder.add("gather", table, x, name="rows", source='m.py:6: params["E"][x]')])
    assert [(node.name, node.source) for node in widened(net).nodes] == [
        (node.name, node.source) for node in net.nodes
    ]
    with pytest.raises(
        InputError, match=r'an integer is outside the rows.*\n  at m\.py:6: params\["E"\]\[x\]$'
    ):
        interpret(widened(net), [np.ones((3, 2)), np.array([7])], LevelSizes(1))
