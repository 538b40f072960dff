"""Places of a call's tensors (host or device), and conversions of tensors to an engine's arrays and back.

    CPU     arrays of NumPy, which share the memory of the tensors
    GPU     arrays of the device, where the tensors lie; memory for results comes from PyTorch's allocator

On a GPU work goes to PyTorch's current stream, in the order in which it is given, as PyTorch's own work does.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from math import prod
from typing import Any

from stepnet.compiler.net.types import Type
from stepnet.compiler.targets import AddressEngine, checked_engine, engine_at
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, RefusedError
from stepnet.model.gradients.differentiable import DifferentiableNet, Passes
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.model.program import Asked
from stepnet.torch.arrays import array_of, arrays_of, as_tensors, check_plain
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
ALIGNMENT = 256
"""The bytes to which memory for results is aligned; that of a GPU is by itself."""
NO_CHECKPOINT = (
    "checkpoint= is for the CPU, and the tensors are on {}: leave it out, or use torch.utils.checkpoint"
)


@dataclass(frozen=True)
class HostPlace:
    """Tensors on the CPU, as arrays of NumPy."""

    def engines(self, asked: Asked) -> Asked:
        """Returns the engines asked for, in order of preference."""
        return asked

    def passes(
        self, net: DifferentiableNet, wanted: tuple[int, ...], checkpoint: Checkpoint, engine: Asked
    ) -> Passes:
        """Returns the passes of a net for gradients of the inputs at the positions `wanted`."""
        return net.passes(wanted, checkpoint, engine)

    def running(self) -> AbstractContextManager[None]:
        """Context in which calls run."""
        return nullcontext()

    def arrays(self, tensors: Sequence[Any]) -> list[Any]:
        """Views tensors as arrays; None stays None."""
        return arrays_of(tensors)

    def filled(self, tensors: Sequence[Any], types: Sequence[Type], rows: int) -> Sequence[Any]:
        """Returns the inputs of a net of these types as they are: zeros are made where they are needed."""
        return tensors

    def kept(self, tensors: Sequence[Any]) -> list[Any]:
        """Views tensors as arrays, whose memory PyTorch does not free before they are used."""
        return list(map(array_of, tensors))

    def tensors(self, arrays: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """Makes tensors of results. known: the arrays of the inputs, copied if returned."""
        return as_tensors(arrays, known)


@dataclass(frozen=True)
class TensorRoom:
    """Memory that PyTorch allocated, for an engine: a tensor of bytes, from its byte `offset` on."""

    tensor: Any
    address: int
    offset: int


@dataclass(frozen=True)
class DevicePlace:
    """Tensors on a device, as arrays of an engine that takes them where they lie."""

    engine: AddressEngine
    device: Any

    def engines(self, asked: Asked) -> Asked:
        """Returns the engine that runs a call, which takes the tensors where they lie."""
        return (self.engine.name,)

    def passes(
        self, net: DifferentiableNet, wanted: tuple[int, ...], checkpoint: Checkpoint, engine: Asked
    ) -> Passes:
        """Returns the passes of a net for gradients of the inputs at the positions `wanted`. Raises
        `RefusedError` if the engine refuses one of them, or for a checkpoint.
        """
        if checkpoint is not None:
            raise RefusedError(NO_CHECKPOINT.format(self.device))
        passes = net.halves(wanted, (self.engine.name,), is_stored=True)
        for program in (passes.run.first, passes.run.second):
            program.kernel(passes.engine)
        return passes

    def running(self) -> AbstractContextManager[None]:
        """Context in which calls run: on PyTorch's current stream, with memory from PyTorch."""
        is_cuda = self.device.type == "cuda"
        stream = torch.cuda.current_stream(self.device).cuda_stream if is_cuda else 0
        return self.engine.on_stream(stream, self.allocate)

    def allocate(self, count: int) -> TensorRoom:
        """Allocates memory for a result by PyTorch, which reuses it when nothing refers to it any more."""
        extra = 0 if self.device.type == "cuda" else ALIGNMENT - 1
        tensor = torch.empty(count + extra, dtype=torch.uint8, device=self.device)
        offset = -tensor.data_ptr() % ALIGNMENT
        return TensorRoom(tensor, tensor.data_ptr() + offset, offset)

    def arrays(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns arrays where the tensors lie, copied on the device if they have gaps; None stays None.
        Raises `InputError` for a tensor on another device.
        """
        return [None if tensor is None else self.array_of(tensor) for tensor in tensors]

    def filled(self, tensors: Sequence[Any], types: Sequence[Type], rows: int) -> Sequence[Any]:
        """Returns the inputs of a net of these types, with zeros on the device for memories that are None.

        rows: the number of sequences.
        """
        return [
            torch.zeros((rows, *type_.shape), dtype=getattr(torch, type_.dtype), device=self.device)
            if tensor is None
            else tensor
            for tensor, type_ in zip(tensors, types, strict=True)
        ]

    kept = arrays

    def array_of(self, tensor: Any) -> Any:
        """Returns an array where a tensor lies. Raises `InputError` for a tensor on another device, and for
        one that consists of others, such as a DTensor.
        """
        check_plain(tensor)
        if tensor.device != self.device:
            raise InputError(
                f"a tensor is on {tensor.device}, and the sequences are on {self.device}: bring all tensors "
                "to one device"
            )
        dense = tensor.detach().contiguous()
        return self.engine.array_at(dense.data_ptr(), tuple(dense.shape), str(dense.dtype)[6:], dense)

    def tensors(self, arrays: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """Makes tensors of results, which lie in memory of PyTorch, each in its own."""
        return tuple(map(self.tensor_of, arrays))

    def tensor_of(self, array: Any) -> Any:
        """Makes a tensor of a result where it lies. It is no view, so that it may be changed in place."""
        if not isinstance(array.owner, TensorRoom):
            array = self.engine.memory.copy(array)
        dtype, room = getattr(torch, array.dtype), array.owner
        made = torch.empty(0, dtype=dtype, device=self.device)
        offset = (room.offset + array.address - room.address) // dtype.itemsize
        strides = [prod(array.shape[axis + 1 :]) for axis in range(len(array.shape))]
        return made.set_(room.tensor.untyped_storage(), offset, array.shape, strides)


Place = HostPlace | DevicePlace
ON_HOST = HostPlace()


def place_of(tensors: Sequence[Any], engine: Asked) -> Place:
    """Returns where the tensors of a call lie, by the first of them. engine: the engines asked for."""
    tensor = next(tensor for tensor in tensors if tensor is not None)
    return place_on(tensor.device, engine)


def place_on(device: Any, engine: Asked) -> Place:
    """Returns the place of tensors on a device. engine: the engines asked for."""
    return kept_place(device, engine if isinstance(engine, str) else checked_engine(engine))


@lru_cache(maxsize=64)
def kept_place(device: Any, engine: Any) -> Place:
    """Returns the place of tensors on a device, made once."""
    found = engine_at(engine, device.type, device.index or 0)
    return ON_HOST if found is None else DevicePlace(found, device)
