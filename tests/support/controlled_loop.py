"""Masked steps and sequences that end early as a plain loop with ifs: what is right."""

from collections.abc import Callable
from typing import Any

import numpy as np
from random_steps import wide
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves, transform

Array = np.ndarray


def right(
    function: Callable[..., Any],
    params: Any,
    inputs: Any,
    initial: Any,
    statics: Any,
    mask: sn.Ragged | None = None,
    masked: str = "repeat",
    until: Callable[[Any, Any], Any] | None = None,
    reverse: bool = False,
) -> tuple[list[list[Any]], list[Any]]:
    """Per sequence the outputs of its steps in the order of the input, and its last memory, by a loop."""
    outputs, finals = [], []
    for place, length in enumerate(leaves(inputs)[0].lengths.tolist()):

        def row(array: Any, place: int = place) -> Any:
            return wide(array[place : place + 1])

        memory, still = transform(row, initial), transform(row, statics)
        shown, previous = [], None
        for count in range(length):
            at = length - 1 - count if reverse else count
            x = transform(lambda ragged, at=at, place=place: wide(ragged[place][at : at + 1]), inputs)
            output, after = function(x, memory, params, statics=still, index=np.array([count]))
            counts = mask is None or bool(mask[place][at])
            if not counts:
                repeated = previous is not None and masked == "repeat"
                output = previous if repeated else transform(np.zeros_like, output)
            memory, previous = (after, output) if counts else (memory, output)
            shown.append(output)
            if until is not None and counts and until(output, after).all():
                break
        outputs.append(shown[::-1] if reverse else shown)
        finals.append(memory)
    return outputs, finals


def assert_right(
    found: tuple[Any, Any],
    wanted: tuple[list[list[Any]], list[Any]],
    shortened: bool,
    longest: int = 9,
    width: int = 16,
) -> None:
    """Asserts that Raggeds and last memories are what a loop gave. longest: the steps of a sequence at most.
    width: the features that a product adds up at most.
    """
    (outputs, final), (expected, finals) = found, wanted
    for place, steps in enumerate(expected):
        for leaf, output in enumerate(leaves(outputs)):
            assert len(output) == len(expected)
            assert len(output[place]) == len(steps), "the sequence ends elsewhere" if shortened else ""
            for at, one in enumerate(steps):
                assert_close(output[place][at], leaves(one)[leaf][0], longest, width)
        for actual, one in zip(leaves(final), leaves(finals[place]), strict=True):
            assert_close(actual[place], one[0], longest, width)
