"""A model as a value: `Graph`."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import checked_engine
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.step import specs
from stepnet.compiler.values.arguments import called_with, file_path, flag, function
from stepnet.compiler.values.structure import named_leaves, skeleton, transform
from stepnet.explain.plan import checked_size, schedule_sections
from stepnet.explain.text import text
from stepnet.model.declared import parameter, same_parameters
from stepnet.model.gradients import GradientSource
from stepnet.model.graph.gradients import ModelSource
from stepnet.model.graph.programs import GraphProgram, GraphPrograms
from stepnet.model.graph.trace import Model
from stepnet.model.nested import is_traced
from stepnet.model.program import Asked
from stepnet.model.reading import Reading

if TYPE_CHECKING:
    from stepnet.model.streams.stream import Stream


class Graph:
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

    def __init__(self, model: Model, params: Any = None, *, inputs: Any = None, statics: Any = None) -> None:
        called_with(function(model, "model is a function model(x, params)"), ("x", "params"), ("statics",))
        self.model = model
        self.params = transform(parameter, params)
        self.inputs, self.statics = specs(inputs), specs(statics)
        self._programs = GraphPrograms(model, self.params, self.inputs, self.statics)

    @property
    def program(self) -> GraphProgram:
        """The program for the latest kind of inputs: the net, the structure of its outputs, parameters."""
        return self._programs.program

    @property
    def net(self) -> Net:
        """The net, as traced for the latest kind of inputs."""
        return self.program.traced.net

    @property
    def schedule(self) -> Schedule:
        """The parts that run one after the other."""
        return self.program.schedule

    def __call__(
        self,
        sequences: Any,
        statics: Any = None,
        lengths: Any = None,
        engine: Asked = "auto",
        *,
        time_major: bool = False,
    ) -> Any:
        """The outputs of the model, in its structure.

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
        return self._programs.run(sequences, statics, lengths, self._engine(engine), time_major)

    def stream(
        self,
        rows: int = 1,
        initial: Any = None,
        statics: Any = None,
        engine: Asked = "auto",
        *,
        begun: Any = None,
    ) -> "Stream":
        """A stream of sequences that the whole model runs one step at a time: `stream.step(x)`.

        A value that a sequence has once, as a last output, is in a stream what a call of the sequence up to
        the present step gives.

        Args:
            rows: The number of sequences that are stepped side by side, from 0 on; see `Stream.add`.
            initial: The memories before the first step, as `stream.state` has them: those of each recurrence,
                in the order that they run. By default those with which the model begins.
            statics: Values that each row has once, as for a call.
            engine: An engine, or several in order of preference.
            begun: The number of steps that were run before, from which `index` counts on.

        Returns:
            A `Stream`. Its outputs have the same bits as those of a call over the whole sequences.

        Raises:
            InputError: For arguments that do not fit, and for a model that reads later steps: one with a
                recurrence from the last step, a mean over the steps, attention over them, or a final memory
                that is read at each step. Where the inputs are not known yet, at the first step.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
        >>> stream = sn.Graph(lambda x, params: total(2 * x)[0] + 1).stream(rows=1)
        >>> [float(stream.step(np.array([x]))[0]) for x in (1.0, 2.0, 3.0)]
        [3.0, 7.0, 13.0]
        """
        from stepnet.model.streams.composed import GraphStep, check_stream  # late: not everybody has streams
        from stepnet.model.streams.layers import Leaf
        from stepnet.model.streams.stream import Stream

        if (known := self._programs.programs.latest) is not None:
            check_stream(known.net)
        step = GraphStep(self._programs, checked_engine(self._engine(engine)))
        return Stream(Leaf(step), rows, initial, statics, self._engine(engine), begun)

    def _in_model(self, sequences: Any, statics: Any, lengths: Any, engine: Asked, time_major: bool) -> Any:
        """The outputs as values of another model, of which this one is a part."""
        if lengths is not None or engine != "auto" or time_major:
            raise refuse(
                "lengths=, engine= and time_major= are not for a graph inside a model: "
                "give them to the outer one"
            )
        return self.model(sequences, self.params, **({} if statics is None else {"statics": statics}))

    def explain(self, engine: Asked = "auto", *, rows: int | None = None, steps: int | None = None) -> str:
        """A text with the parts in the order they run: what each does and costs, and its engine.

        Args:
            engine: An engine, or several in order of preference.
            rows: For a call of so many sequences, how threads share it, and how long each part is estimated
                to take; of 100 steps, unless `steps` says otherwise.
            steps: The same for sequences of so many steps; for one, unless `rows` says otherwise.

        Raises:
            InputError: Before the inputs are known, and for sizes that no call has.
        """
        order, program = checked_engine(self._engine(engine)), self._programs.program
        schedule = program.schedule_for(order)
        return text(schedule_sections(schedule, order, checked_size(rows, steps)))

    def _engine(self, asked: Asked) -> Asked:
        """The engines that the argument `engine` stands for."""
        return asked

    def draw(self, path: str | Path | None = None, engine: Asked = "auto", *, force: bool = False) -> str:
        """A drawing of the graph as text, or written as a picture.

        There is a box for each part that these engines run, with its cell if it is a known one, what else it
        does, and its engine; and the values between them with the sizes of one element.

        Args:
            path: A file to write, an .svg image or an .html page.
            engine: An engine, or several in order of preference.
            force: Whether to replace an existing file.

        Returns:
            The drawing as text.

        Raises:
            InputError: For a path of another kind, and before the inputs are known.
            FileError: If the file exists, unless `force`, or cannot be written.
        """
        order, program = checked_engine(self._engine(engine)), self.program
        names = [name or "output" for name, _ in named_leaves(program.traced.output)]
        drawing: Any = import_module("stepnet.explain.svg")  # by name: it takes time, and few calls draw
        made = drawing.picture(program.net, program.schedule_for(order), names, order)
        if path is not None:
            drawing.write(made, file_path(path), flag(force, "force"))
        return str(made)

    def read(self, sequences: Any, statics: Any = None) -> Reading[GraphProgram]:
        """The arguments of a call, checked, with the program that runs them."""
        return self._programs.read(sequences, statics)

    def gradient_source(self) -> GradientSource:
        """What `stepnet.vjp` and `stepnet.value_and_grad` run."""
        return ModelSource(self._programs)

    def with_params(self, params: Any) -> "Graph":
        """The same model with other parameters. Nothing is traced, planned or compiled again.

        Args:
            params: The new parameters, in the structure, shapes and dtypes of the old ones.

        Raises:
            InputError: For another structure, or other shapes or dtypes.
        """
        made = object.__new__(type(self))
        made.__dict__.update(vars(self))
        made.params = same_parameters(params, self.params)
        made._programs = self._programs.with_params(made.params)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """The arguments it was made from: a copy, or one in another process, is traced and compiled again."""
        return partial(Graph, inputs=self.inputs, statics=self.statics), (self.model, self.params)

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"{type(self).__name__}({name}, params={skeleton(self.params)})"

    def __str__(self) -> str:
        return str(self.net)
