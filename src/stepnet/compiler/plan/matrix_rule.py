"""The form of a step whose memory is a matrix that it changes by outer products, and reads in sums.

    r = sum over keys of S * x      reads: x does not depend on S
    w = any function of r           elementwise, for each value by itself
    S = a * S + p * w               p: a number for each key; a: one for each head, each key or each value

So it is for linear attention, gated or not, retention, the state space of Mamba-2, RWKV-6 and 7, and the
delta rules, once each read is one of the matrix before the step (`passes/read_before.py`). Several such steps
are products of matrices:

    r of step t = (a_1 .. a_t-1) x_t S + the sum over earlier steps s of (a_s+1 .. a_t-1) (x_t p_s) w_s

Whether a value is the same for all keys, or for all values, follows from labels (`labels.py`).
"""

from collections.abc import Collection
from dataclasses import replace
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Net, Recur, ancestors
from stepnet.compiler.plan.labels import differs, is_flat, labels_of, viewed
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
FLOAT = "float32"


@dataclass(frozen=True)
class MatrixRead:
    """A sum over the keys of the matrix times a vector.

    number: the node of the sum, whose elements are those of all heads and their values.
    factor: the operand that is multiplied with the matrix. product: the node that multiplies them.
    """

    number: int
    factor: int
    product: int


