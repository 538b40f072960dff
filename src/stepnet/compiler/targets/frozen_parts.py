"""A frozen schedule: prepared calls of its parts, which run one after the other on other arrays.

    y, h1 = part0(x, None);  y, h2 = part1(y, None)

Between the parts nothing is checked and no work is divided among threads. The lengths of a frozen call's
sequences are fixed, and there are no gaps between them. A schedule with nested recurrences is not frozen, as
their inner sequences differ from call to call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.interpret import LevelSizes
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.memory import HOST
from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets.base import (
    Call,
    FrozenCall,
    FrozenRun,
    KernelLinks,
    Links,
    OptionalArrays,
    Results,
)
from stepnet.compiler.targets.part_execution import (
    ENDS,
    Frame,
    PartRun,
    Values,
    add_part,
    call_of,
    lent_indices,
    memories_of,
    named_results,
    own_results,
    takes_gaps,
)

Array = np.ndarray
Step = Callable[[Values], None]
RunPart = Callable[[int, Values, Frame], Values]
"""Runs the part at a position of a schedule without freezing, and returns its results."""
FROZEN = ("recurrence", "plain")
"""The kinds of parts that an engine may have frozen calls for."""


@dataclass(frozen=True)
class FrozenParts:
    """Prepared parts of a schedule, as functions that run one after the other.

    shapes: the shapes of the sequences, [total, features...].
    constants: the values that do not depend on the call's arrays, by node. They may be replaced between
        calls.
    lent: the positions of the results that must be copied before they are returned; see `own_results`.
    steps: for each part or chain, a function that adds its results to the values so far.
    bytes: the memory that the parts hold.
    """

    net: Net
    ends: Ends
    shapes: tuple[tuple[int, ...], ...]
    constants: Values
    lent: tuple[int, ...]
    steps: tuple[Step, ...]
    bytes: int

    def run(self, given: OptionalArrays, offsets: Array | None) -> Results:
        """Runs the prepared schedule on other arrays; returns its results in new arrays.

        given: the sequences, initial memories (None for zeros) and statics.
        offsets: None, as the lengths of the sequences are fixed.
        """
        values = dict(self.constants)
        values.update(zip(self.numbers, given, strict=True))
        # The caller's arrays may be [batch, time, features...], which only machine code reads as they are.
        for number, shape in zip(self.numbers, self.shapes, strict=False):
            values[number] = values[number].reshape(shape)
        for step in self.steps:
            step(values)
        return results_by_kind(own_results(self.net, values, self.lent, HOST), self.ends)

    @cached_property
    def numbers(self) -> list[int]:
        """The nodes of the net whose arrays a call gives: sequences, then initial memories, then statics."""
        return [*chain.from_iterable(numbers_of_call(self.net, self.ends))]


@dataclass(frozen=True)
class FrozenSchedule:
    """A schedule that is a single prepared chain.

    constants: the values that do not depend on the call's arrays, by number. They may be replaced between
        calls.
    reads: the numbers of the constants that the chain reads.
    chain: takes the arrays of a call and these constants, and returns the results of the net.
    """

    ends: Ends
    constants: Values
    reads: tuple[int, ...]
    chain: FrozenRun

    def run(self, given: OptionalArrays, offsets: Array | None) -> Results:
        """Runs the chain on other arrays; returns the net's results in new arrays.

        given: the sequences, initial memories (None for zeros) and statics.
        offsets: where the sequences lie end to end; None if their lengths are fixed.
        """
        constants = [self.constants[number] for number in self.reads]
        results = self.chain.run([*given, *constants], offsets)
        return results_by_kind(results, self.ends)


def results_by_kind(results: Sequence[Array], ends: Ends) -> Results:
    """Sorts the arrays of a net's results into outputs (per step), results per row, and totals.

    ends: the positions of the net's results, by kind.
    """
    return Results(*[[results[index] for index in kind] for kind in (ends.steps, ends.rows, ends.totals)])


def numbers_of_call(net: Net, ends: Ends) -> list[list[int]]:
    """Returns the input nodes of a net that are sequences, initial memories and statics, as three lists.

    ends: the positions of the net's inputs, by kind.
    """
    return [[net.inputs[index] for index in kind] for kind in (ends.sequences, ends.memories, ends.statics)]


def call_values(net: Net, ends: Ends, arrays: tuple[Sequence[Array | None], ...]) -> Values:
    """Returns the arrays of a call by input node of the net.

    ends: the positions of the net's inputs, by kind.
    arrays: the sequences, the initial memories (None for zeros) and the statics of the call.
    """
    kinds = zip(numbers_of_call(net, ends), arrays, strict=True)
    return {number: array for numbers, kind in kinds for number, array in zip(numbers, kind, strict=True)}


def frozen_parts(
    schedule: Schedule,
    constants: Values,
    bound: Sequence[Any],
    runs: Sequence[PartRun],
    run_part: RunPart,
    call: Call,
    any_lengths: bool,
) -> FrozenCall | None:
    """Prepares a schedule for calls of the same shapes as this one, or with as many sequences of any lengths.
    Unless one chain has all parts, the call is run once: freezing a part needs the shapes of the values that
    it reads.

    Returns None if the schedule cannot be prepared: if the call has inner or static sequences, step offsets,
    `last_only`, empty sequences or gaps that a part reads; or if there is a loop. For any lengths, one chain
    must have all parts.

    constants: the values that do not depend on the call, by node.
    bound: the kernel of each part.
    runs: the parts, grouped into chains.
    run_part: runs the part at a position without preparation.
    any_lengths: whether the lengths of the sequences may change, or are those of this call.
    """
    if not is_plain(call, takes_gaps(schedule) and not any_lengths):
        return None
    positions = call.positions
    gaps = None if positions.is_packed else positions
    frame = Frame(LevelSizes(positions.rows, (positions.offsets,)), gaps)
    if any_lengths:
        # Values per step that no recurrence reads lie at the same positions, so that they follow the lengths.
        frame.plain_calls[STEPS] = frame.sequences(STEPS)
    net, ends = schedule.net, Ends.of(schedule.net)
    lent = lent_indices(net, constants)
    values = constants | call_values(net, ends, (call.sequences, call.initial, call.statics))
    if (inputs := inputs_if_single_run(schedule, constants, runs)) is not None:
        single_run = frozen_run(runs[0], values, frame, inputs, tuple(net.results), any_lengths)
        if single_run is not None:
            reads = reads_of(runs[0], constants)
            return FrozenCall(
                FrozenSchedule(ends, constants, reads, single_run).run, single_run.bytes, single_run.longest
            )
    if any_lengths:
        return None
    steps, bytes_ = list[Step](), 0
    for run in runs:
        step_and_size = frozen_step(schedule, run, values, frame)
        if step_and_size is not None:
            steps.append(step_and_size[0])
            bytes_ += step_and_size[1]
            continue
        for index in run.indices:
            part = schedule.parts[index]
            if part.kind == "loop" or any(values[number] is None for number in required_reads(part)):
                return None
            frozen = frozen_part(part, bound[index], values, frame)
            step, size = frozen or (unfrozen_part(index, run_part, frame), 0)
            step(values)
            steps.append(step)
            bytes_ += size
    shapes = tuple(array.shape for array in call.sequences)
    parts = FrozenParts(net, ends, shapes, constants, lent, tuple(steps), bytes_)
    return FrozenCall(parts.run, bytes_)


def is_plain(call: Call, with_gaps: bool) -> bool:
    """Tells whether a call may be prepared: it has sequences that are not empty and have no inner ones, each
    from its first step, and returns all outputs.

    with_gaps: whether the sequences may have gaps between them.
    """
    positions = call.positions
    plain = call.step_offset is None and not positions.inner and not positions.beside and not call.last_only
    dense = int(positions.offsets[-1]) == positions.total and (positions.is_packed or with_gaps)
    return plain and dense and bool(positions.rows) and positions.is_full


def inputs_if_single_run(
    schedule: Schedule, constants: Values, runs: Sequence[PartRun]
) -> tuple[int, ...] | None:
    """Returns the nodes whose values a schedule takes if a single chain runs all of it: the sequences,
    initial memories and statics of a call, and the constants that it reads. None if one chain does not run
    all.

    constants: the values that do not depend on the call, by node. runs: the parts, grouped into chains.
    """
    net = schedule.net
    if len(runs) != 1 or runs[0].chain is None or lent_indices(net, constants):
        return None
    return (*chain.from_iterable(numbers_of_call(net, Ends.of(net))), *reads_of(runs[0], constants))


def required_reads(part: Part) -> tuple[int, ...]:
    """Returns the nodes that a part must have values of: its reads, but initial memories may be absent."""
    if part.kind != "recurrence":
        return part.reads
    first, last = memories_of(part)
    return (*part.reads[:first], *part.reads[last:])


def unfrozen_part(index: int, run_part: RunPart, frame: Frame) -> Step:
    """Makes a function that runs a part of a schedule without preparation, as one step of a prepared
    schedule. Its results are made contiguous, as prepared parts require: a value broadcast to all rows
    (with stride 0) is copied.

    index: the position of the part in the schedule.
    run_part: runs the part at a position on values, and returns its results.
    frame: the positions of the values of each extent (rows, steps).
    """

    def step(values: Values) -> None:
        """Runs the part on the values, by node of the net, and adds its results to them."""
        results = run_part(index, values, frame)
        values.update({number: np.asarray(array, order="C") for number, array in results.items()})

    return step


def frozen_part(part: Part, bound: Any, values: Values, frame: Frame) -> tuple[Step, int] | None:
    """Prepares one part for values of these shapes. Returns a function that runs it on such values and adds
    its results to them, and the bytes of memory that it holds; None if the part cannot be prepared.

    bound: the part's kernel with its parameters.
    values: the values computed so far, by node of the net. frame: the positions of the values.
    """
    if part.node is not None and part.node.operation == "reduce" and part.node.attributes["how"] in ENDS:
        return frozen_end(part, frame), 0
    if part.kind not in FROZEN or part.is_bound_per_call or part.extent not in (ROWS, STEPS):
        return None
    frozen: FrozenCall | None = bound.frozen(call_of(part, values, frame))
    if frozen is None:
        return None
    links, run = links_of(part), frozen.run

    def step(values: Values) -> None:
        """Runs the prepared part on the values, by node of the net, and adds its results to them."""
        values.update(named_results(part, run(arrays_of(links, values), None)))

    return step, frozen.bytes


def reads_of(run: PartRun, among: Iterable[int]) -> tuple[int, ...]:
    """Returns those of the nodes `among` that some part of a group reads.

    run: consecutive parts of a schedule that run as one chain. among: nodes of the net.
    """
    read = {number for part in run.parts for number in part.reads}
    return tuple(number for number in among if number in read)


def frozen_step(schedule: Schedule, run: PartRun, values: Values, frame: Frame) -> tuple[Step, int] | None:
    """Prepares several parts as one chain, and runs it: to prepare later parts, its results are needed.

    run: the parts. values: the values computed so far, by node of the net, to which the results are added.
    frame: the positions of the values.

    Returns a function that runs the chain, and the bytes of memory that it holds; None if the parts cannot be
    prepared.
    """
    own = {number for part in run.parts for number in part.results if number >= 0}
    others = {number for part in schedule.parts if part not in run.parts for number in part.reads}
    results = tuple(sorted(own & (others | set(schedule.net.results))))
    inputs = reads_of(run, values)
    frozen = frozen_run(run, values, frame, inputs, results)
    if frozen is None:
        return None

    def step(values: Values) -> None:
        """Runs the chain on the values, and adds those that other parts or the net's results need."""
        values.update(zip(results, frozen.run([values[number] for number in inputs]), strict=True))

    step(values)
    return step, frozen.bytes


