"""Prints the figures of a benchmark: as a table, or as JSON with the number of threads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from stepnet.compiler.targets.threads import threads


def print_rows(rows: Sequence[Any], title: str, columns: Mapping[str, str], as_json: bool) -> None:
    """Prints rows of figures, each a dataclass.

    title: of the table; the number of threads is added. columns: the format of each column, by its name, such
    as "{row.milliseconds:.2f}". as_json: whether to print all fields of the rows as JSON instead.
    """
    if as_json:
        print(json.dumps({"threads": threads(), "rows": [asdict(row) for row in rows]}, indent=2))
        return
    table = Table(title=f"{title}, {threads()} threads")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(text.format(row=row) for text in columns.values()))
    Console().print(table)
