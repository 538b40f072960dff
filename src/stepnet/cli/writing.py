"""What commands write: JSON, and numbers with their nouns."""

import json
from typing import Any

import typer


def write_json(value: Any) -> None:
    """Writes one JSON object."""
    typer.echo(json.dumps(value, indent=2))


def counted(number: int, what: str) -> str:
    """A number with a noun.

    >>> counted(1, "recurrent layer"), counted(2, "other array")
    ('1 recurrent layer', '2 other arrays')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"
