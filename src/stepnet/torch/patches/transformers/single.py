"""A single step of a net over tensors, prepared once, as the preparation takes most of the time of such a
call.

x [rows, 1, ...], memories  --copied-->  arrays of its own  --run-->  arrays of its own  --read-->  results
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.targets import Bound, Order, Results
from stepnet.model.nets import call_on, parameters
from stepnet.model.program import NetProgram
from stepnet.torch.function import call_in, tensor_of, view_of
from stepnet.torch.sequences import dense_batch


class Single:
    """One step of a net, prepared for a number of rows; used where most of a call's time would be
    preparation.

    One thread at a time may call it.

    Attributes:
        inputs: The tensors that the step reads: sequences [rows, 1, ...], then memories [rows, ...].
        results: The tensors that it writes: outputs [rows, 1, ...], then memories [rows, ...].
        params: The tensors of the parameters, which `bind` reads in place.
    """

    def __init__(self, program: NetProgram, rows: int, params: Sequence[Any] = ()) -> None:
        """Allocates the arrays of inputs and results. program: the compiled net. rows: the number of
        sequences. params: the tensors of the program's parameters.
        """
        net, ends = program.net, program.ends
        self.program, self.params = program, params
        self.bound: Bound | None = None

        def arrays(values: Sequence[int], places: Sequence[int]) -> list[np.ndarray]:
            """Makes arrays of zeros for the inputs or results (`values`) of the net at these positions."""
            types = [net.type_of(values[place]) for place in places]
            return [np.zeros((rows, *type_.shape), type_.dtype) for type_ in types]

        x, before = arrays(net.inputs, ends.sequences), arrays(net.inputs, ends.memories)
        outputs, after = arrays(net.results, ends.steps), arrays(net.results, ends.rows)
        self.arrays = [*x, *before]
        self.call = call_on(program, self.all_arrays(), call_in(dense_batch(rows, 1, False)), None)
        self.into = Results(outputs, after)
        self.inputs = [*(tensor_of(array)[:, None] for array in x), *map(tensor_of, before)]
        self.results = [*(tensor_of(array)[:, None] for array in outputs), *map(tensor_of, after)]

    def all_arrays(self) -> list[Any]:
        """Lists the arrays of all inputs of the net; those of parameters are views of their tensors."""
        return [*self.arrays, *map(view_of, self.params)]

    def bind(self, engine: Order) -> None:
        """Binds the machine code of the prepared step to the parameters as they now are, so that a call only
        runs it. This may copy the parameters into another layout.

        engine: the engines in order of preference; not read if the bound code can take other parameters.
        """
        values = parameters(self.program, self.all_arrays(), self.call)
        if self.bound is None or not self.bound.rebind(values):
            self.bound = self.program.kernel(engine).bind(values)
            self.run = self.bound.again(self.call, self.into)

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Runs the step on `tensors`, its inputs (None: zeros), and leaves the results in `results`."""
        for target, tensor in zip(self.inputs, tensors, strict=True):
            if tensor is None:
                target.zero_()
            else:
                target.copy_(tensor)
        self.run()
