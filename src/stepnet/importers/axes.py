"""Names of the axes of a value: sequences, steps and features.

    x                      [batch, time, 8]     (sequences) (steps) (8)
    x.reshape(-1, 8)       [batch * time, 8]    (sequences steps) (8)
    h_n                    [2, batch, 4]        (2) (sequences) (4)

After a convolution with a stride there is another number of steps, and an axis of its own for them, such as
`steps[+0/2]` (`compiler/net/windows.py`).

An axis is a tuple of the parts that it is joined of, in order. A net has no axes of sequences and steps: it
has the extent of a value instead, and the features in their order. So a transpose of sequences and steps
moves no data, and a value that was flattened keeps its data in the order in which it was joined.
"""

import re
from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import Any

from stepnet.compiler.net.pairs import pairs_of
from stepnet.compiler.net.types import CONST, WHOLE, Extent
from stepnet.compiler.net.types import ROWS as PER_ROW
from stepnet.compiler.net.types import STEPS as PER_STEP
from stepnet.compiler.net.windows import is_derived_name, split
from stepnet.errors import ModelError
from stepnet.importers.sizes import SEQUENCES, STEPS, Size, is_number

PACKED = "packed steps"
"""The part of an axis that holds the steps of all sequences, end to end.

Where sequences were sorted, their part has another name, in brackets: `sequences (sorted 1)`, and
`packed steps (sorted 1)` for the steps that were packed in that order.
"""

Axis = tuple[int | str, ...]
Axes = tuple[Axis, ...]

KEYS = "keys "
"""The begin of the name of an axis of the keys of pairs of steps; that of the net's axis follows."""

BATCH: Axis = (SEQUENCES,)
TIME: Axis = (STEPS,)
TOKENS: Axis = (PACKED,)
ONE: Axis = (1,)
LETTERS: Mapping[str, Axis] = {"N": BATCH, "T": TIME, "S": TOKENS}
FEATURE, JOINED = "_", "*"
"""The letters of an axis of features, and of an axis that is joined of several parts."""


class AxesError(ModelError):
    """Error for axes that do not fit an operator. A reader may then try other axes of the model's inputs."""


class MixingError(AxesError):
    """Error for an operator that mixes sequences; with axes in another order it may be one over steps."""


def is_rows(part: int | str) -> bool:
    """Tells whether a part of an axis (a name or a size) stands for the sequences, in any order."""
    return isinstance(part, str) and part.startswith(SEQUENCES)


def is_packed(part: int | str) -> bool:
    """Tells whether a factor of an axis's size is packed steps: the steps of all sequences, end to end."""
    return isinstance(part, str) and part.startswith(PACKED)


def is_steps(part: int | str) -> bool:
    """Tells whether a factor of an axis's size (a symbol or a number) stands for the steps of a sequence, or
    for as many as follow from them by a stride; or, in the body of a Loop, for the steps of a sequence that
    it reads whole.
    """
    return isinstance(part, str) and part.startswith((STEPS, WHOLE))


def is_keys(axis: Axis) -> bool:
    """Tells whether an axis has the keys of pairs of steps (query, key)."""
    return len(axis) == 1 and is_key_part(axis[0])


def is_key_part(part: int | str) -> bool:
    """Tells whether a factor of an axis is the keys of pairs of steps."""
    return isinstance(part, str) and part.startswith(KEYS)


def keys_axis(time: Axis, causal: bool) -> Axis:
    """Returns the axis of the keys of a value that has a number for each pair of steps, a query and a key
    that it attends to. time: the axis of the steps that are the keys.

    causal: whether a query has only the keys up to its own index.
    """
    return (KEYS + pairs_of(PER_STEP, (*PER_ROW, str(time[0])), causal)[-1],)


def keys_of(keys: Axis) -> Axis:
    """Returns the axis of the steps which are the keys, from the axis `keys` of values at pairs of steps.

    >>> keys_of(keys_axis(("steps",), causal=True))
    ('steps',)
    """
    return (str(keys[0]).removeprefix(KEYS)[:-1],)


def innermost(axes: Axes) -> Axis | None:
    """Returns the innermost axis, besides features, that a reduction may go over: the keys of a value at
    pairs of steps (query, key), else the steps; None if it has neither.
    """
    return next(filter(is_keys, axes), None) or time_of(axes)


def is_time(axis: Axis) -> bool:
    """Tells whether an axis is one of steps, of which there may be another number than in the inputs."""
    return len(axis) == 1 and is_steps(axis[0])


def time_of(axes: Axes) -> Axis | None:
    """Returns the axis of steps among axes; None if there is none."""
    return next(filter(is_time, axes), None)


def is_feature(axis: Axis) -> bool:
    """Tells whether an axis is a feature: it consists of sizes, and of no name for sequences or steps."""
    return not symbols_in((axis,))


