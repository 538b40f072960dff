"""Tensors in PyTorch's pickles: the calls that rebuild them, and the arrays.

A tensor in a pickle is the call of a function of `torch._utils` with a storage, an offset, a shape and
strides. The storage's bytes lie elsewhere in the file, by a key. Tensors can share a storage. NumPy arrays,
which a checkpoint may hold too, have their bytes in the pickle.

Source: torch/_utils.py, torch/_tensor.py and torch/serialization.py of PyTorch 2.13.
"""

import math
import sys
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from typing import cast

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.pickles import numpy_array
from stepnet.layout.files.pickles.numpy_array import described, is_numpy, of_numbers
from stepnet.layout.files.pickles.objects import everything, registered
from stepnet.layout.files.pickles.values import (
    Name,
    Pairs,
    PickledCall,
    are_counts,
    is_shape,
    leaves,
    tuple_items,
)
from stepnet.layout.files.store import Store
from stepnet.layout.files.zips import ByteRange, bytes_at

Array = np.ndarray

DTYPES: dict[str, np.dtype[np.generic]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "complex128": np.dtype(np.complex128),
    "complex64": np.dtype(np.complex64),
    "uint64": np.dtype(np.uint64),
    "uint32": np.dtype(np.uint32),
    "uint16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
# The dtypes of typed storages; other dtypes lie in untyped ones.
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
# Storages that are only read to say which tensor is refused.
QUANTIZED = {
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
    "QUInt8Storage": "quint8",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}
SIZES = {
    **{name: dtype.itemsize for name, dtype in DTYPES.items()},
    **dict.fromkeys(QUANTIZED.values(), 1),
    "qint32": 4,
}
UNTYPED = "torch.storage.UntypedStorage"
TYPES = {
    **{f"torch.{name}": dtype for name, dtype in (STORAGES | QUANTIZED).items()},
    **{f"torch.cuda.{name}": dtype for name, dtype in STORAGES.items()},
    UNTYPED: "uint8",
    "torch.storage._UntypedStorage": "uint8",  # of PyTorch 1.11 and 1.12
}
NUMPY = {
    dtype.str[1:]: dtype for dtype in DTYPES.values() if dtype.isbuiltin == 1
}  # by their names in pickles
TENSORS = {f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3")}
# Calls whose first argument is the tensor.
WRAPPERS = {
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch.nn.parameter.Parameter",
}
SUBCLASS = "torch._tensor._rebuild_from_type_v2"
REFUSED = {
    "torch._utils._rebuild_qtensor": "is quantized; save tensor.dequantize()",
    "torch._utils._rebuild_sparse_tensor": "is sparse; save tensor.to_dense()",
    "torch._utils._rebuild_nested_tensor": "is nested; save tensor.to_padded_tensor(0)",
    "torch._utils._rebuild_meta_tensor_no_storage": "is on the device meta and has no numbers",
    "torch._utils._rebuild_wrapper_subclass": "is of a class of its own; save it as a torch.Tensor",
    "torch._utils._rebuild_device_tensor_from_numpy": "is of an accelerator; save tensor.cpu()",
}
ADVICE = "save model.state_dict() on its own, which holds tensors only"
SHARING = 64  # the limit for all tensors together, which may share storages, in times the file's size


@dataclass(frozen=True, slots=True)
class StorageRange:
    """A range of a storage, numbers under a key in a file of torch.save: `count` numbers from `start` on."""

    key: str
    dtype: str
    count: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A PyTorch tensor as a part of a storage; offset and strides count numbers, not bytes."""

    storage: StorageRange
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def outside(identity: object) -> StorageRange | Name:
    """Returns the value of a persistent id in a PyTorch pickle (`identity`, a reference to a value outside
    the pickle): a storage for ("storage", type, key, device, count), in old files with a view of it, or the
    name of a class.

    Raises `FileError`, short and without the path.
    """
    match tuple_items(identity):
        case ("module", Name() as module, str(), str()):  # a class with its source code, in old files
            return module
        case ("storage", Name(text=kind), str(key), _, int(count), *view) if kind in TYPES and count >= 0:
            storage = StorageRange(key, TYPES[kind], count)
        case _:
            raise FileError("its pickle asks for values outside it, in a way that torch.save does not")
    match view:
        case [] | [None]:
            return storage
        case [(str(), int(start), int(size))] if start >= 0 and 0 <= size <= count - start:
            return StorageRange(key, storage.dtype, size, start)
        case _:
            raise FileError(f"its storage {key[:50]!a} is a view that reaches beyond it")


def is_tensor(value: object) -> bool:
    """Returns True if a value of a pickle is a tensor, also if reading refuses it, such as a sparse one."""
    if isinstance(value, PickledCall):
        return (
            value.name in WRAPPERS
            or value.name == SUBCLASS
            or value.name.startswith("torch._utils._rebuild_")
        )
    return isinstance(value, Tensor)


def is_array(value: object) -> bool:
    """Returns True if a value of a pickle is a tensor, or a NumPy array of numbers."""
    return is_tensor(value) or of_numbers(value)


def array_in(name: str, value: object) -> Tensor | PickledCall:
    """Returns the tensor of a pickle's value, or the call for a NumPy array itself; else `FileError`."""
    return value if isinstance(value, PickledCall) and is_numpy(value) else tensor_of(name, value)


def key_of(tensor: Tensor | PickledCall) -> Tensor | int:
    """Returns a key of a tensor or array in a pickle, to list each once: equal keys mean one array."""
    return id(tensor) if isinstance(tensor, PickledCall) else tensor


def tensor_of(name: str, value: object) -> Tensor:
    """Returns the tensor that a pickle's value is, or that it wraps as a parameter or an object of a
    subclass; raises `FileError` for any other value. name: for messages.
    """
    for _ in range(8):  # a parameter of a subclass is three calls deep
        match value:
            case Tensor():
                return value
            case PickledCall(name=call) if call in REFUSED:
                raise FileError(f"{name!r} {REFUSED[call]}")
            case PickledCall(name=call, arguments=(value, *_)) if call in WRAPPERS:
                continue
            case PickledCall(name=call, arguments=(Name(text=inner), _, arguments, *_)) if call == SUBCLASS:
                value = PickledCall(inner, tuple_items(arguments))
            case PickledCall(name=call, arguments=arguments) if call in TENSORS:
                return rebuilt(name, arguments, call.endswith("_v3"))
            case _:
                break
    raise FileError(f"{name!r} is no tensor in a form that stepnet knows; {ADVICE}")


# Operations that PyTorch delays until a tensor is used, by the flags of torch/_utils.py: what the tensor has
# still to be, and the function that does it.
PENDING = {
    "conj": ("conjugated", "resolve_conj"),
    "neg": ("negated", "resolve_neg"),
}


def rebuilt(name: str, arguments: tuple[object, ...], typed: bool) -> Tensor:
    """Returns the tensor that a pickled call of a rebuilding function means. arguments: storage, offset,
    shape, strides, two that are ignored, the dtype (if `typed`) and flags. name: for messages. Raises
    `FileError` for other arguments, for a dtype that is not read, and for a tensor that is still to be
    conjugated or negated.
    """
    storage, offset, shape, strides, *rest = arguments + (None,) * 8
    dtype, flags = rest[2:4] if typed else (None, rest[2])
    if (
        not isinstance(storage, StorageRange)
        or not are_counts((offset,))
        or not is_shape(shape)
        or not are_counts(strides)
    ):
        raise FileError(f"{name!r} is no tensor: its storage, offset, shape or strides are none")
    pending = [flag for flag, is_set in flags.items if is_set] if isinstance(flags, Pairs) else []
    if pending:
        pending_operation, advice = next(
            (PENDING[flag] for flag in PENDING if flag in pending), ("computed", "clone")
        )
        raise FileError(f"{name!r} has still to be {pending_operation}; save tensor.{advice}()")
    kind = dtype.text.removeprefix("torch.") if isinstance(dtype, Name) else storage.dtype
    if kind not in DTYPES:
        raise FileError(f"{name!r} holds {kind}, which stepnet does not read; save tensor.float()")
    return Tensor(
        storage, kind, cast(int, offset), cast(tuple[int, ...], shape), cast(tuple[int, ...], strides)
    )


def arrays(
    stream: BufferedIOBase,
    size: int,
    root: object,
    byte_range_of: Callable[[str], ByteRange | None],
    big: bool,
) -> dict[str, Array]:
    """Reads the arrays of the tensors in a pickle's value, by name; tensors of one storage share memory.

    root: the value of the pickle. size: the size of the file. byte_range_of: returns the position of a
    storage's bytes in the file, by the storage's key. big: True if its numbers are big-endian. A storage is
    read once, and only if a tensor uses it.

    Raises `FileError`, short and without the path.
    """
    by_name: dict[str, Array] = {}
    buffers: dict[tuple[str, int], Array] = {}
    total, store = 0, Store(None, size)
    numpys: dict[int, Array] = {}  # NumPy's, by the id of the call, as an array may have two names
    for name, tensor in tensors_in(root):
        if isinstance(tensor, PickledCall):
            if id(tensor) not in numpys:
                numpys[id(tensor)] = numpy_array.array_of(name, *described(name, tensor, NUMPY, ADVICE))
            by_name[name] = numpys[id(tensor)]
            continue
        extent, bytes_taken = extents(name, tensor)
        total += bytes_taken
        if total > SHARING * size:
            raise FileError(
                f"its tensors are more than {SHARING} times as large as itself; save tensor.clone()"
            )
        byte_range = byte_range_of(tensor.storage.key)
        if byte_range is None or byte_range.size < extent:
            available = (
                "the file lacks"
                if byte_range is None
                else f"has {byte_range.size} bytes of {extent} in the file"
            )
            raise FileError(f"{name!r} is of storage {tensor.storage.key[:50]!a}, which {available}")
        number_size = SIZES[tensor.dtype] // (2 if tensor.dtype.startswith("complex") else 1)
        key = (tensor.storage.key, number_size if big else 1)
        if key not in buffers:
            store.take(byte_range.size, f"{name!r}")
            buffers[key] = native_bytes(bytes_at(stream, byte_range), number_size, big)
        by_name[name] = array_of(name, tensor, buffers[key])
    return by_name


def tensors_in(root: object) -> Iterator[tuple[str, Tensor | PickledCall]]:
    """Yields (name, tensor) for the tensors in a pickle's value, `root`, and (name, call that rebuilds it)
    for NumPy arrays of numbers: first the ones in state dicts, then all others that objects hold, each once.
    Raises `FileError` for two of one name.
    """
    if is_array(root):
        root = Pairs([("tensor", root)])
    by_name: dict[str, Tensor | PickledCall] = {}
    for name, value in leaves(root, is_array, registered):
        by_name[name] = array_in(name, value)
        yield name, by_name[name]
    seen = {key_of(earlier) for earlier in by_name.values()}
    for name, value in leaves(root, is_array, everything()):
        tensor = array_in(name, value)
        if key_of(tensor) in seen:
            continue
        if name in by_name:
            raise FileError(f"it holds two arrays of the name {name!r}")
        yield name, tensor


def extents(name: str, tensor: Tensor) -> tuple[int, int]:
    """Returns two byte counts to check and limit reading: those that the storage of a PyTorch tensor must
    have in the file, and the tensor's own. Raises `FileError` if the tensor reaches beyond the storage.
    """
    if len(tensor.shape) != len(tensor.strides):
        raise FileError(f"{name!r} has {len(tensor.shape)} axes and strides for {len(tensor.strides)}")
    storage, size, unit = tensor.storage, SIZES[tensor.dtype], SIZES[tensor.storage.dtype]
    number = math.prod(tensor.shape)
    steps = zip(tensor.shape, tensor.strides, strict=True)
    last = tensor.offset + sum((length - 1) * stride for length, stride in steps)
    if number and (last + 1) * size > storage.count * unit:
        raise FileError(f"{name!r} reaches to number {last} of a storage of {storage.count * unit // size}")
    return (storage.start + storage.count) * unit, number * size


def native_bytes(data: Array, number_size: int, big_endian: bool) -> Array:
    """Converts `data`, the bytes of numbers in a file, to this machine's byte order in place, and returns it.
    number_size: the bytes of a real number. big_endian: True if the numbers in the file are big-endian.
    """
    if big_endian != (sys.byteorder == "big") and number_size > 1:
        data[: len(data) // number_size * number_size].view(f"u{number_size}").byteswap(inplace=True)
    return data


def array_of(name: str, tensor: Tensor, data: Array) -> Array:
    """Returns a PyTorch tensor as a view of its storage's bytes `data`; raises `FileError` for truth values
    other than 0 and 1. name: for messages.
    """
    dtype = DTYPES[tensor.dtype]
    start = tensor.storage.start * SIZES[tensor.storage.dtype] + tensor.offset * dtype.itemsize
    if not math.prod(tensor.shape):
        return np.empty(tensor.shape, dtype)
    strides = [step if length > 1 else 1 for length, step in zip(tensor.shape, tensor.strides, strict=True)]
    array = np.ndarray(tensor.shape, dtype, data.data, start, [step * dtype.itemsize for step in strides])
    if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise FileError(f"{name!r} holds truth values other than 0 and 1")
    return array
