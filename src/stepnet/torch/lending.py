"""Tensors of PyTorch as machine code finds their memory: by DLPack's functions in C, which PyTorch has since
2.10; for older versions, by a function of Python that does the same.
"""

import ctypes
from typing import Any

from stepnet.compiler.values.lending import ON_CPU, ROOM, DLTensor, Lender, dtype_word
from stepnet.torch.arrays import LEAST
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
EXCHANGE = "__dlpack_c_exchange_api__"
"""The attribute with the capsule of DLPack's functions in C."""
MAJOR, READ = 1, 5
"""The version of these functions that is known, and the number of the word with the address of the one that
describes a tensor's memory, behind the version, a pointer and three other functions.
"""
WORDS = {
    getattr(torch, name): dtype_word(name) for name in ("float32", "float64", "uint8", "float16", "bfloat16")
}
"""DLPack's words of the dtypes that small calls have."""
Reader = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


def describe(tensor: Any, address: int) -> int:
    """Writes the `DLTensor` of a tensor to an address; returns 0, or 1 for a tensor that lends no memory."""
    is_plain = tensor.layout is torch.strided and tensor.is_cpu and tensor.dtype in WORDS
    if not is_plain or tensor.is_nested or tensor.dim() > ROOM:
        return 1
    lent = DLTensor.from_address(address)
    try:
        lent.data = tensor.data_ptr()
    except RuntimeError:  # a transform of torch.func wraps it
        return 1
    axes, numbers = tensor.dim(), address + ctypes.sizeof(DLTensor)
    lent.device[:], lent.axes, lent.dtype, lent.start = (ON_CPU, 0), axes, WORDS[tensor.dtype], 0
    lent.sizes, lent.strides = numbers, numbers + 8 * axes
    (ctypes.c_int64 * (2 * axes)).from_address(numbers)[:] = (*tensor.shape, *tensor.stride())
    return 0


IN_PYTHON = Reader(describe)


def read_of(capsule: Any) -> int:
    """Returns the address of the function that describes a tensor's memory: PyTorch's own, in the capsule of
    DLPack's functions, or that of Python where PyTorch has none of a known version.
    """
    own = ctypes.cast(IN_PYTHON, ctypes.c_void_p).value or 0
    if capsule is None:
        return own
    of_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    begin = of_capsule(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(begin).value != MAJOR:
        return own
    return ctypes.c_uint64.from_address(begin + 8 * READ).value or own


LENDER = Lender(read_of(getattr(torch.Tensor, EXCHANGE, None)), (torch.Tensor, torch.nn.Parameter), LEAST)
