"""Calls that are prepared for a number of sequences of any lengths.

    first call     workspaces with a lane for each sequence, and tables for their places
    later calls    the tables, new arrays for the results, their addresses; one run

All that depends on lengths are some numbers in the tables, and the number of steps of the longest sequence.
So few sequences, whose steps one thread runs, need no layout: their places are written with one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

import numpy as np

from stepnet.compiler.targets.base import Array, Call, FrozenLengthsRun, Links, Results
from stepnet.compiler.targets.cpu.machine.memory import ADDRESS, BUFFER, pointer, view
from stepnet.compiler.targets.cpu.running.call_block import CallBlock
from stepnet.compiler.targets.cpu.running.form import CallArrays, CallForm, OptionalArrays
from stepnet.compiler.targets.cpu.running.frozen import (
    ChainArrays,
    Key,
    Run,
    addresses_with_zeros,
    block,
    is_in_turn,
)
from stepnet.compiler.targets.cpu.running.native import POINTERS
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, write_words
from stepnet.compiler.targets.cpu.running.sequence_layout import NUMBERS
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace
from stepnet.ragged.positions import Positions

MakerOf = Callable[[int], Array]
"""A function that allocates an array for a number of steps of all sequences together."""


class LengthTables:
    """Tables of the places of a number of sequences, which lie end to end, each in a lane of its own.

    The words of workspaces point to them; a call writes their contents.
    """

    def __init__(self, count: int) -> None:
        """Allocates the tables of `count` sequences."""
        self.count = count
        sizes = {"order": count, "lane_steps": count + 1, "starts": count, "lengths": count}
        self.numbers, self.first = np.zeros(4 * count + 1, np.int64), np.arange(count + 1)
        ends = np.cumsum(list(sizes.values())).tolist()
        begins = dict(zip(sizes, [0, *ends], strict=False))
        self.pointers = {name: pointer(self.numbers[begin:]) for name, begin in begins.items()}
        self.pointers |= {"first": pointer(self.first), "step_offsets": pointer(NUMBERS)}
        self.pack, self.view = Struct(f"{len(self.numbers)}q").pack_into, view(self.numbers)

    def point(self, space: Workspace) -> None:
        """Points the argument words of a workspace to the tables."""
        for name, address in self.pointers.items():
            write_words(space, Struct("q").pack_into, 8 * WORD[name], (address,))

    def write(self, offsets: Sequence[int]) -> int:
        """Writes the places of sequences at these offsets; returns the length of the longest one.

        Lanes are in the order of their lengths, the longest first, as the machine code requires.
        """
        lengths = [end - begin for begin, end in pairwise(offsets)]
        order = sorted(range(self.count), key=lengths.__getitem__, reverse=True)
        steps = [lengths[place] for place in order]
        self.pack(self.view, 0, *order, *steps, 0, *offsets[:-1], *lengths)
        return steps[0]


@dataclass(frozen=True)
class ChainOfLengths:
    """Prepared calls of a chain for sequences of any lengths; see `FrozenLengthsRun`.

    wanted: the number of values that a call returns.
    zeros: for each given value, the zeros that replace a missing initial memory; None for other values.
    makers: allocate the arrays of the wanted values, and then those of values per step between kernels.
    tables: the tables of the sequences' places.
    run_at: runs the calls, given the steps of the longest sequence and the addresses of all arrays.
    bytes: the memory that is kept between calls.
    held: objects whose memory the argument words point to.
    """

    wanted: int
    zeros: tuple[Array | None, ...]
    makers: tuple[MakerOf, ...]
    tables: LengthTables
    run_at: Run
    bytes: int
    held: tuple[object, ...]
    longest: int = len(NUMBERS)

    @classmethod
    def of(
        cls,
        prepared: PreparedChain,
        forms: Sequence[CallForm],
        arrays: Sequence[CallArrays],
        links: Links,
        calls: Sequence[Call],
        positions: Positions,
        held: Sequence[object],
    ) -> "ChainOfLengths | None":
        """Prepares calls for other lengths; None if they do not run one after the other in one thread, or
        some sequences share a lane.

        prepared, forms, arrays, links: as for `FrozenChain.of`.
        calls: the calls. Those at other positions than `positions` have them in all later calls, too.
        held: the tables of the sequences of the prepared calls.
        """
        follow = [call.positions is positions for call in calls]
        lanes = [prepared.shape.lanes[place] == (positions.rows,) for place, own in enumerate(follow) if own]
        if not is_in_turn(prepared) or not all(lanes):
            return None
        tables = LengthTables(positions.rows)
        kernels = ChainArrays.of(prepared, forms, arrays, links)
        grows = dict[Key, MakerOf]()
        for keys, form, call, own in zip(kernels.keys, forms, calls, follow, strict=True):
            if own and not call.last_only:
                grows |= {key: rows.new for key, rows in zip(keys.outputs, form.kind.outputs, strict=True)}
        inside = [key for key in kernels.between if key in grows]
        kept = {key: array for key, array in kernels.between.items() if key not in grows}
        fixed = {key: pointer(array) for key, array in (kernels.zeros | kept).items()}
        # The number of steps comes before the addresses.
        order = {key: 1 + place for place, key in enumerate((*links.given, *links.wanted, *inside))}
        addresses, sources = kernels.words(prepared, fixed, order)
        for native, (space,), own in zip(prepared.natives, prepared.spaces, addresses, strict=True):
            write_words(space, native.pack_pointers, POINTERS, own)
        for (space,), own in zip(prepared.spaces, follow, strict=True):
            if own:
                tables.point(space)
        steps = [[(WORD["steps"], 0)] if own else [] for own in follow]
        run: CallBlock = block(prepared, sources, 1 + len(order), steps)
        arrays_held = *kept.values(), *kernels.zeros.values()
        return cls(
            len(links.wanted),
            tuple(map(kernels.zeros.get, links.given)),
            tuple(grows.get(key) or fixed_maker(kernels.makers[key]) for key in (*links.wanted, *inside)),
            tables,
            run.run,
            prepared.bytes + sum(array.nbytes for array in arrays_held),
            (prepared, *held, *arrays_held),
        )

    def run(self, given: OptionalArrays, offsets: Sequence[int]) -> list[Array]:
        """Runs the calls on sequences at these offsets; returns new arrays of the wanted values.

        Raises `InputError` if an index is outside its table.
        """
        steps, total = self.tables.write(offsets), offsets[-1]
        made = [new(total) for new in self.makers]
        try:
            addresses = [ADDRESS(BUFFER(array)) for array in (*given, *made)]
        except (TypeError, ValueError):  # one is missing, empty or read-only
            addresses = addresses_with_zeros(given, self.zeros, made)
        self.run_at([steps, *addresses])
        return made[: self.wanted]


def fixed_maker(new: Callable[[], Array]) -> MakerOf:
    """Makes a function that allocates an array whose size does not depend on the number of steps."""
    return lambda _: new()


@dataclass(frozen=True)
class KernelOfLengths:
    """A chain of one kernel. outputs: the number of its results that are outputs."""

    chain: FrozenLengthsRun
    outputs: int

    def run(
        self,
        sequences: OptionalArrays,
        initial: OptionalArrays,
        statics: OptionalArrays,
        offsets: Sequence[int],
    ) -> Results:
        """Runs the kernel on sequences at these offsets, and returns its results in new arrays.

        Raises `InputError` if an index is outside its table.
        """
        results = self.chain.run([*sequences, *initial, *statics], offsets)
        return Results(results[: self.outputs], results[self.outputs :])
