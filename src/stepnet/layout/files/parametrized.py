"""Weights that a PyTorch layer computes from other arrays of its state dict whenever it runs.

    rnn.weight_hh_l0_g, rnn.weight_hh_l0_v                      weight_norm: g v / |v|
    rnn.parametrizations.weight_hh_l0.original0, .original1     the same as a parametrization
    rnn.weight_hh_l0_raw, rnn.module.weight_ih_l0 ...           WeightDropout of AWD-LSTM and fastai: the raw
                                                                weight, dropped out only in training

If the file also has the computed weight, that is a leftover of the last run and is not used. Any other
parametrization is code that the file does not contain: such a layer is refused, and the message says what to
do. A parametrization by two tensors is assumed to be weight_norm if their shapes fit, because PyTorch has no
other by two tensors. A state dict does not name the class, so the report lists the assumption.

Source: torch/nn/utils/weight_norm.py and parametrizations.py of PyTorch 2.13; WeightDropout in
fastai/text/models/awdlstm.py of fastai 2 and fastai/text/models/awd_lstm.py of fastai 1.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.arguments import FLOATS
from stepnet.layout.report import ComputedArray

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

WEIGHT = r"((?:.*[./])?)%s((?:weight|bias)_(?:ih|hh|hr)(?:_l\d{1,4}(?:_reverse)?)?)"
PARTS = (  # names of the arrays from which a weight is computed: the layer, the weight and the part
    re.compile(WEIGHT % "" + "_(raw|g|v|orig|u|mask)"),
    re.compile(WEIGHT % "parametrizations[.]" + "[.](.+)"),
)
GATE = re.compile(
    WEIGHT % "" + "_[a-z]"
)  # weight_ih_i, weight_ih_g: a weight per gate, not a parametrization


@dataclass(frozen=True)
class Plain:
    """Arrays of a PyTorch file by name, where weights replace the arrays that they are computed from.

    made: the record of each weight's computation. spare: arrays that are not used, each with the reason.
    problems: why weights of a layer cannot be computed, by the prefix of the layer.
    """

    arrays: Arrays
    made: Mapping[str, ComputedArray] = field(default_factory=dict[str, ComputedArray])
    spare: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


def plain(arrays: Arrays) -> Plain:
    """Computes the weights that layers of PyTorch compute from other arrays of a state dict when they run
    (weight_norm, WeightDropout). Returns the arrays with these weights in place of the others, and how each
    was computed; a weight that cannot be computed becomes a problem of its layer, a message for the user.

    >>> g, v = np.full((2, 1), 10.0), np.array([[3.0, 4.0], [6.0, 8.0]])
    >>> weights = plain({"rnn.weight_hh_l0_g": g, "rnn.weight_hh_l0_v": v})
    >>> weights.arrays
    {'rnn.weight_hh_l0': array([[6., 8.],
           [6., 8.]])}
    >>> print(weights.made["rnn.weight_hh_l0"])
    rnn.weight_hh_l0: g v / |v|, of rnn.weight_hh_l0_g, rnn.weight_hh_l0_v: rounded once, by 0 at most
    """
    computed: dict[str, Array] = {}
    computed_weights: dict[str, ComputedArray] = {}
    problems: dict[str, str] = {}
    for (layer, weight), parts in parts_in(arrays).items():
        name = full_weight_name(layer, weight, parts, arrays)
        if frozenset(parts) not in WAYS and name in arrays:
            continue  # the file has the weight, and these arrays are something else
        try:
            array, computed_weights[name] = weight_of(name, parts, arrays)
            if name in computed or arrays.get(name, array).shape != array.shape:
                raise LayoutError(f"the file holds {name} in two parametrizations that contradict each other")
            computed[name] = array
        except LayoutError as error:
            problems.setdefault(name.removesuffix(weight), str(error))
    computed_weights = {name: computed_weights[name] for name in computed}
    spare = {
        name: f"{name} is computed from {source.of[0]} whenever the layer runs"
        for name, source in computed_weights.items()
        if name in arrays
    }
    return Plain(with_computed_weights(arrays, computed, computed_weights), computed_weights, spare, problems)


def with_computed_weights(
    arrays: Arrays, computed: Arrays, computed_weights: Mapping[str, ComputedArray]
) -> dict[str, Array]:
    """Returns the arrays of a PyTorch file in order, where each computed weight replaces the first of the
    arrays that it is computed from, and the other ones are left out.

    arrays: the arrays in the file. computed: the computed weights. computed_weights: records of how each was
    computed.
    """
    first = {weight.of[0]: name for name, weight in computed_weights.items()}
    replaced = {part for weight in computed_weights.values() for part in weight.of} | computed_weights.keys()
    ordered: dict[str, Array] = {}
    for name, array in arrays.items():
        if name in first:
            ordered[first[name]] = computed[first[name]]
        elif name not in replaced:
            ordered[name] = array
    return ordered


def parts_in(arrays: Arrays) -> dict[tuple[str, str], dict[str, str]]:
    """Finds the arrays of a PyTorch state dict from which layers compute a weight when they run. Returns
    {(prefix of the layer, name of the weight): {part, such as "g" or "v" of weight_norm: name of the array}},
    without weights that have an array for each gate, as weight_ih_i and weight_ih_g: these are not parts.
    """
    parts_of: dict[tuple[str, str], dict[str, str]] = {}
    of_gates: set[tuple[str, str]] = set()
    for name in arrays:
        match = next(filter(None, (pattern.fullmatch(name) for pattern in PARTS)), None)
        if match:
            parts_of.setdefault((match[1], match[2]), {})[match[3]] = name
        elif match := GATE.fullmatch(name):
            of_gates.add((match[1], match[2]))
    return {weight: parts for weight, parts in parts_of.items() if weight not in of_gates}


def full_weight_name(layer: str, weight: str, parts: Mapping[str, str], arrays: Arrays) -> str:
    """Returns the full name of a weight that a PyTorch layer computes when it runs: the layer's prefix and
    the weight's name, with "module." between them if WeightDropout wraps the layer.

    parts: the names of the arrays that the weight is computed from, by part ("raw", "g", ...). arrays: all
    arrays of the file.
    """
    inner = f"{layer}module."
    beside = (f"{inner}weight_", f"{inner}bias_")
    dropped = "raw" in parts and any(name.startswith(beside) for name in arrays)
    return f"{inner if dropped else layer}{weight}"


def weight_of(name: str, parts: Mapping[str, str], arrays: Arrays) -> tuple[Array, ComputedArray]:
    """Computes the weight `name` of a PyTorch layer from other arrays. Returns it with a record of how it was
    computed; raises `LayoutError` if that is unknown or the arrays do not fit.

    parts: the names of the arrays that it is computed from, by part ("g", "v", "raw", ...).
    """
    way = WAYS.get(frozenset(parts))
    names = [parts[part] for part in sorted(parts)]
    if way is None:
        tool = next((tool for part, tool in REMOVED.items() if part in parts), REMOVED[""])
        raise LayoutError(
            f"{name} is computed from {', '.join(names)} by code that the file does not have: "
            f"{tool} turns it back into a weight, then save the model again"
        )
    array, how, rounding = way({part: arrays[part] for part in names})
    return array, ComputedArray(name, tuple(names), how, rounding)


def normed(parts: Arrays) -> tuple[Array, str, float]:
    """Computes a weight that PyTorch's weight_norm stores as lengths g and directions v, as g v / |v|.
    Returns the weight, this formula and the largest rounding error of an element. |v| is the norm over the
    axes along which g has length 1.

    parts: the arrays of g and v by name, in this order.
    """
    (g_name, g), (v_name, v) = parts.items()
    dtype = v.dtype
    if {g.dtype.name, v.dtype.name} - set(FLOATS) or g.dtype != dtype:
        raise LayoutError(f"{g_name} is {g.dtype.name} and {v_name} {dtype.name}: cast both to one float")
    lengths = g.shape if g.ndim else (1,) * v.ndim
    fits = len(lengths) == v.ndim and all(
        length in (1, size) for length, size in zip(lengths, v.shape, strict=True)
    )
    long_axes = sum(length > 1 for length in lengths)
    shortest = min(v.shape, default=1)  # an axis of g is one of v: all can be 1 only if v has such an axis
    if not fits or long_axes > 1 or (g.ndim and not long_axes and shortest > 1):
        raise LayoutError(
            f"{g_name} has shape {g.shape} and {v_name} {v.shape}: weight_norm has one length for each "
            "index of one axis, or one in all; the file does not have the code of anything else"
        )
    wide = np.longdouble if dtype.itemsize == 8 else np.float64
    long, direction = g.astype(np.float64).astype(wide), v.astype(np.float64).astype(wide)
    axes = tuple(axis for axis, length in enumerate(lengths) if length == 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # a direction of no length is NaN in PyTorch too
        exact = long * direction / np.sqrt(np.square(direction).sum(axis=axes, keepdims=True))
        array = exact.astype(dtype)
        away = np.abs(array.astype(wide) - exact)
    return array, "g v / |v|", float(away.max(where=np.isfinite(away), initial=0))


def assumed_normed(parts: Arrays) -> tuple[Array, str, float]:
    """Computes a weight from two arrays (`parts`) that are assumed to be g and v of weight_norm. Returns the
    weight, its formula with a remark on the assumption, and the largest rounding error of an element.
    """
    array, how, rounding = normed(parts)
    return array, f"{how}, assumed to be weight_norm as the file does not name the parametrization", rounding


def raw(parts: Arrays) -> tuple[Array, str, None]:
    """Returns the weight of a WeightDropout, unchanged; a remark on it; None, as nothing is rounded."""
    (weight,) = parts.values()
    return weight, "as it is without the dropout of training", None


WAYS: Mapping[frozenset[str], Callable[[Arrays], tuple[Array, str, float | None]]] = {
    frozenset({"g", "v"}): normed,
    frozenset({"original0", "original1"}): assumed_normed,
    frozenset({"raw"}): raw,
}
# The PyTorch function that removes a parametrization, by a part that is typical of it.
REMOVED = {
    "mask": "torch.nn.utils.prune.remove(layer, name)",
    "orig": "torch.nn.utils.remove_spectral_norm(layer, name)",
    "g": "torch.nn.utils.remove_weight_norm(layer, name)",
    "v": "torch.nn.utils.remove_weight_norm(layer, name)",
    "": "torch.nn.utils.parametrize.remove_parametrizations(layer, name)",
}
