"""Integers outside of a parameter of a module of PyTorch: the message has the number and its place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError


class Words(torch.nn.Module):
    """A cell of words: a GRU cell behind an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = torch.nn.Embedding(5, 3), torch.nn.GRUCell(3, 3)

    def forward(self, word: Any, h: Any) -> Any:
        return self.cell(self.embedding(word), h)


MODULE = stepnet.torch.Recurrence(Words(), (torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3)))
SCAN = stepnet.torch.Scan(
    sn.RNN(lambda word, h, p: (h, h + p["E"][word]), {"E": torch.ones(5, 3).numpy()}, memory=3)
)
GOOD, BAD = torch.tensor([[1, 2, 0], [3, 1, 4]]), torch.tensor([[1, 2, 0], [3, 5, 9]])
SHORT = [torch.tensor([1]), torch.tensor([1, 2, -1]), torch.tensor([1, 2])]


def packed(words: list[Any]) -> Any:
    """Packs sequences, the longest first."""
    return pack_sequence(words, enforce_sorted=False)


CALLS: dict[str, tuple[Callable[[Any], Any], Any, Any, str]] = {
    "a Recurrence": (MODULE, GOOD.T, BAD.T, "5 at step 1 of sequence 1, and `embedding.weight` has 5 rows"),
    "a PackedSequence": (
        MODULE,
        packed([each.abs() for each in SHORT]),
        packed(SHORT),
        "-1 at step 2 of sequence 1, and `embedding.weight` has 5 rows",
    ),
    "a Scan": (SCAN, GOOD, BAD, "5 at step 1 of sequence 1, and `E` has 5 rows"),
    "vmap": (
        torch.vmap(lambda words: SCAN(words[None])[0]),
        GOOD,
        BAD,
        "5 at step 1 of sequence 1, and `E` has 5 rows",
    ),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("case", CALLS)
def test_the_integer_its_place_and_its_parameter_are_named(case: str, gradients: bool) -> None:
    call, good, bad, said = CALLS[case]
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            with pytest.raises(InputError) as caught:
                call(bad)
            assert (
                str(caught.value)
                == f"an integer is outside the rows of the parameter that it indexes: {said}"
            )
            for _ in range(3):  # until calls of this form are prepared
                call(good)
