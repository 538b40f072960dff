"""Times an ensemble of GRUs: torch.vmap over their weights, and loops over the members.

    python -m bench.ensembles                 outputs, and gradients of all weights
    python -m bench.ensembles --rounds 30

The members have weights and sequences of their own. vmap and the loop of functional_call take weights that
stand in one tensor, as torch.func.stack_module_state makes it, and the loops of modules take a module for
each member. All run in one thread; a time is the least processor time of all rounds in milliseconds, as
other processes change it little.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch.func import functional_call, grad, stack_module_state, vmap

import stepnet
import stepnet.torch
from bench.printing import print_rows

WARM = 3
SIZES = ((8, 20, 1, 16, 32), (32, 30, 2, 16, 32), (16, 50, 8, 32, 64), (8, 50, 32, 64, 128))
"""The numbers of members, steps, sequences of each, inputs and units."""


@dataclass(frozen=True)
class Row:
    """The milliseconds of an ensemble of one size, by what it computes and by the way that it runs."""

    size: str
    what: str
    mapped: float
    functional: float
    modules: float
    theirs: float


def runs_of(members: int, steps: int, rows: int, inputs: int, units: int) -> dict[str, dict[str, Any]]:
    """Makes the calls to time for one size, by what they compute and by the way that they run."""
    base = stepnet.torch.GRU(inputs, units)
    modules = [stepnet.torch.GRU(inputs, units) for _ in range(members)]
    theirs = [torch.nn.GRU(inputs, units) for _ in range(members)]
    stacked, x = stack_module_state(modules)[0], torch.randn(members, steps, rows, inputs)

    def call(weights: Mapping[str, Any], x: Any) -> Any:
        """Runs a member."""
        return functional_call(base, dict(weights), (x,))[0]

    def loss(weights: Mapping[str, Any], x: Any) -> Any:
        """Computes a loss of a member."""
        return call(weights, x).square().sum()

    def in_turn(function: Callable[..., Any]) -> Callable[[], Any]:
        """Makes the loop over members that calls a function on slices of the weights."""
        return lambda: [
            function({n: w[at].detach() for n, w in stacked.items()}, x[at]) for at in range(members)
        ]

    def trained(own: list[Any]) -> None:
        """Computes gradients of the weights of modules, one module after the other."""
        for module, one in zip(own, x, strict=True):
            module.zero_grad()
            module(one)[0].square().sum().backward()

    def outputs(own: list[Any]) -> None:
        """Runs modules one after the other."""
        for module, one in zip(own, x, strict=True):
            module(one)

    plain, slopes = torch.no_grad(), grad(loss)
    return {
        "outputs": {
            "vmap": plain(lambda: vmap(call)(stacked, x)),
            "functional": plain(in_turn(call)),
            "modules": plain(lambda: outputs(modules)),
            "torch": plain(lambda: outputs(theirs)),
        },
        "gradients": {
            "vmap": lambda: vmap(slopes)(stacked, x),
            "functional": in_turn(slopes),
            "modules": lambda: trained(modules),
            "torch": lambda: trained(theirs),
        },
    }


def timed(run: Callable[[], Any]) -> float:
    """Returns the milliseconds of processor time of one call."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def main(
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 10,
    sizes: Annotated[int, typer.Option(help="How many of the sizes.")] = len(SIZES),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Times an ensemble of GRUs by vmap and by loops."""
    torch.set_num_threads(1)
    stepnet.set_threads(1)
    rows: list[Row] = []
    for size in track(SIZES[:sizes], "timing", transient=True, disable=as_json):
        for what, runs in runs_of(*size).items():
            for run in runs.values():
                for _ in range(WARM):
                    run()
            times = {way: min(timed(run) for _ in range(rounds)) for way, run in runs.items()}
            rows.append(Row(", ".join(map(str, size)), what, *(times[way] for way in runs)))
    columns = {
        "size": "{row.size}",
        "of": "{row.what}",
        "vmap": "{row.mapped:.1f}",
        "functional": "{row.functional:.1f}",
        "modules": "{row.modules:.1f}",
        "torch.nn": "{row.theirs:.1f}",
    }
    print_rows(rows, "Milliseconds of processor time of an ensemble of GRUs", columns, as_json)


if __name__ == "__main__":
    typer.run(main)
