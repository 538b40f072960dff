"""TensorFlow: Keras' GRU and LSTM layers in a `tf.function`, compiled by XLA if the options say so."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported, streamed

# Keras' order of gates, as places in ours: zrn of rzn, ifgo of ifgo.
GATES = {"gru": (1, 0, 2), "lstm": (0, 1, 2, 3)}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Sets the threads, and returns the versions of TensorFlow and Keras."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tensorflow = imported("tensorflow", "make bench-peers")
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    tensorflow.config.threading.set_inter_op_parallelism_threads(threads)
    return {"tensorflow": tensorflow.__version__, "keras": imported("keras", "make bench-peers").__version__}


def ordered(array: Array, order: tuple[int, ...]) -> Array:
    """Reorders the gates in an array [..., gates hidden]; order: the old place of each."""
    return np.concatenate([np.split(array, len(order), axis=-1)[gate] for gate in order], axis=-1)


def arrays_of(work: Work, p: dict[str, Array]) -> list[Array]:
    """Returns the weights p of one direction of a layer in Keras' layout: W, R and bias."""
    order = GATES[work.cell]
    bias = np.stack([p["b"], p["d"]]) if work.cell == "gru" else p["b"]
    return [ordered(array, order) for array in (p["W"], p["R"], bias)]


def layers_of(work: Work) -> tuple[Callable[..., Any], list[list[Any]]]:
    """Makes Keras' layers with the weights of the case. Returns the function from padded inputs [batch, time,
    inputs] and a mask to the outputs, and the layers by direction.
    """
    work.needs(GATES, "Keras")
    keras = imported("keras", "")
    kind = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[work.cell]
    made: list[list[Any]] = []
    whole: list[Any] = []
    features = work.inputs
    for both in work.recurrences:
        layer = kind(work.hidden, return_sequences=True, dtype=work.dtype)
        layer = layer if len(both) == 1 else keras.layers.Bidirectional(layer)
        layer.build((None, None, features))
        line = [layer] if len(both) == 1 else [layer.forward_layer, layer.backward_layer]
        for one, p in zip(line, both, strict=True):
            one.set_weights(arrays_of(work, p))
        whole.append(layer)
        made.append(line)
        features = work.hidden * len(both)

    def forward(x: Any, mask: Any) -> Any:
        """Runs all layers on padded inputs with a mask; returns the outputs."""
        for layer in whole:
            x = layer(x, mask=mask)
        return x

    return forward, made


def compiled(function: Callable[..., Any], work: Work) -> Callable[..., Any]:
    """Makes a TensorFlow graph of a function, compiled by XLA if the options say so."""
    tensorflow = imported("tensorflow", "")
    return tensorflow.function(function, jit_compile=work.options["xla"], autograph=False)


def mask_of(work: Work) -> Any:
    """Returns the mask of steps that are no padding, as a tensor; None for a dense batch."""
    tensorflow = imported("tensorflow", "")
    inside = np.arange(int(work.lengths.max())) < work.lengths[:, None]
    return tensorflow.constant(inside) if work.ragged else None


def prepare(work: Work) -> Prepared:
    """Makes Keras' layers one graph, batch before time: returns the timed call and its conversion."""
    tensorflow = imported("tensorflow", "")
    forward, _ = layers_of(work)
    x, mask = tensorflow.constant(work.padded(time_major=False)), mask_of(work)

    def masked(x: Any) -> Any:
        """Runs the layers with the mask of the case, to be compiled."""
        return forward(x, mask)

    run = compiled(masked, work)

    def outputs(result: Any) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        return work.end_to_end(result.numpy(), time_major=False)

    return Prepared(lambda: run(x), outputs)


def prepare_stream(work: Work) -> Prepared:
    """Makes a step of the layer's cell one graph: returns the timed run of a stream."""
    tensorflow = imported("tensorflow", "")
    if not work.is_one:
        raise Refused("a stream is of one layer")
    _, ((layer,),) = layers_of(work)
    run = compiled(layer.cell, work)

    def begin() -> Callable[[Any], Any]:
        """Starts a stream from zeros; returns the function of its step."""
        count = 2 if work.cell == "lstm" else 1
        states = [tensorflow.zeros((work.batch, work.hidden), work.dtype) for _ in range(count)]

        def step(x: Any) -> Any:
            """Runs one step of the stream, to be timed, and keeps the states."""
            nonlocal states
            output, states = run(x, states)
            return output

        return step

    return streamed(work, begin, tensorflow.constant)


def prepare_training(work: Work) -> Prepared:
    """Makes forward and backward one graph: returns the timed call, and the conversion to gradients."""
    tensorflow = imported("tensorflow", "")
    forward, layers = layers_of(work)
    variables = [[layer.trainable_weights for layer in line] for line in layers]
    x, cotangents = (
        tensorflow.constant(work.padded(time_major=False, name=name)) for name in ("values", "cotangents")
    )
    mask = mask_of(work)

    def gradients(x: Any, cotangents: Any) -> Any:
        """Computes the outputs and all gradients, to be compiled as one graph."""
        with tensorflow.GradientTape() as tape:
            tape.watch(x)
            outputs = forward(x, mask)
        # Keras' outputs of padding repeat the last one: their cotangents are zeros
        found = tape.gradient(
            outputs, [x, [[[w.value for w in one] for one in line] for line in variables]], cotangents
        )
        return outputs, *found

    run = compiled(gradients, work)

    def answers(result: Any) -> dict[str, Array]:
        """Converts a result of the timed call to gradients by the names of the case."""
        _, of_inputs, of_weights = result
        order = tuple(int(place) for place in np.argsort(GATES[work.cell]))

        def own(found: list[Any]) -> dict[str, Array]:
            """Converts the gradients of one layer and direction from Keras' layout to the case's."""
            W, R, bias = (ordered(one.numpy(), order) for one in found)
            return {"W": W, "R": R, **({"b": bias[0], "d": bias[1]} if work.cell == "gru" else {"b": bias})}

        weights = work.named([[own(one) for one in line] for line in of_weights])
        return {"values": work.end_to_end(of_inputs.numpy(), time_major=False), **weights}

    return Prepared(lambda: run(x, cotangents), answers)
