"""A module's net with its parameters bound, for calls without gradients.

Parameters change in ways that PyTorch does not count: `p.data.add_`, NumPy's writes, `p.data = other`. So the
bytes are compared at each call; that takes a hundredth of the time that packing them takes.
"""

from dataclasses import dataclass, replace
from typing import Any

from stepnet.rnn.batch import Batch, initial_arrays
from stepnet.rnn.frozen import FrozenCalls
from stepnet.rnn.layers import LayersProgram
from stepnet.rnn.reading import Reading, call_of
from stepnet.torch.cells import Sizes, program_of
from stepnet.torch.function import AUTO, array_of, tensor_of
from stepnet.torch.pytorch import pytorch
from stepnet.values.structure import leaves, rebuild

torch: Any = pytorch("torch")


@dataclass(frozen=True)
class Parameters:
    """A program with parameters, and the calls that it has laid out. bits: what they were."""

    sizes: Sizes
    bits: list[Any]
    program: LayersProgram
    frozen: FrozenCalls[LayersProgram]

    @classmethod
    def of(cls, sizes: Sizes, tensors: list[Any]) -> "Parameters":
        """Copies of the parameters, bound."""
        copies = [one.detach().clone(memory_format=torch.contiguous_format) for one in tensors]
        program = program_of(sizes).with_params([array_of(one) for one in copies])
        return cls(sizes, [bits_of(one) for one in copies], program, FrozenCalls())

    def are(self, sizes: Sizes, tensors: list[Any]) -> bool:
        """Whether they still are these, bit by bit."""
        return self.sizes == sizes and all(
            torch.equal(bits_of(one), known) for one, known in zip(tensors, self.bits, strict=True)
        )


def bits_of(tensor: Any) -> Any:
    """The bits of numbers: a NaN is equal to itself, and zeros with different signs are not."""
    return tensor.detach().view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


class Bound:
    """What runs a module without gradients."""

    def __init__(self) -> None:
        self.latest: Parameters | None = None

    def parameters(self, sizes: Sizes, tensors: list[Any]) -> Parameters:
        """The parameters, bound anew if they have changed."""
        latest = self.latest
        if latest is None or not latest.are(sizes, tensors):
            latest = self.latest = Parameters.of(sizes, tensors)
        return latest

    def __call__(
        self, sizes: Sizes, batch: Batch, data: Any, states: list[Any], tensors: list[Any]
    ) -> tuple[Any, ...]:
        """The outputs, laid out as the data are, and the last memories. states: none for zeros."""
        kept = self.parameters(sizes, tensors)
        array, program = array_of(data), kept.program
        initial = rebuild(program.memory, [array_of(one) for one in states]) if states else None
        key = None
        if array.ndim == 3:
            key = kept.frozen.key(array, False, "auto", "repeat", batch.steps is not None)
        done = None if key is None else kept.frozen.run(key, array, initial)
        if done is None:
            memories = initial_arrays(initial, program.memory, batch.count)
            flat = array.reshape(batch.total, array.shape[-1])
            whole = replace(batch, arrays=[flat], structure=flat)
            reading = Reading(whole, program, program, call_of(whole, memories, [], False, None, None), False)
            results = reading.run(AUTO, kept.frozen, key)
        else:
            results = done[1]
        return tuple(tensor_of(one) for one in (results[0], *leaves(results[1])))
