"""Where the blocks of sparse integer matrices lie, in an order for the instructions of a processor.

    dsp       32-bit words of two columns and two blocks
    helium    eight blocks of a column side by side, whose elements of the vector one instruction gathers

The columns of a block are taken some at a time, and their blocks some at a time. Rows of zeros, whose place
is row 0, make the blocks of a group a whole number of these. Cores without an entry, and matrices of few
blocks, take blocks one by one, with all their columns, as they lie in the program.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import FrameProgram

Array = np.ndarray


class SparseLayout(NamedTuple):
    """An order of blocks. columns: the most whose sums registers hold. together: the blocks that an
    instruction takes. ordered: gives weights [instructions, blocks, columns] in their order.
    """

    columns: int
    together: int
    ordered: Callable[[Array], Array]


def in_pairs(weights: Array) -> Array:
    """Returns weights in words of two columns and two blocks."""
    words, _, columns = weights.shape
    return weights.reshape(words, 2, columns // 2, 2).swapaxes(1, 2)


def in_columns(weights: Array) -> Array:
    """Returns weights with the blocks of a column side by side."""
    return weights.swapaxes(1, 2)


SPARSE_LAYOUTS: Mapping[str, SparseLayout] = {
    "dsp": SparseLayout(8, 2, in_pairs),
    "helium": SparseLayout(4, 8, in_columns),
}
"""The order of blocks in each layout."""


def layout_of(program: FrameProgram, loop: SparseProductLoop, layout: str) -> str:
    """Returns the layout of the blocks of a product for a processor with a layout of weights: "" as in the
    program for floats, and where so few blocks have the same columns that sums begin about as often as they
    add.
    """
    is_small = program.by_name[loop.product.weights].dtype == "int8"
    pays = 2 * loop.blocks >= loop.product.outputs
    return layout if is_small and pays and layout in SPARSE_LAYOUTS else ""


def laid_out_blocks(loop: SparseProductLoop, constants: Mapping[str, Array], layout: str) -> dict[str, Array]:
    """Returns the blocks and the places of a product in a layout, by the names of their constants.

    constants: the constants of the program, in which blocks and places lie one after the other.
    """
    (most, together, ordered), width = SPARSE_LAYOUTS[layout], loop.width
    blocks, given = constants[loop.product.weights].reshape(-1, width), constants[loop.places]
    columns = min(most, width)
    weights, places, at, first = list[Array](), list[Array](), 0, 0
    while at < given.size:
        count = int(given[at])
        lacking = -count % together
        rows = np.pad(given[at + 1 : at + 1 + count], (0, lacking))
        places += [np.array([len(rows)], given.dtype), rows]
        padded = np.pad(blocks[first : first + count], ((0, lacking), (0, 0)))
        for column in range(0, width, columns):
            own = padded[:, column : column + columns]
            weights.append(ordered(own.reshape(-1, together, columns)).ravel())
        at, first = at + 1 + count, first + count
    return {loop.product.weights: np.concatenate(weights), loop.places: np.concatenate(places)}
