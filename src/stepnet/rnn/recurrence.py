"""A step run over sequences of any length: `RNN`, and `scan`."""

from collections import OrderedDict
from functools import partial
from typing import Any, TypeVar

import numpy as np

from stepnet.engines import Call, checked_engine
from stepnet.errors import InputError
from stepnet.net.ir import Net
from stepnet.net.types import own_copy
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Schedule
from stepnet.rnn import nested
from stepnet.rnn.batch import Batch, Statics, begun_steps, checked_array, initial_arrays
from stepnet.rnn.control import MASKED, Control, Controls, Until, mask_array
from stepnet.rnn.explain import explain
from stepnet.rnn.frozen import FrozenCalls
from stepnet.rnn.program import Asked, Program, StepProgram
from stepnet.rnn.reading import Reading
from stepnet.rnn.scopes import Scopes, step_scopes
from stepnet.rnn.stream import Stream
from stepnet.trace.lines import refuse
from stepnet.trace.step import Spec, Step, TracedStep, specs, trace_step
from stepnet.values.arguments import array_of, choice, dtype_name, flag, function, is_array, whole
from stepnet.values.dtypes import promoted_float
from stepnet.values.structure import arranged, leaves, named_leaves, skeleton, transform

Array = np.ndarray
Kept = TypeVar("Kept", bound=Program)
MOST_UNROLLED = 64
MOST_TRACES = 32
"""How many kinds of inputs a recurrence keeps the traces of."""
NO_END = "a step with until= gives one value per row; one of its outputs is a sequence"
MASKED_IS = f"masked is {' or '.join(map(repr, MASKED))}"


