"""Net as a function of JAX arrays, with gradients of any order.

    inputs --callback, in place--> arrays --> machine code --> results                        plain
                                                           --> results, saved values          with_saved
    inputs, cotangents, saved values                       --> gradients of the inputs        backward

Each of them is called back by JAX, and is a `custom_vjp` itself. Values of all steps are [time, batch, ...].

`vmap` adds leading axes. Where parameters have none, these rows join the rows of the batch, and the callback
is one call, also for the gradients of parameters for each of several batches of one sequence; else it is one
call for each.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type
from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError
from stepnet.jax.installed import installed
from stepnet.model.batch import checked_lengths
from stepnet.model.gradients.differentiable import DifferentiableNet, FixedPasses
from stepnet.ragged.positions import Positions

jax: Any = installed("jax")
buffer_callback: Any = installed("jax.experimental.buffer_callback").buffer_callback
Array = np.ndarray
Run = Callable[[list[Array], Positions, bool], Sequence[Array]]
"""A function of the arrays of a net, which lie as in the net, of the positions of their steps, and of whether
totals are those of each sequence."""

LENGTHS = Type(ROWS, (), "int32")
LEADING = {CONST: 0, ROWS: 1, STEPS: 2}
"""The number of axes before the features of a value, by its extent."""


class JaxFunction:
    """A net (graph of operations) as functions of JAX arrays, which share its compiled programs.

    Attributes:
        net: The net. Its inputs and results have a value per step, per sequence or per call.
        wanted: The positions of the floating-point inputs, which get gradients.
        engine: The engines in order of preference.
    """

    def __init__(self, net: DifferentiableNet, engine: Order) -> None:
        """Stores the net; it is planned and compiled at first use."""
        self.net, self.engine = net, engine
        self.wanted = tuple(place for place, type_ in enumerate(net.inputs) if type_.is_float)

    @cached_property
    def passes(self) -> FixedPasses:
        """The forward pass that saves values, and the backward pass that reads them."""
        return self.net.halves(self.wanted, self.engine)

    @cached_property
    def passes_of_each(self) -> FixedPasses | None:
        """The passes for gradients per sequence, which save the same values; None if there are none."""
        try:
            made = self.net.halves(self.wanted, self.engine, is_each=True)
        except RefusedError:
            return None
        return made if made.types == self.passes.types and made.saved == self.passes.saved else None

    @cached_property
    def gradient(self) -> "JaxFunction":
        """Function that computes the gradients of the inputs `wanted`: another `JaxFunction`, which has
        gradients itself. It takes the inputs of the net, and the cotangents of its floating-point results.
        """
        return JaxFunction(self.net.gradient(self.wanted), self.passes.engine)

    @cached_property
    def plain(self) -> Callable[..., list[Any]]:
        """The net as a function of JAX, (lengths or None, inputs, ()) -> results. It calls back into stepnet,
        and can be differentiated.
        """

        def run(arrays: list[Array], positions: Positions, is_each: bool) -> Sequence[Array]:
            """Runs the net, or the net with one total per sequence."""
            net = self.net.per_sequence() if is_each else self.net
            assert net is not None
            return net(arrays, positions, self.engine)

        def has_each() -> bool:
            """Tells whether there is such a net."""
            return self.net.per_sequence() is not None

        return differentiable(self, NetCallback(run, (*self.net.inputs,), (*self.net.results,), has_each))

    @cached_property
    def with_saved(self) -> Callable[..., list[Any]]:
        """The forward pass of the net as a function of JAX: (lengths or None, inputs, ()) -> results and the
        values saved for the backward pass.
        """

        def run(arrays: list[Array], positions: Positions, is_each: bool) -> Sequence[Array]:
            """Runs the forward pass, whose results are no totals."""
            return self.passes.forward(arrays, positions)

        return differentiable(self, NetCallback(run, (*self.net.inputs,), (*self.passes.types,)))

    @cached_property
    def backward(self) -> Callable[..., list[Any]]:
        """The backward pass of the net as a function of JAX: (lengths or None, inputs and cotangents, results
        and saved values) -> gradients.
        """
        gradient = self.gradient.net
        count, first = len(self.net.inputs), len(gradient.inputs)

        def run(arrays: list[Array], positions: Positions, is_each: bool) -> Sequence[Array]:
            """Runs the backward pass of the gradient, or of the gradients per sequence."""
            passes = self.passes_of_each if is_each else self.passes
            assert passes is not None
            saved = [arrays[first + place] for place in passes.saved]
            return passes.backward(arrays[:count], arrays[count:first], saved, positions)

        def has_each() -> bool:
            """Tells whether there are such gradients."""
            return self.passes_of_each is not None

        arguments = (*gradient.inputs, *self.passes.types)
        return differentiable(self.gradient, NetCallback(run, arguments, (*gradient.results,), has_each))


def differentiable(of: JaxFunction, callback: "NetCallback") -> Callable[..., list[Any]]:
    """Returns a function of JAX arrays (lengths or None, inputs, further arrays) -> results, which has the
    gradients of a net with respect to the inputs.

    of: the net. callback: computes its results, and further ones, which have no gradients.
    """

    def called(lengths: Any, inputs: tuple[Any, ...], further: tuple[Any, ...]) -> list[Any]:
        """Calls the function back, without gradients."""
        return callback.called(lengths, (*inputs, *further))

    def forward(
        lengths: Any, inputs: tuple[Any, ...], further: tuple[Any, ...]
    ) -> tuple[list[Any], tuple[Any, ...]]:
        """Runs the forward pass of JAX's custom_vjp; returns the results, and what `backward` then gets: the
        lengths, the inputs, and results with saved values.
        """
        made = of.with_saved(lengths, inputs, ())
        return made[: len(callback.results)], (lengths, inputs, tuple(made))

    def backward(kept: tuple[Any, ...], cotangents: list[Any]) -> tuple[Any, Any, Any]:
        """Runs the backward pass of JAX's custom_vjp: returns the gradients of the inputs, and None for the
        lengths and the further arrays.
        """
        lengths, inputs, made = kept
        known = [one for one, type_ in zip(cotangents, of.net.results, strict=False) if type_.is_float]
        computed = of.gradient.net.inputs[len(inputs) :]
        known = [one.astype(type_.dtype) for one, type_ in zip(known, computed, strict=True)]
        gradients = of.backward(lengths, (*inputs, *known), made)
        by_place = {
            place: one.astype(inputs[place].dtype) for place, one in zip(of.wanted, gradients, strict=True)
        }
        return None, tuple(by_place.get(place) for place in range(len(inputs))), None

    function = jax.custom_vjp(called)
    function.defvjp(forward, backward)
    return function


@dataclass(frozen=True, eq=False)
class NetCallback:
    """The function that JAX calls back with the buffers of arrays; JAX compiles each object once.

    run: computes results of arrays that lie as in a net.
    arguments, results: the types of the arrays. The first value per step gives time and batch.
    has_each: tells whether `run` computes totals of each sequence; by default it does not.
    """

    run: Run
    arguments: tuple[Type, ...]
    results: tuple[Type, ...]
    has_each: Callable[[], bool] = bool

    def called(self, lengths: Any, arrays: Sequence[Any]) -> list[Any]:
        """Adds a call of stepnet from JAX's computation, and returns its results as JAX arrays. arrays: the
        arguments, whose numbers are not known while JAX traces. lengths: the lengths of the sequences, or
        None.
        """
        given = [*([] if lengths is None else [lengths]), *arrays]
        sizes = sizes_in(self.types(len(given)), given)
        shapes = [jax.ShapeDtypeStruct(shape_of(type_, sizes), type_.dtype) for type_ in self.results]
        return list(buffer_callback(self, shapes, vmap_method="expand_dims")(*given))

    def types(self, count: int) -> list[Type]:
        """Returns the types of `count` arrays: the arguments, after the lengths if these are counted."""
        return [LENGTHS, *self.arguments][-count:]

    def __call__(self, _: Any, results: Sequence[Any], *buffers: Any) -> None:
        """Computes the results from JAX's `buffers`, and writes them into JAX's buffers `results`. Under vmap
        the buffers have further leading axes: the results are then computed in one call, if each sequence is
        independent of the others and the parameters are shared, or else entry by entry.
        """
        arrays, made = ([np.asarray(buffer) for buffer in kind] for kind in (buffers, results))
        types = self.types(len(arrays))
        depth = arrays[-1].ndim - axes_of(types[-1])
        if not depth:
            self.write(arrays, made)
            return
        leads = [array.shape[:depth] for array in arrays]
        lead = np.broadcast_shapes(*leads)
        shared = (prod(own) == 1 for own, type_ in zip(leads, types, strict=True) if type_.extent == CONST)
        if self.is_by_row(arrays, types, depth) and all(shared):
            self.write_rows(lead, arrays, made)
            return
        for index in np.ndindex(lead):
            self.write(
                [array[(*np.minimum(index, np.array(array.shape[:depth]) - 1), ...)] for array in arrays],
                [one[(*index, ...)] for one in made],
            )

    def is_by_row(self, arrays: Sequence[Array], types: Sequence[Type], depth: int) -> bool:
        """Tells whether each sequence has results of its own: no result is a total, or each total is that of
        one sequence, and there is a function for these.

        arrays, types: the arguments with `depth` leading axes, and their types.
        """
        if all(type_.extent != CONST for type_ in self.results):
            return True
        sizes = zip(arrays, types, strict=True)
        batch = next(array.shape[depth + 1] for array, type_ in sizes if type_.extent == STEPS)
        return batch == 1 and self.has_each()

    def write(self, arrays: list[Array], results: Sequence[Array]) -> None:
        """Computes the results of arrays without leading axes, into arrays."""
        for result, array in zip(results, self.computed(arrays), strict=True):
            result[...] = array.reshape(result.shape)

    def write_rows(self, lead: tuple[int, ...], arrays: list[Array], results: Sequence[Array]) -> None:
        """Computes results for arrays with leading axes of vmap in one call, with the entries of these axes
        as further sequences, and writes them into the arrays `results`.

        lead: the sizes of the leading axes; those of an array may be one.
        """
        depth, types = len(lead), self.types(len(arrays))
        joined = list[Array]()
        for array, type_ in zip(arrays, types, strict=True):
            own = array.shape[depth:]
            if type_.extent == CONST:
                joined.append(array.reshape(own))
                continue
            place = LEADING[type_.extent] - 1
            moved = np.moveaxis(
                np.broadcast_to(array, (*lead, *own)), range(depth), range(place, place + depth)
            )
            rows = moved.reshape(*own[:place], prod(lead) * own[place], *own[place + 1 :])
            joined.append(np.ascontiguousarray(rows))  # with one row, it may still be a view of the array
        for result, array, type_ in zip(results, self.computed(joined, True), self.results, strict=True):
            if type_.extent == CONST:
                result[...] = array.reshape(result.shape)
                continue
            place, own = LEADING[type_.extent] - 1, result.shape[depth:]
            whole = array.reshape(*own[:place], *lead, *own[place:])
            result[...] = np.moveaxis(whole, range(place, place + depth), range(depth))

    def computed(self, arrays: list[Array], is_each: bool = False) -> Sequence[Array]:
        """Computes the results for arrays as JAX passes them to a callback, without the axes of vmap. The
        first array may be the lengths of the sequences.

        is_each: whether there is a total per sequence in place of each total over all sequences.
        """
        types = self.types(len(arrays))
        time, batch = sizes_in(types, arrays)
        lengths = arrays.pop(0) if len(arrays) > len(self.arguments) else None
        positions = whole_sequences(time, batch) if lengths is None else positioned(time, batch, lengths)
        flat = [
            array.reshape(time * batch, *type_.shape) if type_.extent == STEPS else array
            for array, type_ in zip(arrays, self.arguments, strict=True)
        ]
        is_each = is_each and any(type_.extent == CONST for type_ in self.results)
        return self.run(flat, positions, is_each)


def axes_of(type_: Type) -> int:
    """Returns the number of axes of a value: steps, sequences and features together."""
    return LEADING[type_.extent] + len(type_.shape)


def sizes_in(types: Sequence[Type], arrays: Sequence[Any]) -> tuple[int, int]:
    """Returns (time, batch) of arrays, the first of which that has a value per step gives them."""
    return next(array.shape[:2] for array, type_ in zip(arrays, types, strict=True) if type_.extent == STEPS)


def shape_of(type_: Type, sizes: tuple[int, int]) -> tuple[int, ...]:
    """Returns the shape of a value. sizes: (time, batch)."""
    return *sizes[2 - LEADING[type_.extent] :], *type_.shape


def positioned(time: int, batch: int, lengths: Any) -> Positions:
    """Returns where sequences lie in arrays [time, batch, ...]; raises `InputError` for wrong lengths."""
    return Positions.padded(checked_lengths(lengths, batch, time), time, True)


@lru_cache(maxsize=64)
def whole_sequences(time: int, batch: int) -> Positions:
    """Returns the positions of sequences of all steps, cached with facts that targets derive from them."""
    return positioned(time, batch, np.full(batch, time))
