"""Prints the arrays of a layout in the terminal: equations, then every array with its gates in colours and
letters.

    kernel [2, 9] float32  W[x (g:zrn h)]
      z  0.0149  z -0.0834  z -0.1351  r  0.7275 ...        small arrays as numbers

    weight_ih_l0 [192, 40] float32  W[(g:rzn h) x]
      W_r 64 x 40                                           large arrays as blocks, in order
      W_z 64 x 40
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rich.text import Text

from stepnet.explain.document import DocumentTable, TitledSection
from stepnet.explain.drawing import ALL, WIDEST, Drawing, DrawnNumber, drawings
from stepnet.explain.equations import equations
from stepnet.explain.notation_words import explain_notation
from stepnet.explain.text import text
from stepnet.explain.ties import MARKS, ConversionSide
from stepnet.layout.notation import Concatenation
from stepnet.layout.places import ParameterBlock
from stepnet.layout.sizes import Sizes

# The colours of the page, by M. Okabe and K. Ito, mixed with white: black letters are legible on all of them.
STYLES = {
    "r": "black on #f0bd94",
    "z": "black on #99d8c7",
    "n": "black on #f9f3b3",
    "i": "black on #bbe1f6",
    "f": "black on #f0bd94",
    "g": "black on #f9f3b3",
    "o": "black on #ebc9dc",
    "": "black on #d1d4da",
}
FIRST = (0,)
INDENT = "  "
NUMBER = 11  # characters of a number with its gate


def weights_text(
    side: ConversionSide, width: int = 100, kinds: Mapping[ParameterBlock, str] | None = None
) -> Text:
    """Formats the equations and the arrays of the source or the target of a conversion of weights (`side`),
    in lines of at most `width` characters if possible.

    kinds: for each block (the parameter of one gate), what a conversion does to it, as a key of `MARKS`.

    >>> from stepnet.layout.registry import record
    >>> from stepnet.layout.semantics import Semantics
    >>> from stepnet.layout.sizes import Sizes
    >>> import numpy as np
    >>> rnn = {"kernel": np.ones((1, 2)), "recurrent_kernel": np.eye(2), "bias": np.zeros(2)}
    >>> print(weights_text(ConversionSide("source", rnn, record("keras.rnn"), Sizes(1, 2), Semantics("rnn"))))
    keras.rnn: 1 inputs, 2 hidden
      n = tanh(W_n x + b_n + R_n h)
      h' = n
    kernel [1, 2] float64  W_n[x h]
      n  1.0000  n  1.0000
    recurrent_kernel [2, 2] float64  R_n[k h]
      n  1.0000  n  0.0000
      n  0.0000  n  1.0000
    bias [2] float64  b_n[h]
      n  0.0000  n  0.0000
    """
    shown = Text()
    shown.append(f"{side.record.name}: {side.sizes}\n", style="bold")
    for line in equations(side.semantics, side.regions):
        shown.append(f"  {line}\n")
    per_line = max((width - len(INDENT)) // NUMBER, 1)
    per_line -= per_line % side.sizes.hidden if per_line > side.sizes.hidden else 0  # a line ends with a gate
    for drawing in drawings(side.arrays, side.record, side.sizes, FIRST, min(per_line, WIDEST)):
        shown.append(drawing.name, style="bold")
        shown.append(f" {list(drawing.shape)} {drawing.dtype}  {drawing.pattern}\n", style="dim")
        large = any(is_large(cell.block, side.sizes) for cell in drawing.cells)
        marks = {block: MARKS[kind][0] for block, kind in (kinds or {}).items()}
        lines = blocks(drawing, side, width, marks) if large else numbers(drawing, per_line, marks)
        for line in lines:
            shown.append_text(line).append("\n")
    shown.rstrip()
    return shown


def is_large(block: ParameterBlock, sizes: Sizes) -> bool:
    """Tells if a block (the parameter of one gate) has an axis so long that only its shape is shown."""
    return max(block.shape(sizes)) > ALL


def numbers(drawing: Drawing, per_line: int, marks: Mapping[ParameterBlock, str]) -> Iterator[Text]:
    """Yields the drawn numbers of a small array as lines of text; a wider table is split by columns.

    per_line: the most numbers on a line. marks: for each block (the parameter of one gate), the sign of what
    a conversion does to it.
    """
    for panel in drawing.panels:
        if panel.title:
            yield Text(f"{INDENT}{panel.title}", style="dim")
        across = max(len(line.cells) for line in panel.lines)
        for start in range(0, across, per_line):
            end = min(start + per_line, across)
            if across > per_line:
                yield Text(f"{INDENT}columns {start} to {end - 1}", style="dim")
            for line in panel.lines:
                shown = [number_text(cell, marks) for cell in line.cells[start:end] if cell is not None]
                yield Text(INDENT) + Text("  ").join(shown)


def number_text(cell: DrawnNumber, marks: Mapping[ParameterBlock, str]) -> Text:
    """Formats a number with the letter of its gate and the mark of its block (the parameter of one gate) in a
    conversion, such as "r± 0.7275". marks: the mark of each block, if it has one.
    """
    block, size = cell.block, abs(cell.value)
    value = (
        f"{cell.value:.4f}" if size < 10 else f"{cell.value:.4g}" if size < 10_000 else f"{cell.value:.0e}"
    )
    return Text(f"{block.gate or block.parameter}{marks.get(block) or ' '}{value:>7}", STYLES[block.gate])


def blocks(
    drawing: Drawing, side: ConversionSide, width: int, marks: Mapping[ParameterBlock, str]
) -> Iterator[Text]:
    """Yields lines of text with the blocks (parameters of one gate) of a large array, in order, with their
    shapes.

    Blocks that begin on one line of a table share a line, which is wrapped at `width`. drawing: the numbers
    of the array, by which its blocks are found. side: the arrays' side of a conversion, with the sizes.
    marks: for each block, the sign of what a conversion does to it.
    """
    lines = [[cell.block for cell in line.cells if cell] for panel in drawing.panels for line in panel.lines]
    if not isinstance(drawing.pattern, Concatenation):
        lines = [[block for line in lines for block in line]]
    keys = {(block.layer, block.direction) for line in lines for block in line}
    seen: set[ParameterBlock] = set()
    for line in lines:
        row = Text(INDENT)
        for block in dict.fromkeys(line):
            if block in seen:
                continue
            seen.add(block)
            name = str(block) if len(keys) > 1 else str(replace(block, layer=0, direction=0))
            shape = " x ".join(map(str, block.shape(side.sizes)))
            text = Text(f" {name}{marks.get(block, '')} {shape} ", STYLES[block.gate])
            if len(row) + len(text) > width and len(row) > len(INDENT):
                yield row
                row = Text(INDENT)
            row.append_text(text).append(" ")
        if row.plain.strip():
            yield row


def signs(side: ConversionSide, kinds: Mapping[ParameterBlock, str]) -> dict[str, str]:
    """Returns the explanations, by sign, of the marks and of the notation that are printed for the source or
    the target of a conversion (`side`), for a legend. Blocks that are copied unchanged ("moved") have no
    mark.

    kinds: for each block (the parameter of one gate), what the conversion does to it, as a key of `MARKS`.
    """
    held = set(kinds.values()) - {"moved"}
    explained_signs = {sign: words for kind, (sign, words) in MARKS.items() if kind in held}
    for entry in side.record.entries(side.sizes):
        if entry.name in side.arrays:
            explained_signs |= explain_notation(entry.pattern)
    return explained_signs


def legend(explained_signs: Mapping[str, str]) -> Text:
    """Formats explanations of signs as lines below "where", for the end of the output.

    >>> print(legend({"x": "inputs", "{L: ...}": "for every layer"}))
    where
      x         inputs
      {L: ...}  for every layer
    """
    return Text(text([TitledSection("where", (DocumentTable(tuple(explained_signs.items())),))]), style="dim")
