"""The jax backend: runs a call of a recurrent layer with one of Keras' own cells compiled, with gradients.

    tensors --buffer_callback, no copy--> arrays --> ArrayNet --copied--> tensors

Gradients are callbacks too, so they have gradients themselves. `jax.pure_callback` would copy its arguments,
which made training slower than Keras' own loop.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS, STEPS, Type
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError
from stepnet.keras.array_call import FOLDERS, ArrayCall, check_not_exported
from stepnet.keras.array_net import ArrayFunction, ArrayNet
from stepnet.keras.backend import KerasBackend
from stepnet.keras.cells import NAMED, cells_in
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results

keras: Any = installed()
tree: Any = keras.tree
jax: Any = installed("jax")
buffer_callback: Any = installed("jax.experimental.buffer_callback").buffer_callback
Tensors = Sequence[Any]

FOLDERS.append(os.path.dirname(installed("jax._src.export").__file__) + os.sep)


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Checks a call of a layer on JAX and returns the function that runs it compiled.

    packed: the sequences. states: the initial states. mask: Keras' mask, or None. training: whether the layer
    is in training. Raises `StepError` for a call that Keras' own loop must run.
    """
    check(packed)
    call = ArrayCall.of(layer, packed, states, mask, training)
    return partial(run, layer, call)


def check(packed: PackedInputs) -> None:
    """Raises `StepError` for a call that Keras' own loop must run: for a device, a distribution or sizes that
    stepnet does not support. packed: the sequences.
    """
    if jax.default_backend() != "cpu":
        raise StepError(f"JAX runs on {jax.default_backend()}: machine code is for the CPU")
    if keras.distribution.distribution() is not None:
        raise StepError("keras.distribution runs the model: machine code is for one device")
    check_not_exported()
    if not all(isinstance(size, int) for size in packed.shape):
        raise StepError(f"the sequences are {list(packed.shape)}: a callback needs sizes that are known")


def run(layer: Any, call: ArrayCall) -> Results:
    """Runs a checked call of a layer; returns the last output, the outputs and the final states. Where a mask
    skips the first steps, their outputs are those of Keras on JAX.
    """
    net = call.loop.net
    output, *final_states = differentiable(call.loop.results, net)(call.mask, tuple(call.tensors), ())
    if call.mask is not None and not (net.settings.zero or layer.unroll):
        cell = cells_in(layer.cell)[-1]
        output = fill_before_first_step(output, call, tree.flatten(call.states)[-NAMED[type(cell)].states])
    return call.results([output, *final_states])


def fill_before_first_step(output: Any, call: ArrayCall, first: Any) -> Any:
    """Replaces outputs before the first step that runs by the initial state, as Keras' scan does on JAX.

    output: the outputs of all steps [batch, time, units], or only those of the last step. first: the initial
    state of the last cell [batch, units].
    """
    settings, mask = call.loop.net.settings, call.mask
    ran = jax.lax.cummax(mask.astype("int32"), axis=1, reverse=settings.reverse) > 0
    if settings.last_only:
        return jax.numpy.where(mask.any(1)[:, None], output, first)
    return jax.numpy.where(ran[:, :, None], output, first[:, None])


def differentiable(
    function: ArrayFunction, net: ArrayNet, flat: Sequence[Type] = ()
) -> Callable[..., list[Any]]:
    """Converts a function of arrays to a function of JAX tensors, with the gradients of a net.

    The result takes a mask or None, the inputs of the net, and further tensors, which get no gradients.
    function: computes the results of the net. flat: the types of results after those of the net, [total,
        ...], which have no gradients either.
    """
    result_count = len(net.types) + len(flat)

    def results(mask: Any, tensors: Tensors, further: Tensors) -> list[Any]:
        """Calls the function on the net's inputs and further tensors, without gradients."""
        return call_arrays(function, net.types, [*tensors, *further], mask, flat)

    def forward(mask: Any, tensors: Tensors, further: Tensors) -> tuple[list[Any], Any]:
        """Runs the forward pass for JAX; returns (results, the values that `backward` reads)."""
        results_and_saved = differentiable(net.saving, net, net.saved)(mask, tensors, ())
        return results_and_saved[:result_count], (mask, tensors, results_and_saved)

    def backward(residuals: Any, cotangents: list[Any]) -> tuple[Any, ...]:
        """Returns the gradients of `tensors`, and None for `mask` and `further`.

        residuals: the second result of `forward`. cotangents: the cotangents of its results; those after the
            net's results are not read.
        """
        mask, tensors, results_and_saved = residuals
        inputs = (*tensors, *cotangents[: len(net.types)])
        gradients = differentiable(net.gradients, net.gradient)(mask, inputs, results_and_saved)
        by_index = dict(zip(net.differentiated, gradients, strict=True))
        return None, tuple(by_index.get(index) for index in range(len(tensors))), None

    function_with_gradient = jax.custom_vjp(results)
    function_with_gradient.defvjp(forward, backward)
    return function_with_gradient


@dataclass(frozen=True)
class Callback:
    """The callable that JAX calls back; equal ones are compiled once. masked: the first array is a mask."""

    function: ArrayFunction
    masked: bool

    def __call__(self, context: Any, results: Any, *buffers: Any) -> None:
        """Runs the function of arrays for JAX, and writes its results into the buffers `results`.

        context: not read. buffers: the function's arguments, after the mask if there is one (`self.masked`).
        """
        arrays = list(map(np.asarray, buffers))
        values = self.function(arrays[self.masked :], arrays[0] if self.masked else None)
        for result, array in zip(results, values, strict=True):
            np.asarray(result)[...] = array


def call_arrays(
    function: ArrayFunction, types: Sequence[Type], tensors: Tensors, mask: Any, flat: Sequence[Type] = ()
) -> list[Any]:
    """Calls a function of arrays from JAX by a callback; returns its results as tensors.

    types: the types of the results. flat: the types of further results, which have the shape [total, ...].
    tensors: the arguments, the first [batch, time, ...]. mask: bool [batch, time], or None.
    """
    masks = [] if mask is None else [mask]
    batch, time = tensors[0].shape[:2]
    laid_out = partial(shaped, {STEPS: (batch, time), ROWS: (batch,)})
    end_to_end = partial(shaped, {STEPS: (batch * time,), ROWS: (batch,)})
    call = buffer_callback(
        Callback(function, bool(masks)),
        [*map(laid_out, types), *map(end_to_end, flat)],
        vmap_method="sequential",
    )
    return list(call(*masks, *tensors))


def shaped(leads: dict[Any, tuple[int, ...]], type_: Type) -> Any:
    """Describes a result of a net to JAX by shape and dtype. type_: the type of the result in the net.

    leads: the leading axes by extent, such as (batch, time) for values with one entry per step.
    """
    return jax.ShapeDtypeStruct((*leads.get(type_.extent, ()), *type_.shape), type_.dtype)


BACKEND = KerasBackend(prepare)
