"""Rewrites sums over a matrix with outer products added to it, as sums over the matrix itself and over
vectors.

    S = a * M + k * v                       M: a memory; k, v: one of each row, and of each column
    r = sum(S * q, rows)             ->     r = a * sum(M * q, rows) + sum(k * q) * v
    T = b * S + p * w                ->     T = (b * a) * M + (b * k) * v + p * w
    U = M - c * M / d                ->     U = (1 - c / d) * M

Where one body computes several steps (`block_steps.py`), each step reads the matrix that the step before it
computed. After this pass all of them read the memory itself, in one pass over it, and their terms are added
in a second pass. Only vectors pass from step to step: no other matrix is computed or saved for a gradient.

It needs a matrix that is linear in the memory: sums, and products with smaller values, which may depend on
the memory in any way. Factors of several steps are multiplied with one another first, so their product must
be in the dtype's range: that of two decays of 1e25 in float32 is not, even if the scaled value is tiny.
"""

from collections.abc import Collection, Iterable
from dataclasses import field
from functools import reduce

import numpy as np

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.factor import without_axes
from stepnet.compiler.values.records import dataclass

LINEAR = ("add", "subtract", "negative", "multiply", "divide", "transpose")
"""Operations whose result is linear in a memory if their operand, a matrix, is linear in it."""
SCALED = "multiply", "divide"
"""Operations among them of which one operand alone may be linear in it, the first one of a quotient."""


@dataclass(frozen=True)
class MatrixTerm:
    """Term of a value as large as a matrix: the product of `matrix`, unless it is None, and of `factors`.

    Both are numbers of nodes with the same rank. No two factors vary along the same axes.
    """

    matrix: int | None
    factors: tuple[int, ...] = ()


Terms = tuple[MatrixTerm, ...]


def distribute(net: Net, matrices: Collection[int], memories: Collection[int] = ()) -> Net:
    """Returns a new net that computes no matrices but the given ones: a sum over the axes of a matrix that
    was computed from these, as sum((a * M + k * v) * q), becomes sums over the given matrices and over
    vectors, as a * sum(M * q) + sum(k * q) * v. It is done for values that are linear in the given matrices.

    matrices: the inputs of the net that are these matrices.
    memories: the inputs that are known last, from step to step. Values that do not depend on them are
        multiplied first.
    """
    return Distributed(net, {*matrices}, {*matrices, *memories}).run()


def linear_values(net: Net, matrix: int) -> set[int]:
    """Returns the nodes that are linear in the input `matrix` and of its size, including the input.
    `distribute` can write these as sums over the input and vectors.
    """
    linear, size = {matrix}, net.type_of(matrix).size
    for number, node in enumerate(net.nodes):
        read = [operand for operand in node.inputs if operand in linear]
        most = 1 if node.operation in SCALED else len(node.inputs)
        is_divisor = node.operation == "divide" and node.inputs[1] in linear
        if read and node.operation in LINEAR and len(read) <= most and node.type.size == size:
            linear |= set() if is_divisor else {number}
    return linear


