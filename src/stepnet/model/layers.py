"""Layers and directions as one net, with all recurrences and the operations that merge their outputs.

    Stack([gru, Bidirectional(f, b)])   ->   h1 = recur(x; gru)
                                             a, b = recur(h1; f), recur(h1; b, reverse)
                                             y = concat(a, b)

One program runs them all: nothing is checked or laid out between two recurrences.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Generic, Self, TypeVar

import numpy as np

from stepnet.compiler.net.ir import Builder, Net, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, extent_of
from stepnet.compiler.targets import Order
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.arguments import flag
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild, titled_leaves, transform
from stepnet.errors import InputError, named
from stepnet.model.batch import Batch
from stepnet.model.control import Control
from stepnet.model.declared import check_masked
from stepnet.model.initial import initial_arrays
from stepnet.model.model import Declaration, Model
from stepnet.model.program import Program, StepProgram
from stepnet.model.programs import Programs
from stepnet.model.reading import NO_LAST, Reading, call_of
from stepnet.model.recurrence import RNN
from stepnet.model.specs import check_inputs
from stepnet.model.statics import Statics

Array = np.ndarray


class Combined(Model):
    """Layers or directions that run as one model: access to the parts. `Combination` runs them.

    Arguments and results that belong to the parts have one entry per part, in a structure of each subclass.

    layers: the parts, in the order they run.
    """

    layers: "tuple[RNN | Combined, ...]"

    @property
    @abstractmethod
    def part_names(self) -> tuple[str, ...]:
        """The names of the model's parts (layers or directions) in error messages, such as "layer 0"."""

    @abstractmethod
    def by_part(self, value: Any, what: str) -> tuple[Any, ...]:
        """Splits an argument, named `what`, by part (layer or direction); else raises `InputError`."""

    @abstractmethod
    def joined(self, values: list[Any]) -> Any:
        """Joins values, one per part (layer or direction), into a tuple by layer or a dict by direction."""

    @abstractmethod
    def input_of(self, sequences: Any, outputs: list[Any]) -> Any:
        """Returns the input of the next layer or direction, from the call's sequences or earlier outputs."""

    @abstractmethod
    def ends_with(self, place: int) -> bool:
        """Tells whether a call for last outputs needs only the last output of the part at `place`."""

    @abstractmethod
    def output_of(self, outputs: list[Any], last_only: bool) -> Any:
        """Returns the output of these layers or directions together: the top layer's, or both merged.

        outputs: the outputs of each layer or direction, in order.
        last_only: whether the outputs have the last step alone.
        """

    @abstractmethod
    def with_params(self, params: Any) -> Self:
        """Returns a copy with other parameters, in a tuple by layer or a dict by direction."""

    @abstractmethod
    def with_layers(self, layers: "Sequence[RNN | Combined]", report: Any = None) -> Self:
        """Returns a copy with other parts (layers or directions), and with the report of a quantization."""

    @property
    def declaration(self) -> Declaration:
        """The inputs and parameters of the recurrences; statics are None, as each call has its own."""
        return Declaration(next(recurrences_of(self)).inputs, None, self.params)

    @property
    def params(self) -> Any:
        """The parameters of all parts (layers or directions): a tuple by layer, or a dict by direction."""
        return self.joined([part.params for part in self.layers])

    @property
    def ends_early(self) -> bool:
        """True if sequences may end before their last step, by the `until` of a recurrence."""
        return any(rnn.until is not None for rnn in recurrences_of(self))

    @property
    def gradient_refusal(self) -> str | None:
        """The reason why layers with `until` have no gradient together; None for others."""
        early = "layers with until= have no gradient together: take vjp of each, one by one"
        return early if self.ends_early else None

    def by_recurrence(self, value: Any, what: str) -> Any:
        """Splits an argument by recurrence, in the structure of `params`. what: its name in messages."""
        parts = zip(self.layers, self.by_part(value, what), strict=True)
        return self.joined([part.by_recurrence(own, what) for part, own in parts])


Layer = RNN | Combined
Kind = TypeVar("Kind", bound=Layer)


def recurrences_of(layer: "RNN | Combined") -> Iterator[RNN]:
    """Yields every recurrence of a layer in the order they run: the layer itself, or at any depth the parts
    of a stack or of two directions.
    """
    if isinstance(layer, RNN):
        yield layer
        return
    for part in layer.layers:
        yield from recurrences_of(part)


@dataclass(frozen=True)
class LayerArguments:
    """One recurrence of a layer, with the caller's arguments for it.

    names: the names of the layers and directions that it is in, outermost first, for messages.
    initial: its initial memory, which is not checked yet.
    """

    rnn: RNN
    names: tuple[str, ...]
    initial: Any
    statics: Statics


