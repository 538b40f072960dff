"""Makes a self-contained page with drawings of the arrays of recurrent modules in two layouts, and where each
number goes.

    kernel [2, 9]   z z z r r r n n n        weight_space [63]   r r r r r r z z z
                          ^ W_r[1, 0]  ------------------------>   ^ moved

The page loads nothing: it contains its style and script, and its content security policy allows only these,
by their hashes. Names of modules and arrays come from files, and are escaped.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from stepnet.compiler.values.records import dataclass
from stepnet.explain.drawing import Drawing, NumberLine, Panel, drawings, numbers_left_out
from stepnet.explain.equations import equations
from stepnet.explain.notation_words import GATES, PARAMETERS, explain_notation
from stepnet.explain.ties import MARKS, ConversionSide, Ties, key
from stepnet.layout.convert import Conversion
from stepnet.layout.places import Array, ParameterBlock
from stepnet.layout.record import Record


@dataclass(frozen=True)
class PageModule:
    """Module on a page: its name, its arrays with their record, and their conversion.

    If the conversion is to the same layout, only one side is drawn.
    """

    name: str
    arrays: Mapping[str, Array]
    record: Record
    conversion: Conversion

    @property
    def title(self) -> str:
        """Heading on the page of a module (drawn layers): its source and target layout, or the only one."""
        report = self.conversion.report
        return report.source if report.source == report.target else f"{report.source} → {report.target}"


@dataclass(frozen=True)
class UndrawnModule:
    """Module that is not drawn because a setting is missing: its name, and the message."""

    name: str
    reason: str
    title = "not drawn"


def picture(modules: Sequence[PageModule | UndrawnModule], title: str = "") -> str:
    """Makes a page about weights as HTML, with drawings of the arrays of all modules, and a legend of their
    contents.

    modules: the modules to draw. title: the heading if there are several modules, such as the file's name.
    """
    style, script = resource("picture.css"), resource("picture.js")
    drawn = [module for module in modules if isinstance(module, PageModule)]
    ties = [Ties(module.arrays, module.record, module.conversion) for module in drawn]
    sides = [side for tied in ties for side in tied.sides]
    cells = {side.record.cell for side in sides}
    parameters = {block.parameter for side in sides for block in side.regions}
    kinds = {kind for tied in ties for side in tied.sides for kind in tied.kinds(side).values()}
    return template().render(
        title=modules[0].title if len(modules) == 1 else title,
        goes=any(tied.several for tied in ties),
        example=f"W_{next(iter(GATES[drawn[0].record.cell]))}, bias, ..." if drawn else "",
        gates=dict.fromkeys(
            (gate, name) for cell in GATES if cell in cells for gate, name in GATES[cell].items()
        ),
        parameters=[(name, PARAMETERS[name]) for name in PARAMETERS if name in parameters],
        marks=[(kind, *MARKS[kind]) for kind in MARKS if kind in kinds and kind != "moved"],
        modules=list(zip(drawn, ties, strict=True)),
        left=[module for module in modules if isinstance(module, UndrawnModule)],
        style=Markup(style),
        script=Markup(script),
        style_hash=digest(style),
        script_hash=digest(script),
        repr=repr,
        drawings=drawings,
        equations=parted_equations,
        explain_notation=explain_notation,
        numbers_left_out=numbers_left_out,
        panels=panels,
    )


def template() -> Any:
    """Loads the Jinja template of the page of drawn weights, which escapes all values."""
    loader = FunctionLoader(resource)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(
        "picture.html.jinja"
    )


def resource(name: str) -> str:
    """Reads a file of the folder `page_files`: the template, the style or the script of the page."""
    return (files("stepnet.explain") / "page_files" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """Returns the hash of a text for a content security policy (W3C, Level 3, 2.3.1)."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


# ---- what the template calls -------------------------------------------------------------------------------


