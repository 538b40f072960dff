"""Recurrences that run as one: `Combination`, the base class of `Stack` and `Bidirectional`.

stack(x) runs one net of all layers, which `layers.Wiring` makes. It calls each layer on its own where a layer
ends sequences early, and inside the step of another recurrence.
"""

from typing import TYPE_CHECKING, Any, Self, Unpack

from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import REFERENCE, Order
from stepnet.compiler.trace.traced import is_traced
from stepnet.compiler.values.arguments import flag
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import named
from stepnet.model.blank import blank_program
from stepnet.model.control import Controls, UncheckedCall
from stepnet.model.forms import FormedCall
from stepnet.model.layers import Combined, LayerPrograms, LayersProgram, recurrences_of
from stepnet.model.reading import Reading
from stepnet.model.recurrence import RNN

if TYPE_CHECKING:
    from stepnet.compiler.plan.load import CallSize
    from stepnet.explain.document import TitledSection


class Combination(Combined):
    """Layers or directions that run as one model: the base class of `Stack` and `Bidirectional`."""

    programs: LayerPrograms[Combined]

    # ---- running them

    def unprepared(self, formed: FormedCall | None, call: UncheckedCall) -> tuple[Any, Any]:
        """Runs a call that was not prepared, of all layers or directions as one net where their sequences
        have one length.

        `initial`, `statics` and the final memories have one entry per part: tuples by layer for a `Stack`,
        {"forward": ..., "backward": ...} for a `Bidirectional`.
        """
        if is_traced(call.sequences):
            return self.part_by_part(call)
        if self.ends_early:
            return self.part_by_part(call._replace(engine=self.engine_order(call.engine)))
        return super().unprepared(formed, call)

    def part_by_part(self, call: UncheckedCall) -> tuple[Any, Any]:
        """Runs each layer or direction by its own call; returns the outputs and the final memories.

        Layers run this way inside a step, and where sequences may end early, by a condition `until`: the
        lengths of a layer's sequences are then known only after the layers below have run.

        `initial` and `statics` have an entry per layer or direction.
        """
        last_only = flag(call.last_only, "last_only")
        initial_parts, static_parts = (
            self.by_part(value, name)
            for value, name in ((call.initial, "initial"), (call.statics, "statics"))
        )
        outputs, final = list[Any](), list[Any]()
        for place, (name, part) in enumerate(zip(self.part_names, self.layers, strict=True)):
            x, last = self.input_of(call.sequences, outputs), last_only and self.ends_with(place)
            own = initial_parts[place], static_parts[place]
            with named(name):
                output, memory = part(x, *own, call.lengths, last, call.engine, **call.control)
            outputs.append(output)
            final.append(memory)
        return self.output_of(outputs, last_only), self.joined(final)

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        **control: Unpack[Controls],
    ) -> Any:
        """Runs all parts and returns the value of every named variable at every step, for debugging.

        It has the arguments and errors of `RNN.trace_steps`.

        Returns:
            One entry per part, each as `RNN.trace_steps` returns it: a tuple for a `Stack`, {"forward": ...,
            "backward": ...} for a `Bidirectional`.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> def step(x, h, params):
        ...     doubled = 2 * x
        ...     return doubled, h
        >>> stack = sn.Stack([sn.RNN(step, memory=()), sn.RNN(step, memory=())])
        >>> stack.trace_steps(np.array([[1.0, 2.0]]))[1]["doubled"].to_list()
        [array([4., 8.])]
        >>> both = sn.Bidirectional(sn.RNN(step, memory=()), sn.RNN(step, memory=(), reverse=True))
        >>> both.trace_steps(np.array([[1.0, 2.0]]))["backward"]["doubled"].to_list()
        [array([2., 4.])]
        """
        initial_parts, static_parts = self.by_part(initial, "initial"), self.by_part(statics, "statics")
        outputs, scopes = list[Any](), list[Any]()
        for place, (name, part) in enumerate(zip(self.part_names, self.layers, strict=True)):
            call = self.input_of(sequences, outputs), initial_parts[place], static_parts[place], lengths
            with named(name):
                scopes.append(part.trace_steps(*call, **control))
                if not self.ends_with(place):
                    outputs.append(part(*call, engine=REFERENCE, **control)[0])
        return self.joined(scopes)

    # ---- members of every model

    @property
    def program(self) -> LayersProgram:
        """The compiled program for the latest or declared inputs; raises `InputError` if they are unknown."""
        self.follow_calls()
        return blank_program(self.programs)

    def follow_calls(self) -> None:
        """Notes, for `explain`, which program of each recurrence ran in the latest call of the layers."""
        if (latest := self.programs.latest) is not None:
            for rnn, program in zip(recurrences_of(self), latest.of_parts, strict=True):
                rnn.programs.latest = program

    def gradient_reading(self, call: UncheckedCall) -> tuple[Reading[LayersProgram], None]:
        """Returns the checked arguments of a call whose gradient is taken, with their program, and None.

        A recurrence with a condition `until` returns its sequences, cut to the steps that ran, in place of
        None. No sequence of layers ends early.
        """
        reading = self.read(
            call.sequences, call.initial, call.statics, call.lengths, call.last_only, **call.control
        )
        return reading, None

    def with_params(self, params: Any) -> Self:
        """Returns a copy of the layers with other parameters.

        Args:
            params: The new parameters, one entry per part: a tuple for a `Stack`, {"forward": ...,
                "backward": ...} for a `Bidirectional`. Each has the structure, shapes and dtypes of the old
                ones.

        Raises:
            InputError: For another structure, or other shapes or dtypes.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> scaled = sn.RNN(lambda x, h, p: (x * p, h), np.ones(1, "float32"), memory=1)
        >>> params = [np.full(1, 2, "float32"), np.full(1, 3, "float32")]
        >>> stack = sn.Stack([scaled, scaled]).with_params(params)
        >>> stack(np.ones((1, 2, 1), "float32"))[0].sum()
        np.float32(12.0)
        """
        layers = list[RNN | Combined]()
        own = self.by_part(params, "params")
        for name, part, one in zip(self.part_names, self.layers, own, strict=True):
            with named(name):
                layers.append(part.with_params(one))
        return self.with_layers(layers, self.report)

    def schedules(self, inputs: Any, last_only: bool, engine: Order) -> list[Schedule]:
        """Returns the schedules (nets cut into parts) that a call runs: one per recurrence if sequences may
        end early (by `until`), else that of all as one net.

        inputs: the `Spec`s (features and dtypes) of the inputs.
        last_only, engine: the arguments of the call.
        """
        if self.ends_early:
            return [rnn.program.schedule_for(engine) for rnn in recurrences_of(self)]
        return super().schedules(inputs, last_only, engine)

    def explained(self, order: Order, size: "CallSize | None") -> "list[TitledSection]":
        """Returns the sections of the text of `explain`: the plan of each layer (which operation runs when)
        under its name.

        order: the engines in order of preference.
        size: the size of a call, for which layers that run at the same time are listed first; None for no
            call. Layers whose sequences may end early (by `until`) run one by one.
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.explain.document import TitledSection
            from stepnet.explain.facts import choice
            from stepnet.explain.plan import shared_items, stream_items, time_sections

        parts = self.part_sections(order, size)
        if self.ends_early or size is None:
            return parts
        schedule = self.program.schedule_for(order)
        made = (
            ("threads", shared_items(schedule, choice(schedule, order)[0], size)),
            ("streams", stream_items(schedule, order, size)),
        )
        sections = [TitledSection(title, tuple(items)[1:]) for title, items in made]  # without the gap ahead
        times = time_sections(schedule, order, size)
        return [*(section for section in sections if section.items), *times, *parts]

    def part_sections(self, order: Order, size: "CallSize | None") -> "list[TitledSection]":
        """Returns the sections of the text of `explain` for all layers: the plan of each (which operation
        runs when) under its name.

        order: the engines in order of preference.
        size: the size of a call whose threads and times are added; None for no call.
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.explain.document import headed

        self.follow_calls()
        made: list[TitledSection] = []
        for name, part in zip(self.part_names, self.layers, strict=True):
            with named(name):
                inner = part.part_sections if isinstance(part, Combination) else part.explained
                made += headed(f"{name}:", inner(order, size))
        return made
