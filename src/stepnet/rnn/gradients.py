"""Gradients of recurrences and of layers of them: `vjp` and `value_and_grad`.

vjp                sequences -> outputs, last memories, and what takes their cotangents to gradients
value_and_grad     sequences, targets -> the value of a loss, and its gradients: both in one net
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from stepnet.engines import Call, Order, checked_engine
from stepnet.errors import InputError
from stepnet.grad.gradient import vjp as vjp_net
from stepnet.grad.halves import halves
from stepnet.net.ends import Ends
from stepnet.net.interpret import within_steps
from stepnet.net.ir import Builder, Net, with_inputs
from stepnet.net.types import CONST, ROWS, STEPS, Type, is_beside
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.batch import Batch, checked_array
from stepnet.rnn.compose import Bidirectional, Stack, ends_early
from stepnet.rnn.control import Controls, run_until
from stepnet.rnn.declared import keep, same_parameters
from stepnet.rnn.layers import Layer, LayerPrograms, LayersProgram
from stepnet.rnn.program import Asked, NetProgram
from stepnet.rnn.reading import Reading
from stepnet.rnn.recurrence import RNN
from stepnet.trace.lines import NamingLine, defined_at, refuse, written_at
from stepnet.trace.traced import Traced
from stepnet.values.arguments import choice, flag, function
from stepnet.values.structure import leaves, leaves_as, named_leaves, rebuild, skeleton

Array = np.ndarray
KINDS = ("params", "inputs", "initial", "statics")
MEANS = ("mean", "sum")


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


def vjp(layer: Layer) -> "Vjp":
    """What runs a recurrence and gives, besides its results, what takes their cotangents to gradients.

    Args:
        layer: An `RNN`, a `Stack` or a `Bidirectional`.

    Raises:
        InputError: For what is none of these.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> run = sn.vjp(rnn)
    >>> (outputs, final), backward = run(np.array([[[1.0], [10.0]]]))
    >>> final
    array([[22.]])
    >>> gradients = backward(None, np.ones((1, 1)))
    >>> gradients.params, gradients.inputs.tolist(), gradients.initial
    (array([11.]), [[[2.0], [2.0]]], array([[1.]]))
    """
    return Vjp(checked_layer(layer))


def value_and_grad(loss: Callable[..., Any], layer: Layer, *, reduce: str = "mean") -> "ValueAndGrad":
    """What gives the value of a loss, and its gradients.

    Args:
        loss: loss(outputs, targets) -> a number for each step, or for each sequence with `last_only`. It is
            traced as a step is: its arguments are arrays [rows, features...]. One with a parameter named
            `final` gets the last memories too, and may give a number for each sequence.
        layer: An `RNN`, a `Stack` or a `Bidirectional`.
        reduce: What the value is of these numbers: their "mean", or their "sum".

    Raises:
        InputError: For arguments that are not as said.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> train = sn.value_and_grad(lambda y, target: ((y - target) ** 2).sum(-1), rnn)
    >>> x, target = np.array([[[1.0], [10.0]]]), np.array([[[2.0], [20.0]]])
    >>> value, gradients = train(x, target)
    >>> value, gradients.params
    (np.float64(2.0), array([22.]))
    """
    function(loss, "loss is a function loss(outputs, targets)")
    choice(reduce, f"reduce is {' or '.join(map(repr, MEANS))}", MEANS)
    return ValueAndGrad(checked_layer(layer), loss, reduce == "mean")


def checked_layer(layer: Any) -> Layer:
    """A layer; raises `InputError` for anything else, and for layers above one that may end early."""
    if not isinstance(layer, RNN | Stack | Bidirectional):
        kind = type(layer).__name__
        raise InputError(f"gradients are of an RNN, a Stack or a Bidirectional, not of a {kind}")
    if not isinstance(layer, RNN) and ends_early(layer):
        raise InputError("layers with until= have no gradient together: take vjp of each, one by one")
    return layer


# ---- what both have ----------------------------------------------------------------------------------------


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
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
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
        cls, rnn: RNN, sequences: Any, initial: Any, statics: Any, lengths: Any, told: Any, engine: Order
    ) -> "Cut":
        """The steps that a call takes, by running it."""
        reading = rnn.read(sequences, initial, statics, lengths, **told)
        call, net, batch = reading.call, reading.running.net, reading.batch
        used, _ = run_until(reading.running.bound(engine), call, net)
        ahead = call.lengths - used if rnn.reverse else np.zeros_like(used)
        places, inner = within_steps(call.places(np.arange(call.rows), ahead, used), call.inner)
        offsets = (offsets_of(used), *inner)
        arrays = zip(batch.arrays, batch.levels, strict=True)
        cut = [Ragged(array[places[levels - 1]], offsets[:levels]) for array, levels in arrays]
        mask = None
        if told["mask"] is not None:
            mask = Ragged(call.sequences[len(cut)][places[0]], offsets[:1])
        return cls(batch, rebuild(batch.structure, cut), places, mask)

    def whole(self, array: Array, levels: int) -> Any:
        """What there is of each step that is taken, laid out as the sequences came; zeros at the others."""
        level = self.batch.levels.index(levels)
        whole = np.zeros((len(self.batch.arrays[level]), *array.shape[1:]), array.dtype)
        whole[self.places[levels - 1]] = array
        return self.batch.laid_out(whole, levels)


@dataclass(frozen=True)
class Given:
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
        run: LayerPrograms,
        sequences: Any,
        params: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool,
        control: Controls,
        engine: Order,
    ) -> "Given":
        """What the arguments of a call are; raises `InputError` for those that do not fit."""
        told: Any = {"mask": None, "masked": "repeat", "begun": None, "time_major": False} | control
        cut = None
        if isinstance(run.layer, RNN) and run.layer.until is not None:
            cut = Cut.of(run.layer, sequences, initial, statics, lengths, told, engine)
            sequences, lengths, told = cut.sequences, None, told | {"mask": cut.mask, "time_major": False}
        reading = run.read(sequences, initial, statics, lengths, last_only, **told)
        own = parameters_of(run.layer)
        held = own if params is None else same_parameters(params, own)
        call, ends = reading.call, Ends.of(reading.program.net)
        values = (*call.sequences, *call.initial, *call.statics, *leaves(held))
        places = (*ends.sequences, *ends.memories, *ends.statics, *ends.parameters)
        by_place = dict(zip(places, values, strict=True))
        still = by_parts(run.layer, statics, "statics")
        return cls(reading, held, still, cut, [by_place[place] for place in range(len(by_place))])

    def places(self, kinds: Sequence[str]) -> list[int]:
        """The places of the inputs whose gradients are asked for, those that have one."""
        ends, count = Ends.of(self.net), len(self.batch.arrays)
        by_kind = {
            "inputs": ends.sequences[:count],
            "initial": ends.memories,
            "statics": ends.statics,
            "params": ends.parameters,
        }
        types = [self.net.type_of(number) for number in self.net.inputs]
        return [place for kind in kinds for place in by_kind[kind] if types[place].is_float]

    def gradients(self, kinds: Sequence[str], places: Sequence[int], arrays: Sequence[Array]) -> Gradients:
        """Gradients in the structures of what they are of."""
        made, ends, batch = dict(zip(places, arrays, strict=True)), Ends.of(self.net), self.batch
        program = self.reading.program

        def laid_out(place: int, levels: int) -> Any:
            if place not in made:
                return None
            return (
                batch.laid_out(made[place], levels)
                if self.cut is None
                else self.cut.whole(made[place], levels)
            )

        def static(place: int) -> Any:
            extent = self.net.type_of(self.net.inputs[place]).extent
            array = made.get(place)
            if array is None or not is_beside(extent):
                return array
            return Ragged(array, (self.call.beside[extent[-1]],))

        inputs = [laid_out(*pair) for pair in zip(ends.sequences, batch.levels, strict=False)]
        found = {
            "params": rebuild(self.params, [made.get(place) for place in ends.parameters]),
            "inputs": rebuild(batch.structure, inputs),
            "initial": rebuild(program.memory, [made.get(place) for place in ends.memories]),
            "statics": rebuild(self.statics, [static(place) for place in ends.statics]),
        }
        return Gradients(**{kind: found[kind] for kind in kinds})


def run_net(program: NetProgram, arrays: Sequence[Array | None], call: Call, engine: Order) -> list[Array]:
    """The results of a net, for the arrays of its inputs. None is a memory of zeros."""
    ends, net = Ends.of(program.net), program.net

    def array(place: int) -> Array:
        given, type_ = arrays[place], net.type_of(net.inputs[place])
        return np.zeros((call.rows, *type_.shape), type_.dtype) if given is None else given

    bound = program.kernel(engine).bind([array(place) for place in ends.parameters])
    results = bound(
        replace(
            call,
            sequences=[array(place) for place in ends.sequences],
            initial=[arrays[place] for place in ends.memories],
            statics=[array(place) for place in ends.statics],
        )
    )
    places = (*ends.steps, *ends.rows, *ends.totals)
    by_place = dict(zip(places, results.arrays, strict=True))
    return [by_place[place] for place in range(len(by_place))]


class Programs:
    """The programs of the gradients of one layer, by what they are made for."""

    def __init__(self) -> None:
        self.kept = OrderedDict[Any, Any]()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The one for a key."""
        if key not in self.kept:
            keep(self.kept, key, make())
        return self.kept[key]


