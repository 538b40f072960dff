"""The machine code of operations at pairs of steps; see `pairs`."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.pairs import WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, MEMORY_TYPES, POINTER, Code, vector_of

POINTERS = ("first", "second", "result", "query_starts", "query_lengths", "key_starts", "key_lengths")
PAIR_POINTERS = ("pair_starts", "pair_lengths")

Added = Callable[[int, ir.Value, ir.Value], ir.Value]
"""Writes the next value of a sum, from the numbers side by side, the index and the value so far."""


def write_pairs(processor: Processor, how: str, dtype: str) -> ir.Module:
    """Generates the LLVM module of the function `pairs`, which computes the products of queries and keys at
    their pairs, or a sum of weighted values over pairs. It takes a pointer to its arguments, listed in
    `WORDS`. Its result is 0: a task of a call is done.

    how: "scores", or "keys" or "queries" for a mix over these. dtype: that of the numbers.
    """
    module = ir.Module("pairs")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "pairs")
    code, (words,) = Code(function.append_basic_block("entry"), processor), function.args
    numbers = [code.read_number(words, code.number(place)) for place in range(len(WORDS))]
    arguments = {
        word: code.inttoptr(number, POINTER) if word in (*POINTERS, *PAIR_POINTERS) else number
        for word, number in zip(WORDS, numbers, strict=True)
    }
    writer = PairsCode(code, arguments, dtype)
    {"scores": writer.scores, "keys": writer.over_keys, "queries": writer.over_queries}[how]()
    code.ret(code.number(0))
    return module


class Query(NamedTuple):
    """A query in the loop over all of them: its number, the first of its keys and of its pairs, and how many
    keys it has.
    """

    number: ir.Value
    key: ir.Value
    pair: ir.Value
    keys: ir.Value


class PairsCode:
    """Writer of code that goes over the queries of all sequences, and over the keys of each.

    Features are read in vectors, and what is left in single numbers.
    """

    def __init__(self, code: Code, arguments: dict[str, ir.Value], dtype: str) -> None:
        """Takes the builder of a function, and the values of its `WORDS`. dtype: that of the numbers."""
        self.code, self.arguments, self.type = code, arguments, MEMORY_TYPES[dtype]
        self.itemsize = np.dtype(dtype).itemsize
        self.heads, self.size = arguments["heads"], arguments["size"]
        self.width = max(1, code.processor.vector_bytes // self.itemsize)
        self.whole = code.sub(self.size, code.srem(self.size, code.number(self.width)))

    def queries(self) -> Iterator[Query]:
        """Writes a loop over the queries of all sequences; yields the query of one round, for which the
        caller writes the loop's body.
        """
        code, own, zero = self.code, self.arguments, self.code.number(0)
        with code.loop(zero, own["rows"]) as row:
            first = code.read_number(own["query_starts"], row)
            count = code.read_number(own["query_lengths"], row)
            key = code.read_number(own["key_starts"], row)
            with code.loop(first, code.add(first, count)) as number:
                pair, keys = (code.read_number(own[name], number) for name in PAIR_POINTERS)
                yield Query(number, key, pair, keys)

    def at(self, name: str, entry: ir.Value, head: ir.Value, feature: ir.Value) -> ir.Value:
        """Writes the pointer to a feature of an entry (a query or a key) in an array of such values.

        name: the argument that points to the array. head: the index of the features' outer axes.
        """
        code = self.code
        place = code.add(code.mul(code.add(code.mul(entry, self.heads), head), self.size), feature)
        return code.at(self.arguments[name], code.mul(place, code.number(self.itemsize)))

    def at_pair(self, name: str, pair: ir.Value, head: ir.Value) -> ir.Value:
        """Writes the pointer to a number at a pair. name: the argument that points to the array."""
        code = self.code
        place = code.add(code.mul(pair, self.heads), head)
        return code.at(self.arguments[name], code.mul(place, code.number(self.itemsize)))

    def read(self, pointer: ir.Value, width: int = 1) -> ir.Value:
        """Writes a load of `width` numbers."""
        return self.code.read(vector_of(self.type, width), pointer, self.itemsize)

    def columns(self) -> Iterator[tuple[ir.Value, int]]:
        """Writes loops over the features of a head: yields the first one of each round, and how many it has,
        for which the caller writes the body.
        """
        for start, stop, width in ((self.code.number(0), self.whole, self.width), (self.whole, self.size, 1)):
            with self.code.loop(start, stop, width) as feature:
                yield feature, width

    def scores(self) -> None:
        """Writes the body of the function that multiplies queries and keys at their pairs."""
        code, zero = self.code, self.code.number(0)
        for query in self.queries():
            with code.loop(zero, self.heads) as head, code.loop(zero, query.keys) as number:
                left = self.at("first", query.number, head, zero)
                right = self.at("second", code.add(query.key, number), head, zero)
                product = self.product(left, right)
                code.write(product, self.at_pair("result", code.add(query.pair, number), head), self.itemsize)

    def product(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Writes the sum of the products of the features at two pointers; returns it."""
        code, width = self.code, self.width

        def added(count: int, feature: ir.Value, total: ir.Value) -> ir.Value:
            """Writes the sum of a total and the products of `count` features side by side."""
            place = code.mul(feature, code.number(self.itemsize))
            return code.fused(
                self.read(code.at(left, place), count), self.read(code.at(right, place), count), total
            )

        zeros = ir.Constant(vector_of(self.type, width), None)
        total = self.carried(code.number(0), self.whole, width, zeros, added)
        while width > 1:
            width //= 2
            total = code.fadd(code.slice(total, 0, width), code.slice(total, width, width))
        if self.width > 1:
            total = code.extract_element(total, ir.Constant(ir.IntType(32), 0))
        return self.carried(self.whole, self.size, 1, total, added)

    def carried(
        self, start: ir.Value, stop: ir.Value, step: int, initial: ir.Value, added: Added
    ) -> ir.Value:
        """Writes a loop that adds to a value in each round; returns its last value.

        start, stop, step: of the index. added: writes the next value from the step, the index and the value.
        """
        code = self.code
        rounds = code.sdiv(code.sub(stop, start), code.number(step))
        made = code.carry(
            0,
            rounds,
            [initial],
            lambda turn, now: [added(step, code.add(start, code.mul(turn, code.number(step))), now[0])],
        )
        return made[0]

    def over_keys(self) -> None:
        """Writes the body of the function that sums weighted values over the keys of each query."""
        code, zero = self.code, self.code.number(0)
        for query in self.queries():
            with code.loop(zero, self.heads) as head:
                for feature, width in self.columns():
                    total = self.mixed(query, head, feature, width)
                    code.write(total, self.at("result", query.number, head, feature), self.itemsize)

    def mixed(self, query: Query, head: ir.Value, feature: ir.Value, width: int) -> ir.Value:
        """Writes the sum of some weighted features over the keys of a query; returns it."""
        code = self.code

        def added(_: int, number: ir.Value, total: ir.Value) -> ir.Value:
            """Writes the sum of a total and the weighted values of a key."""
            weight = self.read(self.at_pair("first", code.add(query.pair, number), head))
            value = self.read(self.at("second", code.add(query.key, number), head, feature), width)
            return code.fused(code.spread(weight, width), value, total)

        zeros = ir.Constant(vector_of(self.type, width), None)
        return self.carried(code.number(0), query.keys, 1, zeros, added)

    def over_queries(self) -> None:
        """Writes the body of the function that sums weighted values over the queries of each key."""
        code, own, zero = self.code, self.arguments, self.code.number(0)
        with code.loop(zero, own["rows"]) as row:
            key, keys = (code.read_number(own[name], row) for name in ("key_starts", "key_lengths"))
            entry = code.mul(code.mul(self.heads, self.size), code.number(self.itemsize))
            code.zero_bytes(code.at(own["result"], code.mul(key, entry)), code.mul(keys, entry))
        for query in self.queries():
            with code.loop(zero, query.keys) as number, code.loop(zero, self.heads) as head:
                weight = self.read(self.at_pair("first", code.add(query.pair, number), head))
                for feature, width in self.columns():
                    result = self.at("result", code.add(query.key, number), head, feature)
                    value = self.read(self.at("second", query.number, head, feature), width)
                    total = code.fused(code.spread(weight, width), value, self.read(result, width))
                    code.write(total, result, self.itemsize)