class RNN:
    """A recurrence: `outputs, final = rnn(sequences)`.

    Args:
        step: step(x, memory, params) -> (output, memory), each an array [rows, features...] or a nested dict,
            tuple or namedtuple of such arrays. A step with parameters named `statics` or `index` gets them
            too: values that each sequence has once, and how many steps of the sequence came before.
        params: The parameters, arrays in any structure. They are copied here. Arrays that the step captures
            are copied when it is traced.
        memory: The features of the memory: 64, (4, 16), {"h": 64, "c": 64} or `Spec`s. The dtype is the
            promoted floating dtype of inputs and parameters, unless a `Spec` has another.
        inputs: The features of the inputs, likewise. Without it they are known at the first call.
        statics: The features of the statics, likewise.
        reverse: Whether each sequence runs from its own last step to its first.
        unroll: How many steps the code of the loop holds one after the other. Results do not depend on it.
        until: A function of a step's output and next memory that returns a bool per row. A sequence ends with
            the first step for which it is True, that step included. The outputs are then a shorter `Ragged`,
            whatever the inputs are.

    Raises:
        InputError: For arguments that are not as said.
        StepError: For a step that does what no step can; at the first call if `inputs` is not given.

    >>> import stepnet as sn
    >>> def step(x, h, params):
    ...     h = np.tanh(x @ params["W"] + h @ params["R"])
    ...     return h, h
    >>> ones = {"W": np.ones((1, 2), "float32"), "R": np.zeros((2, 2), "float32")}
    >>> rnn = sn.RNN(step, ones, memory=2)
    >>> outputs, final = rnn(sn.Ragged.from_list([np.zeros((3, 1), "float32"), np.ones((1, 1), "float32")]))
    >>> outputs.to_list()[1].round(2)
    array([[0.76, 0.76]], dtype=float32)
    >>> final.round(2)
    array([[0.  , 0.  ],
           [0.76, 0.76]], dtype=float32)
    """

    def __init__(
        self,
        step: Step,
        params: Any = None,
        *,
        memory: Any,
        inputs: Any = None,
        statics: Any = None,
        reverse: bool = False,
        unroll: int = 1,
        until: Until | None = None,
    ) -> None:
        function(step, "step is a function step(x, memory, params)")
        if until is not None:
            function(until, "until is a function until(output, memory)")
        self.step = step
        self.params = transform(parameter, params)
        self.memory = specs(memory)
        if not leaves(self.memory):
            raise InputError("a recurrence carries a memory from step to step; give its features: memory=64")
        self.reverse = flag(reverse, "reverse")
        self.unroll = whole(
            unroll, f"unroll is a number of steps from 1 to {MOST_UNROLLED}", 1, MOST_UNROLLED
        )
        self.until = until
        self._programs: OrderedDict[Any, StepProgram] = OrderedDict()
        self._seen: OrderedDict[Any, StepProgram] = OrderedDict()
        self._latest: StepProgram | None = None
        self._frozen = FrozenCalls[StepProgram]()
        self.inputs, self.statics = specs(inputs), specs(statics)
        if inputs is not None:
            self._latest = self.program_of(self.inputs, self.statics)

    # ---- looking at it

    @property
    def program(self) -> StepProgram:
        """What runs the latest kind of inputs; raises `InputError` before the inputs are known."""
        if self._latest is None:
            raise InputError("the inputs are not known yet: call the RNN once, or make it with inputs=")
        return self._latest

    @property
    def net(self) -> Net:
        """The net of the whole recurrence, as traced."""
        return self.program.net

    @property
    def plan(self) -> Plan:
        """What is done once, before, in and after the loop; raises `InputError` where there are several."""
        return self.program.plan

    @property
    def schedule(self) -> Schedule:
        """The parts that run one after the other: one, unless recurrences are nested."""
        return self.program.schedule

    def explain(self, engine: Asked = "auto") -> str:
        """The plan as text for people: what runs when, its flops and bytes, and the engine."""
        return explain(self.schedule, checked_engine(engine))

    def __reduce__(self) -> tuple[Any, ...]:
        """What it was made of: a copy, or one in another process, traces and compiles anew."""
        made = partial(
            RNN,
            memory=self.memory,
            inputs=self.inputs,
            statics=self.statics,
            reverse=self.reverse,
            unroll=self.unroll,
            until=self.until,
        )
        return made, (self.step, self.params)

    def with_params(self, params: Any) -> "RNN":
        """The same recurrence with other parameters, in the structure, shapes and dtypes of its own.

        Nothing is traced, planned or compiled anew; the parameters are copied and packed at the first call.
        Arrays that the step captures are those that it captured. Raises `InputError` for other shapes.

        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, p: (x * p, h), np.ones(1, "float32"), memory=1)
        >>> doubled = rnn.with_params(np.full(1, 2, "float32"))
        >>> x = np.ones((1, 2, 1), "float32")
        >>> rnn(x)[0].sum(), doubled(x)[0].sum()
        (np.float32(2.0), np.float32(4.0))
        """
        made = object.__new__(type(self))
        made.__dict__.update(vars(self))
        made.params = same_parameters(params, self.params)
        latest = [] if self._latest is None else [self._latest]
        programs = {id(one): one for one in [*self._programs.values(), *self._seen.values(), *latest]}
        new = {key: program.with_params(made.params) for key, program in programs.items()}
        for name in ("_programs", "_seen"):
            pairs = ((key, new[id(program)]) for key, program in getattr(self, name).items())
            setattr(made, name, OrderedDict(pairs))
        made._latest = None if self._latest is None else new[id(self._latest)]
        made._frozen = FrozenCalls[StepProgram]()
        return made

    def __repr__(self) -> str:
        name = getattr(self.step, "__name__", type(self.step).__name__)
        return f"RNN({name}, memory={skeleton(self.memory)}{', reverse=True' if self.reverse else ''})"

    # ---- running it

    def __call__(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        engine: Asked = "auto",
        *,
        mask: Any = None,
        masked: str = "repeat",
        begun: Any = None,
        time_major: bool = False,
    ) -> tuple[Any, Any]:
        """The outputs, and each sequence's own last memory.

        sequences: a `Ragged`, or an array [batch, time, features...] (with `lengths`, [batch], where they
        differ), or a structure of these as the step expects it. initial, statics: arrays [batch, features...]
        in the structure of the memory and of the statics. Outputs come as the input came: a Ragged for a
        Ragged, an array for an array (zeros beyond the lengths); with `last_only` an array of each sequence's
        last, zeros for an empty one.

        mask: a bool for each step, True where it counts, laid out as the inputs are. A step that does not
        count leaves the memory as it is; `masked` says what it gives: "repeat", the output of the step before
        it (zeros where none is), or "zero". begun: how many steps of each sequence were run before, which
        `index` counts on from; a whole number, or an array [batch]. time_major: arrays of sequences, the mask
        and outputs are [time, batch, ...] instead; they are read and written where they lie.
        """
        plain = statics is None and lengths is None and mask is None and begun is None and self.until is None
        key = self._frozen.key(sequences, last_only, engine, masked, time_major) if plain else None
        if key is not None and (done := self._frozen.run(key, sequences, initial)) is not None:
            self._latest, results = done
            return results
        asked, last_only = checked_engine(engine), flag(last_only, "last_only")
        sequences = self.as_declared(sequences)
        if nested.is_traced(sequences):
            if mask is not None or begun is not None or self.until is not None or time_major:
                raise refuse("mask=, begun=, until= and time_major= are not for a recurrence inside a step")
            if lengths is not None or asked != "auto":
                raise refuse(
                    "lengths= and engine= are not for a recurrence inside a step: its sequences know their "
                    "lengths, and it runs where the outer one does; give engine= to that one"
                )
            check_masked(masked)
            return nested.in_step(self, sequences, initial, statics, last_only)
        control: Controls = {"mask": mask, "masked": masked, "begun": begun, "time_major": time_major}
        given = self.read(sequences, initial, statics, lengths, last_only, **control)
        bound = given.running.bound(asked)
        if key is not None and self._frozen.is_due(key):
            self._frozen.freeze(key, given.program, bound, given.call, given.batch.like)
        return given.answer(bound)

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool = False,
        *,
        mask: Any = None,
        masked: str = "repeat",
        begun: Any = None,
        time_major: bool = False,
    ) -> Reading[StepProgram]:
        """What the arguments of a call are, checked; raises `InputError` for those that do not fit."""
        check_masked(masked)
        batch = Batch.of(sequences, lengths, flag(time_major, "time_major"))
        still = Statics.of(statics, batch.count)
        program = self.program_for(batch, still)
        running = self.under(Control(None if mask is None else masked, self.until), program)
        memories = initial_arrays(initial, program.memory, batch.count)
        call = Call(
            batch.arrays if mask is None else [*batch.arrays, mask_array(mask, batch.steps_like)],
            batch.starts,
            batch.lengths,
            batch.total,
            [*memories, *[None] * (running.memories - len(memories))],
            still.arrays,
            last_only,
            None if begun is None else begun_steps(begun, batch.count),
            batch.steps,
            batch.inner,
            still.beside,
        )
        return Reading(batch, program, running, call, self.until is not None)

    def under(self, control: Control, program: StepProgram) -> StepProgram:
        """The program of the step under control."""
        if not control:
            return program
        if control.masked not in program.controlled:
            traced = control.around(self.step, program.traced)
            program.controlled[control.masked] = StepProgram(traced, self.reverse, self.unroll)
        return program.controlled[control.masked]

    def stream(
        self,
        rows: int = 1,
        initial: Any = None,
        statics: Any = None,
        engine: Asked = "auto",
        *,
        begun: Any = None,
    ) -> Stream:
        """A stream of `rows` sequences side by side, to be stepped one step at a time: `stream.step(x)`.

        initial, statics, begun: as for a call. Raises `InputError` for one that runs from the last step.
        """
        return Stream(self, rows, initial, statics, engine, begun)

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        *,
        mask: Any = None,
        masked: str = "repeat",
        begun: Any = None,
        time_major: bool = False,
    ) -> Scopes:
        """Every named value of every step, for looking inside; the arguments are as for a call.

        `scopes["name"]` is a `Ragged` of a local variable of the step, of `inputs`, `before` and `after` (the
        memory), `statics` or `outputs`; `inputs.left` where there are several. A variable that is assigned
        more than once has its last value. One of a function that the step calls is `function.name`, from the
        last call; one that has a name of those above, `step.inputs`. What a recurrence inside the step has,
        `frames.h` and `frames.outputs` if it is called `frames`, are sequences at each step. Parameters, and
        statics that are sequences, are left out. At a step that `mask` leaves out variables have the values
        that are dropped there. `scopes.step(row, number)` gives all values of one step, and `print(scopes)`
        shows a table.
        """
        control: Controls = {"mask": mask, "masked": masked, "begun": begun, "time_major": time_major}
        return step_scopes(self, sequences, initial, statics, lengths, control)

    def as_declared(self, inputs: Any) -> Any:
        """Inputs with their dicts in the order in which the recurrence was told of them."""
        return inputs if self.inputs is None or is_array(inputs) else arranged(inputs, self.inputs)

    def program_for(self, batch: Batch, statics: Statics) -> StepProgram:
        """What runs inputs and statics like these, kept by their dtypes, features and levels."""
        key = *batch.key, *statics.key
        # A local, as other threads may trace other kinds of inputs meanwhile.
        program = self._seen.get(key)
        if program is None:
            check_inputs(self.inputs, batch.specs)
            program = self.program_of(batch.specs, statics.specs)
            keep(self._seen, key, program)
        self._latest = program
        return program

    def traced_for(self, inputs: Any, statics: Any) -> TracedStep:
        """The step traced for such inputs and statics."""
        latest = self._latest
        check_inputs(self.inputs, inputs)
        program = self.program_of(inputs, statics)
        self._latest = latest or program
        return program.traced

    def program_of(self, inputs: Any, statics: Any) -> StepProgram:
        """What runs inputs and statics of these `Spec`s."""
        inputs = with_dtypes(inputs, leaves(self.params))
        key = (skeleton(inputs), *leaves(inputs), skeleton(statics), *leaves(statics))
        program = self._programs.get(key)
        if program is None:
            default = default_dtype(
                [*(s.dtype for s in leaves(inputs)), *(p.dtype for p in leaves(self.params))]
            )
            memory = transform(lambda spec: Spec(spec.shape, spec.dtype or default), self.memory)
            statics = transform(lambda spec: Spec(spec.shape, spec.dtype or default, 0, spec.axis), statics)
            traced = trace_step(self.step, inputs, memory, statics, self.params)
            program = StepProgram(traced, self.reverse, self.unroll)
            keep(self._programs, key, program)
        self._latest = program
        return program


