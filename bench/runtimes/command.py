"""`python -m bench`: parses the command line, runs the cases, and shows or saves the results."""

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.runtimes import report, results, saved
from bench.runtimes.cases import DEVICES, MODES, Case
from bench.runtimes.groups import GROUPS, PRESETS, Preset, chosen_cases, grid, group_of
from bench.runtimes.machine import facts as machine_facts
from bench.runtimes.measure import Settings, measure, workers
from bench.runtimes.peers.equations import CELLS
from bench.runtimes.plot import draw
from bench.runtimes.restricted import restricted
from bench.runtimes.results import Result, Run
from bench.runtimes.runner import OURS, PEERS, chosen
from bench.runtimes.saved import Saved
from bench.runtimes.targets import facts, targets
from stepnet.errors import InputError


class Shape(StrEnum):
    """The kinds of batches of the grid that are run."""

    DENSE = "dense"
    RAGGED = "ragged"
    BOTH = "both"


WIDE = 200  # columns of a table that is written to a file or a pipe
GRID = "gru,lstm,custom"
QUICK_GRID = 64  # the widest memory of a quick run


@dataclass(frozen=True)
class Part:
    """A group of cases, and the names of the peers (runtimes) that are timed beside them; () for all."""

    group: str
    peers: tuple[str, ...]
    cases: tuple[Case, ...]


def bench(
    group: Annotated[str, typer.Option(help=f"Groups of cases, by comma: {', '.join(GROUPS)}.")] = "",
    preset: Annotated[
        str, typer.Option(help=f"Groups that have a name together: {', '.join(PRESETS)}.")
    ] = "",
    cell: Annotated[str, typer.Option(help=f"Cells, by comma: {', '.join(CELLS)}. [of a grid: {GRID}]")] = "",
    batch: Annotated[str, typer.Option(help="Numbers of sequences. [of a grid: 1,16,64; quick: 1,16]")] = "",
    hidden: Annotated[
        str, typer.Option(help="Widths of the memory and of the inputs. [of a grid: 64,256; quick: 64]")
    ] = "",
    steps: Annotated[
        int, typer.Option("--time", min=1, help="Steps of the longest sequence, of a grid.")
    ] = 100,
    ragged: Annotated[
        Shape, typer.Option(help="Sequences of one length, of different ones, or both, of a grid.")
    ] = Shape.BOTH,
    dtype: Annotated[str, typer.Option(help="float32 or float64, of a grid.")] = "float32",
    mode: Annotated[str, typer.Option(help=f"{', '.join(MODES)}, of a grid.")] = "forward",
    training: Annotated[bool, typer.Option("--training", help="The same as --mode training.")] = False,
    device: Annotated[str, typer.Option(help=f"{', '.join(DEVICES)}, of a grid.")] = "cpu",
    peers: Annotated[
        str,
        typer.Option(help=f"Whom to time: {', '.join(peer.name for peer in PEERS)}. Default: the group's."),
    ] = "",
    threads: Annotated[int, typer.Option(min=0, help="Threads of each; 0 for all processors.")] = 0,
    rounds: Annotated[int, typer.Option(min=0, help="How often each has a turn. [5; quick: 3]")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Short turns, few rounds, small sizes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Merge the results into bench/saved/, in the processor's file.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="No case begins after so many seconds; 0 for no limit.")
    ] = 0,
    rest: Annotated[
        bool, typer.Option("--rest", help="Only cases that --save's or --keep's file does not have.")
    ] = False,
    runs: Annotated[
        int, typer.Option(min=1, help="With --rest: cases that the file has from fewer runs than these.")
    ] = 1,
    save: Annotated[Path | None, typer.Option(help="Merge the results into this file, as JSON.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Show the change since a saved run.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results: a .png, .svg or .pdf file.")] = None,
    engine: Annotated[str, typer.Option(hidden=True)] = "auto",
) -> None:
    """Time stepnet beside other runtimes: in turns, each in its own process, on the same threads, checked to
    compute what the equations give in float64.

    Without --group and --preset the cases are a grid of cells, batches and widths.
    """
    before = None if compare is None else saved.load(compare)
    sizes = words(cell), numbers(batch, "batch"), numbers(hidden, "hidden")
    if group or preset:
        parts = parts_of(words(group), preset, sizes, quick)
    else:
        cells, batches, hiddens = sizes
        lengths = [kind for kind in ("dense", "ragged") if ragged in (Shape.BOTH, kind)]
        cases = grid(
            cells or words(GRID),
            batches or ([1, 16] if quick else [1, 16, 64]),
            hiddens or ([64] if quick else [64, 256]),
            lengths,
            steps,
            dtype,
            "training" if training else mode,
            device,
        )
        parts = [Part("", (), tuple(cases))]
    if peers:
        parts = [replace(part, peers=tuple(words(peers))) for part in parts]
    machine = machine_facts(threads or processors())
    file = save or (saved.path_of(machine) if keep else None)
    if rest:
        parts = rest_of(parts, file, runs)
    settings = Settings(machine["threads"], rounds or (3 if quick else 5), turn=0.02 if quick else 0.05)
    console = Console(stderr=as_json)
    made = run(parts, settings, engine, console, promised=preset == "targets", limit=limit)
    if file is not None:
        saved.save(made, file)
    if plot is not None:
        draw(made, plot)
    if as_json:
        typer.echo(json.dumps(results.to_record(made), indent=1))
    else:
        show(made, before, console if console.is_terminal else Console(width=WIDE))
    if made.wrong:
        raise typer.Exit(1)


