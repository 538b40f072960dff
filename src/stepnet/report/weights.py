"""The arrays of a layout in the terminal: equations, then every array with its gates in colours and letters.

kernel [2, 9] float32  W[x (g:zrn h)]
  z  0.0149  z -0.0834  z -0.1351  r  0.7275 ...        small ones as their numbers
weight_ih_l0 [192, 40] float32  W[(g:rzn h) x]
  W_r 64 x 40                                           large ones as their blocks, in their order
  W_z 64 x 40
"""

from collections.abc import Iterator, Mapping

from rich.text import Text

from stepnet.layout.places import Array, Block, regions
from stepnet.layout.record import Record
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes
from stepnet.report.drawing import ALL, Cell, Drawing, Line, drawings
from stepnet.report.equations import equations

# The colours of the page, by M. Okabe and K. Ito, mixed with white: black letters are read on all of them.
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


def weights_text(
    arrays: Mapping[str, Array], record: Record, sizes: Sizes, semantics: Semantics, width: int = 100
) -> Text:
    """The equations and the arrays of a layout, in lines of at most `width` characters where that is enough.

    >>> from stepnet.layout.registry import record
    >>> import numpy as np
    >>> rnn = {"kernel": np.ones((1, 2)), "recurrent_kernel": np.eye(2), "bias": np.zeros(2)}
    >>> print(weights_text(rnn, record("keras.rnn"), Sizes(1, 2), Semantics("rnn")))
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
    shown.append(f"{record.name}: {sizes}\n", style="bold")
    blocks = [region.block for region in regions(record, sizes) if region.array in arrays]
    for line in equations(semantics, blocks):
        shown.append(f"  {line}\n")
    for drawing in drawings(arrays, record, sizes, FIRST):
        shown.append(drawing.name, style="bold")
        shown.append(f" {list(drawing.shape)} {drawing.dtype}  {drawing.notation}\n", style="dim")
        for panel in drawing.panels:
            for line in panel.lines:
                for part in folded(line, drawing, sizes, width):
                    shown.append_text(part)
                    shown.append("\n")
    shown.rstrip()
    return shown


def folded(line: Line, drawing: Drawing, sizes: Sizes, width: int) -> Iterator[Text]:
    """A line, on several where it is too long."""
    pieces = [piece(cell, sizes) for cell in line.cells if cell is not None]
    row = Text("  ")
    for one in pieces:
        if len(row) + len(one) > width and len(row) > 2:
            yield row
            row = Text("    ")
        row.append_text(one)
    if pieces:
        yield row


def piece(cell: Cell, sizes: Sizes) -> Text:
    """A number with the letter of its gate; the block it begins, where that is large."""
    block, shape = cell.block, cell.block.shape(sizes)
    style = STYLES[block.gate]
    if max(shape) > ALL:
        return Text.assemble((f" {name(block)} {' x '.join(map(str, shape))} ", style), " ")
    return Text.assemble((f"{block.gate or block.parameter} {cell.value:>7.4f}", style), "  ")


def name(block: Block) -> str:
    """A block without its layer and direction, which the array says."""
    return f"{block.parameter}_{block.gate}" if block.gate else block.parameter
