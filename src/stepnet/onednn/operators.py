"""The operators fusion_gru, multi_gru and fusion_lstm, with the arguments and weights of Paddle's operators.

    weight_x   [inputs, 3 hidden]   the gates u|r|c, the update gate first; of an LSTM 4, c|i|f|o
    weight_h   [hidden, 3 hidden]   of a GRU the memory of [hidden, 2 hidden], u|r, with [hidden, hidden], c,
                                    behind it; of an LSTM [hidden, 4 hidden], c|i|f|o
    bias       [1, 3 hidden]        of an LSTM [1, 4 hidden]; with peepholes [1, 7 hidden], i|f|o behind

origin_mode: whether u = 1 keeps the memory, h' = u h + (1 - u) c, as in oneDNN. By default u = 1 overwrites
it, h' = (1 - u) h + u c. Then the weights of the gate change their sign, because 1 - s(a) = s(-a).
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import numpy as np

from stepnet.compiler.targets.calibration import Calibration
from stepnet.compiler.values.arguments import array_of, choice, file_path, flag, short_repr
from stepnet.errors import InputError, named
from stepnet.onednn.caches import cached_layer
from stepnet.onednn.layer import DTYPE, DTYPES, Layer, check_calibration, layer

Array = np.ndarray

ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "identity": "linear", "linear": "linear"}
"""Paddle's names of activations, and stepnet's."""


def activation(name: Any, what: str) -> str:
    """Translates Paddle's name of an activation to stepnet's; raises `InputError` for an unknown one. what:
    the name of the argument, for the message.
    """
    return ACTIVATIONS[choice(name, f"{what} is one of {', '.join(ACTIVATIONS)}", ACTIVATIONS)]


def weights_of(
    weight_x: Any, weight_h: Any, bias: Any, gates: int, biases: tuple[int, ...]
) -> dict[str, Array]:
    """Checks the shapes of a recurrence's weights, and returns them by name: weight_x, weight_h and, unless
    it is None, bias. Raises `InputError` if they do not fit.

    gates: the number of gates. biases: the numbers of blocks of size hidden that a bias may have; if all of
    them have peepholes, which lie in the bias, it may not be None.
    """
    weights = {"weight_x": weight_x, "weight_h": weight_h} | ({} if bias is None else {"bias": bias})
    arrays = {name: array_of(value, name) for name, value in weights.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    hidden = shapes["weight_h"][0] if len(shapes["weight_h"]) == 2 else 0
    fits = hidden > 0 and shapes["weight_h"] == (hidden, gates * hidden)
    fits = fits and len(shapes["weight_x"]) == 2 and shapes["weight_x"][1] == gates * hidden
    if not fits:
        raise InputError(
            f"weight_x and weight_h have shapes {shapes['weight_x']} and {shapes['weight_h']}, and must have "
            f"[inputs, {gates} hidden] and [hidden, {gates} hidden]"
        )
    if bias is not None:
        sizes = [blocks * hidden for blocks in biases]
        if arrays["bias"].size not in sizes:
            raise InputError(
                f"bias has shape {shapes['bias']}, and must have {' or '.join(map(str, sizes))} numbers"
            )
        arrays["bias"] = arrays["bias"].reshape(1, -1)
    elif min(biases) > gates:
        raise InputError(f"use_peepholes=True needs a bias of {min(biases) * hidden} numbers, and it is None")
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def gru_layer(
    weight_x: Any,
    weight_h: Any,
    bias: Any = None,
    *,
    origin_mode: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    dtype: str | None = None,
    calibration: Calibration | None = None,
    library: str | None = None,
) -> Layer:
    """Makes a layer that computes a GRU like the operator `fusion_gru`, with copies of the weights.

    weight_x [inputs, 3 hidden], weight_h [hidden, 3 hidden] and bias have Paddle's order of gates. The other
    arguments are those of `fusion_gru`. Calls of the layer do not check whether the weights have changed.

    Raises:
        InputError, LibraryError, RefusedError: As `fusion_gru`.
    """
    arrays = weights_of(weight_x, weight_h, bias, 3, (3,))
    semantics = gru_semantics(origin_mode, activation, gate_activation)
    return new_layer("gru", arrays, semantics, options_of(dtype, calibration, library))


def gru_semantics(origin_mode: Any, candidate: Any, gates: Any) -> dict[str, Any]:
    """Translates the arguments of a GRU operator of Paddle to values of `Semantics`, by field: origin_mode,
    and the names of the activations of the candidate and of the gates.
    """
    return {
        "update": "keep" if flag(origin_mode, "origin_mode") else "write",
        "candidate_activation": activation(candidate, "activation"),
        "gate_activation": activation(gates, "gate_activation"),
    }


class Options(TypedDict):
    """Options of all operators that are passed on to `layer`."""

    dtype: str | None
    calibration: Calibration | None
    path: str | None


def options_of(dtype: Any, calibration: Any, library: Any) -> Options:
    """Checks the options of an operator, and returns them as keyword arguments of `layer`. dtype: the dtype
    to compute in, or None. calibration: the scales of int8, or None. library: the path of oneDNN, or None.
    Raises `InputError` for other values.
    """
    if dtype is not None:
        choice(dtype, DTYPE, DTYPES)
    check_calibration(calibration)
    path = library if library is None else str(file_path(library, "library"))
    return Options(dtype=dtype, calibration=calibration, path=path)


def gru_arrays(arrays: Mapping[str, Array]) -> tuple[str, dict[str, Array]]:
    """Returns the weights of a GRU operator, by its arguments' names, as (name of a framework's layout of
    weights, arrays by the layout's names), to make a layer from them.
    """
    names = {"weight_x": "WeightX", "weight_h": "WeightH", "bias": "Bias"}
    return "paddle.fusion_gru", {names[name]: array for name, array in arrays.items()}


def lstm_arrays(arrays: Mapping[str, Array]) -> tuple[str, dict[str, Array]]:
    """Returns the weights of an LSTM operator, by its arguments' names, as (name of a framework's layout of
    weights, arrays by the layout's names), to make a layer from them. A missing bias becomes zeros; one of
    more than 4 hidden numbers has peepholes, and so another layout.
    """
    hidden = arrays["weight_h"].shape[0]
    bias = arrays.get("bias", np.zeros((1, 4 * hidden), arrays["weight_h"].dtype))
    peepholes = "" if bias.size > 4 * hidden else "_no_peepholes"
    renamed = {"fc/Weight": arrays["weight_x"], "Weight": arrays["weight_h"], "Bias": bias}
    return f"paddle.dynamic_lstm{peepholes}", renamed


ARRANGEMENTS = {"gru": gru_arrays, "lstm": lstm_arrays}


def new_layer(
    kind: str, arrays: Mapping[str, Array], semantics: Mapping[str, Any], options: Options
) -> Layer:
    """Makes the layer that runs an operator of Paddle in oneDNN.

    kind: "gru" or "lstm". arrays: Paddle's weights, by the operator's arguments. semantics: settings of the
    cell, by field of `Semantics`. options: dtype, calibration and path of the library.
    """
    layout, renamed = ARRANGEMENTS[kind](arrays)
    return layer(renamed, layout, semantics=semantics, **options)


def layer_for(kind: str, arrays: dict[str, Array], semantics: Mapping[str, Any], options: Options) -> Layer:
    """Returns the cached layer that runs an operator of Paddle in oneDNN; makes a layer if none in the cache
    has equal weights. kind: "gru" or "lstm". arrays: Paddle's weights, by the operator's arguments.
    semantics: settings of the cell, by field of `Semantics`. options: dtype, calibration and path of the
    library.
    """
    settings = (kind, *semantics.items(), *options.values())
    return cached_layer(settings, arrays, lambda copies: new_layer(kind, copies, semantics, options))


def fusion_gru(
    x: Any,
    h0: Any,
    weight_x: Any,
    weight_h: Any,
    bias: Any = None,
    *,
    is_reverse: bool = False,
    origin_mode: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    dtype: str | None = None,
    calibration: Calibration | None = None,
    library: str | None = None,
) -> tuple[Any, Array]:
    """Computes a GRU with its reset before the recurrent product, over ragged sequences: `outputs, final`.

    Weights that were changed in place since the last call are seen: they are compared with copies.

    Args:
        x: A `Ragged` [total, inputs] of one level, or an array [batch, time, inputs]; float32, or half
            precision.
        h0: The memory before the first step, [batch, hidden]; None for zeros.
        weight_x: [inputs, 3 hidden], the gates u|r|c side by side.
        weight_h: [hidden, 3 hidden], whose memory is [hidden, 2 hidden], u|r, with [hidden, hidden], c,
            behind.
        bias: [1, 3 hidden] or [3 hidden]; None for none.
        is_reverse: Whether each sequence runs from its own last step.
        origin_mode: Whether the update gate keeps the memory: h' = u h + (1 - u) c. By default it writes.
        activation: Of the candidate c. Anything but "tanh" runs on the engine llvm.
        gate_activation: Of the gates. Anything but "sigmoid" runs on the engine llvm.
        dtype: The dtype that oneDNN computes in: float32, bfloat16, float16, or int8 with a calibration; by
            default that of the weights.
        calibration: The scales of int8; see `calibrate`.
        library: The path of the library; by default that of STEPNET_ONEDNN, or the one that is installed.

    Returns:
        The outputs in the form of `x`, and h at the end of each sequence, [batch, hidden].

    Raises:
        InputError: For arguments that do not fit.
        LibraryError: Without oneDNN, and where it reports a failure.
        RefusedError: For a dtype that this processor does not have.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> from stepnet.onednn import fusion_gru
    >>> x = sn.Ragged.from_list([np.ones((2, 1), "float32"), np.ones((3, 1), "float32")])
    >>> weight_x, weight_h = np.ones((1, 6), "float32"), np.zeros((2, 6), "float32")
    >>> outputs, final = fusion_gru(x, None, weight_x, weight_h)
    >>> final.round(3)
    array([[0.707, 0.707],
           [0.747, 0.747]], dtype=float32)
    """
    arrays = weights_of(weight_x, weight_h, bias, 3, (3,))
    semantics = gru_semantics(origin_mode, activation, gate_activation)
    options = options_of(dtype, calibration, library)
    run = layer_for("gru", arrays, semantics, options)
    return run(x, h0, reverse=flag(is_reverse, "is_reverse"))


def lstm_layer(
    weight_x: Any,
    weight_h: Any,
    bias: Any = None,
    *,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: str | None = None,
    calibration: Calibration | None = None,
    library: str | None = None,
) -> Layer:
    """Makes a layer that computes an LSTM like the operator `fusion_lstm`, with copies of the weights.

    weight_x [inputs, 4 hidden], weight_h [hidden, 4 hidden] and bias have Paddle's order of gates. The other
    arguments are those of `fusion_lstm`.

    Raises:
        InputError, LibraryError, RefusedError: As `fusion_lstm`.
    """
    arrays = weights_of(weight_x, weight_h, bias, 4, (4, 7))
    semantics = lstm_semantics(gate_activation, cell_activation, candidate_activation)
    return new_layer("lstm", arrays, semantics, options_of(dtype, calibration, library))


def lstm_semantics(gates: Any, output: Any, candidate: Any) -> dict[str, Any]:
    """Translates the arguments of an LSTM operator of Paddle, the names of the activations of gates, output
    and candidate, to values of `Semantics`, by field.
    """
    return {
        "gate_activation": activation(gates, "gate_activation"),
        "output_activation": activation(output, "cell_activation"),
        "candidate_activation": activation(candidate, "candidate_activation"),
    }


def fusion_lstm(
    x: Any,
    h0: Any,
    c0: Any,
    weight_x: Any,
    weight_h: Any,
    bias: Any = None,
    *,
    is_reverse: bool = False,
    use_peepholes: bool | None = None,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    cell: str = "last",
    dtype: str | None = None,
    calibration: Calibration | None = None,
    library: str | None = None,
) -> tuple[Any, dict[str, Array]]:
    """Computes an LSTM over ragged sequences: `outputs, final`, with final["h"] and final["c"].

    Args:
        x: A `Ragged` [total, inputs] of one level, or an array [batch, time, inputs]; float32, or half
            precision.
        h0: The memory h before the first step, [batch, hidden]; None for zeros.
        c0: The memory c before the first step, [batch, hidden]; None for zeros.
        weight_x: [inputs, 4 hidden], the gates c|i|f|o side by side.
        weight_h: [hidden, 4 hidden], the gates c|i|f|o side by side.
        bias: [1, 4 hidden]; with peepholes [1, 7 hidden], the peepholes of i|f|o last; None for none.
        is_reverse: Whether each sequence runs from its own last step.
        use_peepholes: Whether there are peepholes, which needs a bias; by default its size determines it.
        gate_activation: The activation of the gates. Anything but "sigmoid" runs on the engine llvm.
        cell_activation: The activation of c before the output gate. Anything but "tanh" runs on llvm.
        candidate_activation: The activation of the candidate. Anything but "tanh" runs on llvm.
        cell: When c is wanted: "last", "all" or "none"; see `Layer`.
        dtype: The dtype that oneDNN computes in; see `fusion_gru`.
        calibration: The scales of int8; see `calibrate`.
        library: The path of the library; see `fusion_gru`.

    Returns:
        The outputs in the form of `x`, with cell="all" a dict of "h" and "c"; and the final memories.

    Raises:
        InputError: For arguments that do not fit.
        LibraryError: Without oneDNN, and if it reports a failure.
        RefusedError: For a dtype that this recurrence or this processor does not have.
    """
    blocks = (4, 7) if use_peepholes is None else (7,) if flag(use_peepholes, "use_peepholes") else (4, 7)
    arrays = weights_of(weight_x, weight_h, bias, 4, blocks)
    if use_peepholes is False and bias is not None:
        arrays["bias"] = np.ascontiguousarray(arrays["bias"][:, : 4 * arrays["weight_h"].shape[0]])
    semantics = lstm_semantics(gate_activation, cell_activation, candidate_activation)
    options = options_of(dtype, calibration, library)
    run = layer_for("lstm", arrays, semantics, options)
    return run(x, h0, c0, reverse=flag(is_reverse, "is_reverse"), cell=cell)


def multi_gru(
    x: Any,
    weights_x: Sequence[Any],
    weights_h: Sequence[Any],
    biases: Sequence[Any] | None = None,
    *,
    origin_mode: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    dtype: str | None = None,
    calibrations: Sequence[Calibration] | None = None,
    library: str | None = None,
) -> tuple[Any, list[Array]]:
    """Computes a stack of bidirectional GRUs over ragged sequences; each layer joins both directions'
    outputs.

    Args:
        x: A `Ragged` [total, inputs] of one level, or an array [batch, time, inputs].
        weights_x: Two arrays for each layer, forward and reverse; see `fusion_gru`. From the second layer on
            the inputs are the outputs of the layer before: forward, then reverse.
        weights_h: Two arrays for each layer, forward and reverse; see `fusion_gru`.
        biases: Two for each layer, forward and reverse, each an array or None; None for no biases at all.
        origin_mode: Whether the update gate keeps the memory; see `fusion_gru`.
        activation: The activation of the candidate; see `fusion_gru`.
        gate_activation: The activation of the gates; see `fusion_gru`.
        dtype: The dtype that oneDNN computes in; see `fusion_gru`.
        calibrations: The scales of int8, one for each direction of each layer; see `calibrate`.
        library: The path of the library; see `fusion_gru`.

    Returns:
        The outputs of the last layer in the form of `x`, and a list of h at the end of each sequence, for
            each direction of each layer.

    Raises:
        InputError: For arguments that do not fit, named by layer and direction.
        LibraryError: Without oneDNN, and if it reports a failure.
        RefusedError: For a dtype that this processor does not have.
    """
    count = len(checked_list(weights_x, "weights_x"))
    nothing = [None] * count
    per_direction = {
        "weights_h": checked_list(weights_h, "weights_h"),
        "biases": nothing if biases is None else checked_list(biases, "biases"),
        "calibrations": nothing if calibrations is None else checked_list(calibrations, "calibrations"),
    }
    wrong = next((name for name, values in per_direction.items() if len(values) != count), None)
    if not count or count % 2 or wrong is not None:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in per_direction.items())
        raise InputError(
            f"each list takes two entries per layer, forward and reverse; weights_x has {count}, {lengths}"
        )
    final: list[Array] = []
    for index in range(0, count, 2):
        outputs: list[Any] = []
        for direction in (0, 1):
            position = index + direction
            with named(f"layer {index // 2}, {('forward', 'reverse')[direction]}"):
                layer_output, last = fusion_gru(
                    x,
                    None,
                    weights_x[position],
                    weights_h[position],
                    per_direction["biases"][position],
                    is_reverse=bool(direction),
                    origin_mode=origin_mode,
                    activation=activation,
                    gate_activation=gate_activation,
                    dtype=dtype,
                    calibration=per_direction["calibrations"][position],
                    library=library,
                )
            outputs.append(layer_output)
            final.append(last)
        x = joined_outputs(outputs)
    return x, final


def checked_list(values: Any, name: str) -> Sequence[Any]:
    """Returns the argument `name`, a list (or tuple, or array) with an entry per direction of each layer;
    raises `InputError` for other values.
    """
    if not (isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim)):
        raise InputError(
            f"{name} is a list with an entry for each direction of each layer, not {short_repr(values)}"
        )
    return cast("Sequence[Any]", values)


def joined_outputs(outputs: Sequence[Any]) -> Any:
    """Concatenates the outputs of two directions, both `Ragged`s or arrays, along their features."""
    first = outputs[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(outputs, axis=-1)
    return first.with_values(np.concatenate([output.values for output in outputs], axis=-1))


def calibrate(
    samples: Sequence[Any],
    weight_x: Any,
    weight_h: Any,
    bias: Any = None,
    *,
    keep: float = 1.0,
    library: str | None = None,
) -> Calibration:
    """Computes the scales with which a GRU or an LSTM runs in int8: of inputs from samples, of weights from
    themselves.

    Each unit of each gate has a scale for its weights. Inputs and memory share one scale and a shift, so that
    they may be negative. The result can be stored; see `Calibration`.

    Args:
        samples: Inputs such as those that will run, `Ragged`s or arrays [batch, time, inputs].
        weight_x: The input weights, as for `fusion_gru` or `fusion_lstm`.
        weight_h: The recurrent weights, as for `fusion_gru` or `fusion_lstm`.
        bias: The bias, as for `fusion_gru` or `fusion_lstm`.
        keep: The fraction of the inputs' numbers that lies within the scale. With 0.999 the largest of a
            thousand saturate, and the others are finer for it.
        library: The path of the library; see `fusion_gru`.

    Raises:
        InputError: For samples without steps, for NaN and infinity, and for weights that do not fit.
        LibraryError: Without oneDNN.
    """
    shape = np.shape(weight_h)
    is_lstm = len(shape) == 2 and shape[1] == 4 * shape[0]
    make = lstm_layer if is_lstm else gru_layer
    float_layer = make(weight_x, weight_h, bias, dtype="float32", library=library)
    return float_layer.calibrate(samples, keep)
