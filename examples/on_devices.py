"""Shared by the examples for microcontrollers: how they train, build, run their program in C, and begin.

Each example makes a step in Python and the frames of its test, and has a program in C beside it. The program
reads frames from one file and writes outputs to another; tests and `python -m bench.devices examples` run it
on emulated microcontrollers, too.
"""

import argparse
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.build import DeviceBuild, build

Array = np.ndarray
Parameters = dict[str, Array]
Loss = Callable[[torch.Tensor], torch.Tensor]


class Network(nn.Module):
    """A GRU and a linear layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.gru = stepnet.torch.GRU(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of each frame [sequences, frames, outputs]."""
        return self.head(self.gru(x)[0])


def fitted(network: nn.Module, loss: Loss, rows: int, batch: int, epochs: int, rate: float) -> Parameters:
    """Trains a network by Adam with a rate that falls to 0. Returns its parameters by their names in PyTorch.

    loss: gives that of the rows with some numbers, which are fewer than `rows`. batch: how many at once.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    with Progress() as progress:
        task, last = progress.add_task("training", total=epochs), torch.zeros(())
        for _ in range(epochs):
            for chosen in torch.randperm(rows).split(batch):
                last = loss(chosen)
                optimizer.zero_grad()
                last.backward()
                optimizer.step()
            schedule.step()
            progress.update(task, advance=1, description=f"loss {last.item():.3f}")
    return {name: value.numpy() for name, value in network.state_dict().items()}


@dataclass(frozen=True)
class Example:
    """An example that was made in a folder. rnn: its step, in floats. frames: those of the test [frames,
    inputs], in floats. codes: the same as the program takes them. program: its source in C.
    """

    rnn: sn.RNN
    made: DeviceBuild
    frames: Array
    codes: Array
    program: Path

    @property
    def folder(self) -> Path:
        """The folder that it was made in."""
        return self.made.manifest.parent

    @property
    def sources(self) -> tuple[Path, Path]:
        """The program and the model in C."""
        assert self.made.source is not None
        return self.program, self.made.source


def made(
    folder: Path, name: str, program: Path, rnn: sn.RNN, frames: Array, small: sn.Graph | None = None
) -> Example:
    """Makes the C99 of an example, and the file `frames` of its test, in a folder.

    name: of the model in C. program: the example in Python, beside which the one in C lies. small: the step
    in integers, which is built in place of the one in floats.
    """
    built = build(small or rnn, folder, name=name, target="c", inputs=frames.shape[-1], force=True)
    (x,), codes = built.program.of("input"), frames
    if x.scale is not None:
        most = np.iinfo(x.dtype).max
        codes = np.clip(np.rint(frames / x.scale), -most, most)
    codes = codes.astype(x.dtype)
    (folder / "frames").write_bytes(codes.tobytes())
    return Example(rnn, built, frames, codes, program.with_suffix(".c"))


def run(example: Example, compiler: str = "cc", flags: Sequence[str] = ("-std=c99", "-O2")) -> Array:
    """Compiles the program of an example for this machine, runs it on the frames of the test, and returns its
    outputs [frames, outputs]. What it says is in the file `said`.
    """
    folder, (y,) = example.folder, example.made.program.of("output")
    command = [compiler, *flags, *example.sources, f"-I{folder}", "-lm", "-o", folder / "run"]
    subprocess.run(command, check=True)
    with (folder / "said").open("w") as said:
        subprocess.run([folder / "run", folder / "frames", folder / "outputs"], stderr=said, check=True)
    return np.fromfile(folder / "outputs", y.dtype).reshape(-1, y.size)


def main(
    about: str | None,
    make: Callable[[Path, int], Example],
    report: Callable[[Example, Array], None],
    epochs: int,
    arguments: list[str] | None = None,
) -> None:
    """Makes an example in the folder that is given, runs it, and prints what it takes and how good it is."""
    parser = argparse.ArgumentParser(description=about and about.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder for the source code and the program")
    parser.add_argument("--epochs", type=int, default=epochs)
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs is 1 or more, not {options.epochs}")
    example = make(options.folder, options.epochs)
    sizes = example.made.sizes
    print(f"RAM {sizes.ram_bytes} bytes, constants {sizes.constant_bytes} bytes, ", end="")
    print(f"{sizes.multiply_adds} multiply-adds per frame")
    report(example, run(example))
