"""Output of the commands: JSON, notes on modules, and counts with nouns."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import typer


def write_json(value: Any) -> None:
    """Writes a value as one JSON object."""
    typer.echo(json.dumps(value, indent=2))


def write_notes(notes: Mapping[str, Iterable[str]]) -> None:
    """Writes a line for each note on a module; a module without a name is the only one."""
    for name, module_notes in notes.items():
        for note in module_notes:
            typer.echo(f"note: {name}: {note}" if name else f"note: {note}")


def write_left_out(names: Iterable[str]) -> None:
    """Writes a line that lists what was left out of a model file, if anything was."""
    if names:
        typer.echo(f"recurrent layers alone; left out: {', '.join(names)}")


def count_text(number: int, what: str) -> str:
    """Formats a count with a noun.

    >>> count_text(1, "recurrent layer"), count_text(2, "other array")
    ('1 recurrent layer', '2 other arrays')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"
