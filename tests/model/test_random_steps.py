"""Random steps in every way in which a recurrence is run: a few that stay the same, or thousands of new ones.

`make test-long` runs 10,000 and prints their seed. To see some of them again:

    make test-long ARGS='--seed 1234'                                all of them
    make test-long ARGS='--seed 1234 -k nested-003'                  one batch, as a failure names it
    make test-long ARGS='--steps 2000 -k random_steps'               fewer
"""

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_ways import WAYS

pytestmark = pytest.mark.usefixtures("small_calls_are_shared")

SLOW = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]
FEW = {
    "flat": 3,
    "unrolled": 1,
    "streamed": 8,
    "framed": 8,
    "encoded": 6,
    "controlled": 8,
    "nested": 2,
    "generated": 3,
    "layered": 2,
    "totalled": 2,
    "stored": 1,
    "differentiated": 1,
    "decaying": 2,
}
BATCH = 50
assert FEW.keys() == WAYS.keys()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One batch of each way; with --long as many as there are steps asked for."""
    options = metafunc.config.option
    batches = -(-options.steps // (BATCH * len(WAYS))) if options.long else 1
    names = [(way, batch) for batch in range(batches) for way in WAYS]
    metafunc.parametrize(("way", "batch"), names, ids=[f"{way}-{batch:03}" for way, batch in names])


@pytest.mark.long
def test_random_steps(way: str, batch: int, pytestconfig: pytest.Config) -> None:
    options, ran = pytestconfig.option, list[int]()
    count, beginning = (BATCH, options.seed) if options.long else (FEW[way], 0)

    # Each attempt to shrink is compiled, so that is left to nights.
    @seed(f"{beginning} {way} {batch}")
    @settings(
        max_examples=count,
        derandomize=False,
        database=None,
        phases=[Phase.generate, Phase.shrink] if options.long else [Phase.generate],
        suppress_health_check=SLOW,
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ran.append(batch)
        WAYS[way](data)

    check()
    assert len(ran) >= count
