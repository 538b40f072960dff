"""`Ragged` and its ways in and out: round trips over every shape of sequences, and what each refuses how."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import stepnet
from stepnet.errors import InputError
from stepnet.ragged import Ragged

VOWELS = Path(stepnet.__file__).parent / "cli" / "data" / "japanese_vowels.parquet"
FEATURES = [(), (1,), (3,), (2, 3)]
DTYPES = [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_]

settings.register_profile("ragged", max_examples=60, deadline=None)
every = settings.get_profile("ragged")


@st.composite
def raggeds(draw: st.DrawFn, levels: int | None = 1, shortest: int = 0, fewest: int = 0) -> Ragged:
    """Any sequences of a dtype that all neighbours know; lengths from `shortest` to 5, 0 and 1 among them."""
    depth = draw(st.integers(1, 3)) if levels is None else levels
    offsets: list[Any] = []
    count = draw(st.integers(fewest, 5))
    for _ in range(depth):
        lengths = draw(
            st.lists(
                st.integers(shortest, 5) | st.sampled_from([max(shortest, 0), 1]),
                min_size=count,
                max_size=count,
            )
        )
        offsets.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
        count = int(offsets[-1][-1])
    shape = (count, *draw(st.sampled_from(FEATURES)))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    values = random.normal(0, 60, shape).astype(draw(st.sampled_from(DTYPES[:3])))
    dtype = draw(st.sampled_from(DTYPES))
    if np.dtype(dtype).kind != "f":
        values = random.integers(0, 2 if dtype == np.bool_ else 200, shape)
    values = values.astype(dtype)
    layout = draw(st.sampled_from(["plain", "read-only", "every other", "backwards", "back to front"]))
    if layout == "read-only":
        values.flags.writeable = False
    if layout == "every other":
        values = np.repeat(values, 2, axis=0)[::2]
    if layout == "backwards":
        values = values[::-1].copy()[::-1]
    if layout == "back to front" and values.ndim > 1:
        values = values[..., ::-1].copy()[..., ::-1]
    return Ragged(values, tuple(offsets))


Loose: Any = Ragged


class Uncompared:
    """An array of a library that compares with arrays alone, as JAX's do."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array

    def __ne__(self, other: object) -> bool:
        raise TypeError("ne requires array arguments")

    __hash__ = None  # type: ignore[assignment]


def small() -> Any:
    """Four sequences of 2, 0, 1 and 3 steps of two features."""
    return Ragged(np.arange(12, dtype=np.float32).reshape(6, 2), (np.array([0, 2, 2, 3, 6]),))


def assert_equal(actual: Ragged, expected: Ragged) -> None:
    assert actual.equal(expected), f"{actual.to_list()} is not {expected.to_list()}"
    assert actual.dtype == expected.dtype
    assert [offsets.tolist() for offsets in actual.offsets] == [
        offsets.tolist() for offsets in expected.offsets
    ]
    np.testing.assert_array_equal(actual.values, expected.values)


def refuses(words: str) -> Any:
    return pytest.raises(InputError, match=f"^{re.escape(words)}")


# The value itself


@pytest.mark.parametrize(
    ("lengths", "features", "text"),
    [
        ([[2, 0, 29]], (12,), "Ragged(3 sequences of 0 to 29 steps, 12 features, float32)"),
        ([[1]], (1,), "Ragged(1 sequence of 1 step, 1 feature, float32)"),
        ([[0, 1]], (), "Ragged(2 sequences of 0 to 1 steps, float32)"),
        ([[4, 4]], (2, 3), "Ragged(2 sequences of 4 steps, 2 x 3 features, float32)"),
        ([[]], (5,), "Ragged(0 sequences, 5 features, float32)"),
        (
            [[2, 1], [3, 3, 7]],
            (8,),
            "Ragged(2 sequences of 1 to 2 sequences of 3 to 7 steps, 8 features, float32)",
        ),
        ([[0], []], (8,), "Ragged(1 sequence of 0 sequences, 8 features, float32)"),
    ],
)
def test_print(lengths: list[list[int]], features: tuple[int, ...], text: str) -> None:
    offsets = tuple(np.cumsum([0, *level], dtype=np.int64) for level in lengths)
    assert repr(Ragged(np.zeros((sum(lengths[-1]), *features), np.float32), offsets)) == text


def test_properties() -> None:
    ragged = small()
    assert ragged.lengths.tolist() == [2, 0, 1, 3]
    assert ragged.lengths.dtype == np.int64
    assert (len(ragged), ragged.levels, ragged.total) == (4, 1, 6)
    assert (ragged.features, ragged.dtype) == ((2,), np.float32)


def test_values_are_shared_and_offsets_are_locked() -> None:
    values, offsets = np.zeros((3, 2)), np.array([0, 3])
    ragged: Any = Ragged(values, (offsets,))
    assert np.shares_memory(ragged.values, values)
    offsets[1] = 10**9
    assert ragged.lengths.tolist() == [3]
    with pytest.raises(ValueError, match="read-only"):
        ragged.offsets[0][1] = 10**9
    with pytest.raises(AttributeError):
        ragged.values = values


def test_foreign_byte_order_becomes_native() -> None:
    ragged = Ragged(np.array([1.0, 2.0], ">f4"), (np.array([0, 2]),))
    assert ragged.dtype.isnative
    assert ragged.values.tolist() == [1.0, 2.0]


