"""Elements: the code of one element of a value of an entry, as an expression of its operands' elements."""

from collections.abc import Mapping
from math import gcd, prod
from typing import Literal

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.targets.cpu.writing.code import (
    REGISTER_TYPES,
    integer,
    load_vector,
)
from stepnet.compiler.targets.cpu.writing.pointwise import POINTWISE, converted, pointwise
from stepnet.compiler.targets.cuda.entries.places import Place, PlaceWriter
from stepnet.compiler.targets.cuda.entries.selections import RowChoice, selections_of
from stepnet.compiler.targets.cuda.entries.statements import reduced_axes, reduced_count
from stepnet.compiler.targets.cuda.writer import VOID
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass

Value = ir.Value
By = Literal["entry", "row", "const"]


@dataclass(frozen=True)
class Source:
    """An array in main memory whose elements are read. by: what its first axis counts, if it has one."""

    pointer: Value
    dtype: str
    size: int
    by: By


@dataclass(frozen=True)
class ValueSlot:
    """The place of a stored value: [rows of the block][size].

    pointer: of its first byte. share: which of the elements are stored; None for all.
    """

    pointer: Value
    dtype: str
    size: int
    share: "ElementShare | None" = None


@dataclass(frozen=True)
class ElementShare:
    """The elements of a value that a block has: `own` of each `inner`, from `first` on; all of it `times`."""

    own: int
    inner: int
    times: int
    first: Value

    def place(self, code: PlaceWriter, flat: Value) -> Value:
        """Writes the place of an element of the value among the elements of the block."""
        if self.times == 1:
            return code.sub(flat, self.first)
        time, rest = code.divided(flat, self.inner)
        return code.summed(code.multiplied(time, self.own), code.sub(rest, self.first))

    def element(self, code: PlaceWriter, place: Value) -> Value:
        """Writes the index in the value of an element of the block."""
        if self.times == 1:
            return code.summed(place, self.first)
        time, rest = code.divided(place, self.own)
        return code.summed(code.summed(code.multiplied(time, self.inner), self.first), rest)

    @property
    def count(self) -> int:
        """The number of elements of the block."""
        return self.own * self.times


@dataclass(frozen=True)
class RowOfThread:
    """The entry that a thread works on.

    place: its number in the block. entry, row: its numbers in arrays per entry and per row, which may be read
    in any case. is_real: whether it has results. step: the value of an `index` node.
    output: its number in arrays of outputs; None if that is `entry`.
    """

    place: Value
    entry: Value
    row: Value
    is_real: Value
    step: Value
    output: Value | None = None


