"""Writes the elements of a step of a unit whose memories and inputs are in registers.

Exponentials of fibers are those of the GPU's power of 2, corrected where nothing is rounded. A product that
is added to something is added to it by a multiply-add. A sum over a fiber has `PARTS` parts, whose order is
the same for any number of lanes.
"""

from collections.abc import Iterator, Mapping
from math import gcd

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import I32, integer
from stepnet.compiler.targets.cuda.entries.elements import ElementWriter, RowOfThread, Source, combined, zero
from stepnet.compiler.targets.cuda.entries.places import Place, PlaceWriter, known_number
from stepnet.compiler.targets.cuda.entries.statements import reduced_count
from stepnet.compiler.targets.cuda.functions import F32
from stepnet.compiler.targets.cuda.loops.unit_form import PARTS, UnitForm, is_product, uses_of
from stepnet.compiler.targets.cuda.tensor.approximate import exponential, power_of_e
from stepnet.compiler.values.records import dataclass

Value = ir.Value


class UnknownElementError(Exception):
    """A step reads an element of a fiber that the thread is not known to have."""


@dataclass(frozen=True)
class FiberIndex:
    """An index: `first + offset`. multiple: a number of which `first` is a multiple, 0 if it is 0."""

    first: Value
    offset: int = 0
    multiple: int = 1


@dataclass(frozen=True)
class InputRead:
    """A read of a step's input: the array, and the element of the step's entry."""

    source: Source
    at: FiberIndex