@dataclass(frozen=True)
class MatrixWrite:
    """An outer product that is added to the matrix: of the factors for keys and of those for values."""

    keys: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class MatrixRule:
    """A step whose memory is a matrix that it changes by outer products. All numbers are of the body's nodes.

    memory: the matrix. head_axes, key_axes, value_axes: its axes of each kind; heads do not meet.
    decay: the factors of the matrix, numbers for each head, each key or each value; none for 1.
    early: the nodes that do not depend on the matrix, and that those read which do, for each head and value.
    alike: for each write the place of a read by the same vector; -1 for none.
    by_key, by_value: whether each key, or each value, has a decay of its own.
    """

    body: Net
    memory: int
    head_axes: tuple[int, ...]
    key_axes: tuple[int, ...]
    value_axes: tuple[int, ...]
    decay: tuple[int, ...]
    reads: tuple[MatrixRead, ...]
    writes: tuple[MatrixWrite, ...]
    early: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()
    by_key: bool = False
    by_value: bool = False

    def size(self, axes: tuple[int, ...]) -> int:
        """Returns the number of elements of the matrix along some of its axes."""
        shape = self.body.type_of(self.memory).shape
        return prod(shape[axis] for axis in axes)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of heads, of keys and of values."""
        return self.size(self.head_axes), self.size(self.key_axes), self.size(self.value_axes)

    @property
    def value_count(self) -> int:
        """The number of values of all heads."""
        heads, _, values = self.sizes
        return heads * values

    @property
    def solved(self) -> tuple[int, ...]:
        """The places of the reads on which what is written depends: these are known step by step."""
        written = ancestors(self.body.nodes, [n for write in self.writes for n in write.values])
        return tuple(place for place, read in enumerate(self.reads) if read.number in written)


def matrix_rule(recur: Recur) -> MatrixRule | str:
    """Returns the form of a step whose only memory is a matrix that it changes by outer products; for any
    other step the reason, as text, why it has not this form.
    """
    try:
        return RuleFinder(recur).rule()
    except OtherFormError as error:
        return str(error)


def vectors_of_read(recur: Recur) -> list[Array]:
    """Returns for each read of a step of the form the flat indices of its vector, [heads, keys], in the
    factor.
    """
    finder = RuleFinder(recur)
    rule, found = finder.rule(), list[Array]()
    heads, keys, values = rule.sizes
    for read in rule.reads:
        type_, shape = rule.body.type_of(read.factor), rule.body.type_of(read.product).shape
        at = np.broadcast_to(np.arange(type_.size).reshape(type_.shape), shape)
        found.append(finder.terms_of_read(read, at).reshape(heads, values, keys)[:, 0])
    return found


class OtherFormError(Exception):
    """A step has another form. Its text says why."""


class RuleFinder:
    """Finder of the form of a step, which raises `OtherFormError` where there is none."""

    def __init__(self, recur: Recur) -> None:
        """Takes the recurrence, and finds what depends on the matrix."""
        self.recur, self.body = recur, recur.body
        require(len(recur.memories) == 1, "it has several memories")
        require(recur.precision is None, "its products are rounded")
        (self.memory,) = recur.memories
        self.type = self.body.type_of(self.memory)
        require(sum(size > 1 for size in self.type.shape) > 1, "its memory is no matrix")
        self.late = {self.memory}
        for number, node in enumerate(self.body.nodes):
            if not self.late.isdisjoint(node.inputs):
                self.late.add(number)
        require(is_plain(self.body, self.late), "it has products, tables, scans or joined values")
        types = [type_ for n in self.late - self.stored_ends() for type_ in self.body.nodes[n].types]
        require(all(type_.dtype == FLOAT for type_ in types), f"it does not compute in {FLOAT}")
        self.labels = labels_of(self.body)

    def stored_ends(self) -> set[int]:
        """Returns the casts of outputs to the dtype in which they are stored, which nothing else reads."""
        read = {n for node in self.body.nodes for n in node.inputs} | {*self.recur.following}
        ends = {*self.recur.outputs} - read
        return {n for n in ends if self.body.nodes[n].operation == "cast" and n in self.late}

    def rule(self) -> MatrixRule:
        """Finds the form."""
        reads, keys, others = self.reads()
        decay, writes = self.terms(self.recur.following[0])
        rank = len(self.type.shape)
        of_keys = [number for write in writes for number in write if self.varies(number, keys)]
        heads = {
            axis
            for axis in others
            if any(self.varies(number, [axis]) for number in of_keys)
            or any(self.varies_in_read(read, axis, keys) for read in reads)
        }
        # Axes along which only decays differ are those of heads, unless no others are left for values.
        decaying = {axis for axis in others if any(self.varies(number, [axis]) for number in decay)}
        heads = heads if heads | decaying == {*others} else heads | decaying
        values = [axis for axis in others if axis not in heads]
        require(max(heads, default=-1) < min(values, default=rank), "its values come before its heads")
        require(bool(values), "each of its values is read, or written, by itself")
        split = list[MatrixWrite]()
        for write in writes:
            along = [(n, self.varies(n, keys), self.varies(n, values)) for n in write]
            require(
                not any(k and v for _, k, v in along), "a value that is written is as large as the matrix"
            )
            of_key = tuple(n for n, is_key, _ in along if is_key)
            split.append(MatrixWrite(of_key, tuple(n for n in write if n not in of_key)))
        require(all(n not in self.late for write in split for n in write.keys), "a key depends on the matrix")
        axes = tuple(sorted(heads)), tuple(keys), tuple(values)
        rule = MatrixRule(self.body, self.memory, *axes, tuple(decay), tuple(reads), tuple(split))
        ends = [n for write in split for n in write.values] + self.recur.outputs
        alike = tuple(self.read_alike(write, rule) for write in split)
        by_key, by_value = (any(self.varies(n, axes) for n in decay) for axes in (keys, values))
        require(not (by_key and by_value), "each of its elements decays by itself")
        early = self.early_operands(ends, rule)
        return replace(rule, early=early, alike=alike, by_key=by_key, by_value=by_value)

    def read_alike(self, write: MatrixWrite, rule: MatrixRule) -> int:
        """Returns the place of a read by the vector of a write; -1 for none."""
        if len(write.keys) != 1:
            return -1
        heads, keys, values = rule.sizes
        order = [*rule.head_axes, *rule.value_axes, *rule.key_axes]
        own = np.broadcast_to(self.labels[write.keys[0]], self.type.shape).transpose(order)
        for place, read in enumerate(rule.reads):
            shape = self.body.type_of(read.product).shape
            terms = self.terms_of_read(read, np.broadcast_to(self.labels[read.factor], shape))
            if (terms.reshape(heads, values, keys) == own.reshape(heads, values, keys)).all():
                return place
        return -1

    # ---- reads

    def reads(self) -> tuple[list[MatrixRead], list[int], list[int]]:
        """Finds the sums over keys; returns them, the axes that they sum over, and the others."""
        found, axes = list[MatrixRead](), set[tuple[int, ...]]()
        for number in sorted(self.late):
            node = self.body.nodes[number]
            if node.kind == "reduce":
                require(node.operation == "sum", f"it computes {node.operation} of its memory")
                read = self.read_of(number)
                at = self.matrix_at(read)
                require(at.size == self.type.size, "a sum over its memory reads it several times")
                coordinates = np.unravel_index(at, self.type.shape)
                own = tuple(axis for axis, c in enumerate(coordinates) if (c != c[:, :1]).any())
                axes.add(own)
                others = [axis for axis in range(len(self.type.shape)) if axis not in own]
                expected = np.arange(self.type.size).reshape(self.type.shape)
                expected = expected.transpose([*others, *own]).reshape(at.shape)
                require((at == expected).all(), "a sum over its memory has another order")
                found.append(read)
        require(bool(found), "nothing reads it in a sum")
        require(len(axes) == 1, "it is read along several axes")
        keys = [*axes.pop()]
        require(bool(keys), "nothing reads it in a sum over keys")
        return found, keys, [axis for axis in range(len(self.type.shape)) if axis not in keys]

    def read_of(self, number: int) -> MatrixRead:
        """Returns the read of a sum: behind views, the product of a view of the matrix and of one vector."""
        product = self.behind_views(self.body.nodes[number].inputs[0])
        node = self.body.nodes[product]
        require(node.operation == "multiply", "a sum over its memory is not one of products")
        late = [n for n in node.inputs if n in self.late]
        require(len(late) == 1 and self.behind_views(late[0]) == self.memory, "a sum reads it after a change")
        factor = node.inputs[1] if node.inputs[0] == late[0] else node.inputs[0]
        return MatrixRead(number, factor, product)

    def behind_views(self, number: int) -> int:
        """Returns the value that a node shows."""
        while self.body.nodes[number].is_view:
            number = self.body.nodes[number].inputs[0]
        return number

    def shown(self, number: int, given: dict[int, Array]) -> Array:
        """Returns the elements that a view shows of arrays that are given for some nodes."""
        if number in given:
            return given[number]
        node = self.body.nodes[number]
        return viewed(node, self.shown(node.inputs[0], given))

    def terms_of_read(self, read: MatrixRead, product: Array) -> Array:
        """Returns elements of a read's product as [results, terms of each]."""
        node = self.body.nodes[read.number]
        array = self.shown(node.inputs[0], {read.product: product})
        reduced = sorted({axis % array.ndim for axis in node.attributes["axes"]})
        kept = [axis for axis in range(array.ndim) if axis not in reduced]
        return array.transpose([*kept, *reduced]).reshape(node.type.size, -1)

    def matrix_at(self, read: MatrixRead) -> Array:
        """Returns the elements of the matrix that each result of a read sums, by their flat indices."""
        node = self.body.nodes[read.product]
        (late,) = (n for n in node.inputs if n in self.late)
        at = self.shown(late, {self.memory: np.arange(self.type.size).reshape(self.type.shape)})
        return self.terms_of_read(read, np.broadcast_to(at, node.type.shape))

    def varies_in_read(self, read: MatrixRead, axis: int, keys: list[int]) -> bool:
        """Tells whether the vector of a read differs along an axis of the matrix."""
        shape = self.body.type_of(read.product).shape
        terms = self.terms_of_read(read, np.broadcast_to(self.labels[read.factor], shape))
        others = [n for n in range(len(self.type.shape)) if n not in keys]
        array = terms.reshape([*(self.type.shape[n] for n in others), -1])
        return differs(array, others.index(axis))

    # ---- the next matrix

    def terms(self, number: int) -> tuple[list[int], list[list[int]]]:
        """Returns the factors of the matrix in its next value, and those of all other terms."""
        decay, writes = list[list[int]](), list[list[int]]()
        for term in self.parts("add", number):
            factors = self.parts("multiply", term)
            others = [n for n in factors if n != self.memory]
            if len(others) < len(factors):
                require(len(others) == len(factors) - 1, "its memory is not scaled by a number")
                require(self.late.isdisjoint(others), "its decay depends on it")
                decay.append(others)
            else:
                writes.append(others)
        require(len(decay) == 1, "the next memory is not a sum with the one before")
        require(bool(writes), "nothing is written to it")
        return decay[0], writes

    def parts(self, operation: str, number: int) -> list[int]:
        """Lists the terms of a sum ("add"), or factors of a product ("multiply"), of the matrix's size."""
        node = self.body.nodes[number]
        if node.operation == operation and node.type.shape == self.type.shape:
            return [part for operand in node.inputs for part in self.parts(operation, operand)]
        return [number]

    def varies(self, number: int, axes: "list[int] | tuple[int, ...]") -> bool:
        """Tells whether a factor of the matrix's size, or broadcast to it, differs along some axes."""
        labels = self.labels[number]
        lead = len(self.type.shape) - labels.ndim
        return any(axis >= lead and differs(labels, axis - lead) for axis in axes)

    # ---- elementwise values

    def early_operands(self, ends: list[int], rule: MatrixRule) -> tuple[int, ...]:
        """Returns what does not depend on the matrix and is read by what does: at the same head and value, or
        for each head. Raises `OtherFormError` for a step that reads other values.
        """
        count = rule.value_count
        reads = {read.number for read in rule.reads}
        seen, waiting, early = set[int](), [*ends], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen or number in reads:
                continue
            seen.add(number)
            node = self.body.nodes[number]
            require(node.type.size in (count, rule.sizes[0], 1), "a value has another size")
            if number not in self.late:
                early.add(number)
                continue
            require(node.type.size == count, "a value is not one of each head and value")
            flat = node.is_view and is_flat(node, self.body.type_of(node.inputs[0]).shape)
            require(flat or node.kind == "pointwise", f"its values meet in {node.operation}")
            waiting += node.inputs
        require(all(self.is_of_head(n, rule) for n in early), "a value is read along another axis")
        require(all(self.body.type_of(n).dtype == FLOAT for n in early), f"a value is not in {FLOAT}")
        return tuple(sorted(early))

    def is_of_head(self, number: int, rule: MatrixRule) -> bool:
        """Tells whether an early value has an element for each head and value, or for each head, in order."""
        heads, _, values = rule.sizes
        shape = self.body.type_of(number).shape
        size = prod(shape)
        if size in (1, heads * values):
            return True
        # One for each head is broadcast to all its values.
        at = np.arange(size).reshape(shape)
        users = [node for node in self.body.nodes if number in node.inputs and node.kind == "pointwise"]
        whole = np.repeat(np.arange(heads), values)
        return all((np.broadcast_to(at, n.type.shape).ravel() == whole).all() for n in users if
                   n.type.size == heads * values)  # fmt: skip


def require(holds: bool, otherwise: str) -> None:
    """Raises `OtherFormError` with a text unless a condition holds."""
    if not holds:
        raise OtherFormError(otherwise)


def is_plain(body: Net, numbers: Collection[int] | None = None) -> bool:
    """Tells whether each element of a step's values is an expression of others: elementwise, or a sum, a
    maximum or a minimum; not a product with a matrix, a table, a scan, or part of a concatenation.

    numbers: the nodes to look at; all by default.
    """
    return all(
        (node.kind in ("pointwise", "reduce", "source") or node.is_view or node.operation == "expand")
        and node.operation != "argmax"
        for node in (body.nodes if numbers is None else map(body.nodes.__getitem__, numbers))
    )
