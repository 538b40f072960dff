"""The parts of a model that an engine runs over chunks of steps: recurrences, and operations of single steps.

    the part of a call       memories of zeros -> outputs
    the same, continued      memories of the rows -> outputs, memories

The net of a part is the net of a call, with its memories as inputs and results. It has the same plan, so
results have the same bits as in a call.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.ir import Builder, Net, ancestors, with_inputs
from stepnet.compiler.net.memory import AnyMemory
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.targets import Call, Order, engines_of
from stepnet.compiler.targets.assignment import choice
from stepnet.compiler.targets.packed import plain_call
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.forms import FormedCall, call_at
from stepnet.model.nets import BoundNet, counts_steps, run_net
from stepnet.model.program import NetProgram
from stepnet.model.streams.chunk_parts import Chunk, ChunkValues, StepCounts, zeros
from stepnet.model.streams.on_device import RowsOnDevice, engine_on_device
from stepnet.model.streams.waiting import Kept, WaitingSteps
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions

Array = np.ndarray


@dataclass(frozen=True)
class ContinuedNet:
    """Net of a part whose recurrence takes its initial memories from the call, and returns the final ones.

    net: the net, with the results of the part, then the memories that are no results of the part.
    inputs: for each input, its position among the inputs of the part's net; -1 for a memory that the part
        computes itself.
    memories: the positions of the initial memories among the inputs.
    final: the positions of the final memories among the results.
    begins: for each memory, the number of the value in the part's net that a whole call begins with.
    """

    net: Net
    inputs: tuple[int, ...]
    memories: tuple[int, ...] = ()
    final: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()

    @classmethod
    def of(cls, net: Net) -> "ContinuedNet":
        """Makes the net, from that of a part with one recurrence."""
        builder, copy_of, users = Builder(), list[int](), net.users()
        (recurrence,) = (number for number, node in enumerate(net.nodes) if node.operation == "recur")
        recur, operands = net.nodes[recurrence].recur, net.nodes[recurrence].inputs
        begins: list[int] = recur.operands_by_kind(operands).memories
        memories = list[int]()
        for number, node in enumerate(net.nodes):
            inputs = [copy_of[operand] for operand in node.inputs]
            if number == recurrence:
                for begin in begins:
                    is_own = net.nodes[begin].operation == "input" and len(users[begin]) == 1
                    is_own = is_own and operands.count(begin) == 1
                    memories.append(copy_of[begin] if is_own else builder.input(net.type_of(begin), "memory"))
                inputs[recur.sequence_count : recur.sequence_count + len(memories)] = memories
            copy_of.append(builder.copy(node, inputs))
        places = range(len(net.nodes[recurrence].types))[-len(begins) :]
        final = [builder.add("result", copy_of[recurrence], of=place) for place in places]
        results = [copy_of[result] for result in net.results]
        results += [number for number in final if number not in results]
        old = {copy_of[number]: place for place, number in enumerate(net.inputs)}
        order = sorted({*old, *memories})
        return cls(
            builder.net(results),
            tuple(old.get(number, -1) for number in order),
            tuple(order.index(number) for number in memories),
            tuple(results.index(number) for number in final),
            tuple(begins),
        )


@dataclass(frozen=True)
class PlanPart:
    """Recurrence, or operations of single steps or rows, that an engine runs by the plan of a call.

    part, plan: the part of the schedule, and its plan.
    continued: its net, with the memories as inputs and results if it has a recurrence of the user's.
    name: the beginning of the names under which its memories are kept.
    engine: the engines in order of preference.
    model: the net of the model.
    """

    part: Part
    plan: Plan
    continued: ContinuedNet
    name: str
    engine: Order
    model: Net

    @classmethod
    def of(cls, part: Part, plan: Plan, name: str, model: Net, engine: Order) -> "PlanPart":
        """Makes the part of a stream from a part of a call's schedule; raises `InputError` if it would run on
        another engine than in a call, with other bits.
        """
        net = plan.traced
        plain = ContinuedNet(net, tuple(range(len(net.inputs))))
        made = cls(part, plan, plain if part.kind == "plain" else ContinuedNet.of(net), name, engine, model)
        for own in made.program.schedule_for(engine).plans:
            in_call, here = (choice(each, engines_of(engine)).engine for each in (plan, own))
            if in_call is None or here is None or in_call.name != here.name:
                raise InputError(
                    "with these engines a recurrence does not go on from an earlier chunk on the engine of a "
                    "call: give engine='llvm' to calls and streams"
                )
        return made

    @computed_once
    def program(self) -> NetProgram:
        """The program of the net."""
        return NetProgram(self.continued.net)

    @computed_once
    def sequences(self) -> tuple[int, ...]:
        """The values with steps that the part reads, as nodes of the model."""
        return self.part.reads[: len(self.plan.ends.sequences)]

    @computed_once
    def reads(self) -> dict[int, int]:
        """The nodes of the model that the part reads, by position among its plan's inputs; -1 for zeros."""
        ends, part = self.plan.ends, self.part
        unread = [-1] * len(ends.memories) if part.kind == "plain" else []
        places = *ends.sequences, *ends.memories, *ends.statics, *ends.parameters
        return dict(zip(places, (*part.reads, *unread, *part.parameters), strict=True))

    @computed_once
    def names(self) -> list[str]:
        """The names of what is kept of the steps: of their number, and of those of each value that wait."""
        waiting = [f"{self.name}.waiting.{place}" for place in range(len(self.sequences))]
        return [f"{self.name}.taken", *waiting]

    @computed_once
    def memory_names(self) -> list[str]:
        """The names of the kept memories."""
        return [f"{self.name}.memory.{place}" for place in range(len(self.continued.memories))]

    @computed_once
    def once(self) -> list[int]:
        """The positions of the results that a row has once and that are no memories, as a last output is."""
        ends = self.program.ends
        places = [*ends.rows, *(ends.steps if self.part.last_only else ())]
        return [place for place in places if self.continued.memories and place not in self.continued.final]

    @computed_once
    def placed(self) -> dict[int, int]:
        """The results that others read, as nodes of the model, by position among the results of the net."""
        ends = self.plan.ends
        pairs = zip((*ends.steps, *ends.rows, *ends.totals), self.part.results, strict=False)
        return {place: number for place, number in pairs if number >= 0}

    def begin(self, rows: int) -> Kept:
        """Returns the state that the part keeps of rows that have had no step: memories of zeros, and no
        steps that wait. rows: their number.
        """
        if self.part.extent == ROWS:
            return {}
        none, net = np.zeros(rows, np.int64), self.continued.net
        kept: Kept = {f"{self.name}.taken": none}
        for place, number in enumerate(self.sequences):
            kept[f"{self.name}.waiting.{place}"] = WaitingSteps.zeros(none, self.model.type_of(number))
        for place, number in enumerate(self.continued.memories):
            kept[f"{self.name}.memory.{place}"] = zeros(net.type_of(net.inputs[number]), rows)
        for place in self.once:
            kept[f"{self.name}.result.{place}"] = zeros(net.type_of(net.results[place]), rows)
        return kept

    def run(self, values: ChunkValues, kept: Kept, chunk: Chunk) -> tuple[ChunkValues, Kept]:
        """Computes the results of the steps that every value which the part reads has; returns them by node,
        and the part's new state.

        values: the values of the chunk so far. kept: the part's state of the rows.
        """
        if self.part.extent == ROWS:
            given = [values[number] for number in self.sequences]
            return self.named(self.results(given, values, [], plain_call((), chunk.rows)), None), {}
        now: Kept = {}
        sequences, (taken, *waiting) = self.sequences, self.names
        if len(sequences) == 1:  # nothing waits
            new, name = values[sequences[0]], waiting[0]
            given = [new.values]
            now[name] = kept[name]
        else:
            new, given = self.ready(values, kept, now)
        counts = new.lengths
        before: Array = kept[taken]
        now[taken] = before + counts
        if self.part.kind == "plain":
            call = plain_call((), int(counts.sum()))
            return self.named(self.results(given, values, [], call), new), now
        results = self.continued_results(given, values, self.memories(values, kept, before), new, before)
        if self.device is not None:  # memories stay there, all else is for the host
            get = self.device.get
            for place, number in enumerate(self.continued.final):
                now[f"{self.name}.memory.{place}"] = RowsOnDevice(self.device, results[number])
            for place, array in enumerate(results):
                if not isinstance(cast("object", array), np.ndarray) and place in (*self.placed, *self.once):
                    results[place] = get(cast("Any", array))
        else:
            for name, number in zip(self.memory_names, self.continued.final, strict=True):
                now[name] = results[number]
        for place in self.once:
            waits, name = (counts == 0) & (before > 0), f"{self.name}.result.{place}"
            results[place][waits] = kept[name][waits]
            now[name] = results[place]
        return self.named(results, new), now

    def ready(self, values: ChunkValues, kept: Kept, now: Kept) -> tuple[WaitingSteps, list[Array]]:
        """Takes as many steps of each row as every value that the part reads has; returns those of the first
        value, and the arrays of all. Further steps wait, and are added to the kept values.

        values: the values of the chunk so far. kept: the values that the part has kept of the rows. now: the
        values that it keeps from now on; filled here.
        """
        names = self.names[1:]
        waiting: list[WaitingSteps] = [
            kept[name].before(values[number]) for name, number in zip(names, self.sequences, strict=True)
        ]
        counts = np.minimum.reduce([own.lengths for own in waiting])
        ready = list[WaitingSteps]()
        for name, own in zip(names, waiting, strict=True):
            first, now[name] = own.split(counts)
            ready.append(first)
        return ready[0], [own.values for own in ready]

    def continued_results(
        self, given: list[Array], values: ChunkValues, memories: list[Any], new: WaitingSteps, before: Array
    ) -> list[Array]:
        """Runs the recurrence over the new steps; returns the results of the net in order. Calls on as many
        rows are prepared together, for any numbers of steps.

        given: the values with steps that it reads. values: the values of the chunk so far. memories: the
        memories of the rows. new: as many steps of each row as are new. before: the number of earlier ones.
        """
        formed = None
        if self.is_prepared:
            formed = call_at("ends", given[0], new.offsets, self.name)
        if formed is not None and self.bound:
            results = self.bound[0].prepared(formed, [*given, *memories])
            if results is not None:
                return results
        begun = before if self.reads_index else None
        call = Call(self.positions(new.lengths), last_only=self.part.last_only, step_offset=begun)
        return self.results(given, values, memories, call, formed)

    @computed_once
    def is_prepared(self) -> bool:
        """Tells whether calls of the net can be prepared for any lengths."""
        ends = self.program.ends
        read = tuple(self.continued.inputs[place] for place in ends.sequences)
        in_order = read == tuple(self.plan.ends.sequences) and tuple(ends.memories) == self.continued.memories
        plain = not ends.statics and not self.part.last_only and not self.reads_index
        return in_order and plain and self.device is None

    def memories(self, values: ChunkValues, kept: Kept, before: Array) -> list[Any]:
        """Returns the memories that rows go on from: the kept memories of rows that have begun, and the given
        initial memories of other rows.

        values: the values of the chunk so far. kept: the kept values of the rows. before: the number of steps
        of each row in earlier chunks.
        """
        own = [kept[name] for name in self.memory_names]
        if np.count_nonzero(before) == len(before):
            on_device = self.device is not None and [isinstance(each, RowsOnDevice) for each in own]
            if not on_device or not any(on_device):
                return own
            if all(on_device):
                return [each.buffer for each in own]
        memories, begun = self.begins(values, len(before)), np.flatnonzero(before)
        for each, memory in zip(own, memories, strict=True):
            memory[begun] = each[begun]
        return memories

    def positions(self, counts: Array) -> Positions:
        """Returns the positions of the rows' new steps; the previous ones if the numbers are equal."""
        if not self.latest or not np.array_equal(self.latest[0].lengths, counts):
            self.latest[:] = [Positions.end_to_end(offsets_of(counts))]
        return self.latest[0]

    @computed_once
    def reads_index(self) -> bool:
        """True if a step reads the number of earlier steps of its row."""
        return counts_steps(self.continued.net)

    @computed_once
    def latest(self) -> list[Positions]:
        """The positions of the latest chunk."""
        return []

    @computed_once
    def device(self) -> AnyMemory | None:
        """The memory of the device that runs the part; None for the host."""
        engine = engine_on_device(self.program, self.engine)
        return None if engine is None else engine.memory

    def counts(self, steps: StepCounts, chunk: Chunk) -> tuple[StepCounts, dict[str, Array]]:
        """Returns the number of steps that each row has run in total, and the numbers of steps of each value
        that wait.

        steps: the numbers of steps of earlier values. chunk: the chunk of rows, which do not end.
        """
        if self.part.extent == ROWS:
            return {}, {}
        read = [steps[number] for number in self.sequences]
        taken: Array = np.minimum.reduce(read)
        waiting = {f"{self.name}.waiting.{place}": own - taken for place, own in enumerate(read)}
        return dict.fromkeys(self.placed.values(), taken), {f"{self.name}.taken": taken, **waiting}

    def results(
        self,
        given: list[Array],
        values: ChunkValues,
        memories: list[Array],
        call: Call,
        formed: FormedCall | None = None,
    ) -> list[Array]:
        """Runs the net of the part; returns its results in order.

        given: the values with steps, or of rows, that it reads. values: the values of the chunk so far.
        memories: the memories of the rows; none for a part without a recurrence. call: the positions of the
        steps.
        formed: the form of the call, if later ones may be prepared; else None.
        """
        arrays = dict(enumerate(self.inputs(given, values)))
        arrays = {place: arrays.get(old) for place, old in enumerate(self.continued.inputs)}
        arrays |= dict(zip(self.continued.memories, memories, strict=True))
        if not self.bound:
            self.bound.append(BoundNet.of(self.program, [*arrays.values()], call, self.engine))
        if formed is not None:
            self.bound[0].prepare(formed, [*arrays.values()], call)
        return self.bound[0]([*arrays.values()], call)

    def inputs(self, given: list[Array], values: ChunkValues) -> list[Array | None]:
        """Returns the arrays of the inputs of the part's plan, in order; None for memories of zeros.

        given: the arrays of the values with steps. values: the values of the chunk so far.
        """
        read = dict(zip(self.plan.ends.sequences, given, strict=True))
        read |= {
            place: None if number < 0 else values[number]
            for place, number in self.reads.items()
            if place not in read
        }
        return [read[place] for place in range(len(read))]

    def begins(self, values: ChunkValues, rows: int) -> list[Array]:
        """Returns the memories that the sequences of a call begin with, in arrays that may be changed.

        values: the values of the chunk so far. rows: the number of rows.
        """
        net = self.plan.traced
        made: list[Array] = []
        arrays = self.inputs([np.zeros(0)] * len(self.sequences), values)
        for begin in self.continued.begins:
            if net.nodes[begin].operation != "input":
                made.append(np.array(self.computed(begin, arrays, rows), order="C"))
                continue
            array = arrays[net.inputs.index(begin)]
            made.append(zeros(net.type_of(begin), rows) if array is None else np.array(array, order="C"))
        return made

    def computed(self, begin: int, arrays: Sequence[Array | None], rows: int) -> Array:
        """Computes an initial memory from parameters and values that each row has once.

        begin: its number in the net of the part. arrays: the inputs of that net. rows: the number of rows.
        """
        net = self.plan.traced
        order = [number for number in net.inputs if number in ancestors(net.nodes, (begin,))]
        if begin not in self.beginnings:
            builder, copy_of = Builder(), list[int]()
            for node in net.nodes[: begin + 1]:
                copy_of.append(builder.copy(node, [copy_of[operand] for operand in node.inputs]))
            inputs = [copy_of[number] for number in order]
            self.beginnings[begin] = NetProgram(with_inputs(builder, inputs, [copy_of[begin]]))
        call = Call(Positions.end_to_end(np.arange(rows + 1)))
        read = [arrays[net.inputs.index(number)] for number in order]
        return run_net(self.beginnings[begin], read, call, self.engine)[0]

    @computed_once
    def beginnings(self) -> dict[int, NetProgram]:
        """The programs that compute initial memories so far, by the number in the net of the part."""
        return {}

    @computed_once
    def bound(self) -> list[BoundNet]:
        """The net with its parameters, from the first call on."""
        return []

    def named(self, results: list[Array], like: WaitingSteps | None) -> ChunkValues:
        """Returns results by node of the model. like: as many steps of each row; None for values that rows
        have once.
        """
        made: ChunkValues = {}
        for place, number in self.placed.items():
            made[number] = results[place]
            if like is not None and self.model.type_of(number).extent != ROWS:
                made[number] = WaitingSteps.at(results[place], like.lengths, like.offsets)
        return made
