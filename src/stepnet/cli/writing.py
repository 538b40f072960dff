"""Writes what commands print: JSON, notes on modules, and counts with nouns."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import typer


def write_json(value: Any) -> None:
    """Prints a value to stdout as one JSON object, for the option --json."""
    typer.echo(json.dumps(value, indent=2))


def write_notes(notes: Mapping[str, Iterable[str]]) -> None:
    """Prints the notes on each module of a file. notes: by name of the module, "" for the only one."""
    for name, module_notes in notes.items():
        for note in module_notes:
            typer.echo(f"note: {name}: {note}" if name else f"note: {note}")


MOST_NAMES = 10
"""The most names of layers and arrays in one line; all are in what --json prints."""


def write_left_out(names: Collection[str]) -> None:
    """Prints a line that lists the layers and arrays of a file that were left out, or the first ones."""
    if names:
        typer.echo(f"recurrent layers alone; left out: {names_text(names)}")


def names_text(names: Collection[str]) -> str:
    """Joins names by commas; of more than `MOST_NAMES` the first ones, and how many others there are."""
    from stepnet.layout.files.account import listed

    return listed(names, MOST_NAMES)


def count_text(number: int, what: str) -> str:
    """Formats a count with a noun, which gets an "s" unless the count is 1. what: the noun.

    >>> count_text(1, "recurrent layer"), count_text(2, "other array")
    ('1 recurrent layer', '2 other arrays')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"
