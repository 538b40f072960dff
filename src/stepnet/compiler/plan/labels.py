"""Labels of the elements of a step's values: elements with the same label are computed alike.

    k[:, None] * a      has the same label in all columns, if a is a number

So it is found along which axes a value is the same. Labels are numbers, mixed like a hash.
"""

from math import prod

import numpy as np

from stepnet.compiler.net.ir import Net, Node

Array = np.ndarray
ODD = np.uint64(0x9E3779B97F4A7C15)
"""An odd number by which labels are multiplied, so that different ones do not meet."""


def differs(labels: Array, axis: int) -> bool:
    """Tells whether labels differ along an axis."""
    return bool((labels != labels.take([0], axis)).any())


def is_flat(view: Node, shape: tuple[int, ...]) -> bool:
    """Tells whether a view shows all elements in their order. shape: the shape of its operand."""
    at = np.arange(prod(shape)).reshape(shape)
    shown = viewed(view, at)
    return shown.size == at.size and bool((shown.ravel() == at.ravel()).all())


def viewed(view: Node, *arrays: Array) -> Array:
    """Returns the array that a view shows. It concatenates several operands, which have no rows."""
    return np.asarray(view.row.meaning(*(array[None] for array in arrays), **view.attributes))[0]


@np.errstate(over="ignore")
def labels_of(body: Net) -> dict[int, Array]:
    """Returns labels for the values of a step: elements with the same label are computed alike. Elements of
    sums, products and inputs have labels of their own.
    """
    found, count = dict[int, Array](), 1
    for number, node in enumerate(body.nodes):
        if len(node.types) != 1:
            continue
        own = [found[operand] for operand in node.inputs]
        if node.kind == "pointwise":
            label: Array = np.asarray(np.uint64(number + 1) * ODD)
            for operand in own:
                label = mixed(label * ODD + operand)
        elif node.is_view and node.type.extent == body.type_of(node.inputs[0]).extent:
            label = viewed(node, own[0])
        elif node.operation == "expand":
            label = own[0]
        elif node.kind == "reduce" and node.operation == "sum":
            axes = tuple(axis % own[0].ndim for axis in node.attributes["axes"])
            label = mixed(mixed(own[0] * ODD).sum(axis=axes, dtype=np.uint64) + np.uint64(number))
        elif node.operation == "constant":
            label = mixed(bits_of(node.attributes["value"].value) * ODD)
        else:
            label = np.arange(node.type.size, dtype=np.uint64).reshape(node.type.shape)
            label = mixed((label + np.uint64(count)) * ODD)
            count += node.type.size
        found[number] = np.asarray(np.broadcast_to(label, node.type.shape), np.uint64)
    return found


def bits_of(array: Array) -> Array:
    """Returns the bits of the numbers of an array, as integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape).astype("u8")


def mixed(labels: Array) -> Array:
    """Returns labels whose bits are mixed, so that sums of them are different."""
    labels = labels ^ (labels >> np.uint64(29))
    return labels * np.uint64(0xBF58476D1CE4E5B9) ^ (labels >> np.uint64(32))
