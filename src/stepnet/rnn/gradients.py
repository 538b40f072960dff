"""A call whose gradient is taken: arguments checked, its net run, and gradients in the form of these."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.engines import Call, Order
from stepnet.errors import InputError
from stepnet.net.interpret import within_steps
from stepnet.net.ir import Net
from stepnet.net.types import is_beside
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.batch import Batch
from stepnet.rnn.compose import Bidirectional, Stack, ends_early
from stepnet.rnn.control import Controls, run_until
from stepnet.rnn.declared import keep, same_parameters
from stepnet.rnn.layers import Layer, LayerPrograms, LayersProgram
from stepnet.rnn.reading import Reading
from stepnet.rnn.recurrence import RNN
from stepnet.values.arguments import choice
from stepnet.values.structure import leaves, rebuild

Array = np.ndarray
KINDS = ("params", "inputs", "initial", "statics")


@dataclass(frozen=True)
class Gradients:
    """Gradients in the structures of what they are of; None for what was not asked for, and for integers.

    params: of an `RNN` as its parameters are, of a `Stack` a tuple with one entry per layer, of a
    `Bidirectional` {"forward": ..., "backward": ...}. inputs, initial, statics: as a call takes them.
    """

    params: Any = None
    inputs: Any = None
    initial: Any = None
    statics: Any = None


def checked_layer(layer: Any) -> Layer:
    """A layer; raises `InputError` for anything else, and for layers above one that may end early."""
    if not isinstance(layer, RNN | Stack | Bidirectional):
        kind = type(layer).__name__
        raise InputError(f"gradients are of an RNN, a Stack or a Bidirectional, not of a {kind}")
    if not isinstance(layer, RNN) and ends_early(layer):
        raise InputError("layers with until= have no gradient together: take vjp of each, one by one")
    return layer


def parameters_of(layer: Layer) -> Any:
    """The parameters of a layer: an RNN's own, or those of each part."""
    if isinstance(layer, RNN):
        return layer.params
    return layer.together([parameters_of(part) for part in layer.layers])


def by_parts(layer: Layer, value: Any, what: str) -> Any:
    """What belongs to the parts of a layer, in the order they run."""
    if isinstance(layer, RNN):
        return value
    pairs = zip(layer.layers, layer.by_part(value, what), strict=True)
    return layer.together([by_parts(part, one, what) for part, one in pairs])


def wanted_kinds(wrt: Any) -> tuple[str, ...]:
    """What gradients are asked for, in the order of `KINDS`; raises `InputError` for anything else."""
    several = isinstance(wrt, Iterable) and not isinstance(wrt, str)
    names: list[Any] = [*cast("Iterable[Any]", wrt)] if several else [wrt]
    for name in names:
        choice(name, f"wrt is some of {', '.join(map(repr, KINDS))}", KINDS)
    return tuple(kind for kind in KINDS if kind in names)


@dataclass(frozen=True)
class Cut:
    """The sequences of a recurrence with `until=`, cut to the steps that it takes: a gradient is of these.

    batch: as they were. places: where those steps lie in it, level by level. mask: cut too.
    """

    batch: Batch
    sequences: Any
    places: list[Array]
    mask: Any

    @classmethod
    def of(
        cls, rnn: RNN, sequences: Any, initial: Any, statics: Any, lengths: Any, control: Any, engine: Order
    ) -> "Cut":
        """The steps that a call takes, by running it."""
        reading = rnn.read(sequences, initial, statics, lengths, **control)
        call, net, batch = reading.call, reading.running.net, reading.batch
        used, _ = run_until(reading.running.bound(engine), call, net)
        ahead = call.lengths - used if rnn.reverse else np.zeros_like(used)
        places, inner = within_steps(call.places(np.arange(call.rows), ahead, used), call.inner)
        offsets = (offsets_of(used), *inner)
        arrays = zip(batch.arrays, batch.levels, strict=True)
        cut = [Ragged(array[places[levels - 1]], offsets[:levels]) for array, levels in arrays]
        mask = None
        if control["mask"] is not None:
            mask = Ragged(call.sequences[len(cut)][places[0]], offsets[:1])
        return cls(batch, rebuild(batch.structure, cut), places, mask)

    def whole(self, array: Array, levels: int) -> Any:
        """What there is of each step that is taken, laid out as the sequences came; zeros at the others."""
        level = self.batch.levels.index(levels)
        whole = np.zeros((len(self.batch.arrays[level]), *array.shape[1:]), array.dtype)
        whole[self.places[levels - 1]] = array
        return self.batch.like_input(whole, levels)


