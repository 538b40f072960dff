"""The core of a step whose memory is a matrix (`plan/matrix_rule.py`): what depends on the matrix.

    recur(q, k, v, g): a = exp(g)              x, p, a, ... = ...    ahead of it, for all steps
                       r = sum(S * q)     ->   recur(x, p, a, ...):  r = sum(S * x)
                       S = a S + k v                                 S = a S + p f(r, ...)
                       y = r + (q k) v         y = ...               behind it, for all steps

Operands of the core are vectors of keys, decays, and values of each head, and its results are what it reads.
So its gradient has one form (`matrix_adjoint.py`), and all else is differentiated as it is outside of
recurrences.
"""

import numpy as np

from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Net, Recur, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, Type
from stepnet.compiler.plan.labels import viewed
from stepnet.compiler.plan.matrix_rule import FLOAT, MatrixRule, matrix_rule, vectors_of_read
from stepnet.compiler.plan.passes.read_before import with_early_reads
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class ShownElements:
    """The elements of a value of a step that are an operand of its core.

    number: the node of the value. size: how many elements it has. at: their flat indices, in the operand's
        shape.
    """

    number: int
    size: int
    at: Array

    @property
    def is_in_order(self) -> bool:
        """Tells whether these are all elements of the value, in their order."""
        return self.size == self.at.size and bool((self.at.ravel() == np.arange(self.size)).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which the operand is taken from the value: its own, or one that is broadcast to it."""
        shape, ones = self.at.shape, (1,) * (self.at.ndim - 1)
        if self.size == 1:
            return (1, *ones)
        number_of_head = np.indices(shape)[0]
        is_of_head = self.size == shape[0] and np.array_equal(self.at, number_of_head)
        return (self.size, *ones) if is_of_head else shape

    def of(self, value: Value) -> Value:
        """Returns the operand, of the value in any net."""
        if self.is_in_order or self.shape != self.at.shape:
            return value.reshape(*self.shape)
        indices = tuple(int(index) for index in self.at.ravel())
        return value.reshape(self.size).take(-1, indices).reshape(*self.shape)


@dataclass(frozen=True)
class MatrixCore:
    """Part of a step that depends on its matrix.

    rule: of the step, which reads its matrix before it changes.
    reads: the vectors of the reads, [heads, keys]. keys: of each write the factors of its vector, [heads,
        keys].
    decay: its factors, [heads], or [heads, keys] where each key has its own.
    function: the net of the written values, [heads, values] for each write. Its inputs are what is read,
        [heads, values] for each read, and the values `given`.
    """

    rule: MatrixRule
    reads: tuple[ShownElements, ...]
    keys: tuple[tuple[ShownElements, ...], ...]
    decay: tuple[ShownElements, ...]
    function: Net
    given: tuple[ShownElements, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of heads, keys and values."""
        return self.rule.sizes

    @computed_once
    def solved(self) -> tuple[int, ...]:
        """The places of the reads on which what is written depends."""
        used = {n for node in self.function.nodes for n in node.inputs} | {*self.function.results}
        return tuple(place for place in range(len(self.reads)) if self.function.inputs[place] in used)

    @computed_once
    def order(self) -> tuple[int, ...]:
        """The axes of the step's matrix, as heads, keys and values."""
        return (*self.rule.head_axes, *self.rule.key_axes, *self.rule.value_axes)

    def inward(self, matrix: Value) -> Value:
        """Returns a matrix of the step as [heads, keys, values]."""
        return with_axes_moved(matrix, self.order).reshape(*self.sizes)

    def outward(self, matrix: Value) -> Value:
        """Returns a matrix [heads, keys, values] in the shape that it has in the step."""
        shape = self.rule.body.type_of(self.rule.memory).shape
        whole = matrix.reshape(*(shape[axis] for axis in self.order))
        return with_axes_moved(whole, tuple(int(axis) for axis in np.argsort(self.order)))


def with_axes_moved(value: Value, order: tuple[int, ...]) -> Value:
    """Returns a value with its axes in another order."""
    return value if order == tuple(sorted(order)) else value.apply("transpose", order=order)


def matrix_core(recur: Recur) -> MatrixCore | str:
    """Returns the core of a step whose only memory is a matrix that it changes by outer products; for any
    other step why it has none, as text.
    """
    if recur.saved is not None:
        return f"values for its gradient are stored in {recur.saved}"
    if any(node.operation == "index" for node in recur.body.nodes):
        return "a step reads its index"
    early = with_early_reads(recur)
    rule = early if isinstance(early, str) else matrix_rule(early)
    if isinstance(early, str) or isinstance(rule, str):
        return str(rule)
    if rule.by_value:
        return "it decays each value by itself"
    if not all(write.keys for write in rule.writes):
        return "it writes the same to all keys"
    made = FunctionMaker(rule).made()
    if isinstance(made, str):
        return made
    function, given = made
    vectors = vectors_of_read(early)
    reads = [placed(rule, read.factor, at) for read, at in zip(rule.reads, vectors, strict=True)]
    keys = [tuple(placed(rule, n, of_matrix(rule, n)[:, :, 0]) for n in write.keys) for write in rule.writes]
    keys_of = slice(None) if rule.by_key else 0
    decay = [placed(rule, n, of_matrix(rule, n)[:, keys_of, 0]) for n in rule.decay]
    return MatrixCore(rule, tuple(reads), tuple(keys), tuple(decay), function, given)


def of_matrix(rule: MatrixRule, number: int) -> Array:
    """Returns the indices of a factor's elements, one for each of the matrix, [heads, keys, values]."""
    type_, shape = rule.body.type_of(number), rule.body.type_of(rule.memory).shape
    at = np.broadcast_to(np.arange(type_.size).reshape(type_.shape), shape)
    return at.transpose((*rule.head_axes, *rule.key_axes, *rule.value_axes)).reshape(rule.sizes)


def placed(rule: MatrixRule, number: int, at: Array) -> ShownElements:
    """Returns an operand by elements of a value, or of the value that it shows if they are in order there."""
    found, body = ShownElements(number, rule.body.type_of(number).size, at), rule.body
    while body.nodes[number].is_view and len(body.nodes[number].inputs) == 1:
        node = body.nodes[number]
        (number,) = node.inputs
        type_ = body.type_of(number)
        if type_.extent != node.type.extent:
            break
        at = viewed(node, np.arange(type_.size).reshape(type_.shape)).ravel()[at]
        shown = ShownElements(number, type_.size, at)
        found = shown if shown.is_in_order else found
    return found


class FunctionMaker:
    """Maker of the net of the values that a step writes."""

    def __init__(self, rule: MatrixRule) -> None:
        """Begins with the inputs for the values that are read."""
        self.rule, self.body, self.builder = rule, rule.body, Builder()
        self.late = {rule.memory}
        for number, node in enumerate(rule.body.nodes):
            if not self.late.isdisjoint(node.inputs):
                self.late.add(number)
        heads, _, values = rule.sizes
        self.read = [self.builder.input(Type(ROWS, (heads, values), FLOAT), "read") for _ in rule.reads]
        self.known = {
            read.number: Value(self.builder, number).reshape(*self.body.type_of(read.number).shape)
            for read, number in zip(rule.reads, self.read, strict=True)
        }
        self.given = dict[tuple[int, bytes], tuple[ShownElements, Value]]()

    def made(self) -> tuple[Net, tuple[ShownElements, ...]] | str:
        """Returns the net, and the values that it takes besides those that are read; or why there is none."""
        heads, _, values = self.rule.sizes
        results = list[int]()
        for write in self.rule.writes:
            factors = list[Value]()
            for number in write.values:
                at = of_matrix(self.rule, number)[:, 0, :]
                place = placed(self.rule, number, at)
                if number not in self.late:
                    factors.append(self.input(place))
                elif ShownElements(number, self.body.type_of(number).size, at).is_in_order:
                    factors.append(self.value(number).reshape(heads, values))
                else:
                    return "what it writes has another order than what it reads"
            if not factors:
                return "it writes the same to all values"
            total = factors[0]
            for factor in factors[1:]:
                total = total * factor
            results.append(total.broadcast(heads, values).number)
        inputs = [*self.read, *(value.number for _, value in self.given.values())]
        return with_inputs(self.builder, inputs, results), tuple(place for place, _ in self.given.values())

    def value(self, number: int) -> Value:
        """Returns a value of the step: the copy of one that depends on the matrix, or an input."""
        if number not in self.known:
            node = self.body.nodes[number]
            if number in self.late or node.operation == "constant":
                inputs = [self.value(operand).number for operand in node.inputs]
                self.known[number] = Value(self.builder, self.builder.copy(node, inputs))
            else:
                at = np.arange(node.type.size).reshape(node.type.shape)
                self.known[number] = self.input(ShownElements(number, node.type.size, at)).reshape(
                    *node.type.shape
                )
        return self.known[number]

    def input(self, place: ShownElements) -> Value:
        """Returns an input for a value that does not depend on the matrix."""
        key = place.number, place.at.tobytes()
        if key not in self.given:
            extent = CONST if self.body.type_of(place.number).extent == CONST else ROWS
            number = self.builder.input(Type(extent, place.shape, FLOAT), "given")
            self.given[key] = place, Value(self.builder, number)
        return self.given[key][1]
