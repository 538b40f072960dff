"""The rows of a stream of chunks: the values that are kept between chunks, and these as plain arrays.

    kept       part.0.earlier  steps of each row        ->   part.0.earlier.values, part.0.earlier.lengths
               part.1.memory.0 [rows, features...]      ->   the same
               taken           steps that each row had  ->   the same

The number of steps that each row has had determines the number of steps that are kept. Arrays of a file or
of a user are checked against it.
"""

from typing import Any, cast

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves
from stepnet.errors import FileError, InputError
from stepnet.model.graph.programs import GraphProgram
from stepnet.model.initial import MOST_BEGUN
from stepnet.model.streams.chunk_model import ChunkModel
from stepnet.model.streams.waiting import Kept, WaitingSteps

Array = np.ndarray
TAKEN, STATICS = "taken", "statics."
"""The names of values that are kept of rows beside those of the parts: the number of steps so far, and the
statics, each with its number behind the name."""


@dataclass(frozen=True)
class ChunkRows:
    """The rows of a stream of chunks after its first chunk.

    program: the traced model.
    model: its parts.
    kept: the values that the parts keep of the rows, the number of steps that each row has had, and its
        statics.
    """

    program: GraphProgram
    model: ChunkModel
    kept: Kept

    def begin(self, statics: list[Array], rows: int) -> Kept:
        """Returns the state of new rows. statics: the statics of the rows. rows: the number of rows."""
        own: Kept = {f"{STATICS}{place}": array for place, array in enumerate(statics)}
        return self.model.begin(rows) | own | {TAKEN: np.zeros(rows, np.int64)}

    @property
    def statics(self) -> list[str]:
        """The names of the statics in the state."""
        return [f"{STATICS}{place}" for place in range(self.model.statics)]

    def state(self) -> dict[str, Array]:
        """Returns copies of the state of the rows, without their statics, as arrays by name."""
        return {
            name: np.array(array)
            for name, array in arrays_of(self.kept).items()
            if not name.startswith(STATICS)
        }

    def from_state(self, initial: Any, statics: list[Array], rows: int) -> Kept:
        """Returns the rows of a stream that goes on from a state; raises `InputError` for a state that does
        not fit the model or the number of rows.

        initial: the state, as `state` returns it. statics: values that each row has once. rows: their number.
        """
        given = cast("dict[str, Any]", initial) if isinstance(initial, dict) else {}
        if not given or not all(isinstance(array, np.ndarray) for array in given.values()):
            raise InputError("initial is the state of rows of such a stream, a dict of arrays by name")
        own: dict[str, Array] = {
            name: array.copy() for name, array in given.items() if not f"{name}".startswith(STATICS)
        }
        own |= {f"{STATICS}{place}": array for place, array in enumerate(statics)}
        if TAKEN in own and own[TAKEN].shape != (rows,):
            raise InputError(f"initial has {TAKEN!r} of shape {own[TAKEN].shape}, and there are {rows} rows")
        try:
            return self.read(own, "initial")
        except FileError as error:
            raise InputError(str(error)) from None

    def read(self, arrays: dict[str, Array], where: str) -> Kept:
        """Returns the state of rows from the arrays that `arrays_of` made; raises `FileError` unless they fit
        this model, and hold the number of steps that follows from the steps of each row.

        arrays: the arrays, by name. where: the file that has them, or the argument, for messages.
        """
        left, made = dict(arrays), Kept()

        def taken(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
            """Takes an array out of the given ones; `FileError` for other features or another dtype."""
            array = left.pop(name, None)
            if array is None or (array.shape[1:], array.ndim, array.dtype) != (shape, len(shape) + 1, dtype):
                raise FileError(f"{where}: it has no array {name!r} of {dtype} with features {list(shape)}")
            return array

        def counted(name: str, counts: Array) -> Array:
            """Takes an array of counts; raises `FileError` unless they follow from the steps of each row."""
            if not np.array_equal(array := taken(name, (), np.dtype(np.int64)), counts):
                raise FileError(f"{where}: {name!r} does not fit the steps of the rows, {TAKEN!r}")
            return array

        made[TAKEN] = taken(TAKEN, (), np.dtype(np.int64))
        counts, rows = self.counts(made[TAKEN], where), len(made[TAKEN])
        statics = [np.zeros((0, *spec.shape), spec.dtype) for spec in leaves(self.program.traced.statics)]
        for name, own in self.begin(statics, 0).items():
            if isinstance(own, WaitingSteps):
                lengths = counted(f"{name}.lengths", counts[name])
                values = taken(f"{name}.values", own.values.shape[1:], own.values.dtype)
                if sum(lengths.tolist()) != len(values):
                    raise FileError(f"{where}: the lengths of {name!r} do not fit its {len(values)} steps")
                made[name] = WaitingSteps(values, lengths)
            elif name != TAKEN:
                is_count = name in counts
                array = counted(name, counts[name]) if is_count else taken(name, own.shape[1:], own.dtype)
                if len(array) != rows:
                    raise FileError(f"{where}: {name!r} has {len(array)} rows, and {TAKEN!r} {rows}")
                made[name] = array
        if left:
            raise FileError(f"{where}: it has an array {min(left, key=str)!r}, which this stream has not")
        return made

    def counts(self, taken: Array, where: str) -> dict[str, Array]:
        """Returns the counts and the numbers of steps that are kept of rows, by name.

        taken: the number of steps that each row has had; raises `FileError` for more than a stream can have.
        where: the file that has them, or the argument.
        """
        if (taken < 0).any() or sum(taken.tolist()) > MOST_BEGUN:
            raise FileError(f"{where}: {TAKEN!r} has counts of steps outside 0 to {MOST_BEGUN}")
        try:
            return self.model.counts(taken)
        except InputError as error:
            raise FileError(f"{where}: its rows have had too many steps ({error})") from None


def arrays_of(kept: Kept) -> dict[str, Array]:
    """Returns the state of rows as arrays by name; steps of several rows are two, their values and counts."""
    arrays: dict[str, Array] = {}
    for name, own in kept.items():
        if isinstance(own, WaitingSteps):
            arrays |= {f"{name}.values": own.values, f"{name}.lengths": own.lengths}
        else:
            arrays[name] = own
    return arrays