def parted_equations(side: ConversionSide) -> list[list[tuple[str, str, str]]]:
    """Formats the equations of a conversion's source or target as pieces (text, subscript, gate)."""
    return [list(equation_pieces(line)) for line in equations(side.semantics, side.regions)]


def equation_pieces(line: str) -> Iterator[tuple[str, str, str]]:
    """Splits an equation into pieces (text, subscript, gate), so that the page can set subscripts and
    colours.

    >>> list(equation_pieces("r = sigmoid(W_r x)"))
    [('r = sigmoid(', '', ''), ('W', 'r', 'r'), (' x)', '', '')]
    """
    for index, piece in enumerate(re.split(r"\b([A-Za-z]_[a-z])\b", line)):
        if index % 2:
            yield piece[0], piece[2], piece[2]
        elif piece:
            yield piece, "", ""


def panels(drawing: Drawing, side: ConversionSide, tied: Ties) -> Iterator[tuple[Panel, list[Any]]]:
    """Yields (panel, lines) for each panel of the drawing of an array; each line is (label, numbers), where
    each number is a dict for the template of the page, or None for a gap.

    side: the source or the target of the conversion, to which the array belongs. tied: the correspondence of
    the numbers on both sides.
    """
    kinds, seen = tied.kinds(side), set[ParameterBlock]()
    for panel in drawing.panels:
        lines = enumerate(panel.lines)
        yield panel, [(line.label, list(cell_values(panel, n, side, tied, kinds, seen))) for n, line in lines]


def cell_values(
    panel: Panel,
    number: int,
    side: ConversionSide,
    tied: Ties,
    kinds: Mapping[ParameterBlock, str],
    seen: set[ParameterBlock],
) -> Iterator[dict[str, Any] | None]:
    """Yields a dict for the template of the page for each number of a line, or None for a gap.

    Its keys: "key" and "to", the number's key and the keys of the numbers that it corresponds to; "what" and
    "tells", its index as text and a sentence; "classes", for CSS; "mark", the sign of its conversion;
    "letter", "name", "number", texts to show; "first", true if the block was not in `seen`.

    number: the index of the line in the panel. side: the side of the conversion that the array belongs to.
    tied: the correspondence of numbers on both sides. kinds: what became of each block, as keys of `MARKS`.
    seen: the blocks (parameters of one gate) whose names were already shown; new ones are added.
    """
    line = panel.lines[number]
    above = panel.lines[number - 1] if number else None
    for index, cell in enumerate(line.cells):
        if cell is None:
            yield None
            continue
        block, kind = cell.block, kinds[cell.block]
        edges = (edge(above, index, block, "top"), edge(line, index - 1, block, "start"))
        yield {
            "key": key(side.key, block, cell.index),
            "to": " ".join(tied.to(side, cell)),
            "what": cell.what,
            "tells": tied.sentence(side, cell),
            "classes": " ".join(filter(None, [block.gate or "none", block.parameter, kind, *edges])),
            "mark": MARKS[kind][0],
            "letter": block.gate or block.parameter,
            "name": f"{block.parameter}{'_' if block.gate else ''}{block.gate}",
            "number": f"{cell.value:.6f}" if abs(cell.value) < 1e4 else f"{cell.value:.5g}",
            "first": block not in seen,
        }
        seen.add(block)


def edge(line: NumberLine | None, index: int, block: ParameterBlock, where: str) -> str:
    """Returns the CSS classes of the border between a number of `block` and its neighbour, at index `index`
    of a line.

    The border is thin between blocks, thick between parameters, and missing inside a block. where: the side
    of the number on which the border is, "top" or "start".

    >>> edge(None, 0, ParameterBlock("W", "r"), "top")
    'top'
    """
    if line is None or not 0 <= index < len(line.cells):
        return where
    cell = line.cells[index]
    if cell is None or cell.block == block:
        return ""
    return where if cell.block.parameter == block.parameter else f"{where} {where}most"