def symbols_of(part: str) -> tuple[str, ...]:
    """Returns the symbols (`SEQUENCES`, `STEPS`) whose product is the size of a named axis or a named factor
    of one. Steps after a stride are a symbol of their own. The keys of pairs of steps (query, key) have the
    symbol of the steps that they are.
    """
    if is_key_part(part):
        return (part.removeprefix(KEYS)[:-1],)
    return (part,) if is_steps(part) else (SEQUENCES, STEPS) if is_packed(part) else (SEQUENCES,)


def symbols_in(axes: Axes) -> list[str]:
    """Lists the symbols (`SEQUENCES`, `STEPS`) in all axes, with repetitions; axes of features have none."""
    return [name for axis in axes for part in axis if isinstance(part, str) for name in symbols_of(part)]


def features_of(axes: Axes) -> tuple[int, ...]:
    """Returns the integers among the parts of axes: the shape of the value without sequences and steps."""
    return tuple(part for axis in axes for part in axis if isinstance(part, int))


def size_of(axis: Axis, stated: Mapping[str, int] | None = None) -> Any:
    """Returns the size of an axis: an integer, or a `Size` if it depends on the number of sequences or steps.

    stated: the numbers of sequences and steps that the model's file states, by their symbols.

    >>> size_of((2, "sequences"))
    2 x sequences
    """
    count, symbols = prod(features_of((axis,))), sorted(symbols_in((axis,)))
    if not symbols:
        return count
    known = [stated_number(symbol, stated or {}) for symbol in symbols]
    numbers = [number for number in known if number is not None]
    return Size(tuple(symbols), count, prod(numbers) if len(numbers) == len(known) else None)


def stated_number(symbol: str, stated: Mapping[str, int]) -> int | None:
    """Returns the number of sequences or steps (axis `symbol`) that a file fixes, also for steps after a
    stride, from those before it; None if it fixes none. stated: the numbers of the inputs.
    """
    source, lengths = split(symbol)
    number = stated.get(symbol, stated.get(source))
    if number is None or symbol in stated:
        return number
    for own in lengths:
        number = own.of_one(number)
    return number


def extent_of(axes: Axes) -> Extent:
    """Returns the extent of a value with these axes, which says for what it has an entry each: pairs of
    steps, steps, sequences, or just one (a constant).
    """
    symbols = symbols_in(axes)
    steps = next(filter(is_steps, symbols), None)
    keys = next(filter(is_keys, axes), None)
    if keys is not None:
        queries = next((str(part) for axis in axes for part in axis if is_steps(part)), PER_STEP[-1])
        return (*PER_ROW, queries, str(keys[0]).removeprefix(KEYS))
    return (*PER_STEP[:1], steps) if steps else PER_ROW if symbols else CONST


OWN_STEPS = re.compile(r"steps\[([A-Za-z]\w*)\]")
"""The name of an input that has steps of its own, in the name of their axis."""


def text_of(axes: Axes) -> str:
    """Formats axes as text for messages, as `[sequences, 2 x steps]`."""

    def word(size: int | str) -> str:
        """Returns a size, or the name of an axis; the name of a derived axis is internal text."""
        derived = isinstance(size, str) and is_derived_name(size) and bool(split(size)[1])
        return "steps of other lengths" if derived else str(size)

    return f"[{', '.join(' x '.join(map(word, axis)) for axis in axes)}]"


def axes_of(letters: str, features: Sequence[int], time: Axis = TIME) -> Axes:
    """Makes axes from a letter for each: N for sequences, T for steps, S for packed steps, and _ for a
    feature.

    features: the sizes of the features in their order. time: the axis of steps.

    >>> axes_of("NT_", [8])
    (('sequences',), ('steps',), (8,))
    """
    sizes, named = iter(features), {**LETTERS, "T": time}
    return tuple(named[letter] if letter in named else (next(sizes),) for letter in letters)


def letters_of(axes: Axes) -> str:
    """Returns a letter per axis, as in "NT_": N sequences, T steps, S packed steps, _ feature, * joined."""
    letters = {axis: letter for letter, axis in LETTERS.items()}

    def letter(axis: Axis) -> str:
        """Returns the letter of an axis."""
        return FEATURE if is_feature(axis) else "T" if is_time(axis) else letters.get(axis, JOINED)

    return "".join(map(letter, axes))


def axis_names(letters: str) -> str:
    """Names axes in words, for messages. letters: a letter for each axis, such as N for sequences.

    >>> axis_names("TN_")
    'steps, sequences, features'
    """
    return ", ".join(str(LETTERS[letter][0]) if letter in LETTERS else "features" for letter in letters)


