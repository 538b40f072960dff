"""Frozen calls: calls of kernels that are prepared for other arrays, and other lengths.

    first call     workspaces, lanes and argument words of each kernel
    later calls    new arrays for the results; their addresses and those of the given arrays; one run

Lengths are fixed, or arguments: then machine code fills the tables of the sequences' places first
(`lengths.py`). A value of a `FrozenChain` that its kernels alone read has one
array for all calls, unless it is large or its size depends on the lengths. A kernel with work for NumPy after
its steps, or with outputs that share memory, is a `FrozenKernel`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.targets.base import Array, Call, FrozenRun, KernelLinks, Links, Results
from stepnet.compiler.targets.cpu.machine.call_words import WORDS
from stepnet.compiler.targets.cpu.machine.memory import ADDRESS, BUFFER, pointer, view
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.targets.cpu.running.call_block import CallBlock, Turn
from stepnet.compiler.targets.cpu.running.chain import Started
from stepnet.compiler.targets.cpu.running.form import CallForm, OptionalArrays
from stepnet.compiler.targets.cpu.running.lengths import LengthTables
from stepnet.compiler.targets.cpu.running.native import POINTERS, Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, write_words
from stepnet.ragged.positions import Positions

LARGE = 2**18
"""The size in bytes from which a value between kernels of a chain has a new array at each call."""
Run = Callable[[Sequence[int]], None]
"""A function that runs prepared calls on the arrays at some addresses; raises `InputError` if an index is
outside its table.
"""
Maker = Callable[..., Array]
"""A function that allocates the array of a result. If lengths are arguments of a call, it takes the number of
steps of all sequences together.
"""
Sources = Sequence[tuple[int, int]]
"""The argument words of a kernel that change: the index of the word, and the index of its address among those
of a call.
"""


@dataclass(frozen=True)
class FrozenChain:
    """Prepared calls of a chain, whose lengths are fixed, or arguments; see `FrozenRun`.

    wanted: the number of values that a call returns.
    zeros: for each given value, the zeros that replace a missing initial memory; None for other values.
    makers: allocate the arrays of the wanted values, and then those of values between kernels that are new at
        each call.
    tables: where the sequences lie, if their lengths are arguments; None if these are fixed.
    run_at: runs the calls on the given arrays and those of `makers`, at these addresses.
    bytes: the memory that is kept between calls.
    held: objects whose memory the argument words point to.
    """

    wanted: int
    zeros: tuple[Array | None, ...]
    makers: tuple[Maker, ...]
    tables: LengthTables | None
    run_at: Run
    bytes: int
    held: tuple[object, ...]

    @classmethod
    def of(
        cls, prepared: PreparedChain, started: Started, links: Links, positions: Positions | None
    ) -> "FrozenChain | None":
        """Freezes prepared calls, all of them without work for NumPy.

        None if lengths are to be arguments, and the calls do not run one after the other in one thread, or
        some sequences share a lane.

        prepared: the workspaces (scratch memory and arguments) of the calls.
        started: the calls.
        links, positions: as for `Begun.frozen`.
        """
        target = prepared.natives[0].target
        tables = None if positions is None else LengthTables(positions.rows, target)
        if tables is not None and not tables.fit(prepared, started.follow(positions)):
            return None
        kernels = ChainArrays.of(prepared, started, links, positions)
        anew = [
            key for key, array in kernels.between.items() if key in kernels.grows or array.nbytes >= LARGE
        ]
        kept = {key: array for key, array in kernels.between.items() if key not in anew}
        fixed = {key: pointer(array) for key, array in (kernels.zeros | kept).items()}
        order = {key: place for place, key in enumerate((*links.given, *links.wanted, *anew))}
        addresses, sources = kernels.words(prepared, fixed, order)
        for task, keys in zip(started.across, links.across, strict=True):
            task.change(keys, fixed, order)
        first = list[Turn]()
        if tables is not None:
            pairs = zip(prepared.spaces, started.follow(positions), strict=True)
            spaces = [space for spaces, follows in pairs if follows for space in spaces]
            first.append(tables.turn(spaces, started.across))
        behind = started.behind(prepared.shape.waves)
        run = runner(prepared, addresses, sources, len(order), behind, first)
        held = *kept.values(), *kernels.zeros.values()
        return cls(
            len(links.wanted),
            tuple(map(kernels.zeros.get, links.given)),
            tuple(kernels.makers[key] for key in (*links.wanted, *anew)),
            tables,
            run,
            prepared.bytes + sum(array.nbytes for array in held),
            (prepared, *started.tables, *started.across, *held),
        )

    @property
    def longest(self) -> int:
        """The largest length of a sequence, if lengths are arguments; 0 if they are fixed."""
        return 0 if self.tables is None else self.tables.longest

    def run(self, given: OptionalArrays, offsets: Array | None = None) -> list[Array]:
        """Runs the calls on the given arrays (None for an initial memory of zeros); returns new arrays of the
        values that the chain returns. offsets: those of the sequences, if lengths are arguments.

        Raises `InputError` if an index is outside its table.
        """
        if self.tables is None or offsets is None:
            made = [new() for new in self.makers]
        else:
            self.tables.offsets[:] = view(offsets)
            total = self.tables.offsets[-1]
            made = [new(total) for new in self.makers]
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
    grows: the results whose sizes depend on the lengths, if these are arguments.
    zeros: the zeros that replace missing initial memories.
    between: the results that the chain does not return, as allocated for the prepared calls.
    """

    keys: "list[Keys]"
    makers: "dict[Key, Maker]"
    grows: "set[Key]"
    zeros: "dict[Key, Array]"
    between: "dict[Key, Array]"

    @classmethod
    def of(
        cls, prepared: PreparedChain, started: Started, links: Links, positions: Positions | None
    ) -> "ChainArrays":
        """Collects the arrays of prepared calls; the arguments are those of `FrozenChain.of`."""
        forms, follow, steps = started.forms, started.follow(positions), positions is not None
        keys = [Keys.of(place, *pair) for place, pair in enumerate(zip(links.kernels, forms, strict=True))]
        makers = {
            key: new for own, form in zip(keys, forms, strict=True) for key, new in makers_of(own, form)
        }
        growing = dict[Key, Maker]()
        for own, form, call, follows in zip(keys, forms, started.calls, follow, strict=True):
            if follows and not call.last_only:
                growing |= {key: rows.new for key, rows in zip(own.outputs, form.kind.outputs, strict=True)}
        kernels = zip(keys, forms, prepared.natives, strict=True)
        zeros = dict(pair for own, form, native in kernels for pair in zeros_of(own, form, native))
        made = {
            key: array
            for own, each in zip(keys, started.arrays, strict=True)
            for key, array in zip(own.in_order, each.in_order, strict=True)
            if array is not None and key in makers
        }
        for task, (source, result) in zip(started.across, links.across, strict=True):
            given, made[result] = task.values
            makers[result] = task.rows.maker(task.count)
            if steps and task.grows:
                growing[result] = task.rows.new
            if source in links.given and task.across.source.extent == ROWS:  # it may be an initial memory
                zeros.setdefault(source, np.zeros_like(given))
        if steps:
            makers = {key: growing.get(key) or fixed_maker(new) for key, new in makers.items()}
        between = {key: array for key, array in made.items() if key not in links.wanted}
        return cls(keys, makers, {*growing}, zeros, between)

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
            [[(len(WORDS) + n, order[key]) for n, key in enumerate(own) if key in order] for own in words],
        )


