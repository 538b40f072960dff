"""The loops of a frame program as LLVM code, on vectors of the platform's width where that changes nothing.

A loop over elements that lie side by side takes as many at a time as a vector holds, and the rest alone:

    reads  ->  registers  ->  writes        four elements of float32 at a time with vectors of 128 bits

A product computes some columns at once, whose sums stay in registers while it goes through the rows of the
matrix: so each sum is added up from left to right, as the program says, with any width of vectors.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import (
    is_float,
    load_vector,
    splat,
    store_vector,
    width_of,
)
from stepnet.compiler.targets.frame.halves import HALVES
from stepnet.compiler.targets.frame.machine.instructions import (
    BITS,
    FrameCode,
    convert,
    type_of,
    widened,
    write_body,
)
from stepnet.compiler.targets.frame.machine.pairs import pair_products, spread_pair
from stepnet.compiler.targets.frame.machine.platforms import DevicePlatform
from stepnet.compiler.targets.frame.machine.reductions import REDUCTIONS, start_of
from stepnet.compiler.targets.frame.program import (
    BLOCK,
    FrameProgram,
    GatherLoop,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
    StridedView,
)

Indices = Sequence[ir.Value]
INDEX = "int64"
"""The dtype in which indices of tables are compared."""


class FrameLoopCode:
    """Writes the loops of one program. code: the builder. bases: the address of each buffer. outside: the
    code that a frame returns if an index is outside of its table.
    """

    def __init__(
        self,
        code: FrameCode,
        program: FrameProgram,
        platform: DevicePlatform,
        bases: dict[str, ir.Value],
        outside: ir.Value,
    ) -> None:
        self.code, self.program, self.platform = code, program, platform
        self.bases, self.outside = bases, outside
        self.inline = {each.name: each for each in program.routines if len(each.body) <= platform.inlined}

    # ---- elements

    def address(self, view: StridedView, indices: Indices) -> ir.Value:
        """Writes the address of an element. indices: the indices of the view's axes; they may be vectors'
        first.
        """
        size = self.program.by_name[view.buffer].itemsize
        address = self.code.at(self.bases[view.buffer], view.offset * size)
        for index, stride in zip(indices, view.strides, strict=True):
            if stride:
                address = self.code.at(address, self.code.mul(index, self.code.number(stride * size)))
        return address

    def read(self, view: StridedView, indices: Indices, width: int = 1) -> ir.Value:
        """Writes a load of one element, or of some along the last axis, where the stride is 0 or 1."""
        buffer = self.program.by_name[view.buffer]
        apart = width > 1 and not view.strides[-1]
        address = self.address(view, indices)
        value = self.load(buffer.dtype, 1 if apart else width, address)
        return self.code.spread(value, width) if apart else value

    def load(self, dtype: str, width: int, address: ir.Value) -> ir.Value:
        """Writes a load of elements that lie side by side."""
        if dtype in ("int8", "int16"):
            return self.code.read(type_of(dtype, width), address, np.dtype(dtype).itemsize)
        return load_vector(self.code, dtype, width, address, np.dtype(dtype).itemsize)

    def write(self, value: ir.Value, view: StridedView, indices: Indices) -> None:
        """Writes a store of an element, or of some along the last axis, where the stride is 1."""
        dtype = self.program.by_name[view.buffer].dtype
        store_vector(self.code, dtype, value, self.address(view, indices), np.dtype(dtype).itemsize)

    def nest(
        self,
        sizes: Sequence[int],
        carried: Sequence[ir.Value],
        write: Callable[[list[ir.Value], list[ir.Value]], Sequence[ir.Value]],
        indices: Indices = (),
    ) -> list[ir.Value]:
        """Writes nested loops that carry values from element to element; returns the last ones.

        sizes: the sizes of the axes, outermost first. write: writes an element, of its indices and the values
        before it; returns the values after it.
        """
        if not sizes:
            return [*write([*indices], [*carried])]
        if sizes[0] == 1:
            return self.nest(sizes[1:], carried, write, (*indices, self.code.number(0)))
        return self.code.carry(
            0, sizes[0], carried, lambda index, values: self.nest(sizes[1:], values, write, (*indices, index))
        )

    # ---- elementwise operations

    def pointwise(self, loop: PointwiseLoop) -> None:
        """Writes elementwise operations: the last axis in vectors if nothing depends on the order."""
        size = loop.shape[-1] if loop.shape else 1
        width = self.vector_width(loop) if loop.shape else 1
        self.nest(loop.shape[:-1], [], lambda outer, _: self.inner(loop, outer, size, width))

    def inner(self, loop: PointwiseLoop, outer: Indices, size: int, width: int) -> list[ir.Value]:
        """Writes the last axis: whole vectors, then single elements. outer: the indices of other axes."""

        def elements(index: ir.Value, _: list[ir.Value], count: int) -> list[ir.Value]:
            """Writes some elements from an index on."""
            indices = (*outer, index) if loop.shape else ()
            given = [self.read(view, indices, count) for view in loop.reads]
            dtypes = [self.program.by_name[view.buffer].dtype for view in loop.reads]
            registers = write_body(self.code, given, dtypes, loop.body, count, self.inline)
            for view, register in loop.writes:
                self.write(registers[register], view, indices)
            return []

        whole = size - size % width
        self.code.carry(0, whole, [], partial(elements, count=width), step=width)
        if whole < size and width > 1:
            self.code.carry(whole, size, [], partial(elements, count=1))
        return []

    def vector_width(self, loop: PointwiseLoop) -> int:
        """Returns the number of elements that a loop takes at a time. All lie side by side or are the same
        one; and an element that is written is read at the same index alone, for vectors are read before it.
        """
        by_name = self.program.by_name
        if any(view.strides[-1] not in (0, 1) for view in loop.reads):
            return 1
        if any(view.strides[-1] != 1 for view, _ in loop.writes):
            return 1
        places = [(*self.place(view, loop.shape), view) for view in loop.reads]
        for written, _ in loop.writes:
            room, first, last = self.place(written, loop.shape)
            for other, begin, end, view in places:
                same = (view.buffer, view.offset, view.strides) == (
                    written.buffer,
                    written.offset,
                    written.strides,
                )
                if room == other and begin <= last and first <= end and not same:
                    return 1
        dtypes = [by_name[view.buffer].dtype for view in (*loop.reads, *(view for view, _ in loop.writes))]
        dtypes += [each.dtype for each in loop.body]
        return self.platform.lanes(max(np.dtype(dtype).itemsize for dtype in dtypes))

    def place(self, view: StridedView, shape: Sequence[int]) -> tuple[str, int, int]:
        """Returns the room of memory that a view over a shape lies in, and its first and last byte there."""
        buffer = self.program.by_name[view.buffer]
        first, last = view.bounds(shape)
        room = buffer.kind if buffer.kind in ("memory", "scratch") else buffer.name
        return room, buffer.offset + first * buffer.itemsize, buffer.offset + (last + 1) * buffer.itemsize - 1

    # ---- products

    def product(self, loop: ProductLoop) -> None:
        """Writes a product with a matrix: some columns at a time, for one row of vectors after the other."""
        blocks, rest = divmod(loop.outputs, BLOCK)
        together = max(1, self.platform.columns // BLOCK)
        groups, single = divmod(blocks, together)

        def row(indices: list[ir.Value], _: list[ir.Value]) -> list[ir.Value]:
            """Writes the products of one vector with all columns."""
            write = partial(self.columns, loop, indices[0])
            self.code.carry(
                0, groups, [], lambda group, _: write(group, together, BLOCK, first=0, step=together * BLOCK)
            )
            if single:
                write(self.code.number(0), single, BLOCK, first=groups * together * BLOCK, step=0)
            if rest:
                write(self.code.number(0), 1, rest, first=blocks * BLOCK, step=0)
            return []

        self.nest((loop.rows,), [], row)

    def columns(
        self, loop: ProductLoop, row: ir.Value, group: ir.Value, count: int, width: int, first: int, step: int
    ) -> list[ir.Value]:
        """Writes the products of a vector with some columns.

        row: the number of the vector. count, width: the number of blocks of columns, and the columns of each.
        first, step: the columns begin with number `first + group * step`.
        """
        code, by_name = self.code, self.program.by_name
        stored, dtype = by_name[loop.weights].dtype, by_name[loop.result.buffer].dtype
        given = by_name[loop.left.buffer].dtype
        size = by_name[loop.weights].itemsize
        base = code.at(self.bases[loop.weights], first * loop.inputs * size)
        base = code.at(base, code.mul(group, code.number(step * loop.inputs * size)))
        column = code.add(code.mul(group, code.number(step)), code.number(first))
        begins = [code.add(column, code.number(block * BLOCK)) for block in range(count)]
        zeros = splat(type_of(dtype, width), 0)
        sums = [
            zeros if loop.start is None else self.row_part(loop.start, row, n, width, dtype) for n in begins
        ]

        def term(k: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            """Writes the addition of one element of the vector times a row of weights."""
            element = convert(code, given, dtype, self.read(loop.left, (row, k)))
            spread = code.spread(element, width)
            address = code.at(base, code.mul(k, code.number(width * size)))
            added = list[ir.Value]()
            for block, value in enumerate(values):
                weights = self.load(stored, width, code.at(address, block * BLOCK * loop.inputs * size))
                added.append(self.multiply_add(spread, convert(code, stored, dtype, weights), value))
            return added

        def pair(k: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            """Writes the addition of two elements of the vector times two rows of weights of int8."""
            elements = [self.read(loop.left, (row, place)) for place in (k, code.add(k, code.number(1)))]
            vector = spread_pair(code, *elements)
            address = code.at(base, code.mul(k, code.number(BLOCK)))
            places = [code.at(address, block * BLOCK * loop.inputs) for block in range(count)]
            return [
                code.add(value, pair_products(code, self.platform.dot, vector, place))
                for value, place in zip(values, places, strict=True)
            ]

        pairs = 0
        if stored == given == "int8" and width == BLOCK and self.platform.dot:
            pairs = loop.inputs - loop.inputs % 2
        sums = code.carry(pairs, loop.inputs, code.carry(0, pairs, sums, pair, step=2), term)
        for n, value in zip(begins, sums, strict=True):
            self.write_part(value, loop.result, row, n)
        return []

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Writes a * b + c; for floats each operation is rounded."""
        code = self.code
        return code.fadd(c, code.fmul(a, b)) if is_float(a) else code.add(c, code.mul(a, b))

    def row_part(
        self, view: StridedView, row: ir.Value, column: ir.Value, width: int, dtype: str
    ) -> ir.Value:
        """Writes a load of some columns of a row."""
        if view.strides[-1] in (0, 1):
            return self.read(view, (row, column), width)
        whole = splat(type_of(dtype, width), 0)
        for lane in range(width):
            value = self.read(view, (row, self.code.add(column, self.code.number(lane))))
            whole = self.code.insert_element(whole, value, ir.Constant(ir.IntType(32), lane))
        return whole

    def write_part(self, value: ir.Value, view: StridedView, row: ir.Value, column: ir.Value) -> None:
        """Writes a store of some columns of a row."""
        if view.strides[-1] == 1:
            return self.write(value, view, (row, column))
        for lane in range(width_of(value)):
            index = ir.Constant(ir.IntType(32), lane)
            element = self.code.extract_element(value, index) if width_of(value) > 1 else value
            self.write(element, view, (row, self.code.add(column, self.code.number(lane))))
        return None

    # ---- reductions

    def reduction(self, loop: ReductionLoop) -> None:
        """Writes a reduction, in the order of elements."""
        read = self.program.by_name[loop.read.buffer].dtype
        result = self.program.by_name[loop.write.buffer].dtype
        start, step = REDUCTIONS[loop.how]
        work = read if loop.how in ("max", "min", "argmax") else result
        begins = [splat(type_of(work, 1), start_of(start, work))]
        if loop.how == "argmax":
            begins += [ir.Constant(type_of(result, 1), 0)] * 2

        def outer(indices: list[ir.Value], _: list[ir.Value]) -> list[ir.Value]:
            """Writes the reduction of one element of the result."""

            def element(inside: list[ir.Value], values: list[ir.Value]) -> list[ir.Value]:
                """Writes the step of one element that is reduced."""
                value = convert(self.code, read, work, self.read(loop.read, inside))
                new = step(self.code, work, value, *values)
                if loop.is_prefix:
                    self.write(new[0], loop.write, inside)
                return new

            last = self.nest(loop.inner, begins, element, indices)
            if not loop.is_prefix:
                found = last[1] if loop.how == "argmax" else convert(self.code, work, result, last[0])
                self.write(found, loop.write, indices)
            return []

        self.nest(loop.shape, [], outer)

    # ---- rows of a table

    def gather(self, loop: GatherLoop) -> None:
        """Writes the copies of rows of a table. An index outside of it ends the frame."""
        code, buffer = self.code, self.program.by_name[loop.index.buffer]
        size = self.program.by_name[loop.table].itemsize

        def row(indices: list[ir.Value], _: list[ir.Value]) -> list[ir.Value]:
            """Writes the copy of one row."""
            index = convert(code, buffer.dtype, INDEX, self.read(loop.index, indices))
            zero, rows = ir.Constant(index.type, 0), ir.Constant(index.type, loop.rows)
            index = code.select(code.compare("s", "<", index, zero), code.add(index, rows), index)
            code.return_when(code.compare("u", ">=", index, rows), self.outside)
            place = code.trunc(index, code.index) if code.index.width < BITS[INDEX] else index
            table = code.at(self.bases[loop.table], code.mul(place, code.number(loop.width * size)))

            def element(inside: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                """Writes the copy of one element."""
                address = code.at(table, code.mul(inside, code.number(size)))
                dtype = self.program.by_name[loop.table].dtype
                value = self.load(dtype, 1, address)
                value = widened(code, dtype, value) if dtype in HALVES else value
                self.write(value, loop.write, (*indices, inside))
                return []

            code.carry(0, loop.width, [], element)
            return []

        self.nest(loop.shape, [], row)
