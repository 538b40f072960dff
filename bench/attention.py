"""Times a decoder with attention beside a loop in PyTorch over padded keys, with the same weights.

    python bench/attention.py               a table
    python bench/attention.py --json

The cell is a GRU, whose input at each step is beside a context: the keys of its sequence, weighted by their
scores. Scores are additive (tanh(keys @ K + query) @ v, where keys @ K is computed once) or dot products of
keys and query. In PyTorch keys are padded to the longest and masked, and every operation of a step is a call.
Both alternate, in turns which begin with runs that do not count; times are medians, and a ratio is the median
of each round's.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet import cells
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
LEAST = 3.0  # the promised speed, in times PyTorch's
STEPS = 50
# Seconds of each turn that do not count: PyTorch's threads still spin, and stepnet leaves out its own, which
# were late because of that, for up to a third of a second.
WARM = 0.35
SCORES = ("additive", "dot product")


@dataclass(frozen=True)
class Case:
    """A decoder, and the keys that it attends to: `keys` for each of `batch` sequences, or half to one and a
    half times as many if `ragged`. Keys, queries, inputs and states have `width` features.
    """

    scores: str
    batch: int
    keys: int
    width: int
    ragged: bool = False

    @property
    def name(self) -> str:
        """The case as text, for the table."""
        return f"{self.scores}, {self.batch} x {self.keys} keys{' of any lengths' if self.ragged else ''}"


CASES = (
    *(Case(scores, 1, keys, width) for scores in SCORES for width in (128, 256) for keys in (10, 100)),
    *(Case(scores, 16, keys, width) for scores in SCORES for width in (128, 256) for keys in (10, 100)),
    *(Case(scores, 16, 60, 128, ragged=True) for scores in SCORES),
)


@dataclass(frozen=True)
class Found:
    """The result for one case: the median seconds of stepnet and of PyTorch in every round."""

    case: Case
    ours: list[float]
    torch: list[float]

    @property
    def ratio(self) -> float:
        """The median of PyTorch's time over stepnet's, in the same round."""
        return median(theirs / own for own, theirs in zip(self.ours, self.torch, strict=True))


# ---- what is run -------------------------------------------------------------------------------------------


def params_of(width: int) -> dict[str, Array]:
    """Returns random weights: those of the GRU over input and context, and those of attention (Q, K, v)."""
    random = np.random.default_rng(0)
    sizes = {"Q": (width, width), "K": (width, width), "v": (width, 1)}
    own = {name: random.standard_normal(size, np.float32) / width**0.5 for name, size in sizes.items()}
    return {**cells.CELLS["gru"].parameters(2 * width, width, seed=1), **own}


def decoder(case: Case) -> sn.RNN:
    """Returns the decoder with attention as a recurrence of stepnet, whose statics are the keys."""
    scale = np.float32(case.width**-0.5)

    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        """Computes one step: attends to the keys, and runs the GRU on the input beside the context."""
        query = sn.expand(h @ p["Q"], statics)
        if case.scores == "additive":
            scores = np.tanh(statics @ p["K"] + query) @ p["v"]
        else:
            scores = np.sum(statics * query, axis=-1, keepdims=True) * scale
        context = sn.reduce(statics * sn.softmax_over_steps(scores), "sum")
        return cells.gru(np.concatenate([x, context], axis=-1), h, p)

    return sn.RNN(step, params_of(case.width), memory=case.width)


def loop(case: Case, x: Array, keys: list[Array]) -> Callable[[], torch.Tensor]:
    """Returns a function that runs the same decoder as a loop in PyTorch over padded keys.

    x: the inputs [batch, steps, width]. keys: those of each sequence.
    """
    width = case.width
    p = {name: torch.from_numpy(array) for name, array in params_of(width).items()}
    cell = torch.nn.GRUCell(2 * width, width)
    own = {"weight_ih": p["W"].T, "weight_hh": p["R"].T, "bias_ih": p["b"], "bias_hh": p["d"]}
    cell.load_state_dict(own)
    inputs, most = torch.from_numpy(x), max(map(len, keys))
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(key) for key in keys], batch_first=True)
    is_there = torch.arange(most)[None] < torch.tensor([len(key) for key in keys])[:, None]
    hidden = torch.where(is_there, 0.0, -torch.inf)

    @torch.inference_mode()
    def run() -> torch.Tensor:
        """Runs the decoder in PyTorch, to be timed; returns the outputs [batch, steps, width]."""
        h, outputs = torch.zeros(case.batch, width), list[torch.Tensor]()
        projected = padded @ p["K"]
        for step in range(STEPS):
            query = h @ p["Q"]
            if case.scores == "additive":
                scores = (torch.tanh(projected + query[:, None]) @ p["v"])[..., 0]
            else:
                scores = torch.bmm(padded, query[..., None])[..., 0] * width**-0.5
            weights = torch.softmax(scores + hidden, -1)
            context = torch.bmm(weights[:, None], padded)[:, 0]
            h = cell(torch.cat([inputs[:, step], context], -1), h)
            outputs.append(h)
        return torch.stack(outputs, 1)

    return run


# ---- how long it takes -------------------------------------------------------------------------------------


def ways(case: Case) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns functions that run a case by stepnet and PyTorch; raises `AssertionError` if outputs differ."""
    random = np.random.default_rng(2)
    spread = random.integers(case.keys // 2, case.keys + case.keys // 2 + 1, case.batch)
    counts = spread if case.ragged else np.full(case.batch, case.keys)
    keys = [random.standard_normal((count, case.width), np.float32) for count in counts]
    x, statics = (
        random.standard_normal((case.batch, STEPS, case.width), np.float32),
        sn.Ragged.from_list(keys),
    )
    rnn, theirs = decoder(case), loop(case, x, keys)

    def ours() -> Array:
        """Runs the decoder in stepnet, to be timed."""
        return rnn(x, statics=statics)[0]

    outputs, right = ours(), theirs().numpy()
    assert all(part.kind != "loop" for part in rnn.schedule.parts), rnn.explain()
    away = float(np.abs(outputs - right).max())
    most = 2 * tolerance("float32", STEPS + int(counts.max()), 3 * case.width)
    assert away <= most, f"{case.name}: {away:.1e} away, where {most:.1e} is rounding"
    return ours, theirs


def measured(case: Case, rounds: int, counted: int) -> Found:
    """Times a case by stepnet and PyTorch in alternating turns; `counted` runs of each turn count."""
    both = ways(case)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for way, taken in zip(both, seconds, strict=True):
            warm = time.perf_counter() + WARM
            while time.perf_counter() < warm:
                way()
            taken.append(median(timed(way) for _ in range(counted)))
    return Found(case, *seconds)


def timed(way: Callable[[], Any]) -> float:
    """Returns the seconds of one call of `way`."""
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


# ---- what one sees -----------------------------------------------------------------------------------------


def table(found: list[Found]) -> Table:
    """Returns the table of all results, with a verdict on the promised speed."""
    shown = Table(title=f"{STEPS} steps of a GRU with attention beside a loop in PyTorch")
    shown.add_column("scores, batch x keys", no_wrap=True)
    for name in ("width", "stepnet, ms", "PyTorch, ms", "times as fast", ""):
        shown.add_column(name, justify="right")
    for one in found:
        times = (f"{median(taken) * 1e3:.2f}" for taken in (one.ours, one.torch))
        kept = "[green]kept[/]" if one.ratio >= LEAST else "[red]not kept[/]"
        shown.add_row(one.case.name, str(one.case.width), *times, f"{one.ratio:.1f}", kept)
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 7,
    counted: Annotated[int, typer.Option(min=1, help="How many runs of a turn count.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time decoders with attention beside loops in PyTorch, and print a table or JSON."""
    torch.set_num_threads(threads())
    console = Console(stderr=as_json)
    busy = os.getloadavg()[0]
    found = [
        measured(case, rounds, counted) for case in track(CASES, "running", console=console, transient=True)
    ]
    if as_json:
        typer.echo(json.dumps([{**asdict(one), "ratio": one.ratio} for one in found], indent=1))
        return
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table(found))
    promise = f"Promised is {LEAST:g} times as fast"
    console.print(
        f"{promise}. {threads()} threads; {rounds} rounds; load {busy:.1f} at the start.", style="dim"
    )


if __name__ == "__main__":
    typer.run(main)
