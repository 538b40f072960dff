"""The commands that need no file: `demo`, `doctor`, `tune` and `cache`."""

from dataclasses import asdict
from typing import Annotated

import typer

from stepnet.cli.options import Json
from stepnet.cli.writing import write_json


def demo(as_json: Json = False, engine: Annotated[str, typer.Option(hidden=True)] = "auto") -> None:
    """Recognise speakers with a GRU trained in PyTorch, and print the accuracy and the speed."""
    from stepnet.cli.demo import demonstrate

    figures = demonstrate(engine, quiet=as_json)
    if as_json:
        write_json(figures)


def doctor(as_json: Json = False) -> None:
    """Print the processor, engines, threads and packages of this machine, and each problem with its solution.

    Each engine compiles and runs a small recurrence. Exit code 1 if something that is needed does not work.
    """
    from stepnet.cli.report.doctor import examine, health_text

    health = examine()
    if as_json:
        write_json({**asdict(health), "works": health.works})
    else:
        typer.echo(health_text(health))
    if not health.works:
        raise typer.Exit(1)


def tune(as_json: Json = False) -> None:
    """Measure the rates of this machine, by which calls are shared among threads, and keep them in the cache.

    Takes some seconds, in which the machine does nothing else. Results do not depend on it.
    """
    from stepnet.cli.report.tuning import measure, tuning_text

    tuning = measure(quiet=as_json)
    if as_json:
        write_json(asdict(tuning))
    else:
        typer.echo(tuning_text(tuning))


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    as_json: Json = False,
) -> None:
    """Print which compiled code is stored on disk, where, and how often it was read; or why none is."""
    from stepnet.cli.report.cache import cache_text, examine

    found = examine(clear)
    if as_json:
        write_json(asdict(found))
    else:
        typer.echo(cache_text(found))