def frozen_run(
    run: PartRun,
    values: Values,
    frame: Frame,
    inputs: tuple[int, ...],
    results: tuple[int, ...],
    any_lengths: bool = False,
) -> FrozenRun | None:
    """Prepares several parts (a run) as one chain; None if the parts cannot be prepared.

    values: the values that the parts read in this call, by node. frame: their positions.
    inputs, results: the nodes whose values the chain takes and returns.
    any_lengths: whether the lengths of the sequences are arguments of its runs.
    """
    missing = any(values.get(number, 0) is None for part in run.parts for number in required_reads(part))
    if run.chain is None or missing or not run.fits(frame):
        return None
    started, known_values = run.chain.started(), dict(values)
    for part in run.parts:
        known_values.update(add_part(started, part, known_values, frame))
    kernels = tuple(links_of(part) for part in run.parts if part.kind != "across")
    across = tuple((part.reads[0], part.results[0]) for part in run.parts if part.kind == "across")
    links = Links(kernels, inputs, results, across)
    return started.frozen(links, frame.sequences(STEPS).positions if any_lengths else None)


def links_of(part: Part) -> KernelLinks:
    """Returns the nodes that a part reads and computes, by kind, to make it one kernel of a chain."""
    if part.kind == "plain":
        return KernelLinks(part.reads, (-1,), (), part.results)
    first, last = memories_of(part)
    return KernelLinks(part.reads[:first], part.reads[first:last], part.reads[last:], part.results)


def arrays_of(links: KernelLinks, values: Values) -> list[Array | None]:
    """Returns the arrays that a kernel (compiled part of a net) reads: sequences, initial memories, and
    statics (values that each sequence has once). None stands for an initial memory of zeros.

    links: the numbers of the values that the kernel reads, by kind; -1 for a memory of zeros.
    values: the values computed so far, by number of their node.
    """
    read = (*links.sequences, *links.memories, *links.statics)
    return [None if number < 0 else values[number] for number in read]


def frozen_end(part: Part, frame: Frame) -> Step:
    """Makes a function that selects the last step of each sequence, or the first, for a prepared schedule.

    part: the part of the schedule that reduces sequences to one step. frame: the positions of the values.
    """
    assert part.node is not None
    first = part.node.attributes["how"] == "first"
    sequences, read, result = frame.sequences(STEPS).positions, part.reads[0], part.results[0]

    def step(values: Values) -> None:
        """Selects one step of each sequence from the values, by node of the net, and adds the result."""
        values[result] = sequences.ends(values[read], first)

    return step
