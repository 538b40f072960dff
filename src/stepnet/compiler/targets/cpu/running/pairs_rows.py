"""The machine code of elementwise operations and reductions at the pairs of a tile of rows; see `pairs`.

A few rows run together, so that their operations overlap: pass by pass over all columns, in vectors of these.
"""

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.pairs import is_elementwise
from stepnet.compiler.targets.cpu.emit.reductions import combine, neutral
from stepnet.compiler.targets.cpu.running.pairs_addresses import PairsAddresses, PairsTile
from stepnet.compiler.targets.cpu.running.pairs_form import SLOT
from stepnet.compiler.targets.cpu.writing.code import (
    I32,
    Code,
    load_vector,
    register_type,
    store_vector,
)
from stepnet.compiler.targets.cpu.writing.pointwise import converted, pointwise

Known = dict[int, list[ir.Value]]
"""The values of nodes so far, for each row of those that run together."""


def number_of(code: Code, node: Node, width: int = 1) -> ir.Value:
    """Returns a constant node's number in each element of a vector; a scalar for `width` 1."""
    value = node.attributes["value"].value.item()
    return code.splat(
        register_type(node.type.dtype, width), int(value) if node.type.dtype == "bool" else value
    )


class RowsCode:
    """Writer of the code that runs passes over the pairs of a tile, a few rows at a time."""

    def __init__(self, pairs: PairsAddresses, tile: PairsTile) -> None:
        """Prepares to write the elementwise operations and reductions of a tile. pairs: writes the addresses
        of values and scratch memory. tile: a few rows (such as queries) with all their columns (such as
        keys).
        """
        self.pairs, self.tile = pairs, tile
        self.code, self.form, self.body = pairs.code, pairs.form, pairs.body

    def write(self) -> None:
        """Writes a loop over the rows of a tile (such as queries), a few at a time, which runs all passes
        (loops over their columns, such as keys). Nothing is written if there are no elementwise operations or
        reductions.
        """
        code, form = self.code, self.form
        nodes = self.body.nodes
        if not any(is_elementwise(node) or node.operation in ("expand", "reduce") for node in nodes):
            return
        with code.loop(code.number(0), self.tile.rows, form.together) as first:
            last = code.sub(self.tile.rows, code.number(1))
            rows = [
                code.add(self.tile.row, code.smaller(code.add(first, code.number(n)), last))
                for n in range(form.together)
            ]
            self.lengths = [self.pairs.columns_of(row) for row in rows]
            self.first, self.numbers = first, Known()
            self.add_numbers(0, rows)
            for turn in range(max(form.passes) + 1):
                self.run_pass(turn)
                self.add_numbers(turn + 1, rows)
            self.keep()

    def add_numbers(self, turn: int, rows: list[ir.Value]) -> None:
        """Writes code for the numbers that each row (such as a query) has once and that are known when a pass
        begins; adds them to `self.numbers`, by node.

        turn: the number of the pass (loop over all columns, such as keys). rows: the numbers of the rows that
        run together.
        """
        code, form, nodes = self.code, self.form, self.body.nodes
        for number, node in enumerate(nodes):
            is_number = not form.is_at_pairs(number) and number not in form.mixed
            if not is_number or number in self.numbers or form.passes[number] != turn:
                continue
            if node.operation == "constant":
                self.numbers[number] = [number_of(code, node)] * len(rows)
            elif node.operation == "input":
                if self.is_read_as_number(number):
                    self.numbers[number] = [self.pairs.input_number(number, row) for row in rows]
            elif node.operation != "reduce":
                self.numbers[number] = self.computed(node, self.numbers)

    def is_read_as_number(self, number: int) -> bool:
        """Tells whether an input of one number per row is read by an elementwise operation or repeated for
        all columns, and not only as an operand of products. number: the node of the input.
        """
        return any(
            number in node.inputs and (is_elementwise(node) or node.operation == "expand")
            for node in self.body.nodes
        )

    def computed(self, node: Node, known: Known) -> list[ir.Value]:
        """Writes the code of an elementwise node, for each of the rows that run together; returns the values,
        one per row. known: the values of its operands, by node.
        """
        operands = [known[operand] for operand in node.inputs]
        if node.kind != "pointwise":
            return operands[0]
        dtypes = [self.body.type_of(operand).dtype for operand in node.inputs]
        return [pointwise(self.code, node, [*own], dtypes) for own in zip(*operands, strict=True)]

    # ---- passes

    def run_pass(self, turn: int) -> None:
        """Writes a pass: a loop over all columns (such as keys) of the rows that run together, in vectors of
        columns. It computes the reductions of the pass, which are added to `self.numbers`, and stores the
        values that later passes read. Nothing is written for a pass with neither. turn: the number of the
        pass.
        """
        code, form, nodes = self.code, self.form, self.body.nodes
        reductions = form.reductions.get(turn, [])
        stored = [
            n for n in form.stored if form.passes[n] == turn and nodes[n].operation not in ("scores", "input")
        ]
        if not reductions and not stored:
            return
        spread = {
            number: [number_of(code, nodes[number], form.width)] * len(values)
            if nodes[number].operation == "constant"
            else [code.spread(value, form.width) for value in values]
            for number, values in self.numbers.items()
        }
        lanes = ir.VectorType(I32, form.width)
        ends = [code.spread(code.trunc(length, I32), form.width) for length in self.lengths]
        index = ir.Constant(lanes, list(range(form.width)))
        dtypes = [self.dtype_of(number) for number in reductions]
        initial = [
            neutral(code, combined_by(nodes[number]), register_type(dtype, form.width))
            for number, dtype in zip(reductions, dtypes, strict=True)
            for _ in self.lengths
        ]

        def block(number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            """Writes the work on one vector of columns of each row; returns the partial results of the
            reductions.

            number: the index of the vector. sums: the partial results before it, reduction by reduction and
            row by row.
            """
            first = code.trunc(code.mul(number, code.number(form.width)), I32)
            columns = code.add(code.spread(first, form.width), index)
            has = [code.icmp_signed("<", columns, end) for end in ends]
            known: Known = {}
            made = list[ir.Value]()
            for place, (reduction, dtype) in enumerate(zip(reductions, dtypes, strict=True)):
                operand = nodes[reduction].inputs[0]
                values = self.value(operand, turn, number, known, spread)
                how = combined_by(nodes[reduction])
                for row, value in enumerate(values):
                    total = sums[place * len(values) + row]
                    own = converted(code, value, self.body.type_of(operand).dtype, dtype)
                    own = code.select(has[row], own, neutral(code, how, own.type))
                    made.append(combine(code, how, dtype, total, own))
            for own in stored:
                self.store(own, number, self.value(own, turn, number, known, spread))
            return made

        totals = code.carry(0, self.pairs.blocks(self.tile.columns), initial, block)
        count = len(self.lengths)
        for place, (number, dtype) in enumerate(zip(reductions, dtypes, strict=True)):
            own = totals[place * count : (place + 1) * count]
            self.numbers[number] = [
                self.folded(nodes[number], dtype, *pair) for pair in zip(own, self.lengths, strict=True)
            ]

    def dtype_of(self, reduction: int) -> str:
        """Returns the dtype of a reduction."""
        return self.body.type_of(reduction).dtype

    def folded(self, node: Node, dtype: str, value: ir.Value, length: ir.Value) -> ir.Value:
        """Writes the reduction of a vector of partial results to one number, combining its halves repeatedly;
        a mean is also divided. A row without columns gets 0.

        node: the reduction. value: the partial results. length: the number of columns.
        """
        code, how, width = self.code, combined_by(node), self.form.width
        while width > 1:
            width //= 2
            value = combine(code, how, dtype, code.slice(value, 0, width), code.slice(value, width, width))
        value = code.extract_element(value, ir.Constant(I32, 0))
        if node.attributes["how"] == "mean":
            most = code.select(code.icmp_signed(">", length, code.number(1)), length, code.number(1))
            return code.fdiv(value, code.sitofp(most, register_type(dtype, 1)))
        if how == "sum":
            return value
        empty = code.icmp_signed("==", length, code.number(0))
        return code.select(empty, code.splat(value.type, 0), value)

    def value(self, number: int, turn: int, block: ir.Value, known: Known, spread: Known) -> list[ir.Value]:
        """Writes the values of a node at the pairs of rows (such as queries) with a vector of columns (such
        as keys), one vector for each of the rows that run together; returns them: loaded from scratch memory,
        or computed from operands.

        number: the node. turn: the number of the pass (loop over all columns). block: the index of the
        vector.
        known: the values at pairs so far, by node; those of operands are added. spread: the numbers that rows
        have once, repeated for all columns.
        """
        node, form = self.body.nodes[number], self.form
        if number in spread:
            return spread[number]
        if number not in known:
            if node.operation in ("scores", "input") or (
                number in form.stored and form.passes[number] < turn
            ):
                known[number] = self.loaded(number, block)
            elif node.operation == "expand":
                known[number] = spread[node.inputs[0]]
            else:
                for operand in node.inputs:
                    own = self.value(operand, turn, block, known, spread)
                    if operand not in spread:
                        known[operand] = own
                known[number] = self.computed(node, {**spread, **known})
        return known[number]

    # ---- memory

    def places(self, number: int, block: ir.Value) -> list[ir.Value]:
        """Writes the pointers to a vector of columns of a value at pairs (rows with columns, as queries with
        keys) in scratch memory, one for each of the rows that run together. number: the node of the value.
        block: the index of the vector.
        """
        code, form, size = self.code, self.form, self.body.type_of(number).itemsize
        line = form.width * size
        first = code.at(self.pairs.pairs_block(number, block), code.mul(self.first, code.number(line)))
        return [code.at(first, row * line) for row in range(form.together)]

    def loaded(self, number: int, block: ir.Value) -> list[ir.Value]:
        """Writes loads of a value at pairs (rows with columns, as queries with keys) from scratch memory: a
        vector of columns for each of the rows that run together. number: the node of the value. block: the
        index of the vector.
        """
        type_ = self.body.type_of(number)
        return [
            load_vector(self.code, type_.dtype, self.form.width, place, type_.itemsize)
            for place in self.places(number, block)
        ]

    def store(self, number: int, block: ir.Value, values: list[ir.Value]) -> None:
        """Writes stores of a value at pairs (rows with columns, as queries with keys) to scratch memory: a
        vector of columns for each of the rows that run together. number: the node of the value. block: the
        index of the vector. values: one per row.
        """
        type_ = self.body.type_of(number)
        for place, value in zip(self.places(number, block), values, strict=True):
            store_vector(self.code, type_.dtype, value, place, type_.itemsize)

    def keep(self) -> None:
        """Writes stores of those numbers of the rows (such as queries) that run together which elementwise
        operations on weighted sums will read, once the sums are known.
        """
        code, form = self.code, self.form
        for slot, number in enumerate(form.slots):
            dtype = self.body.type_of(number).dtype
            for row, value in enumerate(self.numbers[number]):
                place = code.add(code.number(slot * form.tile.rows + row), self.first)
                pointer = code.at(self.pairs.scratch["slots", -1], code.mul(place, code.number(SLOT)))
                store_vector(code, dtype, value, pointer, SLOT)


def combined_by(node: Node) -> str:
    """Returns the reduction by which partial results of a node are combined: "max", or "sum" for a mean."""
    return "max" if node.attributes["how"] == "max" else "sum"