def leaves_of(
    layer: Layer, initial: Any, statics: Any, count: int, names: tuple[str, ...] = ()
) -> list[LayerArguments]:
    """Lists every recurrence of a layer with its initial memory and its statics (values that each sequence
    has once), in the order they run.

    layer: an `RNN`, or layers or directions that run as one.
    initial, statics: the arguments of the call, with an entry per layer or direction.
    count: the number of sequences.
    names: the names of the layers and directions that the layer is in, for messages.
    """
    if isinstance(layer, RNN):
        with named(*names):
            return [LayerArguments(layer, names, initial, Statics.of(statics, count))]
    with named(*names):
        initial_parts, static_parts = layer.by_part(initial, "initial"), layer.by_part(statics, "statics")
    parts = zip(layer.part_names, layer.layers, initial_parts, static_parts, strict=True)
    return [leaf for name, part, h, s in parts for leaf in leaves_of(part, h, s, count, (*names, name))]


@dataclass(frozen=True)
class BuiltRecurrence:
    """A recurrence that was added to the net of its layers, with its inputs and results there.

    memory, last: the `Spec`s (features, dtypes) of its memory, as carried and as a call returns it.
    memories, statics, params: the numbers of its inputs in the net.
    final: the numbers of its final memories.
    """

    rnn: RNN
    program: StepProgram
    memory: Any
    last: Any
    memories: list[int]
    statics: list[int]
    params: list[int]
    final: list[int]


class LayersProgram(Program):
    """The program of layers as one net, which runs all recurrences and the operations between them.

    memories_of: the structure of each recurrence's memory, in the order they run.
    of_parts: the program of each recurrence alone.
    steps: the programs of one step of all layers, by the engines requested; None where there is none.
    """

    def __init__(self, net: Net, output: Any, memory: Any, last: Any, parts: list[BuiltRecurrence]) -> None:
        """Collects the parameters and memories of the recurrences, `parts`, which the net runs in order.

        output, memory: the structures of the layers' outputs and memories.
        last: the `Spec`s (features and dtypes) of the final memories that a call returns.
        """
        count = len(leaves(memory))
        params = [array for part in parts for array in leaves(part.rnn.params)]
        super().__init__(net, output, memory, last, count, params)
        self.memories_of = [part.memory for part in parts]
        self.of_parts = [part.program for part in parts]
        self.steps = dict[Order, StepProgram | None]()

    def with_params(self, params: Any) -> Self:
        """Returns a copy of the program with other parameters of the same shapes and dtypes; it shares
        machine code.
        """
        made = super().with_params(params)
        made.steps = {}
        return made


