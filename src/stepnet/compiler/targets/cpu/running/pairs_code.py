"""The machine code of operations at pairs of steps; see `pairs`."""

from math import prod

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.pack_code import PackCode
from stepnet.compiler.targets.cpu.products.tile import LeftOperand, Sums, accumulate
from stepnet.compiler.targets.cpu.products.tiles import Tile
from stepnet.compiler.targets.cpu.running.pairs import TASK
from stepnet.compiler.targets.cpu.running.pairs_addresses import PairsAddresses, PairsTile
from stepnet.compiler.targets.cpu.running.pairs_copies import PairsCopies
from stepnet.compiler.targets.cpu.running.pairs_form import SLOT, PairsForm
from stepnet.compiler.targets.cpu.running.pairs_rows import RowsCode, number_of
from stepnet.compiler.targets.cpu.running.pairs_sums import MixCode
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code, load_vector, store_vector
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise


def write_pairs(processor: Processor, body: Net) -> ir.Module:
    """Generates the LLVM module of the function `pairs`, which computes operations at pairs of steps (a query
    with a key, as in attention). It takes a pointer to its arguments: the pointers of the values, those named
    in `FIXED`, and scratch memory. Its result is 0: a task of a call is done.

    body: the net of the operations.
    """
    module = ir.Module("pairs")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "pairs")
    code = Code(function.append_basic_block("entry"), processor)
    PairsCode(code, PairsForm(body, processor), function.args[0]).write()
    code.ret(code.number(0))
    return module


