"""Writes layouts.md, the page of all layouts, from the records that stepnet converts with: `make layouts`."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from stepnet.explain.layouts import entry, framework, summary
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
    cells = {"layout": f"[`{record.name}`](#{anchor(record)})", **summary(record), "more": more(record)}
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

This page lists where each framework stores the numbers of a GRU, an LSTM or a simple recurrence, and which
function they parametrise. It is generated from the records that stepnet converts with (docs/layouts_page.py).
`stepnet convert` converts weights between any two of these layouts, and reports every step.

**Letters.** The gates of an LSTM are i (input), f (forget), g (candidate of the cell, also called c, j or z)
and o (output); those of a GRU r (reset), z (update, also u or i) and n (candidate, also h or c). W are the
weights of the inputs, R the recurrent weights, b the input bias and d the recurrent bias. The sizes are I
inputs, H hidden units, K recurrent inputs (H, or P with a projection), L layers, D directions.

**Functions.** A GRU that resets *after* the recurrent product computes n = tanh(W x + b + r (R h + d)); one
that resets *before* it, n = tanh(W x + b + R (r h) + d). These are different functions, and weights can be
converted from one to the other only if R is diagonal. With an update gate that *keeps*, h' = z h + (1 - z) n;
with one that *writes*, h' = (1 - z) h + z n. To negate the row of z turns one into the other, bit for bit.

**Notation.** `W[(g:rzn h) x]` is an array whose first axis has the gates r, z and n and, in each of them, the
hidden units; the second axis has the inputs. `/` stacks one array on top of another, `|` puts it beside,
and `;` after it in the same buffer. `{L D: ...}` repeats for each layer and direction. `~ h x` means that the
place of each gate holds the raw buffer of an array with these axes. In names, {L} is the layer and {D} the
direction.
"""


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
