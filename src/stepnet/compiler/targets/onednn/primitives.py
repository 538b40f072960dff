"""The primitive of a recurrence for a number of steps and rows, and weights in the formats that it expects.

Weights are declared with the format `any`, so oneDNN chooses a format for each number of steps and rows.
`PackedWeights` has weights reordered into these formats; it serves all primitives that expect the same
formats.
"""

from collections.abc import Mapping
from ctypes import c_void_p
from dataclasses import field
from itertools import count
from math import prod

import numpy as np

from stepnet.compiler.targets.onednn import interface
from stepnet.compiler.targets.onednn.cache import MEGABYTE, Cache
from stepnet.compiler.targets.onednn.library import OneDnnLibrary
from stepnet.compiler.targets.onednn.objects import (
    MemoryObject,
    OwnedHandle,
    Primitive,
    PrimitiveDescription,
    aligned,
    attributes,
    memory_descriptor,
    number_of,
    reordered,
)
from stepnet.compiler.targets.onednn.recurrence import OPTIONAL, OneDnnRecurrence
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, LibraryError, RefusedError

Array = np.ndarray
FORMATTED = ("weights_layer", "weights_iter", "weights_projection")
"""Memories whose format oneDNN chooses."""
EXTRA = ("workspace", "scratchpad")


def description(
    library: OneDnnLibrary,
    recurrence: OneDnnRecurrence,
    steps: int,
    rows: int,
    forward: PrimitiveDescription | None = None,
) -> PrimitiveDescription:
    """Makes the descriptor of the primitive (operation of oneDNN) that runs a recurrence for a number of
    steps and rows. forward: None for the forward pass; for the gradient, the descriptor of the forward pass.
    Raises `RefusedError` if the library has no such primitive, `LibraryError` if it took the request for
    another one.
    """
    reason = recurrence.refuse(library)
    if reason is not None:
        raise RefusedError(f"onednn: {reason}")
    row, kind = (
        recurrence.row,
        interface.BACKWARD if forward else interface.TRAINING if recurrence.training else interface.INFERENCE,
    )
    prefixes = ("", "diff_") if forward else ("",)
    # A dict keeps the descriptors alive until the function has read them.
    owned = {
        prefix + slot: argument_descriptor(library, recurrence, slot, prefix, steps, rows)
        for prefix in prefixes
        for slot in row.slots
    }
    memories = [None if memory is None else memory.handle for memory in owned.values()]
    vanilla = recurrence.cell == "rnn"
    attribute = attributes(library, recurrence.calibration, own_scratchpad=True)
    made = PrimitiveDescription.create(
        library,
        "primitive_desc",
        f"dnnl_{row.function}_{'backward' if forward else 'forward'}_primitive_desc_create",
        library.engine,
        kind,
        *([interface.ACTIVATIONS[recurrence.activation]] if vanilla else []),
        interface.DIRECTIONS[recurrence.direction],
        *memories,
        interface.OVERWRITE_WEIGHTS if forward else 0,
        *([0.0, 0.0] if vanilla else []),
        *([forward.handle] if forward else []),
        attribute.handle,
        asked=f"{recurrence}, {steps} steps of {rows} rows",
    )
    if made.kinds() != (kind, row.number, interface.DIRECTIONS[recurrence.direction]):
        raise LibraryError(f"{library} understands {recurrence} otherwise: {made.kinds()}")
    return made


def argument_descriptor(
    library: OneDnnLibrary, recurrence: OneDnnRecurrence, slot: str, prefix: str, steps: int, rows: int
) -> OwnedHandle | None:
    """Makes the memory descriptor of one argument for the request of a primitive (operation of oneDNN); None
    if the recurrence does not have the argument. oneDNN chooses the format of weights; all else, and
    gradients, are C-contiguous.

    slot: the name of the argument, as "weights_iter". steps, rows: the numbers of steps and of sequences.
    prefix: "" for the argument, "diff_" for its gradient, which is float32.
    """
    if slot in OPTIONAL and slot not in recurrence.slots:
        return None
    dtype = "float32" if prefix else recurrence.dtype_of(slot)
    return memory_descriptor(
        library, recurrence.shape(slot, steps, rows), dtype, "any" if slot in FORMATTED and not prefix else ""
    )


