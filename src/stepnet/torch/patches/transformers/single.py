"""A single step of a net over tensors, prepared once, as the preparation takes most of the time of such a
call.

x [rows, 1, ...], memories  --copied-->  arrays of its own  --run-->  arrays of its own  --read-->  results
"""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.targets import Order
from stepnet.model.differentiable import ModelNet, SingleStep
from stepnet.torch.arrays import tensor_of, view_of
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


class Single:
    """One step of a net, prepared for a number of rows; used where most of a call's time would be
    preparation.

    One thread at a time may call it.

    Attributes:
        inputs: The tensors that the step reads: sequences [rows, 1, ...], then memories [rows, ...].
        results: The tensors that it writes: outputs [rows, 1, ...], then memories [rows, ...].
        params: The tensors of the parameters, which `bind` reads in place.
    """

    def __init__(self, net: ModelNet, rows: int, params: Sequence[Any] = ()) -> None:
        """Allocates the arrays of inputs and results of a single step, which every call uses again. net: the
        net of the step. rows: the number of sequences. params: the tensors of the net's parameters.
        """
        self.step, self.params = SingleStep(net, rows), params
        x, before, outputs, after = self.step.arrays
        with torch.inference_mode(False):  # tensors made in this mode could not be written outside it
            self.inputs = [*(tensor_of(array)[:, None] for array in x), *map(tensor_of, before)]
            self.results = [*(tensor_of(array)[:, None] for array in outputs), *map(tensor_of, after)]

    def bind(self, engine: Order) -> None:
        """Binds the machine code of the prepared step to the parameters as they now are, so that a call only
        runs it. This may copy the parameters into the order in which machine code reads them.

        engine: the engines in order of preference; not read if the bound code can take other parameters.
        """
        self.run = self.step.bind([*map(view_of, self.params)], engine)

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Runs the prepared step once. tensors: its inputs and memories, None for zeros. The outputs and the
        next memories are then in `self.results`, whose tensors the next call overwrites.
        """
        for target, tensor in zip(self.inputs, tensors, strict=True):
            if tensor is None:
                target.zero_()
            else:
                target.copy_(tensor)
        self.run()