@pytest.mark.long(examples=15)
@every
@given(raggeds(levels=None))
def test_iteration_and_index_give_each_sequence(ragged: Ragged) -> None:
    each = list(ragged)
    assert len(each) == len(ragged)
    for index, one in enumerate(each):
        for same in (ragged[index], ragged[index - len(ragged)], ragged[np.int32(index)]):
            if isinstance(one, Ragged):
                assert isinstance(same, Ragged)
                assert one.levels == ragged.levels - 1
                assert_equal(same, one)
            else:
                np.testing.assert_array_equal(same, one)
                assert np.shares_memory(one, ragged.values) or not one.size
        assert len(one) == ragged.lengths[index]


@pytest.mark.long(examples=15)
@every
@given(raggeds(levels=None), st.slices(5))
def test_slices(ragged: Ragged, part: slice) -> None:
    assert str(ragged[part].to_list()) == str(ragged.to_list()[part])
    if part.step in (None, 1) and ragged[part].values.size:
        assert np.shares_memory(ragged[part].values, ragged.values)


@pytest.mark.long(examples=15)
@every
@given(raggeds(levels=None, fewest=1), st.lists(st.integers(-1, 0), max_size=6), st.randoms())
def test_take(ragged: Ragged, ends: list[int], random: Any) -> None:
    indices = [*ends, *random.choices(range(len(ragged)), k=3)]
    sequences = ragged.to_list()
    taken = ragged.take(indices)
    assert str(taken.to_list()) == str([sequences[index] for index in indices])
    assert not np.shares_memory(taken.values, ragged.values)


def test_take_nothing() -> None:
    assert repr(small().take([])) == "Ragged(0 sequences, 2 features, float32)"


def test_with_values() -> None:
    values = np.arange(6)
    ragged = small().with_values(values)
    assert [sequence.tolist() for sequence in ragged] == [[0, 1], [], [2], [3, 4, 5]]
    assert np.shares_memory(ragged.values, values)


@pytest.mark.long(examples=15)
@every
@given(raggeds(levels=2) | raggeds(levels=3))
def test_inner_and_group_undo_each_other(ragged: Ragged) -> None:
    inner = ragged.inner()
    assert str(inner.to_list()) == str([sequence for group in ragged.to_list() for sequence in group])
    assert_equal(inner.group(ragged.lengths), ragged)
    assert inner.values is ragged.values


def test_equal() -> None:
    ragged = small()
    nan = ragged.with_values(np.full((6, 2), np.nan, np.float32))
    assert ragged.equal(small())
    assert nan.equal(nan.with_values(nan.values.copy()))
    assert not ragged.equal(nan)
    assert not nan.equal(ragged)
    assert not ragged.equal(ragged.with_values(ragged.values[::-1]))
    assert not ragged.equal(ragged.with_values(ragged.values.astype(np.float64)))
    assert not ragged.equal(ragged.with_values(ragged.values[:, :1]))
    assert not ragged.equal(Ragged(ragged.values, (np.array([0, 2, 3, 3, 6]),)))
    assert not ragged.equal(ragged.group([4]))


