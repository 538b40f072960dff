"""Writes the products of a loop by plain units: of few sequences, with weights in registers.

Two or four neighbouring lanes of a warp have the same unit, and divide the sums over k. Of four:

    lane 4 u + p    k = 4 p + 16 j + 0, 1, 2, 3 for j = 0, 1, ...: a read of 16 bytes of shared memory for
                    each j and sequence, of which the lanes of a warp read 64 bytes side by side
    then            (lane 0 + lane 1) + (lane 2 + lane 3), by shuffles: each lane has the sum of a sequence

A lane adds up two or four sums beside each other, so that none waits for the one before. So a step needs no
barrier but that of its exchange. The order of a sum is the same for 1, 2 and 4 sequences. Weights that
registers do not hold are in shared memory, 16 bytes of each lane beside its neighbour's. Sums are those of
float32 by multiply-adds, which is more exact than what tensor cores have.
"""

from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32
from stepnet.compiler.targets.cuda.functions import F32, FOUR
from stepnet.compiler.targets.cuda.tensor.places import Elements, elements
from stepnet.compiler.targets.cuda.tensor.products import ZERO, TensorProductWriter
from stepnet.compiler.targets.cuda.tensor.step import UnitSum
from stepnet.compiler.targets.cuda.writer import Value

FOURS = range(4)
"""The numbers of a read."""


class PlainProductWriter(TensorProductWriter):
    """Writer of products by plain units, where the schedule has these, and else by tensor cores."""

    def load_matrices(self) -> None:
        """Writes loads of all weights of the thread's units."""
        if not self.shape.is_plain:
            super().load_matrices()
            return
        self.kept = dict[tuple[int, int, int, int], Value | Elements]()
        (unit,) = self.units
        for number, each in self.step.sums.items():
            for gate, rights in enumerate(each.rights):
                for place, rows in enumerate(rights):
                    for chunk in range(self.shape.depth(each, each.lefts[place])):
                        weights = elements(self.weight(rows, k, unit) for k in self.own_ks(chunk))
                        away = self.shape.places[number, gate, place] + chunk - self.schedule.resident
                        kept = weights if away < 0 else self.put_away(weights, away)
                        self.kept[number, gate, place, chunk] = kept

    def own_ks(self, chunk: int) -> list[Value]:
        """Writes the units of a left operand that the lane multiplies at a time."""
        first = self.add(self.mul(self.part, self.number(4)), self.number(4 * self.schedule.parts * chunk))
        return [self.add(first, self.number(k)) for k in FOURS]

    def sums(self, each: UnitSum, parity_of: dict[int, Value], first: int) -> list[Elements]:
        """Writes the sums of a product, or over units, for the thread's element."""
        if not self.shape.is_plain:
            return super().sums(each, parity_of, first)
        rows, chains = range(self.schedule.rows), range(self.schedule.chains)
        totals = [[elements(ZERO for _ in rows) for _ in chains] for _ in range(each.results)]
        for place, left in enumerate(each.lefts):
            depth = 0 if self.schedule.without == "products" else self.shape.depth(each, left)
            for chunk in range(depth):
                begin = self.own_ks(chunk)[0]
                read = [self.four(left, parity_of[left], begin, row) for row in rows]
                weights = [self.weights(each, gate, place, chunk) for gate in range(len(each.rights))]
                for k, gate in product(FOURS, range(each.results)):
                    sums = totals[gate][k % len(totals[gate])]
                    for row in rows:
                        x, total = read[row][k], sums[row]
                        sums[row] = self.fused(weights[gate][k], x, total) if weights else self.fadd(total, x)
        return [[total] for total in self.across([self.total(its) for its in totals])]

    def weights(self, each: UnitSum, gate: int, place: int, chunk: int) -> Elements:
        """Writes the loads of four weights, unless they are in registers."""
        kept = self.kept[each.node, gate, place, chunk]
        return self.four_of(self.read(FOUR, kept, 16)) if isinstance(kept, ir.Value) else kept

    def four(self, left: int, parity: Value, unit: Value, row: int) -> Elements:
        """Writes the read of four units of a left operand that follow one another, of a sequence."""
        return self.four_of(self.read(FOUR, self.state(left, parity, unit, self.number(row)), 16))

    def four_of(self, four: Value) -> Elements:
        """Writes the numbers of 16 bytes."""
        return [self.extract_element(four, ir.Constant(I32, k)) for k in FOURS]

    def across(self, gates: list[Elements]) -> Elements:
        """Writes the sums of the lanes of a unit, for the lane's own sequence. Shuffles stay in their order,
        so those that wait for none come one after another.

        gates: the sums of the lane of all results, each for all sequences.
        """
        for bit in (1, 2)[: self.schedule.parts // 2]:
            given, lanes = gates, ir.Constant(I32, bit)
            if self.schedule.rows > bit:  # the lane keeps half of the sequences, and gives the others
                is_odd = self.icmp_signed("!=", self.and_(self.part, self.number(bit)), self.number(0))
                pairs = [list(zip(its[::2], its[1::2], strict=True)) for its in gates]
                gates = [[self.select(is_odd, b, a) for a, b in its] for its in pairs]
                given = [[self.select(is_odd, a, b) for a, b in its] for its in pairs]
            others = [
                [self.function_call("shuffle_xor_float32", F32, [each, lanes]) for each in its]
                for its in given
            ]
            gates = [
                elements(self.fadd(*each) for each in zip(*its, strict=True))
                for its in zip(gates, others, strict=True)
            ]
        return [total for (total,) in gates]
