"""The constants of a kernel: parameters in the form that machine code reads, in one piece of memory.

The layout is decided by the compiler. The numbers are filled in when parameters are bound. A parameter of a
product is packed as [unit block][k][gate][element], so that the microkernel reads it from front to back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from stepnet.engines.llvm.machine.late import late
from stepnet.engines.llvm.machine.memory import POOL, pointer
from stepnet.engines.llvm.machine.records import LINE
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.pack import Packing
from stepnet.engines.packed import parameters_of
from stepnet.net.encodings import ENCODINGS, whole_numbers
from stepnet.net.interpret import evaluated
from stepnet.net.types import CONST, Type
from stepnet.plan.plan import Plan
from stepnet.values.dtypes import BFLOAT16

Array = np.ndarray


@dataclass(frozen=True)
class Constant:
    """A constant node: of the step-net (`inside`) or of the net around it, its number and its type."""

    inside: bool
    number: int
    type: Type


Values = dict[tuple[bool, int], Array]
"""The value of each constant node, by whether it is inside and by its number."""


@dataclass(frozen=True, eq=False)
class Places:
    """Elements of one constant at these places (all of them if None), padded to whole vectors."""

    constant: Constant
    places: Array | None
    width: int

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which equal entries are shared."""
        return self.constant, None if self.places is None else self.places.tobytes(), self.width

    @property
    def bytes(self) -> int:
        """The size in memory."""
        type_ = self.constant.type
        count = type_.size if self.places is None else len(self.places)
        return -(-count // self.width) * self.width * type_.itemsize

    @property
    def sources(self) -> tuple[Constant, ...]:
        """The nodes it is made of."""
        return (self.constant,)

    def fill(self, memory: Array, values: Sequence[Array], target: Target) -> None:
        """Puts the numbers into memory, from the values of the sources."""
        self.filler(memory, target)(values)

    def filler(self, memory: Array, target: Target) -> Callable[[Sequence[Array]], None]:
        """What puts the numbers into memory, from the value of the source."""
        type_, places = self.constant.type, self.places
        count = type_.size if places is None else len(places)
        numbers = memory[: count * type_.itemsize].view(type_.dtype)
        all_ = places is None or np.array_equal(places, np.arange(type_.size))

        def put_all(values: Sequence[Array]) -> None:
            numbers[...] = values[0].reshape(-1)

        def put_some(values: Sequence[Array]) -> None:
            numbers[...] = values[0].reshape(-1)[places]

        return put_all if all_ else put_some


@dataclass(frozen=True, eq=False)
class Packed:
    """Parameters [k, n] of one shape, packed for the microkernel: [unit block][k][gate][element], padded."""

    sources: tuple[Constant, ...]
    width: int

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which equal entries are shared."""
        return self.sources, "packed", self.width

    @property
    def bytes(self) -> int:
        """The size in memory."""
        type_ = self.sources[0].type
        inner, size = type_.shape
        return -(-size // self.width) * self.width * inner * len(self.sources) * type_.itemsize

    def fill(self, memory: Array, values: Sequence[Array], target: Target) -> None:
        """Puts the packed numbers into memory, which is zeros, from the values of the parameters."""
        for packing, value in zip(self.packings(memory, values, target), values, strict=True):
            packing(pointer(value))

    def packings(self, memory: Array, like: Sequence[Array], target: Target) -> list[Packing]:
        """What packs each of such parameters into memory."""
        gates = len(like)
        return [Packing(value, gate, gates, self.width, memory, target) for gate, value in enumerate(like)]


HEADS = 2
"""The vectors ahead of words of int8: what the sums begin with, since left sides are shifted; and scales."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Float32 parameters [k, n] of one shape in fewer bits, packed for the microkernel, padded with zeros:

    bfloat16   [unit block][word of k][gate][element]
    int8       [unit block][sums begin with; scales; word of k][gate][element]
    """

    sources: tuple[Constant, ...]
    width: int
    weights: str

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which equal entries are shared."""
        return self.sources, self.weights, self.width

    @property
    def blocks(self) -> int:
        """The number of unit blocks."""
        return -(-self.sources[0].type.shape[1] // self.width)

    @property
    def lines(self) -> int:
        """The vectors of a gate in each unit block."""
        encoding = ENCODINGS[self.weights]
        heads = HEADS if encoding.is_scaled else 0
        return heads + -(-self.sources[0].type.shape[0] * encoding.bytes // 4)

    @property
    def bytes(self) -> int:
        """The size in memory."""
        return 4 * self.blocks * self.lines * len(self.sources) * self.width

    def fill(self, memory: Array, values: Sequence[Array], target: Target) -> None:
        """Puts the words into memory, which is zeros, from the values of the parameters."""
        is_scaled = ENCODINGS[self.weights].is_scaled
        kind = (
            late("products.arithmetic").arithmetic(self.weights, "float32", self.width, target)
            if is_scaled
            else None
        )
        shape = self.blocks, self.lines, len(self.sources), self.width
        packed = memory[: self.bytes].view(np.uint32).reshape(shape)
        for gate, value in enumerate(values):
            with np.errstate(all="ignore"):  # of NaN and infinity
                lines = self.lines_of(value, 0 if kind is None else kind.shift)
            padded = np.zeros((self.lines, self.blocks * self.width), np.uint32)
            padded[:, : lines.shape[1]] = lines
            packed[:, :, gate] = padded.reshape(self.lines, self.blocks, self.width).swapaxes(0, 1)

    def filler(self, memory: Array, target: Target) -> Callable[[Sequence[Array]], None]:
        """What puts the words into memory, from the values of the parameters."""
        return partial(self.fill, memory, target=target)

    def lines_of(self, value: Array, shift: int) -> Array:
        """All lines of a gate for the whole of a parameter, 32 bits each."""
        if self.weights == "bfloat16":
            return words_of(value.astype(BFLOAT16).view(np.uint16), 2)
        numbers, scales = whole_numbers(value, 0)
        begin = -shift * numbers.sum(axis=0, keepdims=True, dtype=np.float64)
        heads = begin.astype(np.int32).view(np.uint32), scales.view(np.uint32)
        return np.concatenate([*heads, words_of(numbers.astype(np.int8).view(np.uint8), 4)])


def words_of(numbers: Array, terms: int) -> Array:
    """Numbers [k, n] as words [k / terms, n] of 32 bits, padded with zeros."""
    size, columns = numbers.shape
    padded = np.zeros((-(-size // terms) * terms, columns), numbers.dtype)
    padded[:size] = numbers
    beside = padded.reshape(-1, terms, columns).swapaxes(1, 2)
    return np.ascontiguousarray(beside).view(np.uint32)[..., 0]


Entry = Places | Packed | Encoded


@dataclass
class Constants:
    """The layout of a kernel's constants, as entries are added."""

    entries: list[tuple[int, Entry | Array]] = field(default_factory=list[tuple[int, Entry | Array]])
    known: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    size: int = 0

    @property
    def held(self) -> int:
        """The bytes of the arrays that describe the entries."""
        arrays = (entry.places if isinstance(entry, Places) else entry for _, entry in self.entries)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def add(self, entry: Entry) -> int:
        """The byte offset of an entry."""
        return self._place(entry.key, entry, entry.bytes)

    def add_array(self, array: Array) -> int:
        """The byte offset of an array that does not depend on parameters."""
        return self._place((array.dtype.str, array.tobytes()), array, array.nbytes)

    def _place(self, key: tuple[object, ...], entry: Entry | Array, size: int) -> int:
        if key not in self.known:
            self.known[key] = self.size
            self.entries.append((self.size, entry))
            # A line of slack behind: the last vector of a table may be read whole.
            self.size += -(-size // LINE) * LINE + LINE
        return self.known[key]

    def filled(self, values: Values, target: Target) -> Array:
        """The memory, filled from the values of the constants."""
        memory = POOL.take(self.size)
        for offset, entry in self.entries:
            if isinstance(entry, np.ndarray):
                put(memory[offset:], entry)
            else:
                sources = [values[source.inside, source.number] for source in entry.sources]
                entry.fill(memory[offset:], sources, target)
        return memory


def constant_values(plan: Plan, parameters: Sequence[Array]) -> Values:
    """The value of every constant node of the outer net and the body, from the parameters."""
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


def put(memory: Array, numbers: Array) -> None:
    """Puts numbers at the beginning of memory, one after the other."""
    data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    memory[: data.size] = data
