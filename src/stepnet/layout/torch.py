"""The recurrent layers of a PyTorch state dict, as recurrences that run.

Where the numbers lie, in both the gates in the same order (`nn.LSTM` ifgo, `nn.GRU` rzn, `nn.RNN` one):

    torch                          stepnet
    weight_ih_l0  "(g h) x"        W  "x (g h)"
    weight_hh_l0  "(g h) y"        R  "y (g h)"      y: the output, which is h or its projection
    bias_ih_l0    "(g h)"          b  "(g h)"
    bias_hh_l0    "(g h)"          d  "(g h)"
    weight_hr_l0  "y h"            P  "h y"

So each array has its axes reversed, and no number changes. What they parametrise is the same too: the GRU
resets behind the recurrent product, and its z keeps the old memory. Verified: the tests compare with what
torch 2.13 gives for the same state.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet import cells
from stepnet.compose import Bidirectional, Layer, Stack
from stepnet.errors import InputError
from stepnet.recurrence import RNN

PARAMETERS = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "b", "bias_hh": "d", "weight_hr": "P"}
ARRAYS = {parameter: array for array, parameter in PARAMETERS.items()}
NAME = re.compile(
    rf"(?P<prefix>.*?)(?P<array>{'|'.join(PARAMETERS)})_l(?P<layer>\d{{1,4}})(?P<reverse>_reverse)?"
)
CELLS = (
    "simple_rnn",
    "gru",
    "lstm",
    "simple_rnn_relu",
)  # those that torch has; shapes tell the first of a kind


@dataclass(frozen=True)
class Place:
    """One direction of one layer: where its arrays are named `..._l{layer}` or `..._l{layer}_reverse`."""

    layer: int
    reverse: bool

    def name(self, prefix: str, parameter: str) -> str:
        """The name torch gives to one of its arrays.

        >>> Place(1, reverse=True).name("gru.", "W")
        'gru.weight_ih_l1_reverse'
        """
        return f"{prefix}{ARRAYS[parameter]}_l{self.layer}{'_reverse' if self.reverse else ''}"


Named = dict[Place, dict[str, str]]  # of one module: the names in the state by stepnet's names of parameters


def from_torch(state: Mapping[str, Any], prefix: str | None = None, cell: str | None = None) -> Layer:
    """The recurrent layers of a torch state dict: an `RNN`, a `Bidirectional`, or a `Stack` of one of these.

    state: arrays or tensors by name, as `module.state_dict()` or a safetensors file has them; it is copied.
    prefix: what stands before `weight_ih_l0`, needed where the state holds several recurrent modules. cell:
    one of "simple_rnn", "simple_rnn_relu", "gru" and "lstm"; by default the shapes tell which, and a simple
    RNN is taken to have tanh. The other layers of a model, such as its head, are the caller's.

    Raises `InputError` where the state holds no recurrent module or several, and for arrays that are missing,
    do not fit one another or are neither float32 nor float64, by their names in the state.

    >>> weights = {"rnn.weight_ih_l0": np.ones((12, 2)), "rnn.weight_hh_l0": np.ones((12, 4))}
    >>> from_torch(weights)
    RNN(gru, ...)
    """
    if cell is not None and cell not in CELLS:
        raise InputError(f"cell is one of {', '.join(CELLS)}, not {cell!r}")
    prefix, named = chosen(modules(state), prefix, state)
    places = {place: floats(state, names) for place, names in named.items()}
    count = 1 + max(place.layer for place in places)
    directions = (False, True) if any(place.reverse for place in places) else (False,)
    grid = [[Place(layer, reverse) for reverse in directions] for layer in range(count)]
    check_complete(prefix, places, [place for row in grid for place in row])
    cell = cell or told_cell(prefix, places[grid[0][0]])
    layers: list[Layer] = []
    width: int | None = None
    for row in grid:
        both = [direction(prefix, place, places[place], cell, width) for place in row]
        layers.append(both[0] if len(both) == 1 else Bidirectional(both[0], both[1]))
        width = sum(rnn.params["R"].shape[0] for rnn in both)
    return layers[0] if count == 1 else Stack(layers)


def modules(state: Mapping[str, Any]) -> dict[str, Named]:
    """Each recurrent module of a state by its prefix."""
    found: dict[str, Named] = {}
    for name in state:
        match = NAME.fullmatch(name)
        if match:
            place = Place(int(match["layer"]), match["reverse"] is not None)
            found.setdefault(match["prefix"], {}).setdefault(place, {})[PARAMETERS[match["array"]]] = name
    return found


def floats(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Arrays by parameter, from the arrays or tensors that the state has by these names."""
    found: dict[str, np.ndarray] = {}
    for parameter, name in names.items():
        value = state[name].detach().cpu() if hasattr(state[name], "detach") else state[name]
        dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        if dtype not in ("float32", "float64"):
            raise InputError(f"{name} holds {dtype}; convert it to float32 or float64 first")
        found[parameter] = np.asarray(value)
    return found


