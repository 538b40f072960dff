"""A character language model of Python's own documentation, which then writes.

The text is what `help()` prints of Python's statements and types (pydoc_data.topics), 460,000 characters that
every Python brings along. A GRU reads it in pieces of 64 characters, and each piece goes on from the state in
which the piece before it ended. To write, the same weights run one character at a time in a GRUCell.

Run it from the root of the repository (a minute or two on two processors):

    .venv/bin/python examples/character_model.py [--steps N] [--write N]
"""

import argparse
import re
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

import stepnet.torch

HIDDEN, ROWS, PIECE = 128, 32, 64
STEPS, LEARNING_RATE, CLIP = 500, 1e-2, 1.0


def text() -> str:
    """The documentation, topic after topic, in ASCII."""
    whole = "\n".join(re.sub(r"\n +", "\n ", topics[name]) for name in sorted(topics))
    return whole.encode("ascii", "ignore").decode()


class CharacterModel(nn.Module):
    """A GRU over characters. layers: whose it is, that of stepnet.torch or of torch.nn."""

    def __init__(self, letters: int, layers: Any = stepnet.torch) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, HIDDEN // 2)
        self.gru = layers.GRU(HIDDEN // 2, HIDDEN)
        self.head = nn.Linear(HIDDEN, letters)

    def forward(self, characters: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits of the next characters [time, rows, letters], and the last state."""
        outputs, last = self.gru(self.embedding(characters), state)
        return self.head(outputs), last


def train(layers: Any = stepnet.torch, steps: int = STEPS) -> tuple[CharacterModel, str, list[float]]:
    """A trained model, its letters, and the loss of each step, in bits per character."""
    whole = text()
    letters = "".join(sorted(set(whole)))
    numbers = torch.tensor([letters.index(one) for one in whole])
    columns = numbers[: len(numbers) // ROWS * ROWS].view(ROWS, -1).T.contiguous()  # [time, rows]
    torch.manual_seed(0)
    model = CharacterModel(len(letters), layers)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    losses, state = list[float](), None
    with Progress() as progress:
        task = progress.add_task("training", total=steps)
        for step in range(steps):
            first = step * PIECE % (len(columns) - PIECE - 1)
            piece = columns[first : first + PIECE + 1]
            logits, state = model(piece[:-1], None if state is None else state.detach())
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), piece[1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            losses.append(loss.item() / 0.6931471805599453)
            progress.update(task, advance=1, description=f"{losses[-1]:.2f} bits per character")
    return model, letters, losses


@torch.inference_mode()
def write(model: CharacterModel, letters: str, begin: str, count: int, heat: float = 0.6) -> str:
    """So many characters that go on from a beginning. heat: how often it writes what is less likely."""
    cell = stepnet.torch.GRUCell(HIDDEN // 2, HIDDEN)
    cell.load_state_dict({name.removesuffix("_l0"): one for name, one in model.gru.state_dict().items()})
    torch.manual_seed(0)
    logits, state = model(torch.tensor([[letters.index(one)] for one in begin]), None)
    last, h, written = logits[-1, 0], state[0, 0], begin
    for _ in range(count):
        number = torch.multinomial((last / heat).softmax(-1), 1)
        written += letters[int(number)]
        h = cell(model.embedding(number)[0], h)
        last = model.head(h)
    return written


def main(arguments: list[str] | None = None) -> None:
    """Trains, and writes."""
    parser = argparse.ArgumentParser(description="Train a character model on Python's help texts.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--write", type=int, default=400, help="how many characters")
    options = parser.parse_args(arguments)
    model, letters, losses = train(steps=options.steps)
    print(
        f"{losses[0]:.2f} bits per character at first, {sum(losses[-10:]) / len(losses[-10:]):.2f} at last\n"
    )
    print(write(model, letters, "The ", options.write))


if __name__ == "__main__":
    main()
