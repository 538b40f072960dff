"""The arrays of calls of one form: of as many sequences and steps, that lie alike."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.finish import Finish, FinishCall, Kinds
from stepnet.engines.llvm.memory import POOL, Shape, Together, maker
from stepnet.net.types import Type

OptionalArrays = Sequence[Array | None]


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


class Form:
    """What makes the arrays of calls like one.

    outputs, rows, totals: the types of the results. filled: for the places of initial memories that must be
    arrays the type of each. record: bytes of what is computed once per sequence; 0 for none.
    """

    def __init__(
        self,
        call: Call,
        outputs: Sequence[Type],
        rows: Sequence[Type],
        totals: Sequence[Type],
        filled: dict[int, Type],
        finish: Finish | None,
        record: int,
    ) -> None:
        count, whole = call.total, int(call.lengths.sum()) == call.total
        if call.last_only:
            count, whole = call.rows, bool(np.all(call.lengths))
        shapes: list[Shape] = [((count, *type_.shape), type_.dtype) for type_ in outputs]
        apart = len(shapes) if call.apart is None else call.apart
        self.batch, self.whole, self.record = call.rows, whole, record
        self.outputs, self.others = [maker(shape) for shape in shapes[:apart]], Together(shapes[apart:])
        self.rows = [maker(((call.rows, *type_.shape), type_.dtype)) for type_ in rows]
        self.totals = Together([(type_.shape, type_.dtype) for type_ in totals])
        self.filled = {
            place: np.zeros((call.rows, *type_.shape), type_.dtype) for place, type_ in filled.items()
        }
        self.finish = None if finish is None else FinishCall(finish, call)

    def release(self) -> None:
        """Gives back its memory: no more calls are made of this form."""
        if self.finish is not None:
            self.finish.release()

    def results(self) -> Results:
        """New arrays for the results; outputs are zeroed where there are places that no step writes."""
        outputs = [*(make() for make in self.outputs), *self.others.new()]
        if not self.whole:
            for output in outputs:
                output[...] = 0
        return Results(outputs, [make() for make in self.rows], self.totals.new())

    def arrays(
        self, sequences: OptionalArrays, initial: OptionalArrays, statics: OptionalArrays, results: Results
    ) -> Arrays:
        """All arrays of a call, including those of results that nobody asked for."""
        begun = list(initial)
        for place, zeros in self.filled.items():
            if begun[place] is None:
                begun[place] = zeros
        kinds: Kinds = {}
        final, others, kept = results.final, list[Array](), None
        if self.finish is not None:
            kept = POOL.take(self.finish.kept.bytes, zeroed=False)
            own = self.finish.arrays(results, kept)
            kinds = {**own, "inputs": sequences, "initial": begun, "statics": statics}
            final, others = own["final"], [*own["kept"], *own["reduced"], *own["ended"]]
        record = POOL.take(self.record) if self.record else None
        in_order = [*sequences, *begun, *final, *statics, *results.outputs, *others]
        return Arrays(in_order, final, results, record, self.batch, kinds, kept)
