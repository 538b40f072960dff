"""Gradients of decays of the functions that stand in for transformers', beside those of plain loops in
float32: for long sequences, weak and strong decays, and numbers of several sizes.
"""

import pytest
from random_decays import CASES, RULES, assert_as_near_as_a_loop

each = pytest.mark.parametrize("rule", RULES)


@pytest.mark.long(every=2)
@each
def test_gradients_are_as_near_as_those_of_a_loop(rule: str):
    cases = [("-8", 1.0), ("-0.1", 3.0), ("from -20 to 0", 1.0), ("seldom -20", 3.0)]
    steps = 512 if rule == "mlstm" else 1024  # its loop takes four times as long as those of the others
    assert_as_near_as_a_loop(RULES[rule], cases, steps, 4, 0)


@pytest.mark.long(every=12)
@pytest.mark.parametrize("steps", [300, 2048, 16384])
@each
def test_the_whole_table(rule: str, steps: int):
    assert_as_near_as_a_loop(RULES[rule], CASES, steps, 8, 1)
