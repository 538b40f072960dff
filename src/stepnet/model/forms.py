"""The forms of calls: keys by which a model finds a call that was prepared for others of the same kind.

    array [batch, time, ...]       shape, dtype, options             exact: calls of these sizes alone
    Ragged, padded arrays          layout, sequences, about how      general: calls of any lengths, which say
                                   many steps, features, dtype,      where their sequences lie (`Places`)
                                   options
    array on a device              lengths, shape, dtype, options    exact

The options of a call are `last_only`, `engine` and the number of threads.
"""

from dataclasses import replace
from typing import Any, cast

import numpy as np

from stepnet.compiler.targets import Call, Order, Places, TableLayout
from stepnet.compiler.targets.threads import threads
from stepnet.model.executables import Form
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions

Array = np.ndarray
MOST_PLACES = 2**14
"""The largest number of sequences of a call that is prepared for any lengths, or of a `Ragged` whose exact
lengths are a key. The key of as many is looked up in 20 microseconds; NumPy lays 10,000 out in 1,300.
"""
INT64 = np.dtype(np.int64)
LONGEST = 4096
"""The largest length of a sequence in a call that is prepared for any lengths."""
SMALL = 64
"""The number of steps up to which calls prepared for any lengths are one form; beyond, each power of two has
one, as threads share larger calls.
"""


FormedCall = tuple[Form, Any, Places | None]
"""A call as the cache of prepared calls sees it: the key of the first look-up, the array of the sequences (of
the host or of a device), and the places of the sequences in it. The key is for any lengths if there are
places, else for exact lengths.
"""


def formed_call(
    sequences: Any, lengths: Any, last_only: Any, engine: Any, masked: Any, time_major: Any
) -> FormedCall | None:
    """Returns the facts on the arguments of a call that the cache of prepared calls needs; None if no code is
    prepared for such calls, or if the arguments are to be checked.

    Calls are prepared on one C-contiguous array, with lengths or without, and on one Ragged of few sequences
    without nested ones.
    """
    if type(last_only) is not bool or type(time_major) is not bool:
        return None
    if type(engine) is not str and not is_order(engine):
        return None
    if type(masked) is not str or masked != "repeat":  # without a mask it has no effect, or is invalid
        return None
    if type(sequences) is Ragged:
        values, levels = sequences.values, sequences.offsets
        if len(levels) != 1 or time_major or lengths is not None or not is_plain(values):
            return None
        total, *features = values.shape
        places = levels[0], len(levels[0]) - 1, total
        return at_places("ends", values, tuple(features), places, last_only, engine)
    if not is_plain(sequences):
        return None
    shape = sequences.shape
    if lengths is None:
        form = None, shape, sequences.dtype, time_major, last_only, engine, threads()
        return form, sequences, None
    if len(shape) < 2 or (table := lengths_table(lengths)) is None:
        return None
    places = table, shape[1 if time_major else 0], shape[0] * shape[1]
    return at_places("time" if time_major else "batch", sequences, shape[2:], places, last_only, engine)


def formed_on_device(
    array: Any, lengths: Any, last_only: bool, engine: str, time_major: bool
) -> FormedCall | None:
    """Returns the cache entry of a call on an array that lies on a device and is read there; None if the
    arguments must be checked first. Such calls are prepared for their lengths alone.

    engine: the name of the engine that reads the array. No call on arrays of the host has this name and such
    a dtype in its key.
    """
    if type(last_only) is not bool or type(time_major) is not bool or not hasattr(array, "shape"):
        return None
    table = None if lengths is None else lengths_table(lengths)
    if lengths is not None and (table is None or len(table) > MOST_PLACES):
        return None
    rows = None if table is None else table.tobytes()
    return (rows, array.shape, (array.dtype,), time_major, last_only, engine, threads()), array, None


def is_plain(values: Any) -> bool:
    """Tells whether a value is an array whose elements machine code can read in place."""
    return type(values) is Array and values.flags.c_contiguous and values.dtype.isnative


def lengths_table(lengths: Any) -> Array | None:
    """Returns the argument `lengths` of a call as machine code reads it; None if it is to be checked first.
    Whether the numbers fit the call is checked when it runs.
    """
    if type(lengths) is not Array:
        if type(lengths) not in (list, tuple) or not all(type(length) is int for length in lengths):
            return None
        lengths = np.array(lengths)  # of Python's own integers where one is too large
    return lengths if is_table(lengths) else None


