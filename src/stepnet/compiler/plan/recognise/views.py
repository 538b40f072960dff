"""Views as maps of indices: where the features of a view lie in its source.

    a[:, 64:128]   ->   the places 64, 65, ..., 127 of a
    W.T[:, :64]    ->   row i, column j of it is at the place i + 64 j of W

A place is a flat index. The place of an element is a sum of one contribution per axis, so a view of a matrix
with a million elements is two short arrays. Slices, transposes, takes and broadcasts preserve this. Reshapes
do if they do not mix axes, and no usual way of reading gates does that.
"""

from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class View:
    """View of a node, whose elements it shows in other indices: its element at i, j is the node's element at
    the flat index start + axes[0][i] + axes[1][j], and so on for other ranks.
    """

    root: int
    start: int
    axes: tuple[Array, ...]

    @classmethod
    def of_node(cls, root: int, shape: tuple[int, ...]) -> "View":
        """Makes the view that shows all elements of node `root`, of this shape, in their order."""
        return cls(root, 0, strides(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The feature shape of the view, which shows elements of a node in another arrangement."""
        return tuple(len(axis) for axis in self.axes)

    def indices(self, features: Array) -> Array:
        """Translates flat indices of features of the view to flat indices in the node that it shows."""
        total = np.full(features.shape, self.start, np.int64)
        if self.axes:
            for axis, at in zip(self.axes, np.unravel_index(features, self.shape), strict=True):
                total += axis[at]
        return total


def strides(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Returns one array for each axis of a contiguous array of this shape: what each index along the axis
    adds to the flat index of an element.
    """
    axes: list[Array] = []
    step = 1
    for size in reversed(shape):
        axes.append(np.arange(size, dtype=np.int64) * step)
        step *= size
    return tuple(reversed(axes))


def views_of(net: Net) -> list[View]:
    """Returns, for each node of a net, the view that shows its value: elements of an earlier node by their
    flat indices. A node that is no view, or that mixes axes, has a view of all its own elements.
    """
    views: list[View] = []
    for number, node in enumerate(net.nodes):
        shape = node.types[0].shape
        source = views[node.inputs[0]] if len(node.inputs) == 1 else None
        view = None if source is None or len(node.types) > 1 else viewed(node, source)
        views.append(View.of_node(number, shape) if view is None else view)
    return views


def viewed(node: Node, source: View) -> View | None:
    """Makes the view that shows the value of a node: elements of the node that the view `source` shows, in
    another order. source: the view that shows the operand of the node.

    Returns None if the operation is no view, or mixes axes.
    """
    attributes = node.attributes
    axes = source.axes
    new_axes: tuple[Array, ...]
    match node.operation:
        case "expand" | "concatenate":
            new_axes = axes
        case "slice":
            new_axes = tuple(
                axis[start : None if stop < 0 else stop : step]
                for axis, (start, stop, step) in zip(axes, attributes["slices"], strict=True)
            )
        case "transpose":
            order: tuple[int, ...] = attributes["order"]
            new_axes = tuple(axes[index] for index in order)
        case "take":
            axis = int(attributes["axis"]) % len(axes)
            new_axes = (
                *axes[:axis],
                axes[axis][np.array(attributes["indices"], np.int64)],
                *axes[axis + 1 :],
            )
        case "broadcast":
            new_axes = broadcast(axes, attributes["shape"])
        case "reshape":
            return reshaped(source, attributes["shape"])
        case _:
            return None
    return View(source.root, source.start, new_axes)


def broadcast(axes: tuple[Array, ...], shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Broadcasts a view of a node to a shape; returns its axes for the new shape.

    axes: one array for each axis of the view: what each index along the axis adds to the flat index of an
        element in the node.
    """
    ahead = len(shape) - len(axes)
    padded = (*(np.zeros(1, np.int64) for _ in range(ahead)), *axes)
    return tuple(
        np.repeat(axis, size) if len(axis) == 1 else axis for axis, size in zip(padded, shape, strict=True)
    )


def reshaped(source: View, shape: tuple[int, ...]) -> View | None:
    """Reshapes a view of a node; returns None if this mixes axes, so that the flat index of an element in the
    node is no longer a sum of one number per axis.
    """
    if 0 in shape:
        return View(source.root, source.start, tuple(np.zeros(size, np.int64) for size in shape))
    start = source.start + int(sum(axis[0] for axis in source.axes if len(axis) == 1))
    old = [axis for axis in source.axes if len(axis) > 1]
    split_axes: list[Any] = []
    sizes_left = [size for size in shape if size > 1]
    while sizes_left:
        merged = old.pop(0)
        sizes = [sizes_left.pop(0)]
        while len(merged) != (size := int(np.prod(sizes))):
            if len(merged) < size:
                merged = (merged[:, None] + old.pop(0)).ravel()
            else:
                sizes.append(sizes_left.pop(0))
        if (axes_of_group := split_axis(merged, sizes)) is None:
            return None
        split_axes += axes_of_group
    axes = [split_axes.pop(0) if size > 1 else np.zeros(1, np.int64) for size in shape]
    return View(source.root, start, tuple(axes))


def split_axis(axis: Array, sizes: list[int]) -> list[Array] | None:
    """Splits an axis of a view of a node into axes of these sizes; returns None if that is impossible.

    axis: for each index along the axis, the amount that it adds to the flat index of an element in the node.
        The returned axes have the same form, one array each.
    """
    if len(sizes) == 1:
        return [axis]
    grid = axis.reshape(sizes)
    first = [0] * len(sizes)
    axes: list[Array] = []
    total: Any = axis[0]
    for position, size in enumerate(sizes):
        index: list[Any] = list(first)
        index[position] = slice(None)
        axes.append(grid[tuple(index)] - (0 if position == 0 else axis[0]))
        total = total + (grid[tuple(index)] - axis[0]).reshape(
            [size if p == position else 1 for p in range(len(sizes))]
        )
    return axes if np.array_equal(total, grid) else None
