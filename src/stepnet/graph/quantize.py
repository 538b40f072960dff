"""A model in fewer bits: for each recurrence the fewest that samples allow, and a report of it.

    samples --> x of each recurrence --> scales --> errors of the outputs --> a dtype for each recurrence

The choice is a mark on each recurrence of the net (`stepnet.net.precision`), which the engine onednn reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

import numpy as np

from stepnet.engines import Bound, Call, choose, engine_named, engines_of
from stepnet.engines.base import Cell, LowEngine
from stepnet.engines.calibration import data_scale
from stepnet.engines.placed import place
from stepnet.errors import InputError, RefusedError
from stepnet.graph.graph import Graph
from stepnet.graph.programs import GraphProgram, in_precisions
from stepnet.graph.quantized import ENGINES, QuantizedGraph
from stepnet.graph.report import OutputError, Quantization, QuantizedRecurrence
from stepnet.net.ir import Net, without_unused
from stepnet.net.precision import Precision
from stepnet.plan.groups import flat_recurrences
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Schedule
from stepnet.rnn.nets import in_order, run_net
from stepnet.rnn.program import NetProgram
from stepnet.rnn.reading import Reading
from stepnet.values.arguments import choice, shown
from stepnet.values.arguments import number as checked_number
from stepnet.values.structure import named_leaves

Array = np.ndarray
DTYPES = {"int8": ("int8",), "bfloat16": ("bfloat16",), "auto": ("int8", "bfloat16")}
WITHIN = {"int8": inf, "bfloat16": inf, "auto": 0.02}


def quantize(
    graph: Graph,
    samples: Sequence[Any],
    dtype: str = "auto",
    *,
    within: float | None = None,
    statics: Sequence[Any] | None = None,
    keep: float = 1.0,
) -> QuantizedGraph:
    """The graph with recurrences in fewer bits, as far as the outputs for the samples stay what they are.

    Samples give the scale of each recurrence's inputs; the scales of weights, one for each unit of each gate,
    are those of the weights. Each recurrence is tried alone. Then those that cost least are changed first,
    each to the fewest bits with which all outputs are still within the bound.

    Args:
        graph: The model, in float32.
        samples: Inputs such as those that will run, each as a call takes them: `Ragged`s, arrays [batch,
            time, features...], or structures of these. A handful is enough.
        dtype: "int8", "bfloat16", or "auto" for the fewer bits of both that do.
        within: How far an output may be from that in float32: the root of the mean square of the differences,
            relative to that of the output. 0.02 by default for "auto", and no bound for one dtype.
        statics: The statics of each sample, of a model that has some.
        keep: The part of the inputs' numbers that lies within the scales of int8. With 0.999 the largest of a
            thousand saturate, and the others are finer for it.

    Returns:
        A graph that runs so on the engine onednn. Its `report` says what was chosen, and prints.

    Raises:
        InputError: For samples without steps or with NaN or infinity, and arguments of another form.
        RefusedError: For a model without a recurrence that oneDNN runs in fewer bits, with all reasons; and
            without oneDNN.
    """
    if type(graph) is not Graph:
        raise InputError(f"graph is a Graph that is not quantized, not {shown(graph)}")
    choice(dtype, f"dtype is one of {', '.join(DTYPES)}", tuple(DTYPES))
    meaning = "within is a relative error above 0"
    bound = WITHIN[dtype] if within is None else checked_number(within, meaning, lambda value: value > 0)
    trials = Trials.of(graph, samples, statics, keep)
    options = trials.options(DTYPES[dtype])
    alone = {(n, option.dtype): trials.worst({n: option}) for n, made in options.items() for option in made}
    chosen: dict[int, Precision] = {}
    for number in sorted(options, key=lambda n: min(alone[n, o.dtype] for o in options[n])):
        for option in options[number]:
            error = trials.worst({**chosen, number: option}) if chosen else alone[number, option.dtype]
            if error <= bound:
                chosen[number] = option
                break
    rows = [trials.row(number, chosen.get(number), alone, bound) for number in range(trials.count)]
    errors = trials.errors(chosen)
    report = Quantization(tuple(rows), tuple(errors), len(trials.readings), trials.steps, bound)
    return QuantizedGraph.of(graph, trials.precisions(chosen), report)


@dataclass(frozen=True)
class Trials:
    """A model with its samples, to be run in precisions.

    parts: what runs, each recurrence of it marked with its number. readings: the samples, as calls. plans:
    that of each recurrence, by number. scales: of the inputs of those that the engine has. right: the outputs
    for each sample in float32.
    """

    program: GraphProgram
    parts: Schedule
    readings: tuple[Reading[GraphProgram], ...]
    plans: Mapping[int, Plan]
    scales: Mapping[int, tuple[float, float]]
    right: tuple[list[Array], ...]

    @classmethod
    def of(cls, graph: Graph, samples: Sequence[Any], statics: Sequence[Any] | None, keep: float) -> "Trials":
        """Those of a graph; raises `InputError` for samples that do not fit."""
        readings = tuple(read(graph, samples, statics))
        program = readings[0].program
        parts = numbered(program.net)
        plans: dict[int, Plan] = {}
        reads: dict[int, tuple[int, ...]] = {}
        for part in parts.parts:
            number = None if part.plan is None else number_of(part.plan)
            if number is not None and part.plan is not None:
                plans[number] = part.plan
                made = low_engine().cell(part.plan)
                if isinstance(made, Cell):
                    reads[number] = tuple(part.reads[place] for place in made.reads)
        scales = scales_of(parts.net, reads, program, readings, keep)
        right = tuple(run(bound_to(parts, program), program, reading.call) for reading in readings)
        return cls(program, parts, readings, plans, scales, right)

    @property
    def count(self) -> int:
        """How many recurrences there are."""
        return len(flat_recurrences(self.program.net))

    @property
    def steps(self) -> int:
        """How many steps the samples have."""
        return sum(int(reading.call.lengths.sum()) for reading in self.readings)

    def options(self, dtypes: Sequence[str]) -> dict[int, list[Precision]]:
        """The precisions that each recurrence may have, fewest bits first; raises `RefusedError` for none."""
        made = {
            number: [p for d in dtypes if self.reason(number, p := self.precision(number, d)) is None]
            for number in self.plans
        }
        if not any(made.values()):
            reasons = {self.reason(n, self.precision(n, d)): None for n in self.plans for d in dtypes}
            raise RefusedError(
                "no recurrence of this graph runs in fewer bits"
                + "".join(f"\n  {reason}" for reason in reasons or ["there is none"])
            )
        return {number: options for number, options in made.items() if options}

    def precision(self, number: int, dtype: str) -> Precision:
        """A recurrence's precision of a dtype, with its scale in int8."""
        scale = self.scales.get(number, (1.0, 0.0)) if dtype == "int8" else (1.0, 0.0)
        return Precision(dtype, number, *scale)

    def reason(self, number: int, precision: Precision) -> str | None:
        """Why oneDNN has no such recurrence in a precision; None where it has."""
        made = self.cell(number, precision)
        return made if isinstance(made, str) else None

    def cell(self, number: int, precision: Precision) -> Cell | str:
        """What the engine has for a recurrence in a precision, or the reason why it has nothing."""
        plan = self.plans[number]
        marks = {n: precision for n, node in enumerate(plan.traced.nodes) if node.operation == "recur"}
        return low_engine().cell(replace(plan, traced=in_precisions(plan.traced, marks)))

    def precisions(self, chosen: Mapping[int, Precision]) -> tuple[Precision, ...]:
        """The precision of each recurrence, float32 for those that are not chosen."""
        return tuple(chosen.get(n, Precision("float32", n)) for n in range(self.count))

    def in_precisions(self, chosen: Mapping[int, Precision]) -> Schedule:
        """What runs with the chosen recurrences in fewer bits."""
        net = self.parts.net
        marks = {
            number: chosen[mark.recurrence]
            for number, node in enumerate(net.nodes)
            if node.operation == "recur"
            and (mark := node.recur.precision) is not None
            and mark.recurrence in chosen
        }
        return Schedule(self.parts.traced, in_precisions(net, marks))

    def errors(self, chosen: Mapping[int, Precision]) -> list[OutputError]:
        """The errors of the outputs for the samples."""
        bound = bound_to(self.in_precisions(chosen), self.program)
        made = [run(bound, self.program, reading.call) for reading in self.readings]
        names = [name for name, _ in named_leaves(self.program.output)]
        return [
            OutputError.of(name, [low[place] for low in made], [right[place] for right in self.right])
            for place, name in enumerate(names)
        ]

    def worst(self, chosen: Mapping[int, Precision]) -> float:
        """The largest relative error of an output."""
        return max(error.relative for error in self.errors(chosen))

    def row(
        self, number: int, precision: Precision | None, alone: Mapping[tuple[int, str], float], bound: float
    ) -> QuantizedRecurrence:
        """What the report says of a recurrence."""
        made = self.cell(number, precision or Precision("float32", number))
        what = "of a cell that oneDNN has not" if isinstance(made, str) else made.text
        tried = {dtype: error for (n, dtype), error in alone.items() if n == number}
        reasons = {
            dtype: reason
            for dtype in DTYPES["auto"]
            if (reason := self.reason(number, self.precision(number, dtype))) is not None
        }
        if precision is None:
            further = dict.fromkeys(tried, f"an output is then more than {100 * bound:.2g}% away")
            return QuantizedRecurrence(number, what, "float32", None, tried, reasons | further)
        return QuantizedRecurrence(number, what, precision.dtype, precision, tried, reasons)


