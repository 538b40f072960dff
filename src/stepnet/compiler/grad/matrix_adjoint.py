"""The gradient of a recurrence whose memory is a matrix, as recurrences of the same form (`matrix_cores.py`).

    forward     r = x S                              S' = a S + p w       w = f(r, ...)
    backward    dw = p dS        dr = dr + f'(dw)    dS = a dS' + x dr     from the last step to the first
                dp = w dS                            dS = a dS' + x dr     likewise; sums over values
                dx = dr S                            S' = a S + p w       from the first step to the last

None reads a matrix that another one saved, and all have the form of the step, with the keys as values in the
last two. So what runs such steps in chunks of steps runs their gradients. Where the matrix decays, that of
the decay reads both matrices of the last two; then one operation, `matrix_gradients`, has all three.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from stepnet.compiler.grad.forward import Forward
from stepnet.compiler.grad.matrix_cores import MatrixCore, ShownElements, matrix_core
from stepnet.compiler.grad.recurrence import transpose
from stepnet.compiler.grad.stretches import is_zeros
from stepnet.compiler.grad.sweep import Sweep
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Net, Recur, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type
from stepnet.compiler.plan.inner import has_inner
from stepnet.compiler.plan.load import FitsChunks, MatrixSizes
from stepnet.compiler.plan.passes.behind_reads import behind_reads
from stepnet.compiler.plan.passes.divide import divide
from stepnet.compiler.plan.passes.outward import Outward
from stepnet.compiler.plan.passes.when import When, when_inside
from stepnet.compiler.plan.schedule import is_nested
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class CoreOperands:
    """The operands of a core, as values of the net around it: at steps, or constants.

    reads, keys: a vector of keys for each read and for each write. decay: of each head, or of each of its
        keys; None for none.
    given: the further values of which what is written is a function.
    """

    reads: tuple[Value, ...]
    keys: tuple[Value, ...]
    decay: Value | None
    given: tuple[Value, ...]

    @property
    def all(self) -> list[Value]:
        """All of them, in one order."""
        return [*self.reads, *self.keys, *([] if self.decay is None else [self.decay]), *self.given]

    def replaced(self, values: Sequence[Value]) -> "CoreOperands":
        """Returns the same operands of another net, from all of them in the order of `all`."""
        first, second = len(self.reads), len(self.reads) + len(self.keys)
        third = second + (self.decay is not None)
        decay = None if self.decay is None else values[second]
        return CoreOperands(tuple(values[:first]), tuple(values[first:second]), decay, tuple(values[third:]))


@dataclass(frozen=True)
class CoreNode:
    """A recurrence that is a core. places: of its operands among its node's inputs, in the order of `all`."""

    core: MatrixCore
    recur: Recur
    operands: CoreOperands
    places: tuple[int, ...]


class MatrixLoop:
    """Maker of a recurrence whose memory is a matrix [heads, keys, values]."""

    def __init__(self, around: Builder, core: MatrixCore) -> None:
        """Begins its body. around: the builder of the net around it."""
        self.around, self.core, self.body = around, core, Builder()
        number = self.body.input(Type(ROWS, core.sizes, "float32"), "matrix")
        self.matrix = Value(self.body, number)
        self.inputs = dict[int, Value]()

    def taken(self, value: Value) -> Value:
        """Returns the input of the body for a value around it: one at steps, or a constant."""
        if value.number not in self.inputs:
            extent = CONST if value.type.extent == CONST else ROWS
            number = self.body.input(Type(extent, value.type.shape, value.type.dtype), "taken")
            self.inputs[value.number] = Value(self.body, number)
        return self.inputs[value.number]

    def next(self, decay: Value | None, keys: Sequence[Value], written: Sequence[Value]) -> Value:
        """Returns the matrix after the step: decayed, and with outer products of vectors added to it."""
        heads, count, values = self.core.sizes
        made = self.matrix
        if decay is not None:
            of_keys = count if self.core.rule.by_key else 1
            made = self.taken(decay).reshape(heads, of_keys, 1) * made
        for key, value in zip(keys, written, strict=True):
            made = made + self.taken(key).reshape(heads, count, 1) * value.reshape(heads, 1, values)
        return made

    def over_keys(self, vector: Value) -> Value:
        """Returns the sum over keys of the matrix times a vector around the recurrence."""
        heads, keys, _ = self.core.sizes
        return (self.matrix * self.taken(vector).reshape(heads, keys, 1)).sum(-2)

    def over_values(self, vector: Value) -> Value:
        """Returns the sum over values of the matrix times a vector around the recurrence."""
        heads, _, values = self.core.sizes
        return (self.matrix * self.taken(vector).reshape(heads, 1, values)).sum(-1)

    def run(
        self, outputs: Sequence[Value], after: Value, initial: Value, reverse: bool, source: str = ""
    ) -> tuple[Recur, int, list[Value], Value]:
        """Adds the recurrence; returns it, its node, its outputs at steps and the last matrix."""
        sequences = [n for n, value in self.inputs.items() if value.type.extent != CONST]
        others = [n for n in self.inputs if n not in sequences]
        order = [*sequences, None, *others]
        inner = [self.matrix.number if n is None else self.inputs[n].number for n in order]
        body = with_inputs(self.body, inner, [*(value.number for value in outputs), after.number])
        recur = Recur(body, len(sequences), 1, reverse=reverse)
        node = recur.add(self.around, [initial.number if n is None else n for n in order], source=source)
        made = [Value(self.around, self.around.add("result", node, of=n)) for n in range(len(outputs) + 1)]
        return recur, node, made[:-1], made[-1]


