"""Calls from many threads of Python at once: the bits of calls one after the other, whatever threads do."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import stepnet as sn
from stepnet import cells

pytestmark = pytest.mark.usefixtures("small_calls_are_shared")

CALLERS, CALLS = 8, 6
SIZES = ((1, 40, 128), (3, 40, 64), (4, 30, 128), (6, 50, 64))
"""Rows, steps and units of calls that threads share by rows, and by units."""


def recurrences(same: bool) -> list[sn.RNN]:
    """A recurrence for each caller."""
    made = [
        cells.rnn("gru", cells.CELLS["gru"].parameters(16, SIZES[place % 4][2], seed=place))
        for place in range(1 if same else CALLERS)
    ]
    return made * (CALLERS if same else 1)


@pytest.mark.parametrize("same", [True, False], ids=["one recurrence", "a recurrence each"])
def test_calls_of_many_threads_give_the_bits_of_one(same: bool):
    rnns = recurrences(same)
    random = np.random.default_rng(0)
    batches = [random.normal(size=(*SIZES[place % 4][:2], 16)).astype("f4") for place in range(CALLERS)]
    sn.set_threads(1)
    expected = [rnn(x) for rnn, x in zip(rnns, batches, strict=True)]
    sn.set_threads(2)

    def calls(place: int) -> int:
        """The number of calls of a thread with right results."""
        right = 0
        for _ in range(CALLS):
            found = rnns[place](batches[place])
            pairs = zip(found, expected[place], strict=True)
            right += all(np.array_equal(one, other) for one, other in pairs)
        return right

    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            assert list(pool.map(calls, range(CALLERS))) == [CALLS] * CALLERS
    finally:
        sn.set_threads(None)
