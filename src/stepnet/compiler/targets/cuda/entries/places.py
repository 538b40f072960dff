"""Places: an element of a value, by its flat index or its coordinates, and the place that a view shows there.

Nothing is computed for views: the place of an element of a view is turned into the place of the element of
its operand that it shows, by integer arithmetic on registers.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd, prod

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I1, I32, I64, integer
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.writer import KernelWriter
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Value = ir.Value
Shape = tuple[int, ...]


def known_number(value: Value) -> int | None:
    """Returns an integer that is known when the code is written; None for others."""
    return int(value.constant) if isinstance(value, ir.Constant) else None


@dataclass(frozen=True)
class IndexSum:
    """An index as a sum: of values, each times a factor, and of a constant.

    {head: 64, piece: 2048} + 512, divided by 64     {head: 1, piece: 32} + 8, and 0 is left
    {head: 1, piece: 32} + 8, divided by 8           {piece: 4} + 1, and {head: 1}, if there are up to 8 heads
    """

    factors: tuple[tuple[Value, int], ...] = ()
    constant: int = 0

    def plus(self, other: "IndexSum") -> "IndexSum":
        """Returns the sum with another one."""
        return IndexSum((*self.factors, *other.factors), self.constant + other.constant)

    def times(self, by: int) -> "IndexSum":
        """Returns it times a constant."""
        return IndexSum(tuple((value, by * factor) for value, factor in self.factors), by * self.constant)

    def divided(self, by: int, limits: Mapping[int, int]) -> "tuple[IndexSum, IndexSum] | None":
        """Returns the quotient and the remainder of it and a constant; None if they are no such sums.

        limits: what each value is less than, by its `id`; all are 0 or more.

        >>> head, piece = integer(1), integer(2)
        >>> index = IndexSum(((head, 1), (piece, 32)), 9)
        >>> whole, rest = index.divided(8, {id(head): 7, id(piece): 16})
        >>> [factor for _, factor in whole.factors], whole.constant
        ([4], 1)
        >>> [factor for _, factor in rest.factors], rest.constant
        ([1], 1)
        >>> index.divided(8, {id(head): 8, id(piece): 16})  # 7 + 1 is no remainder
        >>> IndexSum(((head, -1),), 9).divided(8, {id(head): 7})
        """
        whole = tuple((value, factor // by) for value, factor in self.factors if factor % by == 0)
        rest = tuple((value, factor) for value, factor in self.factors if factor % by)
        constant, left = divmod(self.constant, by)
        most = left + sum(factor * (limits[id(value)] - 1) for value, factor in rest)
        is_rest = most < by and all(factor > 0 for _, factor in rest)
        return (IndexSum(whole, constant), IndexSum(rest, left)) if is_rest else None


class PlaceWriter(KernelWriter):
    """Writer of a kernel with the arithmetic of places, whose indices may be constants, and with tables."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        """Begins a kernel. arguments: the names of its words of 64 bits."""
        super().__init__(name, arguments)
        self.quotients = dict[tuple[ir.Block, int, int], tuple[Value, Value]]()
        self.products = dict[int, tuple[int, int]]()
        self.divided_from = dict[tuple[tuple[int, int], int], Value]()
        self.tables = dict[tuple[str, bytes], Value]()
        self.limits, self.sums = dict[int, int](), dict[int, IndexSum]()

    def limited(self, value: Value, limit: int) -> Value:
        """Notes that an index is at least 0 and less than a limit, and returns it. Quotients of sums of such
        indices are then written as sums of quotients, where they are equal.
        """
        self.limits[id(value)], self.sums[id(value)] = limit, IndexSum(((value, 1),))
        return value

    def sum_of(self, value: Value) -> IndexSum | None:
        """Returns an index as a sum of limited indices (see `limited`); None if it is not known as one."""
        known = known_number(value)
        return self.sums.get(id(value)) if known is None else IndexSum((), known)

    def alignment(self, index: Value, size: int, aligned: int) -> int:
        """Returns the alignment in bytes of a number, by its index in an array that begins aligned so."""
        terms = self.sum_of(index)
        known = 1 if terms is None else gcd(terms.constant, *(factor for _, factor in terms.factors))
        return max(size, gcd(aligned, size * known))

    def written_sum(self, total: IndexSum) -> Value:
        """Writes a sum of limited indices."""
        found: Value = integer(total.constant)
        for value, factor in total.factors:
            found = self.summed(self.multiplied(value, factor), found)
        return found

    def summed(self, a: Value, b: Value) -> Value:
        """Writes the sum of two indices. A quotient times its divisor plus the remainder is the dividend."""
        whole = self.divided_from.get((self.products.get(id(a), (0, 0)), id(b)))
        if whole is not None:
            return whole
        left, right = known_number(a), known_number(b)
        if left is not None and right is not None:
            return integer(left + right)
        made: Value = self.add(b, a) if left is not None else self.add(a, b)
        sums = self.sum_of(a), self.sum_of(b)
        if sums[0] is not None and sums[1] is not None:
            self.sums[id(made)] = sums[0].plus(sums[1])
        return made

    def multiplied(self, a: Value, by: int) -> Value:
        """Writes an index times a constant."""
        known = known_number(a)
        if known is not None or by == 0:
            return integer((known or 0) * by)
        product = self.mul(a, integer(by))
        self.products[id(product)] = id(a), by
        if (its := self.sum_of(a)) is not None:
            self.sums[id(product)] = its.times(by)
        return product

    def divided(self, a: Value, by: int) -> tuple[Value, Value]:
        """Writes the quotient and the remainder of an index, of less than 2 ** 31, and a constant."""
        known = known_number(a)
        if known is not None:
            quotient, rest = divmod(known, by)
            return integer(quotient), integer(rest)
        if by == 1:
            return a, integer(0)
        if (its := self.sum_of(a)) is not None and (parts := its.divided(by, self.limits)) is not None:
            return self.written_sum(parts[0]), self.written_sum(parts[1])
        key = self.block, id(a), by  # the instructions keep the index alive
        if key not in self.quotients:
            narrow = self.trunc(a, I32)
            quotient = self.line(I32, f"udiv i32 {narrow.get_reference()}, {by}")
            rest = self.sub(narrow, self.mul(quotient, ir.Constant(I32, by)))
            found = self.quotients[key] = self.zext(quotient, I64), self.zext(rest, I64)
            self.divided_from[(id(found[0]), by), id(found[1])] = a
        return self.quotients[key]

    def table(self, array: Array) -> Value:
        """Returns the address of an array of numbers that is part of the kernel."""
        key = array.dtype.name, array.tobytes()
        if key not in self.tables:
            numbers = array.ravel().view(f"u{array.dtype.itemsize}")
            type_ = ir.ArrayType(ir.IntType(8 * array.dtype.itemsize), max(numbers.size, 1))
            variable = ir.GlobalVariable(self.module, type_, f"table{len(self.tables)}")
            variable.linkage, variable.global_constant = "internal", True
            variable.initializer = ir.Constant(type_, numbers.tolist() or [0])
            self.tables[key] = self.at_start(variable)
        return self.tables[key]

    @contextmanager
    def warp_loop(self, first: Value, count: int, step: int) -> Generator[tuple[Value, Value]]:
        """Writes a loop over the numbers below `count` that the warps of some threads share; yields the lane
        and the number.

        first, step: the number of the thread among these threads, and how many they are: whole warps.
        """
        warp, lane = self.divided(first, LANES)
        with self.loop(warp, integer(count), step // LANES) as index:
            yield lane, index

    def from_lane(self, value: Value, lanes: int) -> Value:
        """Writes a copy of the value that the lane has which is some lanes further in the warp."""
        count = ir.Constant(I32, lanes)
        if value.type == I1:
            wide = self.function_call("shuffle_down_i32", I32, [self.zext(value, I32), count])
            return self.trunc(wide, I1)
        names = {"float": "float32", "double": "float64"}
        name = names.get(str(value.type), str(value.type))
        return self.function_call(f"shuffle_down_{name}", value.type, [value, count])

    def at_start(self, variable: ir.GlobalVariable) -> Value:
        """Returns the address of a global variable as a pointer without a type."""
        return NamedPointer(variable.get_reference())


def over_lanes(
    code: PlaceWriter, values: list[Value], combine: Callable[[list[Value], list[Value]], list[Value]]
) -> list[Value]:
    """Writes the combination of the values of all lanes of a warp, in a fixed order. Lane 0 then has the
    result.

    combine: writes the combination of the values of two lanes.
    """
    lanes = LANES // 2
    while lanes:
        values = combine(values, [code.from_lane(value, lanes) for value in values])
        lanes //= 2
    return values


class NamedPointer(ir.Constant):
    """The address of something with a name, such as a global variable."""

    def __init__(self, reference: str) -> None:
        """Takes the name in LLVM's text."""
        super().__init__(ir.PointerType(), None)
        self.reference = reference

    def get_reference(self) -> str:
        """Returns the name."""
        return self.reference