@dataclass
class Distributed:
    """State of the pass `distribute`, which writes values that are linear in matrices as sums of terms.

    copy_of: for each node, its copy.
    terms: for each node that is linear in a matrix, the terms it is the sum of.
    late: whether each new node needs a memory.
    """

    net: Net
    matrices: set[int]
    memories: set[int]
    builder: Builder = field(default_factory=Builder)
    copy_of: dict[int, int] = field(default_factory=dict[int, int])
    terms: dict[int, Terms] = field(default_factory=dict[int, Terms])
    late: dict[int, bool] = field(default_factory=dict[int, bool])

    def run(self) -> Net:
        """Returns a new net in which sums over values that are linear in the matrices are written as sums
        over the matrices themselves, so that these values need not be computed. A linear value is known by
        its terms: a matrix times factors.
        """
        linear = set[int]().union(*(linear_values(self.net, matrix) for matrix in self.matrices))
        for number, node in enumerate(self.net.nodes):
            if number in self.matrices:
                self.copy_of[number] = self.builder.copy(node, [])
                self.late[self.copy_of[number]] = True
                self.terms[number] = (MatrixTerm(self.copy_of[number]),)
            elif number in linear:
                self.terms[number] = self.expanded(number)
            elif node.operation == "sum" and node.inputs[0] in linear:
                axes = node.attributes["axes"]
                self.copy_of[number] = self.added(
                    self.summed(term, self.shape(node.inputs[0]), axes) for term in self.terms[node.inputs[0]]
                )
            else:
                self.copy_of[number] = self.builder.copy(node, map(self.value, node.inputs))
                self.late[self.copy_of[number]] = self.late.get(self.copy_of[number], number in self.memories)
        return self.builder.net([self.value(result) for result in self.net.results])

    def shape(self, number: int) -> tuple[int, ...]:
        """Returns the feature shape of a node of the net that is rewritten."""
        return self.net.type_of(number).shape

    def is_late(self, number: int) -> bool:
        """Tells whether a node of the new net depends on a memory, and is multiplied last. Cached."""
        if number not in self.late:
            self.late[number] = any(map(self.is_late, self.builder.nodes[number].inputs))
        return self.late[number]

    def value(self, number: int) -> int:
        """Returns the number in the new net of old node `number`. If the node is linear in a matrix, the sum
        of its terms (products with the matrix) is added at first use.
        """
        if number not in self.copy_of:
            self.copy_of[number] = self.added(map(self.product, self.terms[number]))
        return self.copy_of[number]

    # ---- terms

    def expanded(self, number: int) -> Terms:
        """Computes the terms (a matrix times factors) whose sum is node `number` of the old net."""
        node = self.net.nodes[number]
        if node.operation in SCALED:
            left, right = node.inputs if node.inputs[0] in self.terms else node.inputs[::-1]
            factors = self.factors(right, node.type.shape, node.operation == "divide")
            return tuple(reduce(self.times, factors, term) for term in self.operand(left, number))
        if node.operation == "transpose":
            order = node.attributes["order"]
            return tuple(self.mapped(term, order) for term in self.terms[node.inputs[0]])
        first, *others = (self.operand(operand, number) for operand in node.inputs)
        if node.operation == "negative":
            return self.negated(first, node.type.dtype)
        if node.operation == "subtract":
            others = [self.negated(terms, node.type.dtype) for terms in others]
        return reduce(self.with_term, sum(others, first), ())

    def operand(self, number: int, user: int) -> Terms:
        """Returns the terms whose sum is old node `number`, in the shape of the node `user` that reads it."""
        node, shape = self.net.nodes[number], self.shape(user)
        if number in self.terms:
            return self.terms[number]
        if node.operation in ("add", "subtract", "negative") and node.type.shape == shape:
            return self.expanded(number)
        return (reduce(self.times, self.factors(number, shape), MatrixTerm(None)),)

    def factors(self, number: int, shape: tuple[int, ...], is_divisor: bool = False) -> list[int]:
        """Lists new nodes whose product is old node `number`, each with the rank of the given shape; with
        `is_divisor` those whose product is its reciprocal.

        Only products and quotients of this shape are taken apart. A product of a smaller shape stays one
        factor, because one of its operands may keep its values in range.
        """
        node, own = self.net.nodes[number], self.shape(number)
        if node.operation in SCALED and own == shape:
            of_second = is_divisor ^ (node.operation == "divide")
            first, second = node.inputs
            return [*self.factors(first, shape, is_divisor), *self.factors(second, shape, of_second)]
        value, wide = self.value(number), (*(1,) * (len(shape) - len(own)), *own)
        if is_divisor:
            one = self.builder.constant(np.ones((), node.type.dtype))
            value = self.builder.add("divide", one, value)
        return [value if wide == own else self.builder.add("reshape", value, rank=len(own), shape=wide)]

    def times(self, term: MatrixTerm, factor: int) -> MatrixTerm:
        """Multiplies a term, a product of factors, by a factor. The factor is multiplied into the term's
        factor that varies along the same axes, if there is one, so that no two do.
        """
        along = varies(self.builder, factor)
        factors = list(term.factors)
        for index, known in enumerate(factors):
            if varies(self.builder, known) == along:
                factors[index] = self.builder.add("multiply", known, factor)
                return MatrixTerm(term.matrix, tuple(factors))
        return MatrixTerm(term.matrix, (*factors, factor))

    def with_term(self, terms: Terms, further: MatrixTerm) -> Terms:
        """Adds a term to others. Where one has the same matrix, both become that matrix times the sum of
        their factors, unless the sum is as large as the matrix.
        """
        for place, term in enumerate(terms):
            if term.matrix is None or term.matrix != further.matrix:
                continue
            matrix = self.builder.type_of(term.matrix)
            shapes = [self.builder.type_of(n).shape for n in (*term.factors, *further.factors)]
            if np.prod(np.broadcast_shapes((1,), *shapes)) < matrix.size:
                one = self.constant_like(term, 1, matrix.dtype)
                factor = self.added(self.multiplied(each.factors or [one]) for each in (term, further))
                return (*terms[:place], MatrixTerm(term.matrix, (factor,)), *terms[place + 1 :])
        return (*terms, further)

    def mapped(self, term: MatrixTerm, order: tuple[int, ...]) -> MatrixTerm:
        """Transposes a term (a matrix times factors) of a sum: its matrix and each of its factors. order: the
        axes in their new order.
        """

        def turned(number: int) -> int:
            """Adds the transposition of one value; returns its number."""
            return self.builder.add("transpose", number, order=order)

        return MatrixTerm(
            None if term.matrix is None else turned(term.matrix), tuple(map(turned, term.factors))
        )

    def negated(self, terms: Terms, dtype: str) -> Terms:
        """Negates terms (each a matrix times factors) of a sum, by negating one factor of each, or
        multiplying by -1. dtype: the dtype of the values.
        """
        return tuple(
            MatrixTerm(term.matrix, (*map(self.minus, term.factors[:1]), *term.factors[1:]))
            if term.factors
            else self.times(term, self.constant_like(term, -1, dtype))
            for term in terms
        )

    def minus(self, number: int) -> int:
        """Adds the negative of a value to the new net; returns its number."""
        return self.builder.add("negative", number)

    def constant_like(self, term: MatrixTerm, value: float, dtype: str) -> int:
        """Adds a constant `value`, with as many axes of size 1 as a term's matrix has, to be a factor of the
        term (a product with the matrix); returns its number. dtype: the dtype of the constant.
        """
        assert term.matrix is not None
        rank = len(self.builder.type_of(term.matrix).shape)
        return self.builder.constant(np.full((1,) * rank, value, dtype))

    # ---- values of terms

    def multiplied(self, numbers: Iterable[int]) -> int:
        """Returns the product of values; values without memory come first, smaller before larger."""
        order = sorted(numbers, key=lambda n: (self.is_late(n), self.builder.type_of(n).size))
        return reduce(lambda a, b: self.builder.add("multiply", a, b), order)

    def product(self, term: MatrixTerm) -> int:
        """Adds the product of a term's matrix and factors to the new net; returns its number."""
        if term.matrix is None:
            return self.multiplied(term.factors)
        if not term.factors:
            return term.matrix
        return self.builder.add("multiply", self.multiplied(term.factors), term.matrix)

    def added(self, numbers: Iterable[int]) -> int:
        """Adds up values of the new net, given by their node numbers; returns the number of the sum."""
        return reduce(lambda a, b: self.builder.add("add", a, b), numbers)

    def summed(self, term: MatrixTerm, shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
        """Adds the sum of a term (a matrix, or none, times factors) along `axes`, as a product of sums of
        factors that vary along the same axes.

        shape: the shape of the term, in which its factors are broadcast. Returns the number of the sum.
        """
        matrix_operand = [] if term.matrix is None else [term.matrix]
        groups, outside = list[tuple[set[int], list[int]]](), list[int]()
        for number in (*matrix_operand, *term.factors):
            along = {axis for axis in axes if self.builder.type_of(number).shape[axis] != 1}
            near = [group for group in groups if group[0] & along]
            groups = [group for group in groups if group not in near]
            if along:
                numbers = [n for _, own in near for n in own]
                groups.append((along.union(*(other for other, _ in near)), [*numbers, number]))
            else:
                outside.append(without_axes(self.builder, number, axes))
        repeated = [shape[axis] for axis in axes if not any(axis in along for along, _ in groups)]
        if any(size != 1 for size in repeated):
            dtype = self.builder.type_of((*matrix_operand, *term.factors)[0]).dtype
            outside.append(self.builder.constant(np.asarray(np.prod(repeated), dtype)))
        for _, numbers in groups:
            own = [number for number in numbers if number not in matrix_operand]
            inner = self.product(MatrixTerm(term.matrix if len(own) < len(numbers) else None, tuple(own)))
            outside.append(self.builder.add("sum", inner, axes=axes))
        return self.multiplied(outside)


def varies(builder: Builder, number: int) -> tuple[bool, ...]:
    """Tells for each axis of a value whether the value varies along it: whether its size is not 1."""
    return tuple(size != 1 for size in builder.type_of(number).shape)
