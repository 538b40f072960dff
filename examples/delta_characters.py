"""A gated delta network of characters, which learns Python's own documentation and writes while it learns.

The text is what `help()` prints of Python's statements and types (pydoc_data.topics), 460,000 characters that
every Python brings along. The network is two layers of a gated delta rule (S. Yang and others, 2024, arXiv
2412.06464), as large language models have them: projections, a short causal convolution, queries and keys of
length 1, gates, the delta rule, a norm and an output gate. The delta rule and the convolution are cells of
`stepnet.cells`; `stepnet.torch.Scan` makes modules of them, with gradients. All else is PyTorch.

The model reads the text in pieces, and each piece goes on from the memories in which the piece before it
ended. To write, it is called with one character at a time, and passes the same memories on.

Run it from the root of the repository (400 steps of 0.16 s on two processors):

    .venv/bin/python examples/delta_characters.py [--steps N] [--quick] [--plot FILE]

`--plot` draws the learning curve, and needs matplotlib.
"""

import argparse
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import stepnet as sn
import stepnet.torch

LAYERS, HEADS, KEY, KERNEL = 2, 4, 32, 4
WIDTH = HEADS * KEY
ROWS, PIECE = 16, 128
STEPS, LEARNING_RATE, CLIP, EVERY = 400, 4e-3, 1.0, 25
QUICK_STEPS = 12
State = list[tuple[Tensor, Tensor]]
"""The memories of each layer: those of its convolution and of its delta rule."""
Rule = Callable[[dict[str, Tensor], Tensor | None], tuple[Tensor, Tensor]]


def text() -> str:
    """The documentation, topic after topic, in ASCII."""
    whole = "\n".join(re.sub(r"\n +", "\n ", topics[name]) for name in sorted(topics))
    return whole.encode("ascii", "ignore").decode()


def delta_rule() -> Rule:
    """The gated delta rule over tensors [batch, time, heads, ...].

    For gradients it keeps the memory ahead of every 16 steps, and not of each: each is 16 kB.
    """
    return stepnet.torch.Scan(sn.RNN(sn.cells.gated_delta_rule, memory=(HEADS, KEY, KEY)), checkpoint=16)


class Mixer(nn.Module):
    """Mixes characters over time: the delta rule, and what is around it."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.gates = nn.Linear(WIDTH, 2 * HEADS)
        weight = {"weight": torch.empty(3 * WIDTH, KERNEL).uniform_(-0.5, 0.5).numpy()}
        memory = (3 * WIDTH, KERNEL - 1)
        self.convolution = stepnet.torch.Scan(sn.RNN(sn.cells.causal_convolution, weight, memory=memory))
        self.rule = rule
        self.decay = nn.Parameter(torch.linspace(-5, 0, HEADS))
        self.norm = nn.RMSNorm(KEY)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The output [batch, time, width], and the last memories."""
        window, memory = state or (None, None)
        mixed, gate = self.project(x).split((3 * WIDTH, WIDTH), -1)
        mixed, window = self.convolution(mixed, window)
        q, k, v = functional.silu(mixed).unflatten(-1, (3, HEADS, KEY)).unbind(2)
        step, beta = self.gates(x).chunk(2, -1)
        inputs = {
            "q": functional.normalize(q, dim=-1) * KEY**-0.5,
            "k": functional.normalize(k, dim=-1),
            "v": v,
            "g": -self.decay.exp() * functional.softplus(step),
            "beta": beta.sigmoid(),
        }
        read, memory = self.rule(inputs, memory)
        return self.out(self.norm(read).flatten(2) * functional.silu(gate)), (window, memory)


class Layer(nn.Module):
    """A mixer and a perceptron, each after a norm and beside a direct path."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.before_mixer, self.mixer = nn.RMSNorm(WIDTH), Mixer(rule)
        self.perceptron = nn.Sequential(
            nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The output [batch, time, width], and the last memories."""
        mixed, last = self.mixer(self.before_mixer(x), state)
        x = x + mixed
        return x + self.perceptron(x), last


