"""Unrolled loops give the same bits; the code of a loop that is not unrolled does not grow with time."""

from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets import engine_named
from stepnet.errors import InputError


@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_that_are_no_multiples(reverse: bool):
    params = cells.CELLS["lstm"].parameters(inputs=3, hidden=20)
    random = np.random.default_rng(0)
    lengths = [0, 1, 3, 4, 5, 300]
    given = sn.Ragged.from_list([random.normal(size=(n, 3)).astype("float32") for n in lengths])
    memory = {"h": 20, "c": 20}
    right, last = sn.RNN(cells.lstm, params, memory=memory, reverse=reverse)(given)
    found, final = sn.RNN(cells.lstm, params, memory=memory, reverse=reverse, unroll=4)(given)
    np.testing.assert_array_equal(found.values, right.values)
    np.testing.assert_array_equal(final["c"], last["c"])


def kernel(unroll: int, steps: int) -> Any:
    """The kernel compiled to run sequences of so many steps."""
    params = cells.CELLS["gru"].parameters(inputs=3, hidden=16)
    rnn = sn.RNN(cells.gru, params, memory=16, unroll=unroll)
    rnn(np.zeros((1, steps, 3), "float32"))
    return engine_named("llvm").compile(rnn.schedule)


def test_the_code_is_as_long_as_it_is_unrolled_whatever_the_time():
    assert kernel(1, 10).compiled is kernel(1, 10_000).compiled
    lengths = [kernel(unroll, 10).compiled.code.bytes for unroll in (1, 2, 4)]
    assert lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize("unroll", [0, -1, 65, 1.5, "2", True])
def test_what_is_no_number_of_steps(unroll: Any):
    with pytest.raises(InputError, match="unroll is a number of steps from 1 to 64, not"):
        sn.RNN(cells.gru, None, memory=4, unroll=unroll)
