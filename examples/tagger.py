"""Finds the letters that are capitals: a tagger of sequences of any lengths, none of which is ever padded.

The sentences are those of Python's own help texts (pydoc_data.topics), in small letters. A bidirectional LSTM
tags each character: is it a capital? Batches are `PackedSequence`s: their characters lie end to end, the
embedding, the head and the loss work on `data`, and the LSTM runs each sentence for its own length.

Run it from the root of the repository (under a minute on two processors):

    .venv/bin/python examples/tagger.py [--steps N]
"""

import argparse
import re
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

import stepnet.torch

HIDDEN, ROWS, STEPS, LEARNING_RATE = 48, 16, 250, 1e-2
LETTERS = "\0 abcdefghijklmnopqrstuvwxyz0123456789'\".,:;-_()[]{}=+*/<>"
Sentences = list[str]


def sentences() -> tuple[Sentences, Sentences]:
    """Sentences to train with, and every tenth, to test with."""
    words = re.sub(r"\s+", " ", " ".join(topics[name] for name in sorted(topics)))
    found = [one for one in re.split(r"(?<=[.:]) (?=[A-Z])", words) if 20 <= len(one) <= 150]
    return [one for place, one in enumerate(found) if place % 10], found[::10]


class Tagger(nn.Module):
    """A logit for each character. layers: whose LSTM it is, that of stepnet.torch or of torch.nn."""

    def __init__(self, layers: Any = stepnet.torch) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 16)
        self.lstm = layers.LSTM(16, HIDDEN, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN, 1)

    def forward(self, characters: PackedSequence) -> PackedSequence:
        """The logits, packed as the characters are."""
        outputs, _ = self.lstm(characters._replace(data=self.embedding(characters.data)))
        return outputs._replace(data=self.head(outputs.data)[:, 0])


def packed(batch: Sentences) -> tuple[PackedSequence, Tensor]:
    """The characters of sentences, and for each whether it is a capital."""
    known = [torch.tensor([max(LETTERS.find(letter), 0) for letter in one.lower()]) for one in batch]
    capital = [torch.tensor([float(letter.isupper()) for letter in one]) for one in batch]
    return pack_sequence(known, enforce_sorted=False), pack_sequence(capital, enforce_sorted=False).data


def train(layers: Any = stepnet.torch, steps: int = STEPS) -> tuple[Tagger, list[float]]:
    """A trained tagger, and the loss of each step."""
    torch.manual_seed(0)
    model, (known, _) = Tagger(layers), sentences()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    losses = list[float]()
    with Progress() as progress:
        task = progress.add_task("training", total=steps)
        for _ in range(steps):
            rows = torch.randint(len(known), (ROWS,)).tolist()
            characters, capital = packed([known[row] for row in rows])
            loss = nn.functional.binary_cross_entropy_with_logits(model(characters).data, capital)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"loss {losses[-1]:.4f}")
    return model, losses


@torch.inference_mode()
def capitals(model: Tagger, batch: Sentences) -> Sentences:
    """Sentences with the capitals that the model tells."""
    tags = [one > 0 for one in unpack_sequence(model(packed(batch)[0]))]
    pairs = [zip(one.lower(), told.tolist(), strict=True) for one, told in zip(batch, tags, strict=True)]
    return ["".join(letter.upper() if is_told else letter for letter, is_told in pair) for pair in pairs]


def scores(found: Sentences, right: Sentences) -> tuple[float, float]:
    """The share of the capitals told that are ones, and the share of the capitals that are told."""
    told, there = ("".join(texts) for texts in (found, right))
    hits = sum(a == b and b.isupper() for a, b in zip(told, there, strict=True))
    return hits / max(sum(map(str.isupper, told)), 1), hits / sum(map(str.isupper, there))


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints how well capitals are told, and some sentences."""
    parser = argparse.ArgumentParser(description="Train a tagger of capitals on Python's help texts.")
    parser.add_argument("--steps", type=int, default=STEPS)
    model, _ = train(steps=parser.parse_args(arguments).steps)
    _, test = sentences()
    found = capitals(model, test)
    precision, recall = scores(found, test)
    print(
        f"{len(test)} other sentences: {precision:.1%} of the capitals told are ones, {recall:.1%} are told\n"
    )
    print("\n".join(found[:4]))


if __name__ == "__main__":
    main()