# ---- cotangents that the caller has ------------------------------------------------------------------------


class Vjp:
    """See `vjp`."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.run, self.programs = layer, LayerPrograms(layer), Programs()

    def __call__(
        self,
        sequences: Any,
        *,
        params: Any = None,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        wrt: Any = KINDS,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> "tuple[tuple[Any, Any], Backward]":
        """(outputs, final memories), and the function from their cotangents to `Gradients`.

        params: other parameters than the layer's own, in their structure. wrt: what gradients are wanted of,
        some of "params", "inputs", "initial" and "statics". All others are as in a call of the layer.
        """
        asked, kinds = checked_engine(engine), wanted_kinds(wrt)
        given = Given.of(
            self.run,
            sequences,
            params,
            initial,
            statics,
            lengths,
            flag(last_only, "last_only"),
            control,
            asked,
        )
        places = given.places(kinds)
        forward, backward, saved = self.programs.get(
            (given.reading.program, tuple(places)), lambda: two_programs(given.net, places)
        )
        results = run_net(forward, given.arrays, given.call, asked)
        own = len(given.net.results)
        assert len(results) == own + saved
        finish = Backward(given, kinds, places, backward, asked, results[:own], results[own:])
        return finish.results, finish


def two_programs(net: Net, places: list[int]) -> tuple[NetProgram, NetProgram, int]:
    """The programs of both halves of the gradient of a net, and how many values the first saves."""
    parts = halves(vjp_net(net, places), len(net.inputs), len(net.results))
    return NetProgram(parts.forward), NetProgram(parts.backward), parts.saved


@dataclass(frozen=True)
class Backward:
    """What takes the cotangents of one run's results to its gradients, as often as it is called."""

    given: Given
    kinds: tuple[str, ...]
    places: list[int]
    program: NetProgram
    engine: Order
    made: list[Array]
    saved: list[Array]

    @property
    def results(self) -> tuple[Any, Any]:
        """The outputs and the last memories of the run."""
        program, levels = self.given.reading.program, self.given.reading.program.levels
        outputs = list(map(self.given.batch.laid_out, self.made, levels))
        return rebuild(program.output, outputs), program.final(self.made[len(levels) :])

    def __call__(self, outputs: Any = None, final: Any = None) -> Gradients:
        """The gradients for cotangents of the outputs and of the last memories, in their structures.

        None, for all of them or for one, is zeros. Raises `InputError` for cotangents of another shape.
        """
        made = self.results
        pairs = [*zip(("outputs", "final"), (outputs, final), made, strict=True)]
        found = [one for what, value, like in pairs for one in cotangents(what, value, like)]
        types = [self.given.net.type_of(number) for number in self.given.net.results]
        arrays = [
            (np.zeros_like(flat) if one is None else one.reshape(flat.shape)).astype(type_.computed.dtype)
            for one, flat, type_ in zip(found, self.made, types, strict=True)
            if type_.is_float
        ]
        inputs = [*self.given.arrays, *arrays, *self.saved]
        results = run_net(self.program, inputs, self.given.call, self.engine)
        return self.given.gradients(self.kinds, self.places, results)


