"""The tensorflow backend: runs a call of a recurrent layer with one of Keras' own cells compiled, with
gradients.

    eager          tensors --no copy--> arrays --> ArrayNet --> tensors
    in a graph     by an operation that calls Python, tf.numpy_function

Gradients are functions of this kind too, so they have gradients themselves. XLA and saved graphs have no
operation that calls Python: there, Keras' own loop runs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS, STEPS, Type
from stepnet.errors import StepError
from stepnet.keras.array_call import EXPORTED, ArrayCall, check_not_exported
from stepnet.keras.array_net import Array, ArrayFunction, ArrayNet
from stepnet.keras.backend import KerasBackend
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results

tf: Any = installed("tensorflow")
in_xla: Any = installed("tensorflow.python.ops.control_flow_util").GraphOrParentsInXlaContext
save_context: Any = installed("tensorflow.python.saved_model.save_context")
Tensors = Sequence[Any]


def without_tracing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that stops TensorFlow's AutoGraph from rewriting a function."""
    return tf.autograph.experimental.do_not_convert(function)


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Checks a call of a layer on TensorFlow and returns the function that runs it compiled.

    packed: the sequences. states: the initial states. mask: Keras' mask, or None. training: whether the layer
    is in training. Raises `StepError` for a call that Keras' own loop must run.
    """
    check()
    return partial(run, ArrayCall.of(layer, packed, states, mask, training), training)


def check() -> None:
    """Raises `StepError` for a device, a strategy or a graph for which Keras' own loop must run, in place of
    stepnet's machine code.
    """
    for kind in ("GPU", "TPU"):
        if tf.config.list_logical_devices(kind):
            raise StepError(f"TensorFlow has a {kind}: machine code is for the CPU")
    if tf.distribute.has_strategy():
        raise StepError("tf.distribute runs the model: machine code is for one process")
    if tf.executing_eagerly():
        return
    if in_xla(tf.compat.v1.get_default_graph()):
        raise StepError(
            "XLA compiles the model and cannot call machine code: compile the model with jit_compile=False"
        )
    if save_context.in_save_context():
        raise StepError(EXPORTED)
    check_not_exported()


def run(call: ArrayCall, training: bool) -> Results:
    """Runs a checked call of a layer; returns the last output, the outputs and the final states.

    training: whether values for gradients are saved; otherwise a gradient repeats the forward pass.
    """
    net, mask = call.loop.net, call.mask

    def function(*tensors: Any) -> Any:
        """Runs the layer's net on tensors; returns the results, and the function from their cotangents to the
        gradients, as TensorFlow's `custom_gradient` takes them.
        """
        results = (
            run_forward(net, tensors, mask)
            if training
            else call_arrays(call.loop.results, net.types, tensors, mask)
        )

        def gradients(*cotangents: Any) -> list[Any]:
            """Computes the gradients of the tensors from the results' cotangents, for TensorFlow."""
            return gradients_of(net, tensors, mask, cotangents, results if training else None)

        return results[: len(net.types)], gradients

    return call.results(list(tf.custom_gradient(function)(*call.tensors)))


def run_forward(net: ArrayNet, tensors: Tensors, mask: Any) -> list[Any]:
    """Runs a net forward on tensors; returns its results, then saved values. mask: bool [batch, time]."""
    return call_arrays(net.saving, net.types, tensors, mask, net.saved)


def gradients_of(
    net: ArrayNet, tensors: Tensors, mask: Any, cotangents: Tensors, saved: list[Any] | None
) -> list[Any]:
    """Returns the gradient of each input of a net, as tensors that TensorFlow can differentiate again; None
    for inputs that get none.

    tensors: the inputs. mask: bool [batch, time], or None. cotangents: the cotangents of the results.
    saved: the results and saved values of the forward pass; None repeats it.
    """
    count, saved = len(tensors), run_forward(net, tensors, mask) if saved is None else saved

    def function(*tensors_and_cotangents: Any) -> Any:
        """Computes the gradients for TensorFlow from tensors and cotangents; returns them, and the function
        from their cotangents to second gradients.
        """

        def second(*upstream: Any) -> list[Any]:
            """Computes the gradients of the gradients, for TensorFlow."""
            return gradients_of(net.gradient, tensors_and_cotangents, mask, upstream, None)

        return call_arrays(net.gradients, net.gradient_types, [*tensors_and_cotangents, *saved], mask), second

    gradients = tf.custom_gradient(function)(*tensors, *cotangents)
    by_index = dict(zip(net.differentiated, gradients, strict=True))
    return [by_index.get(index) for index in range(count)]


def call_arrays(
    function: ArrayFunction, types: Sequence[Type], tensors: Tensors, mask: Any, flat: Sequence[Type] = ()
) -> list[Any]:
    """Calls a function of arrays, directly or by an operation of a graph; returns its results as tensors.

    types: the types of the results. flat: the types of further results, which have the shape [total, ...].
    tensors: the arguments, the first [batch, time, ...]. mask: bool [batch, time], or None.
    """
    masks = [] if mask is None else [mask]

    def call(*arrays: Array) -> list[Array]:
        """Calls the function; copies results that share memory with its arguments."""
        results_of_call = function(arrays[len(masks) :], arrays[0] if masks else None)
        return [exclusive_copy(array, arrays) for array in results_of_call]

    if tf.executing_eagerly():
        return list(map(tf.convert_to_tensor, call(*map(np.asarray, (*masks, *tensors)))))
    dtypes = [type_.dtype for type_ in (*types, *flat)]
    results = tf.numpy_function(call, [*masks, *tensors], dtypes, stateful=False)
    batch, time = tensors[0].shape[:2]
    leads = {STEPS: (batch, time), ROWS: (batch,)}
    for result, type_ in zip(results, types, strict=False):
        result.set_shape((*leads.get(type_.extent, ()), *type_.shape))
    return results


def exclusive_copy(array: Array, others: Sequence[Array]) -> Array:
    """Returns an array that TensorFlow may own, a copy if it is not contiguous or has memory of `others`."""
    shared = any(np.may_share_memory(array, other) for other in others)
    return array.copy() if shared else np.ascontiguousarray(array)


BACKEND = KerasBackend(prepare, without_tracing=without_tracing)
