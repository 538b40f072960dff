"""Writes a loop on tensor cores: the step, the loop over steps, and the loop over turns of the lanes."""

from itertools import chain

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cpu.writing.code import I1, register_type, splat
from stepnet.compiler.targets.cpu.writing.pointwise import converted, pointwise
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.loops.lane_code import turns_of
from stepnet.compiler.targets.cuda.tensor.approximate import FUNCTIONS
from stepnet.compiler.targets.cuda.tensor.places import Elements, TensorPlaces, elements
from stepnet.compiler.targets.cuda.tensor.plain import PlainProductWriter
from stepnet.compiler.targets.cuda.tensor.shape import LAUNCHED, TensorShape
from stepnet.compiler.targets.cuda.tensor.step import FeaturePiece
from stepnet.compiler.targets.cuda.writer import VOID, Value


def loop_code(shape: TensorShape) -> LoopCode:
    """Writes the loop of a step by a schedule."""
    schedule = shape.schedule
    code = TensorLoopWriter(shape).written()
    return LoopCode(code, schedule.text, schedule.rows, shape.scratch, shape.zeros, shape.whole)


class TensorLoopWriter(PlainProductWriter):
    """Writer of one loop: the loads ahead of it, the step, and the loops over steps and over turns."""

    def written(self) -> DeviceCode:
        """Writes the kernel: parameters, and the loop over the turns of the lanes of a group."""
        if self.schedule.exchange == "cluster":  # no block writes to one that has not begun
            self.function_call("arrive", VOID, [])
            self.function_call("wait", VOID, [])
        self.load_matrices()
        self.values |= self.constants()
        first, count = turns_of(self, self.group)
        zeros = [value for m in self.step.memories for value in self.zeros(m)]
        self.carry(
            0,
            count,
            [self.number(0), *zeros],
            lambda turn, before: self.lanes_turn(self.add(first, turn), before[0], before[1:]),
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

    # ---- a turn of the lanes

    def lanes_turn(self, turn: Value, exchanged: Value, before: list[Value]) -> list[Value]:
        """Writes all steps of a turn of its lanes; returns the exchanges until then, and the memories.

        exchanged: the exchanges of the group before it. before: the memories, of sequences that go on.
        """
        step, one, size = self.step, self.number(1), self.shape.elements
        its = self.places_of(turn)
        for n in step.vectors:
            if step.body.type_of(n).extent != CONST:
                self.values[n] = self.read_features(n, self.other(n), its.rows)
        memories = {
            m: self.initial(place, its, before[size * place : size * (place + 1)])
            for place, m in enumerate(step.memories)
        }
        if step.held:
            self.publish({m: memories[m] for m in step.held}, lambda left: self.number(0), exchanged)
            exchanged = self.add(exchanged, one)
        steps = self.steps_of(its)
        begun = [*chain.from_iterable(memories.values()), *self.first_frames(its)]
        if step.flag is None:
            last = self.carry(
                0,
                steps,
                begun,
                lambda t, carried: self.turn(its, exchanged, t, carried),
                step=self.schedule.ahead,
            )
        else:
            steps, *last = self.steps_to_ends(its, exchanged, begun)
        self.write_last(turn, last)
        self.wait_for_cluster(step.held)  # for the exchange of the last step
        exchanged = self.add(exchanged, self.mul(steps, self.number(step.exchanges)))
        after = last[: size * len(memories)]
        if step.held and LAUNCHED[self.schedule.exchange] == "grid":  # so that places alternate
            values = {m: after[size * place : size * (place + 1)] for place, m in enumerate(step.memories)}
            self.publish({m: values[m] for m in step.held}, lambda left: one, exchanged)
            exchanged = self.add(exchanged, one)
        return [exchanged, *after]

    def steps_of(self, its: TensorPlaces) -> Value:
        """Writes the number of steps of a turn: of the longest lane, rounded up to a multiple of `whole`."""
        whole = self.number(self.shape.whole)
        turns = self.sdiv(self.add(its.longest, self.sub(whole, self.number(1))), whole)
        return self.mul(turns, whole)

    def steps_to_ends(self, its: TensorPlaces, exchanged: Value, begun: list[Value]) -> list[Value]:
        """Writes the steps of a turn whose sequences a flag ends, until all have ended; returns how many
        ran, an even number, and what they carry. All threads of all blocks compute the flags, so they leave
        together.

        begun: the memories and the inputs with which the first step begins.
        """
        ahead = self.schedule.ahead

        def goes_on(carried: list[Value]) -> Value:
            """Writes whether any sequence takes the step, or the number of steps would be odd."""
            t, *given = carried
            some: Value = ir.Constant(I1, 0)
            for takes in self.live(its, t, given):
                some = self.or_(some, takes)
            if ahead % 2 and self.step.lefts:
                some = self.or_(some, self.trunc(t, I1))
            return self.any_of_block(some)

        def turn(carried: list[Value]) -> list[Value]:
            """Writes as many steps as are read ahead."""
            t, *given = carried
            return [self.add(t, self.number(ahead)), *self.turn(its, exchanged, t, given)]

        return self.carry_while([self.number(0), *begun], goes_on, turn)

    def live(self, its: TensorPlaces, t: Value, memories: list[Value]) -> Elements:
        """Writes the flags of the sequences that have not ended at step t. memories: before the step."""
        found = elements(self.icmp_signed("<", self.low(t), n) for n in its.counts)
        if self.step.flag is None:
            return found
        flags = memories[self.shape.elements * self.step.flag :]
        return [self.and_(takes, self.not_(flag)) for takes, flag in zip(found, flags, strict=False)]

    def first_frames(self, its: TensorPlaces) -> Elements:
        """Writes loads of the values of the first steps; zeros if no sequence has a step."""
        ahead, sequences = self.schedule.ahead, self.step.read_sequences
        zeros = [self.number(0)] if self.shape.is_plain else list[Value]()
        zeros += [value for n in sequences for value in self.zeros(n)]
        return self.either(
            self.icmp_signed(">", its.longest, self.number(0)),
            lambda: [value for t in range(ahead) for value in self.frames(its, self.number(t))],
            zeros * ahead,
        )

    def zeros(self, n: int) -> Elements:
        """Returns a thread's elements of a value that is zero."""
        return [splat(register_type(self.step.dtype(n), 1), 0)] * self.shape.elements

    def initial(self, place: int, its: TensorPlaces, before: list[Value]) -> Elements:
        """Writes a memory ahead of the first step of a turn: where a sequence begins its initial memory or
        zeros, elsewhere `before`.
        """
        n, name = self.step.memories[place], f"h{place}"
        given = self.step.dtypes.initial[place]
        begun = self.either(
            self.is_given(name), lambda: self.read_features(n, name, its.rows, given), self.zeros(n)
        )
        return elements(self.select(*each) for each in zip(its.begins, begun, before, strict=True))

    def write_last(self, turn: Value, last: Elements) -> None:
        """Writes stores of the memories of sequences that end in a turn, where they are asked for. What the
        lanes do is read again, so that no register keeps it during the steps.
        """
        its, size = self.places_of(turn), self.shape.elements
        for place, m in enumerate(self.step.memories):
            with self.when(self.is_given(f"last{place}")):
                piece = FeaturePiece(m, 0, self.step.size(m))
                values = last[size * place : size * (place + 1)]
                made, dtype = self.step.dtypes.final[place], self.step.dtype(m)
                values = [converted(self, value, dtype, made) for value in values]
                self.write_piece(f"last{place}", piece, piece.size, values, its.rows, its.ends, made)

    def write_piece(
        self,
        array: str,
        piece: FeaturePiece,
        size: int,
        values: Elements,
        indices: Elements,
        which: Elements,
        dtype: str,
    ) -> None:
        """Writes stores of a thread's elements of a part of values [size]. indices: of the values in the
        array. which: the elements that are written. dtype: theirs, and that of the array.
        """
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
        each = (len(self.step.read_sequences) + self.shape.is_plain) * size
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
        at = None
        if self.shape.is_plain:
            at, frames = frames[:size], frames[size:]
        for numbers, given in ((step.memories, memories), (step.read_sequences, frames)):
            for place, n in enumerate(numbers):
                values[n] = given[size * place : size * (place + 1)]
        for n in step.indices:
            values[n] = [self.add(done, t) for done in its.done]
        live = self.live(its, t, memories)
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
        self.write_outputs(its, t, values, live, at)
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
        function = FUNCTIONS[self.schedule.functions].get(node.operation)
        found: Elements = []
        for e in range(self.shape.elements):
            operands = [values[n][e] for n in roots]
            if function is not None and {*dtypes} == {"float32"}:
                found.append(function(self, *operands))
            else:
                found.append(pointwise(self, node, operands, dtypes))
        return found

    def count_step(self, its: TensorPlaces, t: Value, live: Elements) -> None:
        """Writes the number of steps of the sequences that take a step, by the thread of their first unit."""
        with self.by_owners():
            for unit, row, takes in zip(self.units, its.rows, live, strict=True):
                with self.when(self.and_(takes, self.icmp_signed("==", unit, self.number(0)))):
                    count = self.add(t, self.number(1))
                    self.write_element("int64", count, self.pointer("taken"), row)

    def write_outputs(
        self, its: TensorPlaces, t: Value, values: dict[int, Elements], live: Elements, at: Elements | None
    ) -> None:
        """Writes stores of the step's outputs, of the sequences that have not ended. at: the entries of the
        step, if they are known.
        """
        if self.step.flag is not None:
            self.count_step(its, t, live)
        if not self.step.outputs:
            return
        if self.step.flag is None:
            at = at or self.entries(its, t)
        else:
            at = [self.add(first, time) for first, time in zip(its.placed, self.times(its, t), strict=True)]
        for place, pieces in enumerate(self.step.outputs):
            name, size = f"y{place}", sum(piece.size for piece in pieces)
            with self.when(self.is_given(name)):
                for piece in pieces:
                    dtype = self.step.dtype(piece.value)
                    self.write_piece(name, piece, size, values[piece.value], at, live, dtype)


def constant(node: Node) -> ir.Constant:
    """Returns the register of a node that is a number."""
    value, dtype = node.attributes["value"].value, node.type.dtype
    bits = value.view("u2") if dtype in ("float16", "bfloat16") else value
    return ir.Constant(register_type(dtype, 1), bits.item())
