"""Frozen calls: calls of kernels that are prepared for other arrays, and other lengths.

    first call     workspaces, lanes and argument words of each kernel
    later calls    new arrays for the results; their addresses and those of the given arrays; one run

Lengths are fixed, or arguments: then machine code fills the tables of the sequences' places first
(`lengths.py`). A value of a `FrozenChain` that its kernels alone read has one
array for all calls, unless it is large or its size depends on the lengths. A kernel with work for NumPy after
its steps, or with outputs that share memory, is a `FrozenKernel`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from stepnet.compiler.targets.base import Array, Call, FrozenRun, KernelLinks, Links, Results
from stepnet.compiler.targets.cpu.machine.call_words import WORDS
from stepnet.compiler.targets.cpu.machine.memory import ADDRESS, BUFFER, pointer, view
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.targets.cpu.running.call_block import CallBlock, Turn
from stepnet.compiler.targets.cpu.running.chain import Started
from stepnet.compiler.targets.cpu.running.chain_arrays import ChainArrays, Maker
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
Sources = Sequence[tuple[int, int]]
"""The argument words of a kernel that change: the index of the word, and the index of its address among those
of a call.
"""


@dataclass(frozen=True)
class FrozenChain:
    """Prepared calls of a chain of kernels: they run again on other arrays, with fixed lengths or, if these
    are arguments, with other lengths.

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
        """Prepares the calls of a chain to run again on other arrays. No kernel may have work for NumPy.

        None if lengths are to be arguments, and the calls do not run one after the other in one thread, or
        some sequences share a lane (a slot that runs them in turn).

        prepared, started: the workspaces (scratch memory and arguments) of the calls, and the calls.
        links: the values that each kernel reads and computes, and those that a call is given and returns.
        positions: those of the sequences whose lengths later calls give; None if all lengths are fixed.
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
        if offsets is None or self.tables is None:
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


@dataclass(frozen=True)
class FrozenPlain:
    """Prepared call of one kernel, run again on other arrays. outputs: how many results are outputs."""

    chain: FrozenRun
    outputs: int

    def run(self, given: OptionalArrays, offsets: Array | None) -> Results:
        """Runs the kernel, as `FrozenCall.run`."""
        results = self.chain.run(given, offsets)
        return Results(results[: self.outputs], results[self.outputs :])


def links_of_kernel(call: Call, form: CallForm) -> Links:
    """Numbers the values of a kernel that runs alone as a chain, which takes and returns all of them:
    sequences, initial memories, statics, outputs and results per row, in this order. Returns the chain's
    links.
    """
    outputs, rows = len(form.kind.outputs), len(form.kind.rows)
    counts = len(call.sequences), len(call.initial), len(call.statics), outputs + rows
    ends = [0, *accumulate(counts)]
    sequences, memories, statics, results = (tuple(range(*pair)) for pair in pairwise(ends))
    return Links((KernelLinks(sequences, memories, statics, results),), tuple(range(ends[-2])), results)


@dataclass(frozen=True)
class FrozenKernel:
    """Prepared call of one kernel, which runs again on other arrays, with work by NumPy after its steps.

    native, form: the kernel, and the maker of its arrays.
    starts: where the initial memories and the statics begin among the given arrays.
    run_at: runs it on the arrays at the addresses of all its arrays, in their order.
    bytes: the memory that is kept between calls.
    held: objects whose memory the argument words point to.
    """

    native: Native
    form: CallForm
    starts: tuple[int, int]
    run_at: Run
    bytes: int
    held: tuple[object, ...]

    @classmethod
    def of(cls, prepared: PreparedChain, call: Call, form: CallForm, table: object) -> "FrozenKernel":
        """Prepares the call of a chain of one kernel to run again on other arrays. form: the maker of its
        arrays. table: the table of its sequences, which is kept.
        """
        memories = len(call.sequences)
        starts = memories, memories + len(call.initial)
        (native,) = prepared.natives
        sources = [(len(WORDS) + word, source) for word, source in enumerate(native.in_words)]
        run = runner(prepared, [[0] * len(sources)], [sources], len(sources), {})
        return cls(native, form, starts, run, prepared.bytes, (prepared, table))

    def run(self, given: OptionalArrays, offsets: Array | None) -> Results:
        """Runs the kernel, as `FrozenCall.run`. Lengths are fixed: `offsets` is None."""
        memories, statics = self.starts
        kinds = given[:memories], given[memories:statics], given[statics:]
        arrays = self.form.arrays(*kinds, self.form.results())
        self.run_at([*map(pointer, arrays.in_order)])
        self.native.end(self.form, arrays)
        arrays.give_back()
        return arrays.results


def runner(
    prepared: PreparedChain,
    fixed: Sequence[list[int]],
    sources: Sequence[Sources],
    count: int,
    behind: Mapping[int, Sequence[AcrossTask]],
    first: Sequence[Turn] = (),
) -> Run:
    """Makes the function that runs prepared calls on the arrays at `count` addresses. If each wave of the
    chain (kernels that run at once) is a single task, it is one call of machine code; else the waves run one
    by one.

    fixed: for each kernel the addresses of all its arrays, in the order of the argument words; any number for
        those that change.
    sources: for each kernel, the words that change, and the address (among `count`) of each.
    behind: the repeats and reductions over steps, by the wave of kernels behind which they run.
    first: the tasks that run ahead of all; none if the waves run on several threads.
    """
    kernels = list(zip(prepared.natives, prepared.spaces, fixed, sources, strict=True))

    def write() -> None:
        """Writes the addresses of all arrays to the argument words of every thread."""
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
        """Writes the addresses to the argument words that change; runs all waves on several threads."""
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
    """Makes the task that runs the only kernel of a wave, in one thread. sources: by kernel, words to set."""
    (place,) = prepared.shape.waves[wave]
    (space,) = prepared.spaces[place]
    function, unit = prepared.natives[place].compiled.run, (pointer(space.progress), pointer(space.status))
    return Turn(function, space.addresses[0], *unit, sources[place], wave)
