"""A step run over sequences of any length: `RNN`, and `scan`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.targets import Order, checked_engine
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.spec import Spec, Step
from stepnet.compiler.trace.traced import is_traced
from stepnet.compiler.values.arguments import flag
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.structure import leaves, skeleton, transform
from stepnet.errors import InputError
from stepnet.model.batch import checked_array
from stepnet.model.control import Control, Controls, UncheckedCall
from stepnet.model.declared import Declared, check_masked
from stepnet.model.forms import FormedCall
from stepnet.model.model import Declaration
from stepnet.model.program import Asked, StepProgram, same_parameters
from stepnet.model.reading import Reading

if TYPE_CHECKING:
    from stepnet.compiler.plan.load import CallSize
    from stepnet.explain.document import TitledSection
    from stepnet.model.gradients.arguments import Cut
    from stepnet.model.scopes import Scopes
    from stepnet.model.streams.layers import StreamedRecurrence


class RNN(Declared):
    """A recurrence: a step function that runs over sequences, `outputs, final = rnn(sequences)`.

    Args:
        step: step(x, memory, params) -> (output, memory), each an array [rows, features...] or a nested dict,
            tuple or namedtuple of such arrays. A step with parameters named `statics` or `index` gets them
            too: values that each sequence has once, and the number of earlier steps of the sequence.
        params: The parameters, arrays in any structure. They are copied here. Arrays that the step captures
            are copied when it is traced.
        memory: The features of the memory: 64, (4, 16), {"h": 64, "c": 64} or `Spec`s. The dtype is the
            promoted floating dtype of inputs and parameters, unless a `Spec` has another.
        inputs: The features of the inputs, likewise. Without it they are known at the first call.
        statics: The features of the statics, likewise.
        reverse: Whether each sequence runs from its own last step to its first.
        unroll: The number of steps in one pass of the compiled loop. Results do not depend on it.
        until: A function of a step's output and next memory that returns a bool per row. A sequence ends with
            the first step for which it is True, that step included. The outputs are then a shorter `Ragged`,
            whatever the inputs are.

    Attributes:
        report: The choices of `stepnet.quantize`, and the errors on its samples; None where it made none.

    Raises:
        InputError: For arguments of another form.
        StepError: For a step that cannot be traced; at the first call if `inputs` is not given.

    >>> import numpy as np
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

    # ---- construction and copies

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the constructor's arguments, precision and report; a copy is traced and compiled again."""
        made = partial(
            RNN,
            memory=self.memory,
            inputs=self.inputs,
            statics=self.statics,
            reverse=self.reverse,
            unroll=self.unroll,
            until=self.until,
        )
        return remade, (made, self.step, self.params, self.precision, self.report)

    def with_params(self, params: Any) -> "RNN":
        """Returns a copy of the recurrence with other parameters.

        Nothing is traced, planned or compiled again: both recurrences share their compiled code. The
        parameters are copied here and packed at the first call. Arrays that the step captures stay as they
        were captured.

        Args:
            params: The new parameters, in the structure, shapes and dtypes of the old ones. In a step they
                may be parameters of that step, which then have gradients.

        Returns:
            A new `RNN`. The old one is unchanged.

        Raises:
            InputError: For another structure, or other shapes or dtypes.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, p: (x * p, h), np.ones(1, "float32"), memory=1)
        >>> doubled = rnn.with_params(np.full(1, 2, "float32"))
        >>> x = np.ones((1, 2, 1), "float32")
        >>> rnn(x)[0].sum(), doubled(x)[0].sum()
        (np.float32(2.0), np.float32(4.0))
        """
        made = same_parameters(params, self.params, self.noun, self.arguments[2])
        return self.changed(lambda program: program.with_params(made), params=made)

    def with_kinds_of(self, params: Any) -> "RNN":
        """Returns a recurrence for parameters of other shapes or dtypes: a copy with `params`, traced anew.

        If all shapes and dtypes are as before, this is the recurrence itself.

        params: parameters in the structure that the recurrence has.
        """
        pairs = zip(leaves(params), leaves(self.params), strict=True)
        if all((new.shape, new.dtype) == (old.shape, old.dtype) for new, old in pairs):
            return self
        function, (made, step, _, precision, report) = self.__reduce__()
        return function(made, step, params, precision, report)

    def in_precision(self, precision: Precision, report: Any = None) -> "RNN":
        """Returns a copy that computes in a precision, which `stepnet.quantize` chose with this report."""
        return self.changed(
            lambda program: program.in_precision(precision), precision=precision, report=report
        )

    def changed(self, change: Callable[[StepProgram], StepProgram], **attributes: Any) -> "RNN":
        """Returns a copy with other attributes and with a changed copy of each compiled program.

        change: makes the copy's program from a program of the original.
        attributes: the attributes that differ, by name.
        """
        made = object.__new__(type(self))
        vars(made).update(vars(self) | attributes)
        made.programs = self.programs.changed(change)
        return made

    @property
    def described(self) -> list[str]:
        """The name of the step, the structure of the memory, and the direction."""
        name = getattr(self.step, "__name__", type(self.step).__name__)
        return [name, f"memory={skeleton(self.memory)}", *(["reverse=True"] if self.reverse else [])]

    # ---- running it

    def unprepared(self, formed: FormedCall | None, call: UncheckedCall) -> tuple[Any, Any]:
        """Runs a call that was not prepared, also inside the step of another recurrence; returns the outputs
        and the final memories.

        form: the key by which later calls find it prepared; None for a call that is never prepared.
        """
        if not is_traced(call.sequences):
            return super().unprepared(formed, call)
        asked, last_only = checked_engine(call.engine), flag(call.last_only, "last_only")
        check_in_step(call.lengths, asked, self.until, **call.control)
        mask, masked = call.control.get("mask"), call.control.get("masked", "repeat")
        with IMPORTS:
            from stepnet.model.nested import in_step
        return in_step(self, call.sequences, call.initial, call.statics, last_only, mask, masked)

    # ---- members of every model

    @property
    def declaration(self) -> Declaration:
        """The inputs, statics and parameters that the recurrence was made with."""
        return Declaration(self.inputs, self.statics, self.params)

    @property
    def ends_early(self) -> bool:
        """True if sequences may end before their last step, because the recurrence has `until=`."""
        return self.until is not None

    def explained(self, order: Order, size: "CallSize | None") -> "list[TitledSection]":
        """Returns the sections of the text of `explain`; with `until`, and an engine with kernels of its own
        for it, the sections of calls whose sequences may end early.

        order: the engines in order of preference.
        size: the size of a call whose times are added; None for no call.
        """
        if self.until is None or size is None:
            return super().explained(order, size)
        with IMPORTS:  # late: calls do not need it
            from stepnet.explain.plan import early_sections

        running, flag = self.under(Control(until=self.until), self.program), len(leaves(self.program.memory))
        early = early_sections(running.schedule_for(order), flag, order, size)
        return [*early, *super().explained(order, None if early else size)]

    def gradient_reading(self, call: UncheckedCall) -> "tuple[Reading[Any], Cut | None]":
        """Checks the arguments of a call whose gradient is taken; sequences that a condition `until` may end
        early are first run, and cut to the steps that they take.

        Returns them with the program whose net is differentiated, and the cut sequences or None.
        """
        with IMPORTS:  # late: few processes train
            from stepnet.model.gradients.arguments import Cut, without_control

        reading = self.read(call.sequences, call.initial, call.statics, call.lengths, **call.control)
        cut, program = None, reading.program
        if self.until is not None:
            cut = Cut.of(reading, call.params, self.reverse, call.engine)
            reading = cut.reading
        masked = None if call.control.get("mask") is None else call.control.get("masked", "repeat")
        key = masked, call.last_only
        if key not in program.gradients:
            running, ends = self.under(Control(masked), program), [call.last_only] * len(program.levels)
            how = "first" if self.reverse else "last"
            program.gradients[key] = without_control(program, running, ends, program.memories, how)
        made = program.gradients[key]
        own = replace(reading.call, initial=reading.call.initial[: program.memories])
        return Reading(reading.batch, made, made, own, ends=False), cut

    def for_stream(self, engine: Order) -> "StreamedRecurrence":
        """Returns the recurrence in the form that a stream runs step by step.

        Raises `InputError` for a recurrence with `reverse` or `until`, which has no stream.

        engine: the engines, which have no effect here.
        """
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.streams.layers import StreamedRecurrence

        if self.reverse:
            raise InputError(
                "a recurrence with reverse=True begins at a sequence's last step: it has no stream"
            )
        if self.until is not None:
            raise InputError(
                "a stream runs on: it has no until=; look at each step's output, and reset the row"
            )
        return StreamedRecurrence(self)

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
    ) -> "Scopes":
        """Runs the recurrence and returns the value of every named variable at every step, for debugging.

        The names are:

        - `inputs`, `before` and `after` (the memory), `statics` and `outputs`; `inputs.left` where the inputs
          are a structure.
        - Each local variable of the step, with its last value where it is assigned more than once. A variable
          with a name of the list above is `step.inputs`.
        - `function.name` for a local variable of a function that the step calls, from the last call.
        - `frames.h` and `frames.outputs` for a recurrence inside the step that is called `frames`: a sequence
          at each step.

        Parameters, and statics that are sequences, are left out. At a step that `mask` leaves out, the
        variables have the values that are then dropped.

        Args:
            sequences: A `Ragged`, an array [batch, time, features...], or a structure of these.
            initial: The memory before the first step, arrays [batch, features...]; zeros by default.
            statics: Values that each sequence has once: arrays [batch, features...], or a `Ragged`.
            lengths: The length of each sequence of an array, [batch], where they differ.
            mask: A bool for each step; where it is False, the memory stays as it is.
            masked: The output at such a step: "repeat", that of the step before, or "zero".
            begun: The number of steps of each sequence that were run in earlier calls.
            time_major: Whether arrays of sequences and the mask are [time, batch, ...].

        Returns:
            `Scopes`: `scopes["name"]` is a `Ragged` with the value at every step, `scopes.step(row, number)`
            a dict of all values of one step, and `print(scopes)` shows a table.

        Raises:
            InputError: For arguments that do not fit the recurrence or one another.
            StepError: For a step that cannot be traced, and inside another step.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> def step(x, h, params):
        ...     doubled = 2 * x
        ...     return h + doubled, h + doubled
        >>> scopes = sn.RNN(step, memory=()).trace_steps(sn.Ragged.from_list([[1.0, 2.0], [3.0]]))
        >>> scopes["doubled"].to_list(), float(scopes.step(0, 1)["before"])
        ([array([2., 4.]), array([6.])], 2.0)
        """
        control: Controls = {"mask": mask, "masked": masked, "begun": begun, "time_major": time_major}
        with IMPORTS:  # late: calls do not need it
            from stepnet.model.scopes import step_scopes

        return step_scopes(self, sequences, initial, statics, lengths, control)


