"""A model as parts that run over chunks of steps: what `ChunkStream` runs, from the schedule of a call."""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.net.windows import WINDOWED
from stepnet.compiler.plan.passes.when import known_once
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.streams.chunk_ends import EndsPart
from stepnet.model.streams.chunk_parts import (
    Chunk,
    ChunkPart,
    ChunkValues,
    LastPart,
    RepeatPart,
    StepCounts,
    WindowPart,
)
from stepnet.model.streams.chunk_plans import PlanPart
from stepnet.model.streams.composed import stream_refusal
from stepnet.model.streams.waiting import Kept

Array = np.ndarray


@dataclass(frozen=True)
class ChunkModel:
    """A model in the parts of its schedule, which run over chunks of steps.

    net: the net of the schedule.
    constants: the parameters, and what is computed from them alone, by node.
    parts: the parts, in the order they run.
    """

    net: Net
    constants: ChunkValues
    parts: tuple[ChunkPart, ...]

    @classmethod
    def of(cls, schedule: Schedule, params: Sequence[Array], engine: Order) -> "ChunkModel":
        """Makes the parts of a model; raises `InputError` for a model that needs other steps than earlier
        ones and the next few.

        schedule: the schedule of a call. params: the parameters, in the order of the net. engine: the engines
        in order of preference.
        """
        if (reason := stream_refusal(schedule.traced, in_chunks=True)) is not None:
            raise InputError(f"this model has no stream of chunks: {reason}")
        net, parts = schedule.net, list[ChunkPart]()
        for place, part in enumerate(schedule.parts):
            name, node = f"part.{place}", part.node
            if part.plan is not None:
                parts.append(PlanPart.of(part, part.plan, name, net, engine))
            elif node is not None and node.operation in WINDOWED:
                parts.append(WindowPart(part.results[0], net, name))
            elif node is not None and node.operation == "extend":
                parts.append(EndsPart(part.results[0], net, name))
            elif node is not None and node.operation == "expand":
                parts.append(RepeatPart(part.results[0], net, name))
            elif node is not None and node.operation == "reduce":
                parts.append(LastPart(part.results[0], net, name))
            else:
                raise InputError(f"this model has no stream of chunks: it has a part of the kind {part.kind}")
        given = [number for number in net.inputs if net.type_of(number).extent == CONST]
        known = dict(zip(given, params, strict=True))
        once = sorted(n for n in known_once(net) if net.nodes[n].operation != "input")
        return cls(net, {**evaluated(net, known, once)}, tuple(parts))

    @computed_once
    def varying(self) -> list[int]:
        """The inputs of the net that are no parameters, as nodes: those with steps, and the statics."""
        return [number for number in self.net.inputs if self.net.type_of(number).extent != CONST]

    @computed_once
    def statics(self) -> int:
        """The number of the values that each row has once."""
        return sum(self.net.type_of(number).extent == ROWS for number in self.varying)

    def begin(self, rows: int) -> Kept:
        """Returns the states of the parts for rows that have had no step. rows: the number of rows."""
        return {name: own for part in self.parts for name, own in part.begin(rows).items()}

    def counts(self, taken: Array) -> dict[str, Array]:
        """Returns the counts and the numbers of steps that the parts keep of rows, by name.

        taken: the number of steps that each row has had. Raises `InputError` for more than a sequence can
        have.
        """
        chunk = Chunk(taken, ends=False)
        made: dict[str, Array] = {}
        steps: StepCounts = dict.fromkeys(self.net.inputs, taken)
        for part in self.parts:
            results, own = part.counts(steps, chunk)
            steps |= results
            made |= own
        return made

    def run(self, given: Sequence[object], kept: Kept, chunk: Chunk) -> tuple[list[object], Kept]:
        """Runs all parts on a chunk; returns the results of the net that are ready, and the new states of the
        parts.

        given: the new steps, and the statics of the rows, in the order of the net's inputs. kept: the values
        that the parts have kept.
        """
        values: ChunkValues = {**self.constants, **dict(zip(self.varying, given, strict=True))}
        now: Kept = {}
        for part in self.parts:
            made, own = part.run(values, kept, chunk)
            values.update(made)
            now.update(own)
        return [values[number] for number in self.net.results], now
