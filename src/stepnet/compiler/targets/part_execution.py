"""Running the parts of a schedule, by their kind: on a kernel of an engine, or in NumPy."""

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import field
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.interpreter import (
    COPIED,
    LevelSizes,
    by_steps,
    copied,
    decays,
    expand,
    paired,
    windowed,
)
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.memory import HOST, AnyMemory, Buffer, scattered
from stepnet.compiler.net.pairs import PAIRED
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, is_derived
from stepnet.compiler.net.windows import WINDOWED
from stepnet.compiler.plan.inner import has_inner
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Call, Chain, Results, StartedRun
from stepnet.compiler.targets.loop_buffers import LoopBuffers, reused_outputs, reused_results
from stepnet.compiler.targets.packed import PIECE, CallPacking, plain_call
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions

Array = np.ndarray
Values = dict[int, Buffer | None]
"""The values of a net's nodes so far; None for an initial memory of zeros."""
RunPairs = Callable[[Across, Sequence[Array], Sequence[Positions]], Array]
"""Computes an operation at pairs of steps, from its operands and the positions at its extents."""
ENDS = ("first", "last")
"""Reductions that select one step, so that gaps between sequences do not matter."""


@dataclass(frozen=True)
class Frame:
    """Positions of the values of each extent (axes of a value, such as rows or steps) while a schedule runs.

    segments: the offsets of each extent.
    gaps: the positions, if the sequences have gaps between them, as padded ones do; None if they lie end to
        end.
    memory: the memory that the values lie in.
    loop_buffers: the parts prepared for the steps of a loop; None outside of loops.
    calls, plain_calls: calls without arrays for each extent, made at first use.
    """

    segments: LevelSizes
    gaps: Positions | None = None
    memory: AnyMemory = HOST
    loop_buffers: LoopBuffers | None = None
    calls: dict[Extent, Call] = field(default_factory=dict[Extent, Call])
    plain_calls: dict[Extent, Call] = field(default_factory=dict[Extent, Call])

    @classmethod
    def of(cls, packing: CallPacking) -> "Frame":
        """Makes the frame (the positions of all values) for running a schedule (the parts of a net) on a
        call. packing: has the positions of the call's steps, and the memory that the values lie in.
        """
        frame = cls(packing.segments, packing.gaps, packing.memory)
        if packing.indices is None:
            frame.calls[STEPS] = packing.call.with_arrays((), ())
        return frame

    def values(self, extent: Extent) -> Call:
        """Returns a call that has positions but no arrays, for nodes without a recurrence whose values have
        this extent (axes such as rows or steps). Cached.
        """
        if extent not in self.plain_calls:
            count, known = self.count(extent), self.calls.get(extent)
            # Few values need not be divided anew: they can keep the sequences that they belong to, if known.
            where = None if known is None else known.positions
            few = where is not None and count == where.total <= PIECE and where.is_full
            self.plain_calls[extent] = known if few and known else plain_call((), count)
        return self.plain_calls[extent]

    def sequences(self, extent: Extent) -> Call:
        """Returns a call with positions but no arrays, which `with_arrays` adds, of the sequences along the
        last axis of an extent (axes such as rows and steps). Cached.
        """
        if extent not in self.calls:
            self.calls[extent] = self.new_sequences(extent)
        return self.calls[extent]

    def new_sequences(self, extent: Extent) -> Call:
        """Makes a call that has positions but no arrays, of the sequences along the last axis of an extent
        (axes such as rows and steps). Only calls for steps also have the inner sequences and the step
        offsets, the numbers of steps done in earlier calls.
        """
        if self.gaps is not None and extent == STEPS:
            return Call(self.gaps, step_offset=self.segments.first_steps)
        segments = self.segments
        offsets = segments.into(extent)
        if extent != STEPS:
            beside = segments.beside if is_derived(extent) else None
            return Call(Positions.end_to_end(offsets, (), beside))
        positions = Positions.end_to_end(offsets, segments.offsets[1:], segments.beside)
        return Call(positions, step_offset=segments.first_steps)

    def count(self, extent: Extent) -> int:
        """Returns the number of entries of a value with these axes (its extent, such as rows or steps); gaps
        that the caller's arrays have between sequences are counted too.
        """
        if self.gaps is not None and extent == STEPS:
            return self.gaps.total
        return self.segments.count(extent)


