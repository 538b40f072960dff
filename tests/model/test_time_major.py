"""Arrays [time, batch, features...]: read and written where they lie, with the bits of [batch, time, ...]."""

from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from zoo import normal, rnn_of

import stepnet as sn
from stepnet import cells
from stepnet.compiler.values import leaves, transform
from stepnet.errors import InputError

Array = np.ndarray
GRU = cells.CELLS["gru"]


def gru(inputs: int = 3, seed: int = 0, **options: Any) -> sn.RNN:
    return rnn_of("gru", inputs, 5, seed=seed, **options)


def turned(array: Any) -> Any:
    """Batch and time the other way round, laid out anew."""
    return np.ascontiguousarray(np.swapaxes(array, 0, 1))


numbers = partial(normal, seed=0)


def both_ways() -> sn.Stack:
    return sn.Stack([sn.Bidirectional(gru(), gru(seed=1, reverse=True)), gru(10, 2)])


LAYERS: dict[str, Any] = {
    "gru": gru(),
    "reverse": gru(reverse=True),
    "layers": both_ways(),
    "directions": sn.Bidirectional(gru(), gru(seed=1, reverse=True), merge=None),
}


def assert_turned(layer: Any, x: Array, last_only: bool = False, mask: Any = None, **options: Any) -> None:
    """A call of [time, batch, ...] gives what one of [batch, time, ...] gives, turned, bit for bit."""
    outputs, final = layer(x, last_only=last_only, mask=mask, **options)
    mine, last = layer(
        turned(x),
        last_only=last_only,
        mask=None if mask is None else turned(mask),
        time_major=True,
        **options,
    )
    for one, other in zip(leaves(mine), leaves(outputs), strict=True):
        np.testing.assert_array_equal(one, other if last_only else turned(other), strict=True)
    for one, other in zip(leaves(last), leaves(final), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.long(examples=4)
@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=12)
@given(
    data=st.data(),
    engine=st.sampled_from(["llvm", "interpret"]),
    last_only=st.booleans(),
    masked=st.booleans(),
)
def test_the_bits_are_those_of_the_batch_first(
    name: str, data: st.DataObject, engine: str, last_only: bool, masked: bool
) -> None:
    batch, time = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 7))
    lengths = data.draw(st.none() | st.lists(st.integers(0, time), min_size=batch, max_size=batch))
    mask = np.random.default_rng(1).random((batch, time)) < 0.7 if masked else None
    assert_turned(LAYERS[name], numbers(batch, time, 3), last_only, mask, lengths=lengths, engine=engine)


@pytest.mark.parametrize("name", LAYERS)
def test_calls_of_a_shape_that_was_seen(name: str) -> None:
    layer = LAYERS[name]
    for seed in range(4):
        assert_turned(layer, numbers(4, 6, 3, seed=seed))
        assert_turned(layer, numbers(6, 4, 3, seed=seed))
        assert_turned(layer, numbers(4, 4, 3, seed=seed), last_only=True)


def test_a_structure_of_inputs_and_an_end(engine: str) -> None:
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = h + x["a"] * x["b"]
        return h, h

    x = {"a": numbers(3, 9, 2), "b": numbers(3, 9, 2, seed=1)}
    rnn = sn.RNN(step, memory=2, until=lambda output, memory: output[:, 0] > 1.5)
    outputs, final = rnn(x, engine=engine)
    mine, last = rnn(transform(turned, x), time_major=True, engine=engine)
    assert mine.equal(outputs)
    np.testing.assert_array_equal(last, final)


def test_statics_that_are_sequences(engine: str) -> None:
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(x + h + sn.reduce(statics * sn.expand(h, statics), "sum"))
        return h, h

    keys = sn.Ragged.from_list([numbers(n, 3, seed=n) for n in (2, 0, 4)])
    rnn, x = sn.RNN(step, memory=3), numbers(3, 5, 3)
    for lengths in (None, [5, 2, 0]):
        outputs, final = rnn(x, statics=keys, lengths=lengths, engine=engine)
        mine, last = rnn(turned(x), statics=keys, lengths=lengths, engine=engine, time_major=True)
        np.testing.assert_array_equal(mine, turned(outputs))
        np.testing.assert_array_equal(last, final)


def test_the_named_values_of_every_step() -> None:
    rnn, x = gru(), numbers(3, 4, 3)
    scopes = rnn.trace_steps(x, lengths=[4, 0, 2])
    mine = rnn.trace_steps(turned(x), lengths=[4, 0, 2], time_major=True)
    assert list(mine) == list(scopes)
    assert all(mine[name].equal(scopes[name]) for name in scopes)


def test_wrong_calls() -> None:
    rnn = gru()
    with pytest.raises(InputError, match=r"time_major is True or False, not 'yes'"):
        rnn(numbers(2, 3, 3), time_major="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"time_major=True is for arrays \[time, batch, feat.*a Ragged"):
        rnn(sn.Ragged.from_list([numbers(2, 3)]), time_major=True)
    with pytest.raises(InputError, match=r"an array \[time, batch, features\]; this one is \(3,\)"):
        rnn(numbers(3), time_major=True)
    with pytest.raises(InputError, match=r"lengths are 3 whole numbers, one per sequence, not int64\[2\]"):
        rnn(numbers(2, 3, 3), lengths=[1, 1], time_major=True)
    with pytest.raises(InputError, match=r"mask is bool\[3, 2\]; it should be bool\[2, 3\]"):
        rnn(numbers(2, 3, 3), mask=np.ones((3, 2), bool), time_major=True)
    deep = sn.Ragged.from_list([numbers(2, 3)]).group([1])
    nested = sn.RNN(lambda x, h, p: (rnn(x, initial="zeros", time_major=True)[0], h), memory=5)
    with pytest.raises(sn.StepnetError, match="time_major= are not for a recurrence inside a step"):
        nested(deep)
