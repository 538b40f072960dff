"""One self-contained page that draws the arrays of two layouts, and tells of every number where it goes.

    kernel [2, 9]   z z z r r r n n n        weight_space [63]   r r z z n n ...
                          ^ W_r[1, 0]  ------------------------>   ^ moved

Nothing is loaded from anywhere: style and script are in the page, and its policy allows these alone, by
their hashes. Names of arrays come out of files and are text in it.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from stepnet.layout.convert import Conversion
from stepnet.layout.moves import Move
from stepnet.layout.places import Array, Block, Region, regions
from stepnet.layout.record import Record
from stepnet.layout.registry import record as record_of
from stepnet.layout.semantics import GATES, Semantics
from stepnet.layout.sizes import Sizes
from stepnet.report.drawing import Cell, Drawing, Line, Panel, drawings, numbers_left_out, place_in
from stepnet.report.equations import equations

NAMES = {
    "rnn": {"n": "new memory"},
    "gru": {"r": "reset gate", "z": "update gate", "n": "candidate"},
    "mgu": {"f": "gate", "n": "candidate"},
    "lstm": {"i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate"},
}
PARAMETERS = {
    "W": "weights of the input",
    "R": "recurrent weights",
    "b": "input bias",
    "d": "recurrent bias",
    "p": "peepholes",
    "P": "projection",
    "q": "its bias",
}
DONE = {"moved": "moved", "negated": "negated", "summed": "summed", "filled": "filled"}


@dataclass(frozen=True)
class Side:
    """One side of a conversion: its arrays, the record and sizes they are of, and what they parametrise."""

    key: str
    arrays: Mapping[str, Array]
    record: Record
    sizes: Sizes
    semantics: Semantics

    @property
    def places(self) -> dict[Block, Region]:
        """Where each of its blocks is."""
        found = regions(self.record, self.sizes)
        return {region.block: region for region in found if region.array in self.arrays}

    def where(self, region: Region, place: tuple[int, ...]) -> str:
        """The place in an array of a number of a block."""
        shape = self.arrays[region.array].shape
        return f"{region.array}{list(place_in(region, place, shape))}"


def picture(arrays: Mapping[str, Array], record: Record, conversion: Conversion) -> str:
    """The page, as HTML: one side where a layout becomes itself, both sides and what was done otherwise.

    arrays: those that were converted, of that record.
    """
    report = conversion.report
    source = Side("source", arrays, record, report.sizes, report.source_semantics)
    target = Side(
        "target", conversion.arrays, record_of(report.target), report.target_sizes, report.target_semantics
    )
    several = report.source != report.target
    sides = (source, target) if several else (source,)
    moves = [move for step in report.steps for move in step.moves]
    tied = Ties(source, target, moves, several)
    style, script = resource("picture.css"), resource("picture.js")
    return template().render(
        title=f"{report.source} → {report.target}" if several else report.source,
        several=several,
        sizes=str(report.sizes),
        example=f"W_{GATES[record.cell][0]}, bias, ...",
        gates=[(gate, NAMES[record.cell][gate]) for gate in GATES[record.cell]],
        parameters=[(name, PARAMETERS[name]) for name in parameters(sides)],
        sides=[shown(side, tied) for side in sides],
        steps=report.steps,
        settings=[(name, repr(value)) for name, value in report.settings.items()],
        notes=report.notes,
        style=Markup(style),
        script=Markup(script),
        style_hash=digest(style),
        script_hash=digest(script),
    )


def template() -> Any:
    """The page's template; what is put into it becomes text."""
    loader = FunctionLoader(resource)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(
        "picture.html.jinja"
    )


