"""The equations of a `Semantics` as lines of text.

They contain only the blocks that the weights have: a missing bias is left out. `W_r` is W of gate r; x is the
input, h and c are the memory, h' and c' the next memory.
"""

from collections.abc import Collection
from dataclasses import replace

from stepnet.layout.places import ParameterBlock
from stepnet.layout.semantics import GATES, Semantics

NEW = "c'"


def equations(semantics: Semantics, blocks: Collection[ParameterBlock]) -> list[str]:
    r"""Formats the equations of one step of a cell: a line for each gate, then the next memory. semantics:
    the cell and its settings. blocks: the parameters of gates that the weights have; terms with others are
    left out.

    >>> blocks = [ParameterBlock(parameter, gate) for parameter in "WRbd" for gate in "rzn"]
    >>> print(*equations(Semantics("gru"), blocks), sep="\n")
    r = sigmoid(W_r x + b_r + R_r h + d_r)
    z = sigmoid(W_z x + b_z + R_z h + d_z)
    n = tanh(W_n x + b_n + r (R_n h + d_n))
    h' = z h + (1 - z) n
    """
    present = {replace(block, layer=0, direction=0) for block in blocks}
    lines = [f"{gate} = {gate_text(semantics, gate, present)}" for gate in GATES[semantics.cell]]
    return [*lines, *memory_equations(semantics, present)]


def gate_text(semantics: Semantics, gate: str, present: set[ParameterBlock]) -> str:
    """Formats the right side of a gate's equation. Peepholes, the forget bias and a clip are included if the
    cell has them; the input gate of coupled gates is "1 - f". gate: its letter. present: the parameters of
    gates that the weights have.
    """
    if gate == "i" and semantics.coupled:
        return "1 - f"
    candidate = gate in "gn"
    name = semantics.candidate_activation if candidate else semantics.gate_activation
    total = " + ".join([product_text("W", "x", "b", gate, present), *state_terms(semantics, gate, present)])
    if gate == "f" and semantics.forget_bias:
        total += f" + {semantics.forget_bias:g}"
    if ParameterBlock("p", gate) in present:
        total += f" + p_{gate} {NEW if gate == 'o' else 'c'}"
    inner = clipped(total, semantics.clip)
    return inner if name == "linear" else f"{name}({inner})"


def product_text(matrix: str, operand: str, bias: str, gate: str, present: set[ParameterBlock]) -> str:
    """Formats a gate's product of matrix and operand, as "W_r x", and the bias if it is `present`."""
    return f"{matrix}_{gate} {operand}" + (
        f" + {bias}_{gate}" if ParameterBlock(bias, gate) in present else ""
    )


def state_terms(semantics: Semantics, gate: str, present: set[ParameterBlock]) -> list[str]:
    """Formats the terms of a gate's equation that read the memory h. For the candidate of a GRU or MGU they
    are multiplied by the reset gate, before or after the product.

    gate: the letter of the gate. present: the parameters of gates that the weights have.
    """
    if gate != "n" or semantics.cell == "rnn":
        return [product_text("R", "h", "d", gate, present)]
    reset = "r" if semantics.cell == "gru" else "f"
    if semantics.reset == "before":
        return [product_text("R", f"({reset} h)", "d", gate, present)]
    return [f"{reset} ({product_text('R', 'h', 'd', gate, present)})"]


def memory_equations(semantics: Semantics, present: set[ParameterBlock]) -> list[str]:
    """Formats the equations of the next memory: h', and before it c' for an LSTM. present: the parameters of
    gates that the weights have, which decide whether there is a projection and its bias.
    """
    if semantics.cell == "rnn":
        return ["h' = n"]
    if semantics.cell != "lstm":
        keeps = "z" if semantics.cell == "gru" else "f"
        kept, written = (keeps, f"(1 - {keeps})") if semantics.update == "keep" else (f"(1 - {keeps})", keeps)
        return [f"h' = {kept} h + {written} n"]
    name = semantics.output_activation
    output = f"o {NEW}" if name == "linear" else f"o {name}({NEW})"
    if ParameterBlock("P") in present:
        bias = " + q" if ParameterBlock("q") in present else ""
        output = clipped(f"P ({output}){bias}", semantics.projection_clip)
    return [f"{NEW} = {clipped('f c + i g', semantics.cell_clip)}", f"h' = {output}"]


def clipped(text: str, bound: float) -> str:
    """Formats a term as clipped to -bound and bound; a bound of 0 means no clipping."""
    return f"clip({text}, {-bound:g}, {bound:g})" if bound else text
