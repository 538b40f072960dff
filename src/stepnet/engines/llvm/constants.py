"""The constants of a kernel: parameters in the form that machine code reads, in one piece of memory.

The layout is decided by the compiler. The numbers are filled in when parameters are bound. A parameter of a
product is packed as [unit block][k][gate][element], so that the microkernel reads it from front to back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepnet.engines.llvm.memory import POOL, pointer
from stepnet.engines.llvm.pack import Packing
from stepnet.engines.llvm.records import LINE
from stepnet.engines.llvm.target import Target
from stepnet.engines.packed import parameters_of
from stepnet.net.interpret import evaluated
from stepnet.net.types import CONST, Type
from stepnet.plan.plan import Plan

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
        self.filler(memory)(values[0])

    def filler(self, memory: Array) -> Callable[[Array], None]:
        """What puts the numbers into memory, from the value of the source."""
        type_, places = self.constant.type, self.places
        count = type_.size if places is None else len(places)
        numbers = memory[: count * type_.itemsize].view(type_.dtype)
        all_ = places is None or np.array_equal(places, np.arange(type_.size))

        def put_all(value: Array) -> None:
            numbers[...] = value.reshape(-1)

        def put_some(value: Array) -> None:
            numbers[...] = value.reshape(-1)[places]

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


@dataclass
class Constants:
    """The layout of a kernel's constants, as entries are added."""

    entries: list[tuple[int, "Places | Packed | Array"]] = field(
        default_factory=list[tuple[int, "Places | Packed | Array"]]
    )
    known: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    size: int = 0

    @property
    def held(self) -> int:
        """The bytes of the arrays that describe the entries."""
        arrays = (entry.places if isinstance(entry, Places) else entry for _, entry in self.entries)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def add(self, entry: "Places | Packed") -> int:
        """The byte offset of an entry."""
        return self._place(entry.key, entry, entry.bytes)

    def add_array(self, array: Array) -> int:
        """The byte offset of an array that does not depend on parameters."""
        return self._place((array.dtype.str, array.tobytes()), array, array.nbytes)

    def _place(self, key: tuple[object, ...], entry: "Places | Packed | Array", size: int) -> int:
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


def put(memory: Array, numbers: Array) -> None:
    """Puts numbers at the beginning of memory, one after the other."""
    data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    memory[: data.size] = data


def constant_values(plan: Plan, parameters: Sequence[np.ndarray]) -> Values:
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
