"""Python objects that own oneDNN's objects and free them."""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_void_p
from typing import Any, Self

import numpy as np

from stepnet.compiler.targets.calibration import Calibration
from stepnet.compiler.targets.onednn import interface
from stepnet.compiler.targets.onednn.library import OneDnnLibrary

Array = np.ndarray
WEIGHTS_MASK = (1 << 3) | (1 << 4)  # a scale for each gate and channel of ldigo
ALIGNMENT = 64


class OwnedHandle:
    """Object of oneDNN, destroyed when this Python object is garbage-collected. handle: its handle."""

    def __init__(self, library: OneDnnLibrary, kind: str, handle: c_void_p) -> None:
        """Takes an object's handle, which dnnl_<kind>_destroy frees once this Python object is collected."""
        self.library = library
        self.handle = handle
        destroy = getattr(library.functions, f"dnnl_{kind}_destroy")
        weakref.finalize(self, destroy, handle).atexit = False

    @classmethod
    def create(
        cls, library: OneDnnLibrary, kind: str, function: str, *arguments: Any, asked: str = ""
    ) -> Self:
        """Creates an object of oneDNN, by a function that returns it in its first argument.

        kind: the kind of object, such as "memory". function: the name of the function.
        arguments: its other arguments. asked: what was requested, for the message of an error.
        """
        handle = c_void_p()
        library.call(function, byref(handle), *arguments, asked=asked)
        return cls(library, kind, handle)


def memory_descriptor(library: OneDnnLibrary, dims: Sequence[int], dtype: str, tag: str = "") -> OwnedHandle:
    """Makes a memory descriptor of oneDNN: the shape, dtype and layout of an array.

    dims: the shape. tag: the layout, a key of `TAGS`; "" for C-contiguous.
    """
    tag = tag or "abcde"[: len(dims)]
    return OwnedHandle.create(
        library,
        "memory_desc",
        "dnnl_memory_desc_create_with_tag",
        len(dims),
        interface.Dims(*dims),
        interface.DTYPES[dtype],
        interface.TAGS[tag],
        asked=f"a memory {dtype}{list(dims)} {tag}",
    )


def attributes(library: OneDnnLibrary, calibration: Calibration | None, own_scratchpad: bool) -> OwnedHandle:
    """Makes the attributes of a primitive (an operation of oneDNN).

    calibration: the scales of its int8 quantization; None if it is not quantized.
    own_scratchpad: whether the caller allocates its scratch memory, as an argument of the primitive.
    """
    owned = OwnedHandle.create(library, "primitive_attr", "dnnl_primitive_attr_create")
    if own_scratchpad:
        library.call("dnnl_primitive_attr_set_scratchpad_mode", owned.handle, interface.USER_SCRATCHPAD)
    if calibration is not None:
        scale, shift = c_float(calibration.scale), c_float(calibration.shift)
        library.call("dnnl_primitive_attr_set_rnn_data_qparams", owned.handle, scale, shift)
        scales = np.array(calibration.weights, np.float32)
        pointer, count = scales.ctypes.data_as(ctypes.POINTER(c_float)), c_int64(scales.size)
        name = "dnnl_primitive_attr_set_rnn_weights_qparams"
        library.call(name, owned.handle, count, WEIGHTS_MASK, pointer)
    return owned


class PrimitiveDescription(OwnedHandle):
    """Descriptor of a primitive (an operation of oneDNN): the implementation and formats that it chose."""

    def kinds(self) -> tuple[int, int, int]:
        """Returns oneDNN's numbers of the propagation kind of the primitive (operation of oneDNN), cell and
        direction, to check that the library read the request as it was meant.
        """
        numbers: list[int] = []
        for query in (interface.QUERY_PROPAGATION, interface.QUERY_CELL, interface.QUERY_DIRECTION):
            number = c_int()
            self.library.call("dnnl_primitive_desc_query", self.handle, query, 0, byref(number))
            numbers.append(number.value)
        return numbers[0], numbers[1], numbers[2]

    def memory_desc(self, name: str) -> int:
        """Returns the handle of the memory descriptor (shape, dtype and layout) that the primitive (operation
        of oneDNN) expects for an argument; 0 or None if it has no such argument. The primitive descriptor
        owns it.

        name: a key of `ARGUMENTS`, with the prefix "diff_" for its gradient.
        """
        query = self.library.functions.dnnl_primitive_desc_query_md
        special = {"workspace": interface.QUERY_WORKSPACE, "scratchpad": interface.QUERY_SCRATCHPAD}.get(name)
        if special is not None:
            return query(self.handle, special, 0)
        return query(self.handle, interface.QUERY_ARGUMENT, number_of(name))

    def size(self, name: str) -> int:
        """Returns the size in bytes of an argument, a key of `ARGUMENTS`; 0 if the primitive has none."""
        memory_desc = self.memory_desc(name)
        return self.library.functions.dnnl_memory_desc_get_size(memory_desc) if memory_desc else 0