def lent_indices(net: Net, constants: Collection[int]) -> tuple[int, ...]:
    """Returns the positions of a net's results that share memory with inputs, constants or other results, and
    so must be copied before they are returned. constants: nodes.
    """
    results = net.results
    return tuple(
        index
        for index, number in enumerate(results)
        if number in constants or net.nodes[number].operation == "input" or number in results[:index]
    )


def own_results(net: Net, values: Values, lent: tuple[int, ...], memory: AnyMemory) -> list[Buffer]:
    """Returns a net's results, each in a buffer of its own, so that the caller may keep them.

    values: the values of the net's nodes. lent: the positions of the results that share a buffer with
        something else, and so are copied. memory: the memory that the values lie in.
    """
    results = [cast("Buffer", values[number]) for number in net.results]
    for index in lent:
        results[index] = memory.copy(results[index])
    return results


def takes_gaps(schedule: Schedule, at_steps: bool = False) -> bool:
    """Tells whether all parts of a schedule run on padded sequences as they lie, without reading the gaps
    between them. If so, sequences need not be packed.

    at_steps: whether values that no recurrence reads are computed at the steps of sequences alone; they may
        be computed in the gaps, too, but no index may be read there.
    """

    def fits(part: Part) -> bool:
        """Tells whether this part of a net runs on padded sequences without reading the gaps between them."""
        if part.plan is not None and part.extent in (ROWS, STEPS):
            kinds = {node.kind for net in (part.plan.net, part.plan.body) for node in net.nodes}
            return part.kind == "recurrence" or at_steps or "gather" not in kinds
        node = part.node
        return node is not None and node.operation == "reduce" and node.attributes["how"] in ENDS

    return all(map(fits, schedule.parts))


def memories_of(part: Part) -> tuple[int, int]:
    """Returns where the initial memories (recurrent states) begin and end among the nodes that a recurrence
    reads (`part.reads`): they come after the sequences and before the statics (values that every step reads).
    """
    last = len(part.reads) - part.statics
    return last - part.memories, last


def sequence_call(part: Part, values: Values, frame: Frame) -> Call:
    """Makes the call of a part that is a recurrence on the arrays that it reads. Initial memories (recurrent
    states) that are left out are None, which stands for zeros.

    values: the values computed so far, by node of the net. frame: the positions of their sequences.
    """
    contiguous = frame.memory.contiguous
    # A kernel takes buffers of its target's memory as the arrays of its calls.
    arrays: list[Array | None] = [
        None if n < 0 or values[n] is None else contiguous(values[n]) for n in part.reads
    ]
    first, last = memories_of(part)
    sequences, statics = ([a for a in some if a is not None] for some in (arrays[:first], arrays[last:]))
    return frame.sequences(part.extent).with_arrays(sequences, arrays[first:last], statics, part.last_only)


def value_call(part: Part, values: Values, frame: Frame) -> Call:
    """Makes the call of a part without a recurrence on the arrays that it reads. values: the values computed
    so far, by node of the net. frame: the positions of their sequences.
    """
    arrays = [frame.memory.contiguous(values[number]) for number in part.reads]
    return frame.values(part.extent).with_arrays(arrays, [None])


def call_of(part: Part, values: Values, frame: Frame) -> Call:
    """Makes the call of a part's kernel (its compiled code) on the arrays that it reads. values: the values
    computed so far, by node of the net. frame: the positions of their sequences.
    """
    return (value_call if part.kind == "plain" else sequence_call)(part, values, frame)