@dataclass(frozen=True)
class FrozenPlain:
    """Prepared call of one kernel as a chain. outputs: the number of results that are outputs."""

    chain: FrozenRun
    outputs: int

    def run(
        self,
        sequences: OptionalArrays,
        initial: OptionalArrays,
        statics: OptionalArrays,
        offsets: Array | None = None,
    ) -> Results:
        """Runs the kernel on these arrays (`initial` None for zeros), and returns its results in new arrays.
        offsets: those of the sequences, if lengths are arguments.

        Raises `InputError` if an index is outside its table.
        """
        results = self.chain.run([*sequences, *initial, *statics], offsets)
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
        sources = [(len(WORDS) + word, source) for word, source in enumerate(native.in_words)]
        run = runner(prepared, [[0] * len(sources)], [sources], len(sources), {})
        return cls(native, form, run, prepared.bytes, (prepared, table))

    def run(
        self,
        sequences: OptionalArrays,
        initial: OptionalArrays,
        statics: OptionalArrays,
        offsets: Array | None = None,
    ) -> Results:
        """Runs the kernel on these arrays (`initial` None for zeros), and returns its results in new arrays.
        Lengths are fixed: `offsets` is None.

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


def fixed_maker(new: Callable[[], Array]) -> Maker:
    """Makes a function that allocates an array whose size does not depend on the number of steps."""

    def of_steps(_: int) -> Array:
        """Allocates the array for any number of steps."""
        return new()

    return of_steps


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
    prepared: PreparedChain,
    fixed: Sequence[list[int]],
    sources: Sequence[Sources],
    count: int,
    behind: Mapping[int, Sequence[AcrossTask]],
    first: Sequence[Turn] = (),
) -> Run:
    """Makes the function that runs prepared calls on the arrays at `count` addresses. If each wave of the
    chain is a single task, it is one call of machine code; else the waves run one by one.

    fixed: for each kernel the addresses of all its arrays, in the order of the argument words; any number for
        those that change.
    sources: for each kernel, the words that change, and the address (among `count`) of each.
    behind: the operations across extents, by the wave of kernels behind which they run.
    first: the tasks that run ahead of all; none if the waves run on several threads.
    """
    kernels = list(zip(prepared.natives, prepared.spaces, fixed, sources, strict=True))

    def write() -> None:
        """Writes the addresses of all arrays to the argument words."""
        for native, spaces, addresses, _ in kernels:
            for space in spaces:
                write_words(space, native.pack_pointers, POINTERS, addresses)

    if prepared.is_in_turn:
        write()
        turns = [*first]
        for wave in range(-1, len(prepared.shape.waves)):
            if wave >= 0:
                turns.append(turn_of_kernel(prepared, wave, sources))
            turns += [
                Turn(task.function, task.address, *task.unused, task.sources, wave)
                for task in behind.get(wave, ())
            ]
        return CallBlock(turns, count, prepared.reach, prepared.natives[0].target).run

    def run(addresses: Sequence[int]) -> None:
        """Writes these addresses to the words that change, and runs all waves on several threads."""
        for _, _, own, changing in kernels:
            for word, source in changing:
                own[word - len(WORDS)] = addresses[source]
        write()
        for task in chain.from_iterable(behind.values()):
            for word, source in task.sources:
                task.words[word] = addresses[source]
        prepared.run(behind)

    return run


def turn_of_kernel(prepared: PreparedChain, wave: int, sources: Sequence[Sources]) -> Turn:
    """Makes the task of a wave of a single kernel, in one thread. sources: for each kernel, the words that
    change.
    """
    (place,) = prepared.shape.waves[wave]
    (space,) = prepared.spaces[place]
    function, unit = prepared.natives[place].compiled.run, (pointer(space.progress), pointer(space.status))
    return Turn(function, space.addresses[0], *unit, sources[place], wave)
