"""Layers and directions as one net: every recurrence of them, and what merges their outputs.

    Stack([gru, Bidirectional(f, b)])   ->   h1 = recur(x; gru)
                                             a, b = recur(h1; f), recur(h1; b, reverse)
                                             y = concat(a, b)

So one program runs them: their parts run one after the other, and nothing is checked or laid out in between.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.engines import Call, checked_engine
from stepnet.errors import InputError, named
from stepnet.net.ir import Builder, Net, with_inputs
from stepnet.net.types import CONST, ROWS, STEPS, Type, extent_of
from stepnet.rnn.batch import Batch, Statics, begun_steps, initial_arrays
from stepnet.rnn.control import Control, Controls, mask_array
from stepnet.rnn.frozen import FrozenCalls
from stepnet.rnn.nested import NO_LAST, is_traced
from stepnet.rnn.program import Asked, Program
from stepnet.rnn.reading import Reading
from stepnet.rnn.recurrence import RNN, check_inputs, check_masked, keep
from stepnet.trace.step import Spec
from stepnet.trace.traced import Traced, apply
from stepnet.values.arguments import flag
from stepnet.values.once import computed_once
from stepnet.values.structure import leaves, named_leaves, rebuild, transform

if TYPE_CHECKING:
    from stepnet.rnn.compose import Layer

Array = np.ndarray


@dataclass(frozen=True)
class Leaf:
    """One recurrence among layers: what it is called there, and what the caller gives it."""

    rnn: RNN
    names: tuple[str, ...]
    initial: Any
    statics: Statics

    @property
    def title(self) -> str:
        """Where it stands, as messages say it."""
        return ": ".join(self.names)


def leaves_of(
    layer: "Layer", initial: Any, statics: Any, count: int, names: tuple[str, ...] = ()
) -> list[Leaf]:
    """Every recurrence of a layer with its initial memories and statics, in the order they run."""
    if isinstance(layer, RNN):
        with named(*names):
            return [Leaf(layer, names, initial, Statics.of(statics, count))]
    with named(*names):
        given, still = layer.by_part(initial, "initial"), layer.by_part(statics, "statics")
    parts = zip(layer.part_names, layer.layers, given, still, strict=True)
    return [one for name, part, h, s in parts for one in leaves_of(part, h, s, count, (*names, name))]


@dataclass(frozen=True)
class Made:
    """A recurrence that is in the net: the `Spec`s of its memory, there and as it is given back, and the
    numbers of its inputs and last memories.
    """

    rnn: RNN
    memory: Any
    last: Any
    memories: list[int]
    statics: list[int]
    params: list[int]
    final: list[int]


class LayersProgram(Program):
    """The program of layers. memories_of: the structure of each recurrence's memory, as they run."""

    def __init__(self, net: Net, output: Any, memory: Any, last: Any, parts: list[Made]) -> None:
        count = len(leaves(memory))
        params = [array for part in parts for array in leaves(part.rnn.params)]
        super().__init__(net, output, memory, last, count, params)
        self.memories_of = [part.memory for part in parts]


class LayersRun:
    """What runs layers as one net: the programs of the kinds of calls so far."""

    def __init__(self, layer: "Layer") -> None:
        self.layer = layer
        self.programs = OrderedDict[Any, LayersProgram]()
        self.frozen = FrozenCalls[LayersProgram]()

    def __reduce__(self) -> tuple[Any, ...]:
        """The layers alone: a copy, or one in another process, makes its programs anew."""
        return LayersRun, (self.layer,)

    @computed_once
    def ends(self) -> bool:
        """Whether sequences may end early: how long those of the next layer are is then known too late."""
        return any(rnn.until is not None for rnn in rnns_of(self.layer))

    def is_single(self, sequences: Any) -> bool:
        """Whether one net runs a call: not within a step, which has a net of its own."""
        return not self.ends and (type(sequences) is np.ndarray or not is_traced(sequences))

    def __call__(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool,
        engine: Asked,
        *,
        mask: Any = None,
        masked: str = "repeat",
        begun: Any = None,
        time_major: bool = False,
    ) -> tuple[Any, Any]:
        """The outputs and the last memories."""
        plain = initial is None and statics is None and lengths is None and mask is None and begun is None
        key = self.frozen.key(sequences, last_only, engine, masked, time_major) if plain else None
        if key is not None and (done := self.frozen.run(key, sequences, None)) is not None:
            return done[1]
        asked, last_only = checked_engine(engine), flag(last_only, "last_only")
        control: Controls = {"mask": mask, "masked": masked, "begun": begun, "time_major": time_major}
        given = self.read(sequences, initial, statics, lengths, last_only, **control)
        bound = given.program.bound(asked)
        if key is not None and self.frozen.is_due(key):
            self.frozen.freeze(key, given.program, bound, given.call, given.batch.like)
        return given.answer(bound)

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool,
        *,
        mask: Any,
        masked: str,
        begun: Any,
        time_major: bool,
    ) -> Reading[LayersProgram]:
        """What the arguments of a call are, checked; raises `InputError` for those that do not fit."""
        check_masked(masked)
        batch = Batch.of(sequences, lengths, flag(time_major, "time_major"))
        parts = apart(leaves_of(self.layer, initial, statics, batch.count))
        program = self.program_for(batch, parts, last_only, None if mask is None else masked)
        memories = list[Array | None]()
        for part, memory in zip(parts, program.memories_of, strict=True):
            with named(*part.names):
                memories += initial_arrays(part.initial, memory, batch.count)
        call = Call(
            batch.arrays if mask is None else [*batch.arrays, mask_array(mask, batch.steps_like)],
            batch.starts,
            batch.lengths,
            batch.total,
            memories,
            [array for part in parts for array in part.statics.arrays],
            False,
            None if begun is None else begun_steps(begun, batch.count),
            batch.steps,
            batch.inner,
            {axis: offsets for part in parts for axis, offsets in part.statics.beside.items()},
        )
        return Reading(batch, program, program, call, ends=False)

    def program_for(
        self, batch: Batch, parts: list[Leaf], last_only: bool, masked: str | None
    ) -> LayersProgram:
        """The program for such arguments, kept by their dtypes, features and levels."""
        key = *batch.key, *(part.statics.key for part in parts), last_only, masked
        program = self.programs.get(key)
        if program is None:
            program = Wiring(batch, parts, Control(masked)).program(self.layer, last_only)
            keep(self.programs, key, program)
        return program