class PairsCode(PairsAddresses):
    """Writer of the code that computes operations at pairs of steps, tile by tile."""

    def write(self) -> None:
        """Writes the body of the function: a loop over the tasks of a thread (a head of some queries of a
        sequence), which packs the operands of products, and in it a loop over tiles: a few queries with all
        their keys.
        """
        code, form = self.code, self.form
        table = code.inttoptr(self.fixed["tasks"], POINTER)
        with code.loop(self.fixed["first_task"], self.fixed["last_task"]) as number:
            task = code.at(table, code.mul(number, code.number(8 * len(TASK))))
            self.task = {name: code.read_number(task, code.number(place)) for place, name in enumerate(TASK)}
            self.pack()
            with code.loop(code.number(0), self.task["rows"], form.tile.rows) as first:
                rows = code.smaller(code.sub(self.task["rows"], first), code.number(form.tile.rows))
                row, index = (code.add(self.task[name], first) for name in ("row", "index"))
                self.tile(row, index, rows)

    # ---- operands of products

    def pack(self) -> None:
        """Writes code that packs those operands of a task's products that have a row per column, in the order
        in which products read them: keys by vectors of keys, and values by vectors of features.
        """
        form, nodes = self.form, self.body.nodes
        for number in form.products:
            node = nodes[number]
            type_ = self.body.type_of(node.inputs[1])
            size, lead = type_.shape[-1], prod(type_.shape[:-1])
            source = self.at_entry(
                self.inputs[node.inputs[1]], self.task["column"], lead, size, form.itemsize
            )
            entry, line = lead * size * form.itemsize, form.width * form.itemsize
            if node.operation == "scores":
                packed, strides = self.scratch["right", number], (form.itemsize, entry, line, size * line)
                sizes = self.code.number(size), self.task["columns"]
            else:
                packed, strides = (
                    self.scratch["values", number],
                    (entry, form.itemsize, form.units * line, line),
                )
                sizes = self.task["columns"], self.code.number(size)
            self.pack_matrix(source, packed, sizes, strides)

    def pack_matrix(
        self,
        source: ir.Value,
        packed: ir.Value,
        sizes: tuple[ir.Value, ir.Value],
        strides: tuple[int, int, int, int],
    ) -> None:
        """Writes code that packs a matrix [k, n] as vectors of columns: [vector of columns][k][column].

        source, packed: the pointers to the matrix and to the packed one. sizes: k and n.
        strides: the bytes from row to row and from column to column of the matrix, and from one k and from
        one vector of columns to the next of the packed one.
        """
        code = self.code
        packing = PackCode(code, self.form.itemsize, self.form.width, None, source)
        names = "row_bytes", "column_bytes", "step_bytes", "block_bytes"
        packing.arguments = {
            **{name: code.number(stride) for name, stride in zip(names, strides, strict=True)},
            "inner": sizes[0],
            "size": sizes[1],
            "source": code.ptrtoint(source, I64),
            "packed": code.ptrtoint(packed, I64),
        }
        packing.pack()

    # ---- tiles

    def tile(self, row: ir.Value, index: ir.Value, rows: ir.Value) -> None:
        """Writes code that computes a tile: a few rows of a task (such as queries) with all their columns
        (such as keys).

        row: the number of the first row in the arrays of the call. index: its position in its sequence. rows:
        the number of rows.
        """
        code, form = self.code, self.form
        columns = self.task["columns"]
        if not form.is_turned:
            columns = self.columns_of(code.add(row, code.sub(rows, code.number(1))))
        tile = PairsTile(row, index, rows, columns)
        for number in form.stored:
            operation = self.body.nodes[number].operation
            if operation == "scores":
                self.scores(number, tile)
            elif operation == "input":
                PairsCopies(self, number, tile).gather()
        RowsCode(self, tile).write()
        if form.is_at_pairs(form.result):
            PairsCopies(self, form.result, tile).scatter()
        for number in form.products:
            if self.body.nodes[number].operation == "mix":
                self.mix(number, tile)
        if form.mixed:
            self.finish(tile)

    def scores(self, number: int, tile: PairsTile) -> None:
        """Writes code that multiplies the rows of a tile (such as queries) with all columns (such as keys),
        in register tiles, and stores the products in scratch memory. number: the node of the products.
        """
        code, form, node = self.code, self.form, self.body.nodes[number]
        lead, size = prod(self.body.type_of(node.inputs[0]).shape[:-1]), form.size_of(node)
        left, line = self.scratch["left", number], size * form.itemsize
        for row in range(form.tile.rows):
            source = self.at_entry(
                self.inputs[node.inputs[0]], self.row_in(tile, row), lead, size, form.itemsize
            )
            code.copy_bytes(code.at(left, row * line), source, line)
        units, blocks = form.tile.units, self.blocks(tile.columns)
        whole = code.mul(code.sdiv(blocks, code.number(units)), code.number(units))
        for begin, end, count in ((code.number(0), whole, units), (whole, blocks, 1)):
            with code.loop(begin, end, count) as block:
                sums = accumulate(
                    code,
                    Tile(form.tile.rows, count),
                    LeftOperand((left,), line),
                    code.at(self.scratch["right", number], code.mul(block, code.number(line * form.width))),
                    self.kind,
                    inner=size,
                    gates=1,
                    width=form.width,
                    unit_bytes=line * form.width,
                )
                self.write_tile(
                    sums, self.pairs_block(number, block), form.tile.rows * form.width * form.itemsize
                )

    def write_tile(self, sums: Sums, pointer: ir.Value, unit_bytes: int) -> None:
        """Writes stores of the sums of a register tile to the memory at `pointer`: for each vector of
        columns, one vector per row.

        sums: [row][vector of columns][1]. unit_bytes: the bytes from one vector of columns of all rows to the
        next.
        """
        line = self.form.width * self.form.itemsize
        for row, units in enumerate(sums):
            for unit, (value,) in enumerate(units):
                self.code.write(value, self.code.at(pointer, unit * unit_bytes + row * line), line)

    # ---- sums over columns

    def mix(self, number: int, tile: PairsTile) -> None:
        """Writes code that sums, for each row of a tile (such as a query), the values of all columns (such as
        keys), multiplied by the weights of the pairs; in register tiles. The sums are stored in scratch
        memory. number: the node of the sum.
        """
        code, form = self.code, self.form
        units, line = form.tile.units, form.width * form.itemsize
        whole = form.units // units * units
        for begin, end, count in ((0, whole, units), (whole, form.units, form.units - whole)):
            if begin == end:
                continue
            with code.loop(code.number(begin), code.number(end), count) as unit:
                offset = code.mul(unit, code.number(line))
                sums = MixCode(self, number, tile, count, offset).sums()
                target = code.at(self.scratch["sums", number], offset)
                for row, own in enumerate(sums):
                    for place, (value,) in enumerate(own):
                        code.write(value, code.at(target, (row * form.units + place) * line), line)

    # ---- results

    def finish(self, tile: PairsTile) -> None:
        """Writes code that does the elementwise work on the sums of each row of a tile (such as a query), a
        vector of features at a time, and stores the results in the array of the result.
        """
        code, form, size = self.code, self.form, self.body.type_of(self.form.result).itemsize
        line = self.scratch["line", -1]
        with code.loop(code.number(0), tile.rows) as row:
            with code.loop(code.number(0), code.number(form.units)) as unit:
                known = dict[int, ir.Value]()
                for number in sorted(form.mixed):
                    known[number] = self.features_of(number, row, unit, known)
                offset = code.mul(unit, code.number(form.width * size))
                store_vector(
                    code,
                    self.body.type_of(form.result).dtype,
                    known[form.result],
                    code.at(line, offset),
                    size,
                )
            made = self.at_entry(self.made, code.add(tile.row, row), form.heads, form.features, size)
            code.copy_bytes(made, line, form.features * size)

    def features_of(self, number: int, row: ir.Value, unit: ir.Value, known: dict[int, ir.Value]) -> ir.Value:
        """Writes the value that a node has at a vector of features of a row (such as a query) of the tile;
        returns it.

        number: the node. row, unit: the indices of the row and of the vector. known: the values of nodes
        computed before it, by node.
        """
        code, form, node = self.code, self.form, self.body.nodes[number]
        if node.operation == "mix":
            place = code.add(code.mul(row, code.number(form.units)), unit)
            line = form.width * form.itemsize
            pointer = code.at(self.scratch["sums", number], code.mul(place, code.number(line)))
            return load_vector(code, form.dtype, form.width, pointer, line)
        operands = [
            known[operand] if operand in form.mixed else self.repeated(operand, row)
            for operand in node.inputs
        ]
        if node.kind != "pointwise":
            return operands[0]
        return pointwise(code, node, operands, [self.body.type_of(operand).dtype for operand in node.inputs])

    def repeated(self, number: int, row: ir.Value) -> ir.Value:
        """Writes a load of the single number that a node has at a row (such as a query) of the tile, repeated
        for all elements of a vector of features. number: the node, a constant or a value kept in scratch
        memory.
        """
        code, form, type_ = self.code, self.form, self.body.type_of(number)
        if number not in form.slots:
            return number_of(code, self.body.nodes[number], form.width)
        place = code.add(code.number(form.slots.index(number) * form.tile.rows), row)
        pointer = code.at(self.scratch["slots", -1], code.mul(place, code.number(SLOT)))
        return code.spread(load_vector(code, type_.dtype, 1, pointer, SLOT), form.width)