def resource(name: str) -> str:
    """A file of the page."""
    return (files("stepnet.report") / "page" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """What a content security policy calls a text: W3C, Content Security Policy Level 3, 2.3.1."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def parameters(sides: tuple[Side, ...]) -> list[str]:
    """The parameters that there are."""
    held = {block.parameter for side in sides for block in side.places}
    return [name for name in PARAMETERS if name in held]


# ---- what is said of a number ------------------------------------------------------------------------------


class Ties:
    """What became of every block, and the sentences that say so of its numbers."""

    def __init__(self, source: Side, target: Side, moves: list[Move], several: bool) -> None:
        self.source, self.target = source, target
        self.here, self.there = source.places, target.places
        self.several = several
        self.made = {move.target: move for move in moves}
        self.used: dict[Block, list[Move]] = {}
        for move in moves:
            for block, _ in move.terms:
                self.used.setdefault(block, []).append(move)

    def to(self, side: Side, cell: Cell) -> list[str]:
        """The keys of the numbers of the other side that this one is tied to."""
        if not self.several:
            return []
        if side is self.source:
            return [key("target", move.target, cell.place) for move in self.used.get(cell.block, [])]
        return [key("source", block, cell.place) for block, _ in self.made[cell.block].terms]

    def tells(self, side: Side, cell: Cell) -> str:
        """What a number is, and where it goes or comes from."""
        said = f"{cell.value:.6g} at {cell.where} is {cell.what}"
        if not self.several:
            return f"{said}."
        return f"{said}; {self.goes(cell) if side is self.source else self.comes(cell)}."

    def goes(self, cell: Cell) -> str:
        """Where a number of the source goes."""
        moves = self.used.get(cell.block, [])
        if not moves:
            return f"{self.target.record.name} has no place for it, and the function is the same without it"
        return ", and ".join(self.went(move, cell) for move in moves)

    def went(self, move: Move, cell: Cell) -> str:
        """One place that a number goes to."""
        where = self.target.where(self.there[move.target], cell.place)
        sign = next(sign for block, sign in move.terms if block == cell.block)
        others = [
            self.source.where(self.here[block], cell.place) for block, _ in move.terms if block != cell.block
        ]
        others += [f"{move.constant:g}"] if move.constant else []
        what = f"summed with {' and '.join(others)}" if others else DONE[move.kind]
        return f"it is {'negated and ' if others and sign < 0 else ''}{what}, to {where}"

    def comes(self, cell: Cell) -> str:
        """Where a number of the target comes from."""
        move = self.made[cell.block]
        if not move.terms:
            return f"it is filled with {move.constant:g}"
        parts = [
            f"{'' if sign > 0 else '-'}{self.source.where(self.here[block], cell.place)}"
            for block, sign in move.terms
        ]
        parts += [f"{move.constant:g}"] if move.constant else []
        return f"it comes from {' + '.join(parts)}, {DONE[move.kind]}"


def key(side: str, block: Block, place: tuple[int, ...]) -> str:
    """What a number is called in the page, by what it is."""
    return f"{side}.{block.parameter}{block.gate}.{block.layer}.{block.direction}.{'.'.join(map(str, place))}"


# ---- what the template draws -------------------------------------------------------------------------------


def shown(side: Side, tied: Ties) -> dict[str, Any]:
    """One side as the template takes it."""
    return {
        "key": side.key,
        "layout": side.record.name,
        "equations": [list(parted(line)) for line in equations(side.semantics, side.places)],
        "drawings": [
            drawn(drawing, side, tied) for drawing in drawings(side.arrays, side.record, side.sizes)
        ],
    }


def parted(line: str) -> Iterator[tuple[str, str, str]]:
    """An equation as pieces of text, and of names with what stands below them and their gate.

    >>> list(parted("r = sigmoid(W_r x)"))
    [('r = sigmoid(', '', ''), ('W', 'r', 'r'), (' x)', '', '')]
    """
    for place, piece in enumerate(re.split(r"\b([A-Za-z]_[a-z])\b", line)):
        if place % 2:
            yield piece[0], piece[2], piece[2]
        elif piece:
            yield piece, "", ""


def drawn(drawing: Drawing, side: Side, tied: Ties) -> dict[str, Any]:
    """An array as the template takes it."""
    seen: set[Block] = set()
    left_out = numbers_left_out(drawing)
    return {
        "name": drawing.name,
        "search": drawing.name,
        "shape": ", ".join(map(str, drawing.shape)),
        "dtype": drawing.dtype,
        "notation": drawing.notation,
        "left_out": f"{left_out:,}" if left_out else "",
        "panels": [
            {
                "title": panel.title,
                "columns": panel.columns,
                "lines": [
                    {"label": line.label, "cells": list(cells(panel, number, side, tied, seen))}
                    for number, line in enumerate(panel.lines)
                ],
            }
            for panel in drawing.panels
        ],
    }


def cells(
    panel: Panel, number: int, side: Side, tied: Ties, seen: set[Block]
) -> Iterator[dict[str, Any] | None]:
    """The numbers of a line; the first of each block has its name."""
    line = panel.lines[number]
    for place, cell in enumerate(line.cells):
        if cell is None:
            yield None
            continue
        block = cell.block
        above = panel.lines[number - 1] if number else None
        edges = " top" if differs(above, place, block) else ""
        edges += " start" if differs(line, place - 1, block) else ""
        yield {
            "key": key(side.key, block, cell.place),
            "to": " ".join(tied.to(side, cell)),
            "what": cell.what,
            "tells": tied.tells(side, cell),
            "gate": block.gate or "none",
            "letter": block.gate or block.parameter,
            "parameter": block.parameter,
            "name": f"{block.parameter}{'_' if block.gate else ''}{block.gate}",
            "number": f"{cell.value:.6f}" if abs(cell.value) < 1e4 else f"{cell.value:.5g}",
            "first": block not in seen,
            "edges": edges,
        }
        seen.add(block)


def differs(line: Line | None, place: int, block: Block) -> bool:
    """Whether the number at a place of a line is of another block, or none."""
    if line is None or not 0 <= place < len(line.cells):
        return True
    cell = line.cells[place]
    return cell is not None and cell.block != block
