"""Tensors of PyTorch as machine code finds their memory: by DLPack's functions in C, which PyTorch has since
2.10; for older versions, by a function of Python that does the same.
"""

import ctypes
from typing import Any

from stepnet.compiler.values.lending import ROOM, Lender
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
EXCHANGE = "__dlpack_c_exchange_api__"
"""The attribute with the capsule of DLPack's functions in C."""
MAJOR, READ = 1, 5
"""The version of these functions that is known, and the number of the word with the address of the one that
describes a tensor's memory, behind the version, a pointer and three other functions.
"""
CODES = {
    torch.float32: 0x12002,
    torch.float64: 0x14002,
    torch.uint8: 0x10801,
    torch.float16: 0x11002,
    torch.bfloat16: 0x11004,
}
"""DLPack's numbers of the dtypes that small calls have: the kind, the bits, and one number."""
ON_CPU = 1
Reader = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


class DescribedTensor(ctypes.Structure):
    """A `DLTensor` of DLPack, with the sizes and strides behind it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("axes", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("start", ctypes.c_uint64),
        ("numbers", ctypes.c_int64 * (2 * ROOM)),
    )


def describe(tensor: Any, address: int) -> int:
    """Writes the `DLTensor` of a tensor to an address; returns 0, or 1 for a tensor that lends no memory."""
    is_plain = tensor.layout is torch.strided and tensor.is_cpu and tensor.dtype in CODES
    if not is_plain or tensor.is_nested or tensor.dim() > ROOM:
        return 1
    lent = DescribedTensor.from_address(address)
    try:
        lent.data = tensor.data_ptr()
    except RuntimeError:  # a transform of torch.func wraps it
        return 1
    axes = tensor.dim()
    lent.device[:], lent.axes, lent.dtype, lent.start = (ON_CPU, 0), axes, CODES[tensor.dtype], 0
    lent.numbers[: 2 * axes] = (*tensor.shape, *tensor.stride())
    lent.sizes = address + DescribedTensor.numbers.offset
    lent.strides = lent.sizes + 8 * axes
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


LENDER = Lender(read_of(getattr(torch.Tensor, EXCHANGE, None)), (torch.Tensor, torch.nn.Parameter))
