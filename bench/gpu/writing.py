"""Writes a kernel as LLVM code. The text does not depend on whether it will run on a GPU or in the emulation.

A thread holds a value as four elements: its 2 units x 2 sequences. Left operands of products are in shared memory
as [unit][sequence], each in two places, which alternate from step to step, so that a step needs one barrier.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from bench.gpu.device_functions import F32, FOUR, QUAD, SCALAR, VOID
from bench.gpu.inputs import COUNTER_BYTES, ROWS
from bench.gpu.shape import DEPTH, LANES, UNITS, Shape
from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise

Value = ir.Value
Elements = list[Value]
"""A value of the step as a thread holds it: 4 elements."""
AT_ONCE = 8
"""The pieces of 16 bytes that a thread reads from the second cache before it writes them to shared memory."""


def written(shape: Shape) -> str:
    """Returns the kernel of a shape as the text of an LLVM module, with one function `kernel` of one pointer: to
    the addresses of `Shape.argument_names`.
    """
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER]), "kernel")
    Writer(shape, Code(function.append_basic_block("entry"), SCALAR), function.args[0]).write()
    return str(module)


class Writer:
    """Writer of one kernel: its thread's place among units and sequences, and the parts of a step."""

    def __init__(self, shape: Shape, code: Code, arguments: Value) -> None:
        """Writes the code that finds a thread's units and sequences. arguments: the kernel's argument."""
        self.shape, self.step, self.schedule, self.code = shape, shape.step, shape.schedule, code
        number = code.number
        self.arrays = {
            name: self.call("in_main", POINTER, code.read(POINTER, code.at(arguments, 8 * place), 8))
            for place, name in enumerate(shape.argument_names)
        }
        self.narrow_thread = self.call("thread", I32)
        self.thread = code.zext(self.narrow_thread, I64)
        block = code.zext(self.call("block", I32), I64)
        self.group = code.sdiv(block, number(self.schedule.blocks))
        share = code.srem(block, number(self.schedule.blocks))
        lane, warp = code.and_(self.thread, number(LANES - 1)), code.lshr(self.thread, number(5))
        self.quad, self.in_quad = code.lshr(lane, number(2)), code.and_(lane, number(3))
        self.tile = code.mul(code.add(code.mul(share, number(shape.warps)), warp), number(UNITS))
        self.units = [code.add(self.tile, code.add(self.quad, number(8 * (e >> 1)))) for e in range(4)]
        self.rows = [code.add(code.add(self.in_quad, self.in_quad), number(e & 1)) for e in range(4)]
        self.slots = [code.add(code.mul(self.group, number(ROWS)), row) for row in self.rows]
        self.starts = [code.read_number(self.arrays["starts"], slot) for slot in self.slots]
        self.lengths = [code.read_number(self.arrays["lengths"], slot) for slot in self.slots]
        self.lasts = [
            code.select(code.icmp_signed(">", n, number(0)), code.sub(n, number(1)), number(0)) for n in self.lengths
        ]
        self.shared = self.call("shared", POINTER)
        self.values, self.matrices = dict[int, Elements](), dict[tuple[int, int], Value | list[Elements]]()
        self.windows = list[Value]()

    # ---- addresses

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        """Writes a call of a device function."""
        return self.code.function_call(name, result, list(arguments))

    def element(self, array: str, index: Value, unit: Value) -> Value:
        """Writes the address of a unit of an element of an array of float32[width]."""
        code = self.code
        place = code.add(code.mul(index, code.number(self.step.width)), unit)
        return code.at(self.arrays[array], code.mul(place, code.number(4)))

    def state_offset(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the offset in bytes of an element of a left operand among the states of a group."""
        code, number = self.code, self.code.number
        place = code.add(parity, number(2 * self.step.lefts.index(left)))
        place = code.add(code.mul(code.add(code.mul(place, number(self.step.width)), unit), number(ROWS)), row)
        return code.add(code.mul(place, number(4)), number(self.shape.ready_bytes))

    def state(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the address of an element of a left operand in shared memory."""
        return self.code.at(self.shared, self.state_offset(left, parity, unit, row))

    def exchanged(self, offset: Value) -> Value:
        """Writes the address of an offset among the states in the memory of a group."""
        code = self.code
        base = code.mul(self.group, code.number(4 * self.shape.exchange_floats))
        return code.at(self.arrays["exchange"], code.add(base, offset))

    def frames(self, t: Value) -> Elements:
        """Writes loads of the step's values of all sequences; beyond the end of a sequence, its last ones."""
        at = [self.code.add(s, self.code.smaller(t, last)) for s, last in zip(self.starts, self.lasts, strict=True)]
        return [
            self.code.read(F32, self.element(f"x{place}", at[e], self.units[e]), 4)
            for place in range(len(self.step.sequences))
            for e in range(4)
        ]

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
                self.values[n] = [ir.Constant(F32, float(node.attributes["value"].value))] * 4

    def ks(self, k: int, half: int) -> list[Value]:
        """Writes the numbers of the rows of a thread's register in the operand number k: one row, or two packed."""
        code, number, first = self.code, self.code.number, DEPTH[self.schedule.numbers] * k
        if self.schedule.numbers == "bfloat16":
            pair = code.add(code.add(self.in_quad, self.in_quad), number(first + 8 * half))
            return [pair, code.add(pair, number(1))]
        return [code.add(self.in_quad, number(first + 4 * half))]

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
        offset = number(self.shape.states_bytes + place * self.shape.threads * 16)
        there = code.at(self.shared, code.add(code.mul(self.thread, number(16)), offset))
        self.matrices[n, k] = there
        code.write(four, there, 16)

    # ---- exchange

    def publish(self, values: dict[int, Elements], parity_of: Callable[[int], Value], turn: Value) -> None:
        """Writes the exchange that makes values of all units visible to all warps of the group.

        parity_of: for a left operand, which of its two places they go to. turn: the exchanges before this one.
        """
        if not values:  # a step without products needs no barrier
            return
        if self.schedule.exchange == "cluster":
            self.push(values, parity_of)
            return
        code = self.code
        for left, value in values.items():
            for e in range(4):
                offset = self.state_offset(left, parity_of(left), self.units[e], self.rows[e])
                grid = self.schedule.exchange == "grid"
                code.write(value[e], self.exchanged(offset) if grid else code.at(self.shared, offset), 4)
        if self.schedule.without != "barrier":
            self.call("barrier", VOID)
        if self.schedule.exchange == "grid":
            if self.schedule.without != "barrier":
                self.wait_for_group(turn)
            for left in values:
                self.fetch(left, parity_of(left))
            self.call("barrier", VOID)

    def wait_for_group(self, turn: Value) -> None:
        """Writes a barrier of all blocks of the group: each counts itself, and waits until all have."""
        code = self.code
        counter = code.at(self.arrays["counters"], code.mul(self.group, code.number(COUNTER_BYTES)))
        goal = code.trunc(code.mul(code.add(turn, code.number(1)), code.number(self.schedule.blocks)), I32)
        with code.when(code.icmp_signed("==", self.thread, code.number(0))):
            self.call("release", VOID, counter)
            with code.loop_while(lambda: code.icmp_signed("<", self.call("acquire", I32, counter), goal)):
                pass
        self.call("barrier", VOID)

    def fetch(self, left: int, parity: Value) -> None:
        """Writes the copy of a left operand from the memory of the group to shared memory."""
        code, number = self.code, self.code.number
        first = self.state_offset(left, parity, number(0), number(0))
        pieces = self.shape.state_floats // 4 // self.shape.threads
        offsets = [
            code.add(first, code.mul(code.add(self.thread, number(self.shape.threads * i)), number(16)))
            for i in range(pieces)
        ]
        for begin in range(0, pieces, AT_ONCE):
            some = offsets[begin : begin + AT_ONCE]
            read = [self.call("from_cache", FOUR, self.exchanged(offset)) for offset in some]
            for offset, four in zip(some, read, strict=True):
                code.write(four, code.at(self.shared, offset), 16)

    def push(self, values: dict[int, Elements], parity_of: Callable[[int], Value]) -> None:
        """Writes the exchange within a cluster: values go to the shared memory of all its blocks, and are counted
        there. Who has counted all of them goes on; there is no barrier.
        """
        code, number = self.code, self.code.number
        for left, value in values.items():
            parity = parity_of(left)
            count = code.trunc(self.count_offset(left, parity), I32)
            with code.when(code.icmp_signed("==", self.thread, number(0))):
                self.call("arm", VOID, count, ir.Constant(I32, 4 * self.shape.state_floats))
            for pair in (0, 2):
                offset = code.trunc(self.state_offset(left, parity, self.units[pair], self.rows[pair]), I32)
                for window in self.windows:
                    self.call("push", VOID, window, offset, value[pair], value[pair + 1], count)

    def count_offset(self, left: int, parity: Value) -> Value:
        """Writes the offset of the count of the pushed bytes of one of the two places of a left operand."""
        code, number = self.code, self.code.number
        return code.mul(code.add(parity, number(2 * self.step.lefts.index(left))), number(8))

    def wait_for_pushes(self, lefts: Sequence[int], parity: Value, round_: Value) -> None:
        """Writes the wait for all values of left operands that this and other blocks push.

        round_: how often this place of the operands has been filled before.
        """
        code = self.code
        for left in lefts:
            count = code.trunc(self.count_offset(left, parity), I32)
            self.call("wait", VOID, count, code.trunc(code.and_(round_, code.number(1)), I32))

    def begin_cluster(self) -> None:
        """Writes the start of a cluster: the counts of pushed bytes, and the windows to the other blocks."""
        if self.schedule.exchange != "cluster":
            return
        code = self.code
        with code.when(code.icmp_signed("==", self.thread, code.number(0))):
            for place in range(2 * len(self.step.lefts)):
                self.call("begin", VOID, ir.Constant(I32, 8 * place))
        self.call("meet_cluster", VOID)
        self.windows = [self.call("window", I32, ir.Constant(I32, rank)) for rank in range(self.schedule.blocks)]

    # ---- a step

    def product(self, node: Node, parity: Value) -> list[Elements]:
        """Writes the sums of products of a node for the thread's elements. The order of the additions depends on
        the number of units and on the schedule's numbers and chains alone.
        """
        lefts, sides = node.sides
        gates = len(node.types)
        zero = [ir.Constant(F32, 0.0)] * 4
        sums: list[list[Elements]] = [[zero] * self.schedule.chains for _ in range(gates)]
        depth = 0 if self.schedule.without == "products" else self.shape.depth
        for place, left in enumerate(lefts):
            for k in range(depth):
                b = [self.halves(self.read_state(left, parity, k, r)) for r in (0, 1)]
                for gate in range(gates):
                    a = self.operand(sides[gate * len(lefts) + place], k)
                    self.multiply(sums[gate], a, b, k)
        return [self.total(chains) for chains in sums]

    def read_state(self, left: int, parity: Value, k: int, half: int) -> Value:
        """Writes the load of a thread's register of the operand number k of a left operand."""
        units = self.ks(k, half)
        return self.packed([self.code.read(F32, self.state(left, parity, unit, self.quad), 4) for unit in units])

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
            first = [self.code.fadd(a, b) for a, b in zip(first, other, strict=True)]
        return first

    def computed(self, n: int, values: dict[int, Elements], products: dict[int, list[Elements]]) -> Elements:
        """Writes a node of the step that is no product."""
        node = self.step.body.nodes[n]
        if node.operation == "result":
            return products[node.inputs[0]][node.attributes["of"]]
        dtypes = [self.step.body.type_of(i).dtype for i in node.inputs]
        return [pointwise(self.code, node, [values[i][e] for i in node.inputs], dtypes) for e in range(4)]

    def turn(self, t: Value, carried: list[Value]) -> list[Value]:
        """Writes one step. carried: the memories, then the values of this step and of the next ones."""
        code, number, step = self.code, self.code.number, self.step
        parity, later = code.and_(t, number(1)), code.and_(code.add(t, number(1)), number(1))
        values = dict(self.values)
        for place, n in enumerate((*step.memories, *step.sequences)):
            values[n] = carried[4 * place : 4 * place + 4]
        first = 4 * len(step.memories)
        taken = first + 4 * len(step.sequences)
        frames = [*carried[taken:], *self.frames(code.add(t, number(self.schedule.ahead)))]
        live = [code.icmp_signed("<", t, n) for n in self.lengths]
        following = dict(zip(step.memories, step.following, strict=True))
        after, products = dict[int, Elements](), dict[int, list[Elements]]()
        held = [left for left in step.lefts if left in following]
        self.wait_if_pushed(held, parity, code.lshr(t, number(1)))
        done = int(bool(held))  # the exchange before the loop
        for position, phase in enumerate(step.loop):
            for n in phase:
                node = step.body.nodes[n]
                if node.kind == "matmul":
                    products[n] = self.product(node, parity)
                    if node.operation == "matmul":
                        values[n] = products[n][0]
                else:
                    values[n] = self.computed(n, values, products)
            shown = {n: values[n] for n in phase if n in step.lefts}
            last = position == len(step.loop) - 1
            if last:
                after = {
                    m: [code.select(live[e], values[f][e], values[m][e]) for e in range(4)]
                    for m, f in following.items()
                }
                shown |= {m: after[m] for m in step.lefts if m in after}
            before = code.add(number(done), code.mul(t, number(step.exchanges)))
            done += bool(shown)
            self.publish(shown, lambda left: later if left in following else parity, before)
            self.wait_if_pushed([n for n in shown if n not in following], parity, code.lshr(t, number(1)))
        self.write_outputs(t, values, live)
        return [*sum(after.values(), []), *frames]

    def wait_if_pushed(self, lefts: Sequence[int], parity: Value, round_: Value) -> None:
        """Writes the wait for pushed values, if values are pushed."""
        if self.schedule.exchange == "cluster" and lefts:
            self.wait_for_pushes(lefts, parity, round_)

    def write_outputs(self, t: Value, values: dict[int, Elements], live: list[Value]) -> None:
        """Writes stores of the step's outputs, of the sequences that have not ended."""
        for e in range(4):
            with self.code.when(live[e]):
                for place, output in enumerate(self.step.outputs):
                    at = self.element(f"y{place}", self.code.add(self.starts[e], t), self.units[e])
                    self.code.write(values[output][e], at, 4)

    def write(self) -> None:
        """Writes the whole kernel: what is loaded once, the loop over steps, the last memories."""
        code, number, step = self.code, self.code.number, self.step
        self.begin_cluster()
        self.load_constants()
        memories = {
            m: [code.read(F32, self.element(f"h{place}", self.slots[e], self.units[e]), 4) for e in range(4)]
            for place, m in enumerate(step.memories)
        }
        self.publish({m: v for m, v in memories.items() if m in step.lefts}, lambda left: number(0), number(0))
        steps = code.read_number(self.arrays["longest"], self.group)
        frames = [value for t in range(self.schedule.ahead) for value in self.frames(number(t))]
        last = code.carry(0, steps, [*sum(memories.values(), []), *frames], self.turn)
        for place in range(len(step.memories)):
            for e in range(4):
                code.write(last[4 * place + e], self.element(f"last{place}", self.slots[e], self.units[e]), 4)
        if self.schedule.exchange == "cluster":
            self.call("meet_cluster", VOID)  # until here others may push
        code.ret_void()
