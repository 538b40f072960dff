"""Weights that a PyTorch file does not hold as such: the layer makes them of others whenever it runs.

    rnn.weight_hh_l0_g, rnn.weight_hh_l0_v                      weight_norm: g v / |v|
    rnn.parametrizations.weight_hh_l0.original0, .original1     the same as a parametrization
    rnn.weight_hh_l0_raw, rnn.module.weight_ih_l0 ...           WeightDropout of AWD-LSTM and fastai: the raw
                                                                weight as it is, but for training

Where the weight itself is in the file too, it is what the last run left there, and is not used. Any other
parametrization is code, which the file does not have: such a layer is refused, with what to do about it.
A parametrization of two tensors is taken for weight_norm where their shapes are those that it makes, as it is
PyTorch's only one of two; a state dict does not name the class, so the report says that this is assumed.

Source: torch/nn/utils/weight_norm.py and parametrizations.py of PyTorch 2.13; WeightDropout in
fastai/text/models/awdlstm.py of fastai 2 and fastai/text/models/awd_lstm.py of fastai 1.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepnet.errors import LayoutError
from stepnet.layout.given import FLOATS
from stepnet.layout.report import Made

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

WEIGHT = r"((?:.*[./])?)%s((?:weight|bias)_(?:ih|hh|hr)(?:_l\d{1,4}(?:_reverse)?)?)"
PARTS = (  # the names of what a weight is made of: its layer, the weight, and what the part is
    re.compile(WEIGHT % "" + "_(raw|g|v|orig|u|mask)"),
    re.compile(WEIGHT % "parametrizations[.]" + "[.](.+)"),
)
GATE = re.compile(WEIGHT % "" + "_[a-z]")  # weight_ih_i beside weight_ih_g: each gate has a weight of its own


@dataclass(frozen=True)
class Plain:
    """Arrays by name, in which weights stand in place of what they are made of.

    made: how each of these came about, by its name. spare: arrays that are not used, each with the reason.
    problems: why weights of a layer cannot be made, by what is before their names.
    """

    arrays: Arrays
    made: Mapping[str, Made] = field(default_factory=dict[str, Made])
    spare: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


def plain(arrays: Arrays) -> Plain:
    """Arrays of a file with the weights that its layers make of them.

    >>> g, v = np.full((2, 1), 10.0), np.array([[3.0, 4.0], [6.0, 8.0]])
    >>> found = plain({"rnn.weight_hh_l0_g": g, "rnn.weight_hh_l0_v": v})
    >>> found.arrays
    {'rnn.weight_hh_l0': array([[6., 8.],
           [6., 8.]])}
    >>> print(found.made["rnn.weight_hh_l0"])
    rnn.weight_hh_l0: g v / |v|, of rnn.weight_hh_l0_g, rnn.weight_hh_l0_v: rounded once, by 0 at most
    """
    computed: dict[str, Array] = {}
    made: dict[str, Made] = {}
    problems: dict[str, str] = {}
    for (layer, weight), parts in parts_in(arrays).items():
        name = whole_name(layer, weight, parts, arrays)
        if frozenset(parts) not in WAYS and name in arrays:
            continue  # the weight is there, and these are something else
        try:
            array, made[name] = weight_of(name, parts, arrays)
            if name in computed or arrays.get(name, array).shape != array.shape:
                raise LayoutError(f"the file holds {name} in two ways, which do not fit one another")
            computed[name] = array
        except LayoutError as error:
            problems.setdefault(name.removesuffix(weight), str(error))
    made = {name: made[name] for name in computed}
    spare = {
        name: f"{name} is made of {one.of[0]} whenever the layer runs"
        for name, one in made.items()
        if name in arrays
    }
    return Plain(in_place(arrays, computed, made), made, spare, problems)


def in_place(arrays: Arrays, computed: Arrays, made: Mapping[str, Made]) -> dict[str, Array]:
    """Arrays of a file in their order, each weight that was computed where its first part was."""
    first = {one.of[0]: name for name, one in made.items()}
    gone = {part for one in made.values() for part in one.of} | made.keys()
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        if name in first:
            found[first[name]] = computed[first[name]]
        elif name not in gone:
            found[name] = array
    return found


def parts_in(arrays: Arrays) -> dict[tuple[str, str], dict[str, str]]:
    """The names of what weights are made of: by layer and weight, then by what the part is."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    of_gates: set[tuple[str, str]] = set()
    for name in arrays:
        match = next(filter(None, (pattern.fullmatch(name) for pattern in PARTS)), None)
        if match:
            found.setdefault((match[1], match[2]), {})[match[3]] = name
        elif match := GATE.fullmatch(name):
            of_gates.add((match[1], match[2]))
    return {weight: parts for weight, parts in found.items() if weight not in of_gates}