BAD = {
    "list of values": (
        lambda: Loose([1, 2], (np.array([0, 2]),)),
        "values must be a NumPy array, not a list",
    ),
    "objects": (
        lambda: Ragged(np.array([None, 1]), (np.array([0, 2]),)),
        "values has dtype object, and must hold numbers",
    ),
    "text": (
        lambda: Ragged(np.array(["a"]), (np.array([0, 1]),)),
        "values has dtype <U1, and must hold numbers",
    ),
    "dates": (
        lambda: Ragged(np.zeros(1, "M8[s]"), (np.array([0, 1]),)),
        "values has dtype datetime64[s], and must",
    ),
    "records": (
        lambda: Ragged(np.zeros(1, "f4,f4"), (np.array([0, 1]),)),
        "values has dtype [('f0', '<f4'), ",
    ),
    "masked": (
        lambda: Ragged(np.ma.zeros(2), (np.array([0, 2]),)),
        "values is a masked array; leave the masked",
    ),
    "one number": (lambda: Ragged(np.array(1.0), (np.array([0, 1]),)), "values is a single number"),
    "bare offsets": (
        lambda: Loose(np.zeros(2), np.array([0, 2])),
        "offsets must be a tuple of arrays, one per level",
    ),
    "no offsets": (
        lambda: Ragged(np.zeros(2), ()),
        "offsets must be a tuple of arrays, one per level, and is an empty",
    ),
    "offsets int32": (
        lambda: Loose(np.zeros(2), (np.array([0, 2], np.int32),)),
        "offsets[0] must be a one-dimensional int64 array of NumPy that starts with 0, and is an array of",
    ),
    "offsets of another library": (
        lambda: Loose(np.zeros(2), (Uncompared(np.array([0, 2])),)),
        "offsets[0] must be a one-dimensional int64 array of NumPy that starts with 0, and is a Uncompared",
    ),
    "offsets 2-D": (
        lambda: Ragged(np.zeros(2), (np.array([[0, 2]]),)),
        "offsets[0] must be a one-dimensional int64",
    ),
    "offsets of nothing": (
        lambda: Ragged(np.zeros(0), (np.zeros(0, np.int64),)),
        "offsets[0] must be a one-dim",
    ),
    "offsets a list": (lambda: Loose(np.zeros(2), ([0, 2],)), "offsets[0] must be a one-dimensional int64"),
    "offsets from 1": (
        lambda: Ragged(np.zeros(2), (np.array([1, 2]),)),
        "offsets[0] starts at 1, and must start at 0",
    ),
    "offsets fall": (
        lambda: Ragged(np.zeros(2), (np.array([0, 3, 1, 2]),)),
        "offsets[0] falls from 3 to 1 at entry 1; offsets never decrease",
    ),
    "offsets fall by so much that the difference wraps": (
        lambda: Ragged(np.zeros(2), (np.array([0, 2**62, -(2**62) - 9, 2]),)),
        "offsets[0] falls from 4611686018427387904 to",
    ),
    "offsets end": (
        lambda: Ragged(np.zeros(2), (np.array([0, 3]),)),
        "offsets[0] ends at 3, and must end at 2, the number of values",
    ),
    "outer offsets end": (
        lambda: Ragged(np.zeros(2), (np.array([0, 3]), np.array([0, 2]))),
        "offsets[0] ends at 3, and must end at 1, the number of entries of offsets[1]",
    ),
    "index beyond": (lambda: small()[4], "there is no sequence 4: there are 4"),
    "index before": (lambda: small()[-5], "there is no sequence -5: there are 4"),
    "index huge": (lambda: small()[2**80], "indices must be whole numbers [count], not"),
    "index list": (
        lambda: small()[[0, 1]],
        "a Ragged is indexed by a whole number or a slice, not a list; take(indices)",
    ),
    "take beyond": (lambda: small().take([0, 7, 9]), "there is no sequence 7: there are 4"),
    "take floats": (
        lambda: small().take([0.5]),
        "indices must be whole numbers [count], not an array of shape (1,)",
    ),
    "take mask": (
        lambda: small().take(np.ones(4, bool)),
        "indices must be whole numbers [count], not an array of shape (4,) and dtype bool; np.flatnonzero",
    ),
    "other total": (
        lambda: small().with_values(np.zeros((5, 2))),
        "the new values have shape (5, 2), and there are 6 steps",
    ),
    "inner of steps": (lambda: small().inner(), "sequences of one level have no inner sequences"),
    "group sum": (
        lambda: small().group([1, 2]),
        "the counts add up to 3, and there are 4 sequences to group",
    ),
    "group negative": (
        lambda: small().group([5, -1]),
        "group 0 has length 5, and must have 0 to 4, the number of sequences",
    ),
    "group count": (
        lambda: small().group(4),
        "the lengths have shape (), and must have (1,), one for each group",
    ),
    "as an array": (lambda: np.asarray(small()), "a Ragged is not a single array; use .values"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_bad_values_offsets_and_indices_are_refused(make: Callable[[], Any], words: str) -> None:
    with refuses(words):
        make()


# Lists


@pytest.mark.long(examples=15)
@every
@given(raggeds(levels=None))
def test_list_round_trip(ragged: Ragged) -> None:
    sequences = ragged.to_list()
    assert_equal(Ragged.from_list(sequences, ragged.dtype, ragged.features, ragged.levels), ragged)
    if ragged.total:
        assert_equal(Ragged.from_list(sequences), ragged)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: Ragged.from_list([], features=12), "Ragged(0 sequences, 12 features, float32)"),
        (lambda: Ragged.from_list([], np.float64, ()), "Ragged(0 sequences, float64)"),
        (
            lambda: Ragged.from_list([], features=(2, 3), levels=2),
            "Ragged(0 sequences, 2 x 3 features, float32)",
        ),
        (
            lambda: Ragged.from_list([[], []], features=3),
            "Ragged(2 sequences of 0 steps, 3 features, float32)",
        ),
        (lambda: Ragged.from_list([[1, 2], []]), "Ragged(2 sequences of 0 to 2 steps, int64)"),
        (lambda: Ragged.from_list(([1.5, 2], [3])), "Ragged(2 sequences of 1 to 2 steps, float64)"),
        (lambda: Ragged.from_list([[1, 2]], np.uint8), "Ragged(1 sequence of 2 steps, uint8)"),
        (lambda: Ragged.from_list([[[1, 2], [3, 4]]]), "Ragged(1 sequence of 2 steps, 2 features, int64)"),
        (
            lambda: Ragged.from_list([[[1, 2], [3, 4]]], levels=2),
            "Ragged(1 sequence of 2 sequences of 2 steps, int64)",
        ),
        (
            lambda: Ragged.from_list([np.zeros(0), np.zeros((2, 3), np.float32), []]),
            "Ragged(3 sequences of 0 to 2 steps, 3 features, float32)",
        ),
        (lambda: Ragged.from_list([np.zeros(0)]), "Ragged(1 sequence of 0 steps, float64)"),
        (lambda: Ragged.from_list([torch.zeros(2, 3)]), "Ragged(1 sequence of 2 steps, 3 features, float32)"),
        (
            lambda: Ragged.from_list([np.zeros(2, np.float32), np.zeros(1)]),
            "Ragged(2 sequences of 1 to 2 steps, float64)",
        ),
        (
            lambda: Ragged.from_list([np.zeros((2, 3))], ml_dtypes.bfloat16),
            "Ragged(1 sequence of 2 steps, 3 features, bfloat16)",
        ),
    ],
)
def test_lists_tell_levels_features_and_dtype(made: Callable[[], Ragged], text: str) -> None:
    assert repr(made()) == text


