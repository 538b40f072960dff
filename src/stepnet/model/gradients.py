"""The arguments of a call whose gradient is taken, checked, and its gradients in the same structures.

    sequences, params, statics ...  --GradientSource-->  arrays of the inputs of a net
    gradients of these inputs       --CallArguments-->   `Gradients`

Layers and whole models are sources. The code behind them (runs, losses and texts) deals only with nets.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.interpret import within_steps
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import is_static_extent
from stepnet.compiler.targets import Call, Order
from stepnet.compiler.values.arguments import choice
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.errors import InputError
from stepnet.model.batch import Batch
from stepnet.model.blank import blank_program
from stepnet.model.control import Controls, run_until
from stepnet.model.declared import same_parameters
from stepnet.model.layers import Layer, LayerPrograms
from stepnet.model.program import Program
from stepnet.model.programs import keep
from stepnet.model.reading import Reading
from stepnet.model.recurrence import RNN
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
KINDS = ("params", "inputs", "initial", "statics")
Places = Mapping[str, tuple[int, ...]]
"""The positions of a net's inputs by kind of argument; a mask and constants are of no kind."""


@dataclass(frozen=True)
class Gradients:
    """Gradients in the structures of the arguments; None for arguments not asked for and for integers.

    params: for an `RNN` or a `Graph` in the structure of its parameters, for a `Stack` a tuple with one entry
        per layer, for a `Bidirectional` {"forward": ..., "backward": ...}.
    inputs, initial, statics: in the structures that a call takes.
    """

    params: Any = None
    inputs: Any = None
    initial: Any = None
    statics: Any = None


def by_parts(layer: Layer, value: Any, what: str) -> Any:
    """Gives an argument of a call one entry per recurrence, in the structure of a layer's gradients.

    An entry for several recurrences, such as None, becomes one for each.

    value: the argument, with an entry per part of the layer.
    what: its name in messages.
    """
    if isinstance(layer, RNN):
        return value
    pairs = zip(layer.layers, layer.by_part(value, what), strict=True)
    return layer.together([by_parts(part, one, what) for part, one in pairs])


