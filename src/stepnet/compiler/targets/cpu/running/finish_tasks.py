"""The tasks of the work after a loop: contracts and sums. Few plans have any."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.net.types import Type
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.lower.needs import FLOATS
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.contract import Contract, contract
from stepnet.compiler.targets.cpu.running.sums import Sums
from stepnet.compiler.targets.cpu.running.sums import reduced as reduced

ABREAST = 8
"""The number of rows from which NumPy adds the numbers of a single column in parallel sums."""


def contract_task(
    node: Node,
    products: Sequence[tuple[int, ...]],
    types: Mapping[int, Type],
    places: Array,
    processor: Processor,
    offsets: Array | None,
    summed: Collection[tuple[int, str]] = (),
) -> Contract:
    """Prepares the machine code of a contract (a sum of outer products), the gradient of a weight, or of
    several whose operands have the same rows.

    node: one of them. products: the numbers of the left and the right operand of each.
    types: the types of the operands, by number. places: the indices of their rows, in order.
    offsets: where each sequence begins among these, and the end, for a sum for each; None for one over all.
    summed: the positions and sides ("left" or "right") of the operands whose rows are added up too.
    """
    type_ = types[products[0][0]]
    count = prod(type_.shape[:-1])
    if len(type_.shape) > 1:
        places = (places[:, None] * count + np.arange(count)).ravel()
        offsets = None if offsets is None else offsets * count
    columns = {number: own.shape[-1] for number, own in types.items()}
    weights = node.attributes.get("weights")
    return Contract(products, columns, type_.dtype, places, processor, weights, offsets, summed)


def total_task(node: Node, types: Sequence[Type], places: Array, processor: Processor) -> Contract | Sums:
    """Prepares the machine code of a total (a value over all rows), of one for which there is some, as
    `is_task` tells. Returns a `Contract` for the gradient of a weight, else `Sums`.

    node: the node. types: the types of its operands. places: the indices of the operands' rows, in order.
    """
    if node.operation == "contract":
        return contract_task(node, [(0, 1)], dict(enumerate(types)), places, processor, None)
    dtype, size, how = types[0].dtype, types[0].size, node.attributes["how"]
    one = how == "sum" and size == 1 and len(places) >= ABREAST and dtype in FLOATS
    return Sums(size, dtype, places, np.array([0, len(places)]), processor, "pairwise" if one else how)


def total(node: Node, operands: Sequence[Array], processor: Processor) -> Array:
    """Computes the value of a node that combines all rows: by machine code for a contract (the gradient of a
    weight), else by NumPy. operands: the values of the node's inputs.
    """
    if node.operation == "contract":
        left, right = operands
        return contract(left, right, processor, weights=node.attributes.get("weights"))
    return total_of(node, [*operands])


def release(tasks: Iterable[Contract | Sums]) -> None:
    """Returns the buffers of tasks, for gradients of weights, to the pool of memory."""
    for task in tasks:
        if isinstance(task, Contract):
            task.release()