BAD_LISTS = {
    "array": (
        lambda: Ragged.from_list(np.zeros((2, 3))),
        "from_list takes a list of sequences, not a ndarray; an array",
    ),
    "untold": (
        lambda: Ragged.from_list([[], []]),
        "no sequence shows the shape of its features; pass features=",
    ),
    "other features": (
        lambda: Ragged.from_list([[], np.zeros((2, 3)), np.zeros((2, 4))]),
        "sequence 2 has features (4,), where sequence 1 has (3,)",
    ),
    "not the features": (
        lambda: Ragged.from_list([np.zeros((2, 3))], features=4),
        "sequence 0 has features (3,), where expected are (4,)",
    ),
    "inner features": (
        lambda: Ragged.from_list([[], [np.zeros((2, 3)), np.zeros((1, 4))]]),
        "sequence 1, 1 has features (4,), where sequence 1, 0 has (3,)",
    ),
    "levels": (
        lambda: Ragged.from_list([[np.zeros(2)], np.zeros(2)]),
        "sequence 1 is a ndarray, and with 2 levels must be a list of sequences",
    ),
    "no level": (lambda: Ragged.from_list([], levels=0), "a Ragged has one level or more, not 0"),
    "objects": (lambda: Ragged.from_list([[1], [None]]), "sequence 1 holds objects, and must hold numbers"),
    "text": (lambda: Ragged.from_list([["a"]]), "values has dtype <U1, and must hold numbers"),
    "number": (
        lambda: Ragged.from_list([[1], 2.0]),
        "sequence 1 is a single number, and must have one entry per step",
    ),
    "uneven": (lambda: Ragged.from_list([[1], [[1], [2, 3]]]), "sequence 1 is a list that is not an array: "),
    "floats to integers": (
        lambda: Ragged.from_list([np.zeros(2)], np.int64),
        "sequence 0 is float64, which int64 cannot hold; cast it with .astype first",
    ),
    "integers to smaller ones": (
        lambda: Ragged.from_list([np.array([300])], np.uint8),
        "sequence 0 is int64, which uint8 cannot hold; cast it with .astype first",
    ),
    "too large": (
        lambda: Ragged.from_list([[1], [300]], np.uint8),
        "sequence 1 does not make an array: ",
    ),
    "no common dtype": (
        lambda: Ragged.from_list([np.zeros(1, ml_dtypes.bfloat16), np.zeros(1, ml_dtypes.float8_e5m2)]),
        "the sequences have no common dtype; pass dtype=",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD_LISTS.values(), ids=BAD_LISTS)
def test_bad_lists_are_refused(make: Callable[[], Any], words: str) -> None:
    with refuses(words):
        make()


# Padded


@pytest.mark.long(examples=15)
@every
@given(raggeds(), st.booleans(), st.integers(0, 2), st.sampled_from([0, 1]))
def test_padded_round_trip(ragged: Ragged, time_major: bool, spare: int, fill: int) -> None:
    longest = int(ragged.lengths.max(initial=0))
    padded, lengths = ragged.to_padded(time_major, longest + spare if spare else None, fill)
    batch_first = padded.swapaxes(0, 1) if time_major else padded
    assert batch_first.shape == (len(ragged), longest + spare, *ragged.features)
    assert padded.dtype == ragged.dtype
    assert lengths.tolist() == ragged.lengths.tolist()
    for row, sequence in zip(batch_first, ragged, strict=True):
        np.testing.assert_array_equal(row[: len(sequence)], sequence)
        assert (row[len(sequence) :] == fill).all()
    for given_lengths in (lengths, lengths.tolist(), torch.from_numpy(lengths), lengths.astype(np.uint16)):
        assert_equal(Ragged.from_padded(padded, given_lengths, time_major), ragged)


@pytest.mark.long(examples=15)
@every
@given(raggeds(), st.booleans())
def test_padded_from_any_memory(ragged: Ragged, time_major: bool) -> None:
    padded, lengths = ragged.to_padded(time_major)
    backwards = padded[::-1, ::-1].copy()[::-1, ::-1]
    backwards.flags.writeable = False
    assert_equal(Ragged.from_padded(backwards, lengths, time_major), ragged)
    assert_equal(Ragged.from_padded(padded.swapaxes(0, 1), lengths, not time_major), ragged)


def test_without_lengths_all_steps_count_and_memory_is_shared() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    assert np.shares_memory(Ragged.from_padded(x).values, x)
    assert [sequence.tolist() for sequence in Ragged.from_padded(x).to_list()] == x.tolist()
    assert [sequence.tolist() for sequence in Ragged.from_padded(x, time_major=True).to_list()] == x.swapaxes(
        0, 1
    ).tolist()


def test_padding_is_never_read() -> None:
    x = np.full((2, 3), np.nan)
    x[0, :2] = 1
    assert_equal(Ragged.from_padded(x, [2, 0]), Ragged.from_list([[1.0, 1.0], []]))


X = np.zeros((3, 29, 4))
BAD_PADDED = {
    "beyond": (
        lambda: Ragged.from_padded(X, [29, 30, 31]),
        "sequence 1 has length 30, and must have 0 to 29, the steps of [batch, time, *features] (3, 29, 4)",
    ),
    "beyond, time major": (
        lambda: Ragged.from_padded(X, [3] * 28 + [4], time_major=True),
        "sequence 28 has length 4, and must have 0 to 3, the steps of [time, batch, *features] (3, 29, 4)",
    ),
    "negative": (
        lambda: Ragged.from_padded(X, [0, 1, -2]),
        "sequence 2 has length -2, and must have 0 to 29",
    ),
    "huge": (
        lambda: Ragged.from_padded(X, np.array([1, 2, 2**64 - 1], np.uint64)),
        "sequence 2 has length 18446744073709551615",
    ),
    "too few": (
        lambda: Ragged.from_padded(X, [1, 2]),
        "the lengths have shape (2,), and must have (3,), one for each sequence",
    ),
    "a number": (lambda: Ragged.from_padded(X, 3), "the lengths have shape (), and must have (3,)"),
    "floats": (
        lambda: Ragged.from_padded(X, [1.0, 2.0, 3.0]),
        "the lengths have dtype float64, and must be whole numbers",
    ),
    "mask": (
        lambda: Ragged.from_padded(X, [True] * 3),
        "the lengths have dtype bool, and must be whole numbers",
    ),
    "one axis": (
        lambda: Ragged.from_padded(np.zeros(3), [1]),
        "a padded array is [batch, time, *features], and this one has",
    ),
    "objects": (
        lambda: Ragged.from_padded(np.full((2, 2), None), [1, 1]),
        "the padded array has dtype object",
    ),
    "masked": (lambda: Ragged.from_padded(np.ma.zeros((2, 2)), [1, 1]), "the padded array is a masked array"),
    "uneven": (
        lambda: Ragged.from_padded([[1], [2, 3]]),
        "the padded array has rows of unequal length; use from_list for these",
    ),
    "length": (
        lambda: small().to_padded(length=1),
        "sequence 0 has 2 steps, more than length=1; pass a larger length=",
    ),
    "negative length": (
        lambda: Ragged.from_list([], features=1).to_padded(length=-1),
        "length is -1, and must be 0 or more",
    ),
    "fill of text": (lambda: small().to_padded(fill="a"), "fill 'a' does not fit float32"),
    "fill of fractions": (lambda: Ragged.from_list([[1]]).to_padded(fill=0.5), "fill 0.5 does not fit int64"),
    "fill of nan": (lambda: Ragged.from_list([[1]]).to_padded(fill=np.nan), "fill nan does not fit int64"),
    "fill too large": (
        lambda: Ragged.from_list([[1]], np.uint8).to_padded(fill=256),
        "fill 256 does not fit uint8",
    ),
    "fill of more than a bit": (
        lambda: small().with_values(np.zeros(6, bool)).to_padded(fill=2),
        "fill 2 does not fit bool",
    ),
    "two levels": (
        lambda: small().group([4]).to_padded(),
        "to_padded takes sequences of one level, and these have 2; use inner() first",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD_PADDED.values(), ids=BAD_PADDED)
def test_bad_padding_is_refused(make: Callable[[], Any], words: str) -> None:
    with refuses(words):
        make()


# Arrow


def address(array: Any) -> tuple[int, int]:
    """Where an Arrow array's numbers begin and end in memory, its slices not counted."""
    buffer = [each for each in array.buffers() if each is not None][-1]
    return buffer.address, buffer.address + buffer.size


def shares(values: np.ndarray, array: Any) -> bool:
    start, stop = address(array)
    return start <= values.__array_interface__["data"][0] < stop


@pytest.mark.long(examples=15)
@every
@given(raggeds(levels=None), st.booleans(), st.data())
def test_arrow_round_trip(ragged: Ragged, large: bool, data: st.DataObject) -> None:
    array = ragged.to_arrow()
    array.validate(full=True)
    plain = ragged.dtype != np.bool_ and ragged.values.size
    if plain and ragged.values.flags.c_contiguous:
        assert address(array)[0] == ragged.values.__array_interface__["data"][0]
    assert array.to_pylist() == as_python(ragged.to_list())
    if large:
        array = array.cast(as_large(array.type))
    back = Ragged.from_arrow(array)
    assert_equal(back, ragged)
    start = data.draw(st.integers(0, len(ragged)))
    stop = data.draw(st.integers(start, len(ragged)))
    part = Ragged.from_arrow(array[start:stop])
    assert_equal(part, ragged[start:stop])
    if plain:
        assert shares(back.values, array)
        assert shares(part.values, array) or not part.values.size
    chunks = pa.chunked_array([array[:start], array[start:start], array[start:]])
    assert_equal(Ragged.from_arrow(chunks), ragged)
    assert not plain or np.shares_memory(Ragged.from_arrow(pa.chunked_array([array])).values, back.values)


def as_python(sequences: list[Any]) -> list[Any]:
    return [as_python(each) if isinstance(each, list) else each.tolist() for each in sequences]


def as_large(kind: Any) -> Any:
    return pa.large_list(as_large(kind.value_type)) if pa.types.is_list(kind) else kind


def test_sliced_inner_arrays() -> None:
    """The children of an Arrow array may be slices themselves."""
    numbers = pa.array(np.arange(40, dtype=np.float32))[4:28]
    frames = pa.FixedSizeListArray.from_arrays(numbers, 3)[1:7]
    sentences = pa.ListArray.from_arrays(pa.array([0, 2, 2, 5, 6], pa.int32()), frames)[1:]
    documents = pa.ListArray.from_arrays(pa.array([1, 3, 3], pa.int32()), sentences)
    ragged = Ragged.from_arrow(documents)
    assert ragged.to_arrow().to_pylist() == documents.to_pylist()
    assert ragged.values[0, 0] == 13.0
    assert shares(ragged.values, numbers)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.large_list(pa.list_(pa.int8(), 2)), pa.list_(pa.list_(pa.int8()))]
)
def test_empty_arrow_columns(kind: Any) -> None:
    for array in (
        pa.array([], kind),
        pa.chunked_array([], kind),
        pa.array([[1], [2]], pa.list_(pa.int8()))[:0],
    ):
        assert len(Ragged.from_arrow(array)) == 0
    assert Ragged.from_arrow(pa.array([[], []], kind)).lengths.tolist() == [0, 0]


