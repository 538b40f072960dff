"""Values over all rows on a device, such as gradients of weights; and matrices for each row.

    contract    a sum of outer products        `contracted`, in parts of a fixed number of vectors
    reduce      a sum, mean or maximum         `CudaMemory.reduce`, all rows as one sequence
    scatter     sums at indices                the entries of each index one after the other, as sequences

All sums have a fixed order, and no number is added to by two threads. For `scatter` the host puts the indices
in order, so it waits for the device.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.targets.cuda.arrays.constants import computed
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory, checked_indices, launch_over, shift_of
from stepnet.compiler.targets.cuda.arrays.products import contracted
from stepnet.compiler.targets.cuda.device import Array, DeviceArray, empty
from stepnet.compiler.targets.cuda.options import DEFAULT, CudaOptions
from stepnet.compiler.targets.cuda.written import kernel_code
from stepnet.errors import IndexOutsideError
from stepnet.ragged.offsets import offsets_of


def total(
    memory: CudaMemory,
    node: Node,
    operands: Sequence[DeviceArray],
    options: CudaOptions = DEFAULT,
    stored: Sequence[str | None] = (None, None),
) -> DeviceArray:
    """Computes a node that reduces over all rows of a batch to one value, `contract`, `reduce` or `scatter`,
    or an operation on such values.

    operands: the values of all rows or steps, end to end. options: the precision of products.
    stored: for each operand the dtype of 16 bits in which its numbers are known to be; None for none.

    Raises `IndexOutsideError` for an index of `scatter` that its table does not have.
    """
    if node.operation == "contract":
        left, right = operands
        way = way_of(node) or options.way(node.type.dtype, *stored)
        return contracted(memory.device, left, right, way)
    if node.operation == "reduce":
        (value,) = operands
        made = memory.reduce(node.attributes["how"], value, np.array([0, value.shape[0]]))
        return made.reshape(value.shape[1:])
    if node.operation != "scatter":
        return computed(memory, node, operands)
    index, values = operands
    return scattered_sums(memory, index, values, node.attributes["rows"])


def reduced_to_rows(
    memory: CudaMemory, node: Node, operands: Sequence[DeviceArray], offsets: Array
) -> DeviceArray:
    """Computes a node that reduces the steps of each sequence to one value: `reduce` or `contract`.

    operands: the values of all steps, end to end. offsets: where each sequence begins and ends.
    """
    if node.operation == "reduce":
        return memory.reduce(node.attributes["how"], operands[0], offsets)
    left, right = operands
    m, n = node.type.shape
    made = empty(memory.device, (len(offsets) - 1, m, n), node.type.dtype)
    if made.nbytes:
        vectors = offsets * prod(left.shape[1:-1])
        dtypes, shift = (left.dtype, right.dtype, made.dtype), shift_of(m * n)
        code = kernel_code("arrays.sums.contracted_rows", *dtypes, way_of(node))
        words = [made.address, left.address, right.address, memory.indices(vectors).address]
        launch_over(memory.device, code, made.shape[0] << shift, [*words, made.shape[0], m, n, shift])
    return made


def way_of(node: Node) -> str:
    """Returns the way to multiply of a `contract` node: "" for the numbers as they are."""
    if node.attributes.get("weights") is None:
        return ""
    return "bfloat16" if node.type.dtype == "float32" else "rounded"


def scattered_sums(memory: CudaMemory, index: DeviceArray, values: DeviceArray, rows: int) -> DeviceArray:
    """Adds up the values at each index: integers [a...] and values [a..., b...] give [rows, b...].

    Raises `IndexOutsideError` for an index that is outside of the rows.
    """
    features = values.shape[len(index.shape) :]
    at = memory.get(index).reshape(-1).astype(np.int64)
    try:
        at = checked_indices(at, rows)
    except IndexError:
        raise IndexOutsideError(OUTSIDE) from None
    order = np.argsort(at, kind="stable")
    offsets = offsets_of(np.bincount(at, minlength=rows))
    return memory.reduce("sum", values.reshape((len(at), *features)), offsets, order)