def whole_name(layer: str, weight: str, parts: Mapping[str, str], arrays: Arrays) -> str:
    """The name that a weight has beside the others of its layer, which WeightDropout holds as its module."""
    inner = f"{layer}module."
    beside = (f"{inner}weight_", f"{inner}bias_")
    dropped = "raw" in parts and any(name.startswith(beside) for name in arrays)
    return f"{inner if dropped else layer}{weight}"


def weight_of(name: str, parts: Mapping[str, str], arrays: Arrays) -> tuple[Array, Made]:
    """A weight, and how it came about; raises `LayoutError` where that is not known or does not fit."""
    way = WAYS.get(frozenset(parts))
    names = [parts[part] for part in sorted(parts)]
    if way is None:
        tool = next((tool for part, tool in REMOVED.items() if part in parts), REMOVED[""])
        raise LayoutError(
            f"{name} is made of {', '.join(names)} by code that the file does not have: "
            f"{tool} makes it a weight again, then save the model once more"
        )
    array, how, rounding = way(names, [arrays[part] for part in names])
    return array, Made(name, tuple(names), how, rounding)


def normed(names: list[str], parts: list[Array]) -> tuple[Array, str, float]:
    """g v / |v|, computed in a wider dtype, and the largest rounding; |v| is over the axes that g has not."""
    (g, v), dtype = parts, parts[1].dtype
    if {g.dtype.name, v.dtype.name} - set(FLOATS) or g.dtype != dtype:
        raise LayoutError(f"{names[0]} is {g.dtype.name} and {names[1]} {dtype.name}: cast both to one float")
    lengths = g.shape if g.ndim else (1,) * v.ndim
    fits = len(lengths) == v.ndim and all(
        one in (1, all_) for one, all_ in zip(lengths, v.shape, strict=True)
    )
    kept = sum(length > 1 for length in lengths)
    shortest = min(v.shape, default=1)  # an axis that g has must be there: one length in all has no axes
    if not fits or kept > 1 or (g.ndim and not kept and shortest > 1):
        raise LayoutError(
            f"{names[0]} has shape {g.shape} and {names[1]} {v.shape}: weight_norm has one length for each "
            "index of one axis, or one in all; the file does not have the code of anything else"
        )
    wide = np.longdouble if dtype.itemsize == 8 else np.float64
    long, direction = g.astype(np.float64).astype(wide), v.astype(np.float64).astype(wide)
    axes = tuple(axis for axis, length in enumerate(lengths) if length == 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # a direction of no length is NaN in PyTorch too
        whole = long * direction / np.sqrt(np.square(direction).sum(axis=axes, keepdims=True))
        array = whole.astype(dtype)
        away = np.abs(array.astype(wide) - whole)
    return array, "g v / |v|", float(away.max(where=np.isfinite(away), initial=0))


def assumed_normed(names: list[str], parts: list[Array]) -> tuple[Array, str, float]:
    """As `normed`, where the file does not name the class of the parametrization."""
    array, how, rounding = normed(names, parts)
    return array, f"{how}, assumed to be weight_norm as the file does not name the parametrization", rounding


def raw(_names: list[str], parts: list[Array]) -> tuple[Array, str, None]:
    """The raw weight, which nothing is dropped of but in training."""
    return parts[0], "as it is without the dropout of training", None


WAYS: Mapping[frozenset[str], Callable[[list[str], list[Array]], tuple[Array, str, float | None]]] = {
    frozenset({"g", "v"}): normed,
    frozenset({"original0", "original1"}): assumed_normed,
    frozenset({"raw"}): raw,
}
# What makes a weight of its parts again, by a part that tells.
REMOVED = {
    "mask": "torch.nn.utils.prune.remove(layer, name)",
    "orig": "torch.nn.utils.remove_spectral_norm(layer, name)",
    "g": "torch.nn.utils.remove_weight_norm(layer, name)",
    "v": "torch.nn.utils.remove_weight_norm(layer, name)",
    "": "torch.nn.utils.parametrize.remove_parametrizations(layer, name)",
}
