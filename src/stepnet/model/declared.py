"""A recurrence as declared, and a cache of its programs, one for each kind of inputs.

    step, params, memory=64   --(inputs, statics)-->   traced step   -->   program

Calls, streams, layers and outer steps get their programs here.
"""

from dataclasses import replace
from typing import Any, Self, Unpack

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.plan.passes.narrow import check_narrow
from stepnet.compiler.trace.spec import ARGUMENTS, Step, TracedStep, specs, traced_step
from stepnet.compiler.values.arguments import (
    argument_names,
    check_signature,
    checked_integer,
    choice,
    flag,
    function,
    is_module,
    unknown_argument,
)
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.structure import leaves, skeleton, titled_leaves
from stepnet.errors import ArgumentError, InputError
from stepnet.model.batch import Batch
from stepnet.model.control import MASKED, Control, Controls, Until
from stepnet.model.initial import initial_arrays
from stepnet.model.model import Model
from stepnet.model.program import StepProgram, own_parameters
from stepnet.model.programs import Programs
from stepnet.model.reading import Reading, call_of
from stepnet.model.specs import arranged_as, check_inputs, with_dtypes
from stepnet.model.statics import Statics

MOST_UNROLLED = 64
UNKNOWN_INPUTS = "the inputs are not known yet: call the RNN once, or make it with inputs="
POSITIONS = "an RNN is made with step and params, and with all others by name, as memory=64"
OF_PYTORCH = (
    "{} is a module of PyTorch, and a step of RNN uses NumPy's functions: give the module to "
    "stepnet.torch.trace, or, to train it there, to stepnet.torch.Recurrence"
)
LEVELS_OF_STATIC = (
    "the static {} has levels=, which are of inputs: a static that is a sequence has a name for its axis, as "
    "Spec(64, axis='keys'); statics of the same lengths have the same name"
)
MEANT_OF_RNN: dict[str, str] = {
    **dict.fromkeys(
        ("hidden", "hidden_size", "units", "state", "state_size"), "the features of the memory are memory=64"
    ),
    **dict.fromkeys(
        ("input_size", "input_shape", "features", "input"), "the features of the inputs are inputs=64"
    ),
    **dict.fromkeys(("go_backwards", "backward"), "reverse=True runs a sequence from its last step"),
    **dict.fromkeys(
        ("engine", "mask", "masked", "lengths", "initial", "last_only", "begun", "time_major"),
        "it is an argument of a call of the recurrence, rnn(sequences, ...)",
    ),
    **dict.fromkeys(("weights", "parameters"), "the parameters are params="),
}
"""Advice for arguments that RNN lacks, by their names."""
MASKED_IS = f"masked is {' or '.join(map(repr, MASKED))}"


