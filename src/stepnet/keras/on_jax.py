"""The loop of a recurrent layer on Keras' jax backend, with gradients: Keras' own cells.

    tensors --buffer_callback, no copy--> arrays --> ArrayNet --copied--> tensors

Gradients are functions of the same kind, so they have gradients themselves. `jax.pure_callback` would copy
what it is given, which takes so long that training was slower than by Keras' own loop.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stepnet.errors import StepError
from stepnet.keras.array_call import ArrayCall
from stepnet.keras.array_net import ArrayFunction, ArrayNet
from stepnet.keras.cells import NAMED, cells_in
from stepnet.keras.exporting import FOLDERS, check_not_exported
from stepnet.keras.installed import installed
from stepnet.keras.way import Results
from stepnet.keras.whole import Whole
from stepnet.net.types import ROWS, STEPS, Type

keras: Any = installed()
tree: Any = keras.tree
jax: Any = installed("jax")
buffer_callback: Any = installed("jax.experimental.buffer_callback").buffer_callback
Tensors = Sequence[Any]

FOLDERS.append(os.path.dirname(installed("jax._src.export").__file__) + os.sep)


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """None: Keras' own loop gives shapes."""
    return None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function."""
    return function


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """The function that runs a call of a layer; raises `StepError` for a call that Keras' own loop should
    run.
    """
    check(whole)
    call = ArrayCall.of(layer, whole, states, mask, training)
    return partial(run, layer, call)


def check(whole: Whole) -> None:
    """Raises `StepError` where Keras' own loop is to run."""
    if jax.default_backend() != "cpu":
        raise StepError(f"JAX runs on {jax.default_backend()}: machine code is for the CPU")
    if keras.distribution.distribution() is not None:
        raise StepError("keras.distribution runs the model: machine code is for one device")
    check_not_exported()
    if not all(isinstance(size, int) for size in whole.shape):
        raise StepError(f"the sequences are {list(whole.shape)}: a callback has sizes that are known")


def run(layer: Any, call: ArrayCall) -> Results:
    """The results."""
    net = call.loop.net
    output, *last = differentiable(call.loop.results, net)(call.mask, tuple(call.tensors), ())
    if call.mask is not None and not (net.way.zero or layer.unroll):
        cell = cells_in(layer.cell)[-1]
        output = begun(output, call, tree.flatten(call.states)[-NAMED[type(cell)].states])
    return call.results([output, *last])


def begun(output: Any, call: ArrayCall, first: Any) -> Any:
    """Outputs as Keras' scan gives them: before the first step that runs, they are what the states began
    with. first: the first state of the last cell.
    """
    way, mask = call.loop.net.way, call.mask
    ran = jax.lax.cummax(mask.astype("int32"), axis=1, reverse=way.reverse) > 0
    if way.last_only:
        return jax.numpy.where(mask.any(1)[:, None], output, first)
    return jax.numpy.where(ran[:, :, None], output, first[:, None])


def differentiable(
    function: ArrayFunction, net: ArrayNet, flat: Sequence[Type] = ()
) -> Callable[..., list[Any]]:
    """A function of arrays that gives the results of a net, as one of tensors with the gradients of that net.

    It takes a mask or None, the net's inputs, and further tensors. flat: the types of what else it gives,
    [total, ...]. These have no gradients.
    """
    given = len(net.types) + len(flat)

    def results(mask: Any, tensors: Tensors, further: Tensors) -> list[Any]:
        return called(function, net.types, [*tensors, *further], mask, flat)

    def forward(mask: Any, tensors: Tensors, further: Tensors) -> tuple[list[Any], Any]:
        made = differentiable(net.saving, net, net.saved)(mask, tensors, ())
        return made[:given], (mask, tensors, made)

    def backward(kept: Any, cotangents: list[Any]) -> tuple[Any, ...]:
        mask, tensors, made = kept
        inputs = (*tensors, *cotangents[: len(net.types)])
        gradients = differentiable(net.gradients, net.gradient)(mask, inputs, made)
        by_place = dict(zip(net.wanted, gradients, strict=True))
        return None, tuple(by_place.get(place) for place in range(len(tensors))), None

    whole = jax.custom_vjp(results)
    whole.defvjp(forward, backward)
    return whole


@dataclass(frozen=True)
class Callback:
    """What JAX calls. Equal ones are compiled once. masked: whether the first array is a mask."""

    function: ArrayFunction
    masked: bool

    def __call__(self, context: Any, results: Any, *buffers: Any) -> None:
        """Writes the results of a function of arrays where JAX wants them."""
        arrays = list(map(np.asarray, buffers))
        made = self.function(arrays[self.masked :], arrays[0] if self.masked else None)
        for result, array in zip(results, made, strict=True):
            np.asarray(result)[...] = array


def called(
    function: ArrayFunction, types: Sequence[Type], tensors: Tensors, mask: Any, flat: Sequence[Type] = ()
) -> list[Any]:
    """What a function of arrays gives, as tensors. flat: the types of further results, [total, ...]."""
    masks = [] if mask is None else [mask]
    batch, time = tensors[0].shape[:2]
    whole = partial(shaped, {STEPS: (batch, time), ROWS: (batch,)})
    behind = partial(shaped, {STEPS: (batch * time,), ROWS: (batch,)})
    call = buffer_callback(
        Callback(function, bool(masks)), [*map(whole, types), *map(behind, flat)], vmap_method="sequential"
    )
    return list(call(*masks, *tensors))


def shaped(leads: dict[Any, tuple[int, ...]], type_: Type) -> Any:
    """The shape and dtype of a result."""
    return jax.ShapeDtypeStruct((*leads.get(type_.extent, ()), *type_.shape), type_.dtype)