@pytest.mark.parametrize("offsets", [None, pa.py_buffer(b"")])
def test_empty_arrow_arrays_need_no_offsets(offsets: Any) -> None:
    array = pa.Array.from_buffers(pa.list_(pa.int8()), 0, [None, offsets], children=[pa.array([], pa.int8())])
    assert repr(Ragged.from_arrow(array)) == "Ragged(0 sequences, int8)"


def test_offsets_beyond_32_bits_make_a_large_list() -> None:
    total = 2**31
    ragged = Ragged(np.zeros((total, 0), np.float32), (np.array([0, 1, total]),))
    array = ragged.to_arrow()
    assert pa.types.is_large_list(array.type)
    assert_equal(Ragged.from_arrow(array), ragged)


def test_japanese_vowels_are_read_without_a_copy() -> None:
    column = pq.read_table(VOWELS, columns=["frames"])["frames"]
    ragged = Ragged.from_arrow(column)
    assert repr(ragged) == "Ragged(640 sequences of 7 to 29 steps, 12 features, float32)"
    assert shares(ragged.values, column.chunk(0))
    assert ragged.to_list()[17].tolist() == column[17].as_py()
    tests = column[270:]
    assert shares(Ragged.from_arrow(tests).values, column.chunk(0))
    assert_equal(Ragged.from_arrow(tests), ragged[270:])
    assert Ragged.from_arrow(ragged.to_arrow()).equal(ragged)
    assert shares(ragged.values, ragged.to_arrow())