def regrouped(axes: Axes, sizes: Sequence[Any], stated: Mapping[str, int] | None = None) -> Axes:
    """Returns the axes of a value after a reshape: its numbers get other sizes and keep their order, so
    sequences and steps can only be joined with or split from their neighbours.

    sizes: the sizes after the reshape; symbolic ones are `Size`s. stated: the numbers of sequences and of
    steps that the model's file states, which may stand for their symbols in `sizes`.

    Raises `ModelError` if an axis of the result would mix numbers of several sequences or steps.

    >>> regrouped((("sequences",), ("steps",), (6,)), [Size(("sequences", "steps")), 2, 3])
    (('sequences', 'steps'), (2,), (3,))
    """
    remaining, grouped = axis_factors(axes), list[Axis]()
    for size in sizes:
        axis = next_axis(remaining, size, stated or {})
        if axis is None:
            raise reshape_error(axes, sizes, stated)
        grouped.append(axis)
    if any(part != 1 for part in remaining):
        raise reshape_error(axes, sizes, stated)
    return tuple(grouped)


def axis_factors(axes: Axes) -> list[int | str]:
    """Lists the factors that the sizes of all axes consist of, in order, so that a reshape can regroup them:
    numbers, and symbols for sequences and steps. Neighbouring numbers are multiplied, as a reshape may divide
    them anew.
    """
    parts = list[int | str]()
    for part in (part for axis in axes for part in axis):
        last = parts[-1] if parts else ""
        if isinstance(part, int) and isinstance(last, int):
            parts[-1] = last * part
        else:
            parts.append(part)
    return parts


def next_axis(parts: list[int | str], size: Any, stated: Mapping[str, int]) -> Axis | None:
    """Removes factors from the front of the list `parts` whose sizes multiply to a given size, and returns
    them as one axis, for a reshape. A named factor (sequences or steps) is never split. A number is split:
    the axis takes its greatest common divisor with the size that is still missing.

    parts: the factors of the axes that are left, which the function changes. size: the size of the axis, an
    integer or a `Size`. stated: the numbers of sequences and of steps that the model's file states, which a
    size may contain; a number of 1 does not say where it is. Returns None if no factors at the front have
    this size.
    """
    if is_number(size, 1) and parts[:1] == [1]:
        return (parts.pop(0),)
    while not is_number(size, 1) and parts[:1] == [1]:
        parts.pop(0)
    if parts and isinstance(parts[0], str) and size == size_of((parts[0],), stated):
        return (parts.pop(0),)
    axis = list[int | str]()
    count, names = (size.times, [*size.symbols]) if isinstance(size, Size) else (int(size), list[str]())
    while (count != 1 or names) and parts:
        part = parts.pop(0)
        if isinstance(part, str):
            if not set(symbols_of(part)) <= set(names):
                number = size_of((part,), stated).stated
                if names or number in (None, 0, 1) or count % number:
                    return None
                count //= number
            names = [name for name in names if name not in symbols_of(part)]
            axis.append(part)
            continue
        if part == 1:
            continue
        shared = count if part == count else gcd(part, count)
        if shared == 1:
            return None
        count = 1 if part == count else count // shared
        if part != shared:
            parts.insert(0, part // shared)
        axis.append(shared)
    return (tuple(axis) or ONE) if count == 1 and not names else None


def reshape_error(axes: Axes, sizes: Sequence[Any], stated: Mapping[str, int] | None = None) -> ModelError:
    """Makes the error for a reshape of axes to sizes that would mix numbers of several sequences or steps.

    stated: the numbers of sequences and of steps that the model's file states.
    """
    alone = [symbol for symbol, number in (stated or {}).items() if number == 1]
    remedy = f"export it with two {alone[0]} or more" if alone else "transpose it first"
    sizes_text = ", ".join(map(str, sizes))
    return ModelError(
        f"a tensor {text_of(axes)} is read as [{sizes_text}], which mixes sequences or steps: {remedy}"
    )


def feature_error(axis: Axis, reason: str) -> AxesError:
    """Makes the error for an axis of sequences or steps where an operator supports features alone: a
    `MixingError` for sequences, an `AxesError` for steps. axis: the axis. reason: the text of the error.
    """
    return (MixingError if any(map(is_rows, axis)) else AxesError)(reason)


def axis_error(symbol: str, axes: Axes) -> ModelError:
    """Makes the error for an operation over sequences, or over steps, that is not supported.

    symbol: `SEQUENCES` or steps, which the operation goes over. axes: the axes of the operand.
    """
    reasons = {
        SEQUENCES: "which mixes them: each sequence's results are its own",
        STEPS: "which this operation does not support",
    }
    kind = STEPS if is_steps(symbol) else symbol
    error = MixingError if kind == SEQUENCES else ModelError
    own = {name for axis in axes for name in OWN_STEPS.findall(str(axis))}
    remedy = "".join(f"; axes={{{name!r}: '_N'}} says that {name} has no steps" for name in sorted(own))
    return error(f"it goes over the {kind} of {text_of(axes)}, {reasons[kind]}{remedy}")
