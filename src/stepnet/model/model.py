"""`Model`: the base class of `RNN`, `Stack`, `Bidirectional` and `Graph`, and the call of each of them.

    written as                          Model                      taken by
    RNN      one step                   declaration                calls, streams, gradients
    Stack, Bidirectional   layers  -->  read: a call's      -->    explain, draw, quantize
    Graph    a function of sequences    arguments, checked         Arrow, Ray, folders, build
    files    what they hold             program: net, parameters

A model is traced for each kind of inputs that it is called with: `Program` is its net, its parameters and its
code for one kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, SupportsIndex, Unpack

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order, checked_engine, gradient_order, order_of
from stepnet.compiler.values.arguments import advised, file_path, flag, short_repr, unknown_argument
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.structure import leaves, named_leaves, transform
from stepnet.errors import InputError
from stepnet.model.control import MEANT, MEANT_OF_STREAMS, Controls, UncheckedCall
from stepnet.model.forms import FormedCall
from stepnet.model.jax_arrays import called_on_arrays, has_device_arrays, has_jax_arrays
from stepnet.model.program import REPLACED, Asked, Program, same_parameters
from stepnet.model.reading import Reading
from stepnet.model.specs import no_sequences, no_static, with_dtypes

if TYPE_CHECKING:
    from pathlib import Path

    from stepnet.compiler.targets.cuda.options import CudaPrecision
    from stepnet.compiler.targets.library import CallSpecification
    from stepnet.explain.document import TitledSection
    from stepnet.model.gradients.arguments import CallArguments, Cut, Places
    from stepnet.model.streams.layers import Layers, StreamedRecurrence
    from stepnet.model.streams.stream import Stream

MADE_WITH = {
    "step",
    "model",
    "params",
    "memory",
    "inputs",
    "statics",
    "reverse",
    "unroll",
    "until",
    "default_engine",
}
"""The attributes of models that stay as they were made."""


SET_BY = {"params": REPLACED, "default_engine": "to(device) returns a model that runs there"}
"""Advice for attributes that cannot be set, where it is not to make another model."""

OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("predict", "forward", "run", "apply"), "call the model itself, model(sequences)"),
    **dict.fromkeys(
        ("state_dict", "parameters", "weights", "get_weights"), "its parameters are model.params"
    ),
    **dict.fromkeys(("load_state_dict", "set_weights"), "with_params(params) returns a model with others"),
    **dict.fromkeys(("train", "eval"), "a model has no modes, and runs as it was when it was made"),
    **dict.fromkeys(("cuda", "cpu"), 'to("cuda") returns a copy that runs on a GPU, to("cpu") on the CPU'),
    **dict.fromkeys(("summary", "get_config"), "print(model.explain()), and stepnet show of a file"),
    **dict.fromkeys(("fit", "compile", "backward"), "stepnet.value_and_grad(loss, model) trains it"),
}
"""Advice for attributes that models of other libraries have, by their names."""


class Declaration(NamedTuple):
    """The inputs, statics and parameters that a model was made with.

    inputs, statics: the structures of the inputs and of the statics (values that each sequence has once),
        with a `Spec` (features and dtype) per value; None where the model was made without them.
    params: the parameters, in their structure.
    """

    inputs: Any
    statics: Any
    params: Any

    @property
    def typed(self) -> "Declaration":
        """The declaration with a dtype for each value: by default the floating dtype of the parameters; for
        statics (values that each sequence has once) the dtype of inputs and parameters.
        """
        if self.inputs is None:
            return self
        arrays = leaves(self.params)
        inputs = with_dtypes(self.inputs, arrays)
        return Declaration(inputs, with_dtypes(self.statics, arrays, inputs), self.params)


class Model(ABC):
    """Base class of the models: `RNN`, `Stack`, `Bidirectional` and `Graph`.

    Everything that runs, explains or exports a model takes any of them.

    Attributes:
        report: The choices of `stepnet.quantize`, and the errors on its samples; None where it made none.
        noun: The word for the model in messages.
        kinds: The kinds of arguments that have gradients, such as "params".
        frame_step: One step of a model in integers alone, which programs for devices are made of; else None.
        gives_final: Whether a call returns the final memories besides the outputs.
        until: The condition that ends the sequences of a recurrence early; None for none.
        programs: The compiled programs, one for each kind of inputs, with the latest one.
        ran_before: What ran calls before the model was made, where that was no code of its own; else None.
        default_engine: The engines that `engine="auto"` stands for; "auto" itself unless `to` made the model.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=(), inputs=())
    >>> isinstance(rnn, sn.Model), isinstance(sn.Stack([rnn]), sn.Model)
    (True, True)
    """

    report: Any = None
    frame_step: Any = None
    noun: ClassVar[str] = "recurrence"
    kinds: ClassVar[tuple[str, ...]] = ("params", "inputs", "initial", "statics")
    gives_final: ClassVar[bool] = True
    until: Any = None
    programs: Any
    ran_before: str | None = None
    default_engine: Order = "auto"

    # ---- the call

    def meant(self) -> Mapping[str, str]:
        """Returns advice for arguments that calls of this model do not have, by name, besides `MEANT`."""
        return {}

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
        **unknown: Any,
    ) -> Any:
        """Runs the model; returns the outputs and the last memory of each sequence, a `Graph` the outputs.

        Args:
            sequences: A `Ragged`, an array [batch, time, features...], or a structure of these as the model
                expects it.
            initial: The memory before the first step: arrays [batch, features...] in the structure of the
                memory. Zeros by default. A `Stack` takes a tuple with one entry per layer, a `Bidirectional`
                {"forward": ..., "backward": ...}, and a `Graph` the state of its stream.
            statics: Values that each sequence has once: arrays [batch, features...] in the structure of the
                statics, or a `Ragged` with sequences of its own for each sequence. Those of layers and
                directions have one entry for each.
            lengths: The length of each sequence of an array, [batch], where they differ.
            last_only: Whether to return only the last output of each sequence, [batch, features...]; zeros
                for an empty sequence.
            engine: An engine, or several in order of preference: each part of a `Graph` runs on the first
                that does not refuse it.
            mask: A bool for each step, in the form of the inputs. A step where it is False leaves the memory
                as it is.
            masked: The output at such a step: "repeat", the output of the step before (zeros where there is
                none), or "zero".
            begun: The number of steps of each sequence that were run in earlier calls, from which `index`
                counts on: a whole number, or an array [batch].
            time_major: Whether arrays of sequences, the mask and outputs are [time, batch, ...]. They are
                read and written in place.
            **unknown: None: other names are errors, which say the argument that is meant.

        Returns:
            The outputs in the form of the input: a `Ragged` for a `Ragged`, an array for an array, with zeros
            beyond the lengths. Outputs of a `Graph` that a sequence has once are [batch, features...]. Then,
            but for a `Graph`, the last memory of each sequence, [batch, features...], in the structure of the
            memory. Where an input is an array of JAX, or a `Ragged` of one, all these are, too. Where the
            inputs are arrays on a GPU, which `engine="cuda"` reads where they lie, they stay there, as arrays
            that other libraries take by DLPack.

        Raises:
            ArgumentError: For an argument by another name.
            InputError: For arguments that do not fit the model or one another. For a `Graph` that a stream
                cannot run, also for `initial`, `mask` and `begun`, with the operation that prevents it.
            StepError: For a step or model that cannot be traced, at the first call with such inputs.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
        >>> outputs, final = total(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]]), lengths=[3, 2])
        >>> outputs.tolist(), final.tolist()
        ([[1.0, 3.0, 6.0], [4.0, 9.0, 0.0]], [6.0, 9.0])
        >>> total(np.array([[1.0, 2.0, 3.0]]), mask=[[True, False, True]])[0].tolist()
        [[1.0, 1.0, 4.0]]
        >>> doubled = sn.Graph(lambda x, params: 2 * total(x)[0])
        >>> doubled(np.array([[1.0, 2.0, 3.0]]), initial=np.array([10.0])).tolist()
        [[22.0, 26.0, 32.0]]
        """
        formed = None
        if unknown:
            raise unknown_argument(
                f"a call of a {self.noun}", Model.__call__, unknown, {**MEANT, **self.meant()}
            )
        if statics is None and mask is None and begun is None and self.until is None:
            formed, results = self.programs.prepared(
                sequences, initial, lengths, last_only, engine, masked, time_major
            )
            if results is not None:
                return results
        control: Controls = {"mask": mask, "masked": masked, "begun": begun, "time_major": time_major}
        call = UncheckedCall(sequences, None, initial, statics, lengths, last_only, control, engine)
        if formed is None and has_device_arrays(sequences):
            with IMPORTS:  # late: few processes use a GPU
                from stepnet.model.device_arrays import called_on_device

            if self.until is not None:
                raise InputError("until= is not for arrays on a GPU: give arrays of the host")
            call = call._replace(engine=self.engine_order(engine))
            return called_on_device(self.gradient_reading, call, self.programs, self.gives_final)
        if has_jax_arrays(sequences):
            further = initial, statics, lengths, last_only, engine
            return called_on_arrays(lambda arrays: self(arrays, *further, **control), sequences)
        return self.unprepared(formed, call)

    def unprepared(self, formed: FormedCall | None, call: UncheckedCall) -> Any:
        """Runs a call that was not prepared; returns the outputs and the final memories.

        formed: the call by which later ones find it prepared; None for a call that is never prepared.
        """
        order, last_only = self.engine_order(call.engine), flag(call.last_only, "last_only")
        reading = self.read(
            call.sequences, call.initial, call.statics, call.lengths, last_only, **call.control
        )
        return reading.run(order, self.programs.calls, formed)

    # ---- defined by each kind of model

    @property
    @abstractmethod
    def program(self) -> Program:
        """The compiled program for the latest or declared inputs; raises `InputError` if there are none."""

    @property
    @abstractmethod
    def declaration(self) -> Declaration:
        """The inputs, statics and parameters that the model was made with."""

    @property
    @abstractmethod
    def ends_early(self) -> bool:
        """True if sequences may end before their last step, because a step has a condition `until=`."""

    @abstractmethod
    def with_params(self, params: Any) -> "Model":
        """Returns a copy of the model with other parameters; nothing is traced or compiled again."""

    @abstractmethod
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
    ) -> Any:
        """Runs the model; returns the value of every named variable at every step, for debugging. It takes
        the arguments of `RNN.trace_steps`.
        """

    @property
    @abstractmethod
    def described(self) -> list[str]:
        """The arguments with which the model was made, as its text has them in brackets."""

    @abstractmethod
    def gradient_reading(self, call: UncheckedCall) -> "tuple[Reading[Any], Cut | None]":
        """Checks the arguments of a call whose gradient is taken, but for its parameters.

        Returns them with the program whose net is differentiated, and the sequences cut at the steps where a
        condition `until` ended them; None in place of these without one.
        """

    @abstractmethod
    def for_stream(self, engine: Order) -> "StreamedRecurrence | Layers":
        """Returns the recurrences that a stream of the model runs; raises `InputError` for a model without
        streams. engine: the engines in order of preference.
        """

    def engine_order(self, asked: Asked) -> Order:
        """Checks the argument `engine` and returns it, with the model's own engines in place of "auto".
        Raises `InputError` for an engine that is not known.

        asked: the argument: an engine, or several in order of preference.
        """
        order, own = checked_engine(asked), self.default_engine
        if own == "auto" or "auto" not in (order, *order):
            return order
        if isinstance(order, str):
            return own
        return tuple(name for each in order for name in (order_of(own) if each == "auto" else (each,)))

    def gradient_order(self, asked: Asked) -> Order:
        """Checks a gradient's argument `engine`; returns its engines that run gradients, in order."""
        return gradient_order(self.engine_order(asked))

    @property
    def first_engine(self) -> Order:
        """The engines that `engine="auto"` stood for when the model was made, ahead of any `to`."""
        return "auto"

    def to(
        self, device: str, *, precision: "CudaPrecision" = "float32", batch_invariant: bool = False
    ) -> Self:
        """Returns a copy of the model that runs on a device wherever `engine="auto"` is left: in calls,
        streams, generation, gradients and explanations. Nothing is traced again.

        Parameters are brought to the device at the first use there, and stay there. The device is that of the
        model's own calls: as a layer of another model it runs where that one does. It is copied and pickled
        with the model, and not saved by `save`.

        Args:
            device: "cuda" for the first GPU, "cuda:1" for the second and so on, "cuda-emulated" for an
                emulation of one, or "cpu" for what the model had at first.
            precision: The numbers that float32 is multiplied as on a GPU: "float32", or "tf32" or "bfloat16",
                which are faster and round them to 10 bits or to 7. Other dtypes, such as float64, are
                multiplied as they are.
            batch_invariant: Whether a sequence has the same bits in every batch, whatever is faster.

        Returns:
            A new model of the same class. The old one is unchanged.

        Raises:
            InputError: For another device or precision, and for options of a GPU with "cpu".
            DeviceError: If there is no such GPU here, with the reason.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=sn.Spec((), "float32"))
        >>> there = rnn.to("cuda-emulated", precision="tf32")
        >>> print(there)
        RNN(<lambda>, memory=array) on cuda-emulated:tf32
        >>> there(np.ones((1, 3), "float32"))[1].tolist()
        [3.0]
        """
        with IMPORTS:  # late: few processes use a GPU
            from stepnet.model.devices import engine_on

        return self.on_engine(engine_on(device, precision, batch_invariant) or self.first_engine)

    def on_engine(self, order: Order) -> Self:
        """Returns a copy of the model whose `engine="auto"` stands for other engines; itself if it does
        already.

        order: the engines in order of preference.
        """
        if order == self.default_engine:
            return self
        made = object.__new__(type(self))
        vars(made).update(vars(self) | {"default_engine": order, "programs": self.programs.with_own_calls()})
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Copies and pickles the model as its class does, and the engines that `to` chose."""
        made: Any = super().__reduce_ex__(protocol)
        is_whole = self.default_engine == self.first_engine or len(made) > 2  # with all attributes
        return made if is_whole else (*made, {"default_engine": self.default_engine})

    @property
    def gradient_refusal(self) -> str | None:
        """The reason why the model has no gradient: None here; a subclass may have one for some models."""
        return None

    @property
    def change_check(self) -> Callable[[], None] | None:
        """A function that raises `InputError` if the traced model has changed; here None."""
        return None

    def by_recurrence(self, value: Any, what: str) -> Any:
        """Returns an argument of a call in the structure that its gradients have: here unchanged. Layers,
        which override this, split it into one entry per recurrence.

        what: the name of the argument in messages.
        """
        return value

    def as_layers(self, sequences: Any, initial: Any, statics: Any, engine: Order) -> "tuple[Model, Any]":
        """Returns a model that gives its final memories besides its outputs, and the memories that a call
        begins with: here the model itself, and `initial`. A graph, which overrides this, returns one
        recurrence that computes the same.

        sequences, initial, statics, engine: the arguments of the call.
        """
        return self, initial

    # ---- shared by all models

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; raises `InputError` for one of the constructor, which is compiled in."""
        if name in MADE_WITH and name in vars(self):
            advice = SET_BY.get(name, f"make another model, with {name}=")
            raise InputError(f"the {name} of this {type(self).__name__} cannot be set: {advice}")
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # a checker of types would take any attribute for one that is there

        def __getattr__(self, name: str) -> Any:
            """Raises `AttributeError`, with advice for an attribute that models of other libraries have."""
            advice = f": {OF_OTHERS[name]}" if name in OF_OTHERS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{advice}")

    def __repr__(self) -> str:
        """Returns the class of the model, its function or layers, and the engines that `to` chose."""
        return f"{type(self).__name__}({', '.join(self.described)}){self.on_device}"

    @property
    def on_device(self) -> str:
        """The engines that `to` chose, as the text of the model has them, such as " on cuda"; else ""."""
        own = self.default_engine
        return "" if own == self.first_engine else f" on {', '.join(order_of(own))}"

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool = False,
        **control: Unpack[Controls],
    ) -> Reading[Any]:
        """Checks the arguments of a call; returns their arrays with the program that runs it, made for their
        dtypes and features. It takes the arguments of `Model.__call__`. Raises `InputError` for arguments
        that do not fit.
        """
        return self.programs.read(sequences, initial, statics, lengths, last_only, **control)

    def reading(self, sequences: Any, statics: Any = None, last_only: bool = False) -> Reading[Any]:
        """Checks the sequences and statics (values that each sequence has once) of a call; returns them with
        the program that runs the call.

        last_only: whether the call returns only the last output of each sequence.
        """
        return self.read(sequences, None, statics, None, last_only)

    def outputs(self, sequences: Any, last_only: bool, engine: Asked) -> Any:
        """Runs the model; returns its outputs without the final memories. last_only: whether to return only
        the last output of each sequence. engine: the engines in order of preference.
        """
        results = self(sequences, last_only=last_only, engine=engine)
        return results[0] if self.gives_final else results

    @property
    def net(self) -> Net:
        """The net (graph of typed operations) of the whole model, as traced for the latest inputs."""
        return self.program.net

    @property
    def plan(self) -> Plan:
        """The plan of the model: the operations that run once, before, in and after the loop over the steps.
        Raises `InputError` for a model that runs in several parts with a plan each.
        """
        return self.program.plan

    @property
    def schedule(self) -> Schedule:
        """The parts of the model in the order they run, each with its plan; often there is a single part."""
        return self.program.schedule

    def schedules(self, inputs: Any, last_only: bool, engine: Order) -> list[Schedule]:
        """Returns the schedules (nets cut into parts) that a call on such inputs runs, in order.

        inputs: the `Spec`s (features and dtypes) of the inputs.
        last_only: whether the call returns only the last output of each sequence.
        engine: the engines in order of preference.
        """
        return [self.reading(transform(no_sequences, inputs), None, last_only).running.schedule_for(engine)]

    def specification(self, declared: Declaration, engine: Order) -> "CallSpecification":
        """Returns the arrays that a call takes and gives, with its schedule (the net cut into parts) and its
        parameters.

        declared: the inputs and statics (values that each sequence has once) of the call, with dtypes.
        engine: the engines in order of preference.
        """
        with IMPORTS:  # late: few processes build a library
            from stepnet.model.specification import specification_of

        inputs, statics = transform(no_sequences, declared.inputs), transform(no_static, declared.statics)
        program = self.reading(inputs, statics).running
        return specification_of(program, program.schedule_for(engine))

    def digest(self, inputs: Any, last_only: bool, engine: Order) -> str:
        """Returns a digest that identifies the function that a call on such inputs computes.

        inputs: the `Spec`s (features and dtypes) of the inputs. last_only, engine: whether the call returns
            only the last output of each sequence, and the engines in order of preference.
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.model.specification import digest_of

        return digest_of(self.schedules(inputs, last_only, engine), leaves(self.declaration.params))

    def bytes_between(self, inputs: Any, last_only: bool, engine: Order) -> list[tuple[int, int]]:
        """Returns (level, bytes per entry) of each value that a call hands from one part of its schedule (the
        net cut into parts) to another.

        Level 0 has an entry per sequence, level 1 one per step, level -1 one per pair of steps of a sequence.
        inputs: the `Spec`s (features and dtypes) of the inputs. last_only, engine: whether the call returns
        only the last output of each sequence, and the engines in order of preference.
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.model.specification import bytes_between

        schedules = self.schedules(inputs, last_only, engine)
        return [held for schedule in schedules for held in bytes_between(schedule)]

    def gradient_call(self, call: UncheckedCall) -> "CallArguments":
        """Checks the arguments of a call whose gradient is taken; returns them as the inputs of a net, with
        an object that arranges gradients in their structures.
        """
        with IMPORTS:  # late: few processes train
            from stepnet.model.gradients.arguments import CallArguments

        own = self.declaration.params
        params = own if call.params is None else same_parameters(call.params, own, self.noun)
        reading, cut = self.gradient_reading(call._replace(params=params))
        statics = self.by_recurrence(call.statics, "statics")
        return CallArguments.of(reading, own, params, statics, self.gives_final, cut, self.programs)

    def gradient_program(self) -> "tuple[Program, Places]":
        """Returns the program whose gradient is taken, and the positions of its inputs by kind of argument.

        It is that for the latest or declared inputs; raises `InputError` if they are not known.
        """
        with IMPORTS:  # late: few processes train
            from stepnet.model.gradients.arguments import places_of

        program = self.program
        return program, places_of(program, self.declaration.params, len(program.ends.sequences))

    def explain(
        self,
        engine: Asked = "auto",
        *,
        rows: int | None = None,
        steps: int | None = None,
        lengths: Sequence[int] | None = None,
        max_steps: int | None = None,
        beams: int | None = None,
        sampler: Any = None,
        feed: Any = None,
        scores: Any = None,
    ) -> str:
        """Returns the plan as text: the parts in the order they run, their work and costs, and their engines.

        Args:
            engine: An engine, or several in order of preference.
            rows: The number of sequences of a call, whose estimated time and division among threads are
                added; of 100 steps each, unless `steps` says otherwise. For layers, the text also says which
                of them run at the same time.
            steps: The number of steps of each sequence of such a call; of one sequence, unless `rows` says
                otherwise.
            lengths: The steps of each sequence of such a call, if they differ, in place of `rows` and
                `steps`.
            max_steps: The largest number of symbols of a sequence. With it the text says how `generate` runs
                the model for `rows` sequences: where symbols are chosen, and in how many calls.
            beams: The number of sequences that `beam_search` keeps for each start, to explain that one.
            sampler: The sampler, as for `generate`.
            feed: The inputs for symbols, as for `generate`.
            scores: The function from outputs to scores, as for `generate`.

        Returns:
            One line per operation, by phase, with the floating-point operations and the bytes of parameters
            of each phase, and the engine that runs it; for layers under the name of each.

        Raises:
            InputError: Before the inputs are known, for an engine that is not known, for sizes that no call
                has, and for a generation by a model that generates no symbols.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, p: (x @ p + h, h), np.ones((3, 2), "float32"), memory=2, inputs=3)
        >>> "x @ p" in rnn.explain()
        True
        >>> "threads, for 4 sequences of 20 steps" in rnn.explain(rows=4, steps=20)
        True
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.explain.plan import checked_size
            from stepnet.explain.text import text

        order, asked = self.engine_order(engine), (max_steps, beams, sampler, feed, scores)
        if any(each is not None for each in asked):
            with IMPORTS:  # by name: models are not made of it, and it is made of models
                generation: Any = import_module("stepnet.explain.generation")
            return text(generation.explained(self, order, asked, rows, steps, lengths))
        return text(self.explained(order, checked_size(rows, steps, lengths)))

    def explained(self, order: Order, size: CallSize | None) -> "list[TitledSection]":
        """Returns the sections of the text of `explain`. order: the engines in order of preference. size: the
        size of a call whose times are added; None for no call.
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.explain.document import TitledSection
            from stepnet.explain.plan import schedule_sections

        sections = schedule_sections(self.program.schedule_for(order), order, size)
        before = [] if self.ran_before is None else [TitledSection("", (self.ran_before,))]
        return [*before, *sections]

    def draw(self, path: "str | Path | None" = None, engine: Asked = "auto", *, force: bool = False) -> str:
        """Returns a drawing of the model as text, and writes it as a picture if a path is given.

        Each part that an engine runs is a box with its cell, if that is a known one, its other operations and
        its engine. Values between the parts are lines with the sizes of one element.

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
        order, program = self.engine_order(engine), self.program
        names = [name or "output" for name, _ in named_leaves(program.output)]
        names += [f"final {name}".strip() for name, _ in named_leaves(program.memory)]
        with IMPORTS:  # by name: it takes time, and few calls draw
            drawing: Any = import_module("stepnet.explain.svg")
        made = drawing.picture(program.net, program.schedule_for(order), names, order)
        if path is not None:
            drawing.write(made, file_path(path), flag(force, "force"))
        return str(made)

    @advised(overwrite="force=True replaces an existing file")
    def save(self, path: "str | Path", *, force: bool = False) -> None:
        """Writes the model to a file, from which `stepnet.load` reads it without its code or its framework.

        The file has the net of the model, for the inputs that it was last called with or declares, and its
        parameters. It is a .safetensors file, whose arrays other programs can read too.

        Args:
            path: The file to write, whose name ends in `.stepnet`.
            force: Whether to replace an existing file.

        Raises:
            InputError: Before the inputs are known, and for another ending of the name.
            FileError: If the file exists, unless `force`, or cannot be written.

        >>> import tempfile
        >>> import numpy as np
        >>> import stepnet as sn
        >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=(), inputs=sn.Spec((), "float32"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     total.save(f"{folder}/total.stepnet")
        ...     again = sn.load(f"{folder}/total.stepnet")
        >>> again(np.float32([[1, 2, 3]]))[1]
        array([6.], dtype=float32)
        """
        with IMPORTS:  # by name: it takes time, and few processes save a model
            stored: Any = import_module("stepnet.model.stored.write")
        stored.save(self, path, flag(force, "force"))

    def stream(
        self,
        rows: int = 1,
        initial: Any = None,
        statics: Any = None,
        engine: Asked = "auto",
        *,
        begun: Any = None,
        **unknown: Any,
    ) -> "Stream":
        """Returns a stream, which runs the whole model one step at a time: `stream.step(x)`.

        A value that a call returns once per sequence, such as the last output, is returned at each step, as
        if the sequence ended there.

        Args:
            rows: The number of sequences that are stepped together, from 0 on; see `Stream.add`.
            initial: The memory before the first step, in the structure of `stream.state`: that of an `RNN`
                as for a call, of a `Stack` a tuple with one entry per layer, of a `Graph` with one for each
                recurrence in the order that they run. By default the memory that the model begins with.
            statics: Values that each row has once, as for a call.
            engine: An engine, or several in order of preference.
            begun: The number of steps that were run before, from which `index` counts on.
            **unknown: None: other names are errors, which say the argument that is meant.

        Returns:
            A `Stream`. Its outputs have the same bits as those of a call over the whole sequences. With
            `engine="interpret"` those of a `Graph` agree up to rounding.

        Raises:
            ArgumentError: For an argument by another name.
            InputError: For arguments that do not fit, and for a model that needs later steps: one with a
                recurrence from the last step or with `until`, a mean over the steps, attention over them, or
                a final memory that is read at each step. Where the inputs of a `Graph` are not known yet, at
                the first step.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
        >>> stream = total.stream(rows=2)
        >>> stream.step(np.array([1.0, 2.0])).tolist(), stream.step(np.array([10.0, 20.0])).tolist()
        ([1.0, 2.0], [11.0, 22.0])
        >>> stream = sn.Graph(lambda x, params: total(2 * x)[0] + 1).stream(rows=1)
        >>> [float(stream.step(np.array([x]))[0]) for x in (1.0, 2.0, 3.0)]
        [3.0, 7.0, 13.0]
        """
        if unknown:
            raise unknown_argument("stream", Model.stream, unknown, MEANT_OF_STREAMS)
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.streams.stream import Stream

        order = self.engine_order(engine)
        return Stream(self.for_stream(order), rows, initial, statics, order, begun)


def differentiable(model: Any) -> Model:
    """Returns a model unchanged; raises `InputError` for a value that is not a model, or has no gradient."""
    if checked_model(model, "gradients are of").gradient_refusal is not None:
        raise InputError(model.gradient_refusal)
    return model


def checked_model(model: Any, what: str) -> Model:
    """Returns a model unchanged; raises `InputError` for a value that is not a model. what: the beginning of
    the message, ahead of the list of models.
    """
    if not isinstance(model, Model):
        raise InputError(
            f"{what} an RNN, a Stack, a Bidirectional or a Graph, not {short_repr(model)}: give a model such "
            "as sn.RNN(step, ...) or sn.load(path)"
        )
    return model


def gradient_kinds(model: Model, initial: Any) -> tuple[str, ...]:
    """Returns the kinds of arguments that have gradients; of a graph, "initial" only if it is given."""
    return model.kinds if initial is None else Model.kinds
