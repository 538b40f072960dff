"""Plain calls of shapes that were seen before: what is the same in all of them is laid out once.

    rnn(x)   check, look the trace up, share lanes out, lay words out, run, rebuild   ->   point, run

A small recurrence takes less time than all that a call has to find out. So for an array [batch, time,
features...] without lengths, masks and statics the second call of a shape keeps what it found, and those
after it say where their arrays lie and run. A call that another thread is in the midst of is not used.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.engines import Bound, Call, FrozenCall
from stepnet.program import Program
from stepnet.step import Spec
from stepnet.structure import rebuild
from stepnet.threads import threads

Array = np.ndarray
Key = tuple[Any, ...]
MOST = 4
"""How many shapes a recurrence keeps frozen calls of: each has memory of its own to work in."""


@dataclass(frozen=True)
class Frozen:
    """A call of one shape: the trace that it runs, and what runs it.

    memory: the shape and dtype of its memory, None where that is a structure. outputs: the shapes of the
    outputs as the caller gets them.
    """

    program: Program
    run: FrozenCall
    memory: tuple[tuple[int, ...], np.dtype[Any]] | None
    outputs: tuple[tuple[int, ...], ...]

    def takes(self, initial: Any) -> bool:
        """Whether an initial memory can be used as it lies."""
        if initial is None:
            return True
        plain = type(initial) is np.ndarray and initial.flags.c_contiguous
        return plain and (initial.shape, initial.dtype) == self.memory

    def __call__(self, sequences: Array, initial: Array | None) -> tuple[Any, Any]:
        """The outputs and the last memory."""
        traced = self.program.traced
        results = self.run([sequences], [initial] * traced.counts[1])
        outputs = [array.reshape(shape) for array, shape in zip(results.outputs, self.outputs, strict=True)]
        return rebuilt(traced.output, outputs), rebuilt(traced.memory, results.final)


def rebuilt(structure: Any, arrays: list[Array]) -> Any:
    """Arrays in a structure, which often is a single one."""
    return arrays[0] if isinstance(structure, Spec | int) else rebuild(structure, arrays)


class FrozenCalls:
    """The frozen calls of a recurrence by shape: those that no thread is in the midst of."""

    def __init__(self) -> None:
        self.idle: OrderedDict[Key, list[Frozen]] = OrderedDict()

    def key(self, sequences: Any, last_only: Any, engine: Any, masked: Any) -> Key | None:
        """What frozen calls of these arguments are kept by; None for arguments that have none."""
        if type(sequences) is not np.ndarray or type(last_only) is not bool or type(engine) is not str:
            return None
        if (
            type(masked) is not str or masked != "repeat"
        ):  # which without a mask says nothing, but may be wrong
            return None
        if not (sequences.flags.c_contiguous and sequences.dtype.isnative):
            return None
        return sequences.shape, sequences.dtype, last_only, engine, threads()

    def run(self, key: Key, sequences: Array, initial: Any) -> tuple[Program, tuple[Any, Any]] | None:
        """The trace and the results of a frozen call; None where there is none for these arguments."""
        try:
            frozen = self.idle[key].pop()
        except (KeyError, IndexError):  # none yet, or another thread has it
            return None
        done = (frozen.program, frozen(sequences, initial)) if frozen.takes(initial) else None
        kept = self.idle.get(key)
        if kept is not None and not kept:
            kept.append(frozen)
        return done

    def seen(self, key: Key) -> bool:
        """Whether there was a call of this shape before; remembers that there was."""
        known = key in self.idle
        if not known:
            self.idle[key] = []
            while len(self.idle) > MOST:
                self.idle.popitem(last=False)
        return known

    def freeze(self, key: Key, program: Program, bound: Bound, call: Call, shape: tuple[int, int]) -> None:
        """Keeps what runs calls like this one, whose sequences are [*shape, features...]."""
        run, kept = bound.frozen(call), self.idle.get(key)
        if run is None or kept is None or kept:
            return
        spec, rows, net = program.traced.memory, len(call.lengths), program.net
        memory = ((rows, *spec.shape), np.dtype(spec.dtype)) if isinstance(spec, Spec) else None
        lead = (rows,) if call.last_only else shape
        results = program.traced.recur().gives(net.results).outputs
        kept.append(Frozen(program, run, memory, tuple((*lead, *net.type_of(n).shape) for n in results)))
