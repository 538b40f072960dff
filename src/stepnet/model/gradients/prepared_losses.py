"""Prepared losses: a call of `value_and_grad` as one net, prepared once for all calls of one form.

x, h0, targets, 1 / count   ->   loss, dx, dh0, dW
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.model.executables import Form
from stepnet.model.gradients import prepared_gradients
from stepnet.model.gradients.arguments import CallArguments, Gradients
from stepnet.model.program import NetProgram, Program
from stepnet.model.programs import Executable, memory_of
from stepnet.ragged import Ragged

Array = np.ndarray


@dataclass(frozen=True)
class LossExecutable(Executable[Program]):
    """The value of a loss and its gradients, prepared for calls of one form (key).

    inputs: the arrays of the inputs of the model's net. The targets and the seed follow them.
    net: the net of the model, the loss and the gradients.
    target: the shape of the targets in the net; None without targets.
    seed: the factor of the sum of the loss's numbers.
    gradients: the gradients, by kind of argument.
    """

    inputs: prepared_gradients.CallInputs
    net: prepared_gradients.PreparedNet
    target: prepared_gradients.Shape | None
    seed: Array
    gradients: tuple[prepared_gradients.KindOfGradient, ...]

    @classmethod
    def of(
        cls,
        arguments: CallArguments,
        program: NetProgram,
        targets: Sequence[Array],
        seed: Array,
        kinds: tuple[prepared_gradients.KindOfGradient, ...],
        engine: Order,
        changes: bool,
    ) -> "LossExecutable | None":
        """Prepares a loss with its gradients for later calls of one form (key); returns None if it cannot.

        arguments: the checked arguments of the call of the model.
        program: the net of the model, the loss and the gradients.
        targets, seed: the arrays of its last inputs: the targets, and the factor of the sum of the loss's
            numbers.
        kinds: for each kind of arguments, where its gradients are among the results.
        engine: the engines in order of preference.
        changes: whether these calls pass `params`, which may differ each time; else the model's are used.
        """
        own, inputs = arguments.reading.program, prepared_gradients.CallInputs.of(arguments)
        memory = memory_of(own, arguments.call.positions.rows)
        zeros = [np.zeros(shape, dtype) for shape, dtype in memory]
        arrays = [*inputs.arrays(arguments.batch.arrays[0], zeros), *targets, seed]
        fixed = {*range(len(arguments.net.inputs)), len(arrays) - 1}
        net = prepared_gradients.PreparedNet.of(program, arrays, fixed, arguments.call, engine, changes)
        if net is None:
            return None
        return cls(own, memory, (), inputs, net, targets[0].shape if targets else None, seed, kinds)

    @property
    def bytes(self) -> int:
        """The number of bytes that the prepared loss with its gradients holds between calls."""
        return self.net.bytes + super().bytes

    def __call__(
        self, sequences: Any, targets: Any, initial: Any, params: Any
    ) -> tuple[Any, Gradients] | None:
        """Runs the net; returns the value of the loss and the gradients, or None if an argument needs a check
        or a conversion.
        """
        arrays = prepared_gradients.arrays_for(self, self.inputs, sequences, initial, params)
        if arrays is None:
            return None
        if self.target is not None:
            values = targets.values if isinstance(targets, Ragged) else targets
            arrays.append(values.reshape(self.target))
        value, *gradients = self.net([*arrays, self.seed])
        return (value * self.seed)[()], prepared_gradients.gradients_in(self.gradients, gradients, sequences)


def form_with(form: Form | None, targets: Any, sequences: Any) -> Form | None:
    """Returns the cache key of a call of a loss; None for targets with which a call is never prepared.

    Such are targets in a structure, those that need a conversion, and Raggeds of other lengths.

    form: the key of the call without its targets; None for one that is never prepared.
    targets, sequences: the targets and the sequences of the call.
    """
    if form is None or targets is None:
        return form
    values = targets
    if type(targets) is Ragged:
        if type(sequences) is not Ragged or not prepared_gradients.same_offsets(targets, sequences):
            return None
        values = targets.values
    if type(values) is not np.ndarray or not (values.flags.c_contiguous and values.dtype.isnative):
        return None
    return *form, type(targets) is Ragged, values.shape, values.dtype
