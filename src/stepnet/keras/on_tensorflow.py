"""The loop of a recurrent layer on Keras' tensorflow backend, with gradients: Keras' own cells.

    eager          tensors --no copy--> arrays --> ArrayNet --> tensors
    in a graph     the same in an operation that calls Python, tf.numpy_function

Gradients are functions of the same kind, so they have gradients themselves. XLA and saved graphs have no such
operation: there, Keras' own loop runs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from stepnet.errors import StepError
from stepnet.keras.array_call import ArrayCall
from stepnet.keras.array_net import Array, ArrayFunction, ArrayNet
from stepnet.keras.exporting import EXPORTED, check_not_exported
from stepnet.keras.installed import installed
from stepnet.keras.way import Results
from stepnet.keras.whole import Whole
from stepnet.net.types import ROWS, STEPS, Type

tf: Any = installed("tensorflow")
in_xla: Any = installed("tensorflow.python.ops.control_flow_util").GraphOrParentsInXlaContext
save_context: Any = installed("tensorflow.python.saved_model.save_context")
Tensors = Sequence[Any]


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """None: Keras' own loop gives shapes."""
    return None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that AutoGraph does not rewrite."""
    return tf.autograph.experimental.do_not_convert(function)


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """The function that runs a call of a layer; raises `StepError` for a call that Keras' own loop should
    run.
    """
    check()
    return partial(run, ArrayCall.of(layer, whole, states, mask, training), training)


def check() -> None:
    """Raises `StepError` where Keras' own loop is to run."""
    for kind in ("GPU", "TPU"):
        if tf.config.list_logical_devices(kind):
            raise StepError(f"TensorFlow has a {kind}: machine code is for the CPU")
    if tf.distribute.has_strategy():
        raise StepError("tf.distribute runs the model: machine code is for one process")
    if tf.executing_eagerly():
        return
    if in_xla(tf.compat.v1.get_default_graph()):
        raise StepError(
            "XLA compiles the model, and cannot call machine code: compile with jit_compile=False"
        )
    if save_context.in_save_context():
        raise StepError(EXPORTED)
    check_not_exported()


def run(call: ArrayCall, training: bool) -> Results:
    """The results. Where a layer is trained, what gradients read is saved; elsewhere it is made when they are
    asked for.
    """
    net, mask = call.loop.net, call.mask

    def function(*tensors: Any) -> Any:
        made = saved(net, tensors, mask) if training else called(call.loop.results, net.types, tensors, mask)

        def gradients(*cotangents: Any) -> list[Any]:
            return gradients_of(net, tensors, mask, cotangents, made if training else None)

        return made[: len(net.types)], gradients

    return call.results(list(tf.custom_gradient(function)(*call.tensors)))


def saved(net: ArrayNet, tensors: Tensors, mask: Any) -> list[Any]:
    """The results of a net, followed by the saved values."""
    return called(net.saving, net.types, tensors, mask, net.saved)


def gradients_of(
    net: ArrayNet, tensors: Tensors, mask: Any, cotangents: Tensors, kept: list[Any] | None
) -> list[Any]:
    """The gradients of all inputs, None of those that have none."""
    count, kept = len(tensors), saved(net, tensors, mask) if kept is None else kept

    def function(*given: Any) -> Any:
        def second(*upstream: Any) -> list[Any]:
            return gradients_of(net.gradient, given, mask, upstream, None)

        return called(net.gradients, net.wanted_types, [*given, *kept], mask), second

    made = tf.custom_gradient(function)(*tensors, *cotangents)
    by_place = dict(zip(net.wanted, made, strict=True))
    return [by_place.get(place) for place in range(count)]


def called(
    function: ArrayFunction, types: Sequence[Type], tensors: Tensors, mask: Any, flat: Sequence[Type] = ()
) -> list[Any]:
    """What a function of arrays gives, as tensors. flat: the types of further results, [total, ...]."""
    masks = [] if mask is None else [mask]

    def call(*arrays: Array) -> list[Array]:
        made = function(arrays[len(masks) :], arrays[0] if masks else None)
        return [own(array, arrays) for array in made]

    if tf.executing_eagerly():
        return list(map(tf.convert_to_tensor, call(*map(np.asarray, (*masks, *tensors)))))
    dtypes = [type_.dtype for type_ in (*types, *flat)]
    results = tf.numpy_function(call, [*masks, *tensors], dtypes, stateful=False)
    batch, time = tensors[0].shape[:2]
    leads = {STEPS: (batch, time), ROWS: (batch,)}
    for result, type_ in zip(results, types, strict=False):
        result.set_shape((*leads.get(type_.extent, ()), *type_.shape))
    return results


def own(array: Array, others: Sequence[Array]) -> Array:
    """An array, C-contiguous, or a copy where its memory is that of others: TensorFlow takes it over."""
    shared = any(np.may_share_memory(array, other) for other in others)
    return array.copy() if shared else np.ascontiguousarray(array)
