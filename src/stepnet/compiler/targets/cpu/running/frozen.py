"""Frozen calls: calls of kernels that are prepared for other arrays of the same shapes.

    first call     workspaces, lanes and argument words of each kernel
    later calls    new arrays for the results; their addresses and those of the given arrays; one run

A value of a `FrozenChain` that its kernels alone read has one array for all calls, unless it is large. A
kernel with work for NumPy after its steps, or with outputs that share memory, is a `FrozenKernel`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from stepnet.compiler.targets.base import Array, Call, FrozenRun, KernelLinks, Links, Results
from stepnet.compiler.targets.cpu.machine.call_words import WORDS
from stepnet.compiler.targets.cpu.machine.memory import ADDRESS, BUFFER, pointer
from stepnet.compiler.targets.cpu.running.call_block import CallBlock, Turn
from stepnet.compiler.targets.cpu.running.form import CallArrays, CallForm, OptionalArrays
from stepnet.compiler.targets.cpu.running.native import POINTERS, Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, write_words

LARGE = 2**18
"""The size in bytes from which a value between kernels of a chain has a new array at each call."""
Run = Callable[[Sequence[int]], None]
"""A function that runs prepared calls on the arrays at some addresses; raises `InputError` if an index is
outside its table.
"""
Maker = Callable[[], Array]
"""A function that allocates the array of a result."""
Sources = Sequence[tuple[int, int]]
"""The argument words of a kernel that change: the index of the word among those of arrays, and the index of
its address among those of a call.
"""


@dataclass(frozen=True)
class FrozenChain:
    """Prepared calls of a chain; see `FrozenRun`.

    wanted: the number of values that a call returns.
    zeros: for each given value, the zeros that replace a missing initial memory; None for other values.
    makers: allocate the arrays of the wanted values, and then those of large values between kernels.
    run_at: runs the calls on the given arrays and those of `makers`, at these addresses.
    bytes: the memory that is kept between calls.
    held: objects whose memory the argument words point to.
    """

    wanted: int
    zeros: tuple[Array | None, ...]
    makers: tuple[Maker, ...]
    run_at: Run
    bytes: int
    held: tuple[object, ...]

    @classmethod
    def of(
        cls,
        prepared: PreparedChain,
        forms: Sequence[CallForm],
        arrays: Sequence[CallArrays],
        links: Links,
        tables: Sequence[object],
    ) -> "FrozenChain":
        """Freezes prepared calls, all of them without work for NumPy. Arrays that only the kernels read are
        kept for all calls, unless they are large.

        prepared: the workspaces (scratch memory and arguments) of the calls.
        forms, arrays: those of the calls.
        links: the values that each kernel reads and computes, and those that a call is given and returns.
        tables: the tables of the sequences, which the argument words point to.
        """
        kernels = ChainArrays.of(prepared, forms, arrays, links)
        large = [key for key, array in kernels.between.items() if array.nbytes >= LARGE]
        kept = {key: array for key, array in kernels.between.items() if key not in large}
        fixed = {key: pointer(array) for key, array in (kernels.zeros | kept).items()}
        order = {key: place for place, key in enumerate((*links.given, *links.wanted, *large))}
        run = runner(prepared, *kernels.words(prepared, fixed, order), len(order))
        held = *kept.values(), *kernels.zeros.values()
        return cls(
            len(links.wanted),
            tuple(map(kernels.zeros.get, links.given)),
            tuple(kernels.makers[key] for key in (*links.wanted, *large)),
            run,
            prepared.bytes + sum(array.nbytes for array in held),
            (prepared, *tables, *held),
        )

    def run(self, given: OptionalArrays) -> list[Array]:
        """Runs the calls on the given arrays (None for an initial memory of zeros); returns new arrays of the
        values that the chain returns. Raises `InputError` if an index is outside its table.
        """
        made = [new() for new in self.makers]
        try:
            addresses = [ADDRESS(BUFFER(array)) for array in (*given, *made)]
        except (TypeError, ValueError):  # one is missing, empty or read-only
            addresses = addresses_with_zeros(given, self.zeros, made)
        self.run_at(addresses)
        return made[: self.wanted]


def addresses_with_zeros(given: OptionalArrays, zeros: OptionalArrays, made: Sequence[Array]) -> list[int]:
    """Returns the addresses of the arrays of a call: the given ones, with zeros in place of missing initial
    memories, and the new ones.
    """
    pairs = zip(given, zeros, strict=True)
    whole = [filling if array is None else array for array, filling in pairs]
    return [*map(pointer, whole), *map(pointer, made)]


class ChainArrays(NamedTuple):
    """The arrays of prepared calls of a chain, by key.

    keys: the keys of the arrays of each kernel.
    makers: for each result of a kernel, a function that allocates its array.
    zeros: the zeros that replace missing initial memories.
    between: the results that the chain does not return, as allocated for the prepared calls.
    """

    keys: "list[Keys]"
    makers: "dict[Key, Maker]"
    zeros: "dict[Key, Array]"
    between: "dict[Key, Array]"

    @classmethod
    def of(
        cls,
        prepared: PreparedChain,
        forms: Sequence[CallForm],
        arrays: Sequence[CallArrays],
        links: Links,
    ) -> "ChainArrays":
        """Collects the arrays of prepared calls; the arguments are those of `FrozenChain.of`."""
        pairs = list(zip(links.kernels, forms, strict=True))
        keys = [Keys.of(place, *pair) for place, pair in enumerate(pairs)]
        makers = {
            key: new for own, form in zip(keys, forms, strict=True) for key, new in makers_of(own, form)
        }
        kernels = zip(keys, forms, prepared.natives, strict=True)
        zeros = dict(pair for own, form, native in kernels for pair in zeros_of(own, form, native))
        between = {
            key: array
            for own, each in zip(keys, arrays, strict=True)
            for key, array in zip(own.in_order, each.in_order, strict=True)
            if array is not None and key in makers and key not in links.wanted
        }
        return cls(keys, makers, zeros, between)

    def words(
        self, prepared: PreparedChain, fixed: "Mapping[Key, int]", order: "Mapping[Key, int]"
    ) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        """Returns, for each kernel, the addresses of its arrays in the order of its argument words (0 for
        those that change), and the words that change, each with the index of its address in a call.

        fixed: the addresses of arrays that all calls share.
        order: for each array that changes, the index of its address.
        """
        words = [
            [own.in_order[place] for place in native.in_words]
            for own, native in zip(self.keys, prepared.natives, strict=True)
        ]
        return (
            [[fixed.get(key, 0) for key in own] for own in words],
            [[(n, order[key]) for n, key in enumerate(own) if key in order] for own in words],
        )


@dataclass(frozen=True)
class FrozenPlain:
    """Prepared call of one kernel as a chain. outputs: the number of results that are outputs."""

    chain: FrozenRun
    outputs: int

    @property
    def bytes(self) -> int:
        """The memory that is kept between calls."""
        return self.chain.bytes

    def run(self, sequences: OptionalArrays, initial: OptionalArrays, statics: OptionalArrays) -> Results:
        """Runs the kernel on these arrays (`initial` None for zeros), and returns its results in new arrays.

        Raises `InputError` if an index is outside its table.
        """
        results = self.chain.run([*sequences, *initial, *statics])
        return Results(results[: self.outputs], results[self.outputs :])


def links_of_kernel(call: Call, form: CallForm) -> Links:
    """Returns the links of a chain of one kernel, which takes and returns all its values. Their numbers are
    their positions among sequences, initial memories, statics, outputs and results per row.
    """
    outputs, rows = len(form.kind.outputs), len(form.kind.rows)
    counts = len(call.sequences), len(call.initial), len(call.statics), outputs + rows
    ends = [0, *accumulate(counts)]
    sequences, memories, statics, results = (tuple(range(*pair)) for pair in pairwise(ends))
    return Links((KernelLinks(sequences, memories, statics, results),), tuple(range(ends[-2])), results)


@dataclass(frozen=True)
class FrozenKernel:
    """Prepared call of one kernel.

    native, form: the kernel, and the maker of its arrays.
    run_at: runs it on the arrays at the addresses of all its arrays, in their order.
    bytes: the memory that is kept between calls.
    held: objects whose memory the argument words point to.
    """

    native: Native
    form: CallForm
    run_at: Run
    bytes: int
    held: tuple[object, ...]

    @classmethod
    def of(cls, prepared: PreparedChain, form: CallForm, table: object) -> "FrozenKernel":
        """Freezes the prepared call of a chain of one kernel. form: the maker of its arrays. table: the table
        of its sequences, which is kept.
        """
        (native,) = prepared.natives
        sources = list(enumerate(native.in_words))
        run = runner(prepared, [[0] * len(sources)], [sources], len(sources))
        return cls(native, form, run, prepared.bytes, (prepared, table))

    def run(self, sequences: OptionalArrays, initial: OptionalArrays, statics: OptionalArrays) -> Results:
        """Runs the kernel on these arrays (`initial` None for zeros), and returns its results in new arrays.

        Raises `InputError` if an index is outside its table.
        """
        arrays = self.form.arrays(sequences, initial, statics, self.form.results())
        self.run_at([*map(pointer, arrays.in_order)])
        self.native.end(self.form, arrays)
        arrays.give_back()
        return arrays.results


Key = Hashable
"""The key of an array of a chain: the number of its value. A result that nobody reads and an initial memory
of zeros have no number; their key is ("unread" or "zeros", kernel, position).
"""


class Keys(NamedTuple):
    """The keys of the arrays of a kernel in a chain, by kind."""

    sequences: tuple[Key, ...]
    memories: tuple[Key, ...]
    final: tuple[Key, ...]
    statics: tuple[Key, ...]
    outputs: tuple[Key, ...]

    @classmethod
    def of(cls, kernel: int, links: KernelLinks, form: CallForm) -> "Keys":
        """Makes the keys of a kernel's arrays. kernel: its position in the chain. links: the numbers of the
        values that it reads and computes; results that it lacks are unread. form: has the kinds of its
        results.
        """
        outputs, rows = len(form.kind.outputs), len(form.kind.rows)
        numbers = (*links.results, *[-1] * (outputs + rows - len(links.results)))
        results = tuple(("unread", kernel, n) if each < 0 else each for n, each in enumerate(numbers))
        memories = tuple(("zeros", kernel, n) if each < 0 else each for n, each in enumerate(links.memories))
        return cls(links.sequences, memories, results[outputs:], links.statics, results[:outputs])

    @property
    def in_order(self) -> tuple[Key, ...]:
        """The keys of all arrays, in the order of `CallForm.in_order`."""
        return (*self.sequences, *self.memories, *self.final, *self.statics, *self.outputs)


def makers_of(keys: Keys, form: CallForm) -> Iterable[tuple[Key, Maker]]:
    """Yields the key of each result of a kernel, with a function that allocates its array."""
    for key, rows in zip(keys.outputs, form.kind.outputs, strict=True):
        yield key, form.output(rows)
    for key, rows in zip(keys.final, form.kind.rows, strict=True):
        yield key, rows.maker(form.batch)


def zeros_of(keys: Keys, form: CallForm, native: Native) -> Iterable[tuple[Key, Array]]:
    """Yields keys of initial memories of a kernel, with the zeros that replace them where a call has none.

    The machine code takes the address 0 for zeros, but for memories that it copies (`CallForm.filled`). A
    call that may give a memory has zeros for it in any case, so that it needs no other way without.
    """
    for place, key in enumerate(keys.memories):
        if place in form.filled:
            yield key, form.filled[place]
        elif isinstance(key, int):
            type_ = native.memories[place]
            yield key, np.zeros((form.batch, *type_.shape), type_.dtype)


def runner(
    prepared: PreparedChain, fixed: Sequence[list[int]], sources: Sequence[Sources], count: int
) -> Run:
    """Makes the function that runs prepared calls on the arrays at `count` addresses. If each wave of the
    chain is a single task, it is one call of machine code; else the waves run one by one.

    fixed: for each kernel the addresses of all its arrays, in the order of the argument words; any number for
        those that change.
    sources: for each kernel, the words that change, and the address (among `count`) of each.
    """
    kernels = list(zip(prepared.natives, prepared.spaces, fixed, sources, strict=True))

    def write() -> None:
        """Writes the addresses of all arrays to the argument words."""
        for native, spaces, addresses, _ in kernels:
            for space in spaces:
                write_words(space, native.pack_pointers, POINTERS, addresses)

    if is_in_turn(prepared):
        write()
        return block(prepared, sources, count).run

    def run(addresses: Sequence[int]) -> None:
        """Writes these addresses to the words that change, and runs all waves on several threads."""
        for _, _, own, changing in kernels:
            for word, source in changing:
                own[word] = addresses[source]
        write()
        prepared.run()

    return run


def is_in_turn(prepared: PreparedChain) -> bool:
    """Tells whether the kernels of prepared calls run one after the other, each in one thread."""
    return all(run.only is not None for run in prepared.runs)


def block(
    prepared: PreparedChain, sources: Sequence[Sources], count: int, further: Sequence[Sources] | None = None
) -> CallBlock:
    """Makes the block of prepared calls whose kernels run one after the other.

    sources: for each kernel, the words of arrays that change.
    count: the number of addresses and numbers that a call gives.
    further: for each kernel, further argument words that change, each with the index of its number.
    """
    turns = list[Turn]()
    for (place,) in prepared.shape.waves:
        (space,) = prepared.spaces[place]
        words = [(len(WORDS) + word, source) for word, source in sources[place]]
        words += [] if further is None else further[place]
        turns.append(Turn(prepared.natives[place].compiled.run, space, words))
    return CallBlock(turns, count, prepared.reach, prepared.natives[0].target)
