"""Runs a net on arrays in the order of its inputs, and returns results in the order of its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from stepnet.compiler.targets import Bound, Call, Order, Results
from stepnet.model.program import NetProgram

Array = np.ndarray
Arrays = Sequence[Array | None]
"""The arrays of a net's inputs; None for a memory of zeros."""


def run_net(
    program: NetProgram, arrays: Arrays, call: Call, engine: Order, separate_outputs: int | None = None
) -> list[Array]:
    """Runs a net on the arrays of its inputs; returns its results in order.

    call: a call with the positions of the sequences, in place of whose arrays `arrays` are read.
    separate_outputs: the number of outputs, from the first on, that need buffers of their own; the others may
        share one. None for all.
    """
    laid_out = call_on(program, arrays, call, separate_outputs)
    return in_order(program, program.runs(engine)(parameters(program, arrays, call), laid_out))


@dataclass(frozen=True)
class BoundNet:
    """A net whose kernel is bound to its parameters once, for several calls."""

    program: NetProgram
    bound: Bound

    @classmethod
    def of(cls, program: NetProgram, arrays: Arrays, call: Call, engine: Order) -> Self:
        """Binds a net to the parameters in its input `arrays`, to run it several times."""
        return cls(program, program.kernel(engine).bind(parameters(program, arrays, call)))

    def __call__(self, arrays: Arrays, call: Call, separate_outputs: int | None = None) -> list[Array]:
        """Runs the net on the arrays of its inputs; returns its results in order.

        call: a call with the positions of the sequences, in place of whose arrays `arrays` are read.
        separate_outputs: the number of outputs, from the first on, that need buffers of their own; the others
            may share one. None for all.
        """
        return in_order(self.program, self.bound(call_on(self.program, arrays, call, separate_outputs)))

    def release(self) -> None:
        """Releases the memory of the compiled net, which must not be called afterwards."""
        self.bound.release()


def filled(program: NetProgram, arrays: Arrays, place: int, call: Call) -> Array:
    """Returns the array of the net's input at a position; zeros for each row of the call if it is None.

    None stands for an initial memory of zeros, which this net may read as an input of another kind.
    """
    if (array := arrays[place]) is not None:
        return array
    type_ = program.net.type_of(program.net.inputs[place])
    return np.zeros((call.positions.rows, *type_.shape), type_.dtype)


def parameters(program: NetProgram, arrays: Arrays, call: Call) -> list[Array]:
    """Returns the parameters among the arrays of a net's inputs, to bind a kernel (compiled net) to."""
    return [filled(program, arrays, place, call) for place in program.ends.parameters]


def call_on(program: NetProgram, arrays: Arrays, call: Call, separate_outputs: int | None) -> Call:
    """Returns a copy of a call that runs a net on the arrays of its inputs, sorted by kind of input.

    separate_outputs: the number of outputs, from the first on, that need buffers of their own; the others may
        share one. None for all.
    """
    ends = program.ends
    return call.with_arrays(
        [filled(program, arrays, place, call) for place in ends.sequences],
        [arrays[place] for place in ends.memories],
        [filled(program, arrays, place, call) for place in ends.statics],
        call.last_only,
        separate_outputs,
    )


def in_order(program: NetProgram, results: Results) -> list[Array]:
    """Returns the results of a kernel (compiled net) as a list in the order of the net's results.

    The kernel sorts them by kind: values per step, then per row (sequence), then single values.
    """
    ends = program.ends
    places = (*ends.steps, *ends.rows, *ends.totals)
    by_place = dict(zip(places, results.arrays, strict=True))
    return [by_place[place] for place in range(len(by_place))]
