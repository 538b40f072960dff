"""The arrays of a recognised cell, computed from the parameters of the recurrence.

    x @ U[:, :64] * 2 + ...   ->   W = [2 * U[:, :64] | ...]

They have the arrangement of `stepnet.cells`: W, R, b, d, p, P, with the gates side by side. A net computes
them, so they can be computed again when parameters change, and can be part of a larger net.
"""

from collections.abc import Iterable
from dataclasses import field

import numpy as np

from stepnet.compiler.net.ir import Builder, Net, Recur
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.recognise.cells import CellMatch
from stepnet.compiler.plan.recognise.functions import RECIPROCAL
from stepnet.compiler.plan.recognise.gates import GateTerm, Sum
from stepnet.compiler.plan.recognise.polynomial import (
    Atom,
    DifferentError,
    Function,
    Leaf,
    Matrix,
    Monomial,
    Polynomial,
    Product,
)
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass
class WeightsBuilder:
    """Builder of the net that computes a known cell's arrays, such as W, from a body's parameters."""

    recur: Recur
    hidden: int
    builder: Builder = field(default_factory=Builder)
    copy_of: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def dtype(self) -> str:
        """The dtype of the weights of the recognised cell: that of the recurrence's memory."""
        return self.recur.body.type_of(self.recur.memories[0]).dtype

    @property
    def parameters(self) -> list[int]:
        """The inputs of the recurrence's body (the net of its step) that are parameters. They become the
        inputs of the new net that computes the weights (W, R, ...) of the recognised cell.
        """
        return [n for n in self.recur.others if self.recur.body.type_of(n).extent == CONST]

    def constant(self, number: int) -> int:
        """Copies a constant of the body (the net of the recurrence's step), with its operands, into the new
        net, which computes the weights of a known cell; returns its number there.
        """
        if number not in self.copy_of:
            node = self.recur.body.nodes[number]
            self.copy_of[number] = self.builder.copy(node, [self.constant(n) for n in node.inputs])
        return self.copy_of[number]

    def filled(self, value: float, shape: tuple[int, ...]) -> int:
        """Adds an array of one repeated number to the net; returns its node."""
        number = self.builder.constant(np.array(value, self.dtype))
        return self.builder.add("broadcast", number, rank=0, shape=shape)

    # ---- vectors

    def vector(self, value: Polynomial, size: int) -> int:
        """Adds the vector of a polynomial of parameters to the net that computes the weights of a known cell;
        returns its node. size: its length.
        """
        total: int | None = None
        for monomial, factor in value.terms:
            term = self.scaled(self.monomial(monomial, size), factor)
            total = term if total is None else self.builder.add("add", total, term)
        return self.filled(0, (size,)) if total is None else total

    def monomial(self, monomial: Monomial, size: int) -> int:
        """Adds the vector of a product of parameters to the net that computes the weights of a known cell;
        returns its node. size: its length.
        """
        total: int | None = None
        for atom in monomial:
            factor = self.atom(atom, size)
            total = factor if total is None else self.builder.add("multiply", total, factor)
        return self.filled(1, (size,)) if total is None else total

    def atom(self, atom: Atom, size: int) -> int:
        """Adds the vector of an atom (factor) of parameters to the net that computes the weights of a known
        cell, such as an LSTM, that a user's step computes: elements, a product with a matrix, or a
        reciprocal; returns its node. size: its length. Raises `DifferentError` for other functions.
        """
        match atom.what:
            case Leaf(number=number) as leaf:
                flat = self.flat(number)
                if len(leaf.indices) and (leaf.indices == leaf.indices[0]).all():
                    picked = self.selected(flat, leaf.indices[:1], 0)
                    return self.builder.add("broadcast", picked, rank=1, shape=(size,))
                return self.selected(flat, leaf.indices, 0)
            case Product(left=left, matrix=matrix):
                rows = len(matrix.rows)
                return self.builder.add("matmul", self.monomial(left, rows), self.matrix(matrix))
            case Function(name=name, operands=operands) if name == RECIPROCAL:
                return self.builder.add("divide", self.filled(1, (size,)), self.vector(operands[0], size))
            case Function(name=name):
                raise DifferentError(f"{name} of parameters is computed at every step", 3)

    def scaled(self, number: int, factor: float) -> int:
        """Adds node `number` of the new net, which computes the weights of a known cell, times a factor;
        returns the product's node, which is `number` for a factor of 1.
        """
        if factor == 1:
            return number
        return self.builder.add("multiply", number, self.builder.constant(np.array(factor, self.dtype)))

    # ---- picking numbers

    def flat(self, number: int) -> int:
        """Copies a constant of the body into the net, flattened to one axis; returns its node."""
        value = self.constant(number)
        return self.reshaped(value, (self.builder.type_of(value).size,))

    def reshaped(self, number: int, shape: tuple[int, ...]) -> int:
        """Adds node `number` of the new net in another shape; returns the result, `number` if it has it."""
        own = self.builder.type_of(number).shape
        return number if own == shape else self.builder.add("reshape", number, rank=len(own), shape=shape)

    def selected(self, number: int, indices: Array, axis: int) -> int:
        """Takes the elements of a node at these indices along an axis, as a slice if they are evenly spaced,
        else by `take`; returns the new node, or `number` if these are all elements in order.
        """
        shape = self.builder.type_of(number).shape
        first, step = (
            int(indices[0]) if len(indices) else 0,
            int(indices[1] - indices[0]) if len(indices) > 1 else 1,
        )
        if step > 0 and bool((np.diff(indices) == step).all()):
            slices = [(0, size, 1) for size in shape]
            slices[axis] = (first, first + step * (len(indices) - 1) + 1 if len(indices) else first, step)
            if slices[axis] == (0, shape[axis], 1):
                return number
            return self.builder.add("slice", number, slices=tuple(slices))
        return self.builder.add("take", number, axis=axis - len(shape), indices=tuple(indices.tolist()))

    def matrix(self, matrix: Matrix) -> int:
        """Adds, to the net that computes a known cell's weights, a matrix whose elements are picked from a
        constant of the recurrence's step, by slices if possible, as a cell's weights may be part of a larger
        array; returns its node.
        """
        rows, columns = matrix.rows, matrix.columns
        shape = self.recur.body.type_of(matrix.number).shape
        for split in range(1, len(shape)):
            width = int(np.prod(shape[split:], dtype=np.int64))
            height = int(np.prod(shape[:split], dtype=np.int64))
            for down, across, is_transposed in ((rows, columns, False), (columns, rows, True)):
                if not is_grid(down, across, width):
                    continue
                value = self.constant(matrix.number)
                value = self.reshaped(value, (height, width))
                shift = int(down.min(initial=0)) % width if len(down) else 0
                value = self.selected(value, (down - shift) // width, 0)
                value = self.selected(value, across + shift, 1)
                return self.builder.add("transpose", value, order=(1, 0)) if is_transposed else value
        indices = (rows[:, None] + columns).ravel()
        value = self.selected(self.flat(matrix.number), indices, 0)
        return self.reshaped(value, (len(rows), len(columns)))

    # ---- the arrays

    def product(self, terms: Iterable[GateTerm], features: dict[int, int], size: int) -> int:
        """Adds the matrix of a gate in the cell's weights W (for the input) or R (for the memory), [size,
        hidden], as the sum of its terms; returns its node.

        features: for each input node that a term multiplies, the first row of its features in W or R.
        """
        total: int | None = None
        for term in terms:
            value = self.block(term, features[term.leaf.number], size)
            total = value if total is None else self.builder.add("add", total, value)
        return self.filled(0, (size, self.hidden)) if total is None else total

    def block(self, term: GateTerm, first_row: int, size: int) -> int:
        """Adds to the net the matrix by which one term of a gate enters the gate's weights in W (for the
        input) or R (for the memory), with zeros for features that the term does not read; returns its node,
        [size, hidden].

        first_row: the row of W or R for the first feature of the input node that the term multiplies.
        size: the number of rows of W or R.
        """
        indices = term.leaf.indices + first_row
        if term.matrix is None:  # a feature for each unit
            picks = np.arange(size)[:, None] == indices
            value = self.builder.constant(picks.astype(self.dtype))
        else:
            value = self.matrix(term.matrix)
            rows = self.builder.type_of(value).shape[0]
            if term.rows:
                scale = self.reshaped(self.monomial(term.rows, rows), (rows, 1))
                value = self.builder.add("multiply", value, scale)
            value = self.embedded(value, indices, size)
        if term.columns:
            value = self.builder.add("multiply", value, self.monomial(term.columns, self.hidden))
        return self.scaled(value, term.factor)

    def embedded(self, value: int, indices: Array, size: int) -> int:
        """Adds a matrix of `size` rows, with the rows of node `value` at the row indices `indices` and zeros
        elsewhere, as a term of a gate may multiply only some features; returns its node. Raises
        `DifferentError` if an index occurs twice.
        """
        rows, columns = self.builder.type_of(value).shape
        if np.array_equal(indices, np.arange(size)):
            return value
        if len(np.unique(indices)) < len(indices):
            raise DifferentError("a feature is multiplied twice by one matrix", 3)
        inverse = np.full(size, rows, np.int64)
        inverse[indices] = np.arange(rows)
        padded = self.builder.add("concatenate", value, self.filled(0, (1, columns)), axis=-2)
        return self.builder.add("take", padded, axis=-2, indices=tuple(inverse.tolist()))

    def concatenated(self, pieces: list[int]) -> int:
        """Concatenates one array per gate to an array such as W, in the memory's dtype; returns its node."""
        value = pieces[0] if len(pieces) == 1 else self.builder.add("concatenate", *pieces, axis=-1)
        return self.typed(value)

    def typed(self, value: int) -> int:
        """Casts node `value`, an array of the recognised cell, to its memory's dtype; returns the node."""
        same = self.builder.type_of(value).dtype == self.dtype
        return value if same else self.builder.add("cast", value, dtype=self.dtype)


def is_grid(down: Array, across: Array, width: int) -> bool:
    """Tells whether the flat indices down[i] + across[j] select some rows and some columns of a matrix, so
    that the elements can be taken along one axis after the other. width: the number of columns.
    """
    if not len(down) or not len(across) or not width:
        return bool(width)
    shift = down[0] % width
    columns = across + shift
    return bool((down % width == shift).all() and columns.min() >= 0 and columns.max() < width)


def arrays_of(
    recur: Recur, match: CellMatch, first_rows: dict[int, int], sizes: tuple[int, int, int], projected: bool
) -> tuple[Net, tuple[str, ...]]:
    """Builds the net from the parameters of a recurrence's step to the arrays of the cell; returns it and the
    arrays' names: W and R (of input and memory), and if needed the biases b and d (d is multiplied by the
    reset gate), the peepholes p and the projection P.

    match: the gates of the recognised cell, and its projection. first_rows: for the nodes of the sequences
        and of the memory h, the first row of their features in W or R.
    sizes: the numbers of inputs, outputs and hidden units.
    projected: whether there is no W.
    """
    inputs, outputs, hidden = sizes
    builder = WeightsBuilder(recur, hidden)
    for number in builder.parameters:
        builder.constant(number)
    gates = list(match.gates.values())
    results: dict[str, int] = {}
    if not projected:
        results["W"] = builder.concatenated([builder.product(gate.x, first_rows, inputs) for gate in gates])
    results["R"] = builder.concatenated([builder.product(gate.h, first_rows, outputs) for gate in gates])
    for name, attribute in (("b", "bias"), ("d", "inside")):
        values: list[Polynomial] = [getattr(gate, attribute) for gate in gates]
        if any(value.terms for value in values):
            results[name] = builder.concatenated([builder.vector(value, hidden) for value in values])
    if any(gate.peephole.terms for gate in gates):
        rows = [builder.vector(match.gates[name].peephole, hidden) for name in "ifo"]
        flat = [builder.reshaped(row, (1, hidden)) for row in rows]
        results["p"] = builder.typed(builder.builder.add("concatenate", *flat, axis=-2))
    if match.projection is not None:
        factor, matrix = match.projection
        results["P"] = builder.typed(builder.scaled(builder.matrix(matrix), factor))
    return builder.builder.net(results.values()), tuple(results)


def is_projected(gates: Iterable[Sum]) -> bool:
    """Tells whether each gate adds one input feature per unit without a matrix, so that the cell has no W."""
    terms = [gate.x for gate in gates]
    return all(
        len(gate) == 1 and gate[0].matrix is None and gate[0].factor == 1 and not gate[0].columns
        for gate in terms
    )