class UnitWriter(ElementWriter):
    """Writer of elements whose memories and inputs are in registers.

    inputs: the reads of inputs in the order in which the elements of a step read them. others: the elements
    of all other arrays, in their order, which are the same at all steps. Both are found by writing a step.
    """

    def __init__(self, code: PlaceWriter, form: UnitForm, sources: Mapping[int, Source], lane: Value) -> None:
        """Takes the units, the arrays that a step reads, and the number of the thread's lane."""
        body = form.fibers.body
        super().__init__(code, body, sources, {})
        self.form, self.fibers = form, form.fibers
        self.inputs, self.others = list[InputRead](), list[Value]()
        self.memories = dict[int, list[Value]]()
        self.given: Iterator[Value] | None = None
        self.known: Iterator[Value] | None = None
        self.uses = uses_of(body)
        self.own, self.indices = dict[int, list[Value]](), dict[int, FiberIndex]()
        for length, axis in zip(self.fibers.lengths, self.fibers.axes, strict=True):
            if axis is not None:
                count = length // form.lanes
                first = code.multiplied(lane, count)
                self.own[length] = [code.summed(first, integer(n)) for n in range(count)]
                found = ((id(at), FiberIndex(first, n, count)) for n, at in enumerate(self.own[length]))
                self.indices.update(found)

    def written(self, number: int, place: Place, row: RowOfThread, own: bool) -> Value:
        """Writes an element of a node that is not known yet."""
        if number in self.memories:
            return self.memories[number][self.in_fiber(number, place)]
        source, node = self.sources.get(number), self.net.nodes[number]
        if source is None:
            made = self.of_fiber(node, place, row) if self.fibers.are_long else None
            return super().written(number, place, row, own) if made is None else made
        if source.by == "entry":
            if self.given is not None:
                return next(self.given)
            self.inputs.append(InputRead(source, self.index(place.flat)))
            return zero(source.dtype)
        if self.known is not None:
            return next(self.known)
        self.others.append(self.read(source, place, row))
        return self.others[-1]

    def index(self, flat: Value) -> FiberIndex:
        """Returns an index with the facts that are known of it: a constant, or a value plus a constant."""
        known = known_number(flat)
        if known is not None:
            return FiberIndex(integer(0), known, 0)
        return self.indices.get(id(flat), FiberIndex(flat))

    def of_fiber(self, node: Node, place: Place, row: RowOfThread) -> Value | None:
        """Writes an exponential, or the sum of a product and a number; None for any other node."""
        if node.operation == "exp" and node.type.dtype == "float32":
            if self.form.is_rounded:
                return self.rounded_exponential(node.inputs[0], place, row)
            return exponential(self.code, self.element(node.inputs[0], place, row))
        if node.operation == "add":
            types = [self.net.type_of(operand) for operand in node.inputs]
            places = [place.broadcast(type_.shape) for type_ in types]
            if any(type_.dtype != node.type.dtype for type_ in types):
                return None
            for own, other in ((0, 1), (1, 0)):
                factors = self.factors(node.inputs[own], places[own], row)
                if factors is not None:
                    return self.code.fused(*factors, self.element(node.inputs[other], places[other], row))
        return None

    def rounded_exponential(self, number: int, place: Place, row: RowOfThread) -> Value:
        """Writes the exponential of an element of a node, by the GPU's power of 2 alone. The logarithm is
        multiplied by a factor that is the same at all steps, ahead of the loop.
        """
        factors = self.factors(number, place, row) or (self.element(number, place, row),)
        own, *others = sorted(factors, key=lambda value: not any(value is each for each in self.others))
        return power_of_e(self.code, own, *others)

    def factors(self, number: int, place: Place, row: RowOfThread) -> tuple[Value, Value] | None:
        """Writes the factors of an element of a product that nothing else reads; None for other nodes."""
        body = self.net
        if not is_product(body, number, self.uses):
            return None
        while body.nodes[number].kind == "view":
            view = body.nodes[number]
            (number,) = view.inputs
            place = place.behind(view, body.type_of(number).shape)
        a, b = (
            self.element(operand, place.broadcast(body.type_of(operand).shape), row)
            for operand in body.nodes[number].inputs
        )
        return a, b

    def in_fiber(self, number: int, place: Place) -> int:
        """Returns which of the thread's elements of the unit's fiber of a memory lies at a place."""
        axis = self.fibers.axis_of(number)
        if axis is None:
            return 0
        at, own = place.coordinates[axis], self.own[place.shape[axis]]
        known = known_number(at) if self.form.lanes == 1 else next(
            (n for n, each in enumerate(own) if each is at), None
        )  # fmt: skip
        if known is None:
            raise UnknownElementError
        return known

    def few_reduced(self, node: Node, place: Place, row: RowOfThread) -> Value:
        """Writes a reduction of a few elements, of which each lane has a share: first in the parts that a
        whole fiber has, then pair by pair, and then across the lanes.
        """
        own, code = self.own.get(reduced_count(self.net, node)), self.code
        if own is None:
            return super().few_reduced(node, place, row)
        lanes = self.form.lanes
        size = max(1, len(own) // (gcd(PARTS, len(own) * lanes) // lanes))
        values = [self.part(node, place, own[n : n + size], row) for n in range(0, len(own), size)]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [combined(code, node.operation, *pair) for pair in pairs]
        (total,) = values
        for bit in range(lanes.bit_length() - 1):
            if total.type != F32:
                raise UnknownElementError
            other = code.function_call("shuffle_xor_float32", F32, [total, ir.Constant(I32, 1 << bit)])
            total = combined(code, node.operation, total, other)
        return total

    def part(self, node: Node, place: Place, terms: list[Value], row: RowOfThread) -> Value:
        """Writes the combination of some elements, one after the other, products by multiply-adds."""
        code, is_sum = self.code, node.operation == "sum"
        is_sum = is_sum and self.net.type_of(node.inputs[0]).dtype == node.type.dtype
        total: Value | None = None
        for term in terms:
            factors = None
            if is_sum:
                factors = self.factors(node.inputs[0], self.reduced_place(node, place, term), row)
            if factors is not None and total is not None:
                total = code.fused(*factors, total)
                continue
            value = code.fmul(*factors) if factors else self.reduced_operand(node, place, term, row)
            total = value if total is None else combined(code, node.operation, total, value)
        assert total is not None
        return total

    def places(self, number: int, unit: Value) -> list[Place]:
        """Writes the places of the thread's elements of a memory or a result."""
        code, shape, axis = self.code, self.net.type_of(number).shape, self.fibers.axis_of(number)
        if axis is None:
            return [Place(code, shape, unit)]
        others = Place(code, shape[:axis] + shape[axis + 1 :], unit).coordinates
        made = [[*others[:axis], own, *others[axis:]] for own in self.own[shape[axis]]]
        return [Place(code, shape, None, each) for each in made]

    def step(
        self, numbers: list[int], unit: Value, row: RowOfThread, inputs: list[Value] | None
    ) -> dict[int, list[Value]]:
        """Writes a step of a unit; returns the thread's elements of some nodes. inputs: the elements of the
        inputs; None to find which there are, with any numbers in their place.
        """
        self.begin()
        self.given = None if inputs is None else iter(inputs)
        self.known = None if inputs is None else iter(self.others)
        return {n: [self.element(n, place, row) for place in self.places(n, unit)] for n in numbers}