@dataclass(frozen=True)
class RowShare:
    """Division of the rows of a block among its threads: as many threads for each, a row after the other.

    rows, threads: of the block. place: the row of the thread. first: the number of the thread in its row.
    """

    rows: int
    threads: int
    place: Value
    first: Value

    @property
    def per_row(self) -> int:
        """The threads of a row."""
        return self.threads // self.rows

    @classmethod
    def of(cls, code: PlaceWriter, rows: int, threads: int) -> "RowShare":
        """Writes the row of the thread, and its number there."""
        return cls(rows, threads, *code.divided(code.thread, threads // rows))


class ElementWriter:
    """Writer of elements: each is written once for each loop and place."""

    def __init__(
        self,
        code: PlaceWriter,
        net: Net,
        sources: Mapping[int, Source],
        slots: Mapping[int, ValueSlot],
        aligned: int = 1,
    ) -> None:
        """Takes the net, the arrays that can be read, and the places of stored values, by node.

        aligned: the bytes to which these arrays are known to be aligned.
        """
        self.code, self.net, self.sources, self.slots, self.aligned = code, net, sources, slots, aligned
        self.values, self.selections = dict[tuple[int, int], Value](), selections_of(net)

    def begin(self) -> None:
        """Begins the code of a loop: values of earlier loops are not known in it."""
        self.values = {}

    def share_of(self, number: int) -> ElementShare:
        """Returns the elements of a value that the block computes."""
        size = self.net.type_of(number).size
        return ElementShare(size, size, 1, integer(0))

    # ---- slots

    def address(self, slot: ValueSlot, place: Value, flat: Value) -> Value:
        """Writes the address of an element of a stored value of a row of the block."""
        code, itemsize = self.code, np.dtype(slot.dtype).itemsize
        own = flat if slot.share is None else slot.share.place(code, flat)
        index = code.summed(code.multiplied(place, slot.size), own)
        return code.at(slot.pointer, code.multiplied(index, itemsize))

    def read_slot(self, slot: ValueSlot, place: Value, flat: Value) -> Value:
        """Writes a load of an element of a stored value."""
        return self.code.read_element(slot.dtype, self.address(slot, place, flat), integer(0))

    def write_slot(self, value: Value, slot: ValueSlot, place: Value, flat: Value) -> None:
        """Writes a store of an element of a stored value."""
        self.code.write_element(slot.dtype, value, self.address(slot, place, flat), integer(0))

    # ---- elements

    def element(self, number: int, place: Place, row: RowOfThread, own: bool = False) -> Value:
        """Writes an element of a node; returns its register. own: whether this is the node's own statement,
        which computes it even if it is stored.
        """
        key = number, id(place.flat)  # the instructions keep the index alive
        if key not in self.values:
            self.values[key] = self.written(number, place, row, own)
        return self.values[key]

    def written(self, number: int, place: Place, row: RowOfThread, own: bool) -> Value:
        """Writes an element of a node that is not known yet."""
        node = self.net.nodes[number]
        if number in self.slots and not own:
            return self.read_slot(self.slots[number], row.place, place.flat)
        if (number_of_all := uniform(node)) is not None:
            return literal(node.type.dtype, number_of_all)
        if number in self.sources:
            return self.read(self.sources[number], place, row)
        if (selection := self.selections.get(number)) is not None:
            return self.selected(selection, place, row)
        if (first_and_step := progression(node)) is not None:
            first, step = first_and_step
            return self.code.summed(self.code.multiplied(place.flat, step), integer(first))
        if node.operation == "constant":
            array = np.ascontiguousarray(node.attributes["value"].value)
            return self.code.read_element(node.type.dtype, self.code.table(array), place.flat)
        if node.kind == "pointwise":
            types = [self.net.type_of(operand) for operand in node.inputs]
            pairs = zip(node.inputs, types, strict=True)
            values = [self.element(operand, place.broadcast(t.shape), row) for operand, t in pairs]
            return pointwise(self.code, node, values, [t.dtype for t in types])
        if node.operation == "expand":
            return self.element(node.inputs[0], place, row)
        if node.operation == "index":
            return row.step
        if node.operation == "gather":
            return self.gathered(number, place, row)
        if node.kind == "reduce":
            return self.few_reduced(node, place, row)
        operand = node.inputs[0]
        return self.element(operand, place.behind(node, self.net.type_of(operand).shape), row)

    def read(self, source: Source, place: Place, row: RowOfThread) -> Value:
        """Writes a load of an element of an array."""
        code, index, size = self.code, place.flat, np.dtype(source.dtype).itemsize
        aligned = code.alignment(index, size, self.aligned)
        if source.by != "const":
            first = row.entry if source.by == "entry" else row.row
            index, aligned = (
                code.summed(code.multiplied(first, source.size), index),
                gcd(aligned, size * source.size),
            )
        return load_vector(code, source.dtype, 1, code.element(source.dtype, source.pointer, index), aligned)

    def selected(self, selection: RowChoice, place: Place, row: RowOfThread) -> Value:
        """Writes an element of a row of a value that another value selects."""
        code, shape = self.code, self.net.type_of(selection.value).shape
        shown = place.broadcast(self.net.type_of(selection.index).shape)
        index = self.element(selection.index, shown, row)
        is_one = code.icmp_unsigned("<=", index, integer(selection.last))
        at = code.select(is_one, index, integer(0))
        return self.element(selection.value, place.at(shape, [at, *place.coordinates[1:]]), row)

    # ---- gather

    def gathered(self, number: int, place: Place, row: RowOfThread) -> Value:
        """Writes an element of a table at an index. One outside is reported, and a row inside read."""
        code, node = self.code, self.net.nodes[number]
        table, index = node.inputs
        index_type, table_type = self.net.type_of(index), self.net.type_of(table)
        rank = len(index_type.shape)
        at = Place(code, index_type.shape, None, place.coordinates[:rank])
        if prod(index_type.shape) == node.type.size:
            at = place.reshaped(index_type.shape)
        raw = self.element(index, at, row)
        value = converted(code, raw, index_type.dtype, "int64")
        count = integer(table_type.shape[0])
        wrapped = code.select(code.icmp_signed("<", value, integer(0)), code.add(value, count), value)
        outside = code.icmp_unsigned(">=", wrapped, count)
        with code.when(code.and_(outside, row.is_real)):
            code.function_call(
                "record_error", VOID, [code.pointer("errors"), integer(number), value, row.row]
            )
        inside = code.select(outside, integer(0), wrapped)
        return self.element(table, place.at(table_type.shape, [inside, *place.coordinates[rank:]]), row)

    # ---- short reductions

    def few_reduced(self, node: Node, place: Place, row: RowOfThread) -> Value:
        """Writes a reduction of a few elements, one after the other."""
        terms = [
            self.reduced_operand(node, place, integer(term), row)
            for term in range(reduced_count(self.net, node))
        ]
        if not terms:
            return zero(node.type.dtype)
        total = terms[0]
        for term in terms[1:]:
            total = combined(self.code, node.operation, total, term)
        return total

    def reduced_operand(self, node: Node, place: Place, term: Value, row: RowOfThread) -> Value:
        """Writes element `term` of a reduction for the result at a place, in the dtype of a sum's result."""
        operand = node.inputs[0]
        dtype = self.net.type_of(operand).dtype
        value = self.element(operand, self.reduced_place(node, place, term), row)
        return converted(self.code, value, dtype, node.type.dtype if node.operation == "sum" else dtype)

    def reduced_place(self, node: Node, place: Place, term: Value) -> Place:
        """Returns the place of that element in the reduction's operand."""
        shape_of_operand = self.net.type_of(node.inputs[0]).shape
        kept, reduced = reduced_axes(self.net, node)
        shape = tuple(shape_of_operand[axis] for axis in reduced)
        coordinates: list[Value] = [integer(0)] * len(shape_of_operand)
        result = place.reshaped(tuple(shape_of_operand[axis] for axis in kept))
        for axis, coordinate in zip(kept, result.coordinates, strict=True):
            coordinates[axis] = coordinate
        for axis, coordinate in zip(reduced, Place(self.code, shape, term).coordinates, strict=True):
            coordinates[axis] = coordinate
        return place.at(shape_of_operand, coordinates)


def uniform(node: Node) -> np.ndarray | None:
    """Returns the number, as an array of one, that all elements of a constant are; else None."""
    if node.operation != "constant":
        return None
    numbers = node.attributes["value"].value.ravel()
    bits = numbers.view(f"u{numbers.dtype.itemsize}")
    return numbers[:1] if numbers.size and (bits == bits[0]).all() else None


def progression(node: Node) -> tuple[int, int] | None:
    """Returns the first number and the step of a constant of 64-bit integers that increase evenly, as of
    np.arange; None for any other node.
    """
    numbers = node.attributes["value"].value.ravel() if node.operation == "constant" else np.zeros(0)
    if numbers.dtype != np.int64 or numbers.size < 2:
        return None
    steps = np.diff(numbers)
    return (int(numbers[0]), int(steps[0])) if (steps == steps[0]).all() else None


def literal_of(dtype: str, number: float) -> Value:
    """Returns a number as a constant of a register."""
    return literal(dtype, np.array([number], np.dtype(dtype)))


def zero(dtype: str) -> Value:
    """Returns the number 0 of a dtype."""
    return literal(dtype, np.zeros(1, np.dtype(dtype)))


def literal(dtype: str, number: np.ndarray) -> Value:
    """Returns the number in an array of one as a constant of a register."""
    type_ = REGISTER_TYPES[dtype]
    if DTYPES[dtype].is_stored:
        return ir.Constant(type_, int(number.view("u2")[0]))
    value = number[0].item()
    return ir.Constant(type_, int(value) if dtype == "bool" else value)


def combined(code: PlaceWriter, operation: str, a: Value, b: Value) -> Value:
    """Writes the combination of two numbers by a reduction or a scan: "sum", "max", "min", "cumsum" or
    "cumprod". The maximum of two bools is their "or".
    """
    names = {"sum": "add", "max": "maximum", "min": "minimum", "cumsum": "add", "cumprod": "multiply"}
    name = names[operation]
    if a.type == ir.IntType(1):
        name = "logical_or" if name in ("add", "maximum") else "logical_and"
    return POINTWISE[name](code, None, a, b)