# ---- cutting the cores out of a net


def with_cores(net: Net, fits: FitsChunks) -> tuple[Net, dict[int, CoreNode]]:
    """Returns a net in which each recurrence that can be trained in chunks is its core, with what is around
    it; and the cores, by the ids of their bodies.
    """
    net = divided(net, fits)
    builder, copy_of, cores = Builder(), dict[int, int](), dict[int, CoreNode]()
    results = dict[int, list[int]]()
    for number, node in enumerate(net.nodes):
        if node.operation == "result" and node.inputs[0] in results:
            copy_of[number] = results[node.inputs[0]][node.attributes["of"]]
            continue
        operands = [copy_of[operand] for operand in node.inputs]
        core = core_in_chunks(net, number, fits) if node.operation == "recur" else ""
        if isinstance(core, str):
            copy_of[number] = builder.copy(node, operands)
        else:
            made, results[number] = CoreCut(builder, core, node.recur, operands).run(node.source)
            cores[id(made.recur.body)] = made
            copy_of[number] = -1
    return builder.net(copy_of[result] for result in net.results), cores


def divided(net: Net, fits: FitsChunks) -> Net:
    """Returns a net whose memories have loops of their own where a matrix then can be trained in chunks."""

    def refuse(recur: Recur) -> str:
        """Returns why the recurrence of a matrix cannot; "" if it can."""
        core = matrix_core(recur)
        return core if isinstance(core, str) else ""

    return net if is_nested(net) else divide(behind_reads(net, fits), fits, refuse)


def core_in_chunks(net: Net, number: int, fits: FitsChunks) -> MatrixCore | str:
    """Returns the core of a recurrence of a net if it can be trained in chunks; or why it cannot, as text."""
    node = net.nodes[number]
    if net.type_of(node.inputs[0]).extent != STEPS:
        return "its sequences are not those of the call"
    if has_inner(node.recur.body):
        return "a step has sequences inside"
    core = matrix_core(node.recur)
    if isinstance(core, str):
        return core
    _, keys, values = core.sizes
    counts = len(core.reads), len(core.keys)
    sizes = MatrixSizes(keys, values, *counts, bool(core.decay), core.rule.by_key)
    return fits(sizes) or core


class CoreCut:
    """Cutting of the core out of one recurrence."""

    def __init__(self, builder: Builder, core: MatrixCore, recur: Recur, operands: list[int]) -> None:
        """Takes the builder of the new net, the recurrence, and its operands there."""
        self.builder, self.core, self.recur, body = builder, core, recur, core.rule.body
        early = replace(recur, body=body)
        fixed = {n for n, time in enumerate(when_inside(early)) if time <= When.PER_SEQUENCE}
        self.outward = Outward(builder, body, STEPS, fixed, dict(zip(body.inputs, operands, strict=True)))
        self.early = early

    def value(self, place: ShownElements) -> Value:
        """Returns an operand of the core, computed around the recurrence: at steps, or a constant."""
        return place.of(Value(self.builder, self.outward.at_steps(place.number)))

    def operands(self) -> CoreOperands:
        """Returns the operands of the core."""
        core, (heads, keys, _) = self.core, self.core.sizes

        def vector(places: Sequence[ShownElements], *shape: int) -> Value:
            """Returns the product of some operands."""
            made = self.value(places[0])
            for place in places[1:]:
                made = made * self.value(place)
            return made.broadcast(*shape)

        of_keys = [keys] if core.rule.by_key else []
        reads = [vector([place], heads, keys).at(STEPS) for place in core.reads]
        return CoreOperands(
            tuple(reads),
            tuple(vector(places, heads, keys) for places in core.keys),
            vector(core.decay, heads, *of_keys) if core.decay else None,
            tuple(self.value(place) for place in core.given),
        )

    def run(self, source: str) -> tuple[CoreNode, list[int]]:
        """Adds the core and what is around it; returns it, and the results of the whole recurrence."""
        core, early, outward, operands = self.core, self.early, self.outward, self.operands()
        loop = MatrixLoop(self.builder, core)
        reads = [loop.over_keys(vector) for vector in operands.reads]
        written = function_of(core, loop.body, reads, [loop.taken(value) for value in operands.given])
        after = loop.next(operands.decay, operands.keys, written)
        (memory,) = early.memories
        initial = core.inward(Value(self.builder, outward.outside[memory]))
        recur, node, made, last = loop.run(reads, after, initial, early.reverse, source)
        for read, value in zip(core.rule.reads, made, strict=True):
            shape = core.rule.body.type_of(read.number).shape
            outward.outside[read.number] = value.reshape(*shape).number
        inputs = self.builder.nodes[node].inputs
        places = tuple(inputs.index(value.number) for value in operands.all)
        found = [outward.at_steps(number) for number in early.outputs]
        return CoreNode(core, recur, operands, places), [*found, core.outward(last).number]


