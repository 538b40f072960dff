"""A list column as the sequences that a model takes, and the outputs of a model as a column.

    list<list<float>>                    steps of 12 numbers, or sequences of sequences of numbers: the model
    list<fixed_size_list<float>[12]>     steps of 12 numbers                                       says which
    large_list<dictionary<int64>>        steps of one token

    Ragged [2 sequences, 64 features]    list<fixed_size_list<float>[64]>
    array [2, 64]                        fixed_size_list<float>[64]
    {"h": ..., "c": ...}                 struct<h: ..., c: ...>

The type is checked once, when the column is chosen. The numbers are checked as they are read.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import named_leaves
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.arrow import (
    check_type,
    list_axes,
    numbers_of,
    parts_of,
    pyarrow_module,
    to_arrow,
    with_nulls,
)
from stepnet.ragged.offsets import path_of

Array = np.ndarray


@dataclass(frozen=True)
class Column:
    """Reader of a list column of one Arrow type, which converts its rows to the sequences that a model takes.

    kind: the Arrow type. spec: the features and dtype of a step, as the model takes them. numbers: the dtype
    in the column. large: for each level, whether its lists have 64-bit offsets. widths: the sizes of inner
    lists that are features, where the Arrow type does not fix the size. finite: whether to refuse NaN and
    infinite numbers.
    """

    kind: Any
    spec: Spec
    numbers: np.dtype[Any]
    large: tuple[bool, ...]
    widths: tuple[int, ...]
    finite: bool = False

    @classmethod
    def of(cls, kind: Any, spec: Spec | None, finite: bool = False) -> "Column":
        """Checks that a column type fits a model, and returns the reader of such columns. Raises `InputError`
        for types that are not lists of numbers, or that do not fit.

        kind: the Arrow type of the column. spec: the features and dtype of the model's steps; None takes them
        from the type. finite: whether to refuse NaN and infinite numbers.
        """
        check_type(kind)
        large, features, inside = list_axes(kind)
        numbers = np.dtype(numbers_of(inside).to_pandas_dtype())
        if spec is None:
            if len(large) > 1:
                raise InputError(
                    f"it is {kind}, and the model was made without inputs=, so it is not known whether its "
                    "inner lists are features: make the model with inputs=, or cast them to fixed-size lists"
                )
            return cls(kind, Spec(tuple(features), numbers.name), numbers, tuple(large), (), finite)
        check_numbers(numbers, np.dtype(spec.dtype))
        extra = len(large) - 1 - spec.levels
        fits = 0 <= extra <= len(spec.shape) and spec.shape[extra:] == tuple(features)
        if not fits and not (extra == 0 and prod(spec.shape) == prod(features) == 1):
            steps = " of ".join(["sequences"] * (1 + spec.levels))
            step_text = f"{' x '.join(map(str, spec.shape))} numbers" if spec.shape else "one number"
            raise InputError(f"it is {kind}, and the model takes {steps} of steps of {step_text}")
        return cls(kind, spec, numbers, tuple(large[: 1 + spec.levels]), spec.shape[:extra], finite)

    @property
    def levels(self) -> int:
        """The number of levels of sequences in the Arrow column: 2 for sequences of sequences."""
        return len(self.large)

    @property
    def entry_bytes(self) -> int:
        """The bytes that one step of an Arrow column takes in a call of the model: its numbers in the
        column's dtype, again in the model's if they are cast, and an offset of 8 bytes per inner list that
        holds features.
        """
        target = np.dtype(self.spec.dtype)
        step_bytes = self.numbers.itemsize + (0 if self.numbers == target else target.itemsize)
        lists = sum(prod(self.widths[:index]) for index in range(len(self.widths)))
        return prod(self.spec.shape) * step_bytes + 8 * lists

    def read(self, array: Any, first: int = 0) -> Ragged:
        """Converts rows of an Arrow list column to sequences for the model; a null row becomes an empty one.

        array: list rows whose offsets were checked. first: the number of the first row, for messages. Raises
        `InputError`, naming the first such row, for nulls inside sequences, for feature lists of another
        size, for numbers that the model's dtype does not hold, and, if `finite`, for NaN and infinite
        numbers.
        """
        values, offsets = parts_of(array, first)
        for index, width in reversed([*enumerate(self.widths, self.levels)]):
            lengths = np.diff(offsets[index])
            if (lengths != width).any():
                wrong = int((lengths != width).argmax())
                raise InputError(
                    f"{entry_name(wrong, offsets[:index], first)} has {lengths[wrong]} numbers, and the "
                    f"model takes {width}"
                )
        total = int(offsets[self.levels - 1][-1])
        values, offsets = values.reshape(total, *self.spec.shape), offsets[: self.levels]
        if self.finite and self.numbers.kind == "f" and not np.isfinite(values).all():
            wrong = first_of(~np.isfinite(values))
            index = entry_name(wrong[0], offsets, first)
            raise InputError(f"{index} has {values[wrong]}, and NaN and infinite numbers are refused")
        return Ragged(self.cast(values, offsets, first), offsets)

    def cast(self, values: Array, offsets: tuple[Array, ...], first: int) -> Array:
        """Casts numbers of an Arrow column to the model's dtype, without a copy if they have it. Raises
        `InputError` for a number that this dtype does not hold: one that would change, or become infinite.

        offsets: the levels of lists around the values. first: the number of the first row; both name the row.
        """
        target = np.dtype(self.spec.dtype)
        if values.dtype == target:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            converted = values.astype(target)
        if np.can_cast(values.dtype, target, "safe"):
            return converted
        lost = converted != values if target.kind in "iu" else np.isinf(converted) & np.isfinite(values)
        if lost.any():
            wrong = first_of(lost)
            raise InputError(
                f"{entry_name(wrong[0], offsets, first)} has {values[wrong]}, and the model takes "
                f"{target}, which does not hold it"
            )
        return converted


def check_numbers(numbers: np.dtype[Any], target: np.dtype[Any]) -> None:
    """Raises `InputError` unless a column's dtype and the model's are both floats, or both whole numbers."""
    whole = numbers.kind in "iub" and target.kind in "iu"
    floating = numbers.kind == "f" and target.name in ("float16", "bfloat16", "float32", "float64")
    if not (whole or floating or numbers == target):
        raise InputError(f"its numbers are {numbers}, and the model takes {target}; cast them")


def first_of(wrong: Array) -> tuple[int, ...]:
    """Returns the index of the first true (wrong) entry of a bool array, to name it in a message.

    >>> first_of(np.array([[False, False], [False, True]]))
    (1, 1)
    """
    return tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))


def entry_name(position: int, offsets: tuple[Array, ...], first: int) -> str:
    """Returns the name of an entry of a list column for messages: its row, and its path inside the row.

    position: its index in the values. offsets: the levels of lists around them. first: the first row's
    number.

    >>> entry_name(3, (np.array([0, 2, 5]),), first=10)
    'row 11, entry 1'
    """
    row, *path = path_of(position, offsets)
    return f"row {row + first}" + "".join(f", entry {index}" for index in path)


def result_column(outputs: Any, null: Array | None, large: Sequence[bool]) -> Any:
    """Converts a model's outputs to an Arrow column: the only, unnamed output as it is, named ones as a
    struct. Raises `InputError` for no outputs, and for two outputs of one name.

    null: bool per row, True for a null; None for no nulls. large: for each level of nested lists, whether its
    lists have 64-bit offsets; taken from the input column, so that all batches of a stream have one type.
    """
    leaves = list(named_leaves(outputs))
    columns = {name: array_of(leaf, large) for name, leaf in leaves}
    if not leaves:
        raise InputError("the model gives no outputs, so there is nothing for a column")
    if len(columns) < len(leaves):
        twice = next(name for index, (name, _) in enumerate(leaves) if name in dict(leaves[:index]))
        raise InputError(f"two outputs of the model are called `{twice}`; rename one of them")
    if list(columns) == [""]:
        return with_nulls(columns[""], null)
    return with_nulls(pyarrow_module().StructArray.from_arrays([*columns.values()], [*columns]), null)


def array_of(output: Any, large: Sequence[bool]) -> Any:
    """Converts a model output to Arrow; large: 64-bit offsets or not, per level of nested lists."""
    if isinstance(output, Ragged):
        return to_arrow(output.values, output.offsets, large[: output.levels])
    return to_arrow(output, ())
