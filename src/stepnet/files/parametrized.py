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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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

    made: how each of these weights was computed. spare: arrays that are not used, each with the reason.
    problems: why weights of a layer cannot be computed, by the prefix of the layer.
    """

    arrays: Arrays
    made: Mapping[str, ComputedArray] = field(default_factory=dict[str, ComputedArray])
    spare: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


def plain(arrays: Arrays) -> Plain:
    """Computes the weights that PyTorch layers compute from other arrays (weight_norm, WeightDropout), and
    puts them in place of these. A weight that cannot be computed becomes a problem of its layer.

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
        name = whole_name(layer, weight, parts, arrays)
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
    return Plain(in_place(arrays, computed, computed_weights), computed_weights, spare, problems)


def in_place(
    arrays: Arrays, computed: Arrays, computed_weights: Mapping[str, ComputedArray]
) -> dict[str, Array]:
    """Returns the arrays of a PyTorch file in order, with each computed weight in place of its first source.

    computed_weights: how each computed weight was computed.
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
    """Finds arrays from which PyTorch computes weights: {(layer, weight): {part, such as "g": its name}}."""
    parts_of: dict[tuple[str, str], dict[str, str]] = {}
    of_gates: set[tuple[str, str]] = set()
    for name in arrays:
        match = next(filter(None, (pattern.fullmatch(name) for pattern in PARTS)), None)
        if match:
            parts_of.setdefault((match[1], match[2]), {})[match[3]] = name
        elif match := GATE.fullmatch(name):
            of_gates.add((match[1], match[2]))
    return {weight: parts for weight, parts in parts_of.items() if weight not in of_gates}


def whole_name(layer: str, weight: str, parts: Mapping[str, str], arrays: Arrays) -> str:
    """Returns the full name of a computed weight: with "module." inside if WeightDropout wraps the layer."""
    inner = f"{layer}module."
    beside = (f"{inner}weight_", f"{inner}bias_")
    dropped = "raw" in parts and any(name.startswith(beside) for name in arrays)
    return f"{inner if dropped else layer}{weight}"


def weight_of(name: str, parts: Mapping[str, str], arrays: Arrays) -> tuple[Array, ComputedArray]:
    """Computes a weight of a PyTorch layer from other arrays, and says how; raises `LayoutError` if that is
    unknown or the arrays do not fit.

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
    array, how, rounding = way(names, [arrays[part] for part in names])
    return array, ComputedArray(name, tuple(names), how, rounding)


def normed(names: list[str], parts: list[Array]) -> tuple[Array, str, float]:
    """Computes a weight of weight_norm, g v / |v|: returns it, its formula and its largest rounding. |v| is
    over the axes along which g has length 1. names, parts: the names and arrays of g and v.
    """
    (g, v), dtype = parts, parts[1].dtype
    if {g.dtype.name, v.dtype.name} - set(FLOATS) or g.dtype != dtype:
        raise LayoutError(f"{names[0]} is {g.dtype.name} and {names[1]} {dtype.name}: cast both to one float")
    lengths = g.shape if g.ndim else (1,) * v.ndim
    fits = len(lengths) == v.ndim and all(
        length in (1, size) for length, size in zip(lengths, v.shape, strict=True)
    )
    long_axes = sum(length > 1 for length in lengths)
    shortest = min(v.shape, default=1)  # an axis of g is one of v: all can be 1 only if v has such an axis
    if not fits or long_axes > 1 or (g.ndim and not long_axes and shortest > 1):
        raise LayoutError(
            f"{names[0]} has shape {g.shape} and {names[1]} {v.shape}: weight_norm has one length for each "
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


def assumed_normed(names: list[str], parts: list[Array]) -> tuple[Array, str, float]:
    """Computes a weight_norm of `parts`, g and v: (weight, formula that says it is assumed, rounding)."""
    array, how, rounding = normed(names, parts)
    return array, f"{how}, assumed to be weight_norm as the file does not name the parametrization", rounding


def raw(_names: list[str], parts: list[Array]) -> tuple[Array, str, None]:
    """Returns (weight, formula, None) of a WeightDropout, whose raw array, `parts[0]`, is the weight."""
    return parts[0], "as it is without the dropout of training", None


WAYS: Mapping[frozenset[str], Callable[[list[str], list[Array]], tuple[Array, str, float | None]]] = {
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