def function_of(
    core: MatrixCore, builder: Builder, reads: Sequence[Value], given: Sequence[Value]
) -> list[Value]:
    """Adds the values that a step writes to a net; returns them."""
    net = core.function
    copied = copy_of_function(net, builder, [*reads, *given])
    return [Value(builder, copied.copy_of[number]) for number in net.results]


def copy_of_function(net: Net, builder: Builder, inputs: Sequence[Value | None]) -> Forward:
    """Copies a net of elementwise values into another one. inputs: there; None for one that nothing reads."""
    pairs = zip(net.inputs, inputs, strict=True)
    return Forward({n: -1 if value is None else value.number for n, value in pairs}).copy(builder, net)


# ---- gradients


def transpose_cores(cores: dict[int, CoreNode], sweep: Sweep, number: int) -> None:
    """Adds the adjoint of a recurrence to a gradient net: of a core as recurrences of its form."""
    node = sweep.net.nodes[number]
    core = cores.get(id(node.attributes["body"]))
    if core is None:
        transpose(sweep, number)
    elif cotangents := sweep.of_results(number):
        TransposedCore(sweep, number, core, cotangents).run()


class TransposedCore:
    """Construction of the adjoint of a core."""

    def __init__(self, sweep: Sweep, number: int, node: CoreNode, cotangents: dict[int, Value]) -> None:
        """Takes the reverse sweep, the core's node, and the cotangents of its results by position."""
        self.sweep, self.core, self.recur = sweep, node.core, node.recur
        self.around = sweep.builder
        self.inputs = sweep.net.nodes[number].inputs
        self.sources = [self.inputs[place] for place in node.places]
        self.operands = node.operands.replaced([sweep.value(n) for n in self.sources])
        self.initial = sweep.value(self.inputs[self.recur.sequence_count])
        forward = sweep.forward
        saved = [forward.saved[number][n] for n in self.recur.outputs]
        for place, each in enumerate(sweep.net.nodes):  # those that are results are not saved once more
            if each.operation == "result" and each.inputs[0] == number and each.attributes["of"] < len(saved):
                saved[each.attributes["of"]] = forward.copy_of[place]
        self.read = [Value(self.around, n) for n in saved]
        self.cotangents = cotangents

    def zeros(self, value: Value) -> Value:
        """Returns zeros of the type of a value."""
        return value.zeros(*value.type.shape)

    def run(self) -> None:
        """Adds the recurrences, and their results to the cotangents of the operands."""
        count, operands = len(self.core.reads), self.operands
        arriving = [self.cotangents.get(n) for n in range(count)]
        if all(value is None for value in arriving):
            arriving[0] = self.zeros(self.read[0])
        last = self.cotangents.get(count) or self.zeros(self.initial)
        d_written, d_read, first = self.of_written(arriving, last)
        self.sweep.add(self.inputs[self.recur.sequence_count], first)
        written = function_of(self.core, self.around, self.read, operands.given)
        sources = [value for value in d_read if value is not None]
        vectors = [x for x, value in zip(operands.reads, d_read, strict=True) if value is not None]
        if operands.decay is None:
            of_keys = self.of_keys(written, vectors, sources, last)
            made = [*self.of_reads(written, sources), *of_keys]
        else:
            made = self.of_all(vectors, sources, written, last)
        wanted = [made.pop(0) if value is not None else None for value in d_read]
        found = [*wanted, *made, *self.of_given(d_written)]
        for number, value in zip(self.sources, found, strict=True):
            if value is not None:
                self.sweep.add(number, value)

    def of_written(
        self, arriving: Sequence[Value | None], last: Value
    ) -> tuple[list[Value], list[Value | None], Value]:
        """Adds the recurrence of what is written and read; returns the cotangents of both, None for a read
        that has none, and that of the first matrix.
        """
        core, operands, loop = self.core, self.operands, MatrixLoop(self.around, self.core)
        made = [loop.over_keys(vector) for vector in operands.keys]
        used = [self.read[n] if n in core.solved else None for n in range(len(core.reads))]
        inner = [None if value is None else loop.taken(value) for value in used]
        copied = copy_of_function(core.function, loop.body, [*inner, *map(loop.taken, operands.given)])
        sweep = Sweep(loop.body, core.function, copied, transpose, inside=True)
        for number, value in zip(core.function.results, made, strict=True):
            sweep.add(number, value)
        sweep.run()
        own = [sweep.cotangents.get(n) for n in core.function.inputs[: len(core.reads)]]
        known = [None if value is None else loop.taken(value) for value in arriving]
        totals = [b if a is None else a if b is None else a + b for a, b in zip(own, known, strict=True)]
        written = [value for value in totals if value is not None]
        vectors = [x for x, value in zip(operands.reads, totals, strict=True) if value is not None]
        after = loop.next(operands.decay, vectors, written)
        places = [place for place, value in enumerate(own) if value is not None]
        outputs = [*made, *(total for place in places if (total := totals[place]) is not None)]
        _, _, found, first = loop.run(outputs, after, last, not self.recur.reverse)
        read = list(arriving)
        for place, value in zip(places, found[len(made) :], strict=True):
            read[place] = value
        return found[: len(made)], read, first

    def of_keys(
        self, written: Sequence[Value], vectors: Sequence[Value], d_read: Sequence[Value], last: Value
    ) -> list[Value]:
        """Adds the recurrence of the vectors of the writes; returns their cotangents."""
        loop = MatrixLoop(self.around, self.core)
        outputs = [loop.over_values(value) for value in written]
        after = loop.next(self.operands.decay, vectors, [loop.taken(value) for value in d_read])
        return loop.run(outputs, after, last, not self.recur.reverse)[2]

    def of_reads(self, written: Sequence[Value], d_read: Sequence[Value]) -> list[Value]:
        """Adds the recurrence of the vectors of the reads; returns their cotangents."""
        loop = MatrixLoop(self.around, self.core)
        outputs = [loop.over_values(value) for value in d_read]
        after = loop.next(self.operands.decay, self.operands.keys, [loop.taken(value) for value in written])
        return loop.run(outputs, after, self.initial, self.recur.reverse)[2]

    def of_all(
        self, vectors: Sequence[Value], d_read: Sequence[Value], written: Sequence[Value], last: Value
    ) -> list[Value]:
        """Adds the cotangents of the vectors of the reads, of those of the writes, and of the decay, where
        there is one: from matrices that run in opposite directions.
        """
        operands = self.operands
        assert operands.decay is not None
        steps = [each.at(STEPS) for each in (*vectors, *d_read, *operands.keys, *written, operands.decay)]
        pairs = {"initial": self.initial, "last": last}
        ends = {name: value for name, value in pairs.items() if not is_zeros(self.around, value.number)}
        attributes = {"reads": len(vectors), "ends": tuple(ends), "reverse": self.recur.reverse}
        packed = steps[0].apply("matrix_gradients", *steps[1:], *ends.values(), **attributes)
        shapes = [each.type.shape for each in (*vectors, *operands.keys, operands.decay)]
        stops = np.cumsum([prod(shape) for shape in shapes]).tolist()
        pieces = zip(shapes, [0, *stops], stops, strict=False)
        return [packed.slice(-1, first, stop).reshape(*shape) for shape, first, stop in pieces]

    def of_given(self, d_written: Sequence[Value]) -> list[Value | None]:
        """Adds the cotangents of the further values of which what is written is a function, of all steps."""
        net = self.core.function
        copied = copy_of_function(net, self.around, [*self.read, *self.operands.given])
        sweep = Sweep(self.around, net, copied, transpose)
        for number, value in zip(net.results, d_written, strict=True):
            sweep.add(number, value)
        sweep.run()
        return [sweep.cotangents.get(number) for number in net.inputs[len(self.core.reads) :]]
