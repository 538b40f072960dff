"""Recognition: from the body of a recurrence to the cell that it computes, or the reason why it computes
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from stepnet.compiler.net.interpreter import LevelSizes, interpret
from stepnet.compiler.net.ir import Net, Node, Recur
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.passes.chain import chain
from stepnet.compiler.plan.recognise.cells import KNOWN, BodyMemory, CellMatch, KnownCell
from stepnet.compiler.plan.recognise.gates import GateTerm, strange
from stepnet.compiler.plan.recognise.polynomial import DifferentError, Leaf, Polynomial
from stepnet.compiler.plan.recognise.values import Values
from stepnet.compiler.plan.recognise.weights import arrays_of, is_projected
from stepnet.compiler.values.records import dataclass
from stepnet.layout.semantics import Semantics

Array = np.ndarray


@dataclass(frozen=True)
class Recognised:
    """Recurrence that was recognised as a known cell.

    Attributes:
        recur: The recurrence.
        semantics: The function of the cell, and its name: "rnn", "gru", "lstm" or "mgu".
        h: The index of h among the memories.
        c: The index of c among the memories; None for a cell without c.
        outputs: For each output of the body, "h" or "c" if it is that memory after the step, else None.
        sequences: The indices of the sequences whose flattened features, concatenated in this order, are x.
        projected: For inputs that are added to the gates without a W: the indices in x of the features of
            each gate, gate after gate. None if there is a W.
        names: The names of the cell's arrays among W, R, b, d, p and P, in the order of the results of
            `weights`.
        weights: The net that computes the arrays of the cell, in the arrangement of `stepnet.cells`, from the
            body's parameters. An LSTM has all four gates: if i is coupled, its weights are those of 1 - f.
        inputs: The number of features of x.
        hidden: The number of units.
    """

    recur: Recur
    semantics: Semantics
    h: int
    c: int | None
    outputs: tuple[str | None, ...]
    sequences: tuple[int, ...]
    projected: tuple[int, ...] | None
    names: tuple[str, ...]
    weights: Net
    inputs: int
    hidden: int

    @property
    def cell(self) -> str:
        """The name of the cell that was recognised: "rnn", "gru", "lstm" or "mgu"."""
        return self.semantics.cell

    def arrays(self, others: Sequence[Array]) -> dict[str, Array]:
        """Computes the cell's arrays, by name, in the dtype of its memory.

        Args:
            others: The arrays of the recurrence's other operands, in order: parameters and statics.
        """
        types = [self.recur.body.type_of(number) for number in self.recur.others]
        pairs = zip(types, others, strict=True)
        parameters = [array for type_, array in pairs if type_.extent == CONST]
        return dict(zip(self.names, interpret(self.weights, parameters, LevelSizes(1)), strict=True))

    def __str__(self) -> str:
        """Describes the known cell in one line: its semantics, number of units, and names of arrays."""
        text = repr(self.semantics).removeprefix("Semantics(").removesuffix(")")
        return f"{text}; {self.hidden} units, {', '.join(self.names)}"


@dataclass(frozen=True)
class Refused:
    """Reason, as text, why a recurrence computes no known cell."""

    reason: str

    def __str__(self) -> str:
        """Returns the reason, for a message."""
        return self.reason


def recognise(of: Net | Node | Recur) -> Recognised | Refused:
    """Recognises the known cell that a recurrence computes; returns the reason if it computes none.

    Args:
        of: A recurrence, its node, or a net with one recurrence.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> def step(x, h, p):
    ...     z = sn.sigmoid(np.concatenate([h, x], axis=-1) @ p["Z"])
    ...     r = 1 / (1 + np.exp(-(np.concatenate([h, x], axis=-1) @ p["R"])))
    ...     n = np.tanh(np.concatenate([r * h, x], axis=-1) @ p["N"])
    ...     h = (1 - z) * h + z * n
    ...     return h, h
    >>> params = {name: np.zeros((5, 2), np.float32) for name in "ZRN"}
    >>> print(recognise(sn.RNN(step, params, memory=2, inputs=3).net))
    gru: reset='before', update='write'; 2 units, W, R
    >>> print(recognise(sn.RNN(lambda x, h, p: (h, np.sin(h + x)), memory=2, inputs=2).net))
    it computes sin, which no known cell does
    """
    try:
        recur = recur_of(of)
        return recognised(replace(recur, body=chain(recur.body)))
    except DifferentError as different:
        return Refused(different.reason)


def recur_of(of: Net | Node | Recur) -> Recur:
    """Returns the only recurrence of a net, or that of a node; a recurrence is returned unchanged. Raises
    `DifferentError` if there is not exactly one.
    """
    if isinstance(of, Recur):
        return of
    nodes = of.nodes if isinstance(of, Net) else (of,)
    recurs = [node.recur for node in nodes if node.operation == "recur"]
    if len(recurs) != 1:
        raise DifferentError(f"the net has {len(recurs) or 'no'} recurrences instead of one")
    return recurs[0]


def recognised(recur: Recur) -> Recognised:
    """Recognises the cell that a recurrence computes, by trying every row of the table of known cells, with
    its memories in every order; the first match counts. If none matches, raises `DifferentError` with the
    names of functions in its memories that no known cell has, or else the reason of the attempt that came
    furthest.
    """
    memories = memories_of(recur)
    reason = DifferentError(f"it carries {len(memories)} memories, but known cells carry one or two")
    values = Values.of(recur)
    body_memories = [
        BodyMemory(leaf, values.value_of(number), values.value_of(after))
        for leaf, number, after in zip(memories, recur.memories, recur.following, strict=True)
    ]
    for row in KNOWN:
        for order in permutations(range(len(body_memories)), len(row.memories)):
            if len(order) != len(body_memories):
                continue
            try:
                match = row.found(values.algebra, *(body_memories[index] for index in order))
                return result_of_match(values, row, match, order, body_memories)
            except DifferentError as different:
                reason = max(reason, different, key=lambda mismatch: mismatch.depth)
    names = ", ".join(sorted({name for memory in body_memories for name in strange(memory.after)}))
    raise DifferentError(f"it computes {names}, which no known cell does") if names else reason


def memories_of(recur: Recur) -> list[Leaf]:
    """Lists the memories of a recurrence as leaves (features of an input) of polynomials; raises
    `DifferentError` if no known cell has such memories.
    """
    leaves: list[Leaf] = []
    if not 1 <= recur.memory_count <= 2:
        raise DifferentError(f"it carries {recur.memory_count} memories, but known cells carry one or two")
    for number in recur.memories:
        type_ = recur.body.type_of(number)
        if type_.extent != ROWS or len(type_.shape) != 1 or not type_.is_float:
            raise DifferentError(f"a memory is {type_.element}, but known cells carry vectors of floats")
        leaves.append(Leaf("memory", number, np.arange(type_.size, dtype=np.int64).tobytes()))
    return leaves


def result_of_match(
    values: Values, row: KnownCell, match: CellMatch, order: Sequence[int], memories: Sequence[BodyMemory]
) -> Recognised:
    """Makes the description of a recognised cell from a match: where its memories, inputs and outputs are in
    the recurrence, and the net that computes its arrays.

    values: the values of the recurrence's body (the net of its step) as polynomials.
    row: the matching entry in the table of known cells. match: the gates that were found.
    memories: the memories of the body. order: for each memory of the cell, its index in `memories`. Raises
        `DifferentError` if the sizes of the memories differ.
    """
    recur, body = values.recur, values.recur.body
    last = order[-1]
    hidden, outputs = (body.type_of(recur.memories[index]).size for index in (last, order[0]))
    if match.projection is None and hidden != outputs:
        raise DifferentError("its memories have different sizes", 3)
    gates = list(match.gates.values())
    read = {term.leaf.number for gate in gates for term in gate.x}
    sequences = [number for number in recur.sequences if number in read]
    begins = {recur.memories[order[0]]: 0}
    inputs = 0
    for number in sequences:
        begins[number] = inputs
        inputs += body.type_of(number).size
    projected = None
    if is_projected(gates):
        terms: list[GateTerm] = [gate.x[0] for gate in gates]
        projected = tuple(int(p) + begins[t.leaf.number] for t in terms for p in t.leaf.indices)
    net, names = arrays_of(recur, match, begins, (inputs, outputs, hidden), projected is not None)
    after = {memories[index].after: name for name, index in zip(row.memories, order, strict=True)}
    return Recognised(
        recur=recur,
        semantics=match.semantics,
        h=order[0],
        c=last if len(order) > 1 else None,
        outputs=tuple(kind_of(values, number, after) for number in recur.outputs),
        sequences=tuple(recur.sequences.index(number) for number in sequences),
        projected=projected,
        names=names,
        weights=net,
        inputs=inputs,
        hidden=hidden,
    )


def kind_of(values: Values, number: int, after: Mapping[Polynomial, str]) -> str | None:
    """Returns "h" or "c" if output `number` is that memory's next value (a key of `after`), else None."""
    try:
        return after.get(values.value_of(number))
    except DifferentError:
        return None
