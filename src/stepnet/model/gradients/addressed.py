"""Calls of a net on memory at addresses, for a framework that allocates the results itself.

    inputs, results     addresses     --AddressedNet-->     one prepared call of a form, if it is free

No array is made of a tensor, nor a tensor of an array: in small steps of training that takes as long as the
machine code.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.targets import AtAddresses, Call, Order, Spec
from stepnet.compiler.targets.cpu.machine.memory import JointAllocation, bytes_of, maker_of
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.once import computed_once
from stepnet.model.executables import Runs, form_of
from stepnet.model.nets import call_on
from stepnet.model.program import NetProgram
from stepnet.ragged.positions import Positions

Array = np.ndarray
GIVEN = np.zeros(0)
"""Stands for an array of which a call gives the address."""
ZEROED = 2**15
"""The most bytes of an array that are all set to 0 in less time than the gaps between its values."""


class OneArray:
    """The places of several values in one array, which frameworks keep as one tensor.

    starts: where each begins, in bytes.
    """

    def __init__(self, specs: Sequence[Spec], other: str) -> None:
        """Lays out values of these shapes and dtypes. The array has their dtype if there is one, so that its
        numbers may be cast and cast back; `other` where there are no values, and bytes for several dtypes.
        """
        joint = JointAllocation(specs)
        (common, *others) = dict.fromkeys(dtype for _, dtype in specs) or [other]
        dtype = np.dtype("uint8" if others else common)
        self.starts, self.arrays = joint.starts, joint.arrays
        is_short, size = joint.bytes <= ZEROED, joint.bytes // dtype.itemsize
        self.make = partial(np.zeros, size, dtype) if is_short else maker_of(((size,), dtype))
        ends = [start + bytes_of(spec) for start, spec in zip(self.starts, specs, strict=True)]
        gaps = zip(ends, [*self.starts, joint.bytes][1:], strict=True)
        places = [slice(end // dtype.itemsize, start // dtype.itemsize) for end, start in gaps]
        self.gaps = [] if is_short else places

    def new(self) -> Array:
        """Makes the array, with zeros between the values: hooks on saved tensors may read all of it."""
        array = self.make()
        for gap in self.gaps:
            array[gap] = 0
        return array


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
    ) -> None:
        """Takes a net, which is compiled at the first call, and what its calls have in common.

        engine: the engines in order of preference. positions: where the steps of the sequences lie.
        missing: for each input, whether it is a memory of zeros that calls do not give.
        separate_outputs: as of `call_on`.
        """
        arrays = [None if is_missing else GIVEN for is_missing in missing]
        call = call_on(program, arrays, Call(positions), separate_outputs)
        ends, net = program.ends, program.net
        self.program, self.engine, self.form = program, engine, form_of(call)
        numbers = (*ends.sequences, *ends.memories, *ends.statics)
        given = [place if array is GIVEN else array for place, array in zip(numbers, call.given, strict=True)]
        first, placed = len(net.inputs), (*ends.steps, *ends.rows, *ends.totals)
        results = [first + place for place in placed]
        self.places = AtAddresses(first + len(results), ends.parameters, given, results)
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

    def __call__(self, inputs: Sequence[int], results: Sequence[int]) -> bool:
        """Runs the net on arrays at addresses. Returns True if it ran; False, with nothing written, if no
        prepared call is free.

        inputs: the addresses of the inputs, 0 for a missing one. results: the addresses of the results.
        """
        if self.form is None:
            return False
        form = threads(), *self.form[1:]
        return self.runs.run_at(form, [*inputs, *results], self.places, self.specs)
