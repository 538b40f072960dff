"""Kernels of `stepnet tune`: exchanges between two threads, and reads of far memory."""

import pytest

from stepnet.compiler.targets.cpu import ExchangeRates, FarReads, Rounds, host_processor


def test_each_round_reads_what_was_written_in_it():
    """By the other thread, or by the only one that was in time: 3 lines with the number of the round."""
    sums = [Rounds(host_processor(), rounds, lines=3).run() for rounds in (1, 2, 4, 7)]
    assert sums == [0, 3, 9, 18]
    assert Rounds(host_processor(), 7, lines=3, max_threads=1).run() == 18


def test_the_costs_of_threads_are_differences_of_times():
    found = ExchangeRates.of(1e-6, 3e-6, 43e-6, 295e-6)
    assert found is not None
    assert vars(found) == pytest.approx({"handover": 2e-6, "barrier": 0.2e-6, "exchange": 64 / 20e-9})


@pytest.mark.parametrize(
    "times",
    [
        (1e-6, 2e-6, 42e-6, float("inf")),
        (1e-6, *(float("inf"),) * 3),
        (1e-6, 2e-6, 42e-6, 40e-6),
        (3e-6, 2e-6, 42e-6, 290e-6),
    ],
)
def test_times_of_late_threads_tell_nothing(times: tuple[float, float, float, float]):
    assert ExchangeRates.of(*times) is None


@pytest.mark.parametrize(("held", "cache"), [(2**25, 2**26), (2**24, 2**25), (2**28, 2**26)])
def test_the_last_cache_is_as_large_as_what_is_read_fast(held: int, cache: int):
    """It is never larger than the system says, here 64 MB."""
    rates = {2**power: 30e9 if 2**power <= held else 13e9 for power in range(23, 29)}
    assert FarReads.of(rates, 2**26) == FarReads(cache, 30e9, rates[2**28])
