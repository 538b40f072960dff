"""Tensors of PyTorch as arrays, and back, without a copy where that is possible. Numbers of half precision
are stored as they are, and computed in float32.
"""

import ctypes
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.bfloat16 import BFLOAT16
from stepnet.errors import InputError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
dispatch: Any = pytorch("torch.utils._python_dispatch")
Array = np.ndarray
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""The classes of most tensors, which have numbers of their own and PyTorch's functions."""
FORM = operator.attrgetter("shape", "dtype")
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""The dtypes in which numbers are stored, and computed in float32."""
CAPSULE: Any = torch._C._to_dlpack
VERSIONED_CAPSULE: Any = getattr(torch._C, "_to_dlpack_versioned", CAPSULE)
"""PyTorch's functions that lend the memory of a tensor by DLPack; older versions have the first alone."""
IN_HOST_MEMORY = 1, 0
"""DLPack's kind and number of the CPU."""
LEAST = 2**32 if torch.empty(1, device="cpu").data_ptr() >= 2**32 else 2**22
"""The least address at which tensors lie. PyTorch gives one below it for a part of a tensor without memory:
the offset of the part. Programs that are linked at fixed addresses begin at 4 MiB, and the heap behind them.
"""


def carried(tensors: Iterable[Any]) -> list[Any]:
    """Casts tensors of half precision to float32, in which memories and cotangents go from step to step."""
    return [tensor.float() if tensor.dtype in HALVES else tensor for tensor in tensors]


def in_dtypes(tensors: Iterable[Any], dtypes: Iterable[Any]) -> list[Any]:
    """Casts tensors to dtypes of NumPy or their names, one for each tensor."""
    return [tensor.to(getattr(torch, str(dtype))) for tensor, dtype in zip(tensors, dtypes, strict=True)]


def arrays_of(tensors: Sequence[Any]) -> list[Any]:
    """Views tensors as arrays, without a copy where they are contiguous; None stays None."""
    return [None if tensor is None else view_of(tensor) for tensor in tensors]


def save_for_backward(ctx: Any, tensors: Sequence[Any]) -> None:
    """Saves tensors, and None for inputs that are missing, for the backward pass of an autograd function."""
    ctx.save_for_backward(*tensors)
    ctx.forms = [*map(form_of, tensors)]


def check_saved(tensors: Sequence[Any], forms: list[Any]) -> None:
    """Raises `InputError` if a hook on saved tensors changed the shape or the dtype of one, as machine code
    reads the memory of the saved tensors. forms: their shapes and dtypes before, by `form_of`.
    """
    if [*map(form_of, tensors)] == forms:
        return
    for tensor, form in zip(tensors, forms, strict=True):
        if form_of(tensor) != form:
            (shape, dtype), (other, kind) = form or ((), None), form_of(tensor) or ((), None)
            raise InputError(
                f"a hook on saved tensors gives a tensor of shape {tuple(other)} and {kind} in place of "
                f"one of shape {tuple(shape)} and {dtype}: it must give back the values that were saved"
            )


def form_of(tensor: Any) -> Any:
    """Returns the shape and the dtype of a tensor, None for None.

    Strides are no part of it, as tensors with gaps are copied, nor devices: DLPack lends no memory elsewhere.
    """
    return None if tensor is None else FORM(tensor)


def as_tensors(arrays: Sequence[Array], known: Sequence[Array | None]) -> tuple[Any, ...]:
    """Makes tensors of the results of a net (`arrays`), each with memory of its own, as callers may change
    them in place.

    An array is copied if it is, or is a view of, an earlier result or an array of `known`, the net's inputs.
    This suffices: an engine writes each result into memory that no other array uses. Memory is shared only
    where a run returns one array for several results, or an input, as it is or reshaped.
    """
    taken = {id(array) for array in known if array is not None}
    tensors: list[Any] = []
    for array in arrays:
        # The base of a view is the original array, also of a view of a view.
        shared = id(array) in taken or id(array.base) in taken
        tensors.append(tensor_of(array.copy() if shared else array))
        taken.add(id(array))
    return tuple(tensors)


def check_plain(tensor: Any) -> None:
    """Raises `InputError` for a tensor that consists of others, such as a quantized one of torchao or a
    DTensor: it has no numbers of its own.
    """
    if type(tensor) not in PLAIN and dispatch.is_traceable_wrapper_subclass(tensor):
        raise InputError(
            f"a parameter or an input is a {type(tensor).__name__}, which consists of other tensors, and "
            "stepnet runs plain tensors: give those that were there before, or leave the module out where "
            "tensors are replaced, as torchao's quantize_ does by filter_fn="
        )


