"""Products of several left sides, and values that lie within a concatenation, on every processor."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import interpreted
from planned import schedule
from tolerance import assert_close

from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Recur, Type, widened
from stepnet.compiler.targets import Call
from stepnet.compiler.targets.cpu import LARGE_BYTES, LlvmEngine, Processor, available_processors
from stepnet.ragged import Positions, offsets_of

Array = np.ndarray
RANDOM = np.random.default_rng(3)
LENGTHS = np.array([3, 1, 0, 6, 2, 2, 9, 1, 1, 4, 5])
PROCESSORS = pytest.mark.parametrize(
    "processor", available_processors(), ids=lambda processor: processor.name
)


def net_of(sizes: tuple[int, ...], width: int, joined: bool, dtype: str) -> Net:
    """h' = h / 2 + the sum of the products of some cotangent-like values of h, each with a parameter.

    joined: whether they are also an output, side by side.
    """
    outer, inner = Builder(), Builder()
    x = inner.input(Type(ROWS, (width,), dtype), "x")
    h = inner.input(Type(ROWS, (width,), dtype), "h")
    rights = [inner.input(Type(CONST, (size, width), dtype), f"W{place}") for place, size in enumerate(sizes)]
    base = inner.add("tanh", inner.add("add", x, h))
    pieces: list[int] = []
    for place, size in enumerate(sizes):
        cut = inner.add("slice", base, slices=((0, size, 1),))
        scale = inner.constant(np.asarray(place + 1, dtype))
        pieces.append(inner.add("multiply", cut, scale))
    total = inner.add("multiply", h, inner.constant(np.asarray(0.5, dtype)))
    outputs: list[int] = []
    if joined:
        whole = inner.add("concatenate", *pieces, pieces[0], axis=-1)
        right = inner.add("concatenate", *rights, rights[0], axis=-2)
        total = inner.add("add", total, inner.add("matmul", whole, right))
        outputs.append(whole)
    else:
        for piece, right in zip(pieces, rights, strict=True):
            total = inner.add("add", total, inner.add("matmul", piece, right))
    after = inner.add("tanh", total)
    body = inner.net([*outputs, after, after])
    given = [outer.input(Type(STEPS, (width,), dtype), "x"), outer.input(Type(ROWS, (width,), dtype), "h")]
    given += [outer.input(Type(CONST, (size, width), dtype), f"W{place}") for place, size in enumerate(sizes)]
    gives = Recur(body, 1, 1).add_results(outer, given)
    return outer.net([*gives.outputs, *gives.memories])


def call_of(width: int, dtype: str) -> Call:
    """A call of sequences of several lengths."""
    positions = Positions.end_to_end(offsets_of(LENGTHS))
    x = RANDOM.uniform(-1, 1, (positions.total, width)).astype(dtype)
    return Call(positions, [x], [RANDOM.uniform(-1, 1, (len(LENGTHS), width)).astype(dtype)])


@pytest.mark.long(each=True)
@PROCESSORS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("sizes", "width"), [((16, 16), 16), ((3, 5, 2), 7), ((64, 32, 48), 64), ((1,), 1)])
def test_sums_of_products_are_right(
    processor: Processor, dtype: str, joined: bool, sizes: tuple[int, ...], width: int
) -> None:
    net, call = net_of(sizes, width, joined, dtype), call_of(width, dtype)
    params = [RANDOM.uniform(-0.2, 0.2, (size, width)).astype(dtype) for size in sizes]
    found = LlvmEngine(processor).compile(schedule(net)).bind(params)(call)
    arrays = [array.astype("float64") for array in (*call.sequences, *call.initial) if array is not None]
    wide = replace(call, sequences=arrays[:1], initial=arrays[1:])
    right = interpreted(widened(net), (one.astype("float64") for one in params), wide)
    for actual, expected in zip(found.arrays, right.arrays, strict=True):
        assert_close(actual, expected, 9, sum(sizes) + width)


def test_products_that_are_added_are_one_node() -> None:
    plan = schedule(net_of((16, 8, 4), 16, joined=False, dtype="float32")).single_plan
    assert plan is not None
    products = [node for node in plan.body.nodes if node.kind == "matmul"]
    assert [len(node.sides[0]) for node in products] == [3]


def test_a_concatenation_that_is_an_output_is_multiplied_whole_and_never_copied() -> None:
    plan = schedule(net_of((16, 16), 16, joined=True, dtype="float32")).single_plan
    assert plan is not None
    (product,) = [node for node in plan.body.nodes if node.kind == "matmul"]
    assert plan.body.nodes[product.inputs[0]].operation == "concatenate"


@pytest.mark.long(each=True)
@PROCESSORS
@pytest.mark.parametrize("rows", [1, 5, 11])
def test_products_of_large_parameters_are_right(processor: Processor, rows: int) -> None:
    """Products that prefetch the operands of the elementwise work, with inputs read in place."""
    net = net_of((320,), 320, False, "float32")
    param = RANDOM.uniform(-0.05, 0.05, (320, 320)).astype("float32")
    assert param.nbytes >= LARGE_BYTES
    x, h = (RANDOM.uniform(-1, 1, (size, 320)).astype("float32") for size in (3 * rows, rows))
    call = Call(Positions.end_to_end(np.arange(rows + 1) * 3), [x], [h])
    found = LlvmEngine(processor).compile(schedule(net)).bind([param])(call)
    wide = replace(call, sequences=[x.astype("float64")], initial=[h.astype("float64")])
    right = interpreted(widened(net), (param.astype("float64"),), wide)
    for actual, expected in zip(found.arrays, right.arrays, strict=True):
        assert_close(actual, expected, 3, 640)
