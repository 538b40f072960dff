"""Plain calls of shapes that were seen before: what all of them have in common is prepared once.

    rnn(x)   check, look up the trace, share out lanes, write words, run, rebuild   ->   set addresses, run

A small recurrence runs in less time than a call needs for its preparation. So the second call of a shape
keeps what it prepared, and later calls only set the addresses of their arrays and run. This is for arrays
[batch, time, features...] without lengths, masks and statics. A frozen call that another thread is using is
not used.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from stepnet.engines import Bound, Call, FrozenCall
from stepnet.engines.threads import threads
from stepnet.rnn.idle import Idle, Key
from stepnet.rnn.program import Program
from stepnet.values.structure import leaves, leaves_as, rebuild

Array = np.ndarray
Kind = TypeVar("Kind", bound=Program)


@dataclass(frozen=True)
class Frozen(Generic[Kind]):
    """A prepared call for one shape: its program, and the code that runs it.

    memory: the shape and dtype of each memory. outputs: the shapes of the outputs as the caller gets them.
    """

    program: Kind
    run: FrozenCall
    memory: list[tuple[tuple[int, ...], np.dtype[Any]]]
    outputs: tuple[tuple[int, ...], ...]

    def arrays(self, initial: Any) -> list[Array | None] | None:
        """The initial memories where they can be used in place; None where one cannot."""
        if initial is None:
            return list[Array | None]([None] * len(self.memory))
        arrays = leaves_as(initial, self.program.memory)
        if arrays is None:
            return None
        for array, known in zip(arrays, self.memory, strict=True):
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return None
            if (array.shape, array.dtype) != known:
                return None
        return arrays

    def __call__(self, sequences: Array, initial: list[Array | None]) -> tuple[Any, Any]:
        """The outputs and the last memory."""
        program = self.program
        results = program.split(self.run([sequences], initial))
        outputs = [array.reshape(shape) for array, shape in zip(results.outputs, self.outputs, strict=True)]
        return rebuilt(program.output, outputs), program.final(results.final)


def rebuilt(structure: Any, arrays: list[Array]) -> Any:
    """Arrays in a structure, with a shortcut for a single one."""
    return arrays[0] if isinstance(structure, int) else rebuild(structure, arrays)


class FrozenCalls(Idle[Frozen[Kind]]):
    """The frozen calls of a recurrence, by shape."""

    def key(self, sequences: Any, last_only: Any, engine: Any, masked: Any, time_major: Any) -> Key | None:
        """The key of a frozen call for these arguments; None for arguments that are never frozen."""
        if type(sequences) is not np.ndarray or type(last_only) is not bool or type(engine) is not str:
            return None
        if type(time_major) is not bool:
            return None
        if type(masked) is not str or masked != "repeat":  # which without a mask says nothing, or is wrong
            return None
        if not (sequences.flags.c_contiguous and sequences.dtype.isnative):
            return None
        return sequences.shape, sequences.dtype, last_only, engine, time_major, threads()

    def run(self, key: Key, sequences: Array, initial: Any) -> tuple[Kind, tuple[Any, Any]] | None:
        """The program and the results of a frozen call; None if there is none for these arguments."""
        frozen = self.take(key)
        if frozen is None:
            return None
        try:
            memories = frozen.arrays(initial)
            return None if memories is None else (frozen.program, frozen(sequences, memories))
        finally:
            self.put_back(key, frozen)

    def freeze(self, key: Key, program: Kind, bound: Bound, call: Call, shape: tuple[int, int]) -> None:
        """Prepares a call for sequences [*shape, features...] and keeps it."""
        run = bound.frozen(call)
        if run is None:
            return
        rows, net = call.rows, program.net
        memory = [((rows, *spec.shape), np.dtype(spec.dtype)) for spec in leaves(program.memory)]
        lead = {0: (rows,), 1: (rows,) if call.last_only else shape}
        results = zip(net.results, program.levels, strict=False)
        shapes = tuple((*lead[levels], *net.type_of(number).shape) for number, levels in results)
        self.put_back(key, Frozen(program, run, memory, shapes))
