"""Frame programs: what they refuse, how they lie in memory, and how their loops run."""

from dataclasses import replace

import numpy as np
import pytest

from stepnet.compiler.targets.frame import (
    FrameBuffer,
    FrameProgram,
    FrameRun,
    GatherLoop,
    Instruction,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
    StridedView,
    fixed_routine,
    packed_weights,
)
from stepnet.errors import NetError

X = FrameBuffer("x", "float32", 6, "input")
Y = FrameBuffer("y", "float32", 6, "output")
H = FrameBuffer("h", "float32", 6, "memory")


def copy(source: str, target: str, size: int = 6, offset: int = 0) -> PointwiseLoop:
    """A loop that copies one buffer to another."""
    views = StridedView(source, 0, (1,)), StridedView(target, offset, (1,))
    return PointwiseLoop((size,), (views[0],), (), ((views[1], 0),))


def test_wrong_programs_are_refused():
    good = FrameProgram((X, Y, H), {}, {}, (), (copy("x", "y"),))
    gather = GatherLoop((), 2, 3, "y", StridedView("x", 0, ()), StridedView("y", 0, (1,)))
    table = FrameBuffer("k", "float32", 2, "constant")
    wrong = [
        ({"buffers": (X, Y, X)}, "the same name"),
        ({"loops": (copy("x", "y", offset=1),)}, "is outside of output y"),
        ({"loops": (copy("x", "z"),)}, "no view of a buffer"),
        ({"loops": (copy("h", "x"),)}, "a loop writes input x"),
        ({"loops": (copy("x", "h"), gather)}, "a memory is written before an index is read"),
        ({"buffers": (X, Y, H, table)}, "lacks the 2 numbers of its constant k"),
        ({"routines": (fixed_routine("tanh"),)}, "lacks the table k_tanh of a routine"),
        ({"buffers": (X, Y, replace(H, offset=2))}, "not aligned"),
        ({"buffers": (X, Y, H, replace(H, name="c", offset=20))}, "two memories overlap"),
    ]
    for changed, message in wrong:
        with pytest.raises(NetError, match=message):
            replace(good, **changed)
    for body, message in [
        ((Instruction("tan", (0,), "float32"),), "is no instruction"),
        ((Instruction("add", (0,), "float32"),), "is no instruction"),
        ((Instruction("add", (0, 1), "float32"),), "before it is written"),
    ]:
        with pytest.raises(NetError, match=message):
            replace(good, loops=(replace(copy("x", "y"), body=body),))
    with pytest.raises(NetError, match="one after the other"):
        ProductLoop(1, 2, 2, StridedView("x", 0, (0, 2)), "k", None, StridedView("y", 0, (2, 1)))
    with pytest.raises(NetError, match="no reduction is median"):
        ReductionLoop("median", (), (6,), StridedView("x", 0, (1,)), StridedView("y", 0, ()))
    with pytest.raises(NetError, match="no buffer has 0 elements"):
        FrameBuffer("x", "float32", 0, "input")
    with pytest.raises(NetError, match="identifier"):
        FrameBuffer("1x", "float32", 1, "input")


def test_weights_lie_where_the_product_reads_them():
    matrix = np.arange(3 * 19, dtype="f4").reshape(3, 19)
    packed = packed_weights(matrix)
    for n in range(19):
        first, width = n - n % 8, min(8, 19 - (n - n % 8))
        assert [packed[3 * first + width * k + n % 8] for k in range(3)] == matrix[:, n].tolist()


def test_products_add_in_the_stated_order():
    # In this order the ones are lost, which are smaller than half of the last place of 2^24.
    x, y = FrameBuffer("x", "float32", 4, "input"), FrameBuffer("y", "float32", 1, "output")
    weights = FrameBuffer("W", "float32", 4, "constant")
    loop = ProductLoop(1, 4, 1, StridedView("x", 0, (4, 1)), "W", None, StridedView("y", 0, (1, 1)))
    run = FrameRun(FrameProgram((x, y, weights), {"W": np.ones(4, "f4")}, {}, (), (loop,)))
    assert run.step(np.array([2**24, 1, 1, -(2**24)], "float32"))[0] == 0
    assert run.step(np.array([1, 1, 2**24, -(2**24)], "float32"))[0] == 2
