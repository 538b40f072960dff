"""Reductions and scans of an entry, over features.

Few results of many elements are computed by warps: each lane combines some elements, and then the lanes
exchange. The order depends on nothing but the shapes.
"""

from collections.abc import Generator
from contextlib import contextmanager
from math import prod

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I1, Code, integer, is_float
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import (
    ElementWriter,
    RowOfThread,
    RowShare,
    combined,
    zero,
)
from stepnet.compiler.targets.cuda.entries.places import Place, known_number, over_lanes
from stepnet.compiler.targets.cuda.entries.statements import Statement, is_by_warps, reduced_count

Value = ir.Value
CHAINS = 4
"""The number of sums of a reduction that a thread adds up at once."""
TURNS = 4
"""The elements of a reduction that a thread reads at once. All of some dozens would fill its registers."""


class ReductionWriter:
    """Writer of the reductions and scans of an entry, for the row of a thread.

    share: how the threads share the rows of the block, and so the elements of each.
    """

    def __init__(self, writer: ElementWriter, share: RowShare, row: RowOfThread) -> None:
        """Takes the writer of the entry, the elements of the thread, and its row."""
        self.writer, self.code, self.net = writer, writer.code, writer.net
        self.first, self.step, self.row = share.first, share.per_row, row

    def write_results(self, together: list[Statement]) -> None:
        """Writes the results of a reduction: each by the lanes of a warp, or by a thread from a few sums. The
        largest numbers and their places are found together.
        """
        code, writer, statement = self.code, self.writer, together[0]
        nodes = [self.net.nodes[each.number] for each in together]
        node = next((each for each in nodes if each.operation == "argmax"), nodes[0])
        count = reduced_count(self.net, node)

        def write(result: Value, found: list[Value]) -> None:
            """Writes the number that was found as the first result, and its place as the last one."""
            for each, its in zip(together, nodes, strict=True):
                value = found[-1 if its.operation == "argmax" else 0]
                writer.write_slot(value, writer.slots[each.number], self.row.place, result)

        if is_by_warps(self.net, node):
            own = writer.share_of(statement.number)
            with code.warp_loop(self.first, own.count, self.step) as (lane, index):
                result = own.element(code, index)
                values = self.chain(node, result, lane, LANES)
                values = over_lanes(code, values, lambda a, b: self.pair(node, a, b))
                with code.when(code.icmp_signed("==", lane, integer(0))):
                    write(result, values)
            return
        with self.results(statement) as result:
            chains = [self.chain(node, result, integer(p), CHAINS) for p in range(min(CHAINS, count))]
            write(result, self.joined(node, chains))

    @contextmanager
    def results(self, statement: Statement) -> Generator[Value]:
        """Writes a loop over the results that are the thread's, where a thread computes each."""
        own = self.writer.share_of(statement.number)
        with self.code.loop(self.first, integer(own.count), self.step) as index:
            yield own.element(self.code, index)

    def chain(self, node: Node, result: Value, first: Value, step: int) -> list[Value]:
        """Writes the combination, in order, of the elements `first`, `first` + `step`, ... of those that a
        reduction combines for a result. Returns it; for argmax also its index.
        """
        code, writer, row = self.code, self.writer, self.row
        place, has_index = Place(code, node.type.shape, result), node.operation == "argmax"
        start = [writer.reduced_operand(node, place, first, row), *([first] if has_index else [])]

        def turn(index: Value, best: list[Value]) -> list[Value]:
            """Writes the combination with one more element."""
            at = code.add(first, index)
            value = writer.reduced_operand(node, place, at, row)
            if not has_index:
                return [combined(code, node.operation, best[0], value)]
            replaces = better(code, value, best[0])
            return [code.select(replaces, value, best[0]), code.select(replaces, at, best[1])]

        outside = dict(writer.values)
        count, known = reduced_count(self.net, node), known_number(first)
        stop = code.sub(integer(count), first) if known is None else count - known
        if isinstance(stop, int):
            stop = integer(stop)
        results = code.carry(step, stop, start, turn, step=step, turns=TURNS)
        writer.values = outside
        return results

    def joined(self, node: Node, chains: list[list[Value]]) -> list[Value]:
        """Writes the combination of the chains of a reduction, in pairs; that of no chain is 0."""
        if not chains:
            return [zero(node.type.dtype)]
        while len(chains) > 1:
            pairs = [self.pair(node, a, b) for a, b in zip(chains[::2], chains[1::2], strict=False)]
            chains = pairs + (chains[-1:] if len(chains) % 2 else [])
        return chains[0]

    def pair(self, node: Node, a: list[Value], b: list[Value]) -> list[Value]:
        """Writes the combination of two chains; for argmax, of equal numbers that of the smaller index."""
        code = self.code
        if node.operation != "argmax":
            return [combined(code, node.operation, a[0], b[0])]
        return self.first_highest(a, b)

    def first_highest(self, a: list[Value], b: list[Value]) -> list[Value]:
        """Writes the higher of two numbers with its index, of equal numbers that of the smaller index."""
        code = self.code
        earlier = code.and_(are_equal(code, a[0], b[0]), code.icmp_signed("<", b[1], a[1]))
        replaces = code.or_(better(code, b[0], a[0]), earlier)
        return [code.select(replaces, y, x) for x, y in zip(a, b, strict=True)]

    def write_scan(self, node: Node, statement: Statement) -> None:
        """Writes a scan: a thread goes along the axis for each place of the other axes."""
        code, writer, shape = self.code, self.writer, node.type.shape
        operand, slot = node.inputs[0], writer.slots[statement.number]
        axis = int(node.attributes["axis"]) % len(shape)
        others = tuple(1 if at == axis else size for at, size in enumerate(shape))
        if not prod(shape):
            return
        with code.loop(self.first, integer(prod(others)), self.step) as line:
            coordinates = list(Place(code, others, line).coordinates)

            def turn(at: Value, total: list[Value]) -> list[Value]:
                """Writes one more element of the result."""
                place = Place(code, shape, None, [*coordinates[:axis], at, *coordinates[axis + 1 :]])
                value = writer.element(operand, place, self.row)
                value = converted(code, value, self.net.type_of(operand).dtype, node.type.dtype)
                made = combined(code, node.operation, total[0], value) if total else value
                writer.write_slot(made, slot, self.row.place, place.flat)
                return [made]

            code.carry(1, shape[axis], turn(integer(0), []), turn)


def better(code: Code, value: Value, best: Value) -> Value:
    """Writes the test whether a number replaces the best so far: it is larger, or the first NaN."""
    if not is_float(value):
        signed = code.icmp_unsigned if value.type == I1 else code.icmp_signed
        return signed(">", value, best)
    is_number = code.fcmp_ordered("==", best, best)
    return code.and_(is_number, code.fcmp_unordered(">", value, best))


def are_equal(code: Code, a: Value, b: Value) -> Value:
    """Writes the test whether two numbers are equal, or both NaN."""
    if not is_float(a):
        return code.icmp_signed("==", a, b)
    neither = code.and_(code.fcmp_unordered("!=", a, a), code.fcmp_unordered("!=", b, b))
    return code.or_(code.fcmp_ordered("==", a, b), neither)