def check_in_step(lengths: Any, engine: Order, until: Any, **control: Unpack[Controls]) -> None:
    """Raises `StepError` for call arguments that a recurrence inside another recurrence's step does not take.

    lengths, engine, control: the arguments of the inner call.
    until: the condition of the recurrence; None for none.
    """
    others = control.get("begun"), until, control.get("time_major") or None
    if any(other is not None for other in others):
        raise refuse("begun=, until= and time_major= are not for a recurrence inside a step")
    if lengths is not None or engine != "auto":
        raise refuse(
            "lengths= and engine= are not for a recurrence inside a step: its sequences know their "
            "lengths, and it runs where the outer one does; give engine= to that one"
        )
    check_masked(control.get("masked", "repeat"))


def remade(
    made: Callable[..., RNN], step: Step, params: Any, precision: Precision | None, report: Any
) -> RNN:
    """Rebuilds an unpickled recurrence from the values that `RNN.__reduce__` returned.

    made: makes an `RNN` from its step and its parameters.
    step, params: the step and the parameters.
    precision, report: the precision that `stepnet.quantize` chose, and its report; None for none.
    """
    rnn = made(step, params)
    return rnn if precision is None else rnn.in_precision(precision, report)


def scan(step: Step, initial: Any, xs: Any, params: Any = None, *, engine: Asked = "auto") -> tuple[Any, Any]:
    """Runs a step over sequences from given initial memories; returns the outputs and the final memory.

    This is `RNN` for a single call. The initial arrays give the shapes and dtypes of the memory.

    Args:
        step: step(x, memory, params) -> (output, memory), as for `RNN`.
        initial: The memory before the first step: arrays [batch, features...], in any structure.
        xs: A `Ragged`, or an array [batch, time, features...].
        params: The parameters, arrays in any structure.
        engine: An engine, or several in order of preference.

    Returns:
        The outputs in the form of `xs`, and the last memory of each sequence in the structure of `initial`.

    Raises:
        InputError: For arguments that do not fit one another.
        StepError: For a step that cannot be traced.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> x = np.array([[1.0, 2.0, 3.0]])
    >>> outputs, final = sn.scan(lambda x, h, p: (h + x, h + x), np.array([100.0]), x)
    >>> outputs.tolist(), final.tolist()
    ([[101.0, 103.0, 106.0]], [106.0])
    """
    arrays = transform(lambda leaf: checked_array(leaf, "an initial memory"), initial)
    memory = transform(lambda array: Spec(array.shape[1:], array.dtype), arrays)
    return RNN(step, params, memory=memory)(xs, initial=arrays, engine=engine)
