"""A graph as the step of one recurrence, which a stream runs."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from stepnet.compiler.targets import Order
from stepnet.model.batch import arranged_as
from stepnet.model.graph.programs import GraphPrograms
from stepnet.model.program import Program, StepProgram
from stepnet.model.streams.composed import check_engines, composed


@dataclass(frozen=True)
class GraphStep:
    """A graph in the form of a recurrence, which a stream runs step by step.

    programs: the programs of the graph.
    engine: the engines that were requested.
    made: by the id of a program of the graph, this program and that of its step.
    """

    noun: ClassVar[str] = "graph"
    programs: GraphPrograms
    engine: Order
    made: dict[int, tuple[Program, StepProgram]] = field(
        default_factory=dict[int, tuple[Program, StepProgram]]
    )

    @property
    def inputs(self) -> Any:
        """The `Spec`s (features and dtypes) of the inputs that the graph was declared with, or None."""
        return self.programs.inputs

    @property
    def params(self) -> Any:
        """The parameters of the graph, in their structure."""
        return self.programs.params

    def as_declared(self, inputs: Any) -> Any:
        """Returns inputs with their dicts in the order of the declared inputs, so that their leaves
        correspond.
        """
        return arranged_as(inputs, self.inputs)

    def program_of(self, inputs: Any, statics: Any) -> StepProgram:
        """Returns the program of a step for inputs and statics of these `Spec`s (features and dtypes).

        It is made at first use. Raises `InputError` if the model has no stream, or if the engine of the step
        is not that of calls.
        """
        self.programs.check_model()
        program = self.programs.program_of(inputs, statics)
        if id(program) not in self.made:
            output = program.traced.output
            schedule = program.schedule_for(self.engine)
            step = composed(schedule, inputs, statics, program.params, output)
            check_engines(schedule, step.schedule, self.engine)
            self.made[id(program)] = program, step
        return self.made[id(program)][1]
