"""Where the weights of integer products lie: in an order for the instructions of a processor.

    ""        as in the program: rows of `BLOCK` columns
    columns   two columns, one after the other or in turn, for cores whose few registers hold two sums
    dsp       32-bit words of two columns and two inputs, for instructions that multiply two pairs of 16 bits
    helium    sixteen inputs of a column side by side, for sums over a vector

Columns are taken in groups, `COLUMNS` at a time, and lie together. All layouts have the same numbers, and
zeros where a word lacks a column or an input.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stepnet.compiler.targets.frame.product_loops import BLOCK, ProductLoop, SparseProductLoop
from stepnet.compiler.targets.frame.program import FrameProgram
from stepnet.compiler.targets.frame.sparse_layouts import laid_out_blocks, layout_of

Array = np.ndarray
COLUMNS: Mapping[str, tuple[int, int]] = {"columns": (2, 1), "dsp": (6, 2), "helium": (4, 1)}
"""The columns of a group, whose sums registers hold, and of each group of those that are left."""
ALIGNMENT = 16
"""The bytes to which each constant is aligned."""
LANES: Mapping[str, int] = {"int8": 16, "int16": 8}
"""The elements of a vector of Helium, by the dtype of the vectors that are multiplied."""
MOST_JOINED = 2**23
"""The bound of sums of the second column of a word that are computed along with those of the first."""


def has_int8_weights(program: FrameProgram, loop: ProductLoop) -> bool:
    """Tells whether the weights of a product are int8."""
    return program.by_name[loop.weights].dtype == "int8"


def matrix_of(program: FrameProgram, loop: ProductLoop) -> Array:
    """Returns the weights of a product, [inputs, outputs]."""
    packed, parts = program.constants[loop.weights], list[Array]()
    for first in range(0, loop.outputs, BLOCK):
        last = min(first + BLOCK, loop.outputs)
        parts.append(packed[first * loop.inputs : last * loop.inputs].reshape(loop.inputs, last - first))
    return np.concatenate(parts, axis=1)


def weights_in(program: FrameProgram, layout: str) -> dict[str, Array]:
    """Returns the weights of all integer products in a layout by name: flat int8, and places of blocks."""
    found = dict[str, Array]()
    for loop in program.loops if layout else ():
        if isinstance(loop, ProductLoop) and has_int8_weights(program, loop):
            found[loop.weights] = LAYOUTS[layout](program, loop)
        elif isinstance(loop, SparseProductLoop) and (own := layout_of(program, loop, layout)):
            found |= laid_out_blocks(loop, program.constants, own)
    return found


def laid_out_bytes(program: FrameProgram, layout: str) -> int:
    """Returns the bytes of all constants of a program, with its weights in a layout."""
    weights = weights_in(program, layout)
    return program.constant_bytes + sum(
        array.nbytes - program.by_name[name].bytes for name, array in weights.items()
    )


def packed_constants(program: FrameProgram, layout: str) -> tuple[dict[str, int], bytes]:
    """Returns the place of each constant among the bytes of all constants, and these bytes. layout: the order
    of the weights of integer products.
    """
    places, data, weights = dict[str, int](), bytearray(), weights_in(program, layout)
    for buffer in program.of("constant"):
        data += bytes(-len(data) % ALIGNMENT)
        places[buffer.name] = len(data)
        stored = "uint8" if buffer.dtype == "bool" else buffer.dtype
        numbers = weights.get(buffer.name, program.constants[buffer.name])
        data += np.ascontiguousarray(numbers, stored).tobytes()
    return places, bytes(data)


def is_joined(program: FrameProgram, loop: ProductLoop) -> bool:
    """Tells whether the two columns of a word are one number of 16 bits for each input, a + 256 b.

    A sum of x (a + 256 b) and one of x a, both modulo 2^32, have that of x b as the difference / 256 if it
    has 24 bits: one instruction less for each word.
    """
    if program.by_name[loop.left.buffer].dtype != "int8":
        return False
    magnitudes = np.abs(matrix_of(program, loop).astype(np.int64)).sum(0)
    return 128 * int(magnitudes.max(initial=0)) < MOST_JOINED


def rows_of_words(inputs: int, dtype: str) -> list[int]:
    """Lists the two inputs of each word, one word after the other; `inputs` stands for none.

    Four int8 of a vector are unpacked from one word as the first and third, and the second and fourth.

    >>> rows_of_words(7, "int8"), rows_of_words(3, "int16")
    ([0, 2, 1, 3, 4, 5, 6, 7], [0, 1, 2, 3])
    """
    whole = inputs - inputs % 4 if dtype == "int8" else 0
    order = [first + at for first in range(0, whole, 4) for at in (0, 2, 1, 3)]
    return [*order, *range(whole, inputs + (inputs - whole) % 2)]


def bytes_of_column(program: FrameProgram, loop: ProductLoop, layout: str) -> int:
    """Returns the bytes that the weights of a column take in a layout."""
    dtype = program.by_name[loop.left.buffer].dtype
    return len(rows_of_words(loop.inputs, dtype)) if layout == "dsp" else loop.inputs


def in_words(program: FrameProgram, loop: ProductLoop) -> Array:
    """Returns weights in words: two columns of an input, then those of another one."""
    rows = rows_of_words(loop.inputs, program.by_name[loop.left.buffer].dtype)
    padded = np.zeros((loop.inputs + 1, loop.outputs + loop.outputs % 2), np.int8)
    padded[:-1, : loop.outputs] = matrix_of(program, loop)
    words = padded[rows].reshape(len(rows) // 2, 2, -1, 2).transpose(0, 2, 1, 3).copy()
    if is_joined(program, loop):
        words[..., 1] -= words[..., 0] < 0
    count = COLUMNS["dsp"][0] // 2
    whole = loop.outputs // (2 * count) * count
    return flat([*groups_of(words[:, :whole], count), *groups_of(words[:, whole:], 1)])


def in_vectors(program: FrameProgram, loop: ProductLoop) -> Array:
    """Returns weights in vectors: some inputs of a column side by side; fewer where fewer are left."""
    lanes = LANES[program.by_name[loop.left.buffer].dtype]
    groups = groups_of(matrix_of(program, loop), *COLUMNS["helium"])
    return flat([group[k : k + lanes].T for group in groups for k in range(0, loop.inputs, lanes)])


def groups_of(rows: Array, count: int, rest: int = 1) -> list[Array]:
    """Lists groups of so many columns of rows, and those that are left in groups of `rest`."""
    whole = rows.shape[1] - rows.shape[1] % count
    starts = [(at, count) for at in range(0, whole, count)]
    starts += [(at, rest) for at in range(whole, rows.shape[1], rest)]
    return [rows[:, at : at + width] for at, width in starts]


def flat(groups: Sequence[Array]) -> Array:
    """Returns the elements of groups, one after the other."""
    return np.concatenate([group.ravel() for group in groups])


def in_columns(program: FrameProgram, loop: ProductLoop) -> Array:
    """Returns weights by columns: all inputs of each; two int16 columns in turn for vectors."""
    matrix = matrix_of(program, loop)
    if program.by_name[loop.left.buffer].dtype == "int8":
        return matrix.T.ravel()
    return flat(groups_of(matrix, *COLUMNS["columns"]))


LAYOUTS: Mapping[str, Callable[[FrameProgram, ProductLoop], Array]] = {
    "columns": in_columns,
    "dsp": in_words,
    "helium": in_vectors,
}
"""The functions that give the weights of a product in a layout."""