class Lent:
    """The memory of a dense tensor on the CPU as DLPack lends it to NumPy. `Tensor.__dlpack__` is the same
    with checks, mostly of other devices, which take several times as long as the array.

    tensor: contiguous, and without gradients.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        """Stores the tensor."""
        self.tensor = tensor

    def __dlpack__(self, *, max_version: Any = None, **_: Any) -> Any:
        """Returns the capsule of the tensor's memory: a versioned one for a caller that names a version."""
        return CAPSULE(self.tensor) if max_version is None else VERSIONED_CAPSULE(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns where the memory is. PyTorch and NumPy refuse a tensor that is elsewhere."""
        return IN_HOST_MEMORY


def in_memory(tensor: Any) -> Any:
    """Returns a tensor of the same numbers without a gradient, whose memory has them: parts of complex
    conjugates have those of the other sign, and zeros in derivatives of PyTorch have none.

    Raises `InputError` for a tensor that has numbers and no memory.
    """
    plain = tensor.detach()
    if plain._is_zerotensor():
        return plain.clone()
    check_memory(plain)
    return plain.resolve_neg()


def check_memory(*tensors: Any) -> None:
    """Raises `InputError` for a tensor that has numbers and no memory, or memory for a part of them alone:
    its storage was freed or shrunk, or its class keeps its numbers elsewhere, as that of fake tensors.
    """
    for tensor in tensors:
        begin, least, count = tensor.data_ptr(), tensor.storage_offset() * tensor.itemsize, tensor.numel()
        if not count:
            continue
        if begin < LEAST and begin == least:
            raise InputError(
                f"a {type(tensor).__name__} {list(tensor.shape)} among the parameters, the inputs or the "
                "saved values has no memory: its storage was freed, as by untyped_storage().resize_(0), or "
                "its class keeps no numbers there, as that of fake tensors: give a tensor with numbers"
            )
        if not tensor.is_contiguous():
            pairs = zip(tensor.shape, tensor.stride(), strict=True)
            count = 1 + sum((size - 1) * stride for size, stride in pairs)
        end, room = least + count * tensor.itemsize, tensor.untyped_storage().nbytes()
        if end > room:
            raise InputError(
                f"a {type(tensor).__name__} {list(tensor.shape)} among the parameters, the inputs or the "
                f"saved values ends at byte {end} of its storage, which has {room}: it was shrunk, as by "
                "untyped_storage().resize_; give a tensor with all of its numbers"
            )


def array_of(tensor: Any) -> Array:
    """Returns a tensor's numbers as a C-contiguous array, without a copy if the tensor is contiguous.

    Raises `InputError` for a tensor that consists of others.
    """
    check_plain(tensor)
    plain = in_memory(tensor)
    if tensor.dtype is torch.bfloat16:  # which NumPy has by ml_dtypes, and PyTorch does not convert
        return array_of(plain.view(torch.int16)).view(BFLOAT16)
    return plain.contiguous().numpy()


def view_of(tensor: Any) -> Array:
    """Returns a tensor's numbers as a C-contiguous array, whose memory PyTorch may free later.

    After `tensor.numpy()` PyTorch can never free the memory, which FSDP does with whole parameters. Raises
    `InputError` for a tensor that consists of others.
    """
    check_plain(tensor)
    plain = in_memory(tensor)
    if tensor.dtype is torch.bfloat16:
        return view_of(plain.view(torch.int16)).view(BFLOAT16)
    return np.from_dlpack(Lent(plain.contiguous()))


def borrowed(tensor: Any, dtype: str) -> Array | None:
    """Views a tensor's numbers as an array that does not keep their memory: it may be used as long as the
    tensor has this memory. None for a tensor of another dtype, with gaps, of numbers with another sign, or of
    zeros without memory.
    """
    is_dense = tensor.is_contiguous() and not tensor.is_neg() and not tensor._is_zerotensor()
    if str(tensor.dtype) != f"torch.{dtype}" or not is_dense:
        return None
    size = tensor.numel() * tensor.itemsize
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, dtype).reshape(tuple(tensor.shape))


def tensor_of(array: Array) -> Any:
    """Makes a tensor that shares an array's memory; a copy if the array is read-only or has gaps."""
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable):
        array = array.copy("C")
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
