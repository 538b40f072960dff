"""`python -m bench`: what to time, from the command line, and where its results go."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.runtimes import report, results
from bench.runtimes.cases import GATES, Case, grid, target_cases, vowels_case
from bench.runtimes.machine import facts as machine_facts
from bench.runtimes.measure import Settings, measure, workers
from bench.runtimes.plot import draw
from bench.runtimes.results import Result, Run
from bench.runtimes.runner import OURS, PEERS, Peer, chosen
from bench.runtimes.targets import facts, targets
from stepnet.errors import InputError


class Preset(StrEnum):
    """Cases that have a name."""

    TARGETS = "targets"
    VOWELS = "vowels"


class Shape(StrEnum):
    """Which batches of the grid are run."""

    DENSE = "dense"
    RAGGED = "ragged"
    BOTH = "both"


# What the prototype and torch are promised against; others are not asked unless they are named.
TARGET_PEERS = ("prototype", "torch", "torch packed")
WIDE = 200  # columns of a table that is written to a file or a pipe


def bench(
    cell: Annotated[str, typer.Option(help=f"Cells, by comma: {', '.join(GATES)}.")] = "gru,lstm,custom",
    batch: Annotated[str, typer.Option(help="Numbers of sequences. [1,16,64; quick: 1,16]")] = "",
    hidden: Annotated[
        str, typer.Option(help="Widths of the memory and of the inputs. [64,256; quick: 64]")
    ] = "",
    time: Annotated[int, typer.Option(min=1, help="Steps of the longest sequence.")] = 100,
    ragged: Annotated[Shape, typer.Option(help="Sequences of one length, of different ones, or both.")] = (
        Shape.BOTH
    ),
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    training: Annotated[
        bool, typer.Option("--training", help="Forward, backward, and the gradients of inputs and weights.")
    ] = False,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Cases that have a name, instead of a grid. targets: the sizes a speed is promised for; "
            "vowels: the demo's 640 utterances."
        ),
    ] = None,
    peers: Annotated[
        str, typer.Option(help=f"Whom to time: {', '.join(peer.name for peer in PEERS)}. Default: all.")
    ] = "",
    threads: Annotated[int, typer.Option(min=0, help="Threads of each; 0 for all processors.")] = 0,
    rounds: Annotated[int, typer.Option(min=0, help="How often each has a turn. [5; quick: 3]")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Short turns, few rounds, small sizes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the results to this file, as JSON.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Show the change since a saved run.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results: a .png, .svg or .pdf file.")] = None,
    engine: Annotated[str, typer.Option(hidden=True)] = "auto",
) -> None:
    """Time stepnet beside other runtimes: in turns, each in its own process, on the same threads, checked to
    compute the same.
    """
    before = None if compare is None else results.load(compare)
    cells = words(cell)
    batches = numbers(batch or ("1,16" if quick else "1,16,64"), "batch")
    hiddens = numbers(hidden or ("64" if quick else "64,256"), "hidden")
    uneven = {Shape.DENSE: [False], Shape.RAGGED: [True], Shape.BOTH: [False, True]}[ragged]
    asked = words(peers)
    match preset:
        case Preset.TARGETS:
            cases, asked = target_cases(), asked or list(TARGET_PEERS)
        case Preset.VOWELS:
            cases = [vowels_case(training=training)]
        case None:
            cases = grid(cells, batches, hiddens, uneven, time, dtype, training)
    settings = Settings(threads or processors(), rounds or (3 if quick else 5), turn=0.03 if quick else 0.1)
    console = Console(stderr=as_json)
    found = run(cases, chosen(asked), settings, engine, console, promised=preset is Preset.TARGETS)
    if save is not None:
        results.save(found, save)
    if plot is not None:
        draw(found, plot)
    if as_json:
        typer.echo(json.dumps(results.to_record(found), indent=1))
    else:
        wide = console if console.is_terminal else Console(width=WIDE)
        show(found, before, wide, promised=preset is Preset.TARGETS)
    if found.wrong:
        raise typer.Exit(1)


def show(found: Run, before: Run | None, console: Console, promised: bool) -> None:
    """Print the tables."""
    report.show(found, console)
    if promised:
        console.print(report.promises(targets(found)))
    if before is not None:
        console.print(report.comparison(results.changes(before, found)))
        for line in results.differences(before, found):
            console.print(f"[yellow]different:[/] {line}", highlight=False)


def run(
    cases: Sequence[Case],
    peers: Sequence[Peer],
    settings: Settings,
    engine: str = "auto",
    console: Console | None = None,
    promised: bool = False,
) -> Run:
    """Every case timed, with a progress bar; `promised`: the times of importing and compiling too."""
    if not cases:
        raise InputError("there is nothing to time: a batch of one sequence is never ragged")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: list[Result] = []
    # Drawn between turns alone, so that it takes no time from them.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=len(cases))
        seconds = facts(engine, settings.rounds) if promised else {}
        with workers(peers, settings.threads, engine) as processes:
            for case in cases:

                def told(doing: str, case: Case = case) -> None:
                    bar.update(task, description=f"{case}: {doing}", refresh=True)

                found.append(measure(case, processes, settings, told))
                bar.advance(task)
            missing = {worker.peer.name: worker.missing for worker in processes if worker.missing is not None}
            versions = {worker.peer.name: worker.versions for worker in processes if worker.missing is None}
    if OURS in missing:
        raise InputError(f"stepnet itself could not be started: {missing[OURS]}")
    return Run(
        tuple(found),
        machine_facts(settings.threads),
        versions,
        missing,
        {"rounds": settings.rounds, "turn": settings.turn, "pause": settings.pause, "engine": engine},
        shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        facts=seconds,
    )


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def words(text: str) -> list[str]:
    """The parts between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, name: str) -> list[int]:
    """The whole numbers between commas; a usage error for anything else."""
    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} should be whole numbers, as 1,16,64", param_hint=f"--{name}"
        ) from error
