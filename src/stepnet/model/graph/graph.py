"""`Graph`: a model of whole sequences."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stepnet.compiler.targets import Order
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.step import specs
from stepnet.compiler.values.arguments import check_signature, function
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.structure import skeleton, transform
from stepnet.errors import InputError
from stepnet.model.gradients import UncheckedCall
from stepnet.model.graph.programs import GraphProgram, GraphPrograms
from stepnet.model.graph.trace import ModelFunction
from stepnet.model.model import Declaration, Model, parameter, same_parameters
from stepnet.model.nested import is_traced
from stepnet.model.program import Asked
from stepnet.model.programs import Programs
from stepnet.model.reading import Reading
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import ends_of

if TYPE_CHECKING:
    from stepnet.model.streams.layers import StreamedRecurrence


class Graph(Model):
    """A model as one net: recurrences, and the operations between them. `outputs = graph(sequences)`.

    Args:
        model: model(x, params) -> outputs: a function of whole sequences. It calls recurrences, `Stack`s and
            `Bidirectional`s, `sn.reduce`, `sn.expand`, `sn.softmax_over_steps`, and all that a step may call.
            Recurrences begin at zeros unless initial= says otherwise. A model with a parameter named
            `statics` gets values that each sequence has once.
        params: The parameters, arrays in any structure. They are copied here. Arrays that the model captures,
            as the parameters of its recurrences, are copied when it is traced.
        inputs: The features of the sequences at a step: 64, (4, 16), {"words": sn.Spec((), "int64")}. Without
            it they are known at the first call.
        statics: The features of the statics, likewise.

    Raises:
        InputError: For arguments of another form.
        StepError: For a model that cannot be traced, with the line; at the first call if `inputs` is not
            given.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=8, hidden=16))
    >>> def model(words, params):
    ...     h, _ = gru(params["table"][words])
    ...     return sn.softmax(sn.reduce(h, "mean") @ params["W"])
    >>> random = np.random.default_rng(0)
    >>> params = {
    ...     "table": random.normal(size=(100, 8)).astype("float32"),
    ...     "W": random.normal(size=(16, 2)).astype("float32"),
    ... }
    >>> graph = sn.Graph(model, params)
    >>> graph(sn.Ragged.from_list([np.array([3, 14, 15]), np.array([9, 26])])).shape
    (2, 2)
    """

    noun = "graph"
    kinds = ("params", "inputs", "statics")
    gives_final = False

    def __init__(
        self, model: ModelFunction, params: Any = None, *, inputs: Any = None, statics: Any = None
    ) -> None:
        """Checks and stores the arguments; traces the model if `inputs` is given."""
        check_signature(
            function(model, "model is a function model(x, params)"), ("x", "params"), ("statics",)
        )
        self.model = model
        self.params = transform(parameter, params)
        self.inputs, self.statics = specs(inputs), specs(statics)
        self._programs = GraphPrograms(model, self.params, self.inputs, self.statics)

    @property
    def program(self) -> GraphProgram:
        """The program for the latest inputs: the net, the structure of its outputs, and the parameters."""
        return self._programs.program

    @property
    def programs_by_kind(self) -> Programs[GraphProgram]:
        """The compiled programs of the graph, one for each kind of inputs, with the latest one."""
        return self._programs.programs

    def __call__(
        self,
        sequences: Any,
        statics: Any = None,
        lengths: Any = None,
        engine: Asked = "auto",
        *,
        time_major: bool = False,
    ) -> Any:
        """Runs the model; returns its outputs, in its structure.

        Args:
            sequences: A `Ragged`, an array [batch, time, features...], or a structure of these.
            statics: Values that each sequence has once: arrays [batch, features...].
            lengths: The length of each sequence of an array, [batch], where they differ.
            engine: An engine, or several in order of preference: each part runs on the first that does not
                refuse it.
            time_major: Whether arrays of sequences and outputs of each step are [time, batch, ...].

        Returns:
            Outputs of each step in the form of the sequences: a `Ragged` for a `Ragged`, an array with zeros
            beyond the lengths for an array. Outputs that each sequence has once: [batch, features...].

        Raises:
            InputError: For arguments that do not fit the model or one another.
            StepError: For a model that cannot be traced, at the first call with such inputs.
        """
        if is_traced(sequences):
            return self._in_model(sequences, statics, lengths, engine, time_major)
        return self._programs.run(sequences, statics, lengths, self.engine_order(engine), time_major)

    def _in_model(self, sequences: Any, statics: Any, lengths: Any, engine: Asked, time_major: bool) -> Any:
        """Calls the model inside another model that is being traced; returns values of the other model.

        Raises `StepError` for the arguments that only an outer call takes: lengths, engine and time_major.

        sequences, statics: values of the other model.
        """
        if lengths is not None or engine != "auto" or time_major:
            raise refuse(
                "lengths=, engine= and time_major= are not for a graph inside a model: "
                "give them to the outer one"
            )
        return self.model(sequences, self.params, **({} if statics is None else {"statics": statics}))

    # ---- members of every model

    @property
    def declaration(self) -> Declaration:
        """The inputs, statics and parameters that the graph was made with."""
        return Declaration(self.inputs, self.statics, self.params)

    @property
    def ends_early(self) -> bool:
        """False: each sequence of a graph runs to its last step, unlike those of layers with `until`."""
        return False

    @property
    def change_check(self) -> Callable[[], None] | None:
        """A function that raises `InputError` if the model has changed since it was traced, called before a
        gradient or loss reuses prepared code; None for a model without such a check (`check_unchanged`),
        which modules of PyTorch have.
        """
        return self._programs.check_model if hasattr(self.model, "check_unchanged") else None

    def reading(self, sequences: Any, statics: Any = None, last_only: bool = False) -> Reading[GraphProgram]:
        """Checks a call's sequences and statics; returns them with a program. `last_only` has no effect."""
        return self._programs.read(sequences, statics)

    def outputs(self, sequences: Any, last_only: bool, engine: Asked) -> Any:
        """Runs the model; returns its outputs.

        last_only: whether to return only the last step of outputs that have a value per step.
        engine: an engine, or several in order of preference.
        """
        outputs = self(sequences, engine=engine)
        return transform(last_step, outputs) if last_only else outputs

    def for_stream(self, engine: Order) -> "StreamedRecurrence":
        """Returns the whole model as one recurrence, for a stream; raises `InputError` if it has no stream.

        engine: the engines in order of preference.
        """
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.graph.stream import GraphStep
            from stepnet.model.streams.composed import check_stream
            from stepnet.model.streams.layers import StreamedRecurrence

        if (known := self._programs.programs.latest) is not None:
            check_stream(known.net)
        return StreamedRecurrence(GraphStep(self._programs, engine))

    def gradient_reading(self, call: UncheckedCall) -> tuple[Reading[GraphProgram], None]:
        """Checks the arguments of a call whose gradient is taken; returns them with their program, and None.

        None stands for the cut sequences of a call with early ends: here no sequence ends early.
        """
        check_no_layers(call)
        time_major = call.control.get("time_major", False)
        return self._programs.read(call.sequences, call.statics, call.lengths, time_major), None

    def with_params(self, params: Any) -> "Graph":
        """Returns a copy of the model with other parameters. Nothing is traced, planned or compiled again.

        Args:
            params: The new parameters, in the structure, shapes and dtypes of the old ones.

        Raises:
            InputError: For another structure, or other shapes or dtypes.
        """
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.params = same_parameters(params, self.params, self.noun)
        made._programs = self._programs.with_params(made.params)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the constructor: a copy is traced and compiled again."""
        return partial(Graph, inputs=self.inputs, statics=self.statics), (self.model, self.params)

    def __repr__(self) -> str:
        """Returns the class, the name of the model function, and the structure of the parameters."""
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"{type(self).__name__}({name}, params={skeleton(self.params)})"

    def __str__(self) -> str:
        return str(self.net)


def last_step(output: Any) -> Any:
    """Returns the output at the last step of each sequence, zeros for an empty one.

    output: the output; one that is an array has no steps, and is returned unchanged.
    """
    if not isinstance(output, Ragged):
        return output
    if output.levels > 1:
        raise InputError(
            "the last output is not defined where each step has a sequence of outputs: ask for 'outputs', "
            "not 'last'"
        )
    return ends_of(output.values, output.offsets[0], first=False)


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