def number_of(name: str) -> int:
    """Returns oneDNN's number of an argument: a key of `ARGUMENTS`, or "diff_" and a key for a gradient."""
    return (
        interface.DIFF + interface.ARGUMENTS[name[5:]]
        if name.startswith("diff_")
        else interface.ARGUMENTS[name]
    )


def aligned(size: int) -> Array:
    """Makes an array of `size` zero bytes at an address that is a multiple of 64, as vectors prefer."""
    buffer = np.zeros(size + ALIGNMENT, np.uint8)
    first = -buffer.ctypes.data % ALIGNMENT
    return buffer[first : first + size]


class MemoryObject(OwnedHandle):
    """Memory object of oneDNN over the buffer of an array. It keeps the array alive."""

    array: Array

    @classmethod
    def over(cls, library: OneDnnLibrary, description: "OwnedHandle | int", array: Array) -> "MemoryObject":
        """Makes a memory object of oneDNN over an array's buffer, which it keeps alive. description: its
        memory descriptor (shape, dtype, layout), or the handle of one.
        """
        handle = description.handle if isinstance(description, OwnedHandle) else c_void_p(description)
        pointer = c_void_p(array.ctypes.data)
        owned = cls.create(library, "memory", "dnnl_memory_create", handle, library.engine, pointer)
        owned.array = array
        return owned

    def lend(self, array: Array) -> None:
        """Makes oneDNN use the caller's array as this buffer, until another is given. The caller keeps it."""
        # `array.ctypes.data` gives the same address, but takes three times as long.
        address = array.__array_interface__["data"][0]
        self.library.call("dnnl_memory_set_data_handle", self.handle, address)


class Primitive:
    """Compiled primitive (operation of oneDNN) with its arguments. Only one thread at a time may run it."""

    def __init__(self, description: PrimitiveDescription) -> None:
        """Creates the primitive from its descriptor, and a stream to execute it; arguments follow later."""
        library = description.library
        self.library, self.description = library, description
        self.primitive = OwnedHandle.create(library, "primitive", "dnnl_primitive_create", description.handle)
        self.stream = OwnedHandle.create(
            library, "stream", "dnnl_stream_create", library.engine, interface.DEFAULT_STREAM
        )
        self.memories: dict[int, MemoryObject] = {}
        self.indices: dict[int, int] = {}
        self.arguments = (interface.ExecutionArgument * 0)()

    def set(self, memories: Mapping[int, MemoryObject]) -> None:
        """Sets the memories of some arguments for later runs. The memories of all other arguments stay.

        memories: by oneDNN's number of each argument.
        """
        new = set(memories) - set(self.indices)
        self.memories.update(memories)
        if new:
            self.indices = {number: index for index, number in enumerate(self.memories)}
            listed = [
                interface.ExecutionArgument(number, memory.handle) for number, memory in self.memories.items()
            ]
            self.arguments = (interface.ExecutionArgument * len(listed))(*listed)
            return
        for number, memory in memories.items():
            self.arguments[self.indices[number]].memory = memory.handle

    def run(self) -> None:
        """Executes the primitive on the memory objects of its arguments, and waits until it is done."""
        call = self.library.call
        handle = self.stream.handle
        call("dnnl_primitive_execute", self.primitive.handle, handle, len(self.arguments), self.arguments)
        call("dnnl_stream_wait", handle)


def reordered(
    library: OneDnnLibrary, source: Array, target: OwnedHandle, attribute: OwnedHandle | None
) -> MemoryObject:
    """Copies an array into the format of a memory descriptor (`target`), as a primitive (an operation of
    oneDNN) expects its weights; returns the memory object. attribute: has the scales of a quantization; None
    to keep the numbers.
    """
    plain = memory_descriptor(library, source.shape, source.dtype.name)
    memory_desc = PrimitiveDescription.create(
        library,
        "primitive_desc",
        "dnnl_reorder_primitive_desc_create",
        plain.handle,
        library.engine,
        target.handle,
        library.engine,
        attribute.handle if attribute else None,
        asked=f"{source.dtype}{list(source.shape)} in the format of a primitive",
    )
    size = library.functions.dnnl_memory_desc_get_size(target.handle)
    memory = MemoryObject.over(library, target, aligned(size))
    run = Primitive(memory_desc)
    run.set({interface.FROM: MemoryObject.over(library, plain, source), interface.TO: memory})
    run.run()
    return memory
