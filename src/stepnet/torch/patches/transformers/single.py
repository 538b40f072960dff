"""A single step of a net over tensors, prepared once, as the preparation takes most of the time of such a
call.

x [rows, 1, ...], memories  --copied-->  arrays of its own  --run-->  arrays of its own  --read-->  results
memories of a cache         ----------------------------------run--> overwritten in place
"""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.targets import Order
from stepnet.model.gradients.differentiable import ModelNet, SingleStep
from stepnet.torch.arrays import borrowed, tensor_of, view_of
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


class Single:
    """One step of a net, prepared for a number of rows; used where most of a call's time would be
    preparation.

    One thread at a time may call it.

    Attributes:
        inputs: The tensors that the step reads: sequences [rows, 1, ...], then memories [rows, ...]; None for
            memories that are not copied.
        results: The tensors that it writes: outputs [rows, 1, ...], then memories [rows, ...]; None for
            memories that are overwritten in place.
        params: The tensors of the parameters, which `bind` reads in place.
    """

    def __init__(self, net: ModelNet, rows: int, params: Sequence[Any] = ()) -> None:
        """Stores the net, number of rows and parameters of the step that `bind` prepares."""
        self.net, self.rows, self.params = net, rows, params
        self.step: SingleStep | None = None

    def bind(self, engine: Order, memories: Sequence[Any] = ()) -> None:
        """Binds machine code to the parameters as they now are, and to arrays, so that a call only runs it.
        This may copy the parameters into the order in which machine code reads them.

        engine: the engines in order of preference; not read if the bound code can take other parameters.
        memories: tensors that a call may overwrite with the next memories, while they are alive and have
            their memory: it does so for those of the dtype of the step. The others are copied.
        """
        types = [self.net.inputs[place].dtype for place in self.net.program.ends.memories]
        arrays = [borrowed(tensor, dtype) for tensor, dtype in zip(memories, types, strict=bool(memories))]
        step = SingleStep(self.net, self.rows, arrays)
        parameters = [*map(view_of, self.params)]
        bound = None if self.step is None else self.step.bound
        if bound is not None and bound.rebind(parameters):
            self.run = step.bind_to(bound)
        else:
            self.run = step.bind(parameters, engine)
        self.step = step
        x, before, outputs, after = step.arrays
        in_place = [array is not None for array in arrays] or [False] * len(before)
        with torch.inference_mode(False):  # tensors made in this mode could not be written outside it
            self.inputs: list[Any] = [tensor_of(array)[:, None] for array in x]
            self.results: list[Any] = [tensor_of(array)[:, None] for array in outputs]
            for here, array, then in zip(in_place, before, after, strict=True):
                self.inputs.append(None if here else tensor_of(array))
                self.results.append(None if here else tensor_of(then))

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Runs the prepared step once. tensors: its inputs and memories, None for zeros. The outputs and the
        next memories are then in `self.results`, whose tensors the next call overwrites.
        """
        for target, tensor in zip(self.inputs, tensors, strict=True):
            if target is None:
                continue
            if tensor is None:
                target.zero_()
            else:
                target.copy_(tensor)
        self.run()
