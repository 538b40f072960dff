"""A wavefront: layers whose steps are divided into chunks, each layer on a stream of its own.

    stream 0   layer 0   chunk 0   chunk 1   chunk 2
    stream 1   layer 1             chunk 0   chunk 1   chunk 2        each behind a mark of the chunk above it

A loop's memories are carried on from chunk to chunk. The products ahead of it and what follows it are done
for a chunk at a time, so that their values take little memory; sums over steps, and gradients of weights, are
computed of all steps at the end. So all sums keep their order, and results have the bits of one layer after
the other.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Call, Results
from stepnet.compiler.targets.cuda.device import Allocation, DeviceArray, allocating, empty
from stepnet.compiler.targets.cuda.kernel import BoundPlan, CudaKernel, PlanRun, Values
from stepnet.compiler.targets.cuda.loops.wave_chunks import StepChunk, StepChunks
from stepnet.compiler.targets.cuda.streams import Fork
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions


@dataclass(frozen=True)
class ChunkedArray:
    """An output of a layer in chunks, in the order in which the layer runs them.

    positions, count: of all steps, and the number of chunks that were asked for. is_reverse: whether the
    chunk of the last steps is the first. marks: behind each chunk, and behind all work of the layer.
    """

    positions: Positions
    count: int
    is_reverse: bool
    arrays: Sequence[DeviceArray]
    marks: Sequence[Any]


@dataclass
class ChunkRun(PlanRun):
    """One chunk of the steps of a plan.

    memories: the memories before the chunk; none ahead of the first one, which has those of the call.
    final: the memories behind the chunk.
    """

    memories: Sequence[DeviceArray] = ()
    final: list[DeviceArray] = field(default_factory=list[DeviceArray])

    def loop_operands(self) -> list[DeviceArray | None]:
        """Returns the arrays that the loop reads, with the memories that are carried on."""
        operands, first = super().loop_operands(), self.plan.recurrence.recur.sequence_count
        if self.memories:
            operands[first : first + len(self.memories)] = self.memories
        return operands

    def loop_results(self) -> list[DeviceArray | None]:
        """Returns the arrays that the loop fills, among them all memories."""
        results, recur = super().loop_results(), self.plan.recurrence.recur
        first = len(results) - len(recur.memories)
        for place, number in enumerate(recur.memories, first):
            self.final.append(results[place] or self.memory_of(recur.body.type_of(number)))
        return [*results[:first], *self.final]

    def memory_of(self, type_: Type) -> DeviceArray:
        """Allocates a memory behind the chunk."""
        shape = self.call.positions.rows, *type_.shape
        return empty(self.memory.device, shape, type_.dtype)


@dataclass
class ChunkedLayer:
    """A call of a layer of a wavefront, in chunks of its steps on the present side stream.

    count: the number of chunks.
    given: for each sequence of the call its chunks, if a layer above has made them; None for one that is
        cut from all steps.
    whole: the run of the work that is done for all steps at once, and the values of all steps.
    kept: by node, each chunk's values that are needed for all steps. marks: those of `ChunkedArray`.
    """

    bound: BoundPlan
    call: Call
    count: int
    fork: Fork
    given: Sequence[ChunkedArray | None]
    whole: PlanRun = field(init=False)
    kept: dict[int, list[DeviceArray]] = field(init=False)
    marks: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        """Computes the values of whole sequences, and allocates arrays for the values of all steps."""
        self.whole = whole = PlanRun(self.bound.kernel, self.call, dict(self.bound.constants))
        whole.stage("sequence")
        self.kept = {number: [] for number in collected(self.plan) if number not in whole.values}

    @property
    def plan(self) -> Plan:
        """The plan of the layer."""
        return self.bound.kernel.plan

    def run(self) -> Results:
        """Runs all chunks, and what follows them; returns the results of the layer."""
        whole, plan = self.whole, self.plan
        once = {n: value for n, value in whole.values.items() if is_of_rows(plan, n)}
        wanted = {number: whole.made(plan.net, number) for number in self.kept}
        chunks = StepChunks.of(self.call.positions, self.count).chunks
        run: ChunkRun | None = None
        for chunk in reversed(chunks) if plan.reverse else chunks:
            run = self.run_of(chunk, once, () if run is None else run.final)
            for number, whole_array in wanted.items():
                chunk.give(whole.memory, whole_array, run.values[number])
        assert run is not None
        final = (number for number in whole.picked.values() if is_of_rows(plan, number))
        whole.values |= {number: run.values[number] for number in final} | wanted
        for array in self.given:
            if array is not None:  # sums may read it whole
                self.fork.after(array.marks[-1])
        whole.reductions()
        whole.stage("ended")
        whole.totals()
        results = whole.results()
        self.marks.append(self.fork.mark())
        return results

    def run_of(self, chunk: StepChunk, once: Values, memories: Sequence[DeviceArray]) -> ChunkRun:
        """Runs a chunk; returns its run, with all its values.

        once: the values of whole sequences. memories: those before the chunk; none for those of the call.
        """
        place, sequences = len(self.marks), list[Any]()
        with allocating(Allocation):
            for array, made in zip(device_arrays(self.call.sequences), self.given, strict=True):
                if made is not None:
                    self.fork.after(made.marks[place])
                sequences.append(chunk.take(self.whole.memory, array) if made is None else made.arrays[place])
            before: Any = None
            if self.bound.kernel.reads_index:
                before = chunk.steps_before(self.whole.memory, self.whole.first_steps)
            where = {"positions": chunk.positions, "step_offset": before}
            inside = replace(self.call, sequences=sequences, last_only=False, **where)
            run = ChunkRun(self.bound.kernel, inside, dict(once), memories)
            run.stage("before")
            run.loop()
            run.stage("after")
        self.marks.append(self.fork.mark())
        for number, arrays in self.kept.items():
            arrays.append(run.values[number])
        return run

    def chunked(self) -> dict[int, ChunkedArray]:
        """Returns the outputs that there are in chunks, by their place."""
        facts = self.call.positions, self.count, self.plan.reverse
        outputs = [self.plan.net.results[place] for place in self.plan.ends.steps]
        return {
            place: ChunkedArray(*facts, self.kept[number], self.marks)
            for place, number in enumerate(outputs)
            if number in self.kept
        }


def suiting(array: ChunkedArray | None, call: Call, count: int, reverse: bool) -> ChunkedArray | None:
    """Returns an array that a layer has made in chunks, if the reading layer has the same chunks; else None.

    call: of the reading layer. count, reverse: its number of chunks, and whether it begins with the last
    steps.
    """
    if array is None or array.positions is not call.positions:
        return None
    return array if (array.count, array.is_reverse) == (count, reverse) else None


def collected(plan: Plan) -> list[int]:
    """Lists the values whose steps are all needed after the loop: outputs, and values that are summed."""
    outputs = {plan.net.results[place] for place in plan.ends.steps}
    return sorted(number for number in outputs | plan.read_in_the_end if not is_of_rows(plan, number))


def is_of_rows(plan: Plan, number: int) -> bool:
    """Tells whether a node of a plan has a value per row, or one in all, not one per step."""
    return len(plan.net.type_of(number).extent) <= 1


def is_divisible(kernel: CudaKernel) -> bool:
    """Tells whether a plan can run in chunks: it has memories, and does not count steps from the end."""
    plan = kernel.plan
    return not (kernel.is_idle or kernel.has_tables or (plan.reverse and kernel.reads_index))


def device_arrays(arrays: Sequence[Any]) -> Sequence[DeviceArray]:
    """Returns arrays of a call, which lie on the device, as such."""
    return arrays
