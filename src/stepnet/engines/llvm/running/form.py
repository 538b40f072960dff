"""The arrays of calls of one form: of as many sequences and steps, that lie alike."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.machine.memory import POOL, Rows, Together
from stepnet.engines.llvm.machine.records import Axis
from stepnet.engines.llvm.running.finish import Finish, FinishCall, Kinds
from stepnet.engines.llvm.running.laid import Laid
from stepnet.engines.llvm.running.workspace import ENDING_STEPS, SLACK
from stepnet.net.types import Type

OptionalArrays = Sequence[Array | None]
NOTHING = Together([])


class Arrays(NamedTuple):
    """The arrays of a call in the order of their words, and of these the last memories and the results.

    Also the memory for values computed once per sequence (None where there are none), the number of
    sequences, all arrays by kind where there is work after the loop, and the memory of those that are for
    that work alone.
    """

    in_order: list[Array | None]
    final: Sequence[Array]
    results: Results
    record: Array | None
    batch: int
    kinds: Kinds
    kept: Array | None

    def give_back(self) -> None:
        """Gives back the memory that was for the call alone."""
        POOL.give_back(*(memory for memory in (self.record, self.kept) if memory is not None))


class Kind:
    """What makes the arrays of all calls of a kernel.

    outputs, rows, totals: the types of the results. filled: for the places of initial memories that must be
    arrays the type of each. record: bytes for each sequence of what is computed once per sequence; 0 for
    none. axes: of inner sequences. padded: for the kinds and places of their arrays whose rows are not whole
    vectors the type, and the numbers of a row that is. is_plain: whether the machine code works on the arrays
    of the call and of its results alone.
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
        self.outputs, self.rows = ([Rows(t.shape, t.dtype) for t in types] for types in (outputs, rows))
        self.totals = Together([(type_.shape, type_.dtype) for type_ in totals])
        self.filled = {place: Rows(type_.shape, type_.dtype) for place, type_ in filled.items()}
        self.finish, self.record = finish, record
        self.axes, self.padded = axes, padded or {}
        self.is_plain = finish is None and not record and not self.padded


class Form:
    """What makes the arrays of calls like one: of as many sequences and steps."""

    def __init__(self, kind: Kind, call: Call) -> None:
        laid = Laid.of(call)
        self.kind, self.batch = kind, call.rows
        self.count = call.rows if call.last_only else call.total
        self.whole = laid.filled == call.rows if call.last_only else laid.steps == call.total
        if is_appended(call):  # there is memory for so many rows at a time
            self.count, self.whole = 0, True
        self.apart, self.others = kind.outputs, NOTHING
        if call.apart is not None and call.apart < len(kind.outputs):
            self.apart, others = kind.outputs[: call.apart], kind.outputs[call.apart :]
            self.others = Together([((self.count, *rows.shape), rows.dtype) for rows in others])
        self.filled: dict[int, Array] = {}
        for place, rows in kind.filled.items():
            self.filled[place] = np.zeros((call.rows, *rows.shape), rows.dtype)
        self.record = (call.rows + SLACK) * kind.record
        self.finish = None if kind.finish is None else FinishCall(kind.finish, call)
        self.offsets = offsets_by_axis(kind.axes, call)

    def release(self) -> None:
        """Gives back its memory: no more calls are made of this form."""
        if self.finish is not None:
            self.finish.release()

    def results(self) -> Results:
        """New arrays for the results; outputs are zeroed where there are places that no step writes."""
        outputs = [rows.new(self.count) for rows in self.apart]
        if self.others is not NOTHING:
            outputs += self.others.new()
        if not self.whole:
            for output in outputs:
                output[...] = 0
        totals = self.kind.totals.new() if self.kind.totals.parts else []
        return Results(outputs, [rows.new(self.batch) for rows in self.kind.rows], totals)

    def padded(self, kind: str, arrays: OptionalArrays) -> OptionalArrays:
        """The arrays of a kind, those of inner sequences in rows of whole vectors."""
        made = list(arrays)
        for (own, place), (type_, size) in self.kind.padded.items():
            array = made[place] if own == kind else None
            if array is not None:
                rows = np.zeros((len(array), size), array.dtype)
                rows[:, : type_.size] = array.reshape(len(array), type_.size)
                made[place] = rows
        return made

    def arrays(
        self, sequences: OptionalArrays, initial: OptionalArrays, statics: OptionalArrays, results: Results
    ) -> Arrays:
        """All arrays of a call, including those of results that nobody asked for."""
        begun = list(initial)
        for place, zeros in self.filled.items():
            if begun[place] is None:
                begun[place] = zeros
        if self.kind.is_plain:
            final, outputs = results.final, results.outputs
            in_order = [*sequences, *begun, *final, *statics, *outputs, *self.offsets]
            return Arrays(in_order, final, results, None, self.batch, {}, None)
        sequences, statics = self.padded("inputs", sequences), self.padded("statics", statics)
        kinds: Kinds = {}
        final, others, kept = results.final, list[Array](), None
        if self.finish is not None:
            kept = POOL.take(self.finish.kept.bytes, zeroed=False)
            own = self.finish.arrays(results, kept)
            kinds = {**own, "inputs": sequences, "initial": begun, "statics": statics}
            final, others = own["final"], [*own["kept"], *own["reduced"], *own["ended"]]
        record = POOL.take(self.record) if self.record else None
        in_order = [*sequences, *begun, *final, *statics, *results.outputs, *others, *self.offsets]
        return Arrays(in_order, final, results, record, self.batch, kinds, kept)


def most_steps(call: Call) -> int:
    """How many steps a block has at most, of a call whose sequences may end early."""
    assert call.until is not None
    many = call.last_only and Laid.of(call).filled > ENDING_STEPS
    return 1 if many or not call.until.beyond else ENDING_STEPS


def is_appended(call: Call) -> bool:
    """Whether the outputs of a call are put behind one another, as how many there are is not known. That of
    the last step has the place of its sequence, if no steps behind it are computed.
    """
    return call.until is not None and not (call.last_only and most_steps(call) == 1)


def offsets_by_axis(axes: Sequence[Axis], call: Call) -> list[Array]:
    """The offsets of a call's inner sequences along each axis: of the words of each sequence, or step."""
    offsets = [call.beside[axis.name] if axis.table == "owner" else call.inner[0] for axis in axes]
    counts = [call.rows if axis.table == "owner" else call.total for axis in axes]
    # What a Ragged has checked: machine code reads an offset of each row, or of each step.
    assert all(len(own) == count + 1 for own, count in zip(offsets, counts, strict=True))
    return [np.ascontiguousarray(own, np.int64) for own in offsets]


def words_of(axes: Sequence[Axis], call: Call) -> tuple[int, ...]:
    """How many words a row has in the mean, along each axis: rounded up to powers of two, so that many calls
    are of the same size.
    """
    means = (-(-int(offsets[-1]) // max(1, len(offsets) - 1)) for offsets in offsets_by_axis(axes, call))
    return tuple(1 << max(0, mean - 1).bit_length() for mean in means)