def is_table(value: Any) -> bool:
    """Tells whether a value is an array that can say where sequences lie."""
    return type(value) is Array and value.dtype == INT64 and value.ndim == 1 and value.flags.c_contiguous


def at_places(
    layout: str, values: Array, features: tuple[int, ...], places: Places, last_only: bool, engine: Order
) -> tuple[Form, Array, Places] | None:
    """Returns a call at some places, with the key of all calls with as many sequences and a similar number of
    steps; None for too many sequences.

    layout: the name of the way in which the sequences lie. values, features: their array, and its shape at a
    step. last_only, engine: the options of the call.
    """
    _, rows, total = places
    if rows > MOST_PLACES:
        return None
    size = (total if total > SMALL else SMALL).bit_length()
    room = (
        1 << (rows - 1).bit_length() if rows else 1
    )  # calls of up to as many sequences are prepared together
    return (layout, room, size, features, values.dtype, last_only, engine, threads()), values, places


def call_at(layout: str, values: Array, table: Array, engine: Any) -> FormedCall | None:
    """Returns a call on sequences that a front end has; None if no code is prepared for it.

    layout: the name of the way in which they lie, "packed" or "ends". values: the array of their steps.
    table: the table that says where they are. engine: an engine, or several in order of preference.
    """
    if not is_plain(values) or not is_table(table) or not len(table) or not is_order(engine):
        return None
    rows = table.item(0) if layout == "packed" else len(table) - 1
    return at_places(layout, values, values.shape[1:], (table, rows, len(values)), False, engine)


def widened(call: Call, layout: TableLayout, rows: int) -> Call:
    """Returns a call with further sequences, `rows` in all, to prepare calls of up to as many. The further
    ones, and those that are empty, are as long as the shortest other one, and all arrays are zeros.

    call: a call without statics, at the positions of the layout, of which some sequence has steps.
    """
    positions = call.positions
    if positions.rows >= rows and positions.is_full:
        return call
    lengths = np.append(positions.lengths, np.zeros(max(0, rows - positions.rows), np.int64))
    lengths[lengths == 0] = lengths[lengths > 0].min()
    if layout.name == "ends":
        wide = Positions.end_to_end(offsets_of(lengths))
    else:
        wide = Positions.padded(lengths, int(lengths.max()) + 1)

    def zeros(array: Array | None, count: int) -> Array | None:
        """Makes zeros in the place of an array, with another number of entries; None stays."""
        return None if array is None else np.zeros((count, *array.shape[1:]), array.dtype)

    sequences = [zeros(array, wide.total) for array in call.sequences]
    initial = [zeros(array, rows) for array in call.initial]
    return replace(call, positions=wide, sequences=sequences, initial=initial)


def in_general(call: FormedCall) -> tuple[Form, Array, Places] | None:
    """Returns a call on a whole array as one at some places, so that it can run as calls of any lengths do;
    None if it cannot.
    """
    (_, shape, _, time_major, last_only, engine, _), values, _ = call
    if type(values) is not np.ndarray or len(shape) < 2:
        return None
    first, second, *features = shape
    if time_major:
        layout, places = "packed", (np.full(first, second), second, first * second)
    else:
        end = first * second + 1
        table = cast("Array", np.arange(0, end, second) if second else np.zeros(first + 1, np.int64))
        layout, places = "ends", (table, first, first * second)
    return at_places(layout, values, tuple(features), places, last_only, engine)


def exact_form(call: FormedCall) -> Form | None:
    """Returns the key of calls with exactly the lengths of this one; None for arrays with padding."""
    form, values, places = call
    if places is None:
        return form
    layout, *_, last_only, engine, count = form
    if layout != "ends":
        return None
    return places[0].tobytes(), values.shape, values.dtype, False, last_only, engine, count


def fits(positions: Positions) -> bool:
    """Tells whether calls of any lengths may be prepared from one at these positions: some sequence has
    steps, and none too many.
    """
    return 0 < int(positions.lengths.max(initial=0)) <= LONGEST


def is_order(engine: Any) -> bool:
    """Returns whether the argument `engine` is a name or a tuple of names, which a cache key may contain."""
    if type(engine) is str:  # the usual case
        return True
    names = cast("tuple[Any, ...]", engine) if type(engine) is tuple else (engine,)
    return all(type(name) is str for name in names)
