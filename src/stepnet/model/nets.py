"""Running of a net on arrays, in the order of its inputs, with results in the order of its results."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Self

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets import LAYOUTS, Bound, Call, Order, PreparedCall, Results
from stepnet.compiler.targets.packed import has_buffers
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.errors import IndexOutsideError
from stepnet.model.executables import Executables
from stepnet.model.forms import LONGEST, FormedCall, fits, widened
from stepnet.model.program import NetProgram
from stepnet.ragged.positions import Positions

Array = np.ndarray
Arrays = Sequence[Array | None]
"""The arrays of a net's inputs; None for a memory of zeros."""


@contextmanager
def located_integers(net: Net, arrays: Arrays, positions: Positions) -> Generator[None]:
    """Context that adds to an `IndexOutsideError` of a run which integer it is, and where.

    net, arrays: the net whose indices are read, and its inputs in order; None for zeros.
    positions: where the steps of the sequences lie in the arrays.
    """
    try:
        yield
    except IndexOutsideError as error:
        with IMPORTS:  # late: only errors need it
            from stepnet.model.outside import located_in_net

        there: list[Any] = [*arrays]
        on_host: list[Any] = [
            each if each is None or isinstance(each, np.ndarray) else each.numpy() for each in there
        ]
        raise located_in_net(error, net, on_host, positions) from None


def run_net(
    program: NetProgram, arrays: Arrays, call: Call, engine: Order, separate_outputs: int | None = None
) -> list[Array]:
    """Runs a net on the arrays of its inputs; returns its results in order.

    program: the net.
    arrays: the arrays of its inputs, in order; None for an initial memory of zeros.
    call: a call with the positions of the sequences, whose own arrays are not read.
    engine: the engines in order of preference.
    separate_outputs: the number of outputs, from the first on, that need buffers of their own; the others may
        share one. None for all.
    """
    laid_out = call_on(program, arrays, call, separate_outputs)
    return in_order(program, program.runs(engine)(parameters(program, arrays, call), laid_out))


@dataclass(frozen=True)
class BoundNet:
    """A net whose kernel is bound to its parameters once, for several calls.

    kept: the calls that are prepared for any lengths, by form.
    """

    program: NetProgram
    bound: Bound
    kept: Executables[PreparedCall] = field(default_factory=Executables[PreparedCall])

    @classmethod
    def of(cls, program: NetProgram, arrays: Arrays, call: Call, engine: Order) -> Self:
        """Binds a net to its parameters once, to run it several times.

        program: the net.
        arrays: the arrays of its inputs; those of the parameters are bound.
        call, engine: the call with the positions of the sequences, and the engines in order of preference.
        """
        return cls(program, program.kernel(engine).bind(parameters(program, arrays, call)))

    def __call__(self, arrays: Arrays, call: Call, separate_outputs: int | None = None) -> list[Array]:
        """Runs the net on the arrays of its inputs; returns its results in order.

        call: a call with the positions of the sequences, in place of whose arrays `arrays` are read.
        separate_outputs: the number of outputs, from the first on, that need buffers of their own; the others
            may share one. None for all.
        """
        return in_order(self.program, self.bound(call_on(self.program, arrays, call, separate_outputs)))

    def prepared(self, formed: FormedCall, given: Arrays) -> list[Array] | None:
        """Runs a call if one of its form is prepared, for any lengths; returns its results in order. None if
        none is, or if it refuses these lengths.

        formed: the form of the call (its cache key), and the places of its sequences. given: its sequences
        and memories.
        """
        form, _, places = formed
        return self.kept.run(form, lambda call: in_order(self.program, call.run(given, places)))

    def prepare(self, formed: FormedCall, arrays: Arrays, call: Call) -> None:
        """Counts a call that was not prepared; if it is the second one of its form, prepares later ones.

        formed: the form of the call (its cache key), and the places of its sequences, which lie end to end.
        arrays, call: as a call of this object takes them.
        """
        layout, rows, *_ = form = formed[0]
        if fits(call.positions) and self.kept.is_due(form):
            wide = widened(call_on(self.program, arrays, call, None), LAYOUTS[layout], rows)
            prepared = self.bound.prepare(wide, LAYOUTS[layout])
            if prepared is not None and prepared.longest >= LONGEST:
                self.kept.keep(form, prepared, prepared.bytes)

    def release(self) -> None:
        """Releases the memory of the compiled net, which must not be called afterwards."""
        self.kept.idle.clear()
        self.bound.release()


def counts_steps(net: Net) -> bool:
    """Returns whether a recurrence of a net reads the step index, so that pieces of a call must pass it."""
    bodies = (node.recur.body for node in net.nodes if node.operation == "recur")
    return any(node.operation == "index" for body in bodies for node in body.nodes)


def array_or_zeros(program: NetProgram, arrays: Arrays, place: int, call: Call) -> Array:
    """Returns the array of one input of a net. None among `arrays` stands for an initial memory of zeros,
    which this net may read as an input of another kind; the result is then zeros for each row of the call.

    program: the net. arrays: the arrays of the inputs, in order.
    place: the position of the input.
    """
    if (array := arrays[place]) is not None:
        return array
    type_ = program.net.type_of(program.net.inputs[place])
    return np.zeros((call.positions.rows, *type_.shape), type_.dtype)


def parameters(program: NetProgram, arrays: Arrays, call: Call) -> list[Array]:
    """Returns the parameters among the arrays of a net's inputs, to bind a kernel (compiled net) to them.

    program: the net.
    arrays: the arrays of its inputs, in order.
    call: the call, with the number of sequences.
    """
    return [array_or_zeros(program, arrays, place, call) for place in program.ends.parameters]


def call_on(program: NetProgram, arrays: Arrays, call: Call, separate_outputs: int | None) -> Call:
    """Returns a copy of a call with the arrays that a net reads: its sequences, memories and statics (values
    that each sequence has once).

    program: the net.
    arrays: the arrays of its inputs, in order; None for an initial memory of zeros, which stays None among
        arrays of a device, also where the net reads it as a static.
    call: a call with the positions of the sequences, whose own arrays are not read.
    separate_outputs: the number of outputs, from the first on, that need buffers of their own; the others may
        share one. None for all.
    """
    ends = program.ends
    statics: list[Any] = [arrays[place] for place in ends.statics]
    if not has_buffers(arrays):  # the memory of a device makes zeros itself, and copies none
        statics = [array_or_zeros(program, arrays, place, call) for place in ends.statics]
    return call.with_arrays(
        [array_or_zeros(program, arrays, place, call) for place in ends.sequences],
        [arrays[place] for place in ends.memories],
        statics,
        call.last_only,
        separate_outputs,
    )


def in_order(program: NetProgram, results: Results) -> list[Array]:
    """Returns the results of a kernel (compiled net) as a list in the order of the net's results.

    program: the net.
    results: the results of the kernel, by kind.
    """
    arrays = results.arrays
    return [arrays[place] for place in program.order]
