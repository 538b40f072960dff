"""`Graph`: a model of whole sequences."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.spec import specs
from stepnet.compiler.trace.traced import Traced, builder_of, is_traced
from stepnet.compiler.values.arguments import check_signature, flag, function
from stepnet.compiler.values.dtypes import computed
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild, skeleton
from stepnet.errors import InputError, named
from stepnet.model.batch import LENGTHS_ADVICE, Batch
from stepnet.model.control import Controls, UncheckedCall
from stepnet.model.declared import check_masked
from stepnet.model.forms import FormedCall
from stepnet.model.graph.programs import GraphProgram, GraphPrograms, has_steps, with_ends
from stepnet.model.graph.traced_model import ModelFunction
from stepnet.model.initial import is_lengths
from stepnet.model.model import Declaration, Model
from stepnet.model.own_steps import check_axes
from stepnet.model.program import Asked, own_parameters, same_parameters
from stepnet.model.reading import Reading
from stepnet.model.statics import Statics

if TYPE_CHECKING:
    from stepnet.model.graph.chunk_stream import ChunkStream
    from stepnet.model.graph.stream import GraphStep
    from stepnet.model.scopes import Scopes
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
        """Checks and stores the arguments of a graph; traces the model function if `inputs` is given."""
        check_signature(
            function(model, "model is a function model(x, params)"), ("x", "params"), ("statics",)
        )
        self.model = model
        self.params = own_parameters(params)
        self.inputs, self.statics = specs(inputs), specs(statics)
        check_axes(self.inputs, self.statics)
        self.programs = GraphPrograms(model, self.params, self.inputs, self.statics)

    @property
    def program(self) -> GraphProgram:
        """The program for the latest inputs: the net, the structure of its outputs, and the parameters."""
        return self.programs.program

    def unprepared(self, formed: FormedCall | None, call: UncheckedCall) -> Any:
        """Runs a call of the graph that no earlier call prepared (compiled code with arrays of its own);
        returns the outputs of the model, in its structure.

        formed: the form under which later calls find this one prepared; None to prepare nothing. With
        `initial`, `mask` or `begun` the graph runs as one recurrence and returns the outputs of a stream: a
        value that a sequence has once is its value at the last step.
        """
        sequences, statics, lengths, control = call.sequences, call.statics, call.lengths, call.control
        names = given_stepwise(call)
        if is_traced(sequences):
            check_in_model(call, names)
            return self.in_model(sequences, statics)
        check_masked(control.get("masked", "repeat"))
        order, last_only = self.engine_order(call.engine), flag(call.last_only, "last_only")
        time_major = control.get("time_major", False)
        reading = self.read(sequences, None, statics, lengths, time_major=time_major)
        levels = reading.program.levels
        ends = has_steps(reading.program) if last_only else [False] * len(levels)
        if names:
            ends = [last_only or not level for level in levels]
            with named(f"with {names[0]}= a graph runs step by step"), lengths_advised(call.initial):
                layers, begins = self.as_layers(sequences, call.initial, statics, order, time_major)
                if 0 in levels:
                    check_per_sequence(reading, control.get("mask"))
            outputs, _ = layers(sequences, begins, statics, lengths, False, order, **control)
        else:
            outputs, _ = reading.run(order, self.programs.calls, formed)
        return with_ends(outputs, ends, reading.program.axes, reading.batch) if any(ends) else outputs

    def in_model(self, sequences: Any, statics: Any) -> Any:
        """Calls the model inside another one that is being traced, on values of it; returns such values. The
        parameters are constants there, with their names.
        """
        builder = builder_of([*leaves(sequences), *leaves(statics)])
        title = getattr(self.model, "__name__", type(self.model).__name__)
        values = [
            Traced(builder, builder.constant(computed(array), f"{title}.{name}".rstrip(".")))
            for name, array in named_leaves(self.params)
        ]
        params = rebuild(self.params, values)
        return self.model(sequences, params, **({} if statics is None else {"statics": statics}))

    def as_layers(
        self, sequences: Any, initial: Any, statics: Any, engine: Order, time_major: bool = False
    ) -> tuple[Model, Any]:
        """Returns the graph as one recurrence, and the memory that a call begins with.

        Raises `InputError` for a graph that a stream cannot run, with the operation that prevents it.

        sequences, initial, statics, engine, time_major: the arguments of the call.
        """
        step = self.step_for(engine)
        batch = Batch.of(step.as_declared(sequences), None, time_major)
        return step.recurrence(batch, Statics.of(statics, batch.count), initial)

    def step_for(self, engine: Order) -> "GraphStep":
        """Returns the whole graph as the step of a recurrence; made once for each choice of engines."""
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.graph.stream import GraphStep

        if engine not in self.programs.steps:
            self.programs.steps[engine] = GraphStep(self.programs, engine, self.name)
        return self.programs.steps[engine]

    @property
    def name(self) -> str:
        """The name of the model function."""
        return getattr(self.model, "__name__", type(self.model).__name__)

    # ---- members of every model

    def meant(self) -> Mapping[str, str]:
        """Returns advice for arguments of a module that are given by name, and are statics of the graph."""
        names: Sequence[str] = getattr(self.model, "static_names", ())
        one = len(names) == 1
        return {
            name: f"it is a static, {f'statics={name}' if one else f'statics={{{name!r}: {name}}}'}, "
            "with the batch as its first axis"
            for name in names
        }

    @property
    def file_names(self) -> Mapping[str, Sequence[str]]:
        """The names of inputs ("sequence") and outputs ("output") in the graph's file; none without one."""
        return getattr(self.model, "file_names", {})

    @property
    def declaration(self) -> Declaration:
        """The inputs, statics and parameters that the graph was made with."""
        return Declaration(self.inputs, self.statics, self.params)

    @property
    def ends_early(self) -> bool:
        """False: each sequence of a graph runs to its last step; layers with `until` may end earlier."""
        return False

    @property
    def change_check(self) -> Callable[[], None] | None:
        """A function that raises `InputError` if the model has changed since it was traced, called before a
        gradient or loss reuses prepared code; None for a model without such a check (`check_unchanged`),
        which modules of PyTorch have.
        """
        return self.programs.check_model if hasattr(self.model, "check_unchanged") else None

    @property
    def only_steps(self) -> int | None:
        """The number of steps that the file of the model is for alone; None for a model of any number."""
        return getattr(self.model, "only_steps", None)

    def check_any_steps(self) -> None:
        """Raises `InputError` if the model's file fixes the number of steps: a stream has any number."""
        if (check := getattr(self.model, "check_any_steps", None)) is not None:
            check()

    def for_stream(self, engine: Order) -> "StreamedRecurrence":
        """Returns the whole model as one recurrence, for a stream; raises `InputError` if it has no stream.

        engine: the engines in order of preference.
        """
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.streams.composed import check_stream
            from stepnet.model.streams.layers import StreamedRecurrence

        self.check_any_steps()
        if (known := self.programs.latest) is not None:
            check_stream(known.net)
        return StreamedRecurrence(self.step_for(engine))

    def stream_chunks(
        self, rows: int = 1, initial: Any = None, statics: Any = None, engine: Asked = "auto"
    ) -> "ChunkStream":
        """Returns a stream of chunks of steps: `stream.chunk(x)` gives the outputs that are ready.

        It is for models with strides, transposed convolutions and convolutions that read later steps, too:
        their outputs are ready later, or of another number than the steps. `stream` has less work for a
        single step, where each step has an output.

        Args:
            rows: The number of sequences that are advanced together, from 0 on; see `ChunkStream.add`.
            initial: The state that they go on from, `ChunkStream.state` of a stream of this model.
            statics: Values that each row has once, arrays [rows, features...].
            engine: An engine, or several in order of preference.

        Returns:
            A `ChunkStream`. Its outputs have the same bits as those of a call over the whole sequences.

        Raises:
            InputError: For arguments that do not fit, and at the first chunk for a model that needs a whole
                sequence, with the line: a recurrence from the last step, a mean over the steps, attention
                over them, or a final memory that is read at each step.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> stream = sn.Graph(lambda x, params: sn.avg_pool1d(x, 2)).stream_chunks()
        >>> stream.chunk(np.float32([[[1], [3], [5]]])).tolist(), stream.chunk(np.float32([[[7]]])).tolist()
        ([[[2.0]]], [[[6.0]]])
        """
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.graph.chunk_stream import ChunkStream

        self.check_any_steps()
        return ChunkStream(self.programs, rows, initial, statics, self.engine_order(engine))

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        **control: Unpack[Controls],
    ) -> "Scopes":
        """Runs the model and returns the value of every named variable at every step, for debugging.

        The names are `inputs`, `statics` and `outputs`, each local variable of the model, `function.name` for
        one of a function that it calls, and those of `RNN.trace_steps` for each recurrence, as `gru.h`. A
        value that a sequence has once stands at each of its steps.

        Args:
            sequences: A `Ragged`, an array [batch, time, features...], or a structure of these.
            initial: Not for a graph, and refused as `mask` and `begun` are.
            statics: Values that each sequence has once: arrays [batch, features...].
            lengths: The length of each sequence of an array, [batch], where they differ.
            time_major: Whether arrays of sequences are [time, batch, ...].

        Returns:
            `Scopes`, as `RNN.trace_steps` returns them.

        Raises:
            InputError: For arguments that do not fit the model or one another, and for a quantized graph.
            StepError: For a model that cannot be traced, and inside another model.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
        >>> def model(x, params):
        ...     doubled = 2 * x
        ...     sums, _ = total(doubled)
        ...     return sn.reduce(sums, "max")
        >>> scopes = sn.Graph(model).trace_steps(sn.Ragged.from_list([[1.0, 2.0], [3.0]]))
        >>> scopes["doubled"].to_list(), scopes["total.before"].to_list()
        ([array([2., 4.]), array([6.])], [array([0., 2.]), array([0.])])
        >>> scopes["outputs"].to_list()
        [array([6., 6.]), array([6.])]
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.model.graph.scopes import model_scopes

        if is_traced(sequences):
            raise refuse(
                "trace_steps is not for a graph inside a model: trace the steps of the one around it, whose "
                "scopes have the values of this one too"
            )
        given: dict[str, Any] = {"initial": initial, **control}
        for name in ("initial", "mask", "begun"):
            if given.get(name) is not None:
                raise InputError(f"{name}= is not for trace_steps of a graph: trace one of its recurrences")
        check_masked(control.get("masked", "repeat"))
        time_major = control.get("time_major", False)
        reading = self.read(sequences, None, statics, lengths, time_major=time_major)
        return model_scopes(self.model, self.params, reading, statics)

    def gradient_reading(self, call: UncheckedCall) -> tuple[Reading[Any], None]:
        """Checks the arguments of a call whose gradient is taken; returns them with their program, and None.

        With `initial`, `mask` or `begun` that is the program of the graph as one recurrence, as in a call.
        None stands for the cut sequences of a call with early ends: here no sequence ends early.
        """
        control, names = call.control, given_stepwise(call)
        check_masked(control.get("masked", "repeat"))
        time_major = control.get("time_major", False)
        reading = self.read(call.sequences, None, call.statics, call.lengths, time_major=time_major)
        program = reading.program
        if names:
            ends = tuple(call.last_only or not level for level in program.levels)
            with named(f"with {names[0]}= a graph runs step by step"):
                step = self.step_for(call.engine).composed_for(program.traced.inputs, program.traced.statics)
                if 0 in program.levels:
                    check_per_sequence(reading, control.get("mask"))
            return step.gradient_reading(call, ends), None
        if call.last_only and True not in program.gradients:
            with IMPORTS:
                from stepnet.model.gradients.arguments import without_control
            program.gradients[True] = without_control(program, program, has_steps(program), 0)
        made = program.gradients[True] if call.last_only else program
        return Reading(reading.batch, made, made, reading.call, ends=False), None

    def with_params(self, params: Any) -> "Graph":
        """Returns a copy of the model with other parameters. Nothing is traced, planned or compiled again.

        Args:
            params: The new parameters, in the structure, shapes and dtypes of the old ones.

        Raises:
            InputError: For another structure, or other shapes or dtypes.
        """
        made, new = object.__new__(type(self)), same_parameters(params, self.params, self.noun)
        vars(made).update(vars(self) | {"params": new, "programs": self.programs.with_params(new)})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the constructor: a copy is traced and compiled again."""
        return partial(Graph, inputs=self.inputs, statics=self.statics), (self.model, self.params)

    @property
    def described(self) -> list[str]:
        """The name of the model function, and the structure of the parameters."""
        return [self.name, f"params={skeleton(self.params)}"]

    def __str__(self) -> str:
        """Returns the layers of the model, with the shapes of their outputs and their parameters, as at most
        one screen of text; the net is `graph.net`. Before inputs are known it is what `repr` returns.
        """
        if self.programs.latest is None:
            return repr(self)
        with IMPORTS:  # by name: it takes time, and few calls print
            summary: Any = import_module("stepnet.explain.summary")
        return summary.short_text(self.name + self.on_device, summary.summary_of(self))


