"""The argument arrays of calls with the same numbers of sequences and steps and the same memory layout."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.spaces import SLACK
from stepnet.compiler.net.types import Type
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.machine.memory import POOL, JointAllocation, RowAllocator, pointer
from stepnet.compiler.targets.cpu.machine.records import Axis
from stepnet.compiler.targets.cpu.running.finish import Finish, FinishCall
from stepnet.compiler.targets.cpu.running.new_arrays import NewArray
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.running.workspace import ENDING_STEPS
from stepnet.ragged.positions import Positions

OptionalArrays = Sequence[Array | None]
NOTHING = JointAllocation([])


class CallArrays(NamedTuple):
    """Arrays of a call.

    in_order: all arrays, in the order of the kernel's arguments; None for omitted initial memories.
    final: the final memories.
    results: the results of the call.
    record: the buffer for values computed once per sequence; None if there are none.
    batch: the number of sequences.
    nodes: the arrays that the work after the loop reads and writes, by node of the net.
    of_functions: the arrays among `nodes` that functions of totals read and write.
    hidden: the buffer of the arrays among `nodes` that are not returned; None if there is no such work.
    """

    in_order: list[Array | None]
    final: Sequence[Array]
    results: Results
    record: Array | None
    batch: int
    nodes: dict[int, Array]
    of_functions: Sequence[Array]
    hidden: Array | None

    def pointers(self, order: Sequence[int]) -> list[int]:
        """Returns the addresses of the call's arrays in the order of the machine code's arguments. order: for
        each argument, the position of its array.
        """
        return [pointer(self.in_order[place]) for place in order]

    def give_back(self) -> None:
        """Returns the temporary buffers of the call to the pool, once its results are computed."""
        POOL.give_back(*(memory for memory in (self.record, self.hidden) if memory is not None))


class ArrayKinds:
    """Kinds of arrays that all calls of a kernel have.

    outputs, rows, totals: the types of the results.
    filled: the types of the initial memories that must be present, by position; zeros replace omitted ones.
    finish: the work after the loop; None if there is none.
    record: the bytes of a sequence's record of values computed once per sequence; 0 for none.
    axes: the axes of inner sequences.
    padded: for arrays of inner sequences whose rows are not whole vectors, by kind and position, the type and
        the padded size of a row in numbers.
    is_plain: whether the machine code reads and writes only the arrays of the call and its results.
    """

    def __init__(
        self,
        outputs: Sequence[Type],
        rows: Sequence[Type],
        totals: Sequence[Type],
        filled: dict[int, Type],
        finish: Finish | None,
        record: int,
        axes: Sequence[Axis] = (),
        padded: "dict[tuple[str, int], tuple[Type, int]] | None" = None,
    ) -> None:
        """Makes allocators for the arrays of the calls of a kernel (compiled part of a net), from the types
        of its results and memories.

        outputs, rows, totals: the types of the results per step, per sequence, and of all rows.
        filled: the types of the initial memories (recurrent states) for which zeros replace None, by
        position.
        finish: the work after the loop; None if there is none.
        record: the bytes of a sequence's values that are computed once; 0 for none.
        axes: the axes of inner sequences.
        padded: by kind and position of an array, the type and the padded size of its rows.
        """
        self.outputs, self.rows = (
            [RowAllocator(t.shape, t.dtype) for t in types] for types in (outputs, rows)
        )
        self.totals = JointAllocation([(type_.shape, type_.dtype) for type_ in totals])
        self.filled = {place: RowAllocator(type_.shape, type_.dtype) for place, type_ in filled.items()}
        self.finish, self.record = finish, record
        self.axes, self.padded = axes, padded or {}
        self.is_plain = finish is None and not record and not self.padded


class CallForm:
    """Maker of the arrays of calls with the same numbers of sequences and steps as a given call."""

    def __init__(self, kind: ArrayKinds, call: Call) -> None:
        """Makes allocators for arrays of the sizes of a call, of the kinds that its kernel (compiled part of
        a net) has. `count` is the number of rows of an output, `whole` whether steps write all of them.
        Outputs that need no buffer of their own, `others`, have one together.
        """
        positions = call.positions
        laid, rows, total = SequenceLayout.of(positions), positions.rows, positions.total
        self.kind, self.batch = kind, rows
        self.count = rows if call.last_only else total
        self.whole = laid.filled == rows if call.last_only else laid.steps == total
        if is_appended(call):  # output buffers are allocated during the call
            self.count, self.whole = 0, True
        self.separate, self.others = kind.outputs, NOTHING
        count = call.separate_outputs
        if count is not None and count < len(kind.outputs):
            self.separate, others = kind.outputs[:count], kind.outputs[count:]
            self.others = JointAllocation([((self.count, *rows.shape), rows.dtype) for rows in others])
        self.filled: dict[int, Array] = {}
        for place, rows in kind.filled.items():
            self.filled[place] = np.zeros((self.batch, *rows.shape), rows.dtype)
        self.record = (self.batch + SLACK) * kind.record
        self.finish = None if kind.finish is None else FinishCall(kind.finish, call)
        self.offsets = offsets_by_axis(kind.axes, positions)

    def release(self) -> None:
        """Frees the memory for the work after the loop over steps. No call may use this object later."""
        if self.finish is not None:
            self.finish.release()

    def results(self) -> Results:
        """Allocates the result arrays of a call; outputs are filled with zeros if there are rows (entries)
        that no step writes.
        """
        outputs = [self.cleared(rows.new(self.count)) for rows in self.separate]
        if self.others is not NOTHING:
            outputs += self.other_outputs()
        totals = self.kind.totals.new() if self.kind.totals.array_specs else []
        return Results(outputs, [rows.new(self.batch) for rows in self.kind.rows], totals)

    def other_outputs(self) -> list[Array]:
        """Allocates those outputs of a recurrence that have no buffer of their own, as arrays in one common
        buffer; they are filled with zeros if there are rows (entries) that no step writes.
        """
        return [self.cleared(output) for output in self.others.new()]

    def output(self, rows: RowAllocator) -> NewArray:
        """Returns the new array of an output, to be allocated: zeros if no step writes some of its rows."""
        return NewArray(rows.spec(self.count), not self.whole)

    def cleared(self, output: Array) -> Array:
        """Fills the new array of an output with zeros if no step writes some of its rows; returns it."""
        if not self.whole:
            output[...] = 0
        return output

    def padded(self, kind: str, arrays: OptionalArrays) -> OptionalArrays:
        """Returns the arrays of a call with rows that are padded with zeros to whole vectors where the
        machine code needs it: those of inner sequences, which lie within a step. Other arrays are returned as
        they are.

        kind: the kind of the arrays, "inputs" or "statics" (values that every step reads).
        """
        padded = list(arrays)
        for (own, place), (type_, size) in self.kind.padded.items():
            array = padded[place] if own == kind else None
            if array is not None:
                rows = np.zeros((len(array), size), array.dtype)
                rows[:, : type_.size] = array.reshape(len(array), type_.size)
                padded[place] = rows
        return padded

    def whole_memory(self, initial: OptionalArrays) -> OptionalArrays:
        """Replaces missing initial memories (recurrent states), which are None, by zeros where the machine
        code needs an array. Returns the arrays, by position.
        """
        if not self.filled:
            return initial
        return [self.filled.get(n) if array is None else array for n, array in enumerate(initial)]

    def in_order(
        self, sequences: OptionalArrays, initial: OptionalArrays, statics: OptionalArrays, results: Results
    ) -> list[Array | None]:
        """Lists a call's arrays in the order in which a kernel (compiled part of a net) takes them, for
        kernels that need no further arrays (plain ones). Offsets of inner sequences are last. initial: the
        initial memories (recurrent states); None for zeros. results: the arrays of the results.
        """
        memories = self.whole_memory(initial)
        return [*sequences, *memories, *results.final, *statics, *results.outputs, *self.offsets]

    def arrays(
        self, sequences: OptionalArrays, initial: OptionalArrays, statics: OptionalArrays, results: Results
    ) -> CallArrays:
        """Collects all arrays that the machine code of a call reads and writes, those for values that are not
        returned included. initial: the initial memories (recurrent states); None for zeros. results: the
        arrays of the results. Temporary buffers are taken from the pool of memory; `CallArrays.give_back`
        returns them.
        """
        if self.kind.is_plain:
            in_order = self.in_order(sequences, initial, statics, results)
            return CallArrays(in_order, results.final, results, None, self.batch, {}, (), None)
        memories = self.whole_memory(initial)
        sequences, statics = self.padded("inputs", sequences), self.padded("statics", statics)
        final, hidden = results.final, None
        others: list[Array] = []
        nodes: dict[int, Array] = {}
        of_functions: list[Array] = []
        if self.finish is not None:
            hidden = POOL.take(self.finish.hidden.bytes, zeroed=False)
            kinds: dict[str, Sequence[Any]] = {
                "inputs": sequences,
                "initial": memories,
                "statics": statics,
                "rows": results.final,
                "totals": results.totals,
                "hidden": self.finish.hidden.arrays(hidden),
            }
            final, others, nodes, of_functions = self.finish.laid(kinds)
        record = POOL.take(self.record) if self.record else None
        in_order = [*sequences, *memories, *final, *statics, *results.outputs, *others, *self.offsets]
        return CallArrays(in_order, final, results, record, self.batch, nodes, of_functions, hidden)


def most_steps(call: Call) -> int:
    """Returns the largest number of steps that are computed together, in one block, before slots whose
    sequences ended take new ones, for a call whose sequences may end early: 1 if no step may run after the
    end of its sequence, as it could fail, or if many sequences want only their last output.
    """
    assert call.until is not None
    many = call.last_only and SequenceLayout.of(call.positions).filled > ENDING_STEPS
    return 1 if many or not call.until.beyond else ENDING_STEPS


def is_appended(call: Call) -> bool:
    """Tells whether the outputs of a call are appended to a buffer, since their number is not known: its
    sequences may end early (`until`). If only the last output of each is wanted, there is one per sequence,
    unless a lane (a slot that runs sequences) runs some steps past the end of its sequence before the end is
    noticed.
    """
    return call.until is not None and not (call.last_only and most_steps(call) == 1)


def offsets_by_axis(axes: Sequence[Axis], positions: Positions) -> list[Array]:
    """Returns, for each axis of inner sequences, their offsets as machine code reads them: where the inner
    sequence of each sequence or each step begins, and where the last one ends.

    axes: the axes; an axis of the table "owner" has an inner sequence for each sequence, others for each
    step.
    positions: the positions of the sequences, which have the offsets.
    """
    owned = [axis.table == "owner" for axis in axes]
    offsets = [
        positions.beside[axis.name] if own else positions.inner[0]
        for axis, own in zip(axes, owned, strict=True)
    ]
    counts = [positions.rows if own else positions.total for own in owned]
    # `Ragged` has checked this. Machine code reads an offset for each sequence or step.
    assert all(len(array) == count + 1 for array, count in zip(offsets, counts, strict=True))
    return [np.ascontiguousarray(array, np.int64) for array in offsets]


def words_of(axes: Sequence[Axis], positions: Positions) -> tuple[int, ...]:
    """Returns, for each axis of inner sequences (whose steps are words), the mean number of steps of an inner
    sequence, to estimate times. It is rounded up to a power of two, so that calls of about the same size
    share decisions.
    """
    means = (-(-int(offsets[-1]) // max(1, len(offsets) - 1)) for offsets in offsets_by_axis(axes, positions))
    return tuple(1 << max(0, mean - 1).bit_length() for mean in means)
