"""A prepared schedule: prepared calls of its parts, which run one after the other on other arrays.

    y, h1 = part0(x, None);  y, h2 = part1(y, None)

Between the parts nothing is checked and no work is divided among threads. The lengths of a prepared call's
sequences are fixed. Calls with inner or static sequences are prepared by targets that can run a schedule as a
whole (`Means.whole`). Values lie in the memory of the target: arrays go there when a call begins, and results
come back when it ends.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.memory import HOST, scattered
from stepnet.compiler.net.types import ROWS, STEPS, Extent, is_derived, is_pairs
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets.base import (
    Call,
    KernelLinks,
    Links,
    OptionalArrays,
    Places,
    PreparedCall,
    Results,
    TableLayout,
)
from stepnet.compiler.targets.packed import CallPacking, NetForm
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
)
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions

Array = np.ndarray
Step = Callable[[Values], None]
RunPart = Callable[[int, Values, Frame], Values]
"""Runs the part at a position of a schedule without preparation, and returns its results."""
PREPARED = ("recurrence", "plain")
"""The kinds of parts that an engine may have prepared calls for."""


@dataclass(frozen=True)
class PreparedParts:
    """Prepared parts of a schedule, as functions that run one after the other.

    net: the net of the schedule. form: the inputs and results, by kind, of the net as traced.
    packing: the moves of a call's arrays into the memory of the target, and of its results back.
    numbers: the inputs of the net that a call gives, as nodes, in the order in which it gives them.
    shapes: the shapes of the sequences, [total, features...].
    constants: the values that do not depend on the call's arrays, by node. They may be replaced between
        calls.
    lent: the positions of the results that must be copied before they are returned; see `own_results`.
    clean: the positions of the results that have zeros in the gaps between sequences.
    steps: for each part or chain, a function that adds its results to the values so far.
    """

    net: Net
    form: NetForm
    packing: CallPacking
    numbers: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    constants: Values
    lent: tuple[int, ...]
    clean: Container[int]
    steps: tuple[Step, ...]

    def run(self, given: OptionalArrays, places: Places | None) -> Results:
        """Runs the prepared schedule (all parts of a net) on other arrays; returns its results in new arrays.

        given: the sequences, initial memories, which are recurrent states (None for zeros), and statics
        (values that every step reads).
        places: None, as the lengths of the sequences are fixed.
        """
        arrays: list[Any] = [*given]
        # The caller's arrays may be [batch, time, features...], which only machine code reads as they are.
        for place, shape in enumerate(self.shapes):
            if arrays[place].shape != shape:
                arrays[place] = arrays[place].reshape(shape)
        values = dict(self.constants)
        values.update(zip(self.numbers, self.packing.put(self.form, arrays), strict=True))
        for step in self.steps:
            step(values)
        results = own_results(self.net, values, self.lent, self.packing.memory)
        return self.packing.results(self.form, results, given, self.clean)


def with_constants(whole: PreparedCall, constants: Values, reads: tuple[int, ...]) -> PreparedCall:
    """Returns a prepared chain (several parts that run in one go) that takes the arrays of a call alone, and
    reads the present values of constants besides. It runs on arrays alone, not at addresses.

    whole: takes the arrays of a call and these constants.
    constants: the values that do not depend on the call's arrays, by number. They may be replaced between
        calls.
    reads: the numbers of the constants that the chain reads.
    """
    if not reads:
        return whole

    def every(given: OptionalArrays) -> list[Any]:
        """Lists the arrays of a call and the present constants."""
        return [*given, *(constants[number] for number in reads)]

    def run(given: OptionalArrays, places: Places | None) -> Results:
        """Runs the chain on other arrays and the present constants; returns its results in new arrays."""
        return whole.run(every(given), places)

    own = PreparedCall(run, whole.bytes, whole.shortest, whole.longest, whole.suits)
    if (at_once := whole.arrays) is None:
        return own

    def arrays(given: OptionalArrays, places: Places | None) -> list[Array]:
        """Runs it likewise; returns the results in one list, as `PreparedCall.arrays` does."""
        return at_once(every(given), places)

    return replace(own, arrays=arrays)


def prepared_parts(
    schedule: Schedule,
    form: NetForm,
    numbers: tuple[int, ...],
    constants: Values,
    bound: Sequence[Any],
    runs: Sequence[PartRun],
    run_part: RunPart,
    packing: CallPacking,
    clean: Container[int],
    layout: TableLayout | None,
) -> PreparedCall | None:
    """Prepares a schedule for calls of the same shapes as that of `packing`, or with as many sequences of any
    lengths. Unless one chain (one call of machine code) has all parts, the call is run once: preparing a part
    needs the shapes of the values that it reads.

    Returns None if the schedule cannot be prepared: if the call has inner or static sequences, step offsets
    (steps done in earlier calls) or `last_only`; on a device also if it has empty sequences; or if there is a
    loop. For any lengths, one chain must have all parts.

    form: the inputs and results, by kind, of the net as traced.
    numbers: the inputs of the net that a call gives, as nodes, in the order in which it gives them.
    constants: the values that do not depend on the call, by node.
    bound: the kernel (compiled code) of each part.
    runs: the parts, grouped into chains.
    run_part: runs the part at a position without preparation.
    packing: the call, and the moves of its arrays into the memory of the target.
    clean: the positions of the results that have zeros in the gaps between sequences.
    layout: how the sequences of later calls lie, whose lengths may change; None if they do not change.
    """
    call, net = packing.call, schedule.net
    if not is_plain(call, packing.memory is HOST):
        return None
    if layout is not None or call.positions.total == int(call.positions.offsets[-1]):
        clean = range(len(net.results))  # the steps fill the arrays, or nothing is written besides them
    frame, lent = Frame(packing.segments, packing.gaps, packing.memory), lent_indices(net, constants)
    is_one = len(runs) == 1 and runs[0].chain is not None and packing.memory is HOST
    if layout is not None and (not is_one or any(is_pairs(type_.extent) for type_ in net.types)):
        return None
    if layout is not None:
        # Values per step that no recurrence reads lie at the same positions, so that they follow the lengths.
        frame.plain_calls.update((extent, frame.sequences(extent)) for extent in extents_of_steps(net))
        # Values that sequences have once are one sequence, as long as there are sequences.
        frame.plain_calls[ROWS] = Call(Positions.end_to_end(np.array([0, call.positions.rows])))
    values = constants | dict(zip(numbers, packing.put(form, call.given), strict=True))
    if is_one and not lent and packing.leaves(form, clean):
        reads = reads_of(runs[0], constants)
        kinds = [[net.results[place] for place in places] for places in form.results]
        whole = prepared_run(runs[0], values, frame, (*numbers, *reads), kinds, layout)
        if whole is not None:
            return with_constants(whole, constants, reads)
    if layout is not None:
        return None
    steps, bytes_ = list[Step](), 0
    for run in runs:
        step_and_size = prepared_step(schedule, run, values, frame)
        if step_and_size is not None:
            steps.append(step_and_size[0])
            bytes_ += step_and_size[1]
            continue
        for index in run.indices:
            part = schedule.parts[index]
            if part.kind == "loop" or any(values[number] is None for number in required_reads(part)):
                return None
            prepared = prepared_part(net, part, bound[index], values, frame)
            step, size = prepared or (unprepared_part(index, run_part, frame), 0)
            step(values)
            steps.append(step)
            bytes_ += size
    shapes = tuple(array.shape for array in call.sequences)
    packing = replace(packing, call=replace(call, sequences=(), initial=(), statics=()))
    parts = PreparedParts(net, form, packing, numbers, shapes, constants, lent, clean, tuple(steps))
    return PreparedCall(parts.run, bytes_)


def extents_of_steps(net: Net) -> list[Extent]:
    """Returns the extents of the steps of sequences in a net: that of the inputs, and derived ones."""
    return list(dict.fromkeys((STEPS, *(each.extent for each in net.types if is_derived(each.extent)))))


def is_plain(call: Call, on_host: bool) -> bool:
    """Tells whether a call may be prepared: sequences from their first steps, with all outputs; those of a
    device have steps.
    """
    plain = call.step_offset is None and not is_nested(call) and not call.last_only
    return plain and (on_host or (bool(call.positions.rows) and call.positions.is_full))


def is_nested(call: Call) -> bool:
    """Tells whether a call has sequences inside of steps, or sequences that every step reads whole."""
    return bool(call.positions.inner or call.positions.beside)


def required_reads(part: Part) -> tuple[int, ...]:
    """Returns the numbers of the nodes whose values a part of a net needs to run: those that it reads, except
    for initial memories (recurrent states), which may be absent.
    """
    if part.kind != "recurrence":
        return part.reads
    first, last = memories_of(part)
    return (*part.reads[:first], *part.reads[last:])


def unprepared_part(index: int, run_part: RunPart, frame: Frame) -> Step:
    """Makes a function that runs a part of a schedule without preparation, as one step of a prepared
    schedule. Its results are made contiguous, as prepared parts require: a value broadcast to all rows
    (with stride 0) is copied.

    index: the position of the part in the schedule.
    run_part: runs the part at a position on values, and returns its results.
    frame: the positions of the values of each extent (rows, steps).
    """

    def step(values: Values) -> None:
        """Runs the part on the values, by node of the net, and adds its results to them."""
        results, contiguous = run_part(index, values, frame), frame.memory.contiguous
        values.update({number: contiguous(buffer) for number, buffer in results.items()})

    return step


def prepared_part(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> tuple[Step, int] | None:
    """Prepares one part for values of these shapes. Returns a function that runs it on such values and adds
    its results to them, and the bytes of memory that it holds; None if the part cannot be prepared.

    bound: the part's kernel (compiled code) with its parameters.
    values: the values computed so far, by node of the net. frame: the positions of the values.
    """
    if part.node is not None and part.node.operation == "reduce" and part.node.attributes["how"] in ENDS:
        return prepared_end(net, part, frame), 0
    is_flat = part.extent in (ROWS, STEPS) or is_derived(part.extent) or is_pairs(part.extent)
    if part.kind not in PREPARED or part.is_bound_per_call or not is_flat:
        return None
    prepared: PreparedCall | None = bound.prepare(call_of(part, values, frame))
    if prepared is None:
        return None
    links, run = links_of(part), prepared.run

    def step(values: Values) -> None:
        """Runs the prepared part on the values, by node of the net, and adds its results to them."""
        values.update(named_results(part, run(arrays_of(links, values), None)))

    return step, prepared.bytes


def reads_of(run: PartRun, among: Iterable[int]) -> tuple[int, ...]:
    """Returns those of the nodes `among` that a part of `run` reads, parts that run as one chain."""
    read = {number for part in run.parts for number in part.reads}
    return tuple(number for number in among if number in read)


def prepared_step(schedule: Schedule, run: PartRun, values: Values, frame: Frame) -> tuple[Step, int] | None:
    """Prepares several parts as one chain (one call of machine code), and runs it: to prepare later parts,
    its results are needed.

    run: the parts. values: the values computed so far, by node of the net, to which the results are added.
    frame: the positions of the values.

    Returns a function that runs the chain, and the bytes of memory that it holds; None if the parts cannot be
    prepared.
    """
    own = {number for part in run.parts for number in part.results if number >= 0}
    others = {number for part in schedule.parts if part not in run.parts for number in part.reads}
    results = tuple(sorted(own & (others | set(schedule.net.results))))
    inputs = reads_of(run, values)
    prepared = prepared_run(run, values, frame, inputs, (results, (), ()))
    if prepared is None:
        return None

    def step(values: Values) -> None:
        """Runs the chain on the values, and adds those that other parts or the net's results need."""
        arrays: list[Any] = [values[number] for number in inputs]
        values.update(zip(results, prepared.run(arrays, None).outputs, strict=True))

    step(values)
    return step, prepared.bytes