def keep(programs: OrderedDict[Any, Kept], key: Any, program: Kept) -> None:
    """Keeps a program for the next inputs of its kind, and lets the oldest of too many go."""
    programs[key] = program
    if len(programs) > MOST_TRACES:
        programs.popitem(last=False)


def scan(step: Step, initial: Any, xs: Any, params: Any = None, *, engine: Asked = "auto") -> tuple[Any, Any]:
    """The outputs and final memory of `step` over `xs`, from the memory `initial` of each sequence.

    xs: a Ragged or [batch, time, features...]; initial: arrays [batch, features...], which also say the
    memory's shapes and dtypes.
    """
    arrays = transform(lambda leaf: checked_array(leaf, "an initial memory"), initial)
    memory = transform(lambda array: Spec(array.shape[1:], array.dtype), arrays)
    return RNN(step, params, memory=memory)(xs, initial=arrays, engine=engine)


# ---- what a recurrence is told -----------------------------------------------------------------------------


def check_masked(masked: Any) -> None:
    """Raises `InputError` for what is no answer of a masked step."""
    choice(masked, MASKED_IS, MASKED)


def parameter(value: Any) -> Array:
    """A copy of a parameter as an array; raises `InputError` for what is none."""
    array = array_of(value, "a parameter")
    dtype_name(array.dtype, "a parameter")
    return own_copy(array)