class Declared(Model):
    """A recurrence as declared, with its programs. `RNN` adds the ways to run it, and documents the
    arguments.

    precision: the precision that `quantize` chose; else None.
    arguments: the names of the step's own parameters for inputs, memory and parameters, for messages.
    """

    precision: Precision | None = None

    def __init__(
        self,
        step: Step,
        params: Any = None,
        *others: Any,
        memory: Any = None,
        inputs: Any = None,
        statics: Any = None,
        reverse: bool = False,
        unroll: int = 1,
        until: Until | None = None,
        **unknown: Any,
    ) -> None:
        """Checks and stores the arguments, which `RNN` documents; traces the step if `inputs` is given.
        Raises `InputError` for arguments that do not fit, such as no memory, and `ArgumentError` for more
        than two by position, and for one by another name.
        """
        if others:
            raise ArgumentError(POSITIONS)
        if unknown:
            raise unknown_argument("RNN", Declared.__init__, unknown, MEANT_OF_RNN)
        function(step, "step is a function step(x, memory, params)")
        if is_module(step):
            raise InputError(OF_PYTORCH.format(type(step).__name__))
        if until is not None:
            function(until, "until is a function until(output, memory)")
            check_signature(until, ("output", "memory"))
        self.step, self.arguments = step, argument_names(step, ARGUMENTS)
        self.params = own_parameters(params, self.arguments[2])
        if memory is None or not leaves(memory := specs(memory)):
            raise InputError("a recurrence carries a memory from step to step; give its features: memory=64")
        self.memory = memory
        self.reverse = flag(reverse, "reverse")
        self.unroll = checked_integer(
            unroll, f"unroll is a number of steps from 1 to {MOST_UNROLLED}", 1, MOST_UNROLLED
        )
        self.until = until
        self.programs: Programs[StepProgram] = Programs()
        self.inputs, self.statics = specs(inputs), specs(statics)
        for name, spec in titled_leaves(self.statics, "statics"):
            if spec.levels:
                raise InputError(LEVELS_OF_STATIC.format(name))
        if inputs is not None:
            self.program_of(self.inputs, self.statics)

    def with_step(self, step: Step) -> Self:
        """Returns a copy with another step, such as one that records its values, to trace it anew.

        The copy has no declared statics (values that each sequence has once) and no programs.
        """
        made = object.__new__(type(self))
        anew = {"arguments": argument_names(step, ARGUMENTS), "programs": Programs[StepProgram]()}
        vars(made).update(vars(self) | {"step": step, "statics": None} | anew)
        return made

    @property
    def program(self) -> StepProgram:
        """The compiled program for the latest inputs; raises `InputError` before inputs are known."""
        return self.programs.known(UNKNOWN_INPUTS)

    @property
    def known_inputs(self) -> Any:
        """The `Spec`s of the latest or declared inputs; None before inputs are known."""
        return None if (latest := self.programs.latest) is None else latest.traced.inputs

    def as_declared(self, inputs: Any) -> Any:
        """Returns inputs with dicts in the declared order, so that their leaves correspond."""
        return arranged_as(inputs, self.inputs)

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool = False,
        **control: Unpack[Controls],
    ) -> Reading[StepProgram]:
        """Checks the arguments of a call; returns their arrays, with the program for these dtypes and
        features. Raises `InputError` if wrong.

        It takes the arguments of `Model.__call__`. A step under a mask, or with a condition `until` that ends
        sequences early, has further memories, which start from zeros.
        """
        mask, masked = control.get("mask"), control.get("masked", "repeat")
        check_masked(masked)
        time_major = flag(control.get("time_major", False), "time_major")
        x, memory, _ = self.arguments
        batch = Batch.of(self.as_declared(sequences), lengths, time_major, argument=x)
        checked_statics = Statics.of(statics, batch.count)
        program = self.program_for(batch, checked_statics)
        running = self.under(Control(None if mask is None else masked, self.until), program)
        memories = initial_arrays(initial, program.memory, batch.count, memory)
        memories += [None] * (running.memories - len(memories))
        call = call_of(batch, memories, [checked_statics], last_only, mask, control.get("begun"))
        return Reading(batch, program, running, call, self.until is not None)

    def under(self, control: Control, program: StepProgram) -> StepProgram:
        """Returns the program of the step with a mask or an early end (a condition `until`), made at first
        use.

        control: the mask and the early end to add to the step; without either, `program` is returned.
        program: the program of the step itself.
        """
        if not control:
            return program
        if control.masked not in program.controlled:
            traced = control.around(self.step, program.traced)
            program.controlled[control.masked] = StepProgram(traced, self.reverse, self.unroll)
        return program.controlled[control.masked]

    def program_for(self, batch: Batch, statics: Statics) -> StepProgram:
        """Returns the program for a batch and its statics (values that each sequence has once), looked up by
        dtypes, features and levels of nested sequences.
        """

        def made() -> StepProgram:
            """Checks the inputs against the declared ones, and traces the step for them."""
            check_inputs(self.inputs, batch.specs, argument=self.arguments[0])
            return self.program_of(batch.specs, statics.specs)

        return self.programs.for_arrays((*batch.key, *statics.key), made)

    def traced_for(self, inputs: Any, statics: Any) -> TracedStep:
        """Returns the traced step for inputs and statics of these `Spec`s, to run it inside another step.

        The program of an earlier call stays the latest one.

        inputs, statics: the structures of the inputs and of the values that each sequence has once, with a
            `Spec` (features and dtype) for each value.
        """
        latest = self.programs.latest
        check_inputs(self.inputs, inputs, argument=self.arguments[0])
        program = self.program_of(inputs, statics)
        self.programs.latest = latest or program
        return program.traced

    def program_of(self, inputs: Any, statics: Any) -> StepProgram:
        """Returns the program for inputs and statics (values that each sequence has once) of these `Spec`s
        (features, dtypes); traces it once.

        Raises `InputError` for a quantized recurrence that has no product of float32 values for these inputs.
        """
        inputs = with_dtypes(inputs, leaves(self.params))
        key = (skeleton(inputs), *leaves(inputs), skeleton(statics), *leaves(statics))

        def made() -> StepProgram:
            """Traces the step for inputs and statics (values that each sequence has once) of these kinds, and
            makes its program; for one in low precision, raises `InputError` if it has no product of float32
            values.
            """
            memory, static_specs = (
                with_dtypes(part, leaves(self.params), inputs) for part in (self.memory, statics)
            )
            with paused_collector():
                traced = traced_step(self.step, inputs, memory, static_specs, self.params)
            program = StepProgram(replace(traced, precision=self.precision), self.reverse, self.unroll)
            if self.precision is not None:
                check_narrow(program.net)
            return program

        return self.programs.for_specs(key, made)


def check_masked(masked: Any) -> None:
    """Raises `InputError` unless the argument `masked` of a call is "repeat" or "zero"."""
    choice(masked, MASKED_IS, MASKED)
