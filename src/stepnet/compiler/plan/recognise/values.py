"""The values of a body as polynomials of the inputs of one step, for any features of any node.

    a = concatenate(x, h) @ W + b       features 64 to 127 of a
                                    ->   x @ W[:k, 64:128] + h @ W[k:, 64:128] + b[64:128]

Polynomials are computed on demand for ranges of features, and views map these to ranges of their sources
(`views.py`). So a gate has the width of the memory however the gates were joined, and a product of
concatenated values is a sum of products.
"""

from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Node, Recur
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.recognise.functions import ARITHMETIC, Algebra, rules
from stepnet.compiler.plan.recognise.polynomial import ZERO, DifferentError, Leaf, Matrix, Polynomial, Product
from stepnet.compiler.plan.recognise.views import View, views_of
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Values:
    """Values of a body as polynomials, by which known cells are recognised; computed at first use.

    kinds: the kind of each input: "sequence", "memory", "parameter" or "static".
    joined: the nodes that are concatenations, or compute element by element from such nodes: their features
        may come from several pieces.
    known: the values computed so far.
    """

    recur: Recur
    algebra: Algebra
    views: list[View]
    kinds: dict[int, str]
    joined: set[int]
    known: dict[tuple[int, bytes], Polynomial] = field(default_factory=dict[tuple[int, bytes], Polynomial])

    @classmethod
    def of(cls, recur: Recur) -> "Values":
        """Prepares the computation of the values of a body (the net of a recurrence's step) as polynomials,
        which are computed on demand.

        It finds the kind of each input ("sequence", "memory", "parameter" or "static") and `joined`: the
        nodes not constant that are concatenations, or compute element by element from such nodes.
        """
        body = recur.body
        kinds = dict.fromkeys(recur.sequences, "sequence") | dict.fromkeys(recur.memories, "memory")
        for number in recur.others:
            kinds[number] = "parameter" if body.type_of(number).extent == CONST else "static"
        joined: set[int] = set()
        for number, node in enumerate(body.nodes):
            passes = node.kind in ("pointwise", "view") or node.operation == "expand"
            if node.types[0].extent != CONST and (
                (node.operation == "concatenate" and len(node.inputs) > 1)
                or (passes and joined.intersection(node.inputs))
            ):
                joined.add(number)
        dtype = body.type_of(recur.memories[0]).dtype if recur.memories else "float32"
        return cls(recur, Algebra(rules(dtype)), views_of(body), kinds, joined)

    def value_of(self, number: int) -> Polynomial:
        """Returns all features of node `number`, as one polynomial of vectors."""
        return self.at(number, np.arange(self.recur.body.nodes[number].types[0].size, dtype=np.int64))

    def at(self, number: int, indices: Array) -> Polynomial:
        """Returns features of node `number`, at these flat indices, as one polynomial, whose atoms (factors)
        are vectors with an element for each. For a view they are features of the node that it shows. Cached.
        """
        view = self.views[number]
        if view.root != number:
            return self.at(view.root, view.indices(indices))
        key = number, indices.tobytes()
        value = self.known.get(key)
        if value is None:
            value = self.known[key] = self.computed(number, indices)
        return value

    def computed(self, number: int, indices: Array) -> Polynomial:
        """Computes the features at the flat indices `indices` of a node that is no view, as a polynomial.
        Raises `DifferentError` for operations that no known cell has.
        """
        node = self.recur.body.nodes[number]
        if not self.is_of_floats(node):
            raise DifferentError(
                f"it computes with {node.type.element}{at_line(node)}, but known cells compute with floats"
            )
        if node.operation == "input":
            return self.algebra.atom(Leaf(self.kinds[number], number, indices.tobytes()))
        if node.types[0].extent == CONST and not self.is_arithmetic(node):
            return self.constant(node, number, indices)
        if node.operation == "cast":
            return self.cast(node, indices)
        if node.kind == "pointwise":
            operands = [self.at(n, p) for n, p in self.operand_indices(node, indices)]
            return self.algebra.applied(node.operation, operands, node.pairs)
        if node.operation == "matmul":
            return self.product(node, indices)
        if node.operation == "concatenate":
            return self.piece(node, indices)
        if node.operation == "expand":
            return self.at(node.inputs[0], indices)
        raise DifferentError(f"it computes {node.operation}{at_line(node)}, which no known cell does")

    def is_arithmetic(self, node: Node) -> bool:
        """Tells whether a constant node is a sum, difference, product or negative of floats. Such a constant
        is written as a polynomial of its operands; any other one stays whole.
        """
        plain = ("add", "subtract", "multiply", "negative")
        return node.operation in plain and node.types[0].is_float

    def is_of_floats(self, node: Node) -> bool:
        """Tells whether polynomial arithmetic holds for a node: it needs floats, as integers overflow."""
        exact = node.operation in ARITHMETIC or (node.operation == "input" and bool(node.types[0].extent))
        return not exact or node.types[0].extent == CONST or node.types[0].is_float

    def constant(self, node: Node, number: int, indices: Array) -> Polynomial:
        """Returns the features of a constant at the flat indices `indices`: as a number if they are literals
        that are all equal, else as a vector of parameters.
        """
        if node.operation == "constant":
            numbers = node.attributes["value"].value.reshape(-1)[indices]
            if numbers.size and bool((numbers == numbers[0]).all()):
                return Polynomial.number(float(numbers[0]))
        return self.algebra.atom(Leaf("parameter", number, indices.tobytes()))

    def cast(self, node: Node, indices: Array) -> Polynomial:
        """Returns the features of a cast at flat indices, which are the features of its operand; raises
        `DifferentError` for a cast that rounds.
        """
        before = self.recur.body.type_of(node.inputs[0])
        if (
            np.promote_types(before.dtype, node.type.dtype) != np.dtype(node.type.dtype)
            or not before.is_float
        ):
            raise DifferentError(
                f"it rounds {before.element} to {DTYPES[node.type.dtype].text}{at_line(node)}"
            )
        return self.at(node.inputs[0], indices)

    def operand_indices(self, node: Node, indices: Array) -> list[tuple[int, Array]]:
        """Lists the operands of a pointwise node, each with the flat indices of the features that it
        contributes to the node's features at `indices`.
        """
        shape = node.type.shape
        found: list[tuple[int, Array]] = []
        for operand in node.inputs:
            own = self.recur.body.type_of(operand).shape
            if own == shape:
                found.append((operand, indices))
                continue
            index = np.unravel_index(indices, shape) if shape else ()
            operand_index = [
                np.zeros_like(at) if size == 1 else at
                for at, size in zip(index[len(shape) - len(own) :], own, strict=True)
            ]
            flat: Any = np.ravel_multi_index(tuple(operand_index), own) if own else np.zeros_like(indices)
            found.append((operand, flat))
        return found

    # ---- products

    def product(self, node: Node, indices: Array) -> Polynomial:
        """Computes columns of the product of a vector with a matrix, as a sum with a product for each term of
        the vector. Raises `DifferentError` if the columns are of products of several vectors.

        indices: the flat indices of the columns in the node's value.
        """
        left, right = node.inputs
        view, matrix = self.views[left], self.views[right]
        width = len(matrix.axes[1])
        vectors, columns = indices // width, matrix.axes[1][indices % width]
        if indices.size and not bool((vectors == vectors[0]).all()):
            raise DifferentError(f"one value combines products of several vectors{at_line(node)}")
        depth = len(view.axes[-1])
        features = (vectors[0] if indices.size else 0) * depth + np.arange(depth, dtype=np.int64)
        total = ZERO
        for group in self.equal_groups(left, features):
            rows = matrix.axes[0][group] + matrix.start
            block = Matrix(matrix.root, rows.tobytes(), columns.tobytes())
            for monomial, factor in self.at(left, features[group]).terms:
                total = total + self.algebra.atom(Product(monomial, block)).scaled(factor)
        return total

    def equal_groups(self, number: int, indices: Array) -> list[Array]:
        """Groups features of a node that read the same operand of every concatenation: one polynomial (of
        vectors with an element per feature) can stand for a group. A node that is not in `joined`, the nodes
        that concatenate or compute from a concatenation, has a single group.

        number: the node. indices: the flat indices of the features in its value.

        Returns for each group the positions in `indices`.
        """
        if number not in self.joined:
            return [np.arange(len(indices), dtype=np.int64)]
        labels = self.labels(number, indices)
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def labels(self, number: int, indices: Array) -> Array:
        """Labels the features of a node at the flat indices `indices`. Those with equal labels read the same
        piece (operand) of every concatenation, so that one polynomial can stand for them.
        """
        if number not in self.joined:
            return np.zeros(len(indices), np.int64)
        view = self.views[number]
        if view.root != number:
            return self.labels(view.root, view.indices(indices))
        node = self.recur.body.nodes[number]
        if node.operation == "concatenate":
            owners, inside = self.owners(node, indices)
            labels = owners.copy()
            for piece, operand in enumerate(node.inputs):
                own = owners == piece
                labels[own] += len(node.inputs) * self.labels(operand, inside[own])
            return labels
        sets = [self.labels(operand, at) for operand, at in self.operand_indices(node, indices)]
        return np.unique(np.stack(sets), axis=1, return_inverse=True)[1].reshape(-1)

    def piece(self, node: Node, indices: Array) -> Polynomial:
        """Returns the features of a concatenation at the flat indices `indices`, as a polynomial; raises
        `DifferentError` unless they are all in one of its operands.
        """
        owners, inside = self.owners(node, indices)
        if indices.size and not bool((owners == owners[0]).all()):
            raise DifferentError(
                f"one value is computed from several pieces of a concatenation{at_line(node)}"
            )
        return self.at(node.inputs[int(owners[0]) if indices.size else 0], inside)

    def owners(self, node: Node, indices: Array) -> tuple[Array, Array]:
        """Returns, for each feature of a concatenation at the flat indices `indices`, the index of the
        operand that contains it, and the feature's flat index in that operand.
        """
        shapes = [self.recur.body.type_of(operand).shape for operand in node.inputs]
        axis = int(node.attributes["axis"]) % len(node.type.shape)
        ends = np.cumsum([shape[axis] for shape in shapes])
        index = list(np.unravel_index(indices, node.type.shape))
        owners = np.searchsorted(ends, index[axis], side="right")
        inside = np.zeros_like(indices)
        for piece, shape in enumerate(shapes):
            own = owners == piece
            local = [at[own] for at in index]
            local[axis] = local[axis] - (ends[piece] - shape[axis])
            inside[own] = np.ravel_multi_index(tuple(local), shape)
        return owners, inside


def at_line(node: Node) -> str:
    """Writes the user's line of a node, for a message; empty if it is unknown."""
    return f" at {node.source}" if node.source else ""