def read(graph: Graph, samples: Sequence[Any], statics: Sequence[Any] | None) -> list[Reading[GraphProgram]]:
    """The samples as calls of one program."""
    if not isinstance(samples, list | tuple) or not samples:
        raise InputError("samples is a list of inputs as calls take them; it is empty, or no list")
    if not isinstance(statics, list | tuple | None):
        raise InputError(f"statics is a list of the statics of each sample, not {shown(statics)}")
    if statics is not None and len(statics) != len(samples):
        raise InputError(f"there are {len(samples)} samples and {len(statics)} statics")
    readings = [
        QuantizedGraph.reading(graph, sample, still)
        for sample, still in zip(samples, statics or [None] * len(samples), strict=True)
    ]
    for place_, reading in enumerate(readings):
        call = reading.call
        arrays = [*call.sequences, *call.statics, *(array for array in call.initial if array is not None)]
        if not all(np.isfinite(array).all() for array in arrays):
            raise InputError(f"sample {place_} has NaN or infinity")
        if reading.program is not readings[0].program:
            raise InputError(f"sample {place_} has other features or dtypes than sample 0")
    if not any(reading.call.lengths.any() for reading in readings):
        raise InputError("the samples have no steps; give some that are usual")
    return readings


def numbered(net: Net) -> Schedule:
    """What runs a net, each recurrence marked with its number."""
    marks = {n: Precision("float32", place_) for place_, n in enumerate(sorted(flat_recurrences(net)))}
    return place(in_precisions(net, marks), engines_of(ENGINES))