DAMAGED = pa.Array.from_buffers(
    pa.list_(pa.int8()),
    2,
    [None, pa.py_buffer(np.array([0, 9, 2], np.int32))],
    children=[pa.array([1, 2], pa.int8())],
)
NULL_FRAME = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2, mask=pa.array([False, True]))
BAD_ARROW = {
    "an array": (
        lambda: Ragged.from_arrow(np.zeros(2)),
        "from_arrow takes a pyarrow Array or ChunkedArray, not a ndarray",
    ),
    "numbers": (
        lambda: Ragged.from_arrow(pa.array([1])),
        "the Arrow array is int64, and must be a list or large_list",
    ),
    "fixed": (
        lambda: Ragged.from_arrow(pa.array([[1]], pa.list_(pa.int8(), 1))),
        "the Arrow array is fixed_size_list<item: int8>[1], and must be a list or large_list, one per",
    ),
    "text": (
        lambda: Ragged.from_arrow(pa.array([["a"]])),
        "the Arrow array is list<item: string>, and its lists must hold numbers, not string",
    ),
    "map": (
        lambda: Ragged.from_arrow(pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8()))),
        "the Arrow array is map<int8, int8>, and must be a list",
    ),
    "null row": (
        lambda: Ragged.from_arrow(pa.array([[1], None])),
        "the Arrow array has a null in row 1; drop such rows",
    ),
    "null in a chunk": (
        lambda: Ragged.from_arrow(pa.chunked_array([[[1], [2]], [[3], None]])),
        "the Arrow array has a null in row 3;",
    ),
    "null in a slice": (
        lambda: Ragged.from_arrow(pa.array([[1], [], [2, None]])[1:]),
        "the Arrow array has a null in row 1, entry 1;",
    ),
    "null frame": (
        lambda: Ragged.from_arrow(pa.ListArray.from_arrays([0, 0, 2], NULL_FRAME)),
        "the Arrow array has a null in row 1, entry 1;",
    ),
    "null feature": (
        lambda: Ragged.from_arrow(
            pa.array([[[1, 2]], [], [[1, 2], [3, 4], [5, None]]], pa.list_(pa.list_(pa.int8(), 2)))
        ),
        "the Arrow array has a null in row 2, entry 2;",
    ),
    "null sentence": (
        lambda: Ragged.from_arrow(pa.array([[[1], []], [[2], None]])),
        "the Arrow array has a null in row 1, entry 1;",
    ),
    "null word": (
        lambda: Ragged.from_arrow(pa.array([[[1], []], [[2], [3, None]]])),
        "the Arrow array has a null in row 1, entry 1, entry 1;",
    ),
    "damaged": (lambda: Ragged.from_arrow(DAMAGED), "the Arrow array is damaged: "),
    "damaged chunk": (
        lambda: Ragged.from_arrow(pa.chunked_array([DAMAGED, DAMAGED])),
        "the Arrow array is damaged: ",
    ),
    "complex": (
        lambda: small().with_values(np.zeros(6, complex)).to_arrow(),
        "Arrow has no complex128; convert the values first, with_values(...)",
    ),
    "bfloat16": (
        lambda: small().with_values(np.zeros(6, ml_dtypes.bfloat16)).to_arrow(),
        "Arrow has no bfloat16",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD_ARROW.values(), ids=BAD_ARROW)
