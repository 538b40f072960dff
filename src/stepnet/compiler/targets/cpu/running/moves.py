"""Moves of rows between arrays, in machine code: pieces of one array are copied to places of another.

    words      source | result | count | pieces
    pieces     place in the source | place in the result | bytes        rows that follow one another are one

The steps of a loop take the rows of their sequences by these, and put their results back (`block_writer.py`).
"""

import ctypes
from functools import cache

import numpy as np

from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code

WORDS = ("source", "result", "count", "pieces")
"""The words of a move: the pointers to both arrays, the number of pieces, and the pointer to their table."""
PIECE = ("source", "result", "bytes")
"""The words of a piece: its offsets in both arrays, and its size, in bytes."""


def pieces_of(read: Array, written: Array, bytes_: int, read_stride: int = 0, stride: int = 0) -> Array:
    """Makes the table of the pieces of memory that a move of rows copies. Rows that follow one another in
    both arrays are one piece.

    read, written: the index of each row in the source, and in the result. bytes_: the size of a row.
    read_stride, stride: the bytes from row to row in the source, and in the result; 0 for `bytes_`.

    >>> pieces_of(np.array([4, 5, 7]), np.array([0, 1, 2]), 8).tolist()
    [[32, 0, 16], [56, 16, 8]]
    """
    if not bytes_ or not len(read):
        return np.zeros((0, len(PIECE)), np.int64)
    sources, results = read * (read_stride or bytes_), written * (stride or bytes_)
    follows = (sources[1:] - sources[:-1] == bytes_) & (results[1:] - results[:-1] == bytes_)
    first = np.flatnonzero(~follows) + 1
    pieces = np.empty((len(first) + 1, len(PIECE)), np.int64)
    for column, places in enumerate((sources, results)):
        pieces[0, column], pieces[1:, column] = places[0], places[first]
    pieces[0, 2], pieces[1:, 2] = 0, first
    pieces[:-1, 2] = bytes_ * (pieces[1:, 2] - pieces[:-1, 2])
    pieces[-1, 2] = bytes_ * (len(read) - pieces[-1, 2])
    return pieces


@cache
def move_code(processor: Processor) -> NativeFunction:
    """Returns the machine code of moves, which takes a pointer to their words (`WORDS`)."""
    return machine_code("running.moves", processor).function("moves", ctypes.c_int64)
