"""The commands that need no file: `demo`, `doctor` and `cache` show what an installation does and has."""

from dataclasses import asdict
from typing import Annotated

import typer

from stepnet.cli.options import Json
from stepnet.cli.writing import write_json


def demo(as_json: Json = False, engine: Annotated[str, typer.Option(hidden=True)] = "auto") -> None:
    """Tell speakers apart by a GRU trained in PyTorch, and show how well and how fast."""
    from stepnet.cli.demo import demonstrate

    figures = demonstrate(engine, quiet=as_json)
    if as_json:
        write_json(figures)


def doctor(as_json: Json = False) -> None:
    """Print what this machine has (processor, engines, threads, packages), and each problem with its cure.

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


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    as_json: Json = False,
) -> None:
    """Print what compiled code is kept on disk: where, how much, how often it was read, or why none is."""
    from stepnet.cli.report.cache import cache_text, examine

    found = examine(clear)
    if as_json:
        write_json(asdict(found))
    else:
        typer.echo(cache_text(found))
