"""Times layers of PyTorch in bfloat16 beside float32, run by stepnet and by torch.nn.

    python -m bench.halves                    a GRU of each size, 50 steps, without gradients
    python -m bench.halves --kind LSTM --rounds 15
    python -m bench.halves --json

All have the same weights and sequences, and run in alternation in one process with as many threads. A time
is the median of all rounds in milliseconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

import stepnet.torch
from bench.printing import print_rows

STEPS, PAUSE, WARM = 50, 0.01, 3
SIZES = ((1, 256), (1, 512), (1, 1024), (4, 1024), (16, 512), (64, 256), (64, 512))
"""The numbers of sequences and of units."""


@dataclass(frozen=True)
class Row:
    """The milliseconds of a layer of one size: of stepnet and of torch.nn, in float32 and in bfloat16."""

    sequences: int
    units: int
    ours: float
    ours_half: float
    theirs: float
    theirs_half: float

    @property
    def speedup(self) -> float:
        """The time of stepnet in float32 over that in bfloat16."""
        return self.ours / self.ours_half


def runs_of(kind: str, rows: int, units: int) -> dict[str, Callable[[], Any]]:
    """Makes the calls to time for one size: layers of stepnet and of torch.nn, in float32 and bfloat16."""
    theirs = getattr(torch.nn, kind)(units, units)
    x = torch.randn(STEPS, rows, units)

    def call(module: Any, dtype: Any) -> Callable[[], Any]:
        """Makes the call of a layer with the same weights in another dtype."""
        module.load_state_dict(theirs.state_dict())
        own, values = module.to(dtype).eval(), x.to(dtype)
        return lambda: own(values)

    return {
        f"{name} {str(dtype).removeprefix('torch.')}": call(getattr(package, kind)(units, units), dtype)
        for name, package in (("stepnet", stepnet.torch), ("torch", torch.nn))
        for dtype in (torch.float32, torch.bfloat16)
    }


def timed(run: Callable[[], Any]) -> float:
    """Returns the milliseconds of one call, after a pause in which threads end their spinning."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def main(
    kind: Annotated[str, typer.Option(help="GRU, LSTM or RNN.")] = "GRU",
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Times layers of PyTorch in bfloat16 beside float32."""
    rows: list[Row] = []
    with torch.no_grad():
        for count, units in track(SIZES, "timing", transient=True, disable=as_json):
            runs = runs_of(kind, count, units)
            for run in runs.values():
                for _ in range(WARM):
                    run()
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(rounds):
                for name, run in runs.items():
                    times[name].append(timed(run))
            rows.append(Row(count, units, *(median(times[name]) for name in runs)))
    columns = {
        "sequences": "{row.sequences}",
        "units": "{row.units}",
        "float32": "{row.ours:.2f}",
        "bfloat16": "{row.ours_half:.2f}",
        "torch float32": "{row.theirs:.2f}",
        "torch bfloat16": "{row.theirs_half:.2f}",
        "speedup": "{row.speedup:.2f}",
    }
    print_rows(rows, f"Milliseconds of a {kind}, {STEPS} steps", columns, as_json)


if __name__ == "__main__":
    typer.run(main)
