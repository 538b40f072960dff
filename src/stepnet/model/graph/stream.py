"""A graph as the step of one recurrence: for streams, generation, and calls that memories are given to."""

from collections import OrderedDict
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from stepnet.compiler.net.ir import Builder, ancestors
from stepnet.compiler.plan.passes.narrow import any_low
from stepnet.compiler.targets import Order
from stepnet.compiler.trace.spec import Spec, TracedStep
from stepnet.compiler.trace.traced import Traced, builder_of
from stepnet.compiler.values.once import computed_once, entry_of
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild
from stepnet.errors import InputError
from stepnet.model.batch import Batch
from stepnet.model.control import UncheckedCall
from stepnet.model.gradients.arguments import without_control
from stepnet.model.graph.programs import GraphProgram, GraphPrograms
from stepnet.model.nets import call_on
from stepnet.model.program import Program, StepProgram
from stepnet.model.reading import Reading
from stepnet.model.recurrence import RNN
from stepnet.model.specs import arranged_as, check_inputs
from stepnet.model.statics import Statics
from stepnet.model.streams.composed import check_engines, composed

NO_MEMORY = Spec((), "bool")
"""The memory of the recurrence that a graph without memories becomes, which stays as it is."""


@dataclass(frozen=True)
class ComposedStep:
    """The step that computes a step of a graph, as a function.

    traced: the net of the step of the whole graph.
    name: the name of the model function.
    """

    traced: TracedStep
    name: str

    @property
    def __name__(self) -> str:
        """The name of this object, which stands for a function, in messages."""
        return self.name

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """Adds one step of the whole graph to the net of its arguments; returns the output and the next
        memory. The arguments are values of a net that is traced, in their structures.
        """
        body, carried = self.traced.body, memory if leaves(self.traced.memory) else ()
        given = [*leaves(x), *leaves(carried), *leaves(statics), *leaves(params)]
        builder = builder_of(given)
        places = dict(zip(body.inputs, [leaf.number for leaf in given], strict=True))
        for place, node in enumerate(body.nodes):
            if place not in places:
                places[place] = builder.copy(node, [places[operand] for operand in node.inputs])
        results = [Traced(builder, places[result]) for result in body.results]
        count = len(leaves(self.traced.output))
        after = rebuild(carried, results[count:]) if results[count:] else memory
        return rebuild(self.traced.output, results[:count]), after


@dataclass(frozen=True)
class ComposedProgram:
    """The program of one step of a graph, as `GraphStep` caches it.

    whole: the program of the graph. step: the program of one step of the graph.
    name: the name of the model function.
    engine: the engines that were requested.
    """

    whole: GraphProgram
    step: StepProgram
    name: str
    engine: Order

    @computed_once
    def recurrence(self) -> RNN:
        """The graph as one recurrence, an `RNN` with the outputs of a stream, and its state as the memory."""
        traced = self.step.traced
        return RNN(
            ComposedStep(traced, self.name),
            traced.params,
            memory=traced.memory if leaves(traced.memory) else NO_MEMORY,
            inputs=traced.inputs,
            statics=traced.statics,
        )

    @property
    def read_at_the_beginning(self) -> list[str]:
        """The names of the statics (values that each sequence has once) that the initial memories of the
        graph are computed from; none if these are zeros.
        """
        traced, builder = self.step.traced, Builder()
        if self.step.begin is None:
            return []
        inputs = [
            builder.input(traced.body.type_of(n), traced.body.nodes[n].name) for n in traced.body.inputs
        ]
        read = ancestors(builder.nodes, self.step.begin.add_to(builder, inputs).values())
        names = [name for name, _ in named_leaves(traced.statics)]
        first = len(inputs) - len(traced.params) - len(names)
        return [name for place, name in enumerate(names, first) if inputs[place] in read]

    @computed_once
    def differentiable(self) -> "ComposedProgram":
        """A copy of this program of a graph's step that has a gradient, with the same memory."""
        traced, whole = self.step.traced, self.whole
        schedule = whole.schedule_for(self.engine)
        given = traced.inputs, traced.statics, whole.params, whole.output
        return replace(self, step=composed(schedule, *given, differentiable=True))

    def gradient_reading(self, call: UncheckedCall, ends: tuple[bool, ...]) -> Reading[Program]:
        """Checks the arguments of a call whose gradient is taken; returns them with the program whose net is
        differentiated: the whole graph written as one loop over steps, with the recurrent states of all its
        layers as memories.

        Without `initial` that net computes the memories with which the graph begins, so that these have
        gradients too. Raises `InputError` for arguments that do not fit, and for a quantized graph.

        ends: for each output, whether the result is that of the last step alone.
        """
        if any_low(self.whole.net):
            raise InputError(
                "initial=, mask= and begun= are not for the gradient of a quantized graph: take that of the "
                "graph that `quantize` was given"
            )
        made, count = self.differentiable, len(leaves(self.step.memory))
        initial = call.initial if count else None
        reading = made.recurrence.read(call.sequences, initial, call.statics, call.lengths, **call.control)
        own, given, count = reading.program, reading.call, 0 if initial is None else count
        masked = None if reading.running is own else call.control.get("masked", "repeat")
        if (masked, ends, count) not in own.gradients:
            begin = made.step.begin if initial is None else None
            program = without_control(own, reading.running, ends, count, begin=begin)
            own.gradients[masked, ends, count] = program
        program = own.gradients[masked, ends, count]
        arrays = [*given.sequences, *given.initial[:count], *given.statics, *program.params]
        return Reading(reading.batch, program, program, call_on(program, arrays, given, None), ends=False)


