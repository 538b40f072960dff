"""Pools of processes: forked ones, which have what the parent compiled, and spawned ones, to which a
recurrence that has run is pickled.
"""

import multiprocessing

import numpy as np
from work import BATCHES, COUNT, EXPECTED, RNN, check


def outputs(place: int) -> np.ndarray:
    return RNN(BATCHES[place])[0]


def pickled(rnn, x: np.ndarray) -> np.ndarray:
    return rnn(x)[0]


if __name__ == "__main__":
    check(10)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        places = [number % len(BATCHES) for number in range(COUNT)]
        for place, found in zip(places, pool.map(outputs, places, chunksize=1), strict=True):
            np.testing.assert_array_equal(found, EXPECTED[place][0])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for found, (right, _) in zip(
            pool.starmap(pickled, [(RNN, x) for x in BATCHES]), EXPECTED, strict=True
        ):
            np.testing.assert_array_equal(found, right)
    check(10)
