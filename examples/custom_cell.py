"""A cell from a paper in a few lines, trained on the task of the paper.

The independently recurrent network (S. Li and others, "Independently recurrent neural network (IndRNN):
building a longer and deeper RNN", CVPR 2018): h' = relu(W x + u h + b), where u is a vector. Every unit keeps
what it keeps for as long as it likes, as long as |u| stays near 1.

The adding problem (S. Hochreiter and J. Schmidhuber, 1997): a sequence of random numbers, two of which are
marked; the answer is their sum. To answer 1 always is wrong by 0.167 (mean square).

Run it from the root of the repository (some ten seconds on two processors):

    .venv/bin/python examples/custom_cell.py [--steps N] [--plot FILE]

`--plot` draws the learning curve, and needs matplotlib.
"""

import argparse
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor, nn

import stepnet.torch

HIDDEN, TIME, ROWS = 64, 60, 50
STEPS, LEARNING_RATE = 400, 5e-3


class IndRNNCell(nn.Module):
    """One step: h' = relu(W x + u h + b)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, hidden)
        self.own = nn.Parameter(torch.rand(hidden))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """The next h."""
        return torch.relu(self.inner(x) + self.own * h)


class Adder(nn.Module):
    """Two layers of the cell, and a number of what is in the last state of the second.

    looped: whether the cell is called step by step, in place of one call for whole sequences.
    """

    def __init__(self, looped: bool = False) -> None:
        super().__init__()
        self.cells = nn.ModuleList([IndRNNCell(2, HIDDEN), IndRNNCell(HIDDEN, HIDDEN)])
        self.head, self.looped = nn.Linear(HIDDEN, 1), looped
        sizes = (2, HIDDEN)
        examples = [(torch.zeros(1, size), torch.zeros(1, HIDDEN)) for size in sizes]
        pairs = zip(self.cells, examples, strict=True)
        self.layers = nn.ModuleList([stepnet.torch.Recurrence(*pair) for pair in pairs])

    def forward(self, x: Tensor) -> Tensor:
        """The answers [rows] to sequences [time, rows, 2]."""
        for cell, layer in zip(self.cells, self.layers, strict=True):
            x = steps(cell, x) if self.looped else layer(x)[0]
        return self.head(x[-1])[:, 0]


def steps(cell: nn.Module, x: Tensor) -> Tensor:
    """The same in a loop."""
    h, outputs = x.new_zeros(x.shape[1], HIDDEN), list[Tensor]()
    for one in x:
        h = cell(one, h)
        outputs.append(h)
    return torch.stack(outputs)


def problem(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences [time, rows, 2] of numbers and marks, and the answers [rows]."""
    numbers, marks = torch.rand(TIME, ROWS, generator=generator), torch.zeros(TIME, ROWS)
    half = TIME // 2
    for first in (0, half):
        marks[first + torch.randint(half, (ROWS,), generator=generator), torch.arange(ROWS)] = 1
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(0)


def train(looped: bool = False, count: int = STEPS) -> list[float]:
    """The loss of each step of training."""
    torch.manual_seed(0)
    model, generator = Adder(looped), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    losses = list[float]()
    with Progress() as progress:
        task = progress.add_task("training", total=count)
        for _ in range(count):
            x, answers = problem(generator)
            loss = (model(x) - answers).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"wrong by {losses[-1]:.4f}")
    return losses


def plot(losses: list[float], file: Path) -> None:
    """Draws the learning curve, beside the error of answering 1 always."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, label="IndRNN")
    axes.axhline(1 / 6, color="grey", linewidth=0.8, linestyle="--", label="to answer 1 always")
    axes.set(xlabel="step of training", ylabel="mean square error", yscale="log")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints how wrong the answers are."""
    parser = argparse.ArgumentParser(description="Train the independently recurrent network to add.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plot", type=Path, help="a picture of the learning curve; needs matplotlib")
    options = parser.parse_args(arguments)
    losses = train(count=options.steps)
    few = losses[-20:]
    print(f"wrong by {losses[0]:.4f} at first, {sum(few) / len(few):.4f} at last (mean square)")
    if options.plot:
        plot(losses, options.plot)


if __name__ == "__main__":
    main()