@dataclass(frozen=True)
class GraphStep:
    """A graph in the form of a recurrence, which a stream runs step by step.

    programs: the programs of the graph.
    engine: the engines that were requested.
    name: the name of the model function.
    made: by the id of a program of the graph, this program and that of its step.
    """

    noun: ClassVar[str] = "graph"
    programs: GraphPrograms
    engine: Order
    name: str
    made: OrderedDict[int, ComposedProgram] = field(default_factory=OrderedDict[int, ComposedProgram])

    @property
    def memory(self) -> Any:
        """None: a graph declares no memory, which follows from its inputs."""
        return None

    @property
    def known_inputs(self) -> Any:
        """The `Spec`s of the latest or declared inputs of the graph; None before inputs are known."""
        return None if (latest := self.programs.latest) is None else latest.traced.inputs

    @property
    def inputs(self) -> Any:
        """The `Spec`s (features and dtypes) of the inputs that the graph was declared with, or None."""
        return self.programs.inputs

    @property
    def params(self) -> Any:
        """The parameters of the graph, in their structure."""
        return self.programs.params

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of inputs, memory and parameters in messages; inputs of a graph have none."""
        return "", "memory", "params"

    def as_declared(self, inputs: Any) -> Any:
        """Returns inputs with dicts in the declared order, so that their arrays correspond in order."""
        return arranged_as(inputs, self.inputs)

    def program_of(self, inputs: Any, statics: Any) -> StepProgram:
        """Returns the program of a step for inputs and statics (values that each sequence has once) of these
        `Spec`s (features and dtypes).

        It is made at first use. Raises `InputError` if the model has no stream, or if the engine of the step
        is not that of calls.
        """
        return self.composed_for(inputs, statics).step

    def composed_for(self, inputs: Any, statics: Any) -> ComposedProgram:
        """Returns the program of the graph for inputs and statics (values that each sequence has once) of
        these `Spec`s (features and dtypes), with the recurrence whose step is one step of the whole graph;
        made once. Raises an error if that would run on another engine than the calls do.
        """
        self.programs.check_model()
        program = self.programs.program_of(inputs, statics)

        def make() -> ComposedProgram:
            """Makes the program of one step of the whole graph; raises `InputError` if it would run on
            another engine than a call on whole sequences.
            """
            schedule = program.schedule_for(self.engine)
            step = composed(schedule, inputs, statics, program.params, program.traced.output)
            check_engines(schedule, step.schedule_for(self.engine), self.engine)
            return ComposedProgram(program, step, self.name, self.engine)

        return entry_of(self.made, id(program), make)

    def recurrence(self, batch: Batch, statics: Statics, initial: Any) -> tuple[RNN, Any]:
        """Returns the graph as one recurrence, and the memory that a call begins with; None for zeros.

        Raises `InputError` as `program_of` does.

        batch, statics: the sequences and statics (values that each sequence has once) of the call.
        initial: its argument; None for the memory with which the graph itself begins.
        """
        check_inputs(self.inputs, batch.specs, owner=self.noun)
        made = self.composed_for(batch.specs, statics.specs)
        rnn, program, specs = made.recurrence, made.step, leaves(made.step.memory)
        if initial is not None or program.begin is None:
            return rnn, initial if specs else None
        own = program.begin.memories(statics.arrays, batch.count, self.engine)
        zeros = [np.zeros((batch.count, *spec.shape), spec.dtype) for spec in specs]
        return rnn, rebuild(program.memory, [own.get(place, zero) for place, zero in enumerate(zeros)])
