"""Random numbers that belong to a sequence and a step, and dropout masks made of them."""

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from constants import Constants
from hypothesis import given

import stepnet as sn
from stepnet import masks
from stepnet.errors import InputError
from stepnet.model.masks import number_in_step, numbers_at, philox

Array = np.ndarray
LIKE = sn.Ragged.from_list([np.zeros((length, 2)) for length in (3, 0, 1, 4)])

# The vectors of Random123, the library of the paper's authors: tests/kat_vectors, `philox4x32 10`.
KNOWN = [
    ("00000000 00000000 00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("given_", "expected"), KNOWN)
def test_generator_is_philox(given_: str, expected: str) -> None:
    words = [int(word, 16) for word in given_.split()]
    counter = tuple(np.array([word], np.uint64) for word in words[:4])
    found = philox(counter, (words[4], words[5]))
    assert [f"{int(word[0]):08x}" for word in found] == expected.split()


def test_numbers_are_words_of_the_generator_at_seed_identity_step_and_feature() -> None:
    seed, identity, before = 2**32 + 7, 2**32 + 3, 5
    found = masks.uniform([1], 5, seed=seed, per="step", identities=[identity], before=before).values[0]
    for feature in range(5):
        counter = tuple(np.array([word], np.uint64) for word in (feature // 2, before, 3, 1))
        words = [int(word[0]) for word in philox(counter, (7, 1))]
        upper, lower = words[2 * (feature % 2) : 2 * (feature % 2) + 2]
        assert found[feature] == ((upper >> 5) * 2**26 + (lower >> 6)) / 2**53


def test_numbers_in_a_step_have_the_bits_of_those_of_arrays() -> None:
    """On every engine; also of seeds and identities that int64 has as negative numbers."""
    words = [0, 1, 2**31, 2**32 + 7, 2**63 - 1, 2**63, 2**64 - 1]
    pairs = [(seed, identity) for seed in words for identity in words]
    steps = np.arange(len(pairs)) * 2**26

    def step(x: Any, before: Any, _: Any, statics: Any) -> Any:
        return number_in_step(statics[:, 0], statics[:, 1], before), before + x

    integer = sn.Spec((), "int64")
    rnn = sn.RNN(step, memory=integer, inputs=integer, statics=sn.Spec(2, "int64"))
    statics = np.array(pairs, np.uint64).view(np.int64)
    expected = [
        numbers_at(seed, np.array([identity], np.uint64), steps[place : place + 1])[0]
        for place, (seed, identity) in enumerate(pairs)
    ]
    inputs = np.zeros((len(pairs), 1), np.int64)
    for engine in ("interpret", "llvm", "cuda-emulated"):
        found, _ = rnn(inputs, steps, statics=statics, engine=engine)
        assert found[:, 0].tolist() == expected, engine


@pytest.mark.long(examples=15)
@given(
    st.lists(st.integers(0, 5), max_size=5),
    st.sampled_from([(), 3, (2, 3)]),
    st.integers(0, 2**64 - 1),
    st.data(),
)
def test_numbers_of_a_sequence_are_its_own(
    lengths: list[int], features: Any, seed: int, data: st.DataObject
) -> None:
    """Whatever else is in the batch, in whatever order, and however it is cut."""
    whole = masks.uniform(lengths, features, seed=seed, per="step")
    once = masks.uniform(lengths, features, seed=seed)
    order = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(0, len(lengths)))]
    cuts = [data.draw(st.integers(0, lengths[place])) for place in order]
    stops = [data.draw(st.integers(cut, lengths[place])) for place, cut in zip(order, cuts, strict=True)]
    parts = masks.uniform(
        [stop - cut for cut, stop in zip(cuts, stops, strict=True)],
        features,
        seed=seed,
        per="step",
        identities=np.array(order, np.int64),
        before=np.array(cuts, np.int64),
    )
    for place, part, cut, stop in zip(order, parts, cuts, stops, strict=True):
        assert part.tobytes() == whole[place][cut:stop].tobytes()
    again = masks.uniform(stops, features, seed=seed, identities=np.array(order, np.int64))
    assert again.tobytes() == once[list(order)].tobytes()


def test_how_many_are_worked_on_together_changes_nothing(constants: Constants) -> None:
    whole = masks.uniform([3, 700], 33, seed=9, per="step").values
    for together in (1, 100):
        constants(masks, IN_CACHE=together)
        assert masks.uniform([3, 700], 33, seed=9, per="step").values.tobytes() == whole.tobytes()


def test_all_numbers_differ() -> None:
    """The numbers of other seeds, sequences, steps and features, and those of a whole sequence."""
    found = [masks.uniform([9] * 4, 5, seed=seed, per="step").values for seed in (0, 1, 2**32)]
    found += [masks.uniform([9] * 4, 5, seed=seed) for seed in (0, 1, 2**32)]
    numbers = np.concatenate([one.ravel() for one in found])
    assert len(set(numbers.tolist())) == len(numbers) == 3 * (9 * 4 * 5 + 4 * 5)


def test_numbers_are_spread_evenly_and_follow_no_pattern() -> None:
    """Means, variances and correlations of neighbours are within five of their standard deviations."""
    numbers = masks.uniform([100] * 50, 40, seed=3, per="step").values.reshape(50, 100, 40)
    count = numbers.size
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 5 * np.sqrt(1 / 12 / count)
    away = (numbers - 0.5) * np.sqrt(12)
    assert abs((away**2).mean() - 1) < 5 * np.sqrt(0.8 / count)
    for axis in range(3):
        pairs = np.moveaxis(away, axis, 0)
        assert abs((pairs[1:] * pairs[:-1]).mean()) < 5 / np.sqrt(pairs[1:].size)


# ---- dropout


@pytest.mark.long(each=True)
@pytest.mark.parametrize("rate", [0, 0.1, 0.5, 0.75, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mask_drops_its_rate_and_scales_the_rest(rate: float, dtype: str) -> None:
    mask = masks.dropout(rate, [100] * 10, 20, seed=5, per="step", dtype=dtype).values
    assert mask.dtype == dtype
    kept = np.asarray(0 if rate == 1 else 1 / (1 - rate), dtype)
    assert set(np.unique(mask).tolist()) == ({float(kept)} if rate in (0, 1) else {0.0, float(kept)})
    dropped = (mask == 0).mean()
    assert abs(dropped - rate) <= 5 * np.sqrt(rate * (1 - rate) / mask.size)
    numbers = masks.uniform([100] * 10, 20, seed=5, per="step").values
    np.testing.assert_array_equal(mask == 0, (numbers < rate))


def test_masks_per_sequence_and_per_step() -> None:
    per_step = masks.dropout(0.5, LIKE, (2, 3), seed=1, per="step")
    assert (per_step.lengths.tolist(), per_step.features) == ([3, 0, 1, 4], (2, 3))
    per_sequence = masks.dropout(0.5, LIKE, (2, 3), seed=1)
    assert per_sequence.shape == (4, 2, 3)
    np.testing.assert_array_equal(masks.dropout(0.5, [3, 0, 1, 4], (2, 3), seed=1), per_sequence)
    np.testing.assert_array_equal(
        masks.dropout(0.5, [3, 0, 1, 4], (2, 3), seed=1, per="step").values, per_step.values
    )


def test_masks_enter_a_recurrence_as_input_and_as_static(engine: str) -> None:
    """Dropout of the inputs, anew at every step, and of the memory, one mask for a whole sequence."""

    def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
        h = (x["x"] * x["mask"]).sum(axis=-1, keepdims=True) + 0.5 * h * statics
        return h, h

    x = LIKE.with_values(np.random.default_rng(0).uniform(-1, 1, (8, 2)))
    mask = masks.dropout(0.5, x, 2, seed=1, per="step", dtype="float64")
    still = masks.dropout(0.25, x, 3, seed=2, dtype="float64")
    outputs, _ = sn.RNN(step, memory=3)({"x": x, "mask": mask}, statics=still, engine=engine)
    for place in range(4):
        h = np.zeros(3)
        for at in range(len(x[place])):
            h = (x[place][at] * mask[place][at]).sum() + 0.5 * h * still[place]
            np.testing.assert_allclose(outputs[place][at], h, rtol=0, atol=1e-15)


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, "a dropout rate is from 0 to 1, not 1.5"),
        ({"rate": float("nan")}, "a dropout rate is from 0 to 1, not nan"),
        ({"per": "batch"}, "per is 'sequence' or 'step', not 'batch'"),
        ({"seed": -1}, "a seed is a whole number from 0 to 2**64 - 1, not -1"),
        ({"seed": 2**64}, "a seed is a whole number from 0 to 2**64 - 1, not 18446744073709551616"),
        ({"seed": 0.5}, "a seed is a whole number from 0 to 2**64 - 1, not 0.5"),
        ({"like": [1.5]}, "like is whole numbers, one per sequence, not float64[1]"),
        ({"like": [3, -1]}, "like[1] is -1, and must not be negative"),
        ({"like": 3}, "like is whole numbers, one per sequence, not int64[]"),
        ({"identities": [1]}, "identities is 4 whole numbers, one per sequence, not int64[1]"),
        ({"identities": [1, 2, -3, 4]}, "identities[2] is -3, and must not be negative"),
        ({"before": [1, 2], "per": "step"}, "before is 4 whole numbers, one per sequence, not int64[2]"),
        ({"before": -1, "per": "step"}, "before[0] is -1, and must not be negative"),
        ({"features": -1}, "a feature shape is made of whole numbers, not -1"),
        ({"dtype": "complex64"}, "a dropout mask has dtype complex64"),
    ],
)
def test_masks_that_cannot_be_drawn(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        masks.dropout(**{"rate": 0.5, "like": LIKE, "features": 2, "seed": 1} | options)