def named_results(part: Part, results: Results) -> Values:
    """Returns the results of a part's kernel by node of the net, without those that nothing reads."""
    part_arrays = results.outputs if part.kind == "plain" else results.arrays
    return {n: array for n, array in zip(part.results, part_arrays, strict=True) if n >= 0}


@dataclass(frozen=True)
class PartRun:
    """Consecutive parts of a schedule that run as one, or a single part.

    indices: their positions in the schedule.
    chain: runs all of them as one; None if there is a single part.
    """

    indices: tuple[int, ...]
    parts: Sequence[Part]
    chain: Chain | None

    def fits(self, frame: Frame) -> bool:
        """Tells whether these parts of a schedule may run as one chain (one call of machine code): not in a
        loop's step, nor, in other memory than the host's, with empty sequences.
        """
        if frame.loop_buffers is not None:
            return False
        if frame.memory is HOST:
            return True
        recurrences = (part for part in self.parts if part.kind == "recurrence")
        return all(frame.sequences(part.extent).positions.is_full for part in recurrences)


def run_chain(chain: Chain, parts: Sequence[Part], values: Values, frame: Frame) -> None:
    """Allocates the results of several parts, runs the parts as one chain (one call of machine code), and
    adds the results to `values`.

    values: the values computed so far, by node of the net. frame: the positions of the values.
    """
    with closing(chain.started()) as started:
        for part in parts:
            values.update(add_part(started, part, values, frame))
        started.run()


def add_part(started: StartedRun, part: Part, values: Values, frame: Frame) -> Values:
    """Adds the next part of a chain (parts that run in one go) to a run of the chain, with the arrays that
    the part reads; returns the arrays of its results by node of the net, which the run will fill.

    started: the run of the chain. values: the values so far, by node. frame: the positions of the values.
    """
    if part.kind != "across":
        return named_results(part, started.add(call_of(part, values, frame)))
    given = [frame.memory.contiguous(values[number]) for number in part.reads]
    return {part.results[0]: started.add_across(given, lambda extent: frame.sequences(extent).positions)}