class CharacterModel(nn.Module):
    """Layers over characters. rule: makes what runs the delta rule of a layer."""

    def __init__(self, letters: int, rule: Callable[[], Rule] = delta_rule) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, WIDTH)
        self.layers = nn.ModuleList(Layer(rule()) for _ in range(LAYERS))
        self.head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, letters))

    def forward(self, characters: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits of the next characters [batch, time, letters], and the last memories."""
        x, last = self.embedding(characters), list[tuple[Tensor, Tensor]]()
        for place, layer in enumerate(self.layers):
            x, memories = layer(x, None if state is None else state[place])
            last.append(memories)
        return self.head(x), last


@dataclass(frozen=True)
class Corpus:
    """The text as numbers: rows to train with, [rows, characters], and those of its end to test with."""

    letters: str
    train: Tensor
    test: Tensor

    @classmethod
    def of(cls, whole: str) -> "Corpus":
        """Nineteen parts of the text to train with, and the last to test with."""
        letters = "".join(sorted(set(whole)))
        places = {letter: place for place, letter in enumerate(letters)}
        numbers = torch.tensor([places[letter] for letter in whole])
        parts = numbers.split(len(numbers) * 19 // 20)
        rows = (part[: len(part) // ROWS * ROWS].view(ROWS, -1) for part in parts[:2])
        return cls(letters, *rows)

    def numbers(self, characters: str) -> Tensor:
        """Characters as numbers, [1, characters]."""
        return torch.tensor([[self.letters.index(letter) for letter in characters]])


@dataclass(frozen=True)
class Progress:
    """The progress after some steps. The losses are bits per character, the time is that of one step."""

    step: int
    training: float
    test: float
    seconds: float
    line: str


class Training:
    """A model, and what trains it step by step."""

    def __init__(self, corpus: Corpus, steps: int, rule: Callable[[], Rule] = delta_rule) -> None:
        torch.manual_seed(0)
        self.corpus, self.model = corpus, CharacterModel(len(corpus.letters), rule)
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATE)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, LEARNING_RATE, steps)
        self.state: State | None = None
        self.place = 0

    def step(self) -> float:
        """The loss of the next piece in bits per character, which the model has then learnt from."""
        if self.place + PIECE + 1 > self.corpus.train.shape[1]:
            self.place, self.state = 0, None
        piece = self.corpus.train[:, self.place : self.place + PIECE + 1]
        logits, state = self.model(piece[:, :-1], self.state)
        loss = functional.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.schedule.step()
        self.place += PIECE
        self.state = [(window.detach(), memory.detach()) for window, memory in state]
        return loss.item() / math.log(2)

    @torch.no_grad()
    def test(self) -> float:
        """The loss of the text that is not trained with, in bits per character."""
        rows = self.corpus.test
        logits, _ = self.model(rows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item() / math.log(2)


@torch.no_grad()
def write(model: CharacterModel, corpus: Corpus, begin: str, count: int, heat: float = 0.5) -> str:
    """Characters that go on from a beginning, one at a time. heat: how often less likely ones are written."""
    random = torch.Generator().manual_seed(0)
    logits, state = model(corpus.numbers(begin))
    written = begin
    for _ in range(count):
        number = torch.multinomial((logits[0, -1] / heat).softmax(-1), 1, generator=random)
        written += corpus.letters[int(number)]
        logits, state = model(number[None], state)
    return written


def train(
    corpus: Corpus, steps: int, every: int, tell: Callable[[Progress], None]
) -> tuple[CharacterModel, list[Progress]]:
    """A trained model, and its learning curve. tell: what is called with each point of the curve."""
    training, curve = Training(corpus, steps), list[Progress]()
    losses, begun = list[float](), time.perf_counter()
    for step in range(1, steps + 1):
        losses.append(training.step())
        if step % every and step != steps:
            continue
        seconds = (time.perf_counter() - begun) / len(losses)
        line = write(training.model, corpus, "The ", 76).replace("\n", " ")
        curve.append(Progress(step, sum(losses) / len(losses), training.test(), seconds, line))
        tell(curve[-1])
        losses, begun = [], time.perf_counter()
    return training.model, curve


def show(known: Progress) -> None:
    """Prints a point of the learning curve."""
    print(f"{known.step:4}  {known.training:8.2f}  {known.test:4.2f}  {known.seconds:6.3f}  {known.line}")


def plot(curve: list[Progress], file: Path) -> None:
    """Draws the learning curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes: Any = figure.subplots()
    steps = [one.step for one in curve]
    axes.plot(steps, [one.training for one in curve], label="training")
    axes.plot(steps, [one.test for one in curve], label="test")
    axes.set(xlabel="step", ylabel="bits per character", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints the losses and a line of text while it learns; then writes more."""
    parser = argparse.ArgumentParser(description="Train a gated delta network on Python's help texts.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps alone")
    parser.add_argument("--write", type=int, default=600, help="how many characters at last")
    parser.add_argument("--plot", type=Path, help="a picture of the learning curve; needs matplotlib")
    options = parser.parse_args(arguments)
    corpus = Corpus.of(text())
    steps, every = (QUICK_STEPS, QUICK_STEPS // 2) if options.quick else (options.steps, EVERY)
    print("step  training  test  s/step")
    model, curve = train(corpus, steps, every, show)
    print("\n" + write(model, corpus, "The ", options.write))
    if options.plot:
        plot(curve, options.plot)


if __name__ == "__main__":
    main()
