"""Rows of results, as a table for people or as JSON."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def write_rows(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    """Prints rows of results as a table, or as a JSON object. All have the columns of the first."""
    if as_json:
        typer.echo(json.dumps({"rows": rows}, indent=2))
        return
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
