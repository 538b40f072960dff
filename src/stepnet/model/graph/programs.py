"""The programs of a graph: one for each combination of input types, and the calls of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.precision import Precision
from stepnet.compiler.plan.groups import flat_recurrences
from stepnet.compiler.plan.passes.narrow import check_narrow
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order, checked_engine, engines_of, order_of
from stepnet.compiler.targets.assignment import assign_engines
from stepnet.compiler.values.arguments import flag
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.structure import leaves, skeleton
from stepnet.model.batch import Batch, Statics, check_inputs, with_default_dtypes, with_dtypes
from stepnet.model.graph.trace import ModelFunction, TracedModel, trace_model
from stepnet.model.nets import call_on
from stepnet.model.program import Asked, Program
from stepnet.model.programs import Programs
from stepnet.model.reading import Reading, call_of

UNKNOWN_INPUTS = "the inputs are not known yet: call the graph once, or make it with inputs="


class GraphProgram(Program):
    """The program of a graph; its schedule depends on the requested engines."""

    def __init__(self, traced: TracedModel, params: Any) -> None:
        """Makes the program of a traced model; the schedules for engines are made at first use.

        The caller of a graph passes and gets no memories, so it has none.

        params: the model's parameters, which precede the arrays that it captures.
        """
        super().__init__(traced.net, traced.output, (), (), 0, [*leaves(params), *traced.captured])
        self.traced = traced
        self.placed = dict[tuple[str, ...], Schedule]()

    @computed_once
    def schedule(self) -> Schedule:
        """The schedule for `engine="auto"`: the parts of the net with their plans."""
        return self.schedule_for("auto")

    def schedule_for(self, asked: Order) -> Schedule:
        """Returns the schedule for the requested engines: each part of the net runs on the first that
        supports it.

        asked: an engine, or several in order of preference.
        """
        order = order_of(asked)
        if order not in self.placed:
            self.placed[order] = assign_engines(self.net, engines_of(order))
        return self.placed[order]


def in_precisions(net: Net, marks: Mapping[int, Precision]) -> Net:
    """Returns a copy of a net in which some of its recurrences run in other precisions.

    marks: these precisions, by the numbers of the recurrences' nodes.
    """
    builder, places = Builder(is_model=True), list[int]()
    for number, node in enumerate(net.nodes):
        operands = [places[operand] for operand in node.inputs]
        changed = {"precision": marks[number]} if number in marks else {}
        places.append(builder.copy(node, operands, **changed))
    return builder.net([places[result] for result in net.results])


def marked(traced: TracedModel, precisions: Sequence[Precision]) -> TracedModel:
    """Returns a copy of a traced model whose recurrences run in these precisions.

    precisions: one for each recurrence that can have one (over flat sequences), in the order of the net. With
        none the model itself is returned.
    """
    if not precisions:
        return traced
    marks = zip(sorted(flat_recurrences(traced.net)), precisions, strict=True)
    return replace(traced, net=in_precisions(traced.net, dict(marks)))


class GraphPrograms:
    """The programs of a graph, one for each kind of inputs so far.

    inputs, statics: the declared `Spec`s (features and dtypes), or None.
    precisions: the precision of each recurrence of the model; empty for a model that is not quantized.
    """

    def __init__(
        self,
        model: ModelFunction,
        params: Any,
        inputs: Any,
        statics: Any,
        precisions: tuple[Precision, ...] = (),
    ) -> None:
        """Stores what a graph was made with, and traces the model if `inputs` is given.

        inputs, statics: the declared `Spec`s (features and dtypes), or None.
        precisions: the precision of each recurrence, as `quantize` chose them; empty for none.
        """
        self.model, self.params, self.inputs, self.statics = model, params, inputs, statics
        self.precisions = precisions
        self.programs = Programs[GraphProgram]()
        if inputs is not None:
            inputs = with_dtypes(inputs, leaves(params))
            self.program_of(inputs, with_default_dtypes(statics, inputs, leaves(params)))

    @property
    def program(self) -> GraphProgram:
        """The program for the latest inputs; raises `InputError` before inputs are known."""
        return self.programs.known(UNKNOWN_INPUTS)

    def program_of(self, inputs: Any, statics: Any) -> GraphProgram:
        """Returns the program for inputs and statics of these `Spec`s (features, dtypes); traces it once."""

        def made() -> GraphProgram:
            """Traces the model for these inputs and statics, and makes its program."""
            check_inputs(self.inputs, inputs, owner="graph")
            check_inputs(self.statics, statics, "static", "graph")
            traced = trace_model(self.model, inputs, statics, self.params)
            program = GraphProgram(marked(traced, self.precisions), self.params)
            check_narrow(program.net)
            return program

        key = (skeleton(inputs), *leaves(inputs), skeleton(statics), *leaves(statics))
        return self.programs.for_specs(key, made)

    def read(
        self, sequences: Any, statics: Any = None, lengths: Any = None, time_major: bool = False
    ) -> Reading[GraphProgram]:
        """Checks the arguments of a call of the graph; returns them with the program that runs them.

        Raises `InputError` for arguments that do not fit.
        """
        self.check_model()
        batch = Batch.of(sequences, lengths, flag(time_major, "time_major"))
        checked_statics = Statics.of(statics, batch.count)
        key = *batch.key, *checked_statics.key
        program = self.programs.for_arrays(key, lambda: self.program_of(batch.specs, checked_statics.specs))
        call = call_of(batch, [], [checked_statics], False, None, None)
        # A static with which a recurrence begins is an initial memory of the net.
        call = call_on(program, [*batch.arrays, *checked_statics.arrays, *program.params], call, None)
        return Reading(batch, program, program, call, ends=False)

    def run(self, sequences: Any, statics: Any, lengths: Any, engine: Asked, time_major: bool) -> Any:
        """Runs a call of the graph; returns the outputs.

        Without statics and lengths, a call that was prepared for such arguments is run if there is one.

        sequences, statics, lengths, engine, time_major: the arguments of the call.
        """
        self.check_model()
        programs, form = self.programs, None
        if statics is None and lengths is None:
            form, results = programs.prepared(sequences, None, False, engine, "repeat", time_major)
            if results is not None:
                return results[0]
        reading = self.read(sequences, statics, lengths, time_major)
        return reading.run(checked_engine(engine), programs.calls, form)[0]

    def check_model(self) -> None:
        """Raises `InputError` for a model that has changed since it was traced, as a module may."""
        if (check := getattr(self.model, "check_unchanged", None)) is not None:
            check()

    def with_params(self, params: Any) -> "GraphPrograms":
        """Returns a copy with other parameters of the model, which shares plans and machine code."""
        return self.changed(
            params,
            self.precisions,
            lambda program: program.with_params((params, program.traced.captured)),
        )

    def in_precisions(self, precisions: tuple[Precision, ...]) -> "GraphPrograms":
        """Returns a copy whose recurrences run in these precisions, which `quantize` chose."""
        return self.changed(
            self.params,
            precisions,
            lambda program: GraphProgram(marked(program.traced, precisions), self.params),
        )

    def changed(
        self,
        params: Any,
        precisions: tuple[Precision, ...],
        change: Callable[[GraphProgram], GraphProgram],
    ) -> "GraphPrograms":
        """Returns a copy with other parameters and precisions, and a changed copy of each program so far.

        params: the parameters of the copy.
        precisions: the precision of each recurrence, in the order of the net; empty for float32.
        change: makes the copy's program from a program of the original.
        """
        made = GraphPrograms(self.model, params, None, None, precisions)
        made.inputs, made.statics = self.inputs, self.statics
        made.programs = self.programs.changed(change)
        return made
