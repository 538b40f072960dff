"""The constants of a kernel: parameters in the layout that machine code reads, in one buffer.

The layout is fixed at compile time. The values are filled in when parameters are bound. A parameter of a
product is packed as [unit block][k][gate][element], so that the microkernel reads it sequentially.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from math import prod

import numpy as np

from stepnet.compiler.net.encodings import whole_numbers
from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.machine.memory import POOL, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.products.pack import Packing, word_count
from stepnet.compiler.targets.packed import parameters_of
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class ConstantNode:
    """Constant node of a plan.

    inside: whether it is a node of the step's net, not of the outer net.
    number, type: its number in that net, and its type.
    """

    inside: bool
    number: int
    type: Type


Values = dict[tuple[bool, int], Array]
"""The value of each constant node, by whether it is inside and by its number."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Entry of a kernel's constants: elements of one constant, padded to whole vectors of `width` elements.

    indices: the flat indices of the elements; None for all.
    """

    constant: ConstantNode
    indices: Array | None
    width: int

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which `Constants` finds an entry equal to this one, so that both share memory."""
        return self.constant, None if self.indices is None else self.indices.tobytes(), self.width

    @property
    def bytes(self) -> int:
        """The bytes of this entry in a kernel's constants, padded to whole vectors of `width` elements."""
        type_ = self.constant.type
        count = type_.size if self.indices is None else len(self.indices)
        return -(-count // self.width) * self.width * type_.itemsize

    @property
    def sources(self) -> tuple[ConstantNode, ...]:
        """The nodes whose values this entry of a kernel's constants is made from: only `constant`."""
        return (self.constant,)

    def fill(self, memory: Array, values: Sequence[Array], processor: Processor) -> None:
        """Copies the chosen elements of a constant to the start of `memory`, in the order in which machine
        code reads them. values: a list whose only item is the array of the constant.
        """
        self.filler(memory, processor)(values)

    def filler(self, memory: Array, processor: Processor) -> Callable[[Sequence[Array]], None]:
        """Makes a function that copies the elements of a constant that a kernel (compiled code) reads, in its
        order, to `memory`, also again for new parameters. It takes a list whose only item is the array of the
        constant.
        """
        numbers, indices = self.numbers(memory), self.indices

        def put_all(values: Sequence[Array]) -> None:
            """Copies all elements of the constant (the only array in `values`) to `numbers`, in order."""
            numbers[...] = values[0].reshape(-1)

        def put_some(values: Sequence[Array]) -> None:
            """Copies the elements at `indices` of the only array in `values` to `numbers`."""
            numbers[...] = values[0].reshape(-1)[indices]

        return put_all if self.is_in_order else put_some

    def numbers(self, memory: Array) -> Array:
        """Returns the beginning of `memory` as an array of the chosen elements of a kernel's constants."""
        type_ = self.constant.type
        count = type_.size if self.indices is None else len(self.indices)
        return memory[: count * type_.itemsize].view(type_.dtype)

    @property
    def is_in_order(self) -> bool:
        """Tells whether all elements of the constant are chosen, in their order."""
        return self.indices is None or np.array_equal(self.indices, np.arange(self.constant.type.size))


@dataclass(frozen=True, eq=False)
class PackedParameters:
    """Parameters [k, n] of one shape, packed in the order in which products read them and padded with zeros:

    [unit block][k][gate][element], or in bfloat16 [unit block][k / 2][gate][2 x bfloat16]

    sources: the parameters, one per gate.
    width: the elements of a unit block.
    weights: "bfloat16", or None for plain elements.
    """

    sources: tuple[ConstantNode, ...]
    width: int
    weights: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which `Constants` finds an entry equal to this one, so that both share memory."""
        return self.sources, "packed", self.width, self.weights

    @property
    def bytes(self) -> int:
        """The bytes of the packed parameters, padded to whole unit blocks (vectors of `width` columns)."""
        type_ = self.sources[0].type
        inner, size = type_.shape
        words = word_count(inner, self.weights)
        return -(-size // self.width) * self.width * words * len(self.sources) * type_.itemsize

    def fill(self, memory: Array, values: Sequence[Array], processor: Processor) -> None:
        """Packs the parameters into memory, which must be zeros. values: a matrix [k, n] for each source."""
        for packing, value in zip(self.packings(memory, values, processor), values, strict=True):
            packing(pointer(value))

    def packings(self, memory: Array, like: Sequence[Array], processor: Processor) -> list[Packing]:
        """Prepares the packing of the parameters of each gate (one of the products computed together, as for
        a GRU) into `memory`, to be run whenever the parameters change.

        like: for each source (gate), an array with the shape and strides of its parameters.
        """
        gates = len(like)
        return [
            Packing(value, gate, gates, self.width, memory, processor, self.weights)
            for gate, value in enumerate(like)
        ]


HEADS = 2
"""The number of vectors before the words of int8: the initial sums, which correct for the shift of left
sides, and the scales."""
WORDS = 16
"""The words of k that one instruction for matrices reads (see `matrix`). It may read beyond the last word,
where the left side is zero."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """Float32 parameters [k, n] of one shape, encoded in int8, packed in the order of products, padded:

    [unit block][initial sums; scales; k / 4 words][gate][4 x int8]

    sources: the parameters, one per gate.
    width: the elements of a unit block.
    weights: the encoding, "int8" or "stored_int8".
    """

    sources: tuple[ConstantNode, ...]
    width: int
    weights: str = "int8"

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which `Constants` finds an entry equal to this one, so that both share memory."""
        return self.sources, self.weights, self.width

    @property
    def blocks(self) -> int:
        """The number of unit blocks (vectors of `width` columns) that hold all columns of a parameter."""
        return -(-self.sources[0].type.shape[1] // self.width)

    @property
    def lines(self) -> int:
        """The number of vectors that parameters in int8 take per unit block (vector of columns) and gate (one
        of the products computed together, as for a GRU): one of initial sums, one of scales, and one for each
        packed word.
        """
        return HEADS + word_count(self.sources[0].type.shape[0], "int8")

    @property
    def bytes(self) -> int:
        """The bytes of the parameters in int8, padded to whole unit blocks of `width` columns, and of what
        instructions for matrices read behind them.
        """
        return 4 * (self.blocks * self.lines + WORDS - 1) * len(self.sources) * self.width

    def fill(self, memory: Array, values: Sequence[Array], processor: Processor) -> None:
        """Encodes parameters in int8, a scale per column, and packs them into `memory`, as the products in
        machine code read them: for each unit block (vector of columns) a line of initial sums, one of scales,
        and the words. values: a float32 matrix per source.
        """
        shift: int = (
            lazy_import("products.arithmetic")
            .arithmetic(self.weights, "float32", self.width, processor)
            .shift
        )
        shape = self.blocks, self.lines, len(self.sources), self.width
        packed = memory[: 4 * prod(shape)].view(np.uint32).reshape(shape)
        for gate, value in enumerate(values):
            with np.errstate(all="ignore"):  # parameters may have NaN and infinity
                lines = scaled_lines(value, shift)
            padded = np.zeros((self.lines, self.blocks * self.width), np.uint32)
            padded[:, : lines.shape[1]] = lines
            packed[:, :, gate] = padded.reshape(self.lines, self.blocks, self.width).swapaxes(0, 1)

    def filler(self, memory: Array, processor: Processor) -> Callable[[Sequence[Array]], None]:
        """Makes a function that encodes parameters in int8 and packs them into `memory`. It takes a list of
        matrices, one per gate (one of the products computed together, as for a GRU).
        """
        return partial(self.fill, memory, processor=processor)


def scaled_lines(value: Array, shift: int) -> Array:
    """Encodes a matrix of parameters [k, n] in int8, a scale per column. Returns 32-bit words [2 + k / 4, n]:
    a row of initial sums (int32), a row of scales (float32), then rows of four int8 per word.

    shift: the number that is added to the left operand's integers to make them unsigned. The initial sums,
        -shift times the sum of each column, cancel it.
    """
    integers, scales = whole_numbers(value, 0)
    initial = -shift * integers.sum(axis=0, keepdims=True, dtype=np.float64)
    heads = initial.astype(np.int32).view(np.uint32), scales.view(np.uint32)
    return np.concatenate([*heads, quads_of(integers.astype(np.int8).view(np.uint8))])


def quads_of(numbers: Array) -> Array:
    """Packs bytes [k, n] into 32-bit words [k / 4, n], each of four rows of a column, padded with zeros."""
    size, columns = numbers.shape
    padded = np.zeros((-(-size // 4) * 4, columns), numbers.dtype)
    padded[:size] = numbers
    quads = padded.reshape(-1, 4, columns).swapaxes(1, 2)
    return np.ascontiguousarray(quads).view(np.uint32)[..., 0]


Entry = Elements | PackedParameters | Scaled


@dataclass
class Constants:
    """Layout of a kernel's constants in one buffer, while entries are added.

    entries: each entry with its offset in bytes.
    known: the offset of each entry by its key, so that equal entries are shared.
    size: the bytes of all entries so far.
    """

    entries: list[tuple[int, Entry | Array]] = field(default_factory=list[tuple[int, Entry | Array]])
    known: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    size: int = 0

    @property
    def held(self) -> int:
        """The bytes of index tables and arrays in a kernel's constants, which count for a cache's limit."""
        arrays = (entry.indices if isinstance(entry, Elements) else entry for _, entry in self.entries)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def add(self, entry: Entry) -> int:
        """Adds an entry to the buffer of constants, unless it has an equal one; returns its byte offset."""
        return self._add(entry.key, entry, entry.bytes)

    def add_array(self, array: Array) -> int:
        """Adds an array that depends on no parameters to the buffer of constants; returns its byte offset."""
        return self._add((array.dtype.str, array.tobytes()), array, array.nbytes)

    def _add(self, key: tuple[object, ...], entry: Entry | Array, size: int) -> int:
        """Returns the byte offset, in the memory of the constants of a kernel (compiled code), of the entry
        with a key; if there is none, appends `entry`, of `size` bytes.
        """
        if key not in self.known:
            self.known[key] = self.size
            self.entries.append((self.size, entry))
            # A cache line of slack: the last vector of a table may be loaded whole.
            self.size += -(-size // LINE) * LINE + LINE
        return self.known[key]

    def filled(self, values: Values, processor: Processor) -> Array:
        """Takes a buffer from the pool of memory, and writes all constants that a kernel (compiled code)
        reads to it; returns it.

        values: the array of each constant node, by (whether it is a node of the step, its number).
        """
        memory = POOL.take(self.size)
        for offset, entry in self.entries:
            if isinstance(entry, np.ndarray):
                copy_bytes(memory[offset:], entry)
            else:
                sources = [values[source.inside, source.number] for source in entry.sources]
                entry.fill(memory[offset:], sources, processor)
        return memory


def constant_values(plan: Plan, parameters: Sequence[Array]) -> Values:
    """Computes the values of all constant nodes of the outer net and of the step's net, from the parameters.

    Returns them by (whether the node is one of the step, the number of the node).
    """
    net, body = plan.net, plan.body
    outer = evaluated(net, dict(zip(parameters_of(net), parameters, strict=True)), plan.once)
    values: Values = {(False, number): value for number, value in outer.items()}
    for inner, outer in zip(body.inputs, plan.recurrence.inputs, strict=True):
        if body.type_of(inner).extent == CONST:
            values[True, inner] = values[False, outer]
    for number, node in enumerate(body.nodes):
        if node.operation == "constant":
            values[True, number] = node.attributes["value"].value
    return values


def copy_bytes(memory: Array, array: Array) -> None:
    """Copies the elements of an array, in C order, to the beginning of a buffer of bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory[: data.size] = data
