"""The recurrent layers of a PyTorch state dict, as layers that run."""

from collections.abc import Mapping
from typing import Any

from stepnet.compiler.values.arguments import array_of, instance, is_one_of, is_tensor, mapping, short_repr
from stepnet.errors import LayoutError
from stepnet.layout.arguments import as_array
from stepnet.layout.damaged import damaged
from stepnet.layout.find import Match, find, nearest
from stepnet.layout.layers import layers
from stepnet.layout.registry import record
from stepnet.model.compose import Layer

LAYOUTS = ("torch.rnn", "torch.gru", "torch.lstm", "torch.lstm_projection")
ACTIVATIONS = {"simple_rnn": "tanh", "simple_rnn_relu": "relu"}
CELLS = {"simple_rnn": "rnn", "simple_rnn_relu": "rnn", "gru": "gru", "lstm": "lstm"}


def from_torch(state: Mapping[str, Any], prefix: str | None = None, cell: str | None = None) -> Layer:
    """Builds the recurrent layers of a PyTorch state dict: an `RNN`, a `Bidirectional` or a `Stack`.

    The weights are copied, and half precision becomes float32. Other layers of the model are ignored.

    Args:
        state: Arrays or tensors by name, from `module.state_dict()` or a safetensors file.
        prefix: The text before `weight_ih_l0`; needed if the state has several recurrent modules.
        cell: "simple_rnn" (with tanh), "simple_rnn_relu", "gru" or "lstm". By default the shapes decide; they
            do not contain the activation of a simple RNN.

    Raises:
        LayoutError: If the state has no recurrent module, or several; for arrays that are missing, do not fit
            each other or are not floats, also those of another layer unless `prefix` is given. It uses their
            names in the state.

    >>> import numpy as np
    >>> weights = {"rnn.weight_ih_l0": np.ones((12, 2)), "rnn.weight_hh_l0": np.ones((12, 4))}
    >>> from_torch(weights)
    RNN(gru, ...)
    """
    if cell is not None and not is_one_of(cell, CELLS):
        raise LayoutError(f"cell is one of {', '.join(CELLS)}, not {short_repr(cell)}")
    mapping(state, "a state is arrays by name, as module.state_dict() has them")
    if prefix is not None:
        instance(prefix, str, "prefix is what stands before the names")
    candidates = [record(name) for name in LAYOUTS if cell is None or record(name).cell == CELLS[cell]]
    shapes = {name: shape_of(name, value) for name, value in state.items()}
    matches = find(shapes, candidates)
    if not matches:
        raise nearest(shapes, candidates)
    match = chosen_match(matches, prefix)
    used = {name for other in matches for name in other.names.values()}
    rest = {name: shape for name, shape in shapes.items() if name not in used}
    for layer in damaged(rest, map(record, LAYOUTS)) if prefix is None else ():
        raise LayoutError(
            f"{layer.prefix.rstrip('.')} looks like {layer.layout}, but {layer.reason}: "
            f"choose another layer by prefix={match.prefix!r}"
        )
    weights = {short_name: as_array(name, state[name]) for short_name, name in match.names.items()}
    if match.layout == "torch.rnn" and cell is None:
        raise LayoutError(
            "a state dict does not say whether a simple RNN has tanh or relu: say cell='simple_rnn' for tanh "
            "or "
            "cell='simple_rnn_relu'"
        )
    stated = {"candidate_activation": ACTIVATIONS[cell]} if cell in ACTIVATIONS else {}
    return layers(weights, match.layout, semantics=stated)


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """Returns the shape of an array or a tensor; name: its name in the state dict, for messages."""
    return tuple(value.shape) if is_tensor(value) else array_of(value, name).shape


def chosen_match(matches: tuple[Match, ...], prefix: str | None) -> Match:
    """Returns the recurrent module (a match) with the user's prefix, with or without its final dot; without a
    prefix, the only module. Raises `LayoutError` if no module has the prefix, or several are left.
    """
    prefixes = ", ".join(repr(match.prefix) for match in matches)
    chosen = [match for match in matches if prefix is None or match.prefix in (prefix, f"{prefix}.")]
    if not chosen:
        raise LayoutError(f"no recurrent layer has the prefix {prefix!r}; there are {prefixes}")
    if len(chosen) > 1:
        raise LayoutError(
            f"there are {len(chosen)} recurrent modules; choose one by prefix=, one of {prefixes}"
        )
    return chosen[0]
