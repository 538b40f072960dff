"""Writes layouts.md, the page of all layouts, from the records that stepnet converts with: `make layouts`."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from stepnet.cli.report.layouts import biases, entry, framework, matrix, sense
from stepnet.layout.notation import Flat
from stepnet.layout.record import Record
from stepnet.layout.registry import records

PAGE = Path(__file__).with_name("layouts.md")
CELLS = {"gru": "GRU", "lstm": "LSTM", "rnn": "simple recurrences", "mgu": "minimal gated units"}
COLUMNS = ("layout", "W", "R", "biases", "reset", "update", "more")


def markdown() -> str:
    """The page of the documentation: a table for each cell, and every record in full."""
    lines = [INTRODUCTION.strip(), ""]
    for cell, title in CELLS.items():
        chosen = [record for record in records().values() if record.cell == cell]
        gated = cell in ("gru", "mgu")
        columns = [name for name in COLUMNS if gated or name not in ("reset", "update")]
        lines += [f"## Gate order of {title}" if cell != "rnn" else "## Simple recurrences", ""]
        lines += [f"| framework | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        lines += [row(record, columns) for record in chosen]
        lines.append("")
    lines += ["## Every layout in full", ""]
    for title, group in groupby(records().values(), key=framework):
        lines += [f"### {title}", ""]
        lines += [line for record in group for line in entry(record)]
    return "\n".join(lines).rstrip() + "\n"


def row(record: Record, columns: Iterable[str]) -> str:
    """One row of a table."""
    cells = {
        "layout": f"[`{record.name}`](#{anchor(record)})",
        "W": matrix(record, "W"),
        "R": matrix(record, "R"),
        "biases": biases(record),
        "reset": sense(record, "reset") if record.cell in ("gru", "mgu") else "",
        "update": sense(record, "update") if record.cell in ("gru", "mgu") else "",
        "more": more(record),
    }
    return f"| {framework(record)} | {' | '.join(cells[name] for name in columns)} |"


def anchor(record: Record) -> str:
    """The anchor that a heading with the record's name gets."""
    return record.name.replace(".", "")


def more(record: Record) -> str:
    """Peepholes, projection, forget bias, and where numbers lie if not in arrays of their own."""
    found = [
        word
        for parameter, word in (("p", "peepholes"), ("P", "projection"), ("q", "its bias"))
        if any(term.parameter == parameter for term in record.terms())
    ]
    fixed = record.semantics.get("forget_bias")
    if isinstance(fixed, float):
        found.append(f"adds {fixed:g} to f")
    if "forget_bias" in record.settings():
        found.append("forget bias in the code")
    if record.semantics.get("coupled") is True:
        found.append("i = 1 - f")
    if any(isinstance(pattern, Flat) and not pattern.shape for pattern in record.patterns.values()):
        found.append("one vector")
    return ", ".join(found)


INTRODUCTION = """
# The layouts of recurrent weights

Where each framework puts the numbers of a GRU, an LSTM or a simple recurrence, and what it makes of them.
This page is generated from the records that stepnet converts with (by docs/layouts_page.py); `stepnet
convert` moves weights between any two of them, and says what it did.

Letters: gates of an LSTM are i (input), f (forget), g (candidate of the cell, also called c, j or z) and o
(output); of a GRU r (reset), z (update, also u or i) and n (candidate, also h or c). W are the weights of
the inputs, R the recurrent ones, b the bias of the inputs and d the recurrent bias. I inputs, H hidden
units, K what recurs (H, or P where there is a projection), L layers, D directions.

A GRU that resets *after* the recurrent product computes n = tanh(W x + b + r (R h + d)), one that resets
*before* n = tanh(W x + b + R (r h) + d): these are different functions, and weights of one become weights
of the other only where R is diagonal. With an update gate that *keeps*, h' = z h + (1 - z) n; with one that
*writes*, h' = (1 - z) h + z n: the signs of the row of z turn one into the other, bit for bit.

The notation: `W[(g:rzn h) x]` is an array whose first axis is the gates r, z and n, in each the hidden
units, and whose second is the inputs; `/` puts one array on top of another, `|` beside it, `;` behind it in
one buffer; `{L D: ...}` repeats for each layer and direction; `~ h x` says that in the place of each gate
lies the buffer of an array with these axes. In names {L} is the layer and {D} the direction.
"""


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
