"""Writes a kernel as LLVM code, which does not depend on whether it will run on a GPU or in the emulation."""

from itertools import chain

from llvmlite import ir

from bench.gpu.addresses import Elements, Value, elements
from bench.gpu.device_functions import F32, FOUR, QUAD, SCALAR, VOID
from bench.gpu.exchange_code import Exchanges
from bench.gpu.shape import DEPTH, LANES, Shape
from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I32, POINTER, Code
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.targets.cuda.tensor.approximate import APPROXIMATE


def written(shape: Shape) -> str:
    """Returns the kernel of a shape as the text of an LLVM module, with one function `kernel` of one pointer:
    to the addresses of `Shape.argument_names`.
    """
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER]), "kernel")
    Writer(shape, Code(function.append_basic_block("entry"), SCALAR), function.args[0]).write()
    return str(module)


class Writer(Exchanges):
    """Writer of one kernel: what it loads once, the products and the other nodes of a step, the loop."""

    # ---- what is loaded once

    def halves(self, x: Value) -> Elements:
        """Writes x as a sum of numbers that the tensor cores multiply: two of them for float32."""
        if self.schedule.numbers == "bfloat16":
            return [x]  # packed already
        high = self.call("tf32", F32, x)
        if self.schedule.numbers == "tf32":
            return [high]
        return [high, self.call("tf32", F32, self.code.fsub(x, high))]

    def load_constants(self) -> None:
        """Writes loads of the parameters: vectors to registers, matrices as operands of the tensor cores."""
        code, number = self.code, self.code.number
        for place, n in enumerate(self.step.constants):
            if n in self.step.rights:
                for k in range(self.shape.depth):
                    self.load_operand(f"c{place}", n, k)
                continue
            one = self.step.body.type_of(n).size == 1
            units = [number(0) if one else unit for unit in self.units]
            self.values[n] = [code.read(F32, self.element(f"c{place}", number(0), unit), 4) for unit in units]
        for n, node in enumerate(self.step.body.nodes):
            if node.operation == "constant":
                self.values[n] = [
                    ir.Constant(F32, float(node.attributes["value"].value))
                ] * self.shape.elements

    def ks(self, k: int, half: int) -> list[Value]:
        """Writes the numbers of the rows of a thread's register in the operand number k: one row, or two
        packed.
        """
        code, number, first = self.code, self.code.number, DEPTH[self.schedule.numbers] * k
        if self.schedule.numbers == "bfloat16":
            pair = code.add(
                self.first_k, code.add(code.add(self.in_quad, self.in_quad), number(first + 8 * half))
            )
            return [pair, code.add(pair, number(1))]
        return [code.add(self.first_k, code.add(self.in_quad, number(first + 4 * half)))]

    def packed(self, values: Elements) -> Value:
        """Writes one register of an operand: a number, or two of bfloat16, the first in the lower half."""
        return values[0] if len(values) == 1 else self.call("pack", F32, *values)

    def load_operand(self, array: str, n: int, k: int) -> None:
        """Writes the load of a warp's operand number k of the matrix n, to registers or to shared memory."""
        code, number = self.code, self.code.number
        units = [code.add(self.tile, code.add(self.quad, number(8 * (r & 1)))) for r in range(4)]
        weights = [
            self.packed([code.read(F32, self.element(array, row, units[r]), 4) for row in self.ks(k, r >> 1)])
            for r in range(4)
        ]
        place = self.step.rights.index(n) * self.shape.depth + k - self.schedule.resident
        if place < 0:
            self.matrices[n, k] = [self.halves(weight) for weight in weights]
            return
        four: Value = ir.Constant(FOUR, ir.Undefined)
        for r in range(4):
            four = code.insert_element(four, weights[r], ir.Constant(I32, r))
        first = self.shape.states_bytes + self.shape.sums_bytes
        offset = number(first + place * self.shape.threads * 16)
        there = code.at(self.shared, code.add(code.mul(self.thread, number(16)), offset))
        self.matrices[n, k] = there
        code.write(four, there, 16)

    # ---- a step

    def product(self, node: Node, parity: Value, first: int) -> list[Elements]:
        """Writes the sums of products of a node for the thread's elements. The order of the additions depends
        on the number of units and on the schedule's numbers, chains and parts alone.

        first: the number of sums of the phase that are in shared memory before this node's.
        """
        lefts, sides = node.sides
        gates = len(node.types)
        zero: Elements = [ir.Constant(F32, 0.0)] * 4
        sums: list[list[Elements]] = [[zero] * self.schedule.chains for _ in range(gates)]
        depth = 0 if self.schedule.without == "products" else self.shape.depth
        for place, left in enumerate(lefts):
            for k in range(depth):
                b = [self.halves(self.read_state(left, parity, k, r)) for r in (0, 1)]
                for gate in range(gates):
                    a = self.operand(sides[gate * len(lefts) + place], k)
                    self.multiply(sums[gate], a, b, k)
        totals = [self.total(chains) for chains in sums]
        return totals if self.schedule.parts == 1 else self.joined(totals, first)

    def joined(self, totals: list[Elements], first: int) -> list[Elements]:
        """Writes the sums of the parts of a product, in order, for the thread's elements."""
        code, number = self.code, self.code.number

        def place(gate: int, element: Value, warp: Value) -> Value:
            """Writes the address of an element of a sum of one warp, as the same lane has it."""
            row = code.add(code.mul(number(first + gate), number(4)), element)
            row = code.add(code.mul(row, number(self.shape.warps)), warp)
            offset = code.mul(code.add(code.mul(row, number(LANES)), self.lane), number(4))
            return code.at(self.shared, code.add(offset, number(self.shape.states_bytes)))

        for gate, total in enumerate(totals):
            for e in range(4):
                code.write(total[e], place(gate, number(e), self.warp), 4)
        self.call("barrier", VOID)
        warps = [
            code.add(code.mul(self.local_tile, number(self.schedule.parts)), number(part))
            for part in range(self.schedule.parts)
        ]
        return [
            self.total([[code.read(F32, place(gate, e, warp), 4) for e in self.places] for warp in warps])
            for gate in range(len(totals))
        ]

    def read_state(self, left: int, parity: Value, k: int, half: int) -> Value:
        """Writes the load of a thread's register of the operand number k of a left operand."""
        units = self.ks(k, half)
        return self.packed(
            [self.code.read(F32, self.state(left, parity, unit, self.quad), 4) for unit in units]
        )

    def operand(self, n: int, k: int) -> list[Elements]:
        """Writes the load of a warp's operand number k of the matrix n, unless it is in registers."""
        a = self.matrices[n, k]
        if isinstance(a, list):
            return a
        four = self.code.read(FOUR, a, 16)
        return [self.halves(self.code.extract_element(four, ir.Constant(I32, r))) for r in range(4)]

    def multiply(self, chains: list[Elements], a: list[Elements], b: list[Elements], k: int) -> None:
        """Writes the products of one operand, each term added to the chain that is its own."""
        terms = ((0, 0), (0, 1), (1, 0))[: self.schedule.terms]
        mma = f"mma{DEPTH[self.schedule.numbers]}"
        for term, (i, j) in enumerate(terms):
            chain = (term + len(terms) * k) % len(chains)
            quad = self.call(mma, QUAD, *(v[i] for v in a), *(v[j] for v in b), *chains[chain])
            chains[chain] = [self.code.extract_value(quad, e) for e in range(4)]

    def total(self, chains: list[Elements]) -> Elements:
        """Writes the sum of the chains of a product."""
        first, *others = chains
        for other in others:
            first = elements(self.code.fadd(a, b) for a, b in zip(first, other, strict=True))
        return first

    def computed(self, n: int, values: dict[int, Elements], products: dict[int, list[Elements]]) -> Elements:
        """Writes a node of the step that is no product."""
        node = self.step.body.nodes[n]
        if node.operation == "result":
            return products[node.inputs[0]][node.attributes["of"]]
        if self.schedule.functions == "fast" and node.operation in APPROXIMATE:
            return [APPROXIMATE[node.operation](self.code, x) for x in values[node.inputs[0]]]
        dtypes = [self.step.body.type_of(i).dtype for i in node.inputs]
        return [
            pointwise(self.code, node, [values[i][e] for i in node.inputs], dtypes)
            for e in range(self.shape.elements)
        ]

    def turn(self, t: Value, carried: list[Value]) -> list[Value]:
        """Writes as many steps as are read ahead. carried: the memories, then the values of these steps."""
        code, size = self.code, self.shape.elements
        count = len(self.step.memories) * size
        memories, frames = carried[:count], carried[count:]
        following = list[Value]()
        each = len(self.step.sequences) * size
        for place in range(self.schedule.ahead):
            now = code.add(t, code.number(place))
            following += self.frames(code.add(now, code.number(self.schedule.ahead)))
            memories = self.one_step(now, memories, frames[each * place : each * (place + 1)])
        return [*memories, *following]

    def one_step(self, t: Value, memories: list[Value], frames: list[Value]) -> list[Value]:
        """Writes one step; returns the memories after it, which stay as they are after a sequence's end."""
        code, number, step, size = self.code, self.code.number, self.step, self.shape.elements
        parity, later = code.and_(t, number(1)), code.and_(code.add(t, number(1)), number(1))
        values = dict(self.values)
        for numbers, given in ((step.memories, memories), (step.sequences, frames)):
            for place, n in enumerate(numbers):
                values[n] = given[size * place : size * (place + 1)]
        live = elements(code.icmp_signed("<", t, n) for n in self.lengths)
        following = dict(zip(step.memories, step.following, strict=True))
        after, products = dict[int, Elements](), dict[int, list[Elements]]()
        done = int(bool(self.held))  # the exchange before the loop
        self.wait_for_cluster(self.held)
        for position, phase in enumerate(step.loop):
            sums = 0
            for n in phase:
                node = step.body.nodes[n]
                if node.kind == "matmul":
                    products[n] = self.product(node, parity, sums)
                    sums += len(node.types)
                    if node.operation == "matmul":
                        values[n] = products[n][0]
                else:
                    values[n] = self.computed(n, values, products)
            shown = {n: values[n] for n in phase if n in step.lefts}
            if position == len(step.loop) - 1:
                after = {
                    m: elements(code.select(*each) for each in zip(live, values[f], values[m], strict=True))
                    for m, f in following.items()
                }
                shown |= {m: after[m] for m in self.held}
            before = code.add(number(done), code.mul(t, number(step.exchanges)))
            done += bool(shown)
            self.publish(shown, lambda left: later if left in following else parity, before)
            self.wait_for_cluster([n for n in shown if n not in following])
        self.write_outputs(t, values, live)
        return [*chain.from_iterable(after.values())]

    def write_outputs(self, t: Value, values: dict[int, Elements], live: list[Value]) -> None:
        """Writes stores of the step's outputs, of the sequences that have not ended."""
        for e in range(self.shape.elements):
            with self.code.when(live[e]):
                for place, output in enumerate(self.step.outputs):
                    at = self.element(f"y{place}", self.code.add(self.starts[e], t), self.units[e])
                    self.code.write(values[output][e], at, 4)

    def write(self) -> None:
        """Writes the whole kernel: what is loaded once, the loop over steps, the last memories."""
        code, number, step, size = self.code, self.code.number, self.step, self.shape.elements
        if self.schedule.exchange == "cluster":  # no block writes to one that has not begun
            self.call("arrive", VOID)
            self.call("wait", VOID)
        self.load_constants()
        memories = {
            m: [
                code.read(F32, self.element(f"h{place}", self.slots[e], self.units[e]), 4)
                for e in range(size)
            ]
            for place, m in enumerate(step.memories)
        }
        self.publish({m: memories[m] for m in self.held}, lambda left: number(0), number(0))
        steps = code.read_number(self.arrays["longest"], self.group)
        frames = [value for t in range(self.schedule.ahead) for value in self.frames(number(t))]
        begun = [*chain.from_iterable(memories.values()), *frames]
        last = code.carry(0, steps, begun, self.turn, step=self.schedule.ahead)
        for place in range(len(step.memories)):
            for e in range(size):
                code.write(
                    last[size * place + e], self.element(f"last{place}", self.slots[e], self.units[e]), 4
                )
        self.wait_for_cluster(self.held)  # for the exchange of the last step
        code.ret_void()