class LayerPrograms(Programs[LayersProgram], Generic[Kind]):
    """The programs that run a layer as one net, one for each kind of call so far."""

    def __init__(self, layer: Kind) -> None:
        """Stores the layer; programs are made at first use."""
        super().__init__()
        self.layer = layer

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the layers alone: a copy makes its programs anew."""
        return LayerPrograms, (self.layer,)

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool,
        *,
        mask: Any = None,
        masked: str = "repeat",
        begun: Any = None,
        time_major: bool = False,
    ) -> Reading[LayersProgram]:
        """Checks the arguments of a call of the layers (a stack or two directions); returns a `Reading`: the
        arrays, with the program for their dtypes and features. Raises `InputError` for wrong arguments.

        It takes the arguments of `Model.__call__`, but `initial` and `statics` have an entry per part (layer
        or direction); errors name the part.
        """
        check_masked(masked)
        argument = next(recurrences_of(self.layer)).arguments[0]
        batch = Batch.of(sequences, lengths, flag(time_major, "time_major"), argument=argument)
        parts = with_distinct_axes(leaves_of(self.layer, initial, statics, batch.count))
        program = self.program_for(batch, parts, last_only, None if mask is None else masked)
        memories: list[Array | None] = []
        for part, memory in zip(parts, program.memories_of, strict=True):
            with named(*part.names):
                memories += initial_arrays(part.initial, memory, batch.count, part.rnn.arguments[1])
        call = call_of(batch, memories, [part.statics for part in parts], False, mask, begun)
        return Reading(batch, program, program, call, ends=False)

    def program_for(
        self, batch: Batch, parts: list[LayerArguments], last_only: bool, masked: str | None
    ) -> LayersProgram:
        """Returns the program for arguments of these dtypes, features and levels of nested sequences, made at
        first use.

        batch: the sequences of the call.
        parts: the recurrences with their arguments.
        last_only: whether the program returns only the last output of each sequence.
        masked: the output at steps that a mask leaves out; None without a mask.
        """

        def made() -> LayersProgram:
            """Builds the net of the layers for these arguments, and makes its program."""
            with paused_collector():
                return Wiring(batch, parts, Control(masked)).program(self.layer, last_only)

        key = *batch.key, *(part.statics.key for part in parts), last_only, masked
        return self.for_arrays(key, made)


def with_distinct_axes(parts: list[LayerArguments]) -> list[LayerArguments]:
    """Returns copies of recurrences' arguments whose static sequences (such as the keys of attention, which
    every step reads whole) can be inputs of one net.

    An axis is renamed where another recurrence has its name for sequences of other lengths.
    """
    known: dict[str, Array] = {}
    return [
        LayerArguments(part.rnn, part.names, part.initial, part.statics.beside_others(known))
        for part in parts
    ]


@dataclass
class Wiring:
    """The net of layers while it is built.

    batch: the sequences of a call, for whose dtypes and features it is built.
    parts: the recurrences with their arguments, in the order they run.
    control: the control (mask) of all steps.
    made: the recurrences that were added so far.
    """

    batch: Batch
    parts: list[LayerArguments]
    control: Control
    builder: Builder = field(default_factory=Builder)
    made: list[BuiltRecurrence] = field(default_factory=list[BuiltRecurrence])

    def program(self, layer: Layer, last_only: bool) -> LayersProgram:
        """Builds one net of a layer (a recurrence, a stack or two directions) and all layers in it, for the
        inputs of the call; returns its program. With `last_only` the net returns only the last output of each
        sequence.
        """
        specs = leaves(self.batch.specs)
        names = [name or "x" for name, _ in named_leaves(self.batch.structure)]
        inputs = [
            self.builder.input(Type(extent_of(2 + spec.levels), spec.shape, str(spec.dtype)), name)
            for name, spec in zip(names, specs, strict=True)
        ]
        x = rebuild(self.batch.structure, [Traced(self.builder, number) for number in inputs])
        if self.control:
            inputs.append(self.builder.input(Type(STEPS, (), "bool"), "mask"))
        self.mask = inputs[len(specs) :]
        output, memory = self.added(layer, x, last_only)
        results = [leaf.number for leaf in leaves(output)]
        results += [number for part in self.made for number in part.final]
        order = [*inputs, *(n for part in self.made for n in part.memories)]
        order += [n for part in self.made for n in part.statics]
        order += [n for part in self.made for n in part.params]
        net = with_inputs(self.builder, order, results)
        blank = rebuild(output, [0] * len(leaves(output)))
        last = rebuild(memory, [spec for part in self.made for spec in leaves(part.last)])
        return LayersProgram(net, blank, memory, last, self.made)

    def added(self, layer: Layer, x: Any, last_only: bool, names: tuple[str, ...] = ()) -> tuple[Any, Any]:
        """Adds a layer to the net that is built; returns its outputs and the structure of its memory.

        x: the values of the net that the layer reads.
        last_only: whether to return only the last output of each sequence.
        names: the names of the layers and directions that the layer is in, for messages.
        """
        if isinstance(layer, RNN):
            with named(*names):
                return self.recurrence(self.parts[len(self.made)], x, last_only)
        outputs: list[Any] = []
        memories: list[Any] = []
        for place, (name, part) in enumerate(zip(layer.part_names, layer.layers, strict=True)):
            last = last_only and layer.ends_with(place)
            output, memory = self.added(part, layer.input_of(x, outputs), last, (*names, name))
            outputs.append(output)
            memories.append(memory)
        with named(*names):
            return layer.output_of(outputs, last_only), layer.joined(memories)

    def recurrence(self, part: LayerArguments, x: Any, last_only: bool) -> tuple[Any, Any]:
        """Adds one recurrence to the net that is built; returns its outputs and the structure of its memory.

        Memories that a mask adds begin with zeros, and are no inputs of the net.

        part: the recurrence, with its statics (values that each sequence has once).
        x: the values of the net that it reads.
        last_only: whether to return only the last output of each sequence.
        """
        rnn, builder = part.rnn, self.builder
        x = rnn.as_declared(x)
        inputs = transform(
            lambda value: Spec(value.type.shape, value.type.dtype, len(value.type.extent) - 2), x
        )
        check_inputs(rnn.inputs, inputs, argument=rnn.arguments[0])
        program = rnn.program_of(inputs, part.statics.specs)
        traced = rnn.under(self.control, program).traced
        count = len(leaves(program.memory))
        body = traced.body
        memories = [
            builder.input(body.type_of(number), body.nodes[number].name)
            for number in traced.recur().memories[:count]
        ]
        kinds = [body.type_of(number) for number in traced.recur().memories[count:]]
        hidden = [builder.constant(np.zeros(kind.shape, kind.dtype)) for kind in kinds]
        statics = [
            builder.input(body.type_of(number), body.nodes[number].name)
            for number in traced.recur().others[: traced.counts[2]]
        ]
        params = [
            builder.input(Type(CONST, array.shape, array.dtype.name), name)
            for name, array in titled_leaves(rnn.params, rnn.arguments[2])
        ]
        operands = [*(value.number for value in leaves(x)), *self.mask, *memories]
        operands += [builder.add("expand", number, extent=ROWS) for number in hidden]
        results = traced.recur(rnn.reverse, rnn.unroll).add_results(builder, [*operands, *statics, *params])
        made = BuiltRecurrence(
            rnn,
            program,
            program.memory,
            program.traced.last,
            memories,
            statics,
            params,
            results.memories[:count],
        )
        self.made.append(made)
        output = rebuild(program.output, [Traced(builder, number) for number in results.outputs])
        if last_only:
            output = transform(lambda value: last_of(value, rnn.reverse), output)
        return output, program.memory


def last_of(output: Traced, reverse: bool) -> Traced:
    """Returns each sequence's last output, with `reverse` of the first step; `InputError` for sequences."""
    if output.type.extent != STEPS:
        raise InputError(NO_LAST)
    return apply("reduce", output, how="first" if reverse else "last")