def cotangents(what: str, value: Any, like: Any) -> list[Array | None]:
    """The cotangents of results, each as its flat values are; None for one that is not given."""
    expected = list(named_leaves(like))
    if value is None:
        return [None] * len(expected)
    parts = leaves_as(value, like)
    if parts is None:
        raise InputError(f"the cotangents of {what} are {skeleton(value)}; {what} are {skeleton(like)}")
    found: list[Array | None] = []
    for (name, right), leaf in zip(expected, parts, strict=True):
        title = f"the cotangent of {what} {name}".strip()
        if leaf is None:
            found.append(None)
            continue
        if isinstance(right, Ragged) != isinstance(leaf, Ragged):
            kind = "a Ragged" if isinstance(right, Ragged) else f"an array {list(right.shape)}"
            raise InputError(f"{title} is a {type(leaf).__name__}; it should be {kind}, as the result is")
        array = checked_array(leaf.values if isinstance(leaf, Ragged) else leaf, title)
        values = right.values if isinstance(right, Ragged) else right
        if array.shape != values.shape or (
            isinstance(right, Ragged)
            and any(not np.array_equal(a, b) for a, b in zip(leaf.offsets, right.offsets, strict=False))
        ):
            raise InputError(f"{title} is {shape_text(leaf)}; it should be {shape_text(right)}")
        found.append(array)
    return found


def shape_text(value: Any) -> str:
    """A Ragged, or the shape of an array."""
    return str(value) if isinstance(value, Ragged) else str(list(value.shape))


# ---- a loss ------------------------------------------------------------------------------------------------


