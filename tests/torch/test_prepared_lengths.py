"""Modules on sequences of changing lengths: prepared calls, with the bits of a first call."""

from typing import Any

import numpy as np
import pytest
import torch
from same_bits import assert_same_bits
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import stepnet as sn
import stepnet.torch as st
from stepnet.errors import InputError

RANDOM = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture(autouse=True)
def one_thread(same_threads: None) -> None:
    sn.set_threads(1)


def lstm() -> Any:
    torch.manual_seed(0)
    return st.LSTM(4, 8, 2, bidirectional=True, batch_first=True)


def packed(rows: int, is_sorted: bool = False) -> Any:
    lengths = torch.from_numpy(RANDOM.integers(1, 9, rows))
    lengths = lengths.sort(descending=True).values if is_sorted else lengths
    x = torch.from_numpy(RANDOM.normal(size=(rows, int(lengths.max()), 4)).astype("f4"))
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=is_sorted)


def jagged(rows: int, shortest: int = 1) -> Any:
    shapes = [(int(length), 4) for length in [shortest, *RANDOM.integers(1, 9, rows - 1)]]
    parts = [torch.from_numpy(RANDOM.normal(size=shape).astype("f4")) for shape in shapes]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def arrays(results: Any) -> list[Any]:
    outputs, (h, c) = results
    values = outputs.data if isinstance(outputs, PackedSequence) else outputs.values()
    return [each.detach().numpy() for each in (values, h, c)]


KINDS: dict[str, Any] = {
    "packed": packed,
    "sorted": lambda rows: packed(rows, is_sorted=True),
    "jagged": jagged,
    "one is empty": lambda rows: jagged(rows, shortest=0),
}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_lengths_never_seen(kind: str, monkeypatch: pytest.MonkeyPatch):
    made = KINDS[kind]
    inputs = [made(rows) for rows in (4, 3, 4, 3, 4)]
    expected = [arrays(lstm()(x)) for x in inputs]
    module = lstm()
    assert_same_bits([arrays(module(x)) for x in inputs], expected)
    with monkeypatch.context() as patched:  # all calls but the first two are prepared
        patched.setattr("stepnet.model.gradients.differentiable.FixedNet.__call__", None)
        assert_same_bits([arrays(module(x)) for x in inputs], expected)


@pytest.mark.parametrize("sizes", [[2, 3], [3, 1], [2, 0, 3], [2, 1, -1, 3]])
@torch.no_grad()
def test_a_damaged_packed_sequence_is_the_error_of_a_first_call(sizes: list[int]):
    module, data = lstm(), torch.ones(5, 4)
    for good in ([2, 2, 1], [3, 2], [2, 1, 1, 1]):
        module(PackedSequence(data, torch.tensor(good)))
    damaged = PackedSequence(data, torch.tensor(sizes))
    for each in (lstm(), module):
        with pytest.raises(InputError, match="the PackedSequence is damaged: batch_sizes must be positive"):
            each(damaged)
