"""Prepared calls of chains: calls of kernels that are prepared for other arrays, and other lengths.

    first call     workspaces, lanes and argument words of each kernel
    later calls    new arrays for the results; these and the given arrays; one run

Lengths are fixed, or arguments: then machine code fills the tables of the sequences' places first
(`lengths.py`). A value of a `PreparedChainCall` that its kernels alone read has one
array for all calls, unless it is large; if its size depends on the lengths, it shares a buffer with others
(`between.py`). Contracts and sums that follow the loop of a kernel are tasks of the call; NumPy computes what
has no machine code behind them (`finish.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from math import ceil, prod
from typing import Any, cast

import numpy as np

from stepnet.compiler.native.call_words import WORDS
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.net.windows import check_room, derived_offsets, most_per_step
from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import (
    LAYOUTS,
    Array,
    AtTensors,
    Call,
    KernelLinks,
    Links,
    Places,
    Rebind,
    Results,
    RunOn,
    TableLayout,
)
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.running.across import AcrossTask, BetweenTask
from stepnet.compiler.targets.cpu.running.between import SharedBuffers, StepBytes, lives_of
from stepnet.compiler.targets.cpu.running.call_block import CallBlock, Turn, block_of, turn_of
from stepnet.compiler.targets.cpu.running.chain import Started, with_idle
from stepnet.compiler.targets.cpu.running.chain_arrays import ChainArrays, Key, Keys, is_read
from stepnet.compiler.targets.cpu.running.finish import FinishCall
from stepnet.compiler.targets.cpu.running.form import CallForm, OptionalArrays
from stepnet.compiler.targets.cpu.running.idle import IdleMemories
from stepnet.compiler.targets.cpu.running.lengths import LengthTables, point_across
from stepnet.compiler.targets.cpu.running.native import POINTERS
from stepnet.compiler.targets.cpu.running.new_arrays import NewArrays, NewTable
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, write_words
from stepnet.compiler.targets.cpu.running.sequence_layout import NUMBERS
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions

LARGE = 2**21
"""The size in bytes from which values that only kernels of a chain read have new arrays at each call."""
MOST_PER_STEP = 16
"""The largest number of results for each step of a sequence in calls whose lengths are arguments."""
results_of: Callable[[Any], Results] = partial(cast("Any", tuple).__new__, Results)
"""Makes `Results` of three lists, without a function of Python in between."""
Run = Callable[[list[Any]], bool]
"""A function that runs prepared calls on a list of arrays, to which it may add the new ones. It returns
False, having run nothing, if one of them is None or of a subclass of `numpy.ndarray`, or if it does not
allocate those that are missing; it raises `InputError` if an index is outside its table.
"""
Rest = Callable[[Sequence[Any]], None]
"""A function that does work by NumPy after a prepared call, on the arrays of the call."""
Sources = Sequence[tuple[int, int]]
"""The argument words of a kernel that change: the index of the word, and the index of its address among those
of a call.
"""


@dataclass(frozen=True)
class PreparedChainCall:
    """Prepared calls of a chain of kernels: they run again on other arrays, with fixed lengths or, if these
    are arguments, with other lengths.

    zeros: for each given value, the zeros that replace a missing initial memory; None for other values.
    new: the arrays that are new at each call: of wanted values, and of values between kernels.
    shared: the buffers of values between kernels whose sizes depend on lengths.
    begin: the position of the first new array among the arrays of a call.
    wanted: the positions of the values that a call returns among the new arrays.
    ends: the positions at which the outputs, the results per row and all results end among those values.
    in_order: whether they are the first of the new arrays, in order.
    rest: work for NumPy that follows, given the arrays of a call.
    axes: the axes of steps, if lengths are arguments, that of the inputs first.
    limits: the smallest and the largest length of a sequence that has steps, if lengths are arguments; zeros
        if not.
    run_on: runs the calls on the given arrays and new ones.
    bytes: the memory that is kept between calls.
    held: objects whose memory the argument words point to.
    tables: the tables of the sequences along each axis of steps, if lengths are arguments.
    """

    zeros: tuple[Array | None, ...]
    new: NewArrays
    shared: SharedBuffers
    begin: int
    wanted: tuple[int, ...]
    ends: tuple[int, int, int]
    in_order: bool
    rest: tuple[Rest, ...]
    axes: tuple[str, ...]
    limits: tuple[int, int]
    run_on: Run
    bytes: int
    held: tuple[object, ...]
    tables: tuple[LengthTables, ...]

    @classmethod
    def of(
        cls,
        prepared: PreparedChain,
        started: Started,
        links: Links,
        positions: Mapping[str, Positions],
        layout: TableLayout | None = None,
    ) -> "PreparedChainCall | None":
        """Prepares the calls of a chain (compiled parts, called kernels, that run in one go) to run again on
        other arrays.

        None if lengths are to be arguments, and some sequences of this call share a lane (a slot that runs
        them in turn) or have no steps, or if later ones may have too many.

        prepared, started: the workspaces (scratch memory and arguments) of the calls, and the calls.
        links: the values that each kernel reads and computes, and those that a call is given and returns.
        positions: the positions of the sequences whose lengths later calls give, by the axis of their steps,
            that of the inputs first; none if all lengths are fixed.
        layout: how these sequences lie along the axis of the inputs.
        """
        processor, limits = prepared.natives[0].processor, limits_of(positions, started.across)
        if limits is None or not all(own.is_full for own in positions.values()):
            return None
        first_axis = next(iter(positions), None)
        rows = 0 if first_axis is None else positions[first_axis].rows
        tables = {
            axis: LengthTables(own.rows, processor, layout, limits)
            if axis == first_axis and layout is not None
            else LengthTables(own.rows, processor, LAYOUTS["ends"], (1, longest_along(axis, rows)))
            for axis, own in positions.items()
        }
        if not all(
            own.fit(prepared, started.follow({axis: positions[axis]})) for axis, own in tables.items()
        ):
            return None
        kernels = ChainArrays.of(prepared, started, links, positions, layout)
        kept, anew, joint = kernels.divided(links, LARGE)
        kept |= kernels.zeros
        fixed = {key: pointer(array) for key, array in kept.items()}
        axes, behind = [*tables], started.behind(prepared.shape.waves)
        shared, sharing = shared_of(kernels, links, prepared.shape.waves, behind, started, axes, anew)
        alone = [key for key in (*links.results, *anew) if key in kernels.new and key not in sharing]
        made = [*chain.from_iterable(keys for keys, _ in joint), *alone]
        wanted = tuple(map(made.index, links.results))
        ahead = [*links.inputs, *(("table", axis) for axis in axes), *sharing]
        order = {key: place for place, key in enumerate((*ahead, *made))}
        addresses, sources = kernels.words(prepared, fixed, order)
        for task, keys in zip(started.across, links.across, strict=True):
            task.change(keys, fixed, order)
        first, follow = list[ParallelCalls](), started.follow(positions)
        idle = idle_of(started, kernels, follow, fixed, order)
        # Pairs of steps have no calls whose lengths are arguments.
        across = [task for task in started.across if tables and isinstance(task, AcrossTask)]
        for axis, own in tables.items():
            kernels_of = zip(prepared.spaces, prepared.in_one_lane, follow, strict=True)
            following = [(spaces, in_one) for spaces, in_one, follows in kernels_of if follows == axis]
            reading = [task for task in across if axis == axis_of(task)]
            keeping = [task for task, follows in zip(idle, follow, strict=True) if task and follows == axis]
            first.append(own.filling(following, reading, keeping, order["table", axis]))
        for task in across:
            point_across(task, tables)
        behind = with_idle(behind, prepared.shape.waves, idle)
        rest = list[Rest]()
        for form, keys in zip(started.forms, kernels.keys, strict=True):
            if form.finish is not None:
                # Such a kernel is the only one of its chain.
                finish = form.finish.changed(keys.nodes, keys.of_functions, fixed, order)
                behind[0] = [*behind.get(0, ()), *finish]
                if form.finish.rest or form.finish.copied:
                    rest.append(rest_of(form.finish, keys, kept, order))
        counts = {axis: own.total for axis, own in tables.items()}
        if tables:
            counts[ROWS[0]] = tables[axes[0]].rows
        many = [several for _, several in joint]
        new = NewArrays([kernels.new[key] for key in alone], many, len(order) - len(alone))
        table = NewTable.of(new.alone, counts, new.first)
        run = runner(prepared, addresses, sources, behind, first, table)
        return cls(
            tuple(map(kernels.zeros.get, links.inputs)),
            new,
            shared,
            len(ahead),
            wanted,
            (links.outputs, links.rows, len(wanted)),
            wanted == tuple(range(len(wanted))),
            tuple(rest),
            tuple(positions),
            limits,
            run,
            prepared.bytes + shared.bytes + sum(array.nbytes for array in kept.values()),
            (
                prepared,
                *started.tables,
                *started.forms,
                *started.across,
                *tables.values(),
                *first,
                *idle,
                *kept.values(),
            ),
            tuple(tables.values()),
        )

    def run(self, given: OptionalArrays, places: Places | None) -> Results:
        """Runs the call as `arrays` does; returns the results by kind."""
        made, (outputs, rows, end) = self.arrays(given, places), self.ends
        return results_of((made[:outputs], made[outputs:rows], made[rows:end]))

    def arrays(self, given: OptionalArrays, places: Places | None) -> list[Array]:
        """Runs the kernels (compiled parts) of the chain on arrays of a new call; returns the results, in
        their order, in new arrays. Arrays of values between kernels may follow them.

        given: the arrays of all values that a call of the chain takes; None for an initial memory (recurrent
            state) of zeros.
        places: where the sequences of this call lie; None if the lengths are those of the call that was
            prepared.

        Raises `InputError` if an index is outside its table, or the sequences do not lie as those of a call
        that was prepared. Arrays of other types than `numpy.ndarray` are converted, missing initial memories
        filled with zeros, and all new arrays allocated by Python, only if the first try refuses them.
        """
        arrays: list[Any]
        counts: Sequence[int]
        if places is None:
            counts, arrays = (0,), [*given]
        elif len(self.axes) > 1:
            tables, counts = self.write(places)
            arrays = [*given, *tables]
        else:  # at once
            table, rows, total = places
            self.tables[0].write(rows, total, len(table))
            counts, arrays = (rows, total), [*given, table]
        if self.shared.order:
            arrays += self.shared.arrays(counts[1:])
        for several in self.new.joint:
            arrays += several()
        if not self.run_on(arrays):
            along = dict(zip((ROWS[0], *self.axes), counts, strict=False))
            ahead = arrays[len(given) : self.new.first]
            arrays = [*with_zeros(given, self.zeros), *ahead, *self.new.arrays(along)]
            self.run_on(arrays)
        for rest in self.rest:
            rest([*with_zeros(given, self.zeros), *arrays[len(given) :]])
        made = arrays[self.begin :]
        if not self.in_order:
            made = [made[place] for place in self.wanted]
        return made

    def at(self, places: AtTensors, packing: Sequence[Any], rebind: Rebind | None) -> RunOn | None:
        """Makes the function that runs the kernels (compiled parts) of the chain on the memory of tensors.
        Large values between kernels have new arrays, as in `run`. None if lengths are arguments, or if more
        than one call of machine code does the work. The arguments are as of `PreparedCall.at`.
        """
        block: Any = getattr(self.run_on, "__self__", None)
        if self.tables or self.rest or not isinstance(block, CallBlock):
            return None
        inner, new = self.new.others(self.wanted)
        total = len(places.tensors.places)
        own = [*places.results, *range(total, total + len(inner))]
        made = dict(zip((*self.wanted, *inner), own, strict=True))
        given = [
            zeros if place is None else place for place, zeros in zip(places.given, self.zeros, strict=True)
        ]
        values = [*given, *(made[place] for place in range(len(made)))]
        for task in packing:
            task.read_from(len(values))
        first = [turn_of(task, 0) for task in packing]
        on_tensors = block.at(places, [*values, *places.parameters], len(inner), first)
        if not inner and rebind is None:
            return on_tensors.block.run

        def run(tensors: list[Any]) -> bool:
            """Replaces the parameters where tasks do not, and runs the chain on tensors and new arrays."""
            if rebind is not None:
                addresses = on_tensors.addresses(tensors, places.parameters)
                if addresses is None or not rebind(addresses):
                    return False
            return on_tensors.run(tensors, new())

        return run

    def write(self, places: Places) -> tuple[list[Array], Sequence[int]]:
        """Writes the places of a call's sequences to the tables of all axes of steps. Returns the arrays that
        the call takes besides, that of the axis of the inputs first, and the numbers of sequences and of
        steps along each axis.
        """
        table, rows, total = places
        self.tables[0].write(rows, total, len(table))
        lengths, counts = [table], [rows, total]
        for axis, own in zip(self.axes[1:], self.tables[1:], strict=True):
            offsets = np.array([0, rows]) if (axis,) == ROWS else derived_offsets(axis, table)
            lengths.append(offsets)
            counts.append(offsets.item(-1))
            own.write(len(offsets) - 1, counts[-1], len(offsets))
        return lengths, counts


def shared_of(
    kernels: ChainArrays,
    links: Links,
    waves: Waves,
    behind: Mapping[int, Sequence[ParallelCalls]],
    started: Started,
    axes: Sequence[str],
    anew: Sequence[Key],
) -> tuple[SharedBuffers, list[Key]]:
    """Returns the buffers that values between kernels (compiled parts) share, and the keys of these values:
    of those whose sizes depend on the lengths, unless NumPy reads some of them.

    kernels, links: the arrays of the chain, and the values that each kernel reads and computes.
    waves, behind: the groups of kernels that run at the same time, and the operations behind each of these
    waves.
    started: the calls, whose lengths say how large the buffers are at first.
    axes: the axes of the steps. anew: the keys of the values that the calls do not share as they are.
    """
    lives = lives_of(links, waves, behind, started.across)
    keys = [key for key in anew if key in kernels.grows and key in lives]
    values = [
        StepBytes(axes.index(kernels.grows[key]), array.itemsize * prod(array.shape[1:]))
        for key, array in ((key, kernels.between[key]) for key in keys)
    ]
    shared = SharedBuffers.of(values, [lives[key] for key in keys], len(axes))
    totals = {kernels.grows[key]: len(kernels.between[key]) for key in keys}
    counts = [totals.get(axis, 0) for axis in axes]
    if any(form.finish is not None for form in started.forms):
        return SharedBuffers.of((), (), len(axes)), []
    shared.larger(counts)
    return shared, keys


def idle_of(
    started: Started,
    kernels: ChainArrays,
    follow: Sequence[str],
    fixed: Mapping[Key, int],
    order: Mapping[Key, int],
) -> list[IdleMemories | None]:
    """Makes, for each kernel (compiled part), the task that copies the memories of empty sequences; None for
    one that has none: no final memories that are read, or fixed lengths of at least one step.

    started, kernels: the calls, and their arrays. follow: for each call, the axis of its steps if its lengths
        are arguments, else "".
    fixed, order: the addresses of the arrays that all calls share, by key, and for each other one its
        position among the arrays of a call.
    """
    made = list[IdleMemories | None]()
    natives = started.chain.natives
    for native, call, keys, axis in zip(natives, started.calls, kernels.keys, follow, strict=True):
        task = None
        if any(map(is_read, keys.final)) and (axis or not call.positions.is_full):
            task = IdleMemories(native, call.positions)
            task.change(task.pairs(keys.in_order, keys.final), fixed, order)
        made.append(task)
    return made


def longest_along(axis: str, rows: int) -> int:
    """Returns the most steps of a sequence along an axis, in a call whose lengths are arguments.
    rows: the largest number of sequences, which along the axis of rows are one, with a step for each.
    """
    if (axis,) == ROWS:
        return rows
    return ceil(most_per_step(axis) * len(NUMBERS))


def limits_of(positions: Mapping[str, Positions], tasks: Sequence[BetweenTask]) -> tuple[int, int] | None:
    """Returns the smallest and the largest length that a sequence with steps may have in prepared calls that
    take any lengths, such that it has those that extensions (copies of steps at its ends) read. None if there
    are none, or too many steps; zeros if lengths are fixed.

    positions: the positions of the sequences, by the axis of their steps. tasks: the operations between
        compiled parts, such as windows of steps.
    """
    if not positions:
        return 0, 0
    positions = {axis: own for axis, own in positions.items() if (axis,) != ROWS}
    if any(most_per_step(axis) > MOST_PER_STEP for axis in positions):
        return None
    lengths = np.arange(len(NUMBERS) + 1)
    fits = np.ones(len(lengths), bool)
    try:
        along = {axis: np.diff(derived_offsets(axis, offsets_of(lengths))) for axis in positions}
        for task in tasks:
            if task.across.window is not None:
                read, made = (offsets_of(along[extent[-1]]) for extent in task.across.extents)
                check_room(task.across.operation, made, read, task.across.window)
            if task.across.extension is not None:
                fits &= along[task.across.source.extent[-1]] >= task.across.extension.least
    except InputError:
        return None
    return (1 + int(np.argmax(fits[1:])), len(NUMBERS)) if fits[1:].any() else None


def axis_of(task: AcrossTask) -> str:
    """Returns the axis whose sequences an operation across extents goes through; "" for none."""
    return "" if task.across.source.extent == CONST else task.across.extents[0][-1]


def with_zeros(given: OptionalArrays, zeros: OptionalArrays) -> OptionalArrays:
    """Returns the arrays that a call gives as plain arrays, with zeros in place of missing initial memories
    (recurrent states), which are None. zeros: for each array, the zeros that replace it if it is missing.
    """
    pairs = zip(given, zeros, strict=True)
    return [filling if array is None else np.asarray(array) for array, filling in pairs]


def rest_of(finish: FinishCall, keys: Keys, kept: Mapping[Key, Array], order: Mapping[Key, int]) -> Rest:
    """Makes the function that does, by NumPy, the work that follows the loop of a kernel (a compiled part)
    and has no machine code, such as a scattered sum. The function takes all arrays of a call; values that a
    call returns are copied to their arrays.

    finish: the work after the loop.
    keys: the keys by which the kernel's arrays are found in `kept` and `order`.
    kept: the arrays that all calls share, by key.
    order: for each array that changes from call to call, its position among the arrays of a call.
    """
    nodes = {number: order[key] for number, key in keys.nodes.items() if key in order}
    held = {number: kept[key] for number, key in keys.nodes.items() if key not in order}
    totals = [order[key] for key in keys.of_kind["totals"]]

    def run(arrays: Sequence[Array]) -> None:
        """Computes the values that have no machine code, and writes those that a call returns to its arrays.
        arrays: all arrays of a call, those of its results included.
        """
        values = {number: arrays[place] for number, place in nodes.items()} | held | finish.constants
        finish.run_rest(finish.rest, values)
        finish.copy(values, [arrays[place] for place in totals])

    return run


def links_of_kernel(call: Call, form: CallForm) -> Links:
    """Makes the links of a chain of a single kernel (compiled part): numbers for all values that the kernel
    reads and computes.

    The sequences, initial memories (recurrent states) and statics (values that every step reads) of the call
    come first: a call of the chain gives them. The outputs, results per row and totals (results over all
    rows) follow: it returns them. form: has the kinds of the results.
    """
    made = len(form.kind.outputs) + len(form.kind.rows) + len(form.kind.totals.array_specs)
    counts = len(call.sequences), len(call.initial), len(call.statics), made
    ends = [0, *accumulate(counts)]
    sequences, memories, statics, results = (tuple(range(*pair)) for pair in pairwise(ends))
    links, outputs = KernelLinks(sequences, memories, statics, results), len(form.kind.outputs)
    return Links((links,), tuple(range(ends[-2])), results, outputs, outputs + len(form.kind.rows))


def runner(
    prepared: PreparedChain,
    fixed: Sequence[list[int]],
    sources: Sequence[Sources],
    behind: Mapping[int, Sequence[ParallelCalls]],
    first: Sequence[ParallelCalls],
    new: NewTable,
) -> Run:
    """Makes the function that runs the prepared calls of a chain (compiled parts, called kernels, that run in
    one go) on some arrays. It is one call of machine code, unless a contract (the gradient of a weight) takes
    so long that signals are handled in between: then Python runs the tasks one by one.

    fixed: for each kernel, the addresses of all its arrays, in the order of its arguments; any number for
        arrays that change from call to call.
    sources: for each kernel, the arguments that change, each with the index of its address.
    behind: the other tasks (repeats and reductions over steps, contracts and sums), by the wave (kernels that
        run at the same time) after which they run.
    first: the tasks that run before all others. new: the arrays that the code allocates.
    """
    kernels = list(zip(prepared.natives, prepared.spaces, fixed, sources, strict=True))

    def write() -> None:
        """Writes the addresses of all arrays of a prepared call to the argument words of every thread."""
        for native, spaces, addresses, _ in kernels:
            for space in spaces:
                write_words(space, native.pack_pointers, POINTERS, addresses)

    tasks = [*chain.from_iterable(behind.values())]
    if all(task.is_one_run for task in tasks):
        write()
        turns = [turn_of(task, 0) for task in first]
        for wave in range(-1, len(prepared.shape.waves)):
            if wave >= 0 and prepared.runs[wave].tasks:  # none where all sequences are empty
                turns.append(turn_of_wave(prepared, wave, sources))
            turns += [turn_of(task, wave) for task in behind.get(wave, ())]
        return block_of(turns, prepared.reach, prepared.natives[0].processor, new).run

    def run(arrays: Sequence[Array]) -> bool:
        """Runs a prepared call on these arrays: writes their addresses to the argument words that change, and
        runs all tasks one by one. Returns False, having run nothing, if one of them is no plain NumPy array,
        or the new ones are not among them.
        """
        if len(arrays) < new.given + len(new.words) or any(type(array) is not np.ndarray for array in arrays):
            return False
        addresses = [*map(pointer, arrays)]
        for _, _, own, changing in kernels:
            for word, source in changing:
                own[word - len(WORDS)] = addresses[source]
        write()
        for task in (*first, *tasks):
            for word, source in task.sources:
                task.arguments.flat[word] = addresses[source]
        for task in first:
            task()
        prepared.run(behind)
        return True

    return run


def turn_of_wave(prepared: PreparedChain, wave: int, sources: Sequence[Sources]) -> Turn:
    """Makes the entry of a call block that runs the kernels of a wave (compiled parts that run at the same
    time), on one thread or several.

    wave: the position of the wave. sources: for each kernel, the arguments that each call sets, each with the
        index of its value among the call's.
    """
    run, copies = prepared.runs[wave], list[tuple[int, int]]()
    for place in prepared.shape.waves[wave]:
        for space in prepared.spaces[place]:
            for address in space.addresses:
                copies += [(source, address + 8 * word) for word, source in sources[place]]
    spaces = [space for place in prepared.shape.waves[wave] for space in prepared.spaces[place]]
    if run.only is None:
        return Turn(run.orders.function, run.orders.address, copies, wave, spaces, run.orders)
    return Turn(*run.only, copies, wave, spaces)