def low_engine() -> LowEngine:
    """The engine that runs recurrences in fewer bits."""
    return cast("LowEngine", engine_named(ENGINES[0]))


def number_of(plan: Plan) -> int | None:
    """The number of the recurrence that a plan runs; None where it runs none of the model's."""
    marks = [node.recur.precision for node in plan.traced.nodes if node.operation == "recur"]
    return marks[0].recurrence if marks and marks[0] is not None else None


def scales_of(
    net: Net,
    reads: Mapping[int, tuple[int, ...]],
    program: GraphProgram,
    readings: Sequence[Reading[GraphProgram]],
    keep: float,
) -> dict[int, tuple[float, float]]:
    """The scale and shift of the inputs of each recurrence. reads: the values of a net that these are."""
    if not reads:
        return {}
    wanted = [value for values in reads.values() for value in values]
    observed = NetProgram(without_unused(net.nodes, tuple(wanted)))
    values: dict[int, list[Array]] = {number: [] for number in reads}
    for reading in readings:
        made = iter(run_net(observed, [*arrays_of(program, reading)], reading.call, "auto"))
        for number, numbers in reads.items():
            values[number] += [next(made) for _ in numbers]
    return {number: data_scale(arrays, keep) for number, arrays in values.items()}


def arrays_of(program: GraphProgram, reading: Reading[GraphProgram]) -> list[Array | None]:
    """The arrays of a call in the order of the net's inputs."""
    ends, call = program.ends, reading.call
    kinds = (
        (ends.sequences, call.sequences),
        (ends.memories, call.initial),
        (ends.statics, call.statics),
        (ends.parameters, program.params),
    )
    by_place = {place: array for places, arrays in kinds for place, array in zip(places, arrays, strict=True)}
    return [by_place[place] for place in range(len(by_place))]


def bound_to(parts: Schedule, program: GraphProgram) -> Bound:
    """What runs a schedule with the parameters of a program."""
    return choose(parts, ENGINES)[0].compile(parts).bind(program.params)


def run(bound: Bound, program: GraphProgram, call: Call) -> list[Array]:
    """The outputs of a call, in the order of the net's results."""
    return in_order(program, bound(call))
