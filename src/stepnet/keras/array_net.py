"""Runs the loop of Keras' own cells on NumPy arrays, with gradients, for callbacks from JAX and TensorFlow.

    x, mask, states, dropout masks, weights     -->  outputs, final states                 results
                                                -->  outputs, final states, saved values   saving
    the inputs, cotangents, saved values        -->  gradients                             gradients
                                                -->  the net of these gradients            gradient

Saved values are plain arrays, so the backend holds them between the two passes and frees them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.compiler.net.types import STEPS, Type
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.dtypes import same_bits
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.structure import transform
from stepnet.keras.array_steps import ArraySettings, ArraySteps
from stepnet.keras.recurrences import LoopSettings, Masks, named_recurrence
from stepnet.keras.settings import settings_of_cell
from stepnet.model.gradients.differentiable import (
    DifferentiableNet,
    FixedNet,
    FixedPasses,
    ModelNet,
    ModelNets,
)
from stepnet.model.recurrence import RNN

Array = np.ndarray
Arrays = Sequence[Array]
ArrayFunction = Callable[[Sequence[Array], Array | None], list[Array]]
"""A function of arrays and a mask [batch, time] or None."""

Outputs = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of values laid out as a layer's outputs, among the inputs and among the results of a net."""


class ArrayNet:
    """Net (graph of operations) of the loop of a Keras layer, which takes and returns arrays in Keras'
    layout: [batch, time, ...] for values of each step.
    """

    def __init__(
        self,
        net: DifferentiableNet,
        outputs: Outputs,
        without_gradient: Sequence[int],
        settings: ArraySettings,
    ) -> None:
        """Stores a net, and the positions of its inputs that get gradients.

        outputs: (positions among the inputs, positions among the results) of values that are a layer's
            outputs or their gradients, in which masked steps repeat an output. without_gradient: positions of
            inputs that get none, such as dropout masks. settings: the direction, and which outputs are
            returned.
        """
        self.net, self.outputs, self.without_gradient, self.settings = (
            net,
            outputs,
            without_gradient,
            settings,
        )
        self.inputs, self.types = net.inputs, net.results
        self.differentiated = tuple(
            index
            for index, type_ in enumerate(self.inputs)
            if type_.is_float and index not in without_gradient
        )

    @cached_property
    def passes(self) -> FixedPasses:
        """The compiled forward and backward passes for the gradients of the net."""
        return self.net.halves(self.differentiated, self.settings.engine)

    @cached_property
    def gradient_types(self) -> list[Type]:
        """The types of the inputs that get gradients; their gradients have these types."""
        return self.passes.gradient_types

    @cached_property
    def saved(self) -> list[Type]:
        """The types of the values saved for the backward pass, which `saving` returns after the results."""
        return self.passes.types[len(self.types) :]

    @cached_property
    def gradient_positions(self) -> Outputs:
        """Positions of a layer's outputs and their gradients in the net that computes gradients: (positions
        among its inputs, positions among its results). Its inputs are the inputs of this net, followed by
        the cotangents of this net's results.
        """
        behind = tuple(len(self.inputs) + index for index in self.outputs[1])
        return self.outputs[0] + behind, tuple(self.differentiated.index(index) for index in self.outputs[0])

    @cached_property
    def gradient(self) -> "ArrayNet":
        """The net that takes this net's inputs and the cotangents of its results, and returns the gradients
        of its inputs. As it is an `ArrayNet`, gradients of any order follow.
        """
        net = self.net.gradient(self.differentiated)
        return ArrayNet(net, self.gradient_positions, self.without_gradient, self.settings)

    def steps(self, arrays: Arrays, mask: Array | None) -> ArraySteps:
        """Returns the steps that a mask lets run in a call of the net; masked steps are skipped.

        arrays: the net's inputs; the first input with steps gives batch and time. mask: bool [batch, time],
        or None.
        """
        batch, time = next(
            array.shape[:2] for array, type_ in zip(arrays, self.inputs, strict=True) if type_.extent == STEPS
        )
        return ArraySteps.of(self.settings, (batch, time), mask)

    def saving(self, arrays: Arrays, mask: Array | None) -> list[Array]:
        """Runs the forward pass on inputs `arrays`; returns the results in Keras' layout (with axes of
        batch and time), then the values to save for the backward pass, in that of the net (steps end to
        end). mask: bool [batch, time], or None.
        """
        steps, count = self.steps(arrays, mask), len(self.types)
        inputs = inward(steps, arrays, self.inputs, self.outputs[0])
        results = self.passes.forward(inputs, steps.positions)
        return [*outward(steps, results[:count], self.types, self.outputs[1]), *results[count:]]

    def gradients(self, arrays: Arrays, mask: Array | None) -> list[Array]:
        """Runs the backward pass; returns the gradients of the inputs that get one.

        arrays: the inputs, the cotangents of all results, and all arrays that `saving` returned. mask: the
            mask of the forward pass.
        """
        count, types, (input_positions, gradient_positions) = (
            len(self.inputs),
            [*self.inputs, *self.types],
            self.gradient_positions,
        )
        inputs, forward_results = arrays[: len(types)], arrays[len(types) :]
        steps = self.steps(inputs[:count], mask)
        inputs = inward(steps, inputs, types, input_positions)
        of_steps = {index for index, type_ in enumerate(self.types) if type_.extent == STEPS}
        # Results of the net that the backward pass reads are not saved again: for the steps that ran, they
        # are unchanged in Keras' layout.
        saved = [
            steps.inward(forward_results[index]) if index in of_steps else forward_results[index]
            for index in self.passes.saved
        ]
        gradients = self.passes.backward(inputs[:count], inputs[count:], saved, steps.positions)
        return outward(steps, gradients, self.gradient_types, gradient_positions)


