"""Writes a kernel as LLVM code. The text does not depend on whether it will run on a GPU or in the emulation.

A thread holds a value as up to four elements: of 2 units x 2 sequences. Left operands of products are in
shared memory as [unit][sequence], each in two places, which alternate from step to step, so that a step needs
one barrier.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from llvmlite import ir

from bench.gpu.device_functions import F32, FOUR, QUAD, SCALAR, VOID
from bench.gpu.fast_functions import FAST
from bench.gpu.inputs import COUNTER_BYTES, ROWS
from bench.gpu.shape import DEPTH, LANES, UNITS, Shape
from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I1, I32, I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise

Value = ir.Value
Elements = list[Value]
"""A value of the step as a thread holds it, or the 4 sums of a product."""
AT_ONCE = 8
"""The pieces of 16 bytes that a thread reads from the second cache before it writes them to shared memory."""


def written(shape: Shape) -> str:
    """Returns the kernel of a shape as the text of an LLVM module, with one function `kernel` of one pointer:
    to the addresses of `Shape.argument_names`.
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
        self.part, tile = (
            code.srem(warp, number(self.schedule.parts)),
            code.sdiv(warp, number(self.schedule.parts)),
        )
        self.lane, self.warp, self.local_tile = lane, warp, tile
        self.share = share
        self.tile = code.mul(code.add(code.mul(share, number(shape.tiles)), tile), number(UNITS))
        self.first_k = code.mul(self.part, number(shape.step.width // self.schedule.parts))
        self.places = [
            code.add(code.mul(self.part, number(shape.elements)), number(e)) for e in range(shape.elements)
        ]
        self.units = [
            code.add(self.tile, code.add(self.quad, code.mul(code.lshr(e, number(1)), number(8))))
            for e in self.places
        ]
        self.rows = [
            code.add(code.add(self.in_quad, self.in_quad), code.and_(e, number(1))) for e in self.places
        ]
        self.slots = [code.add(code.mul(self.group, number(ROWS)), row) for row in self.rows]
        self.starts = [code.read_number(self.arrays["starts"], slot) for slot in self.slots]
        self.lengths = [code.read_number(self.arrays["lengths"], slot) for slot in self.slots]
        self.lasts = [
            code.select(code.icmp_signed(">", n, number(0)), code.sub(n, number(1)), number(0))
            for n in self.lengths
        ]
        self.shared = self.call("shared", POINTER)
        self.values, self.matrices = dict[int, Elements](), dict[tuple[int, int], Value | list[Elements]]()
        self.held = [m for m in self.step.memories if m in self.step.lefts]

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
        place = code.add(
            code.mul(code.add(code.mul(place, number(self.step.width)), unit), number(ROWS)), row
        )
        return code.mul(place, number(4))

    def state(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the address of an element of a left operand in shared memory."""
        return self.code.at(self.shared, self.state_offset(left, parity, unit, row))

    def exchanged(self, offset: Value) -> Value:
        """Writes the address of an offset among the states in the memory of a group."""
        code = self.code
        base = code.mul(self.group, code.number(4 * self.shape.exchange_floats))
        if self.schedule.exchange == "tagged":
            offset = code.add(offset, offset)
        return code.at(self.arrays["exchange"], code.add(base, offset))

    def frames(self, t: Value) -> Elements:
        """Writes loads of the step's values of all sequences; beyond the end of a sequence, its last ones."""
        at = [
            self.code.add(s, self.code.smaller(t, last))
            for s, last in zip(self.starts, self.lasts, strict=True)
        ]
        return [
            self.code.read(F32, self.element(f"x{place}", at[e], self.units[e]), 4)
            for place in range(len(self.step.sequences))
            for e in range(self.shape.elements)
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

    # ---- exchange

    def publish(self, values: dict[int, Elements], parity_of: Callable[[int], Value], turn: Value) -> None:
        """Writes the exchange that makes values of all units visible to all warps of the group.

        parity_of: for a left operand, which of its two places they go to. turn: the exchanges before this
        one.
        """
        if not values:  # a step without products needs no barrier
            return
        code = self.code
        if self.schedule.exchange == "tagged":
            for left, value in values.items():
                self.tag(left, value, parity_of(left), turn)
            for left in values:
                self.fetch_tagged(left, parity_of(left), turn)
            self.call("barrier", VOID)
            return
        for left, value in values.items():
            for e in range(self.shape.elements):
                offset = self.state_offset(left, parity_of(left), self.units[e], self.rows[e])
                grid = self.schedule.exchange == "grid"
                code.write(value[e], self.exchanged(offset) if grid else code.at(self.shared, offset), 4)
        if self.schedule.without != "barrier":
            self.call("barrier", VOID)
        if self.schedule.exchange == "cluster":
            for left in values:
                self.spread(left, parity_of(left))
            self.call("arrive", VOID)
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
        first = self.state_offset(left, parity, self.code.number(0), self.code.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pieces of 16 bytes, all of which are read first."""
            offsets = [self.code.add(first, self.code.mul(piece, self.code.number(16))) for piece in pieces]
            read = [self.call("from_cache", FOUR, self.exchanged(offset)) for offset in offsets]
            for offset, four in zip(offsets, read, strict=True):
                self.code.write(four, self.code.at(self.shared, offset), 16)

        self.by_pieces(self.shape.state_floats // 4, copy)

    def by_pieces(self, count: int, write: Callable[[list[Value]], None]) -> None:
        """Writes the code for a thread's pieces out of `count`, several at a time."""
        code, threads = self.code, self.shape.threads
        mine = [code.add(self.thread, code.number(threads * i)) for i in range(count // threads)]
        for begin in range(0, len(mine), AT_ONCE):
            write(mine[begin : begin + AT_ONCE])
        if count % threads:
            with code.when(code.icmp_signed("<", self.thread, code.number(count % threads))):
                write([code.add(self.thread, code.number(threads * len(mine)))])

    def tag(self, left: int, value: Elements, parity: Value, turn: Value) -> None:
        """Writes values to the memory of the group, each with the number of its exchange beside it."""
        mark = self.code.trunc(self.code.add(turn, self.code.number(1)), I32)
        for e in range(self.shape.elements):
            offset = self.state_offset(left, parity, self.units[e], self.rows[e])
            self.call("write_tagged", VOID, self.exchanged(offset), value[e], mark)

    def fetch_tagged(self, left: int, parity: Value, turn: Value) -> None:
        """Writes the copy of a left operand to shared memory, of values whose tags say they are there."""
        code = self.code
        mark = code.trunc(code.add(turn, code.number(1)), I32)
        first = self.state_offset(left, parity, code.number(0), code.number(0))

        def copy(pieces: list[Value]) -> None:
            """Writes the copy of some pairs of values, which are read again until all of them have come."""
            offsets = [code.add(first, code.mul(piece, code.number(8))) for piece in pieces]
            read, again, after = (code.append_basic_block(name) for name in ("read", "again", "come"))
            code.branch(read)
            code.position_at_end(read)
            pairs = [self.call("read_tagged", QUAD, self.exchanged(offset)) for offset in offsets]
            come: Value = ir.Constant(I1, 1)
            for pair in pairs:
                for place in (1, 3):
                    tag = code.bitcast(code.extract_value(pair, place), I32)
                    come = code.and_(come, code.icmp_signed("==", tag, mark))
            code.cbranch(come, after, again)
            code.position_at_end(again)
            self.call("pause", VOID)
            code.branch(read)
            code.position_at_end(after)
            for offset, pair in zip(offsets, pairs, strict=True):
                for place in (0, 1):
                    value = code.extract_value(pair, 2 * place)
                    code.write(value, code.at(self.shared, code.add(offset, code.number(4 * place))), 4)

        self.by_pieces(self.shape.state_floats // 2, copy)

    def spread(self, left: int, parity: Value) -> None:
        """Writes the copy of the block's own share of a left operand to the shared memory of the other
        blocks.
        """
        code, number = self.code, self.code.number
        pieces = self.shape.state_floats // 4 // self.schedule.blocks
        share = self.state_offset(
            left, parity, code.mul(self.share, number(self.shape.tiles * UNITS)), number(0)
        )
        with code.loop(self.thread, number(pieces * (self.schedule.blocks - 1)), self.shape.threads) as i:
            piece, other = code.srem(i, number(pieces)), code.sdiv(i, number(pieces))
            rank = code.srem(code.add(self.share, code.add(other, number(1))), number(self.schedule.blocks))
            offset = code.add(share, code.mul(piece, number(16)))
            four = code.read(FOUR, code.at(self.shared, offset), 16)
            self.call("write_to", VOID, code.trunc(rank, I32), code.trunc(offset, I32), four)

    def wait_for_cluster(self, lefts: Sequence[int]) -> None:
        """Writes the wait for what all blocks of the cluster have written, if there is a cluster."""
        if self.schedule.exchange == "cluster" and lefts:
            self.call("wait", VOID)

    # ---- a step

    def product(self, node: Node, parity: Value, first: int) -> list[Elements]:
        """Writes the sums of products of a node for the thread's elements. The order of the additions depends
        on the number of units and on the schedule's numbers, chains and parts alone.

        first: the number of sums of the phase that are in shared memory before this node's.
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
            first = [self.code.fadd(a, b) for a, b in zip(first, other, strict=True)]
        return first

    def computed(self, n: int, values: dict[int, Elements], products: dict[int, list[Elements]]) -> Elements:
        """Writes a node of the step that is no product."""
        node = self.step.body.nodes[n]
        if node.operation == "result":
            return products[node.inputs[0]][node.attributes["of"]]
        if self.schedule.functions == "fast" and node.operation in FAST:
            return [FAST[node.operation](self.code, x) for x in values[node.inputs[0]]]
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
        live = [code.icmp_signed("<", t, n) for n in self.lengths]
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
                    m: [code.select(a, b, c) for a, b, c in zip(live, values[f], values[m], strict=True)]
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