def same_parameters(params: Any, before: Any) -> Any:
    """Copies of parameters in the structure of those before; raises `InputError` where they are not alike."""
    made = transform(parameter, arranged(params, before))
    if skeleton(made) != skeleton(before):
        raise InputError(
            f"the parameters are {skeleton(made)}; those of the recurrence are {skeleton(before)}"
        )
    for (name, old), new in zip(named_leaves(before), leaves(made), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InputError(
                f"{f'parameter {name}' if name else 'the parameter'} is {new.dtype}{list(new.shape)}; "
                f"that of the recurrence is {old.dtype}{list(old.shape)}"
            )
    return made


def check_inputs(declared: Any, given: Any) -> None:
    """Raises `InputError` where inputs have other features than those the recurrence was made for."""
    if declared is None:
        return
    given = arranged(given, declared)
    if skeleton(declared) != skeleton(given):
        raise InputError(
            f"the inputs are {skeleton(given)}; this recurrence was made for {skeleton(declared)}"
        )
    for (name, expected), found in zip(named_leaves(declared), leaves(given), strict=True):
        if expected.shape != found.shape:
            what = f"input {name}".strip()
            raise InputError(
                f"{what} has features {list(found.shape)}; "
                f"this recurrence was made for {list(expected.shape)}"
            )


def default_dtype(dtypes: list[Any]) -> str:
    """The promoted floating dtype; float32 where there is none."""
    return promoted_float(dtypes)


def with_dtypes(inputs: Any, params: list[Array]) -> Any:
    """Input specs with the parameters' floating dtype where they say none."""
    default = default_dtype([p.dtype for p in params])
    return transform(lambda spec: Spec(spec.shape, spec.dtype or default, spec.levels), inputs)