def parts_of(
    names: Sequence[str],
    preset: str,
    sizes: tuple[Sequence[str], Sequence[int], Sequence[int]],
    quick: bool,
) -> list[Part]:
    """Returns the groups of these names or of a preset, with their cases of these cells, batches and widths.

    sizes: the cells, batches and widths; empty for all. quick: True to leave out large cases.
    """
    if preset and preset not in PRESETS:
        raise InputError(f"no preset is called {preset!r}; there are {', '.join(PRESETS)}")
    cells, batches, hiddens = sizes
    named = PRESETS[preset] if preset else Preset(tuple(names))
    found: list[Part] = []
    for name in named.groups:
        if names and name not in names:
            continue
        group = group_of(name)
        cases = chosen_cases(group, cells, batches or named.batches, hiddens or named.hiddens)
        if quick:
            cases = [case for case in cases if case.hidden <= QUICK_GRID and case.batch <= 16]
        found += [Part(name, group.peers, tuple(cases))] if cases else []
    return found


def rest_of(parts: Sequence[Part], file: Path | None, runs: int) -> list[Part]:
    """Returns the groups without cases that a file has results of, from so many runs; raises `InputError`
    without a file.
    """
    if file is None:
        raise InputError("--rest leaves out the cases of a file: name it with --save, or pass --keep")
    known = saved.load(file).cases if file.exists() else []
    there = {(one.group, one.case) for one in known if len(one.runs) >= runs}
    left = [
        replace(part, cases=tuple(case for case in part.cases if (part.group, case) not in there))
        for part in parts
    ]
    return [part for part in left if part.cases]


def show(found: Run, before: Saved | None, console: Console) -> None:
    """Prints the tables of a run; before: saved results to compare with, or None."""
    report.show(found, console)
    if promises := targets(found.results, found.facts):
        console.print(report.promises(promises))
    if before is not None:
        console.print(report.comparison(results.changes(before.results, found.results)))
        for line in results.differences(before.runs[-1], found):
            console.print(f"[yellow]different:[/] {line}", highlight=False)


def run(
    parts: Sequence[Part],
    settings: Settings,
    engine: str = "auto",
    console: Console | None = None,
    promised: bool = False,
    limit: float = 0,
) -> Run:
    """Times every case, with a progress bar. After `limit` seconds no case begins but the first.

    promised: True to time importing and compiling too. engine: stepnet's.
    """
    if not any(part.cases for part in parts):
        raise InputError(
            "there is nothing to time: no case has these sizes (a batch of one sequence is never ragged), or "
            "the file has them all"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: list[Result] = []
    missing: dict[str, str] = {}
    versions: dict[str, dict[str, str]] = {}
    end = time.monotonic() + limit if limit else float("inf")
    # Drawn between turns alone, so that it takes no time from them.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=sum(len(part.cases) for part in parts))
        seconds = facts(engine, settings.rounds) if promised else {}
        for part in parts:
            if found and time.monotonic() > end:
                break
            asked, left_out = restricted(chosen(part.peers))
            missing |= left_out
            with workers(asked, settings.threads, engine) as processes:
                for case in part.cases:
                    if found and time.monotonic() > end:
                        break

                    def progress(doing: str, case: Case = case) -> None:
                        """Shows the case and what is being done with it in the progress bar."""
                        bar.update(task, description=f"{case}: {doing}", refresh=True)

                    found.append(replace(measure(case, processes, settings, progress), group=part.group))
                    bar.advance(task)
                for worker in processes:
                    if worker.missing is not None:
                        missing[worker.peer.name] = worker.missing
                    else:
                        versions[worker.peer.name] = worker.versions
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
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def words(text: str) -> list[str]:
    """Splits a text at commas, without spaces and empty parts."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, name: str) -> list[int]:
    """Parses whole numbers between commas; raises a usage error, with the option's name, for others."""
    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} should be whole numbers, as 1,16,64", param_hint=f"--{name}"
        ) from error
