"""Calls of a net on memory at addresses, for a framework that allocates the results itself.

    inputs, results     addresses     --AddressedNet-->     one prepared call of a form, if it is free

No array is made of a tensor, nor a tensor of an array: in small steps of training that takes as long as the
machine code.
"""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.targets import Call, Order
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.once import computed_once
from stepnet.model.executables import Runs, form_of
from stepnet.model.nets import call_on
from stepnet.model.program import NetProgram
from stepnet.ragged.positions import Positions

Array = np.ndarray
GIVEN = np.zeros(0)
"""Stands for an array of which a call gives the address."""


class AddressedNet:
    """A net for calls of one form, on memory at addresses. The second call of a form prepares it, if the net
    runs on arrays.

    made: the shapes and dtypes of the results. is_flat: whether all of them are per step, per row or totals.
    """

    def __init__(
        self,
        program: NetProgram,
        engine: Order,
        positions: Positions,
        missing: Sequence[bool],
        separate_outputs: int | None,
        own: int,
    ) -> None:
        """Takes a net, which is compiled at the first call, and what its calls have in common.

        engine: the engines in order of preference. positions: where the steps of the sequences lie.
        missing: for each input, whether it is a memory of zeros that calls do not give.
        separate_outputs: as of `call_on`. own: the number of results whose addresses calls give, the first.
        """
        arrays = [None if is_missing else GIVEN for is_missing in missing]
        call = call_on(program, arrays, Call(positions), separate_outputs)
        ends, net = program.ends, program.net
        self.program, self.engine, self.zeros, self.form = program, engine, call.given, form_of(call)
        given = (*ends.sequences, *ends.memories, *ends.statics)
        addresses = (0 if array is None or array is GIVEN else array.ctypes.data for array in self.zeros)
        self.given = [*zip(given, addresses, strict=True)]
        kinds = (*ends.steps, *ends.rows, *ends.totals)
        self.placed = [place for place in kinds if place < own]
        others = [place for place in kinds if place >= own]
        self.order = [others.index(place) for place in range(own, len(kinds))]
        self.places = tuple(place for place, number in enumerate(kinds) if number < own)
        self.parameters = ends.parameters
        types = [net.type_of(net.inputs[place]) for place in ends.parameters]
        self.specs = [(type_.shape, type_.dtype) for type_ in types]
        sizes = {STEPS: (positions.total,), ROWS: (positions.rows,), CONST: ()}
        made = [net.type_of(number) for number in net.results]
        self.made = [((*sizes.get(type_.extent, ()), *type_.shape), type_.dtype) for type_ in made]
        self.is_flat = all(type_.extent in sizes for type_ in made)

    @computed_once
    def runs(self) -> Runs:
        """The prepared calls of the net."""
        return self.program.runs(self.engine)

    def __call__(self, inputs: Sequence[int], results: Sequence[int]) -> list[Array] | None:
        """Runs the net; returns the results beyond those that have addresses, in order. None, having written
        nothing, if no call is prepared and free.

        inputs, results: the addresses of its inputs, 0 for those that are missing, and of its first results.
        """
        if self.form is None:
            return None
        others = self.runs.run_at(
            (threads(), *self.form[1:]),
            [inputs[place] for place in self.parameters],
            self.specs,
            [inputs[place] or zeros for place, zeros in self.given],
            self.places,
            [results[place] for place in self.placed],
        )
        return None if others is None else [others[place] for place in self.order]
