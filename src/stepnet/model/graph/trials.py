"""Trials of precisions: the errors of a model's outputs for samples, with its recurrences in low precision.

samples --> inputs of each recurrence --> quantization scales --> errors of the outputs
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.encodings import PRECISIONS, Precision
from stepnet.compiler.net.ir import Net, without_unused
from stepnet.compiler.net.types import is_derived
from stepnet.compiler.plan.inner import flat_recurrences
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Bound, Call, Order, compiled, engines_of
from stepnet.compiler.targets.assignment import assign_engines
from stepnet.compiler.targets.calibration import check_keep, data_scale
from stepnet.compiler.targets.capabilities import LowEngine, LowPrecisionCell
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import named_leaves
from stepnet.errors import InputError, RefusedError
from stepnet.model.graph.graph import Graph
from stepnet.model.graph.programs import GraphProgram, in_precisions
from stepnet.model.graph.report import OutputError, QuantizedRecurrence, percent
from stepnet.model.nets import in_order, run_net
from stepnet.model.program import NetProgram
from stepnet.model.reading import Reading

Array = np.ndarray
NONE_FLAT = "it has no recurrence over flat sequences with no other recurrence in its step"
DERIVED = "its recurrences have other numbers of steps than the inputs, as after a stride"


@dataclass(frozen=True)
class Trials:
    """A model with samples on which low precisions of its recurrences are tried.

    program: the model's program.
    engines: the engines that may run it, in order.
    readings: the samples, as calls.
    plans: the plan of each recurrence in float32, by the recurrence's number.
    scales: the scale and shift of the inputs of recurrences whose engine needs them, by number.
    right: for each sample, the outputs in float32.
    """

    program: GraphProgram
    engines: Order
    readings: tuple[Reading[GraphProgram], ...]
    plans: Mapping[int, Plan]
    scales: Mapping[int, tuple[float, float]]
    right: tuple[list[Array], ...]

    @classmethod
    def of(
        cls,
        graph: Graph,
        samples: Sequence[Any],
        statics: Sequence[Any] | None,
        keep: float,
        engines: Order,
    ) -> "Trials":
        """Prepares trials: runs the samples in float32, and finds the scales of inputs for engines that need
        them.

        graph: the model.
        samples, statics: the inputs of each call, and the statics (values that each sequence has once) of
            each; None for a model without statics.
        engines: the engines that may run the model, in order.
        keep: the share of the inputs that the scales must represent without clipping.

        Raises `InputError` for samples that do not fit.
        """
        check_keep(keep)
        readings = tuple(read(graph, samples, statics))
        program = readings[0].program
        # Marks of float32 with a number each, by which the recurrence of a plan is found.
        single = [Precision("float32", number) for number in range(len(flat_recurrences(program.net)))]
        parts = marked(program.net, single, engines)
        plans: dict[int, Plan] = {}
        reads: dict[int, tuple[int, ...]] = {}
        for part in parts.parts:
            number = None if part.plan is None else number_of(part.plan)
            if number is not None and part.plan is not None:
                plans[number] = part.plan
                cell = cell_of(part.plan, engines)
                if isinstance(cell, LowPrecisionCell) and cell.reads:
                    reads[number] = tuple(part.reads[place] for place in cell.reads)
        scales = scales_of(parts.net, reads, program, readings, keep)
        # Without precisions, as the user's calls run: these may divide work differently, which changes bits.
        own = program.kernel(engines).bind(program.params)
        right = tuple(run(own, program, reading.call) for reading in readings)
        for sample, arrays in enumerate(right):
            check_numbers(sample, program, arrays)
        return cls(program, engines, readings, plans, scales, right)

    @property
    def count(self) -> int:
        """The number of recurrences of the model that can run in low precision."""
        return len(flat_recurrences(self.program.net))

    @property
    def steps(self) -> int:
        """The number of steps of all samples together, for the report."""
        return sum(int(reading.call.positions.lengths.sum()) for reading in self.readings)

    def options(self, dtypes: Sequence[str]) -> dict[int, list[Precision]]:
        """Returns the precisions in which each recurrence can run on some engine, by the recurrence's number.

        Raises `RefusedError` if no recurrence can run in any of them.

        dtypes: the dtypes to try, in order of preference.
        """
        options = {
            number: [p for d in dtypes if self.reason(number, p := self.precision(number, d)) is None]
            for number in self.plans
        }
        if not any(options.values()):
            reasons = {self.reason(n, self.precision(n, d)): None for n in self.plans for d in dtypes}
            recurs = [node for node in self.program.net.nodes if node.operation == "recur"]
            is_of_stride = any(is_derived(type_.extent) for node in recurs for type_ in node.types)
            raise RefusedError(
                "no recurrence of this model runs in fewer bits"
                + "".join(f"\n  {reason}" for reason in reasons or [DERIVED if is_of_stride else NONE_FLAT])
            )
        return {number: precisions for number, precisions in options.items() if precisions}

    def precision(self, number: int, dtype: str) -> Precision:
        """Returns a precision for a recurrence in a dtype; for int8 with the scale of its inputs. number: the
        number of the recurrence. dtype: such as "int8".
        """
        scale = self.scales.get(number) if dtype == "int8" else None
        return Precision(dtype, number) if scale is None else Precision(dtype, number, *scale)

    def reason(self, number: int, precision: Precision) -> str | None:
        """Returns why no engine runs recurrence `number` in a precision; None if an engine does."""
        cell = self.cell(number, precision)
        return cell if isinstance(cell, str) else None

    def cell(self, number: int, precision: Precision) -> LowPrecisionCell | str:
        """Returns the implementation of a recurrence in a precision (such as int8) by the first engine that
        has one.

        Returns the reasons of all engines as a text, if none has one.

        number: the number of the recurrence among those that can have a precision. precision: the precision
        that it should run in.
        """
        plan = self.plans.get(number)
        if plan is None:
            return "nothing reads its memory, so it is computed for all steps at once"
        marks = {n: precision for n, node in enumerate(plan.traced.nodes) if node.operation == "recur"}
        return cell_of(replace(plan, traced=in_precisions(plan.traced, marks)), self.engines)

    def precisions(self, chosen: Mapping[int, Precision]) -> tuple[Precision, ...]:
        """Returns the precision of each recurrence that can have one, in order: the chosen one, else float32.
        chosen: the chosen precisions by the number of the recurrence.
        """
        return tuple(chosen.get(n, Precision("float32", n)) for n in range(self.count))

    def of_all(self, precisions: Sequence[Precision]) -> list[Precision | None]:
        """Returns a precision for each recurrence of the net, in order; None for nested ones, which run in
        float32. precisions: the precisions of the recurrences that are not nested, in order.
        """
        net, flat_precisions = self.program.net, iter(precisions)
        flat = flat_recurrences(net)
        recurrences = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
        return [next(flat_precisions) if number in flat else None for number in recurrences]

    def in_precisions(self, chosen: Mapping[int, Precision]) -> Schedule:
        """Returns the schedule (a net cut into parts) of the model with some recurrences in low precision.
        chosen: their precisions, by the number of the recurrence.
        """
        return marked(self.program.net, self.precisions(chosen), self.engines)

    def errors(self, chosen: Mapping[int, Precision]) -> list[OutputError]:
        """Returns the error of each output over all samples, with some recurrences in low precision. chosen:
        their precisions, by the number of the recurrence.
        """
        bound = compiled(self.in_precisions(chosen), self.engines).bind(self.program.params)
        return self.errors_of([run(bound, self.program, reading.call) for reading in self.readings])

    def errors_of(self, low: Sequence[Sequence[Array]]) -> list[OutputError]:
        """Returns the error of each output over all samples. low: for each sample the outputs to measure."""
        names = [name for name, _ in named_leaves(self.program.output)]
        return [
            OutputError.of(name, [arrays[place] for arrays in low], [right[place] for right in self.right])
            for place, name in enumerate(names)
        ]

    def worst(self, chosen: Mapping[int, Precision]) -> float:
        """Returns the largest relative error of any output over all samples, with some recurrences in low
        precision. chosen: their precisions, by the number of the recurrence.
        """
        return max(error.relative for error in self.errors(chosen))

    def row(
        self, number: int, precision: Precision | None, alone: Mapping[tuple[int, str], float], bound: float
    ) -> QuantizedRecurrence:
        """Returns the entry of a recurrence in the report of `quantize`.

        number: the number of the recurrence.
        precision: the chosen one; None for float32.
        alone: the error of the outputs with only one recurrence in a dtype, by its number and the dtype.
        bound: the largest relative error that the user accepts.
        """
        cell = self.cell(number, precision or Precision("float32", number))
        what = cell if isinstance(cell, str) else cell.text
        tried = {dtype: error for (n, dtype), error in alone.items() if n == number}
        reasons = {
            dtype: reason
            for dtype in PRECISIONS
            if (reason := self.reason(number, self.precision(number, dtype))) is not None
        }
        if precision is None:
            further = dict.fromkeys(tried, f"an output is then more than {percent(bound)} away")
            return QuantizedRecurrence(number, what, "float32", None, tried, reasons | further)
        return QuantizedRecurrence(number, what, precision.dtype, precision, tried, reasons)


def read(graph: Graph, samples: Sequence[Any], statics: Sequence[Any] | None) -> list[Reading[GraphProgram]]:
    """Reads samples as calls of one program; raises `InputError` for samples that do not fit.

    graph: the model.
    samples: the inputs of each sample.
    statics: the statics (values that each sequence has once) of each sample; None for a model without
        statics.
    """
    if not isinstance(samples, list | tuple) or not samples:
        raise InputError(
            f"samples is a list of inputs as calls take them, with at least one entry, not "
            f"{short_repr(samples)}"
        )
    if not isinstance(statics, list | tuple | None):
        raise InputError(f"statics is a list of the statics of each sample, not {short_repr(statics)}")
    if statics is not None and len(statics) != len(samples):
        raise InputError(
            f"there are {len(samples)} samples and {len(statics)} statics: give the statics of each sample"
        )
    readings = [
        graph.reading(sample, still)
        for sample, still in zip(samples, statics or [None] * len(samples), strict=True)
    ]
    for sample, reading in enumerate(readings):
        call = reading.call
        arrays = [*call.sequences, *call.statics, *(array for array in call.initial if array is not None)]
        if not all(np.isfinite(array).all() for array in arrays):
            raise InputError(f"sample {sample} has NaN or infinity")
        if reading.program is not readings[0].program:
            raise InputError(f"sample {sample} has other features or dtypes than sample 0")
    if not any(reading.call.positions.lengths.any() for reading in readings):
        raise InputError("the samples have no steps; give some that are usual")
    return readings


def check_numbers(sample: int, program: GraphProgram, outputs: Sequence[Array]) -> None:
    """Raises `InputError` if float32 outputs of a sample have NaN, for which no error can be measured.

    sample: the index of the sample.
    program: the program, which has the names of the outputs.
    outputs: the outputs of the sample.
    """
    for (name, _), array in zip(named_leaves(program.output), outputs, strict=True):
        if np.isnan(array).any():
            output = f"output `{name}`" if name else "the output"
            raise InputError(
                f"{output} has NaN for sample {sample} in float32, so no error can be measured: look for "
                "NaN, infinity and very large numbers in the parameters and the sample"
            )


def marked(net: Net, precisions: Sequence[Precision], engines: Order) -> Schedule:
    """Returns the schedule of a net (its parts in the order they run) with its recurrences in some
    precisions.

    precisions: one for each recurrence over sequences that are not nested, in the order of the net. Others
        cannot have one.
    engines: the engines in order of preference.
    """
    marks = zip(sorted(flat_recurrences(net)), precisions, strict=True)
    return assign_engines(in_precisions(net, dict(marks)), engines_of(engines))


def cell_of(plan: Plan, engines: Order) -> LowPrecisionCell | str:
    """Returns the low-precision implementation of a plan by the first engine that has one.

    Returns the reasons of all engines, as a text, if none has one.

    plan: the operations of a recurrence in the order they run, with its precision. engines: the engines in
    order of preference.
    """
    reasons: list[str] = []
    for engine in engines_of(engines):
        cell = engine.cell(plan) if isinstance(engine, LowEngine) else "it has no recurrences in fewer bits"
        if isinstance(cell, LowPrecisionCell):
            return replace(cell, text=f"{engine.name}, {cell.text}")
        reasons.append(f"{engine.name}: {cell}")
    return "; ".join(reasons)


def number_of(plan: Plan) -> int | None:
    """Returns the number of the model's recurrence that a plan runs, which its precision records; None if it
    has no precision. plan: the operations of a recurrence in order.
    """
    marks = [node.recur.precision for node in plan.traced.nodes if node.operation == "recur"]
    return marks[0].recurrence if marks and marks[0] is not None else None


def scales_of(
    net: Net,
    reads: Mapping[int, tuple[int, ...]],
    program: GraphProgram,
    readings: Sequence[Reading[GraphProgram]],
    keep: float,
) -> dict[int, tuple[float, float]]:
    """Computes the quantization scale and shift of each recurrence's inputs, by the recurrence's number.

    They fit the values of these inputs in the samples; the part of `net` that computes them is run.

    reads: for each recurrence, its inputs by their numbers in the net.
    program: the program whose parameters and order of inputs `net` has.
    readings: the samples, as calls.
    keep: the share of the inputs that the scales must represent without clipping.
    """
    if not reads:
        return {}
    wanted = [value for values in reads.values() for value in values]
    observed = NetProgram(without_unused(net.nodes, tuple(wanted)))
    values: dict[int, list[Array]] = {number: [] for number in reads}
    for reading in readings:
        results = iter(run_net(observed, [*arrays_of(program, reading)], reading.call, "auto"))
        for number, numbers in reads.items():
            values[number] += [next(results) for _ in numbers]
    return {number: data_scale(arrays, keep) for number, arrays in values.items()}


def arrays_of(program: GraphProgram, reading: Reading[GraphProgram]) -> list[Array | None]:
    """Returns the arrays of a sample and the parameters, in the order of the net's inputs, to run the net.

    program: the program, which has the parameters and the order of the inputs.
    reading: the sample, as a checked call.
    """
    ends, call = program.ends, reading.call
    kinds = (
        (ends.sequences, call.sequences),
        (ends.memories, call.initial),
        (ends.statics, call.statics),
        (ends.parameters, program.params),
    )
    by_place = {place: array for places, arrays in kinds for place, array in zip(places, arrays, strict=True)}
    return [by_place[place] for place in range(len(by_place))]


def run(bound: Bound, program: GraphProgram, call: Call) -> list[Array]:
    """Runs a sample (inputs given to `quantize`) on a compiled net; returns the outputs in the order of the
    net's results.

    bound: the compiled net with its parameters.
    program: the program, which has the order of the results.
    call: the sample as a call.
    """
    return in_order(program, bound(call))
