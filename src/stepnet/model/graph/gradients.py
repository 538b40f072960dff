"""The gradient source of a graph: its arguments as the inputs of a net."""

from typing import cast

from stepnet.compiler.values.structure import leaves
from stepnet.errors import InputError
from stepnet.model.declared import same_parameters
from stepnet.model.gradients import CallArguments, Places, UncheckedCall, arrays_of
from stepnet.model.graph.programs import GraphProgram, GraphPrograms
from stepnet.model.program import Program
from stepnet.model.reading import Reading


class ModelSource:
    """A graph in the form that `vjp` and `value_and_grad` differentiate.

    Arrays that the model captures are constants and have no gradient.
    """

    kinds = ("params", "inputs", "statics")
    ends_early = False

    def __init__(self, programs: GraphPrograms) -> None:
        """Stores the programs of the graph, from which `read` takes the one for a call."""
        self.programs = programs

    def read(self, call: UncheckedCall) -> CallArguments:
        """Checks the arguments of a call; raises `InputError` if they do not fit or belong to layers."""
        check_no_layers(call)
        time_major = call.control.get("time_major", False)
        reading = self.programs.read(call.sequences, call.statics, call.lengths, time_major)
        program, own = reading.program, self.programs.params
        held = own if call.params is None else same_parameters(call.params, own)
        captured = program.params[len(leaves(own)) :]
        arrays = arrays_of(program.ends, reading.call, [*leaves(held), *captured])
        structures = {"params": held, "inputs": reading.batch.structure, "statics": call.statics}
        reading = cast("Reading[Program]", reading)
        return CallArguments(reading, arrays, self.places(program), structures, gives_final=False)

    def blank(self) -> tuple[Program, Places]:
        """Returns the latest program and its inputs' positions by kind; raises `InputError` without one."""
        return self.programs.program, self.places(self.programs.program)

    def places(self, program: GraphProgram) -> Places:
        """Returns the positions of a program's inputs by kind: "params", "inputs" and "statics".

        A static with which a recurrence begins is a memory of the net. Captured arrays are of no kind.
        """
        ends = program.ends
        return {
            "params": ends.parameters[: len(leaves(self.programs.params))],
            "inputs": ends.sequences,
            "statics": tuple(sorted((*ends.memories, *ends.statics))),
        }


def check_no_layers(call: UncheckedCall) -> None:
    """Raises `InputError` for arguments of a call that only layers take, such as `initial`."""
    control = {name: value for name, value in call.control.items() if name != "time_major"}
    of_layers = {"initial": call.initial, "last_only": call.last_only or None, **control}
    for name, value in of_layers.items():
        if value is not None:
            raise InputError(
                f"{name}= is for layers, not for a graph: the model itself says how its recurrences run, "
                "and may take what they begin with from its statics"
            )
