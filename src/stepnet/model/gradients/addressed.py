"""Calls of a net on the memory of tensors, for a framework that allocates the results itself.

    inputs, results     tensors     --TensorNet-->     one prepared call of a form, if it is free

No array is made of a tensor, nor a tensor of an array: in small steps of training that takes as long as the
machine code.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.targets import AtTensors, Call, Order, RunOn
from stepnet.compiler.targets.cpu.machine.memory import JointAllocation
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.lending import Spec, TensorList, bytes_of
from stepnet.compiler.values.once import computed_once
from stepnet.model.executables import Runs, form_of
from stepnet.model.nets import call_on
from stepnet.model.program import NetProgram
from stepnet.ragged.positions import Positions

GIVEN = np.zeros(0)
"""Stands for an array that a call gives."""


class OneArray:
    """The places of several values in one array, which frameworks keep as one tensor.

    spec: the shape and dtype of the array. starts: where each value begins, in bytes. gaps: the begins and
    the ends of the memory between them: hooks on saved tensors may read all of it, so it is set to zero.
    """

    def __init__(self, specs: Sequence[Spec], other: str) -> None:
        """Lays out values of these shapes and dtypes. The array has their dtype if there is one, so that its
        numbers may be cast and cast back; `other` where there are no values, and bytes for several dtypes.
        """
        joint = JointAllocation(specs)
        (common, *others) = dict.fromkeys(dtype for _, dtype in specs) or [other]
        dtype = "uint8" if others else common
        self.spec: Spec = (joint.bytes // np.dtype(dtype).itemsize,), dtype
        self.starts = joint.starts
        ends = [start + bytes_of(spec) for start, spec in zip(self.starts, specs, strict=True)]
        self.gaps = [*zip(ends, [*self.starts, joint.bytes][1:], strict=True)]


class TensorNet:
    """A net for calls of one form, on the memory of tensors. The second call of a form prepares it, if the
    net runs on arrays.

    made: the shapes and dtypes of the results.
    is_flat: whether calls are prepared, and all results are per step, per row or totals.
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
        self.given = [
            place if array is GIVEN else array for place, array in zip(numbers, call.given, strict=True)
        ]
        placed = (*ends.steps, *ends.rows, *ends.totals)
        self.results = [len(net.inputs) + place for place in placed]
        types = [net.type_of(net.inputs[place]) for place in ends.parameters]
        self.specs = [(type_.shape, type_.dtype) for type_ in types]
        sizes = {STEPS: (positions.total,), ROWS: (positions.rows,), CONST: ()}
        made = [net.type_of(number) for number in net.results]
        self.made = [((*sizes.get(type_.extent, ()), *type_.shape), type_.dtype) for type_ in made]
        self.is_flat = self.form is not None and all(type_.extent in sizes for type_ in made)

    @computed_once
    def runs(self) -> Runs:
        """The prepared calls of the net."""
        return self.program.runs(self.engine)

    def on(self, tensors: TensorList) -> RunOn:
        """Returns a function that runs the net on tensors. It returns True if it ran; False, with nothing
        written, if no prepared call is free, or if a tensor lends no memory.

        tensors: the tensors of a call, in which the inputs and then the results lie.
        """
        _, *rest = self.form or (0,)
        places = AtTensors(tensors, self.program.ends.parameters, self.given, self.results)

        def run(objects: list[Any]) -> bool:
            """Runs the net on tensors, if a prepared call is free."""
            return self.runs.run_on((threads(), *rest), objects, places, self.specs)

        return run