class ValueAndGrad:
    """See `value_and_grad`."""

    def __init__(self, layer: Layer, loss: Callable[..., Any], is_mean: bool) -> None:
        self.layer, self.loss, self.is_mean = layer, loss, is_mean
        self.run, self.programs = LayerPrograms(layer), Programs()

    def __call__(
        self,
        sequences: Any,
        targets: Any = None,
        *,
        params: Any = None,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        wrt: Any = "params",
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> tuple[Any, Gradients]:
        """The value of the loss, and its `Gradients`.

        targets: what the loss gets beside the outputs: laid out as the sequences are, or with `last_only`
        arrays with an entry for each sequence. All others are those of `vjp`.
        """
        asked, kinds, last_only = checked_engine(engine), wanted_kinds(wrt), flag(last_only, "last_only")
        if isinstance(self.layer, RNN) and self.layer.until is not None:
            raise InputError("where a recurrence with until= ends is known when it has run: take vjp of it")
        given = Given.of(self.run, sequences, params, initial, statics, lengths, last_only, control, asked)
        aimed = target_arrays(targets, given, last_only, lengths, bool(control.get("time_major")))
        places = given.places(kinds)
        kind = skeleton(targets), *((array.dtype, array.shape[1:]) for array in aimed)
        program, dtype, at_steps = self.programs.get(
            (given.reading.program, kind, tuple(places)),
            lambda: self.program(given, targets, aimed, last_only, places),
        )
        count = int(given.call.lengths.sum()) if at_steps else given.call.rows
        seed = np.asarray(1 / max(count, 1) if self.is_mean else 1, dtype)
        value, *arrays = run_net(program, [*given.arrays, *aimed, seed], given.call, asked)
        return (value * seed)[()], given.gradients(kinds, places, arrays)

    def program(
        self, given: Given, targets: Any, aimed: list[Array], last_only: bool, places: list[int]
    ) -> tuple[NetProgram, str, bool]:
        """The program of the loss and its gradients; the loss's dtype, and whether it is one of each step."""
        net, at_steps = with_loss(self.loss, given, targets, aimed, last_only)
        return NetProgram(vjp_net(net, places)), net.type_of(net.results[0]).dtype, at_steps


def target_arrays(targets: Any, given: Given, last_only: bool, lengths: Any, time_major: bool) -> list[Array]:
    """The targets as flat arrays; raises `InputError` where they do not lie as the outputs do."""
    named = list(named_leaves(targets))
    if not named:
        return []
    if last_only:
        arrays = [checked_array(leaf, f"target {name}".strip()) for name, leaf in named]
        for (name, _), array in zip(named, arrays, strict=True):
            if array.shape[:1] != (given.call.rows,):
                what = f"target {name}".strip()
                raise InputError(
                    f"{what} is {list(array.shape)}; with last_only its first axis should be the "
                    f"{given.call.rows} sequences"
                )
        return arrays
    both = Batch.of({"inputs": given.batch.structure, "targets": targets}, lengths, time_major)
    return both.arrays[len(given.batch.arrays) :]


def with_loss(
    loss: Callable[..., Any], given: Given, targets: Any, aimed: list[Array], last_only: bool
) -> tuple[Net, bool]:
    """The net of a layer that gives the sum of a loss alone, and whether the loss is one of each step."""
    net, program = given.net, given.reading.program
    builder = Builder()
    place: list[int] = []
    for node in net.nodes:
        place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
    extent = ROWS if last_only else STEPS
    inputs = [
        builder.input(Type(extent, array.shape[1:], array.dtype.name), f"target{number}")
        for number, array in enumerate(aimed)
    ]
    results = [Traced(builder, place[number]) for number in net.results]
    count = len(results) - program.memories
    extras = {"final": rebuild(program.memory, results[count:])} if takes_final(loss) else {}
    outputs = rebuild(program.output, results[:count])
    with NamingLine(loss):
        found = loss(outputs, rebuild(targets, [Traced(builder, number) for number in inputs]), **extras)
    with NamingLine(loss), written_at(defined_at(loss)):
        if not isinstance(found, Traced) or found.type.shape or not found.type.is_float:
            text = found.type if isinstance(found, Traced) else f"a {type(found).__name__}"
            raise refuse(f"a loss gives one floating-point number for each step or sequence, not {text}")
        if found.type.extent not in (ROWS, STEPS):
            raise refuse(f"a loss gives a number for each step or sequence, not {found.type}")
    total = found.number
    while builder.type_of(total).extent != CONST:
        total = builder.add("reduce", total, how="sum")
    order = [*(place[number] for number in net.inputs), *inputs]
    return with_inputs(builder, order, [total]), found.type.extent == STEPS


def takes_final(loss: Callable[..., Any]) -> bool:
    """Whether a loss has a parameter named `final`."""
    try:
        return "final" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False
