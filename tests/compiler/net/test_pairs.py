"""The types of values at pairs of steps, and of the operations between these and steps."""

from typing import Any

import numpy as np
import pytest

from stepnet.compiler.net import ROWS, STEPS, Builder, Extent, LevelSizes, Type
from stepnet.errors import NetError
from stepnet.ragged import offsets_of

PAIRS: Extent = ("rows", "steps", "steps*")
CAUSAL: Extent = ("rows", "steps", "steps<")
KEYS: Extent = ("rows", "keys")


def type_of(operation: str, *types: Type, **attributes: Any) -> Type:
    builder = Builder()
    inputs = [builder.input(type_, f"x{place}") for place, type_ in enumerate(types)]
    return builder.type_of(builder.add(operation, *inputs, **attributes))


def at(extent: Extent, *shape: int, dtype: str = "float32") -> Type:
    return Type(extent, shape, dtype)


def test_values_at_pairs():
    assert type_of("scores", at(STEPS, 2, 3), at(STEPS, 2, 3), causal=False) == at(PAIRS, 2)
    assert type_of("scores", at(STEPS, 3), at(STEPS, 3), causal=True) == at(CAUSAL)
    assert type_of("scores", at(STEPS, 3), at(KEYS, 3), causal=False) == at(("rows", "steps", "keys*"))
    assert type_of("mix", at(PAIRS, 2), at(STEPS, 2, 3), over="keys") == at(STEPS, 2, 3)
    other = ("rows", "steps", "keys<")
    assert type_of("mix", at(other, 2), at(STEPS, 2, 3), over="queries") == at(KEYS, 2, 3)


def test_operands_that_do_not_fit():
    def refused(operation: str, *types: Type, **attributes: Any) -> str:
        with pytest.raises(NetError) as raised:
            type_of(operation, *types, **attributes)
        return str(raised.value)

    assert "pairs are of the steps of two sequences of each row" in refused(
        "scores", at(ROWS, 3), at(STEPS, 3), causal=False
    )
    for key in (at(STEPS, 4), at(STEPS, 3, dtype="float64")):
        assert "have the same features, of floats" in refused("scores", at(STEPS, 3), key, causal=False)
    assert "have the same features, of floats" in refused("scores", at(STEPS), at(STEPS), causal=False)
    assert "sums weights at pairs over one of keys, queries, not" in refused(
        "mix", at(PAIRS), at(STEPS, 3), over="steps"
    )
    assert "sums weights at pairs over" in refused("mix", at(STEPS), at(STEPS, 3), over="keys")
    assert "go with values at rows/steps, an axis more, not rows/keys f32[3]" in refused(
        "mix", at(PAIRS), at(KEYS, 3), over="keys"
    )
    assert "floats of one dtype" in refused("mix", at(PAIRS), at(STEPS, 3, dtype="float64"), over="keys")


def test_lengths_of_pairs():
    steps, keys = offsets_of(np.array([2, 0, 1])), offsets_of(np.array([3, 2, 0]))
    sizes = LevelSizes(3, (steps,), beside={"keys": keys})
    assert np.diff(sizes.into(PAIRS)).tolist() == [2, 2, 1]
    assert np.diff(sizes.into(CAUSAL)).tolist() == [1, 2, 1]
    assert np.diff(sizes.into(("rows", "steps", "keys*"))).tolist() == [3, 3, 0]
    assert sizes.count(("rows", "steps", "keys<")) == 1 + 2 + 0
