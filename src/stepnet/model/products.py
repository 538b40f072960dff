"""The floating-point operations of a net's matrix products, as frameworks count those of a model.

x @ W at every step, [2, 3] @ [3, 12]     2 * 3 * 12 for each step; a multiply-add counts as two
"""

from collections.abc import Mapping

from stepnet.compiler.net.flops import flops
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent
from stepnet.ragged.positions import Positions


def products(net: Net, positions: Positions) -> int:
    """Counts a net's operations in matrix products, not elementwise ones. positions: where the steps lie."""
    return counted(net, {CONST: 1, ROWS: positions.rows, STEPS: int(positions.lengths.sum())})


def counted(net: Net, times: Mapping[Extent, int]) -> int:
    """Counts the operations of the matrix products of a net, and of the steps of its recurrences.

    times: how often a value of each extent is computed.
    """
    total = 0
    for number, node in enumerate(net.nodes):
        if node.operation == "recur":
            total += counted(node.recur.body, {CONST: 1, ROWS: times[STEPS]})
        elif node.kind == "matmul" or node.operation == "contract":
            extents = [net.type_of(operand).extent for operand in node.inputs]
            total += flops(net, number) * times[max([node.type.extent, *extents], key=len)]
    return total