def test_bad_arrow_arrays_are_refused(make: Callable[[], Any], words: str) -> None:
    with refuses(words):
        make()


def test_nulls_outside_a_slice_do_not_matter() -> None:
    array = pa.array([None, [None], [1.0, 2.0], [None]])[2:3]
    assert_equal(Ragged.from_arrow(array), Ragged.from_list([[1.0, 2.0]]))


# Packed


@pytest.mark.long(examples=15)
@every
@given(raggeds(shortest=1, fewest=1), st.booleans(), st.booleans())
def test_packed_as_torch_packs(ragged: Ragged, enforce_sorted: bool, time_major: bool) -> None:
    if enforce_sorted:
        ragged = ragged.take(np.argsort(-ragged.lengths, kind="stable"))
    padded, lengths = ragged.to_padded(time_major)
    tensor = torch.from_numpy(padded)
    theirs = pack_padded_sequence(
        tensor, torch.from_numpy(lengths), batch_first=not time_major, enforce_sorted=enforce_sorted
    )
    assert_equal(Ragged.from_packed(theirs), ragged)
    ours = ragged.to_packed(enforce_sorted)
    assert ours.batch_sizes.tolist() == theirs.batch_sizes.tolist()
    assert (ours.sorted_indices is None) == enforce_sorted == (ours.unsorted_indices is None)
    unpacked, unpacked_lengths = pad_packed_sequence(ours, batch_first=not time_major)
    np.testing.assert_array_equal(unpacked.numpy(), padded)
    assert unpacked_lengths.tolist() == lengths.tolist()
    assert_equal(Ragged.from_packed(ours), ragged)
    assert not np.shares_memory(ours.data.numpy(), ragged.values)


def test_packed_runs_in_a_torch_layer() -> None:
    ragged = Ragged.from_list([np.full((steps, 2), steps, np.float32) for steps in (1, 4, 2)])
    layer = torch.nn.GRU(2, 3)
    outputs = Ragged.from_packed(layer(ragged.to_packed())[0])
    for sequence, output in zip(ragged, outputs, strict=True):
        alone = layer(torch.from_numpy(sequence))[0].detach().numpy()
        np.testing.assert_allclose(output, alone, atol=1e-6)


def packed(data: Any, sizes: list[int], unsorted: list[int] | None = None) -> PackedSequence:
    indices = None if unsorted is None else torch.tensor(unsorted)
    return PackedSequence(torch.as_tensor(data), torch.tensor(sizes, dtype=torch.int64), indices, indices)


