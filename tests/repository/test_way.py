"""The way of a prepared call: it passes the files that docs/design/prepared_calls.md lists, in order."""

import re
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import stepnet as sn
import stepnet.torch
from stepnet import cells

PACKAGE = Path(sn.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "design" / "prepared_calls.md"
CALLS = 12
"""The number of calls of one form after which it is prepared, and some more."""


def files_of(call: Callable[[], Any]) -> list[str]:
    """The files of the package whose functions a prepared call enters, in the order of the first entry."""
    files = dict[str, None]()

    def enter(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files[str(path.relative_to(PACKAGE))] = None

    for _ in range(CALLS):
        call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(files)


def listed(heading: str) -> list[str]:
    """The files that the page lists under a heading."""
    (text,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE.read_text("utf-8"), flags=re.M | re.S
    )
    return re.findall(r"`([\w/]+\.py)`", text)


def gru() -> sn.RNN:
    random = np.random.default_rng(0)
    shapes = {"W": (3, 12), "R": (4, 12), "b": (12,), "d": (12,)}
    return cells.rnn("gru", {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()})


def ragged() -> sn.Ragged:
    return sn.Ragged.from_list([np.ones((steps, 3), "f4") for steps in (3, 1, 5)])


def of_recurrence() -> Callable[[], Any]:
    """Each call has other lengths, and every second one another number of sequences."""
    lengths = [[number, 2, 1, 5][: 3 + number % 2] for number in range(1, CALLS + 2)]
    rnn = gru()
    given = iter([sn.Ragged.from_list([np.ones((length, 3), "f4") for length in each]) for each in lengths])
    return lambda: rnn(next(given))


def of_padded() -> Callable[[], Any]:
    """Each call has other lengths and another size."""
    rnn, steps = gru(), count(2)
    return lambda: rnn(np.ones((3, 40 - (length := next(steps)), 3), "f4"), lengths=[length, 2, 1])


def of_gradient() -> Callable[[], Any]:
    run, sequences = sn.vjp(gru()), ragged()

    def call() -> None:
        (outputs, _), backward = run(sequences)
        backward(outputs)

    return call


def of_torch() -> Callable[[], Any]:
    layer, sequences = stepnet.torch.GRU(3, 4, batch_first=True), torch.ones(2, 5, 3)

    def call() -> None:
        with torch.no_grad():
            layer(sequences)

    return call


def of_packed() -> Callable[[], Any]:
    layer, steps = stepnet.torch.GRU(3, 4, batch_first=True), count(4)

    def call() -> None:
        sequences = [torch.ones(length, 3) for length in (next(steps), 3, 1)]
        with torch.no_grad():
            layer(torch.nn.utils.rnn.pack_sequence(sequences))

    return call


# The most files of each way.
WAYS = {
    "`rnn(ragged)`": (of_recurrence, 9),
    "`rnn(array, lengths=lengths)`": (of_padded, 8),
    "`sn.vjp`, forward and backward": (of_gradient, 10),
    "`stepnet.torch.GRU` without gradients": (of_torch, 12),
    "`stepnet.torch.GRU` of a `PackedSequence`": (of_packed, 13),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_passes_the_files_that_the_docs_list(way: str):
    make, most = WAYS[way]
    files = files_of(make())
    assert files == listed(way)
    assert len(files) <= most
