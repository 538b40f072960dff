"""The loop of a layer with Keras' own cells on NumPy arrays, with gradients: what backends call back.

x, mask, states, dropout masks, weights    -->  outputs, last states         results
                                           -->  the same, what is saved      saving
these, cotangents, what is saved           -->  gradients                    gradients
                                           -->  a net of these               gradient

What is saved are arrays too, so a backend keeps them between both, and frees them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.engines import checked_engine
from stepnet.grad.gradient import vjp
from stepnet.keras.array_steps import ArraySteps, ArrayWay
from stepnet.keras.recurrences import Masks, named_recurrence
from stepnet.keras.settings import settings_of_cell
from stepnet.keras.way import Way
from stepnet.net.ir import Net
from stepnet.net.types import STEPS, Type
from stepnet.plan.passes.prune import prune
from stepnet.rnn.gradient_runs import Halved
from stepnet.rnn.layers import LayerPrograms, LayersProgram
from stepnet.rnn.nets import call_on, in_order
from stepnet.rnn.programs import keep
from stepnet.rnn.recurrence import RNN
from stepnet.trace.step import Spec
from stepnet.values.structure import transform

Array = np.ndarray
Arrays = Sequence[Array]
ArrayFunction = Callable[[Sequence[Array], Array | None], list[Array]]
"""A function of arrays and a mask."""

Outputs = tuple[tuple[int, ...], tuple[int, ...]]
AUTO = checked_engine("auto")


class ArrayNet:
    """A net on arrays as Keras has them, [batch, time, ...] where there is one of each step.

    outputs: the places of the inputs, and of the results, that lie as the outputs of a layer do. still: those
    of the inputs that have no gradients, as dropout masks.
    """

    def __init__(self, net: Net, outputs: Outputs, still: Sequence[int], way: ArrayWay) -> None:
        self.net, self.outputs, self.still, self.way = net, outputs, still, way
        self.inputs = [net.type_of(number) for number in net.inputs]
        self.types = [net.type_of(number) for number in net.results]
        self.wanted = [
            place for place, type_ in enumerate(self.inputs) if type_.is_float and place not in still
        ]

    @cached_property
    def wanted_types(self) -> list[Type]:
        """The types of the wanted inputs, which their gradients have."""
        return [self.inputs[place] for place in self.wanted]

    @cached_property
    def halved(self) -> Halved:
        """Both halves of its gradient."""
        return Halved.of(self.net, self.wanted)

    @cached_property
    def saved(self) -> list[Type]:
        """The types of the saved values, which follow the results."""
        first = self.halved.first.net
        return [first.type_of(number) for number in first.results[len(self.types) :]]

    @cached_property
    def gradient_ends(self) -> Outputs:
        """The places among inputs and cotangents, and among gradients, that lie as outputs do."""
        behind = tuple(len(self.inputs) + place for place in self.outputs[1])
        return self.outputs[0] + behind, tuple(self.wanted.index(place) for place in self.outputs[0])

    @cached_property
    def gradient(self) -> "ArrayNet":
        """The gradients of its wanted inputs, as a net of its inputs and the cotangents of its results."""
        both = vjp(self.net, self.wanted)
        net = prune(replace(both, results=both.results[len(self.types) :]))
        return ArrayNet(net, self.gradient_ends, self.still, self.way)

    def steps(self, arrays: Arrays, mask: Array | None) -> ArraySteps:
        """The steps that run, of such inputs."""
        batch, time = next(
            array.shape[:2] for array, type_ in zip(arrays, self.inputs, strict=True) if type_.extent == STEPS
        )
        return ArraySteps.of(self.way, (batch, time), mask)

    def saving(self, arrays: Arrays, mask: Array | None) -> list[Array]:
        """The results, followed by the saved values."""
        steps, count = self.steps(arrays, mask), len(self.types)
        given = inward(steps, arrays, self.inputs, self.outputs[0])
        made = self.halved.forward(given, steps.call(), AUTO)
        return [*outward(steps, made[:count], self.types, self.outputs[1]), *made[count:]]

    def gradients(self, arrays: Arrays, mask: Array | None) -> list[Array]:
        """The gradients of the wanted inputs. arrays: the inputs, the cotangents of all results, and what
        `saving` gave.
        """
        count, types, (ours, made_ours) = len(self.inputs), [*self.inputs, *self.types], self.gradient_ends
        given, kept = arrays[: len(types)], arrays[len(types) :]
        steps = self.steps(given[:count], mask)
        given = inward(steps, given, types, ours)
        of_steps = {place for place, type_ in enumerate(self.types) if type_.extent == STEPS}
        # Where steps ran, a result of theirs is as it was.
        saved = [
            steps.inward(kept[place]) if place in of_steps else kept[place] for place in self.halved.saved
        ]
        made = self.halved.backward(given[:count], given[count:], saved, steps.call(), AUTO)
        return outward(steps, made, self.wanted_types, made_ours)


def inward(steps: ArraySteps, arrays: Arrays, types: Sequence[Type], outputs: Sequence[int]) -> list[Array]:
    """The arrays as a net has them. outputs: the places of those that lie as the outputs of a layer."""
    return [
        steps.gathered(array) if place in outputs else steps.inward(array) if type_.extent == STEPS else array
        for place, (array, type_) in enumerate(zip(arrays, types, strict=True))
    ]


def outward(steps: ArraySteps, arrays: Arrays, types: Sequence[Type], outputs: Sequence[int]) -> list[Array]:
    """The other way."""
    return [
        steps.spread(array) if place in outputs else steps.outward(array) if type_.extent == STEPS else array
        for place, (array, type_) in enumerate(zip(arrays, types, strict=True))
    ]


class ArrayLoop:
    """The net of a layer, and its program with the weights that it had last."""

    def __init__(self, net: ArrayNet, program: LayersProgram) -> None:
        self.net, self.program = net, program

    @classmethod
    def of(cls, rnn: RNN, way: ArrayWay) -> "ArrayLoop":
        """Runs a recurrence."""
        spec = cast("Spec", rnn.inputs)
        nothing = np.zeros((0, 0, *spec.shape), spec.dtype)
        empty = transform(lambda spec: np.zeros((0, *spec.shape), spec.dtype), rnn.statics)
        program = LayerPrograms(rnn).read(nothing, None, empty, None, way.last_only).program
        return cls(ArrayNet(program.net, ((), (0,)), program.ends.statics, way), program)

    def results(self, arrays: Arrays, mask: Array | None) -> list[Array]:
        """The outputs, or the last ones, and the last states."""
        net = self.net
        steps, program = net.steps(arrays, mask), self.with_weights(arrays)
        call = call_on(program, inward(steps, arrays, net.inputs, ()), steps.call(), None)
        return outward(steps, in_order(program, program.bound(AUTO)(call)), net.types, net.outputs[1])

    def with_weights(self, arrays: Arrays) -> LayersProgram:
        """The program with the weights among its inputs, packed anew if they have changed."""
        program, weights = self.program, [arrays[place] for place in self.program.ends.parameters]
        if not all(map(same_bits, weights, program.params)):
            self.program = program = program.with_params([weight.copy() for weight in weights])
        return program


def same_bits(a: Array, b: Array) -> bool:
    """Whether arrays of floating-point numbers have the same bits: a NaN is equal to itself."""
    whole = f"i{a.dtype.itemsize}"
    return np.array_equal(a.view(whole), b.view(whole))


LOOPS = WeakKeyDictionary[Any, OrderedDict[Any, Any]]()
"""The function that runs each cell."""

SHARED = OrderedDict[Any, Any]()
"""The compiled recurrences of Keras' own cells, by settings, which determine their plans and machine code."""


def array_loop(
    cell: Any, way: Way, array_way: ArrayWay, x: Spec, states: tuple[Spec, ...], masks: Masks
) -> ArrayLoop:
    """The recurrence of one of Keras' own cells over sequences whose steps have these specs."""
    loops = LOOPS.setdefault(cell, OrderedDict[Any, Any]())
    weights = tuple(tuple(variable.shape) for variable in cell.weights)
    key = settings_of_cell(cell), way, array_way, x, states, tuple(masks.items()), weights
    if key not in loops:
        if key not in SHARED:
            keep(SHARED, key, ArrayLoop.of(named_recurrence(cell, way, x, states, masks), array_way))
        keep(loops, key, ArrayLoop(SHARED[key].net, SHARED[key].program))
    return loops[key]