def run_recurrence(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """Runs a part that is a recurrence; returns its results by node of the net. In the steps of a loop, its
    call is prepared once and run at every step, if possible.

    bound: the part's kernel (compiled code) with its parameters.
    values: the values computed so far, by node of the net.
    frame: the positions of the values of each extent (rows, steps).
    """
    call, results = sequence_call(part, values, frame), None
    reads_inner = part.node is not None and has_inner(part.node.recur.body)
    if frame.loop_buffers is not None and not reads_inner:
        results = reused_results(part, bound, call, frame.segments.into(part.extent), frame.loop_buffers)
    if results is None:
        part_arrays = bound(call)
        results = part_arrays.arrays
    return {n: array for n, array in zip(part.results, results, strict=True) if n >= 0}


def run_plain(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """Runs a part that has no recurrence; returns its results by node of the net. In the steps of a loop, its
    call is prepared once and run at every step.

    bound: the part's kernel (compiled code) with its parameters.
    values: the values computed so far, by node of the net.
    frame: the positions of the values of each extent (rows, steps).
    """
    call = value_call(part, values, frame)
    if frame.loop_buffers is None or not call.positions.total:
        return named_results(part, bound(call))
    outputs = reused_outputs(net, part, bound, call.sequences, call.positions.total, frame.loop_buffers)
    return dict(zip(part.results, outputs, strict=True))


def run_across(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """Computes a part that repeats a value, for instance for each step of a sequence (an expand), or reduces
    it, for instance to its last step, or reads windows or pairs of steps; returns the result by node.

    bound: the engine's function for pairs of steps; None if the memory has them.
    values: the values computed so far, by node of the net.
    frame: the positions of the values of each extent (rows, steps).
    """
    assert part.node is not None
    value, extent = values[part.reads[0]], net.type_of(part.reads[0]).extent
    if part.body is not None or part.node.operation in PAIRED:
        given = [frame.memory.contiguous(values[number]) for number in part.reads]
        if bound is None:
            return {part.results[0]: paired(net, part.node, given, frame.segments, frame.memory)}
        across = Across.of(net, part)
        positions = [frame.sequences(own).positions for own in across.extents]
        return {part.results[0]: bound(across, given, positions)}
    if part.node.operation in WINDOWED:
        return {part.results[0]: windowed(net, part.node, [value], frame.segments, frame.memory)}
    if part.node.operation == "matrix_gradients":
        given = [frame.memory.contiguous(values[number]) for number in part.reads]
        return {part.results[0]: decays(net, part.node, given, frame.segments, frame.memory)}
    if part.node.operation in COPIED:
        return {part.results[0]: copied(net, part.node, [value], frame.segments, frame.memory)}
    if part.node.operation == "expand":
        return {part.results[0]: expand(net, part.node, [value], frame.segments, frame.memory)}
    how: str = part.node.attributes["how"]
    if how in ENDS:
        return {part.results[0]: ends(net, part, value, frame)}
    return {part.results[0]: frame.memory.reduce(how, value, frame.segments.into(extent))}


def ends(net: Net, part: Part, value: Buffer, frame: Frame) -> Buffer:
    """Runs a part of a net that selects steps: returns the value of the last step of each sequence, or of the
    first if the part's node says so; zeros for an empty sequence. value: the values of all steps. frame:
    their positions.
    """
    assert part.node is not None
    type_, memory = net.type_of(part.results[0]), frame.memory
    positions = frame.sequences(net.type_of(part.reads[0]).extent).positions
    rows, indices = positions.end_step_indices(part.node.attributes["how"] == "first")
    return scattered(memory, type_, positions.rows, rows, memory.take(value, indices))


def run_total(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """Computes a value that combines all rows, such as the gradient of a weight; returns it by node of the
    net.

    bound: the engine's function that computes it.
    values: the values computed so far, by node of the net.
    """
    assert part.node is not None
    return {part.results[0]: bound(part.node, [values[number] for number in part.reads])}


def run_loop(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """Runs a recurrence that no engine can compile as one loop: step by step, each step as a schedule (parts
    that run in turn) of its own. Returns the results by node of the net.

    bound: the schedule of a step, with its parameters.
    values: the values computed so far, by node of the net.
    frame: the positions of the values of each extent (rows, steps).
    """
    assert part.node is not None
    body: Net = bound.net
    varying = [
        position for position, number in enumerate(body.inputs) if body.type_of(number).extent != CONST
    ]
    counted = [number for number, node in enumerate(body.nodes) if node.operation == "index"]
    loop_buffers, memory = frame.loop_buffers, frame.memory
    if loop_buffers is None and memory is HOST:
        loop_buffers = {}

    def run(arrays: Sequence[Buffer], inside: LevelSizes, index: Array) -> list[Buffer]:
        """Runs the schedule (parts that run in turn) of one step; returns the results of the body (the net of
        the step).

        arrays: the inputs of the body. inside: where their sequences begin and end, for each axis. index: the
            index of the step.
        """
        varying_values = {body.inputs[position]: arrays[position] for position in varying}
        if counted:
            varying_values |= dict.fromkeys(counted, memory.put(index))
        return bound.results(varying_values, Frame(inside, memory=memory, loop_buffers=loop_buffers))

    results = by_steps(net, part.node, [values[n] for n in part.reads], frame.segments, run, memory)
    return {n: array for n, array in zip(part.results, results, strict=True) if n >= 0}


KINDS: dict[str, Callable[..., Values]] = {
    "recurrence": run_recurrence,
    "plain": run_plain,
    "across": run_across,
    "total": run_total,
    "loop": run_loop,
}