def given_stepwise(call: UncheckedCall) -> list[str]:
    """Returns the names of given arguments that make a graph run step by step, such as `mask`."""
    control = call.control
    stepwise = {"initial": call.initial, "mask": control.get("mask"), "begun": control.get("begun")}
    return [name for name, value in stepwise.items() if value is not None]


@contextmanager
def lengths_advised(initial: Any) -> Generator[None]:
    """Context manager that adds advice to an `InputError` where the state of a call is an array of one whole
    number for each sequence, as the lengths of sequences are. initial: the state.
    """
    try:
        yield
    except InputError as error:
        if not is_lengths(initial):
            raise
        raise InputError(f"{LENGTHS_ADVICE}; {error}") from error


def check_in_model(call: UncheckedCall, stepwise: list[str]) -> None:
    """Raises `StepError` for arguments that the call of a graph inside another model does not take, by name.

    stepwise: the names of further arguments that are given.
    """
    unusual = {
        "lengths": call.lengths is not None,
        "last_only": call.last_only is not False,
        "engine": call.engine != "auto",
        "masked": call.control.get("masked", "repeat") != "repeat",
        "time_major": call.control.get("time_major", False) is not False,
    }
    names = [*stepwise, *(name for name, given in unusual.items() if given)]
    if names:
        raise refuse(f"{names[0]}= is not for a graph inside a model: give it to the outer one")


def check_per_sequence(reading: Reading[GraphProgram], mask: Any) -> None:
    """Raises `InputError` for a call step by step of a graph with an output that a sequence has once, if a
    step under a mask, or an empty sequence, leaves that output open. The graph has a stream, so that output
    is that of the last step.

    reading: the checked call.
    mask: the argument of the call.
    """
    titles = [name or "output" for name, _ in named_leaves(reading.program.output)]
    title = titles[reading.program.levels.index(0)]
    if mask is not None:
        raise InputError(
            f"{title} is a value that each sequence has once, and a mask says what steps give: leave masked "
            "steps out of the sequences"
        )
    empty = np.flatnonzero(reading.batch.positions.lengths == 0)
    if len(empty):
        raise InputError(
            f"{title} is that of the last step, and sequence {empty[0]} has no steps: leave it out"
        )