def prepared_run(
    run: PartRun,
    values: Values,
    frame: Frame,
    inputs: tuple[int, ...],
    results: Sequence[Sequence[int]],
    layout: TableLayout | None = None,
) -> PreparedCall | None:
    """Prepares several parts (a run) as one chain (one call of machine code), for later calls on other
    arrays; None if the parts cannot be prepared.

    values: the values that the parts read in this call, by node. frame: their positions.
    inputs: the nodes whose values the chain takes.
    results: the nodes whose values it returns: as outputs, as results per row and as totals.
    layout: how the sequences of later runs lie, if their lengths are arguments of these; None if not.
    """
    missing = any(values.get(number, 0) is None for part in run.parts for number in required_reads(part))
    if run.chain is None or missing or not run.fits(frame):
        return None
    known_values = dict(values)
    with closing(run.chain.started()) as started:
        for part in run.parts:
            known_values.update(add_part(started, part, known_values, frame))
    kernels = tuple(links_of(part) for part in run.parts if part.kind != "across")
    across = tuple((*part.reads, part.results[0]) for part in run.parts if part.kind == "across")
    outputs, rows, _ = accumulate(map(len, results))
    links = Links(kernels, inputs, tuple(chain.from_iterable(results)), outputs, rows, across)
    by_row = any(part.extent == ROWS and part.kind != "across" for part in run.parts)
    calls = frame.plain_calls.items()
    axes = {extent[-1]: own.positions for extent, own in calls if extent != ROWS or by_row}
    return started.prepare(links, axes if layout else None, layout)


