"""Times a conversion of a gigabyte of weights beside a plain copy of them, and measures its memory.

    python bench/convert.py                 a table
    python bench/convert.py --hidden 2800   another width, which is no power of two: caches mind those most
    python bench/convert.py --json

Each pair of layouts has a process of its own. The first conversion there gives the memory: the peak of the
process, less its memory before it made the source, relative to source and target together. Then conversions
and copies alternate, each into new memory, and the ratio is the median of each round's.
"""

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from math import ceil, prod
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from stepnet.layout.convert import convert
from stepnet.layout.registry import record
from stepnet.layout.sizes import Sizes, shape_of

PAIRS = (  # with the difficulty of each
    ("torch.lstm", "keras.lstm"),  # transposed, biases summed
    ("keras.lstm", "torch.lstm"),  # transposed, a bias filled
    ("torch.lstm", "cudnn.lstm"),  # one vector
    ("torch.lstm", "onednn.lstm"),  # transposed into arrays of all layers
    ("torch.lstm", "keras.cudnn_lstm"),  # buffers of another shape in each gate's place
    ("keras.cudnn_lstm", "torch.lstm"),
    ("torch.lstm", "chainer.lstm"),  # gates beside one another, unit by unit
    ("torch.gru", "openvino.gru"),  # summed
    ("haiku.gru", "onnx.gru"),  # transposed and negated
    ("keras.gru", "torch.gru"),
)
MOST_TIMES, MOST_MEMORY = 8.0, 1.1  # promised: times a copy's time, and source and target
FLOAT = 4
WIDE = 160  # columns of a table that is written to a file or a pipe


@dataclass(frozen=True)
class Found:
    """The result for one pair of layouts: seconds of each round, and memory relative to the weights'."""

    source: str
    target: str
    hidden: int
    layers: int
    bytes: int
    conversions: list[float]
    copies: list[float]
    memory: float
    steps: str

    @property
    def ratio(self) -> float:
        """The median time of a conversion over that of a copy."""
        return median(one / other for one, other in zip(self.conversions, self.copies, strict=True))

    @property
    def kept(self) -> bool:
        """True if time and memory are within the promised limits."""
        return self.ratio <= MOST_TIMES and self.memory <= MOST_MEMORY


def layers_for(source: str, hidden: int, gigabytes: float) -> int:
    """Returns the number of layers in the layout `source` whose weights fill the gigabytes at least."""
    shapes = [
        shape_of(one.pattern, Sizes(hidden, hidden)) for one in record(source).entries(Sizes(hidden, hidden))
    ]
    return ceil(gigabytes * 1e9 / (FLOAT * sum(map(prod, shapes))))


def made(source: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """Makes random weights in the layout `source`, without anything else of their size in memory."""
    random = np.random.default_rng(0)
    return {
        one.name: random.random(shape_of(one.pattern, sizes, one.layer or 0), np.float32)
        for one in record(source).entries(sizes)
    }


def measured(source: str, target: str, hidden: int, layers: int, rounds: int) -> Found:
    """Measures the time and the memory of a conversion, in this process."""
    convert(made(source, Sizes(2, 3)), source, target)  # imports modules and takes memory that is needed once
    before = held()
    arrays = made(source, Sizes(hidden, hidden, layers=layers))
    done = convert(arrays, source, target)
    both = sum(array.nbytes for array in (*arrays.values(), *done.arrays.values()))
    memory = (peak() - before) / both
    steps = ", ".join(step.kind for step in done.report.steps)
    del done
    conversions: list[float] = []
    copies: list[float] = []
    for _ in range(rounds):
        copies.append(seconds(lambda: {name: np.copy(array) for name, array in arrays.items()}))
        conversions.append(seconds(lambda: convert(arrays, source, target)))
    size = sum(array.nbytes for array in arrays.values())
    return Found(source, target, hidden, layers, size, conversions, copies, memory, steps)


def seconds(work: Any) -> float:
    """Returns the seconds of a call; freeing its result does not count."""
    begun = time.perf_counter()
    result = work()
    taken = time.perf_counter() - begun
    del result
    return taken


def peak() -> int:
    """Returns the most bytes that this process has held."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024


def held() -> int:
    """Returns the bytes that this process holds; on a system that does not say, the most it has held."""
    import resource

    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * resource.getpagesize() if status.exists() else peak()


def in_a_process(source: str, target: str, hidden: int, layers: int, rounds: int) -> Found:
    """Measures a conversion (`measured`) in a new process, so that only its own memory counts."""
    alone = json.dumps([source, target, hidden, layers, rounds])
    command = [sys.executable, __file__, "--alone", alone]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Found(**json.loads(said))


def fitting(gigabytes: float) -> float:
    """Returns the gigabytes asked for, or what fits into free memory: source, target and a copy of each."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return gigabytes
    lines = dict(line.split(":") for line in info.read_text().splitlines())
    return min(gigabytes, int(lines["MemAvailable"].split()[0]) * 1024 / 4e9)


def table(found: list[Found]) -> Table:
    """Returns the table of all results, with a verdict on the promised limits."""
    shown = Table(title="conversion beside a copy")
    for name in ("from", "to"):
        shown.add_column(name, no_wrap=True)
    for name in ("layers", "GB", "copy, ms", "convert, ms", "times a copy", "memory", ""):
        shown.add_column(name, justify="right")
    shown.add_column("what is done")
    for one in found:
        shown.add_row(
            one.source,
            one.target,
            f"{one.layers} of {one.hidden}",
            f"{one.bytes / 1e9:.2f}",
            f"{median(one.copies) * 1e3:.0f}",
            f"{median(one.conversions) * 1e3:.0f}",
            f"{one.ratio:.2f}",
            f"{one.memory:.3f}",
            "[green]kept[/]" if one.kept else "[red]not kept[/]",
            one.steps,
        )
    return shown


def main(
    gigabytes: Annotated[float, typer.Option(help="How much of weights.")] = 1.0,
    hidden: Annotated[int, typer.Option(help="The width of every layer, and of the inputs.")] = 4096,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    alone: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Time conversions of weights beside plain copies, measure their memory, and print a table or JSON."""
    if alone:
        typer.echo(json.dumps(asdict(measured(*json.loads(alone)))))
        return
    console = Console(stderr=as_json)
    room = fitting(gigabytes)
    if room < gigabytes:
        console.print(f"[yellow]the memory has room for {room:.2g} GB of weights[/]")
    busy = os.getloadavg()[0]
    found = [
        in_a_process(source, target, hidden, layers_for(source, hidden, room), rounds)
        for source, target in track(PAIRS, "converting", console=console, transient=True)
    ]
    if as_json:
        typer.echo(
            json.dumps([{**asdict(one), "ratio": one.ratio, "kept": one.kept} for one in found], indent=1)
        )
        return
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(table(found))
    promise = f"Promised are at most {MOST_TIMES:g} times a copy, and {MOST_MEMORY:g} of source and target"
    console.print(f"{promise}. {rounds} rounds; load {busy:.1f} at the start.", style="dim")


if __name__ == "__main__":
    typer.run(main)