def inward(steps: ArraySteps, arrays: Arrays, types: Sequence[Type], outputs: Sequence[int]) -> list[Array]:
    """Converts inputs and cotangents from Keras' layout ([batch, time, ...]) to that of a net: values of all
    steps end to end.

    steps: the steps that run. types: of the arrays in the net.
    outputs: positions of cotangents of a layer's outputs, which are summed where masked steps repeat an
        output.
    """
    return [
        steps.gather(array) if index in outputs else steps.inward(array) if type_.extent == STEPS else array
        for index, (array, type_) in enumerate(zip(arrays, types, strict=True))
    ]


def outward(steps: ArraySteps, arrays: Arrays, types: Sequence[Type], outputs: Sequence[int]) -> list[Array]:
    """Converts results and gradients from the layout of a net (values of all steps end to end) to Keras'
    layout ([batch, time, ...]); the transpose of `inward`.

    steps: the steps that run. types: of the arrays in the net.
    outputs: positions of a layer's outputs, in which masked steps repeat an output.
    """
    return [
        steps.spread(array) if index in outputs else steps.outward(array) if type_.extent == STEPS else array
        for index, (array, type_) in enumerate(zip(arrays, types, strict=True))
    ]


class ArrayLoop:
    """The compiled loop of a layer on arrays: its net, and that bound to the latest call's weights."""

    def __init__(self, net: ArrayNet, unbound: ModelNet) -> None:
        """Stores the net of a recurrence (`unbound`), and its form in Keras' layout."""
        self.net, self.unbound = net, unbound
        self.bound: FixedNet | None = None

    @classmethod
    def of(cls, rnn: RNN, settings: ArraySettings) -> "ArrayLoop":
        """Compiles the recurrence of a layer (`rnn`) to a loop on arrays. settings: its direction, and which
        outputs it returns.
        """
        spec = cast("Spec", rnn.inputs)
        nothing = np.zeros((0, 0, *spec.shape), spec.dtype)
        empty = transform(lambda spec: np.zeros((0, *spec.shape), spec.dtype), rnn.statics)
        net = ModelNets(rnn).read(nothing, None, empty, None, settings.last_only).net
        return cls(ArrayNet(net, ((), (0,)), net.program.ends.statics, settings), net)

    def results(self, arrays: Arrays, mask: Array | None) -> list[Array]:
        """Runs the net on its inputs `arrays` without gradients; returns the outputs of all steps (or only
        those of the last step), then the final states. mask: bool [batch, time], or None.
        """
        net = self.net
        steps, bound = net.steps(arrays, mask), self.with_weights(arrays)
        results = bound(inward(steps, arrays, net.inputs, ()), steps.positions, net.settings.engine)
        return outward(steps, results, net.types, net.outputs[1])

    def with_weights(self, arrays: Arrays) -> FixedNet:
        """Returns the loop's net bound to the weights in `arrays`, its inputs. It is bound anew, which copies
        the weights, only if they have changed.
        """
        bound, weights = self.bound, arrays[len(arrays) - self.unbound.parameters :]
        if bound is None or not all(map(same_bits, weights, bound.params)):
            self.bound = bound = self.unbound.fixed([weight.copy() for weight in weights])
        return bound


LOOPS = WeakKeyDictionary[Any, OrderedDict[Any, Any]]()
"""The `ArrayLoop`s of each cell, by settings and specs. Each cell has its own, with its weights."""

SHARED = OrderedDict[Any, Any]()
"""The compiled recurrences of Keras' own cells. Cells of equal settings share them."""


def array_loop(
    cell: Any,
    settings: LoopSettings,
    array_settings: ArraySettings,
    x: Spec,
    states: tuple[Spec, ...],
    masks: Masks,
) -> ArrayLoop:
    """Returns the compiled loop of one of Keras' own cells, from a cache or compiled now.

    settings, array_settings: the layer's settings that are part of the net, and the others.
    x, states, masks: features and dtypes of the input, states and dropout masks of one step.

    Cells of equal settings share the compiled net, but each has an `ArrayLoop` of its own for its weights.
    """
    loops = LOOPS.setdefault(cell, OrderedDict[Any, Any]())
    weights = tuple(tuple(variable.shape) for variable in cell.weights)
    key = settings_of_cell(cell), settings, array_settings, x, states, tuple(masks.items()), weights
    shared = entry_of(
        SHARED, key, lambda: ArrayLoop.of(named_recurrence(cell, settings, x, states, masks), array_settings)
    )
    return entry_of(loops, key, lambda: ArrayLoop(shared.net, shared.unbound))