class PrimitiveRun:
    """Primitive (operation of oneDNN) for a recurrence, and the buffers of its arguments, for one thread.

    A caller fills the buffers that are read, or replaces them for a run by its own arrays (`run_on`).
    """

    def __init__(
        self,
        library: OneDnnLibrary,
        recurrence: OneDnnRecurrence,
        steps: int,
        rows: int,
        forward: "PrimitiveRun | None" = None,
    ) -> None:
        """Creates the primitive (operation of oneDNN) that runs a recurrence, for a number of steps and rows,
        with buffers for all arguments but the weights. forward: None, or the run whose gradient it computes,
        and whose buffers it shares.
        """
        self.library, self.recurrence, self.steps, self.rows = library, recurrence, steps, rows
        self.descriptor = description(
            library, recurrence, steps, rows, forward.descriptor if forward else None
        )
        self.primitive = Primitive(self.descriptor)
        self.memories: dict[str, MemoryObject] = {}
        self.views: dict[str, Array] = {}
        self.serial = -1
        self.bytes = 0
        self.zeros = {"src_iter", "src_iter_c"}  # the initial memories whose buffers hold zeros now
        self.lent: tuple[str, ...] = ()
        self.is_gradient = gradient = forward is not None
        for slot in recurrence.slots:
            if slot not in recurrence.weights:
                self.add(slot, forward)
            if gradient:
                self.add(f"diff_{slot}", None)
        for slot in EXTRA:
            if self.descriptor.size(slot):
                self.add(slot, forward if slot == "workspace" else None)
        self.primitive.set({number_of(name): memory for name, memory in self.memories.items()})

    def add(self, name: str, forward: "PrimitiveRun | None") -> None:
        """Allocates the memory of an argument, with zeros, or shares that of the forward pass.

        name: oneDNN's name of the argument. forward: the run of the forward pass; None to allocate.
        """
        if forward is not None:
            self.memories[name] = forward.memories[name]
            return
        size = self.descriptor.size(name)
        self.bytes += size
        memory_desc = self.descriptor.memory_desc(name)
        self.memories[name] = MemoryObject.over(self.library, memory_desc, aligned(size))

    def view(self, name: str) -> Array:
        """Returns the buffer of an argument as an array of the argument's shape, to be read or written.

        name: oneDNN's name of the argument, with the prefix "diff_" for its gradient.
        """
        if name not in self.views:
            slot = name.removeprefix("diff_")
            dtype = "float32" if slot != name else self.recurrence.dtype_of(slot)
            shape = self.recurrence.shape(slot, self.steps, self.rows)
            numbers = self.memories[name].array.view(dtype)
            self.views[name] = numbers[: prod(shape)].reshape(shape)
        return self.views[name]

    def flat(self, name: str) -> Array:
        """Returns the buffer of an argument that has steps as an array [steps * rows, features]."""
        view = self.view(name)
        return view.reshape(-1, view.shape[-1])

    def bind(self, weights: "PackedWeights", serial: int) -> None:
        """Makes the primitive (operation of oneDNN) use these weights, which have the formats that it
        expects.

        serial: a number that identifies the weights, to find out later whether the primitive uses them.
        """
        self.primitive.set({number_of(name): memory for name, memory in weights.memories.items()})
        self.serial = serial

    def begin(self, slot: str, state: Array | None) -> None:
        """Writes an initial memory to the buffer of an argument of the primitive (operation of oneDNN),
        before that runs.

        slot: oneDNN's name of the argument: src_iter is the memory h, src_iter_c is c.
        state: the memory [rows, ...]; None for zeros.
        """
        if state is None and slot in self.zeros:
            return
        self.view(slot)[0, 0] = 0 if state is None else state
        (self.zeros.add if state is None else self.zeros.discard)(slot)

    def run(self) -> None:
        """Runs the primitive (operation of oneDNN) on the buffers that it has allocated."""
        self.run_on({})

    def run_on(self, arrays: Mapping[str, Array]) -> None:
        """Runs the primitive (operation of oneDNN) on C-contiguous arrays of the caller, which it reads and
        writes in place.

        arrays: by oneDNN's names of the arguments; all other arguments use the buffers of this object.
        """
        for name in self.lent:
            if name not in arrays:
                self.memories[name].lend(self.memories[name].array)
        # The buffers are not restored after the run: that would take as long as setting them. The next run
        # sets other ones, and nothing else reads them.
        self.lent = tuple(arrays)
        for name, array in arrays.items():
            self.memories[name].lend(array)
        self.primitive.run()


