"""The interpreter: runs a net on NumPy arrays. It is slow and simple; the engines are tested against it.

A value of extent const is an array [features...]; at rows it is [rows, features...]; at rows/steps the steps
of all rows are laid end to end, [total, features...], with the offsets of the rows; and so on for deeper
extents.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from stepnet.compiler.net.decays import decay_operands
from stepnet.compiler.net.encodings import rounded
from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.meanings import OUTSIDE, REDUCTIONS, vectors
from stepnet.compiler.net.memory import HOST, AnyMemory, Buffer, scattered
from stepnet.compiler.net.pairs import PairPlaces, is_causal, keys_of, queries_of
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import (
    AXES,
    CONST,
    ROWS,
    STEPS,
    Extent,
    Literal,
    Type,
    is_derived,
    is_pairs,
    is_static_extent,
)
from stepnet.compiler.net.windows import Window, derived_offsets
from stepnet.compiler.values.records import dataclass
from stepnet.errors import IndexOutsideError, InputError
from stepnet.ragged.offsets import offsets_of, positions_of

Array = np.ndarray
# Runs a body on the values of its inputs, their segments, and the step index, which is on the host.
RunBody = Callable[[Sequence[Any], "LevelSizes", Array], Sequence[Buffer]]


@dataclass(frozen=True)
class LevelSizes:
    """Numbers of rows, steps and deeper entries of a call.

    rows: the number of rows.
    offsets: the offsets of each ragged axis, outermost first.
    first_steps: for each row, the number of its steps that ran in earlier calls; None for zeros.
    beside: the offsets of static sequences, by the name of their axis.
    derived: the offsets along derived axes (of windows with a stride, for instance) so far, by their name.
    pairs: the places of pairs of steps so far, by their extent.
    """

    rows: int
    offsets: tuple[Array, ...] = ()
    first_steps: Array | None = None
    beside: Mapping[str, Array] = field(default_factory=dict[str, Array])
    derived: dict[str, Array] = field(default_factory=dict[str, Array], repr=False)
    pairs: dict[Extent, PairPlaces] = field(default_factory=dict[Extent, PairPlaces], repr=False)

    def count(self, extent: Extent) -> int:
        """Returns the number of entries that a value of this extent has in the call, such as one per row."""
        return 1 if extent == CONST else self.rows if extent == ROWS else int(self.into(extent)[-1])

    def into(self, extent: Extent) -> Array:
        """Returns the offsets of an extent's last axis: where its entries begin for each entry of the axis
        outside it, such as the steps of each row (sequence); and at the end the number of all entries. Axes
        derived by a stride, and pairs of steps, are computed at first use.

        extent: the axes along which a value has entries, such as rows and steps, or rows and a static axis
            (the steps of a sequence that each row has once, as the keys of attention).
        """
        if is_pairs(extent):
            return self.pairs_at(extent).offsets
        if is_derived(extent):
            axis = extent[-1]
            if axis not in self.derived:
                self.derived[axis] = derived_offsets(axis, self.offsets[0], self.beside)
            return self.derived[axis]
        return self.beside[extent[-1]] if is_static_extent(extent) else self.offsets[len(extent) - 2]

    def pairs_at(self, extent: Extent) -> PairPlaces:
        """Returns where the pairs of steps (a query with each of its keys) lie, for the axes of the pairs
        (`extent`), such as rows/steps/steps*: each step of a row with all steps of the row. Computed once for
        each extent.
        """
        if extent not in self.pairs:
            queries, keys = self.into(queries_of(extent)), self.into(keys_of(extent))
            self.pairs[extent] = PairPlaces.of(queries, keys, is_causal(extent))
        return self.pairs[extent]


def interpret(
    net: Net, arrays: Sequence[Array], segments: LevelSizes, index: Array | None = None
) -> list[Array]:
    """Computes the results of a net with NumPy: the reference for all engines.

    arrays: the inputs of the net, in order.
    segments: the numbers, and where each begins and ends, of rows (sequences), steps and the entries of inner
        sequences (those inside a step).
    index: for each row, the index of the step, if the net reads it.
    """
    inputs = dict(zip(net.inputs, arrays, strict=True))
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for number, node in enumerate(net.nodes):
            operands = [values[operand] for operand in node.inputs]
            if node.operation == "input":
                values.append(inputs[number])
            elif node.operation == "index":
                assert index is not None
                values.append(index)
            elif node.operation in ACROSS:
                values.append(ACROSS[node.operation](net, node, operands, segments))
            else:
                values.append(within(node, operands))
    return [materialised(net, result, values[result], segments) for result in net.results]


def evaluated(net: Net, values: Mapping[int, Array], numbers: Iterable[int]) -> dict[int, Any]:
    """Computes some nodes of a net from known values; returns all values by node number. It is used to
    compute constants from parameters.

    values: the known values by node number.
    numbers: the nodes to compute, in order; their operations need no lengths of sequences.
    """
    known: dict[int, Any] = {number: np.asarray(value) for number, value in values.items()}
    with np.errstate(all="ignore"):
        for number in numbers:
            node = net.nodes[number]
            known[number] = within(node, [known[operand] for operand in node.inputs])
    return known


def within(node: Node, operands: list[Array]) -> Any:
    """Computes a node that needs no lengths of sequences, by the NumPy function of its operation. Raises
    `IndexOutsideError` with the user's line for an index outside of its table.
    """
    try:
        return node.row.meaning(*operands, **node.attributes)
    except IndexError:
        raise IndexOutsideError(OUTSIDE, f"  at {node.source}") from None


def materialised(net: Net, number: int, value: Array, segments: LevelSizes) -> Array:
    """Gives a result of a net one entry for each row or step: a value that is the same for all is repeated. A
    constant is returned unchanged.

    number: the node of the result. segments: the numbers of rows, steps and deeper entries.
    """
    type_ = net.nodes[number].type
    shape = (segments.count(type_.extent), *type_.shape)
    if type_.extent == CONST:
        return value
    return np.ascontiguousarray(value) if value.shape == shape else np.array(np.broadcast_to(value, shape))


def widened(net: Net) -> Net:
    """Returns a net with float64 in place of float32, to compute references for float32 results."""
    return with_attributes(net, wide)


def with_attributes(net: Net, change: Callable[[Any], Any]) -> Net:
    """Returns a net with `change` applied to every attribute of its nodes, and of the nodes in the bodies of
    recurrences (the nets of their steps). Nodes keep their names and the user's lines.
    """
    builder = Builder()
    copy_of: list[int] = []
    for node in net.nodes:
        operands = (copy_of[operand] for operand in node.inputs)
        changed: dict[str, Any] = {
            name: with_attributes(value, change) if isinstance(value, Net) else change(value)
            for name, value in node.pairs
        }
        copy_of.append(builder.copy(node, operands, **changed))
    return builder.net(copy_of[result] for result in net.results)


def wide(value: Any) -> Any:
    """Returns an attribute of a node with float64 in place of float32, if it is a type, an array or the name
    of a dtype; any other attribute unchanged.
    """
    if isinstance(value, Type):
        return Type(value.extent, value.shape, wide(value.dtype))
    if isinstance(value, Literal) and value.value.dtype == np.float32:
        return Literal(value.value.astype(np.float64))
    return "float64" if isinstance(value, str) and value == "float32" else value


# ---- across extents ----------------------------------------------------------------------------------------


def expand(
    net: Net, node: Node, operands: list[Buffer], segments: LevelSizes, memory: AnyMemory = HOST
) -> Buffer:
    """Computes an `expand` node: repeats the value of each row or step for all its inner entries (such as the
    steps of a row), or with the attribute `how` writes it to the first or last of them.

    segments: the numbers of rows, steps and deeper entries. memory: where the operand lies.
    """
    depth, value = len(net.nodes[node.inputs[0]].type.extent), operands[0]
    if "how" in node.attributes:
        return at_ends(node, value, segments, memory)
    for inner in range(depth, len(node.type.extent)):
        if inner == 0:
            value = memory.rows(value, segments.rows)
        else:
            value = memory.repeat(value, np.diff(segments.into(node.type.extent[: inner + 1])))
    return value


def at_ends(node: Node, value: Buffer, segments: LevelSizes, memory: AnyMemory) -> Buffer:
    """Computes an `expand` node with the attribute `how`, "first" or "last": writes the value of each row to
    the first or last of its steps (that of a step to one of its inner entries, that of a constant to one
    row), and zeros to the others. segments: the numbers of rows, steps and deeper entries.
    """
    extent, first = node.type.extent, node.attributes["how"] == "first"
    rows = len(extent) == 1
    offsets = np.array([0, segments.rows]) if rows else segments.into(extent)
    filled = offsets[1:] > offsets[:-1]
    indices = (offsets[:-1] if first else offsets[1:] - 1)[filled]
    value = value if rows else memory.take(value, np.flatnonzero(filled))
    return scattered(memory, node.type, int(offsets[-1]), indices, value)


def reduce(net: Net, node: Node, operands: list[Array], segments: LevelSizes) -> Array:
    """Computes a `reduce` node: the inner entries of each row or step (the steps of a row, the words of a
    step) become one value, by a reduction such as "sum"; zeros if there are none. An operand with one value
    per row is reduced over all rows.

    segments: the numbers of rows, steps and deeper entries.
    """
    type_ = net.nodes[node.inputs[0]].type
    how = REDUCTIONS[node.attributes["how"]]
    if len(type_.extent) == 1:
        return how(operands[0]) if len(operands[0]) else np.zeros(type_.shape, type_.dtype)
    offsets = segments.into(type_.extent)
    out = np.zeros((len(offsets) - 1, *type_.shape), operands[0].dtype)
    for entry, (start, stop) in enumerate(pairwise(offsets)):
        if stop > start:
            out[entry] = how(operands[0][start:stop])
    return out


def windowed(
    net: Net, node: Node, operands: list[Buffer], segments: LevelSizes, memory: AnyMemory = HOST
) -> Buffer:
    """Computes a `windows` node, which copies for each step its window (some neighbouring steps), or an
    `overlap` node, which adds the entries of windows to the steps that they are of.

    segments: the numbers of rows, steps and deeper entries. memory: where the operand lies.
    """
    made, read = segments.into(node.type.extent), segments.into(net.nodes[node.inputs[0]].type.extent)
    return memory.windowed(node.operation, operands[0], made, read, Window.of(node.attributes))


def paired(
    net: Net, node: Node, operands: list[Buffer], segments: LevelSizes, memory: AnyMemory = HOST
) -> Buffer:
    """Computes a `scores` node, which multiplies queries and keys at their pairs, or a `mix` node, which sums
    weighted values over the keys of each query or over the queries of each key.

    segments: the numbers of rows, steps and deeper entries. memory: where the operands lie.
    """
    (first, second), scores = operands, node.operation == "scores"
    at_pairs = node if scores else net.nodes[node.inputs[0]]
    pairs, over = segments.pairs_at(at_pairs.type.extent), node.attributes.get("over", "")
    return memory.paired(node.operation, first, second, pairs, over)


def copied(
    net: Net, node: Node, operands: list[Buffer], segments: LevelSizes, memory: AnyMemory = HOST
) -> Buffer:
    """Computes an operation of `COPIED`, whose results are steps of the same sequence: `arrange`, which has
    them in their order or from the last one on, or `extend`, which repeats some at the ends.

    segments: the numbers of rows, steps and deeper entries. memory: where the operand lies.
    """
    return memory.take(operands[0], COPIED[node.operation](net, node, segments))


def arranged_indices(net: Net, node: Node, segments: LevelSizes) -> Array:
    """Returns the index of each step of the result of an `arrange` node of a net in its operand; raises
    `InputError` if the operand has other steps than the result. The node's attribute `reverse` says whether
    the steps of each sequence are taken last first.

    segments: the numbers of rows, steps and deeper entries.
    """
    read, made = net.type_of(node.inputs[0]).extent, node.type.extent
    offsets = segments.into(made)
    given, lengths = np.diff(segments.into(read)), np.diff(offsets)
    for sequence in np.flatnonzero(given != lengths)[:1]:
        raise InputError(
            f"the model combines steps one by one, and sequence {sequence} has {given[sequence]} {read[-1]} "
            f"and {lengths[sequence]} {made[-1]}"
        )
    numbers = np.arange(int(offsets[-1]))
    ends = np.repeat(offsets[:-1] + offsets[1:] - 1, lengths)
    return ends - numbers if node.attributes["reverse"] else numbers


def extended_indices(net: Net, node: Node, segments: LevelSizes) -> Array:
    """Returns the index of each step of the result of an `extend` node of a net in its operand; raises
    `InputError` for a sequence with fewer steps than it reads.

    segments: the numbers of rows, steps and deeper entries.
    """
    read = segments.into(net.type_of(node.inputs[0]).extent)
    return Extension.of(node.attributes).indices(segments.into(node.type.extent), read)


def decays(
    net: Net, node: Node, operands: list[Buffer], segments: LevelSizes, memory: AnyMemory = HOST
) -> Buffer:
    """Computes a `matrix_gradients` node. segments: the numbers of rows, steps and deeper entries."""
    given = decay_operands(operands, node.attributes["reads"], node.attributes["ends"])
    return memory.matrix_gradients(given, segments.into(node.type.extent), node.attributes["reverse"])


COPIED = {"arrange": arranged_indices, "extend": extended_indices}
"""The operations whose results are steps of the operand, each with the function of their indices there."""


def contract(net: Net, node: Node, operands: list[Array], segments: LevelSizes) -> Array:
    """Computes a `contract` node: the sum over all rows and steps of outer products of two vectors, which are
    rounded to bfloat16 first if the attribute `weights` names an encoding. If the node's value has one matrix
    per row, it is the sum over the steps of each.

    segments: the numbers of rows, steps and deeper entries.
    """
    if node.attributes.get("weights") is not None:
        operands = [rounded(operand) for operand in operands]
    if node.type.extent == CONST:
        left, right = map(vectors, operands)
        return left.T @ right
    pairs = pairwise(segments.into(net.type_of(node.inputs[0]).extent))
    pieces = [[vectors(operand[start:stop]) for operand in operands] for start, stop in pairs]
    made = [left.T @ right for left, right in pieces]
    return np.array(made, node.type.dtype).reshape(-1, *node.type.shape)


def result(net: Net, node: Node, operands: list[Any], segments: LevelSizes) -> Array:
    """Computes a `result` node: picks one, by attribute `of`, of the results of the node it reads."""
    return operands[0][node.attributes["of"]]


def recur(net: Net, node: Node, operands: list[Array], segments: LevelSizes) -> tuple[Buffer, ...]:
    """Computes a `recur` node by interpreting its body at every step: all outputs, final memories."""
    return by_steps(net, node, operands, segments, partial(interpret, node.attributes["body"]))


def by_steps(
    net: Net,
    node: Node,
    operands: Sequence[Buffer],
    segments: LevelSizes,
    run: RunBody,
    memory: AnyMemory = HOST,
) -> tuple[Buffer, ...]:
    """Computes a recurrence, `node` of `net`, step by step in Python; returns the outputs of all steps and
    the final memories.

    segments: the numbers of rows, steps and deeper entries.
    run: computes the results of the body (the net of a step) at one step, for the rows that have this step.
    memory: where the operands lie, and how rows are moved there.
    """
    recur = node.recur
    body, by_kind = recur.body, recur.operands_by_kind(operands)
    deep = recur_extent([net.nodes[operand].type for operand in node.inputs[:1]], node.attributes)
    state = [memory.copy(value) for value in by_kind.memories]
    types = recur.operands_by_kind([body.type_of(number) for number in body.inputs])
    results = [body.type_of(number) for number in recur.outputs]
    outputs: list[Buffer] = []
    for type_ in node.types[: len(results)]:
        outputs.append(memory.zeros((segments.count(type_.extent), *type_.shape), type_.dtype))
    for step in steps_of(recur.reverse, deep, segments):
        alive, indices = step.alive, step.indices
        pairs = zip(by_kind.sequences, types.sequences, strict=True)
        inner = [memory.take(sequence, indices[len(type_.extent) - 1]) for sequence, type_ in pairs]
        memories = of_rows(state, types.memories, segments, alive, memory)
        unchanged = by_kind.others
        if len(alive) < segments.count(deep[:-1]):
            unchanged = of_rows(by_kind.others, types.others, segments, alive, memory)
        step_results = run([*inner, *memories, *unchanged], step.sizes, step.index)
        step_results_by_kind = recur.results_by_kind(step_results)
        for output, type_, value in zip(outputs, results, step_results_by_kind.outputs, strict=True):
            memory.write(output, indices[len(type_.extent) - 1], value)
        for state_array, type_, value in zip(
            state, types.memories, step_results_by_kind.memories, strict=True
        ):
            memory.write(state_array, entry_indices(type_, segments, alive), value)
    return (*outputs, *state)


@dataclass(frozen=True)
class StepEntries:
    """The entries of one step of a recurrence.

    alive: the rows that have this step.
    indices: the indices of the step's entries among all, of the rows and of each level inside of the steps.
    sizes: the numbers of rows, and of entries of inner and static sequences, that the step has.
    index: for each row, the index of the step.
    """

    alive: Array
    indices: list[Array]
    sizes: LevelSizes
    index: Array


def steps_of(reverse: bool, deep: Extent, segments: LevelSizes) -> Iterator[StepEntries]:
    """Yields, for each step of a recurrence that the interpreter runs, which sequences still run and which
    entries of arrays they read, in the order in which the steps run.

    reverse: whether sequences run from their last step.
    deep: the axes along which the steps lie, such as rows/steps; rows/steps/words for inner sequences.
    segments: where the sequences begin and end along these axes, and the static sequences (one for each row).
    """
    offsets = segments.into(deep)
    starts, lengths = offsets[:-1], np.diff(offsets)
    first_steps = segments.first_steps if deep == STEPS else None
    levels = () if deep[-1] not in AXES else segments.offsets[len(deep) - 1 :]
    for step in range(int(lengths.max(initial=0))):
        alive = np.flatnonzero(lengths > step)
        at = starts[alive] + (lengths[alive] - 1 - step if reverse else step)
        indices, inside = entries_of_steps(at, levels)
        beside = segments.beside
        if len(alive) < len(lengths):
            beside = {axis: offsets_of(np.diff(level)[alive]) for axis, level in segments.beside.items()}
        index = np.full(len(alive), step) + (first_steps[alive] if first_steps is not None else 0)
        yield StepEntries(alive, indices, LevelSizes(len(alive), inside, beside=beside), index)


def of_rows(
    arrays: list[Buffer], types: list[Type], segments: LevelSizes, rows: Array, memory: AnyMemory = HOST
) -> list[Buffer]:
    """Selects the entries of some rows from the memories and statics (values that each row has once) of a
    recurrence, for its step. Parameters, which are the same for all rows, are returned unchanged.

    arrays, types: the memories, statics and parameters, and their types in the step.
    segments: the number of all rows, and where the static sequence of each row begins and ends.
    """
    return [
        array if type_.extent == CONST else memory.take(array, entry_indices(type_, segments, rows))
        for array, type_ in zip(arrays, types, strict=True)
    ]


def entry_indices(type_: Type, segments: LevelSizes, rows: Array) -> Array:
    """Returns the indices of the entries that belong to some rows, in an array of this type: one entry per
    row, or, for a static sequence, which each row has once, as many as it has steps.

    segments: the lengths of the static sequences of all rows.
    """
    if not is_static_extent(type_.extent):
        return rows
    level = segments.beside[type_.extent[-1]]
    return positions_of(level[rows], np.diff(level)[rows])


def entries_of_steps(at: Array, offsets: tuple[Array, ...]) -> tuple[list[Array], tuple[Array, ...]]:
    """Finds the entries inside the steps at these indices, to select them from deeper sequences.

    at: the indices of the steps. offsets: where sequences begin and end, for each level of nesting below the
        steps. Returns the indices of the selected entries at each level, starting with `at`, and their
        offsets at each level.
    """
    indices: list[Array] = [at]
    inner_offsets: list[Array] = []
    for level in offsets:
        starts, lengths = level[indices[-1]], np.diff(level)[indices[-1]]
        inner_offsets.append(offsets_of(lengths))
        indices.append(positions_of(starts, lengths))
    return indices, tuple(inner_offsets)


ACROSS = {
    "expand": expand,
    "reduce": reduce,
    "windows": windowed,
    "overlap": windowed,
    "scores": paired,
    "mix": paired,
    **dict.fromkeys(COPIED, copied),
    "matrix_gradients": decays,
    "contract": contract,
    "result": result,
    "recur": recur,
}
