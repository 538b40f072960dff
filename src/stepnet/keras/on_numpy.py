"""The loop of a recurrent layer on Keras' numpy backend, which has no gradients: Keras' own cells.

cell, its masks --> RNN      mask: masked steps are chosen over in the loop
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.errors import StepError
from stepnet.keras.cells import NamedStep, cells_in, is_named
from stepnet.keras.dropout import masks_of
from stepnet.keras.installed import installed
from stepnet.keras.settings import settings_of_cell
from stepnet.keras.way import Results, Way
from stepnet.keras.whole import Whole
from stepnet.rnn.declared import keep
from stepnet.rnn.recurrence import RNN
from stepnet.values.dtypes import COMPUTED

keras: Any = installed()
tree: Any = keras.tree
Array = np.ndarray

RECURRENCES = WeakKeyDictionary[Any, OrderedDict[Any, Any]]()
"""The recurrences of each cell, with the weights that it had last."""


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """None: Keras finds shapes from numbers here."""
    return None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function: nothing is traced on this backend."""
    return function


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """What runs a call of a layer; raises `StepError` for one that Keras' own loop is to run."""
    cell, x = layer.cell, whole.parts
    if tree.is_nested(x) or not is_named(cell):
        raise StepError(
            "on the numpy backend, the step of a cell that is not one of Keras' own is not traced"
        )
    if mask is not None:
        mask = np.asarray(tree.flatten(mask)[0], bool)
        if mask.shape != x.shape[:2]:
            raise StepError(f"the mask is {list(mask.shape)}, and the sequences are {list(x.shape)}")
    return partial(
        run,
        layer,
        in_full(np.asarray(x, tree.flatten(states)[0].dtype)),
        states,
        mask,
        masks_of(cell) if training else {},
    )


def in_full(array: Array) -> Array:
    """An array in a dtype that steps compute in."""
    return array if str(array.dtype) in COMPUTED else array.astype(np.float32)


def run(layer: Any, x: Array, states: Any, mask: Array | None, masks: dict[str, tuple[Any, ...]]) -> Results:
    """The results."""
    flat, way = [in_full(np.asarray(state)) for state in tree.flatten(states)], Way.of(layer, bool(masks))
    statics = {name: tuple(in_full(np.asarray(part)) for part in parts) for name, parts in masks.items()}
    rnn = recurrence(layer.cell, way, tuple(state.shape[1:] for state in flat), x.dtype)
    zero = "zero" if layer.zero_output_for_mask else "repeat"
    output, last = rnn(
        x, tuple(flat), statics or None, None, not layer.return_sequences, mask=mask, masked=zero
    )
    after = tree.pack_sequence_as(states, list(last))
    if not layer.return_sequences:
        return output, output[:, None], after
    outputs = output[:, ::-1] if way.reverse else output
    end = outputs[:, -1] if outputs.shape[1] else np.zeros_like(outputs, shape=(len(x), outputs.shape[-1]))
    return end, outputs, after


def recurrence(cell: Any, way: Way, sizes: tuple[Any, ...], dtype: Any) -> RNN:
    """The recurrence of a cell with the weights that it has now."""
    known = RECURRENCES.setdefault(cell, OrderedDict[Any, Any]())
    key = settings_of_cell(cell), way, sizes, dtype
    params = {str(place): in_full(np.asarray(weight.value)) for place, weight in enumerate(cell.weights)}
    rnn: RNN | None = known.get(key)
    if rnn is None:
        rnn = RNN(NamedStep(cells_in(cell)), params, memory=sizes, **way.options)
    elif any(not np.array_equal(params[name], rnn.params[name]) for name in params):
        rnn = rnn.with_params(params)
    keep(known, key, rnn)
    return rnn