BAD_PACKED = {
    "a tensor": (
        lambda: Ragged.from_packed(torch.zeros(2)),
        "from_packed takes a torch PackedSequence, not a Tensor",
    ),
    "rising sizes": (
        lambda: Ragged.from_packed(packed(torch.zeros(3), [1, 2])),
        "the PackedSequence is damaged: batch_sizes",
    ),
    "zero size": (
        lambda: Ragged.from_packed(packed(torch.zeros(3), [3, 0])),
        "the PackedSequence is damaged: batch_sizes",
    ),
    "wrong sum": (
        lambda: Ragged.from_packed(packed(torch.zeros(4), [2, 1])),
        "the PackedSequence is damaged: batch_sizes",
    ),
    "wrong order": (
        lambda: Ragged.from_packed(packed(torch.zeros(3), [2, 1], [0, 2])),
        "the PackedSequence is damaged: unsorted_indices is no order of its 2 sequences",
    ),
    "empty sequence": (
        lambda: small().to_packed(),
        "sequence 1 is empty, and a torch PackedSequence cannot hold it",
    ),
    "empty batch": (
        lambda: Ragged.from_list([], features=1).to_packed(),
        "a torch PackedSequence holds one sequence or more",
    ),
    "unsorted": (
        lambda: small().take([0, 2, 3]).to_packed(enforce_sorted=True),
        "sequence 2 is longer than the sequence before it; pass enforce_sorted=False, or sort them",
    ),
    "two levels": (
        lambda: small().group([4]).to_packed(),
        "to_packed takes sequences of one level, and these have 2",
    ),
    "dtype": (
        lambda: Ragged(np.zeros(2, ml_dtypes.int4), (np.array([0, 2]),)).to_packed(),
        "torch has no int4; convert the values first",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD_PACKED.values(), ids=BAD_PACKED)
def test_bad_packed_sequences_are_refused(make: Callable[[], Any], words: str) -> None:
    with refuses(words):
        make()


def test_packed_nothing() -> None:
    assert (
        repr(Ragged.from_packed(packed(torch.zeros(0, 2), []))) == "Ragged(0 sequences, 2 features, float32)"
    )


# Nested


@pytest.mark.long(examples=15)
@every
@given(raggeds())
def test_nested_round_trip(ragged: Ragged) -> None:
    nested = ragged.to_nested()
    assert nested.is_nested
    assert nested.layout == torch.jagged
    assert len(nested) == len(ragged)
    assert nested.values().shape == ragged.values.shape
    back = Ragged.from_nested(nested)
    assert_equal(back, ragged)
    if ragged.values.size:
        writeable = ragged.values.flags.c_contiguous and ragged.values.flags.writeable
        assert np.shares_memory(nested.values().numpy(), ragged.values) == writeable
        assert np.shares_memory(back.values, nested.values().numpy())


@pytest.mark.long(examples=15)
@every
@given(raggeds(fewest=1))
def test_nested_as_torch_nests(ragged: Ragged) -> None:
    theirs = torch.nested.nested_tensor(
        [torch.from_numpy(each.copy()) for each in ragged.to_list()], layout=torch.jagged
    )
    assert_equal(Ragged.from_nested(theirs), ragged)
    for one, other in zip(theirs.unbind(), ragged.to_nested().unbind(), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def jagged(values: Any, offsets: list[int], lengths: list[int] | None = None) -> Any:
    return torch.nested.nested_tensor_from_jagged(
        values, torch.tensor(offsets), None if lengths is None else torch.tensor(lengths)
    )


def test_nested_with_holes() -> None:
    values = torch.arange(14.0).reshape(7, 2)
    ragged = Ragged.from_nested(jagged(values, [0, 2, 4, 7], [1, 2, 0]))
    assert [sequence.tolist() for sequence in ragged.to_list()] == [[[0, 1]], [[4, 5], [6, 7]], []]
    full = Ragged.from_nested(jagged(values, [0, 2, 4, 7], [2, 2, 3]))
    assert np.shares_memory(full.values, values.numpy())
    assert full.lengths.tolist() == [2, 2, 3]
    narrowed = torch.nested.narrow(
        torch.arange(12.0).reshape(3, 4),
        1,
        torch.tensor([0, 1, 2]),
        torch.tensor([2, 0, 2]),
        layout=torch.jagged,
    )
    assert [sequence.tolist() for sequence in Ragged.from_nested(narrowed).to_list()] == [
        [0, 1],
        [],
        [10, 11],
    ]


def test_nested_from_later_values_on() -> None:
    values = torch.arange(7.0)
    ragged = Ragged.from_nested(jagged(values, [2, 4, 6]))
    assert_equal(ragged, Ragged.from_list([[2, 3], [4, 5]], np.float32))
    assert np.shares_memory(ragged.values, values.numpy())


def test_gradients_and_bfloat16_of_tensors() -> None:
    values = torch.arange(6.0, requires_grad=True).reshape(3, 2)
    assert Ragged.from_nested(jagged(values, [0, 1, 3])).values.tolist() == [[0, 1], [2, 3], [4, 5]]
    ragged = Ragged.from_nested(jagged(values.to(torch.bfloat16), [0, 1, 3]))
    assert ragged.dtype == ml_dtypes.bfloat16
    assert ragged.to_nested().values().dtype == torch.bfloat16
    assert_equal(Ragged.from_packed(ragged.to_packed()), ragged)


BAD_NESTED = {
    "an array": (
        lambda: Ragged.from_nested(np.zeros(2)),
        "from_nested takes a nested tensor made with layout=torch.jagged, not a ndarray",
    ),
    "dense": (
        lambda: Ragged.from_nested(torch.zeros(2, 3)),
        "from_nested takes a nested tensor made with layout=torch.jagged, not a torch.strided",
    ),
    "transposed": (
        lambda: Ragged.from_nested(jagged(torch.zeros(3, 4), [0, 1, 3]).transpose(1, 2)),
        "the nested tensor is (2, 4, ",
    ),
    "falling": (
        lambda: Ragged.from_nested(jagged(torch.zeros(3, 4), [0, 3, 1, 3])),
        "offsets[0] falls from 3 to 1 at entry 1",
    ),
    "beyond": (
        lambda: Ragged.from_nested(jagged(torch.zeros(3, 4), [0, 1, 5])),
        "offsets[0] ends at 5, and must end at 3",
    ),
    "holes beyond": (
        lambda: Ragged.from_nested(jagged(torch.zeros(3, 4), [0, 2, 3], [1, 2])),
        "the nested tensor is damaged: its lengths or offsets go beyond its 3 values",
    ),
    "negative hole": (
        lambda: Ragged.from_nested(jagged(torch.zeros(3, 4), [0, 2, 3], [-1, 1])),
        "the nested tensor is damaged: its lengths or offsets go beyond its 3 values",
    ),
    "two levels": (
        lambda: small().group([4]).to_nested(),
        "to_nested takes sequences of one level, and these have 2",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD_NESTED.values(), ids=BAD_NESTED)
def test_bad_nested_tensors_are_refused(make: Callable[[], Any], words: str) -> None:
    with refuses(words):
        make()


# Without the other libraries


@pytest.mark.parametrize(
    ("library", "words"),
    [("torch", 'pip install "stepnet[torch]"'), ("pyarrow", 'pip install "stepnet[arrow]"')],
)
def test_missing_libraries_are_named(library: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    calls = {
        "torch": [
            small().to_packed,
            small().to_nested,
            lambda: Ragged.from_packed(1),
            lambda: Ragged.from_nested(1),
        ],
        "pyarrow": [small().to_arrow, lambda: Ragged.from_arrow(1)],
    }
    for call in calls[library]:
        with pytest.raises(InputError, match=re.escape(words)):
            call()


def test_import_brings_in_no_other_library() -> None:
    code = "import sys, stepnet.ragged; sys.exit(int('torch' in sys.modules or 'pyarrow' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