def rnns_of(layer: "Layer") -> list[RNN]:
    """Every recurrence of a layer."""
    return [layer] if isinstance(layer, RNN) else [rnn for part in layer.layers for rnn in rnns_of(part)]


def apart(parts: list[Leaf]) -> list[Leaf]:
    """The same with statics that are sequences on axes of their own, unless their lengths are the same."""
    known: dict[str, Array] = {}
    return [Leaf(part.rnn, part.names, part.initial, part.statics.beside_others(known)) for part in parts]


@dataclass
class Wiring:
    """The net of layers as it is made, for such a batch."""

    batch: Batch
    parts: list[Leaf]
    control: Control
    builder: Builder = field(default_factory=Builder)
    made: list[Made] = field(default_factory=list[Made])

    def program(self, layer: "Layer", last_only: bool) -> LayersProgram:
        """What runs the layers."""
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

    def added(self, layer: "Layer", x: Any, last_only: bool, names: tuple[str, ...] = ()) -> tuple[Any, Any]:
        """The outputs of a layer over the values x, and the structure of its memory."""
        if isinstance(layer, RNN):
            with named(*names):
                return self.recurrence(self.parts[len(self.made)], x, last_only)
        outputs, memories = list[Any](), list[Any]()
        for place, (name, part) in enumerate(zip(layer.part_names, layer.layers, strict=True)):
            last = last_only and layer.ends_with(place)
            output, memory = self.added(part, layer.input_of(x, outputs), last, (*names, name))
            outputs.append(output)
            memories.append(memory)
        with named(*names):
            return layer.output_of(outputs, last_only), layer.together(memories)

    def recurrence(self, part: Leaf, x: Any, last_only: bool) -> tuple[Any, Any]:
        """The outputs of one recurrence, or its last ones, and the structure of its memory."""
        rnn, builder = part.rnn, self.builder
        x = rnn.as_declared(x)
        inputs = transform(lambda one: Spec(one.type.shape, one.type.dtype, len(one.type.extent) - 2), x)
        check_inputs(rnn.inputs, inputs)
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
            builder.input(Type(CONST, array.shape, array.dtype.name), name or "param")
            for name, array in named_leaves(rnn.params)
        ]
        operands = [*(one.number for one in leaves(x)), *self.mask, *memories]
        operands += [builder.add("expand", number, extent=ROWS) for number in hidden]
        gives = traced.recur(rnn.reverse, rnn.unroll).add_results(builder, [*operands, *statics, *params])
        made = Made(
            rnn, program.memory, program.traced.last, memories, statics, params, gives.memories[:count]
        )
        self.made.append(made)
        output = rebuild(program.output, [Traced(builder, number) for number in gives.outputs])
        if last_only:
            output = transform(lambda one: last_of(one, rnn.reverse), output)
        return output, program.memory


def last_of(output: Traced, reverse: bool) -> Traced:
    """The last step's value of each sequence; raises `InputError` where that is a sequence itself."""
    if output.type.extent != STEPS:
        raise InputError(NO_LAST)
    return apply("reduce", output, how="first" if reverse else "last")
