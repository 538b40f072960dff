"""Products with blocks of zeros: which matrices are stored in blocks, and that sums and sizes are true."""

from pathlib import Path

import numpy as np
import pytest
from zoo import rnn_of

import stepnet as sn
from stepnet.build import build
from stepnet.compiler.targets.frame import (
    FrameBuffer,
    FrameProgram,
    FrameRun,
    ProductLoop,
    SparseProductLoop,
    StridedView,
    packed_weights,
    sparse_matrix,
)
from stepnet.errors import NetError, RefusedError

Array = np.ndarray


def pruned(width: int, share: float, dtype: str = "float32", inputs: int = 40, outputs: int = 48) -> Array:
    """A matrix in which a share of the blocks has numbers."""
    random = np.random.default_rng(7)
    kept = np.repeat(random.random((inputs, outputs // width)) < share, width, axis=1)
    numbers = (
        random.normal(size=(inputs, outputs)) if dtype == "float32" else random.integers(1, 99, kept.shape)
    )
    return (numbers * kept).astype(dtype)


@pytest.mark.parametrize(
    ("matrix", "width"),
    [
        (pruned(16, 0.12), 16),
        (pruned(8, 0.2), 8),
        (pruned(4, 0.3), 4),
        (pruned(16, 0.12, "int8"), 16),
        (pruned(16, 0.3, "int8"), None),  # instructions for whole matrices do more at a time
        (pruned(8, 0.7), None),
        (pruned(1, 0.3), None),  # single zeros
        (np.zeros((40, 48), "f4"), None),
        (pruned(8, 0.1)[:, :-2], None),  # no blocks make 46 columns
        (pruned(4, 0.1, inputs=2**15, outputs=4), None),  # the numbers of rows do not fit
    ],
)
def test_matrices_are_stored_in_blocks_where_that_pays(matrix: Array, width: int | None):
    found = sparse_matrix(matrix)
    assert (found and found.width) == width
    if found is not None:
        kept = matrix.reshape(len(matrix), -1, found.width).any(-1)
        assert found.about == f"sparse {width}x1, {kept.mean():.0%} of blocks"
        again, places, at = np.zeros_like(matrix), iter(found.places.tolist()), 0
        for first in range(0, matrix.shape[1], found.width):
            for _ in range(next(places)):
                again[next(places), first : first + found.width] = found.weights[at : at + found.width]
                at += found.width
        np.testing.assert_array_equal(again, matrix)


def result_of(matrix: Array, x: Array, start: Array) -> tuple[Array, Array]:
    """The products of vectors with a matrix in blocks, and with all of it."""
    found, (inputs, outputs) = sparse_matrix(matrix), matrix.shape
    assert found is not None
    left, begin = StridedView("x", 0, (inputs, 1)), StridedView("s", 0, (outputs, 1))
    result, rows = StridedView("y", 0, (outputs, 1)), len(x)
    whole = ProductLoop(rows, inputs, outputs, left, "k", begin, result)
    sparse = SparseProductLoop(whole, found.width, found.blocks, "k_places")
    ends = [("x", x.size, "input"), ("s", start.size, "input"), ("y", start.size, "output")]
    results = list[Array]()
    for loop, tables in (
        (sparse, {"k": found.weights, "k_places": found.places}),
        (whole, {"k": packed_weights(matrix)}),
    ):
        buffers = [FrameBuffer(name, each.dtype.name, each.size, "constant") for name, each in tables.items()]
        buffers += [FrameBuffer(name, "float32", size, kind) for name, size, kind in ends]
        (y,) = FrameRun(FrameProgram(tuple(buffers), tables, {}, (), (loop,))).step(x, start)
        results.append(y.reshape(start.shape))
    return results[0], results[1]


def test_sums_have_the_bits_of_whole_matrices():
    matrix, random = pruned(8, 0.2), np.random.default_rng(8)
    x, start = (random.normal(size=(3, size)).astype("f4") for size in (40, 48))
    own, whole = result_of(matrix, x, start)
    np.testing.assert_array_equal(own.view("u4"), whole.view("u4"))
    x[0, matrix[:, 0] == 0] = np.inf  # times zeros it is NaN
    own, _ = result_of(matrix, x, start)
    assert own[0, 0] == whole[0, 0]


def test_sizes_are_those_of_the_blocks(tmp_path: Path):
    gru = rnn_of("gru", 40, 16)
    params = {**gru.params, "W": pruned(16, 0.12)}
    made = build(sn.cells.rnn("gru", params), tmp_path, target="c", inputs=40)
    blocks = np.count_nonzero(params["W"][:, ::16])
    (part, *_) = made.sizes.parts
    assert (part.part, part.multiply_adds) == (f"@ W, sparse 16x1, {blocks / 120:.0%} of blocks", 16 * blocks)
    bias = 4 * 48
    assert part.constant_bytes == bias + 16 * blocks * 4 + 2 * (blocks + 3)
    assert made.sizes.multiply_adds == 16 * blocks + 16 * 48
    with pytest.raises(RefusedError, match="no instructions for float32"):
        build(sn.cells.rnn("gru", params), tmp_path / "m0", target="cortex-m0plus", inputs=40)


def test_blocks_that_make_no_matrix_are_refused():
    view, apart = StridedView("x", 0, (0, 1)), StridedView("x", 0, (0, 2))
    with pytest.raises(NetError, match="no blocks of 8 columns make 12"):
        SparseProductLoop(ProductLoop(1, 2, 12, view, "k", None, view), 8, 1, "p")
    with pytest.raises(NetError, match="one after the other"):
        ProductLoop(1, 2, 12, view, "k", None, apart)
