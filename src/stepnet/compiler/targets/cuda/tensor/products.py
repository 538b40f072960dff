"""Writes the products of a loop on tensor cores, and sums over units, which are products with ones."""

from collections.abc import Iterator

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.functions import F32, FOUR, QUAD
from stepnet.compiler.targets.cuda.tensor.exchanges import ExchangeWriter
from stepnet.compiler.targets.cuda.tensor.numbers import FACTS, Numbers
from stepnet.compiler.targets.cuda.tensor.operands import packed, values_of, weights_of
from stepnet.compiler.targets.cuda.tensor.places import Elements, elements
from stepnet.compiler.targets.cuda.tensor.step import StepRows, UnitSum
from stepnet.compiler.targets.cuda.writer import Value

ZERO, ONE = ir.Constant(F32, 0.0), ir.Constant(F32, 1.0)
TF32_HALF = 1 << 12
"""Half of the last digit of a number of tf32, among the bits of float32."""
Operand = Value | Elements | list[Elements]
"""A warp's operand of weights: the address of 16 bytes for each thread; registers with these; or registers
that are multiplied.
"""


class TensorProductWriter(ExchangeWriter):
    """Writer of products: their operands, which are loaded once, and their sums."""

    def ks(self, first_k: Value, numbers: Numbers, k: int, half: int) -> list[Value]:
        """Writes the rows of a thread's register in the operand number k: one, or two of 16 bits."""
        number, depth = self.number, FACTS[numbers].depth
        first = depth * k + depth // 2 * half
        if depth == 16:
            pair = self.add(first_k, self.add(self.add(self.in_quad, self.in_quad), number(first)))
            return [pair, self.add(pair, number(1))]
        return [self.add(first_k, self.add(self.in_quad, number(first)))]

    def first_k(self, each: UnitSum, left: int) -> Value:
        """Writes the first unit of a left operand that the warp multiplies."""
        share = self.shape.depth(each, left) * self.shape.facts(each).depth
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
        column = self.add(self.feature(rows.columns, unit), self.number(rows.column))
        place = self.add(self.mul(row, self.number(rows.stride)), column)
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
        weights = list[Value]()
        for r in range(4):
            ks = self.ks(first_k, numbers, k, r >> 1)
            weights.append(packed(self, [self.weight(rows, row, units[r]) for row in ks], numbers))
        further = self.shape.places[each.node, gate, place] + k - self.schedule.resident
        away = further - self.schedule.unsplit
        if further < 0 or (away < 0 and not FACTS[numbers].is_split):
            return [weights_of(self, weight, numbers) for weight in weights]
        return weights if away < 0 else self.put_away(weights, away)

    def put_away(self, weights: Elements, away: int) -> Value:
        """Writes the store of the thread's registers of an operand to shared memory; returns the address.
        away: the number of operands that are there already.
        """
        number, four = self.number, ir.Constant(FOUR, ir.Undefined)
        for r in range(4):
            four = self.insert_element(four, weights[r], ir.Constant(I32, r))
        first = self.shape.states_bytes + self.shape.sums_bytes
        offset = number(first + away * self.shape.operand_bytes)
        there = self.shared(self.add(self.mul(self.thread, number(16)), offset))
        self.write(four, there, 16)
        return there

    def operand(self, each: UnitSum, gate: int, place: int, k: int) -> list[Elements]:
        """Writes the load of a warp's operand, unless it is in registers."""
        if not each.rights:
            return [[ONE, ZERO]] * 4
        a, numbers = self.operands[each.node, gate, place, k], self.shape.numbers(each)
        if isinstance(a, list):
            return [self.weights_now(x, numbers) if isinstance(x, ir.Value) else x for x in a]
        four = self.read(FOUR, a, 16)
        return [weights_of(self, self.extract_element(four, ir.Constant(I32, r)), numbers) for r in range(4)]

    def weights_now(self, register: Value, numbers: Numbers) -> Elements:
        """Writes the operands of the tensor cores for one register of weights, recomputed at each step. The
        compiler would move the computation ahead of the loop and keep the result in registers. A number that
        it does not know, the rounding addend or a zero, prevents that.
        """
        if FACTS[numbers].depth == 16:
            bits = self.xor(self.bitcast(register, I32), self.zero)
            return weights_of(self, self.bitcast(bits, F32), numbers)
        high = self.function_call("tf32_by", F32, [register, self.half])
        return [high, self.function_call("tf32_by", F32, [self.fsub(register, high), self.half])]

    def know_step(self, t: Value) -> None:
        """Writes a zero and half a unit of tf32's last place, by bits of the step unknown to compilers."""
        zero = self.lshr(t, self.number(48))
        self.zero, self.half = self.low(zero), self.low(self.add(zero, self.number(TF32_HALF)))

    # ---- sums

    def sums(self, each: UnitSum, parity_of: dict[int, Value], first: int) -> list[Elements]:
        """Writes the sums of a product for the thread's elements. The order of the additions depends on the
        number of units and on the schedule's numbers, chains and parts alone.

        parity_of: the place of each left operand. first: the number of sums of the phase that are in shared
        memory before these.
        """
        zero: Elements = [ZERO] * 4
        abreast = range(self.shape.abreast)
        chains: list[list[list[Elements]]] = [
            [[zero] * self.schedule.chains for _ in abreast] for _ in range(each.results)
        ]
        numbers = self.shape.numbers(each)
        for place, left in enumerate(each.lefts):
            for k, read in enumerate(self.operands_read(each, left, parity_of[left])):
                b = [
                    [values_of(self, its, numbers, self.shape.is_packed) for its in read[2 * n : 2 * n + 2]]
                    for n in abreast
                ]
                for gate in range(each.results):
                    a = self.operand(each, gate, place, k)
                    for n in abreast:
                        self.multiply(chains[gate][n], a, b[n], k, each)
        totals = [[x for its in eighths for x in self.total(its)] for eighths in chains]
        return totals if self.schedule.parts == 1 else self.joined(totals, first)

    def operands_read(self, each: UnitSum, left: int, parity: Value) -> Iterator[list[Elements]]:
        """Writes the loads of a warp's operands of values of a left operand, and yields the numbers of a
        thread's registers for each of them: two registers for each 8 sequences. Those that are read directly
        are read before the operands ahead of them are multiplied.
        """
        depth = 0 if self.schedule.without == "products" else self.shape.depth(each, left)
        first_k, numbers = self.first_k(each, left), self.shape.numbers(each)
        if left not in self.shape.direct:
            for k in range(depth):
                units = [self.ks(first_k, numbers, k, half) for half in (0, 1)]
                yield [
                    self.read_state(left, parity, its, n) for n in range(self.shape.abreast) for its in units
                ]
            return
        size, share = self.shape.fragment(left) // 8, self.mul(self.part, self.number(depth))
        some, ahead = self.shape.read_at_once(each), list[Elements]()
        for begin in range(0, depth + some, some):
            operands = [self.add(share, self.number(k)) for k in range(begin, min(depth, begin + some))]
            read, ahead = ahead, self.read_direct(left, parity, operands) if operands else []
            for its in read:
                yield [its[at : at + size] for at in range(0, len(its), size)]

    def read_state(self, left: int, parity: Value, units: list[Value], eighth: int) -> Elements:
        """Writes the loads of the numbers of a thread's register of an operand: units of a left operand. If
        they are packed, two are in one word. eighth: the index of a group of 8 sequences.
        """
        there, found = self.shape.published(left), list[Value]()
        row = self.add(self.quad, self.number(8 * eighth)) if eighth else self.quad
        for unit in units[:1] if self.shape.is_packed else units:
            place = self.smaller(unit, self.number(there - 1)) if left in self.shape.summed else unit
            value = self.read(F32, self.state(left, parity, place, row), 4)
            if left in self.shape.summed:  # warps may multiply more sums than there are
                value = self.select(self.icmp_signed("<", unit, self.number(there)), value, ZERO)
            found.append(value)
        return found

    def multiply(
        self, chains: list[Elements], a: list[Elements], b: list[Elements], k: int, each: UnitSum
    ) -> None:
        """Writes the products of one operand; each term is added to its own chain of sums."""
        facts = self.shape.facts(each)
        for term, (i, j) in enumerate(facts.terms):
            chain = (term + len(facts.terms) * k) % len(chains)
            operands = [*(v[i] for v in a), *(v[j] for v in b), *chains[chain]]
            quad = self.function_call(f"mma{facts.instruction}", QUAD, operands)
            chains[chain] = [self.extract_value(quad, e) for e in range(4)]

    def joined(self, totals: list[Elements], first: int) -> list[Elements]:
        """Writes the sums of the parts of a product, in order, for the thread's elements."""
        found, number, at_once = list[Elements](), self.number, self.shape.sums_at_once
        size = 4 * self.shape.abreast
        own = self.mul(self.local_tile, number(self.schedule.parts))
        warps = [self.add(own, number(part)) for part in range(self.schedule.parts)]

        def place(slot: int, element: Value, warp: Value) -> Value:
            """Writes the address of an element of a sum of one warp, as the same lane has it."""
            row = self.add(self.mul(number(slot), number(size)), element)
            row = self.add(self.mul(row, number(self.shape.warps)), warp)
            offset = self.mul(self.add(self.mul(row, number(LANES)), self.lane), number(4))
            return self.shared(self.add(offset, number(self.shape.states_bytes)))

        while len(found) < len(totals):
            slot = (first + len(found)) % at_once
            some = totals[len(found) : len(found) + at_once - slot]
            if slot == 0 and first + len(found) > 0:  # until all warps have read what was there
                self.barrier()
            for gate, total in enumerate(some):
                for e in range(size):
                    self.write(total[e], place(slot + gate, number(e), self.warp), 4)
            self.barrier()
            found += [
                self.total(
                    [[self.read(F32, place(slot + gate, e, warp), 4) for e in self.places] for warp in warps]
                )
                for gate in range(len(some))
            ]
        return found

    def total(self, chains: list[Elements]) -> Elements:
        """Writes the sum of the chains of a product."""
        first, *others = chains
        for other in others:
            first = elements(self.fadd(a, b) for a, b in zip(first, other, strict=True))
        return first
