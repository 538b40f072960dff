"""Writes the products of a loop on tensor cores, and sums over units, which are products with ones."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.functions import F32, FOUR, QUAD
from stepnet.compiler.targets.cuda.tensor.exchanges import ExchangeWriter
from stepnet.compiler.targets.cuda.tensor.places import Elements, elements
from stepnet.compiler.targets.cuda.tensor.shape import DEPTH, Numbers
from stepnet.compiler.targets.cuda.tensor.step import StepRows, UnitSum
from stepnet.compiler.targets.cuda.writer import Value

ZERO, ONE = ir.Constant(F32, 0.0), ir.Constant(F32, 1.0)
TERMS = {"product": ((0, 0), (0, 1), (1, 0)), "sum": ((0, 0), (0, 1)), "rounded": ((0, 0),)}
"""The halves of weights and values that are multiplied: in float32, in sums over units, and if rounded."""


Operand = Value | list[Elements]
"""A warp's operand: the address of 16 bytes for each thread, or registers with their halves."""


class TensorProductWriter(ExchangeWriter):
    """Writer of products: their operands, which are loaded once, and their sums."""

    def halves(self, x: Value, numbers: Numbers) -> Elements:
        """Writes x as a sum of numbers that the tensor cores multiply: two of them for float32."""
        if numbers == "bfloat16":
            return [x]  # packed already
        high = self.function_call("tf32", F32, [x])
        if numbers == "tf32":
            return [high]
        return [high, self.function_call("tf32", F32, [self.fsub(x, high)])]

    def ks(self, first_k: Value, numbers: Numbers, k: int, half: int) -> list[Value]:
        """Writes the rows of a thread's register in the operand number k: one, or two that are packed."""
        number, first = self.number, DEPTH[numbers] * k
        if numbers == "bfloat16":
            pair = self.add(first_k, self.add(self.add(self.in_quad, self.in_quad), number(first + 8 * half)))
            return [pair, self.add(pair, number(1))]
        return [self.add(first_k, self.add(self.in_quad, number(first + 4 * half)))]

    def packed(self, values: Elements) -> Value:
        """Writes one register of an operand: a number, or two of bfloat16, the first in the lower half."""
        return values[0] if len(values) == 1 else self.function_call("pack", F32, values)

    def first_k(self, each: UnitSum, left: int) -> Value:
        """Writes the first unit of a left operand that the warp multiplies."""
        share = self.shape.depth(each, left) * DEPTH[self.shape.numbers(each)]
        return self.mul(self.part, self.number(share))

    # ---- operands

    def load_matrices(self) -> None:
        """Writes loads of all matrices as operands of the tensor cores."""
        self.operands = dict[tuple[int, int, int, int], Operand]()
        for number, each in self.step.sums.items():
            for gate, rights in enumerate(each.rights):
                for place, rows in enumerate(rights):
                    for k in range(self.shape.depth(each, each.lefts[place])):
                        self.operands[number, gate, place, k] = self.load_operand(each, gate, place, rows, k)

    def weight(self, rows: StepRows, k: Value, unit: Value) -> Value:
        """Writes the load of a weight; zero for padded units and rows."""
        array, dtype = f"c{self.step.others.index(rows.matrix)}", self.step.dtype(rows.matrix)
        row = self.add(self.smaller(k, self.number(rows.count - 1)), self.number(rows.first))
        place = self.add(self.mul(row, self.number(rows.columns)), self.feature(rows.columns, unit))
        value = converted(self, self.read_element(dtype, self.pointer(array), place), dtype, "float32")
        inside = self.icmp_signed("<", k, self.number(rows.count))
        if rows.columns > 1:  # a single number is that of all units
            inside = self.and_(inside, self.icmp_signed("<", unit, self.number(rows.columns)))
        return self.select(inside, value, ZERO)

    def load_operand(self, each: UnitSum, gate: int, place: int, rows: StepRows, k: int) -> Operand:
        """Writes the load of a warp's operand number k of some rows of a matrix, to registers or to shared
        memory; returns the registers or the address.
        """
        number, numbers = self.number, self.shape.numbers(each)
        units = [self.add(self.tile, self.add(self.quad, number(8 * (r & 1)))) for r in range(4)]
        first_k = self.first_k(each, each.lefts[place])
        weights = [
            self.packed([self.weight(rows, row, units[r]) for row in self.ks(first_k, numbers, k, r >> 1)])
            for r in range(4)
        ]
        away = self.shape.places[each.node, gate, place] + k - self.schedule.resident
        if away < 0:
            return [self.halves(weight, numbers) for weight in weights]
        four: Value = ir.Constant(FOUR, ir.Undefined)
        for r in range(4):
            four = self.insert_element(four, weights[r], ir.Constant(I32, r))
        first = self.shape.states_bytes + self.shape.sums_bytes
        offset = number(first + away * self.shape.threads * 16)
        there = self.shared(self.add(self.mul(self.thread, number(16)), offset))
        self.write(four, there, 16)
        return there

    def operand(self, each: UnitSum, gate: int, place: int, k: int) -> list[Elements]:
        """Writes the load of a warp's operand, unless it is in registers."""
        if not each.rights:
            return [[ONE, ZERO]] * 4
        a = self.operands[each.node, gate, place, k]
        if isinstance(a, list):
            return a
        four, numbers = self.read(FOUR, a, 16), self.shape.numbers(each)
        return [self.halves(self.extract_element(four, ir.Constant(I32, r)), numbers) for r in range(4)]

    # ---- sums

    def sums(self, each: UnitSum, parity_of: dict[int, Value], first: int) -> list[Elements]:
        """Writes the sums of a product for the thread's elements. The order of the additions depends on the
        number of units and on the schedule's numbers, chains and parts alone.

        parity_of: the place of each left operand. first: the number of sums of the phase that are in shared
        memory before these.
        """
        zero: Elements = [ZERO] * 4
        chains: list[list[Elements]] = [[zero] * self.schedule.chains for _ in range(each.results)]
        numbers = self.shape.numbers(each)
        for place, left in enumerate(each.lefts):
            depth = 0 if self.schedule.without == "products" else self.shape.depth(each, left)
            first_k = self.first_k(each, left)
            for k in range(depth):
                units = [self.ks(first_k, numbers, k, half) for half in (0, 1)]
                b = [self.halves(self.read_state(left, parity_of[left], its), numbers) for its in units]
                for gate in range(each.results):
                    self.multiply(chains[gate], self.operand(each, gate, place, k), b, k, each)
        totals = [self.total(its) for its in chains]
        return totals if self.schedule.parts == 1 else self.joined(totals, first)

    def read_state(self, left: int, parity: Value, units: list[Value]) -> Value:
        """Writes the load of a thread's register of an operand: some units of a left operand."""
        return self.packed([self.read(F32, self.state(left, parity, unit, self.quad), 4) for unit in units])

    def multiply(
        self, chains: list[Elements], a: list[Elements], b: list[Elements], k: int, each: UnitSum
    ) -> None:
        """Writes the products of one operand, each term added to the chain that is its own."""
        numbers = self.shape.numbers(each)
        terms = TERMS["rounded" if numbers != "float32" else "product" if each.rights else "sum"]
        for term, (i, j) in enumerate(terms):
            chain = (term + len(terms) * k) % len(chains)
            operands = [*(v[i] for v in a), *(v[j] for v in b), *chains[chain]]
            quad = self.function_call(f"mma{DEPTH[numbers]}", QUAD, operands)
            chains[chain] = [self.extract_value(quad, e) for e in range(4)]

    def joined(self, totals: list[Elements], first: int) -> list[Elements]:
        """Writes the sums of the parts of a product, in order, for the thread's elements."""
        number = self.number

        def place(gate: int, element: Value, warp: Value) -> Value:
            """Writes the address of an element of a sum of one warp, as the same lane has it."""
            row = self.add(self.mul(number(first + gate), number(4)), element)
            row = self.add(self.mul(row, number(self.shape.warps)), warp)
            offset = self.mul(self.add(self.mul(row, number(LANES)), self.lane), number(4))
            return self.shared(self.add(offset, number(self.shape.states_bytes)))

        for gate, total in enumerate(totals):
            for e in range(4):
                self.write(total[e], place(gate, number(e), self.warp), 4)
        self.barrier()
        own = self.mul(self.local_tile, number(self.schedule.parts))
        warps = [self.add(own, number(part)) for part in range(self.schedule.parts)]
        return [
            self.total([[self.read(F32, place(gate, e, warp), 4) for e in self.places] for warp in warps])
            for gate in range(len(totals))
        ]

    def total(self, chains: list[Elements]) -> Elements:
        """Writes the sum of the chains of a product."""
        first, *others = chains
        for other in others:
            first = elements(self.fadd(a, b) for a, b in zip(first, other, strict=True))
        return first
