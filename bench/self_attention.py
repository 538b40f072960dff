"""Times attention of a sequence to itself, beside PyTorch's, with the same weights.

    python -m bench.self_attention               a table
    python -m bench.self_attention --layers attention --batch 8 --steps 100 --rounds 15
    python -m bench.self_attention --json

The layers are the products of `torch.nn.functional.scaled_dot_product_attention` alone ("products"),
`torch.nn.MultiheadAttention` ("attention") and `torch.nn.TransformerEncoderLayer` ("encoder"), in evaluation,
float32. stepnet runs the module as a graph (`stepnet.torch.graph`). All sequences of a batch have as many
steps, so that PyTorch needs no mask. Both have as many threads and alternate, in turns which begin with runs
that do not count. A time is the median of all rounds, and a ratio that of each round's. The results are
compared first.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track

import stepnet as sn
import stepnet.torch
from bench.printing import print_rows
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

WARM = 0.35
"""Seconds of each turn that do not count: the threads of the other one still spin."""
COUNTED = 15
"""The runs of a turn that count, of which it has the median."""


@dataclass(frozen=True)
class Row:
    """The times of a layer in milliseconds, and stepnet's over PyTorch's."""

    layer: str
    batch: int
    steps: int
    stepnet: float
    torch: float
    ratio: float


class Products(torch.nn.Module):
    """Attention without weights: queries, keys and values are the features."""

    def __init__(self, heads: int) -> None:
        """Takes the number of heads."""
        super().__init__()
        self.heads = heads

    def forward(self, x: Any) -> Any:
        """Returns attention of steps [batch, steps, features] to themselves."""
        own = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        made = torch.nn.functional.scaled_dot_product_attention(own, own, own)
        return made.transpose(1, 2).flatten(2)


class Attention(torch.nn.Module):
    """`torch.nn.MultiheadAttention` of a sequence to itself."""

    def __init__(self, width: int, heads: int) -> None:
        """Takes the number of features and of heads."""
        super().__init__()
        self.own = torch.nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Any) -> Any:
        """Returns attention of steps [batch, steps, features] to themselves."""
        return self.own(x, x, x, need_weights=False)[0]


def encoder(width: int, heads: int) -> torch.nn.Module:
    """Makes a layer of an encoder."""
    return torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)


LAYERS = {"products": lambda _, heads: Products(heads), "attention": Attention, "encoder": encoder}


def turn(run: Callable[[], Any]) -> float:
    """Returns the median seconds of some runs, behind others that do not count."""
    warm = time.perf_counter() + WARM
    while time.perf_counter() < warm:
        run()
    taken = list[float]()
    for _ in range(COUNTED):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return median(taken)


def timed(layer: str, batch: int, steps: int, width: int, heads: int, rounds: int) -> Row:
    """Compares the results of a layer by both, and times them in alternation."""
    module = LAYERS[layer](width, heads).eval()
    x = np.random.default_rng(0).standard_normal((batch, steps, width), np.float32)
    given, ragged = torch.from_numpy(x), sn.Ragged.from_padded(x, np.full(batch, steps))
    model = stepnet.torch.graph(module, given, axes="NT")
    with torch.inference_mode():
        away = np.abs(model(ragged).to_padded()[0] - module(given).numpy()).max()
        if not away <= 10 * tolerance("float32", steps, 4 * width):
            raise SystemExit(f"{layer}: the results of stepnet and PyTorch differ by {away:.2g}")
        runs = (lambda: model(ragged), lambda: module(given))
        taken = [[turn(run) for run in runs] for _ in range(rounds)]
    ours, theirs = (1e3 * median(own) for own in zip(*taken, strict=True))
    return Row(layer, batch, steps, ours, theirs, median(a / b for a, b in taken))


def main(
    layers: Annotated[list[str] | None, typer.Option(help="Names of layers; all without it.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each.")] = 100,
    width: Annotated[int, typer.Option(min=1, help="Features of a step.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Heads into which these are divided.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 7,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time attention of sequences to themselves beside PyTorch, and print a table or JSON."""
    sn.set_threads(threads_)
    torch.set_num_threads(threads())
    torch.manual_seed(0)
    console = Console(stderr=True, quiet=as_json)
    rows = [
        timed(layer, batch, steps, width, heads, rounds)
        for layer in track(layers or list(LAYERS), "timing", console=console, transient=True)
    ]
    columns = {
        **{name: f"{{row.{name}}}" for name in ("layer", "batch", "steps")},
        **{name: f"{{row.{name}:.3f}}" for name in ("stepnet", "torch")},
        "ratio": "{row.ratio:.2f}",
    }
    print_rows(rows, f"Milliseconds of attention with {width} features in {heads} heads", columns, as_json)


if __name__ == "__main__":
    typer.run(main)
