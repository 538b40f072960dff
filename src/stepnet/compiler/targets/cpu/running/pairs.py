"""Operations at pairs of steps in machine code: the products that attention scores with, and weighted sums.

    words     first | second | result | rows | query_starts | query_lengths | key_starts | pair_starts | ...
    task      for each row, for each of its queries: the pairs with its keys, which lie one after the other

Each number is one chain of sums in the order of its features, keys or queries, so that the bits of a sequence
are those of the sequence alone.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np

from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.across import SHARED_BYTES, BetweenTask, shares
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.threads import threads
from stepnet.ragged.positions import Positions

WORDS = (
    *("first", "second", "result", "rows", "query_starts", "query_lengths", "key_starts", "key_lengths"),
    *("pair_starts", "pair_lengths", "heads", "size"),
)
"""The argument words of an operation.

first, second, result: the pointers to both operands, in the order of the net, and to the result.
rows: the number of sequences.
query_starts, query_lengths, key_starts, key_lengths: the pointers to the tables of the first query and the
    number of queries of each sequence, and of its keys.
pair_starts, pair_lengths: the pointers to the tables of the first pair of each query, and of its keys.
heads, size: the numbers at a pair, and the numbers of the last axis of features, which a product sums over.
"""
WORD = {name: place for place, name in enumerate(WORDS)}


@cache
def pairs_code(processor: Processor, how: str, dtype: str) -> NativeFunction:
    """Returns the machine code of an operation at pairs of steps, compiled once.

    how: "scores", or "keys" or "queries" for a mix over these. dtype: that of the numbers.
    """
    return machine_code("running.pairs", processor, how, dtype).function("pairs", ctypes.c_int64)


def computed(
    across: Across, operands: Sequence[Array], positions: Sequence[Positions], processor: Processor
) -> Array:
    """Computes an operation at pairs of steps in a new array. positions: as for `PairsTask`."""
    task = PairsTask(across, positions, processor)
    made = task.result_of(*operands)
    task()
    return made


class PairsTask(BetweenTask):
    """Products of queries and keys at their pairs, or weighted sums over pairs, with the argument words."""

    def __init__(self, across: Across, positions: Sequence[Positions], processor: Processor) -> None:
        """Writes the argument words, but for the pointers of the values.

        positions: where the queries and the keys of the sequences lie, and the pairs of each query.
        processor: that which runs it.
        """
        queries, keys, pairs = positions
        made = {"scores": pairs, "keys": queries, "queries": keys}[across.how]
        super().__init__(across, made.total)
        own = [SequenceLayout.of(each) for each in positions]
        self.held = tuple(own)
        at_pair = across.result if across.operation == "scores" else across.source
        features = across.source if across.operation == "scores" else across.result
        ends = pairs.offsets[queries.offsets]
        work = int(ends[-1]) * features.size * features.itemsize
        firsts = shares(ends, threads() if work >= SHARED_BYTES else 1)
        places = [place for layout in own for place in layout.places[:2]]
        sizes = at_pair.size, features.shape[-1]
        words = np.array([[0, 0, 0, queries.rows, *places, *sizes]] * len(firsts), np.int64)
        words[:, WORD["rows"]] = np.diff([*firsts, queries.rows])
        for name in ("query_starts", "query_lengths", "key_starts", "key_lengths"):
            words[:, WORD[name]] += 8 * np.array(firsts)
        self.begin(pairs_code(processor, across.how, across.source.dtype), words)
