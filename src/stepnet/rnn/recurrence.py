"""A step run over sequences of any length: `RNN`, and `scan`."""

from collections import OrderedDict
from functools import partial
from typing import Any

from stepnet.engines import checked_engine
from stepnet.net.ir import Net
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Schedule
from stepnet.rnn import nested
from stepnet.rnn.batch import checked_array
from stepnet.rnn.control import Controls
from stepnet.rnn.declared import Declared, check_masked, same_parameters
from stepnet.rnn.explain import explain
from stepnet.rnn.frozen import FrozenCalls
from stepnet.rnn.program import Asked, StepProgram
from stepnet.rnn.scopes import Scopes, step_scopes
from stepnet.rnn.stream import Stream
from stepnet.trace.lines import refuse
from stepnet.trace.step import Spec, Step
from stepnet.values.arguments import flag
from stepnet.values.structure import skeleton, transform


class RNN(Declared):
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

    # ---- looking at it

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

        In a step they may be parameters of that step, which then have gradients.

        Nothing is traced, planned or compiled anew; the parameters are copied and packed at the first call.
        Arrays that the step captures are those that it captured. Raises `InputError` for other shapes.

        >>> import numpy as np
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
        reading = self.read(sequences, initial, statics, lengths, last_only, **control)
        return reading.run(asked, self._frozen, key)

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


def scan(step: Step, initial: Any, xs: Any, params: Any = None, *, engine: Asked = "auto") -> tuple[Any, Any]:
    """The outputs and final memory of `step` over `xs`, from the memory `initial` of each sequence.

    xs: a Ragged or [batch, time, features...]; initial: arrays [batch, features...], which also say the
    memory's shapes and dtypes.
    """
    arrays = transform(lambda leaf: checked_array(leaf, "an initial memory"), initial)
    memory = transform(lambda array: Spec(array.shape[1:], array.dtype), arrays)
    return RNN(step, params, memory=memory)(xs, initial=arrays, engine=engine)