def wanted_kinds(wrt: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the kinds of arguments that `wrt` names, in the order of `kinds`; None stands for all.

    kinds: the names that are possible, such as "params" and "inputs".

    Raises `InputError` for other names.
    """
    if wrt is None:
        return kinds
    several = isinstance(wrt, Iterable) and not isinstance(wrt, str)
    names: list[Any] = [*cast("Iterable[Any]", wrt)] if several else [wrt]
    for name in names:
        choice(name, f"wrt is some of {', '.join(map(repr, kinds))}", kinds)
    return tuple(kind for kind in kinds if kind in names)


@dataclass(frozen=True)
class Cut:
    """The sequences of a recurrence with `until=`, cut to the steps that a call takes, which have gradients.

    batch: the sequences of the call.
    sequences: the cut sequences.
    places: the positions of the remaining values in the batch, level by level.
    mask: the mask, cut in the same way.
    """

    batch: Batch
    sequences: Any
    places: list[Array]
    mask: Any

    @classmethod
    def of(
        cls, rnn: RNN, sequences: Any, initial: Any, statics: Any, lengths: Any, control: Any, engine: Order
    ) -> "Cut":
        """Runs a call to find the steps that it takes, and cuts its sequences and its mask to them.

        rnn: the recurrence, which has `until=`; the other parameters are the arguments of the call.
        """
        reading = rnn.read(sequences, initial, statics, lengths, **control)
        call, net, batch = reading.call, reading.running.net, reading.batch
        ended = len(leaves(reading.program.memory))  # the position of the memory "done" of an early end
        used, _ = run_until(reading.running.bound(engine), call, net, ended)
        where = call.positions
        ahead = where.lengths - used if rnn.reverse else np.zeros_like(used)
        places, inner = within_steps(where.places(np.arange(where.rows), ahead, used), where.inner)
        offsets = (offsets_of(used), *inner)
        arrays = zip(batch.arrays, batch.levels, strict=True)
        cut = [Ragged(array[places[levels - 1]], offsets[:levels]) for array, levels in arrays]
        mask = None
        if control["mask"] is not None:
            mask = Ragged(call.sequences[len(cut)][places[0]], offsets[:1])
        return cls(batch, rebuild(batch.structure, cut), places, mask)

    def whole(self, array: Array, levels: int) -> Any:
        """Returns values per cut step in the layout of the caller's sequences, with zeros at the other steps.

        levels: the number of ragged levels of the values.
        """
        level = self.batch.levels.index(levels)
        whole = np.zeros((len(self.batch.arrays[level]), *array.shape[1:]), array.dtype)
        whole[self.places[levels - 1]] = array
        return self.batch.like_input(whole, levels)


class UncheckedCall(NamedTuple):
    """The arguments of a call before the checks, as `Vjp.__call__` takes them."""

    sequences: Any
    params: Any
    initial: Any
    statics: Any
    lengths: Any
    last_only: bool
    control: Controls
    engine: Order


@dataclass(frozen=True)
class CallArguments:
    """The checked arguments of a call.

    reading: the call, with its program.
    arrays: the arrays of the net's inputs.
    places: by kind of argument, the positions of its arrays among these inputs.
    structures: by kind of argument, the structure in which the caller has it.
    gives_final: whether a call returns final memories besides outputs.
    cut: the cut sequences of a recurrence with `until=`; else None.
    """

    reading: Reading[Program]
    arrays: list[Array | None]
    places: Places
    structures: Mapping[str, Any]
    gives_final: bool
    cut: Cut | None = None

    @property
    def net(self) -> Net:
        """The net whose gradient is taken."""
        return self.reading.program.net

    @property
    def call(self) -> Call:
        """The call of the net, with the positions of the sequences."""
        return self.reading.call

    @property
    def batch(self) -> Batch:
        """The sequences of the call."""
        return self.reading.batch

    def wanted(self, kinds: Sequence[str]) -> list[int]:
        """Returns the positions, among the net's inputs, of floating-point arguments of these kinds."""
        return wanted_places(self.net, self.places, kinds)

    def gradients(self, kinds: Sequence[str], places: Sequence[int], arrays: Sequence[Array]) -> Gradients:
        """Arranges gradients in the structures of the caller's arguments; None where there is no gradient.

        kinds: the kinds of arguments to differentiate, such as "params".
        places: the position of the input that each of `arrays` is the gradient of.
        """
        made = {place: self.answered(place, array) for place, array in zip(places, arrays, strict=True)}
        by_kind = {kind: [made.get(place) for place in self.places[kind]] for kind in kinds}
        return Gradients(**{kind: rebuild(self.structures[kind], values) for kind, values in by_kind.items()})

    def answered(self, place: int, array: Array) -> Any:
        """Returns the gradient of the net's input at a position, in the layout of the caller's argument."""
        extent = self.net.type_of(self.net.inputs[place]).extent
        if is_static_extent(extent):
            return Ragged(array, (self.call.positions.beside[extent[-1]],))
        levels = max(0, len(extent) - 1)
        if self.cut is not None and levels:
            return self.cut.whole(array, levels)
        return self.batch.like_input(array, levels)


def wanted_places(net: Net, places: Places, kinds: Sequence[str]) -> list[int]:
    """Returns the positions, among the net's inputs, of floating-point arguments of these kinds.

    places: the positions of the inputs by kind, such as "params".
    """
    types = [net.type_of(number) for number in net.inputs]
    return [place for kind in kinds for place in places[kind] if types[place].is_float]


def arrays_of(ends: Ends, call: Call, params: Sequence[Array]) -> list[Array | None]:
    """Returns the arrays of a call and the parameters, in the order of a net's inputs.

    ends: the positions of the inputs by kind.
    """
    values = (*call.sequences, *call.initial, *call.statics, *params)
    places = (*ends.sequences, *ends.memories, *ends.statics, *ends.parameters)
    by_place = dict(zip(places, values, strict=True))
    return [by_place[place] for place in range(len(by_place))]


# ---- sources of gradients ----------------------------------------------------------------------------------


class GradientSource(Protocol):
    """A model whose gradient is taken: it converts the arguments of a call to arrays for a net's inputs."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of arguments that can be differentiated, such as "params"."""
        ...

    @property
    def ends_early(self) -> bool:
        """True if the number of steps is known only after a run, because of `until`."""
        ...

    def read(self, call: UncheckedCall) -> CallArguments:
        """Checks the arguments of a call; raises `InputError` for those that do not fit."""
        ...

    def blank(self) -> tuple[Program, Places]:
        """Returns the latest program and its inputs' positions by kind; raises `InputError` without one."""
        ...


@runtime_checkable
class HasGradient(Protocol):
    """A model that is not a layer and has a gradient, such as a `Graph`."""

    def gradient_source(self) -> GradientSource:
        """Returns the model in the form that `vjp` and `value_and_grad` differentiate."""
        ...


def source_of(model: Any) -> GradientSource:
    """Converts a model to the form that `vjp` and `value_and_grad` differentiate.

    Raises `InputError` for a value that is not a model, and for layers above one that may end early.
    """
    if isinstance(model, HasGradient):
        return model.gradient_source()
    if not isinstance(model, Layer):
        kind = type(model).__name__
        raise InputError(f"gradients are of an RNN, a Stack, a Bidirectional or a Graph, not of a {kind}")
    if not isinstance(model, RNN) and model.ends_early:
        raise InputError("layers with until= have no gradient together: take vjp of each, one by one")
    return LayerSource(model)


class LayerSource:
    """The gradient source of a recurrence, a `Stack` or a `Bidirectional`."""

    kinds = KINDS

    def __init__(self, layer: Layer) -> None:
        """Stores the layer, with a cache of its programs."""
        self.layer, self.programs = layer, LayerPrograms(layer)

    @property
    def ends_early(self) -> bool:
        """True if the number of steps is known only after a run, because of `until`."""
        return isinstance(self.layer, RNN) and self.layer.until is not None

    def read(self, call: UncheckedCall) -> CallArguments:
        """Checks the arguments of a call; sequences that end early are first run, and cut to their steps."""
        sequences, params, initial, statics, lengths, last_only, control, engine = call
        options: Any = {"mask": None, "masked": "repeat", "begun": None, "time_major": False} | control
        cut = None
        if isinstance(self.layer, RNN) and self.ends_early:
            cut = Cut.of(self.layer, sequences, initial, statics, lengths, options, engine)
            sequences, lengths = cut.sequences, None
            options |= {"mask": cut.mask, "time_major": False}
        reading = self.programs.read(sequences, initial, statics, lengths, last_only, **options)
        own, program = self.layer.params, reading.program
        held = own if params is None else same_parameters(params, own)
        structures = {
            "params": held,
            "inputs": reading.batch.structure,
            "initial": program.memory,
            "statics": by_parts(self.layer, statics, "statics"),
        }
        arrays = arrays_of(program.ends, reading.call, leaves(held))
        places = self.places(program, len(reading.batch.arrays))
        return CallArguments(cast("Reading[Program]", reading), arrays, places, structures, True, cut)

    def blank(self) -> tuple[Program, Places]:
        """Returns a program for declared or latest inputs, and the positions of its inputs by kind.

        Raises `InputError` if there are none.
        """
        program = blank_program(self.programs)
        return program, self.places(program, len(program.ends.sequences))

    def places(self, program: Program, count: int) -> Places:
        """Returns the positions of a program's inputs by kind ("params", "inputs", "initial", "statics").

        count: the number of the caller's sequences; a mask follows them.
        """
        ends = program.ends
        kinds = (ends.parameters, ends.sequences[:count], ends.memories, ends.statics)
        return dict(zip(KINDS, kinds, strict=True))


class GradientPrograms:
    """A cache of programs for the gradients of one model."""

    def __init__(self) -> None:
        """Makes an empty cache."""
        self.kept = OrderedDict[Any, Any]()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns the program for a key, which `make` makes at first use; the oldest programs are dropped."""
        if key not in self.kept:
            keep(self.kept, key, make())
        return self.kept[key]