def links_of(part: Part) -> KernelLinks:
    """Returns which nodes a part reads, as sequences, memories (recurrent states) and statics (values that
    every step reads), and which it computes, all by number: so the part becomes one kernel (compiled part) of
    a chain that runs in one go.
    """
    if part.kind == "plain":
        return KernelLinks(part.reads, (-1,), (), part.results)
    first, last = memories_of(part)
    return KernelLinks(part.reads[:first], part.reads[first:last], part.reads[last:], part.results)


def arrays_of(links: KernelLinks, values: Values) -> list[Any]:
    """Returns the values that a kernel (compiled part of a net) reads: sequences, initial memories (recurrent
    states), and statics (values that each sequence has once). None stands for an initial memory of zeros.

    links: the numbers of the values that the kernel reads, by kind; -1 for a memory of zeros.
    values: the values computed so far, by number of their node.
    """
    read = (*links.sequences, *links.memories, *links.statics)
    return [None if number < 0 else values[number] for number in read]


def prepared_end(net: Net, part: Part, frame: Frame) -> Step:
    """Makes a function that selects the last step of each sequence, or the first, as one step of a prepared
    schedule (parts that run one after the other).

    part: the part of the schedule that reduces sequences to one step. frame: the positions of the values.
    """
    assert part.node is not None
    read, result = part.reads[0], part.results[0]
    positions = frame.sequences(net.type_of(read).extent).positions
    memory, type_ = frame.memory, net.type_of(result)
    rows, indices = positions.end_step_indices(part.node.attributes["how"] == "first")

    def step(values: Values) -> None:
        """Selects one step of each sequence from the values, by node of the net, and adds the result."""
        values[result] = scattered(memory, type_, positions.rows, rows, memory.take(values[read], indices))

    return step
