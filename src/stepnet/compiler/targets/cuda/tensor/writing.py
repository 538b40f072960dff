"""Writes a loop on tensor cores: the step, the loop over steps, and the loop over batches of sequences."""

from itertools import chain
from math import lcm

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cpu.writing.code import I64, register_type, splat
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.tensor.approximate import APPROXIMATE
from stepnet.compiler.targets.cuda.tensor.places import Elements, TensorPlaces, elements
from stepnet.compiler.targets.cuda.tensor.products import TensorProductWriter
from stepnet.compiler.targets.cuda.tensor.shape import LAUNCHED, ROWS, TensorShape
from stepnet.compiler.targets.cuda.tensor.step import FeaturePiece
from stepnet.compiler.targets.cuda.writer import VOID, Value


def loop_code(shape: TensorShape) -> LoopCode:
    """Writes the loop of a step by a schedule."""
    schedule = shape.schedule
    code = TensorLoopWriter(shape).written()
    return LoopCode(code, schedule.text, ROWS, shape.scratch, shape.zeros)


class TensorLoopWriter(TensorProductWriter):
    """Writer of one loop: what it loads once, the step, the loops over steps and over batches."""

    def written(self) -> DeviceCode:
        """Writes the kernel: parameters, and the loop over the batches of 8 sequences of a group."""
        if self.schedule.exchange == "cluster":  # no block writes to one that has not begun
            self.function_call("arrive", VOID, [])
            self.function_call("wait", VOID, [])
        self.load_matrices()
        self.values |= self.constants()
        batches = self.sdiv(self.add(self.word("rows"), self.number(ROWS - 1)), self.number(ROWS))
        stride = self.sub(self.groups, self.number(1))
        most = self.add(self.sub(batches, self.group), stride)
        turns = self.sdiv(self.low(most), self.low(self.groups))  # of 64 bits it would be a call, with spills
        self.carry(
            0, self.sext(turns, I64), [self.number(0)], lambda turn, before: [self.batch(turn, *before)]
        )
        launched = LAUNCHED[self.schedule.exchange]
        return self.finished(self.shape.threads, self.shape.shared_bytes, self.schedule.blocks, launched)

    def constants(self) -> dict[int, Elements]:
        """Writes loads of the parameters that are no matrices, and the numbers that are part of the step."""
        body, found = self.step.body, dict[int, Elements]()
        for n in self.step.vectors:
            if body.type_of(n).extent == CONST:
                zeros = [self.number(0)] * self.shape.elements
                found[n] = self.read_features(n, self.other(n), zeros)
        for n, node in enumerate(body.nodes):
            if node.operation == "constant":
                found[n] = [constant(node)] * self.shape.elements
        return found

    def other(self, n: int) -> str:
        """Returns the name of the argument that is a static or a parameter."""
        return f"c{self.step.others.index(self.step.origin(n)[0])}"

    # ---- a batch of sequences

    def batch(self, turn: Value, exchanged: Value) -> Value:
        """Writes all steps of a batch of 8 sequences; returns the number of exchanges until then.

        turn: the number of batches that the group has done before. exchanged: its exchanges before.
        """
        step, one = self.step, self.number(1)
        its = self.sequences_of(self.add(self.group, self.mul(turn, self.groups)))
        for n in step.vectors:
            if step.body.type_of(n).extent != CONST:
                self.values[n] = self.read_features(n, self.other(n), its.rows)
        memories = {m: self.initial(place, its) for place, m in enumerate(step.memories)}
        if step.held:
            self.publish({m: memories[m] for m in step.held}, lambda left: self.number(0), exchanged)
            exchanged = self.add(exchanged, one)
        steps = self.steps_of(its)
        begun = [*chain.from_iterable(memories.values()), *self.first_frames(its)]
        last = self.carry(
            0,
            steps,
            begun,
            lambda t, carried: self.turn(its, exchanged, t, carried),
            step=self.schedule.ahead,
        )
        self.write_last(its, last)
        self.wait_for_cluster(step.held)  # for the exchange of the last step
        exchanged = self.add(exchanged, self.mul(steps, self.number(step.exchanges)))
        if step.held and LAUNCHED[self.schedule.exchange] == "grid":  # so that places alternate
            size = self.shape.elements
            values = {m: last[size * place : size * (place + 1)] for place, m in enumerate(step.memories)}
            self.publish({m: values[m] for m in step.held}, lambda left: one, exchanged)
            exchanged = self.add(exchanged, one)
        return exchanged

    def steps_of(self, its: TensorPlaces) -> Value:
        """Writes the steps of a batch: those of its longest sequence and, after its end, as many as make the
        number whole. It is even, so that each batch begins with the first of the two places of an operand.
        """
        whole = lcm(self.schedule.ahead, 2) if self.step.lefts else self.schedule.ahead
        turns = self.sdiv(self.add(its.longest, self.number(whole - 1)), self.number(whole))
        return self.mul(turns, self.number(whole))

    def first_frames(self, its: TensorPlaces) -> Elements:
        """Writes loads of the values of the first steps; zeros if no sequence has a step."""
        ahead, sequences = self.schedule.ahead, self.step.read_sequences
        zeros = [
            splat(register_type(self.step.dtype(n), 1), 0)
            for n in sequences
            for _ in range(self.shape.elements)
        ]
        return self.either(
            self.icmp_signed(">", its.longest, self.number(0)),
            lambda: [value for t in range(ahead) for value in self.frames(its, self.number(t))],
            zeros * ahead,
        )

    def initial(self, place: int, its: TensorPlaces) -> Elements:
        """Writes loads of a memory before the first step; zeros if none is given."""
        n = self.step.memories[place]
        zeros: Elements = [splat(register_type(self.step.dtype(n), 1), 0)] * self.shape.elements
        name = f"h{place}"
        return self.either(self.is_given(name), lambda: self.read_features(n, name, its.rows), zeros)

    def write_last(self, its: TensorPlaces, last: Elements) -> None:
        """Writes stores of the memories after the last step, where they are asked for."""
        size = self.shape.elements
        for place, m in enumerate(self.step.memories):
            with self.when(self.is_given(f"last{place}")):
                piece = FeaturePiece(m, 0, self.step.size(m))
                values = last[size * place : size * (place + 1)]
                self.write_piece(f"last{place}", piece, piece.size, values, its.rows, its.present)

    def write_piece(
        self, array: str, piece: FeaturePiece, size: int, values: Elements, indices: Elements, which: Elements
    ) -> None:
        """Writes stores of a thread's elements of a part of values [size]. indices: of the values in the
        array. which: the elements that are written.
        """
        dtype = self.step.dtype(piece.value)
        for e, unit in enumerate(self.units):
            is_unit = self.is_unit(piece.size, unit)
            with self.by_owners(), self.when(which[e] if is_unit is None else self.and_(which[e], is_unit)):
                feature = self.add(unit, self.number(piece.first))
                place = self.add(self.mul(indices[e], self.number(size)), feature)
                self.write_element(dtype, values[e], self.pointer(array), place)

    # ---- steps

    def turn(self, its: TensorPlaces, exchanged: Value, t: Value, carried: list[Value]) -> list[Value]:
        """Writes as many steps as are read ahead. carried: the memories, then the values of these steps."""
        size, ahead = self.shape.elements, self.schedule.ahead
        count = len(self.step.memories) * size
        memories, frames = carried[:count], carried[count:]
        following = list[Value]()
        each = len(self.step.read_sequences) * size
        for place in range(ahead):
            now = self.add(t, self.number(place))
            following += self.frames(its, self.add(now, self.number(ahead)))
            memories = self.one_step(its, exchanged, now, memories, frames[each * place : each * (place + 1)])
        return [*memories, *following]

    def one_step(
        self, its: TensorPlaces, exchanged: Value, t: Value, memories: list[Value], frames: list[Value]
    ) -> list[Value]:
        """Writes one step; returns the memories after it, which stay as they are after a sequence's end."""
        step, size = self.step, self.shape.elements
        self.know_step(t)
        parity, later = (self.and_(self.add(t, self.number(n)), self.number(1)) for n in (0, 1))
        parities: dict[int, Value] = {left: parity for left in step.lefts}  # noqa: C420 - typed values
        values: dict[int, Elements] = dict(self.values)
        for numbers, given in ((step.memories, memories), (step.read_sequences, frames)):
            for place, n in enumerate(numbers):
                values[n] = given[size * place : size * (place + 1)]
        for n in step.indices:
            values[n] = [self.add(done, t) for done in its.done]
        live = elements(self.icmp_signed("<", t, n) for n in its.lengths)
        after, done = dict[int, Elements](), 0
        self.wait_for_cluster(step.held)
        for position, phase in enumerate(step.phases):
            self.compute(phase, values, parities)
            shown = {n: values[n] for n in phase if n in step.lefts}
            if position == len(step.phases) - 1:
                after = {
                    m: elements(self.select(*each) for each in zip(live, values[f], values[m], strict=True))
                    for m, f in zip(step.memories, step.following, strict=True)
                }
                shown |= {m: after[m] for m in step.held}
            before = self.add(exchanged, self.mul(t, self.number(step.exchanges)))
            turn = self.add(before, self.number(done))
            done += bool(shown)
            self.publish(shown, lambda left: later if left in step.memories else parity, turn)
            self.wait_for_cluster([n for n in shown if n not in step.memories])
        self.write_outputs(its, t, values, live)
        return [*chain.from_iterable(after.values())]

    def compute(self, phase: list[int], values: dict[int, Elements], parities: dict[int, Value]) -> None:
        """Writes the nodes of a phase; adds their values."""
        count, results = 0, dict[int, list[Elements]]()
        for n in phase:
            node = self.step.body.nodes[n]
            if n in self.step.sums:
                results[n] = self.sums(self.step.sums[n], parities, count)
                count += self.step.sums[n].results
                if len(node.types) == 1:
                    values[n] = results[n][0]
            elif node.operation == "result":
                values[n] = results[node.inputs[0]][node.attributes["of"]]
            else:
                values[n] = self.computed(node, values)

    def computed(self, node: Node, values: dict[int, Elements]) -> Elements:
        """Writes a node of the step that is elementwise."""
        roots = [self.step.root(n) for n in node.inputs]
        if node.operation == "broadcast":
            return values[roots[0]]
        dtypes = [self.step.dtype(n) for n in roots]
        if self.schedule.functions == "fast" and node.operation in APPROXIMATE and dtypes[0] == "float32":
            return [APPROXIMATE[node.operation](self, x) for x in values[roots[0]]]
        return [
            pointwise(self, node, [values[n][e] for n in roots], dtypes) for e in range(self.shape.elements)
        ]

    def write_outputs(self, its: TensorPlaces, t: Value, values: dict[int, Elements], live: Elements) -> None:
        """Writes stores of the step's outputs, of the sequences that have not ended."""
        if not self.step.outputs:
            return
        at = self.entries(its, t)
        for place, pieces in enumerate(self.step.outputs):
            name, size = f"y{place}", sum(piece.size for piece in pieces)
            with self.when(self.is_given(name)):
                for piece in pieces:
                    self.write_piece(name, piece, size, values[piece.value], at, live)


def constant(node: Node) -> ir.Constant:
    """Returns the register of a node that is a number."""
    value, dtype = node.attributes["value"].value, node.type.dtype
    bits = value.view("u2") if dtype in ("float16", "bfloat16") else value
    return ir.Constant(register_type(dtype, 1), bits.item())