@dataclass(frozen=True)
class CallArguments:
    """What a call is given: the reading of its arguments, parameters, and the arrays of the net's inputs."""

    reading: Reading[LayersProgram]
    params: Any
    statics: Any
    cut: "Cut | None"
    arrays: list[Array | None]

    @property
    def net(self) -> Net:
        """The net that is run."""
        return self.reading.program.net

    @property
    def call(self) -> Call:
        """Where the sequences lie."""
        return self.reading.call

    @property
    def batch(self) -> Batch:
        """The sequences as they were given."""
        return self.reading.batch

    @classmethod
    def of(
        cls,
        run: LayerPrograms[Layer],
        sequences: Any,
        params: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool,
        control: Controls,
        engine: Order,
    ) -> "CallArguments":
        """What the arguments of a call are; raises `InputError` for those that do not fit."""
        options: Any = {"mask": None, "masked": "repeat", "begun": None, "time_major": False} | control
        cut = None
        if isinstance(run.layer, RNN) and run.layer.until is not None:
            cut = Cut.of(run.layer, sequences, initial, statics, lengths, options, engine)
            sequences, lengths, options = (
                cut.sequences,
                None,
                options | {"mask": cut.mask, "time_major": False},
            )
        reading = run.read(sequences, initial, statics, lengths, last_only, **options)
        own = parameters_of(run.layer)
        held = own if params is None else same_parameters(params, own)
        call, ends = reading.call, reading.program.ends
        values = (*call.sequences, *call.initial, *call.statics, *leaves(held))
        places = (*ends.sequences, *ends.memories, *ends.statics, *ends.parameters)
        by_place = dict(zip(places, values, strict=True))
        still = by_parts(run.layer, statics, "statics")
        return cls(reading, held, still, cut, [by_place[place] for place in range(len(by_place))])

    def places(self, kinds: Sequence[str]) -> list[int]:
        """The places of the inputs whose gradients are asked for, those that have one."""
        return wanted_places(self.reading.program, len(self.batch.arrays), kinds)

    def gradients(self, kinds: Sequence[str], places: Sequence[int], arrays: Sequence[Array]) -> Gradients:
        """Gradients in the structures of what they are of."""
        made, batch, program = dict(zip(places, arrays, strict=True)), self.batch, self.reading.program
        ends = program.ends

        def like_input(place: int, levels: int) -> Any:
            if place not in made:
                return None
            return (
                batch.like_input(made[place], levels)
                if self.cut is None
                else self.cut.whole(made[place], levels)
            )

        def static(place: int) -> Any:
            extent = self.net.type_of(self.net.inputs[place]).extent
            array = made.get(place)
            if array is None or not is_beside(extent):
                return array
            return Ragged(array, (self.call.beside[extent[-1]],))

        inputs = [like_input(*pair) for pair in zip(ends.sequences, batch.levels, strict=False)]
        gradients = {
            "params": rebuild(self.params, [made.get(place) for place in ends.parameters]),
            "inputs": rebuild(batch.structure, inputs),
            "initial": rebuild(program.memory, [made.get(place) for place in ends.memories]),
            "statics": rebuild(self.statics, [static(place) for place in ends.statics]),
        }
        return Gradients(**{kind: gradients[kind] for kind in kinds})


def wanted_places(program: LayersProgram, count: int, kinds: Sequence[str]) -> list[int]:
    """The places of the inputs of a program whose gradients are asked for, those that have one.

    count: how many sequences the caller gives; a mask is behind them.
    """
    ends = program.ends
    by_kind = {
        "inputs": ends.sequences[:count],
        "initial": ends.memories,
        "statics": ends.statics,
        "params": ends.parameters,
    }
    types = [program.net.type_of(number) for number in program.net.inputs]
    return [place for kind in kinds for place in by_kind[kind] if types[place].is_float]


class Programs:
    """The programs of the gradients of one layer, by what they are made for."""

    def __init__(self) -> None:
        self.kept = OrderedDict[Any, Any]()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The one for a key."""
        if key not in self.kept:
            keep(self.kept, key, make())
        return self.kept[key]