class PackedWeights:
    """Weights in the formats that one primitive expects. Others with the same formats may use them too."""

    def __init__(self, run: PrimitiveRun, arrays: Mapping[str, Array]) -> None:
        """Copies weights, by oneDNN's names, into the formats that the primitive (operation of oneDNN) of
        `run` expects; in int8 quantizes all but the bias and peepholes.
        """
        library, recurrence = run.library, run.recurrence
        attribute = None
        if recurrence.calibration is not None:
            attribute = attributes(library, recurrence.calibration, own_scratchpad=False)
        self.formats: dict[str, OwnedHandle] = {}
        self.memories: dict[str, MemoryObject] = {}
        for name, array in arrays.items():
            memory_desc = c_void_p(run.descriptor.memory_desc(name))
            own = OwnedHandle.create(library, "memory_desc", "dnnl_memory_desc_clone", memory_desc)
            self.formats[name] = own
            is_weight = name in FORMATTED
            self.memories[name] = reordered(library, array, own, attribute if is_weight else None)

    def fits(self, run: PrimitiveRun) -> bool:
        """Tells whether the primitive of a run expects the formats of these weights."""
        equal = run.library.functions.dnnl_memory_desc_equal
        return all(equal(own.handle, run.descriptor.memory_desc(name)) for name, own in self.formats.items())

    @property
    def bytes(self) -> int:
        """The size in bytes of these weights, for the bound of the cache that holds them."""
        return sum(memory.array.size for memory in self.memories.values())


SERIAL = count()


@dataclass(frozen=True, eq=False)
class RecurrenceWeights:
    """Weights of a recurrence.

    arrays: copies in float32 by oneDNN's names, in the layout ldigo; they do not change.
    serial: a number that identifies these weights in caches.
    """

    arrays: Mapping[str, Array]
    serial: int = field(default_factory=SERIAL.__next__)

    @classmethod
    def of(cls, recurrence: OneDnnRecurrence, arrays: Mapping[str, Array]) -> "RecurrenceWeights":
        """Copies the weights of a recurrence, given by oneDNN's names; a missing bias becomes zeros. Raises
        `InputError` for a missing array or another shape.
        """
        converted: dict[str, Array] = {}
        for name in recurrence.weights:
            shape = recurrence.shape(name, 0, 0)
            array = arrays.get(name)
            if array is None and name == "bias":
                array = np.zeros(shape, np.float32)
            if array is None or array.shape != shape:
                was = "missing" if array is None else f"of shape {array.shape}"
                raise InputError(f"{name} of {recurrence} is {was}, and must have shape {shape}")
            converted[name] = np.array(array, np.float32, order="C")
        return cls(converted)

    def bind(self, run: PrimitiveRun) -> None:
        """Makes the primitive (operation of oneDNN) of `run` use these weights; they are reordered to its
        formats unless a cache has them. Does nothing if it uses them already.
        """
        if run.serial == self.serial:
            return
        key = (run.library.path, run.recurrence, run.is_gradient, self.serial)
        packed = PACKED.find(key, lambda kept: next((packed for packed in kept if packed.fits(run)), None))
        if packed is None:
            packed = PackedWeights(run, self.arrays)
            PACKED.put(key, (packed, *(PACKED.peek(key) or ())))
        run.bind(packed, self.serial)


PACKED: Cache[tuple[PackedWeights, ...]] = Cache(
    64, 256 * MEGABYTE, lambda listed: sum(packed.bytes for packed in listed)
)