def chosen(found: Mapping[str, Named], prefix: str | None, state: Mapping[str, Any]) -> tuple[str, Named]:
    """The one recurrent module that is meant, and its prefix as the names have it."""
    if not found:
        names = ", ".join(list(state)[:20]) + (", ..." if len(state) > 20 else "")
        raise InputError(
            f"no recurrent layer here: no name is like weight_ih_l0; there are {names or 'none'}"
        )
    prefixes = ", ".join(map(repr, found))
    if prefix is None:
        if len(found) > 1:
            raise InputError(f"there are {len(found)} recurrent modules; give one of prefix= {prefixes}")
        return next(iter(found.items()))
    for name in (prefix, f"{prefix}."):
        if name in found:
            return name, found[name]
    raise InputError(f"no recurrent layer has the prefix {prefix!r}; there are {prefixes}")


def check_complete(prefix: str, places: Mapping[Place, Mapping[str, Any]], wanted: list[Place]) -> None:
    """Raises `InputError` unless all layers and directions have the same arrays, the weights among them."""
    needed = {"W", "R"}.union(*places.values())
    if needed & set(cells.BIASES):
        needed |= set(cells.BIASES)
    for place in wanted:
        for parameter in PARAMETERS.values():
            if parameter in needed and parameter not in places.get(place, {}):
                others = ", ".join(one.name(prefix, each) for one in places for each in places[one])
                raise InputError(f"{place.name(prefix, parameter)} is missing; there are {others}")


def told_cell(prefix: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The cell whose number of gates the weights have."""
    shape = arrays["R"].shape
    hidden = arrays["P" if "P" in arrays else "R"].shape[-1:]
    for cell in CELLS:
        if len(shape) == 2 and hidden and shape[0] == len(cells.CELLS[cell].gates) * hidden[0]:
            return cell
    expected = "[1, 3 or 4 times the hidden size, hidden size]: a simple RNN, a GRU or an LSTM"
    raise InputError(f"{Place(0, False).name(prefix, 'R')} has shape {shape}; expected is {expected}")


def direction(
    prefix: str, place: Place, arrays: Mapping[str, np.ndarray], cell: str, width: int | None
) -> RNN:
    """The recurrence of one direction of one layer, whose inputs are `width` wide, if that is known."""
    if "P" in arrays:
        if cell != "lstm":
            raise InputError(
                f"{place.name(prefix, 'P')} is a projection, which an lstm has, and not a {cell}"
            )
        cell = "lstm_projection"
    for parameter, array in arrays.items():
        if array.ndim != (1 if parameter in cells.BIASES else 2):
            axes = "one axis" if parameter in cells.BIASES else "two axes"
            raise InputError(f"{place.name(prefix, parameter)} has shape {array.shape}; expected is {axes}")
    hidden = arrays["P" if "P" in arrays else "R"].shape[1]
    projected = arrays["P"].shape[0] if "P" in arrays else None
    inputs = arrays["W"].shape[1] if width is None else width
    shapes = cells.CELLS[cell].shapes(inputs, hidden, projected)
    for parameter, array in arrays.items():
        expected = shapes[parameter][::-1]
        if array.shape != expected:
            sizes = f"a {cell} of {inputs} inputs and {hidden} hidden"
            name = place.name(prefix, parameter)
            raise InputError(f"{name} has shape {array.shape}; expected is {expected}, for {sizes}")
    params = {parameter: np.array(array.T, order="C") for parameter, array in arrays.items()}
    return cells.rnn(cell, params, reverse=place.reverse)