class Place:
    """A place in a value of some shape: an index of its flat elements, or a coordinate for each axis. One is
    computed from the other where it is needed.
    """

    def __init__(
        self, code: PlaceWriter, shape: Shape, flat: Value | None, coordinates: Sequence[Value] | None = None
    ) -> None:
        """Takes the shape, and the flat index or the coordinates, or both."""
        self.code, self.shape = code, shape
        self._flat, self._coordinates = flat, coordinates

    @property
    def flat(self) -> Value:
        """The index among the elements in C order."""
        if self._flat is None:
            assert self._coordinates is not None
            total: Value = integer(0)
            stride = prod(self.shape)
            for size, coordinate in zip(self.shape, self._coordinates, strict=True):
                stride //= max(size, 1)
                total = self.code.summed(total, self.code.multiplied(coordinate, stride))
            self._flat = total
        return self._flat

    @property
    def coordinates(self) -> Sequence[Value]:
        """The index along each axis."""
        if self._coordinates is None:
            found, rest = list[Value](), self.flat
            for axis in reversed(range(len(self.shape))):
                size = self.shape[axis]
                if size <= 1:
                    found.append(integer(0))
                elif prod(self.shape[:axis]) <= 1:
                    found.append(rest)
                else:
                    rest, coordinate = self.code.divided(rest, size)
                    found.append(coordinate)
            self._coordinates = found[::-1]
        return self._coordinates

    def at(self, shape: Shape, coordinates: Sequence[Value]) -> "Place":
        """Returns the place with these coordinates in a value of another shape."""
        return Place(self.code, shape, None, coordinates)

    def reshaped(self, shape: Shape) -> "Place":
        """Returns the place of the same flat index in a value of another shape with as many elements."""
        if shape == self.shape:
            return self
        given = self._coordinates or []
        if shape[:1] == self.shape[:1] and any(known_number(lead) is not None for lead in given[:1]):
            # The first coordinate is known, and stays that.
            rest = Place(self.code, self.shape[1:], None, given[1:]).reshaped(shape[1:])
            return Place(self.code, shape, self.flat, [given[0], *rest.coordinates])
        return Place(self.code, shape, self.flat)

    def broadcast(self, shape: Shape) -> "Place":
        """Returns the place that is shown here of a value of the shape `shape` that is broadcast to this one:
        the last axes are aligned, and axes of size 1 repeat.
        """
        if prod(shape) == prod(self.shape):
            return self.reshaped(shape)
        lead = len(self.shape) - len(shape)
        pairs = zip(shape, self.shape[lead:], self.coordinates[lead:], strict=True)
        return self.at(shape, [integer(0) if size == 1 != whole else c for size, whole, c in pairs])

    def behind(self, view: Node, shape: Shape) -> "Place":
        """Returns the place of a view's operand that the view shows at this place. shape: the operand's."""
        attributes, operation, code = view.attributes, view.operation, self.code
        if operation == "reshape":
            return self.reshaped(shape)
        own = list(self.coordinates)
        if operation == "slice":
            for axis, (start, _, step) in enumerate(
                attributes["slices"], len(own) - len(attributes["slices"])
            ):
                own[axis] = code.summed(code.multiplied(own[axis], step), integer(start))
        elif operation == "transpose":
            lead, moved = len(own) - len(attributes["order"]), list(own)
            for axis, source in enumerate(attributes["order"]):
                own[lead + source] = moved[lead + axis]
        elif operation == "broadcast":
            lead, made = len(shape) - attributes["rank"], attributes["shape"]
            repeated = self.at(made, own[len(own) - len(made) :]).broadcast(shape[lead:])
            own = [*own[:lead], *repeated.coordinates]
        else:
            axis = int(attributes["axis"])
            own[axis] = self.taken(attributes["indices"], own[axis], shape[axis])
        return self.at(shape, own)

    def taken(self, indices: Sequence[int], at: Value, size: int) -> Value:
        """Writes the element of constant indices at a position; negative ones count from `size`."""
        table = np.array(indices, np.int64)
        table = np.where(table < 0, table + size, table)
        known, steps = known_number(at), np.diff(table)
        if known is not None:
            return integer(int(table[known]))
        if len(table) and (steps == steps[:1]).all():
            step = int(steps[0]) if len(steps) else 0
            return self.code.summed(self.code.multiplied(at, step), integer(int(table[0])))
        return self.code.read_number(self.code.table(table), at)
