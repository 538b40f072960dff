"""Writes the operations of a convolution or a pooling as these operators of ONNX.

    windows, reshape, matmul           -->   Conv
    matmul, reshape, overlap           -->   ConvTranspose
    windows, overlap                   -->   the same, with weights of 0 and 1
    windows, max over their entries    -->   MaxPool
    windows, sum, divide by the size   -->   AveragePool

onnxruntime runs them in float32. In other dtypes, and where they depend on the length of each sequence, the
windows themselves are written (`windows.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.net.windows import Lengths, Window, derived_axis, split
from stepnet.compiler.values.records import dataclass
from stepnet.onnx.operators import Rule, WrittenOperation
from stepnet.onnx.scope import OnnxValue

Array = np.ndarray
RUN = "float32"
"""The dtype in which onnxruntime runs convolutions and pooling."""


@dataclass(frozen=True)
class Fused:
    """Operations that are one of ONNX. operand: the node that it reads. rule: writes it."""

    operand: int
    rule: Rule


@dataclass(frozen=True)
class ConvolutionWeight:
    """The weight of a convolution that nodes of a net compute, and what it reads.

    source: the number of the node that it reads: windows, or the operand of a transposed convolution.
    weight: the weight as ONNX has it.
    groups: the number of groups of features.
    first: the first feature that a group reads.
    """

    source: int
    weight: Array
    groups: int = 1
    first: int = 0


@dataclass(frozen=True)
class Finder:
    """Finds nodes of a net that are a convolution or a pooling.

    net: the net. constants: the values that depend only on constants, by node number. lengths: whether the
    model has lengths, so that steps after their ends are padding.
    """

    net: Net
    constants: Mapping[int, OnnxValue]
    lengths: bool

    def node(self, number: int, operation: str) -> Node | None:
        """Returns the node if it has this operation and the dtype `RUN`; else None."""
        node = self.net.nodes[number]
        return node if node.operation == operation and node.type.dtype == RUN else None

    def of(self, node: Node | None, operation: str, at: int = 0) -> Node | None:
        """Returns the operand of a node at a position if it has this operation; else None."""
        return None if node is None else self.node(node.inputs[at], operation)

    def constant(self, node: Node, at: int) -> Array | None:
        """Returns the operand of a node at a position as an array; None if it is no constant."""
        value = self.constants.get(node.inputs[at])
        return None if value is None or value.type.extent != CONST else value.array

    def window(self, node: Node) -> Window | None:
        """Returns the window (steps that a convolution reads at a step) of a node of the net: `windows` lists
        the steps of each window, `overlap` adds up what lies at each step; None for one whose zeros around
        the sequence ONNX's operators do not have.
        """
        window = Window.of(node.attributes)
        return None if window.same and (self.lengths or window.dilation > 1) else window

    def sliced(self, number: int) -> tuple[int, int]:
        """Looks through a node that takes a range of the last feature axis. Returns the number of the node
        that it reads and the first feature that it takes; for any other node, its own number and 0.
        """
        node = self.net.nodes[number]
        if node.operation != "slice":
            return number, 0
        *others, (first, _, step) = node.attributes["slices"]
        sizes = self.net.type_of(node.inputs[0]).shape
        whole = all(part == (0, size, 1) for part, size in zip(others, sizes, strict=False))
        return (node.inputs[0], first) if whole and step == 1 else (number, 0)

    # ---- convolutions

    def convolved(self, number: int) -> ConvolutionWeight | None:
        """Returns the kernel, to write a Conv of ONNX, of a node that multiplies windows of steps [size, in]
        by a constant matrix; None for any other node.
        """
        product = self.node(number, "matmul")
        flat = self.of(product, "reshape")
        matrix = None if product is None else self.constant(product, 1)
        if product is None or flat is None or matrix is None or len(product.type.shape) != 1:
            return None
        source, first = self.sliced(flat.inputs[0])
        if self.node(source, "windows") is None or len(shape := self.net.type_of(source).shape) != 2:
            return None
        weight = matrix.reshape(shape[0], -1, matrix.shape[1]).transpose(2, 1, 0)
        return ConvolutionWeight(source, weight, first=first)

    def by_feature(self, number: int) -> ConvolutionWeight | None:
        """Returns the kernel, to write a Conv of ONNX, of a node that convolves each feature by itself, in as
        many groups as features: windows of steps times constant weights, summed over the window. None for any
        other node.
        """
        total = self.of(self.node(number, "reshape"), "sum")
        products = self.of(total, "multiply")
        values = self.of(products, "reshape")
        weight = None if products is None else self.constant(products, 1)
        if total is None or values is None or weight is None or total.attributes["axes"] != (-3,):
            return None
        source = values.inputs[0]
        shape = self.net.type_of(source).shape
        if self.node(source, "windows") is None or len(shape) != 2 or weight.shape[:-1] != shape:
            return None
        return ConvolutionWeight(source, weight.transpose(1, 2, 0).reshape(-1, 1, shape[0]), shape[1])

    def scattered(self, number: int) -> ConvolutionWeight | None:
        """Returns the kernel, to write a ConvTranspose of ONNX, of a node that multiplies each step by a
        constant matrix and reshapes the result to the entries of a window, [size, out], as a transposed
        convolution does; None for any other node.
        """
        entries = self.node(number, "reshape")
        product = self.of(entries, "matmul")
        matrix = None if product is None else self.constant(product, 1)
        if entries is None or product is None or matrix is None or len(entries.type.shape) != 2:
            return None
        source, first = self.sliced(product.inputs[0])
        return ConvolutionWeight(
            source, matrix.reshape(-1, *entries.type.shape).transpose(0, 2, 1), first=first
        )

    def grouped(
        self, number: int, find: Callable[[int], ConvolutionWeight | None], inputs: int, outputs: int
    ) -> ConvolutionWeight | None:
        """Returns the kernel, to write one operator of ONNX, of a convolution in groups of features: that of
        the node itself, or of the nodes, one for each group, that it concatenates; None for other nodes, and
        for kernels that do not read all features.

        find: finds the kernel of a group. inputs, outputs: the axes of a weight along which its inputs are,
        and along which ONNX has the groups one after the other.
        """
        node = self.node(number, "concatenate")
        parts = [find(part) for part in (node.inputs if node is not None else (number,))]
        kernels = [kernel for kernel in parts if kernel is not None]
        if not kernels or len(kernels) < len(parts):
            return None
        like, width = kernels[0], kernels[0].weight.shape[inputs]
        fit = all(
            (kernel.source, kernel.first, kernel.weight.shape) == (like.source, at * width, like.weight.shape)
            for at, kernel in enumerate(kernels)
        )
        if not fit or self.net.type_of(like.source).shape[-1:] != (width * len(kernels),):
            return None
        return ConvolutionWeight(
            like.source, np.concatenate([kernel.weight for kernel in kernels], outputs), len(kernels)
        )

    def convolution(self, number: int) -> Fused | None:
        """Returns an ONNX Conv that computes the same as a node and its operands, a product of windows of
        steps with constant weights. None for another node, or for zeros around the sequence that a Conv
        cannot have.
        """
        kernel = self.by_feature(number) or self.grouped(number, self.convolved, 1, 0)
        window = None if kernel is None else self.window(self.net.nodes[kernel.source])
        if kernel is None or window is None:
            return None
        attributes = {**attributes_of(window), "dilations": [window.dilation], "group": kernel.groups}
        rule = over_steps("Conv", kernel.weight, attributes, 0 if reads_later(window) else None)
        return Fused(self.net.nodes[kernel.source].inputs[0], rule)

    def transposed(self, number: int) -> Fused | None:
        """Returns an ONNX ConvTranspose that computes the same as a node `overlap` (each step gets the sum of
        the entries of all windows over it) and its operands; None for any other node, and for an overlap with
        another number of results than ONNX's operator.
        """
        made = self.node(number, "overlap")
        if made is None or (window := Window.of(made.attributes)).same:
            return None
        kernel = self.grouped(made.inputs[0], self.scattered, 0, 0) or self.as_it_is(made.inputs[0])
        own, source = made.type.extent[-1], self.net.type_of(kernel.source).extent[-1]
        after = window.reach - window.before - window.lost
        fewest = window.reach + 1 - window.stride - window.before - after
        stated = [last.more - fewest for last in split(own)[1][-1:]]
        for more in (0, *stated):
            lengths = Lengths(fewest + more, window.stride, multiplies=True)
            if 0 <= more < max(window.stride, window.dilation) and derived_axis(source, lengths) == own:
                attributes = {
                    "kernel_shape": [window.size],
                    "strides": [window.stride],
                    "dilations": [window.dilation],
                    "pads": [window.before, after],
                    "output_padding": [more],
                    "group": kernel.groups,
                }
                return Fused(kernel.source, over_steps("ConvTranspose", kernel.weight, attributes, 0))
        return None

    def as_it_is(self, number: int) -> ConvolutionWeight:
        """Returns the identity kernel, by which each step gets the entries of windows, the node `number`."""
        size, *features = self.net.type_of(number).shape
        width = int(np.prod(features))
        weight = np.einsum("sk,fo->sfok", np.eye(size), np.eye(width)).astype(RUN)
        return ConvolutionWeight(number, weight.reshape(size * width, width, size))

    def in_place(self, number: int) -> Fused | None:
        """Returns the ONNX operator Conv that does the same as a node `windows` with zeros around the
        sequence, for what reads windows and is no convolution over steps alone; None for any other node, and
        in a model with lengths.
        """
        made = self.node(number, "windows")
        window = None if made is None or self.lengths else self.window(made)
        if made is None or window is None or (window.before == 0 and window.lost == window.reach):
            return None
        size, *features = made.type.shape
        width = int(np.prod(features))
        weight = np.tile(np.eye(size, dtype=RUN)[:, None], (width, 1, 1))
        attributes = {**attributes_of(window), "dilations": [window.dilation], "group": width}
        rule = over_steps("Conv", weight, attributes, 0 if reads_later(window) else None)
        return Fused(made.inputs[0], by_entry(rule, size))

    # ---- pooling

    def maxima(self, number: int) -> Fused | None:
        """Returns the ONNX operator MaxPool that does the same as a node: the maximum over the entries of a
        window, with those that are steps; None for any other node.
        """
        made = self.node(number, "max")
        values = None if made is None else self.inside(made.inputs[0])
        if made is None or values is None or made.attributes["axes"] != (-2,):
            return None
        if (window := self.window(values)) is None:
            return None
        attributes = {**attributes_of(window), "dilations": [window.dilation]}
        fill = -np.inf if reads_later(window) else None
        return Fused(values.inputs[0], over_steps("MaxPool", None, attributes, fill))

    def inside(self, number: int) -> Node | None:
        """Returns the node `windows` behind a value that is to be reduced over windows: the value itself, or
        a choice (where) that puts the lowest number in place of entries beyond the sequence. None for any
        other node.
        """
        choice = self.node(number, "where")
        values = self.of(choice, "windows", 1) if choice else self.node(number, "windows")
        if choice is not None:
            lowest = self.constant(choice, 2)
            if lowest is None or not np.all(lowest == -np.inf) or values is None:
                return None
            if not self.is_inside(choice.inputs[0], values):
                return None
        return values if values is not None and len(values.type.shape) == 2 else None

    def is_inside(self, number: int, values: Node) -> bool:
        """Tells whether a node is the mask of the windows `values`: windows of ones of the same form, which
        are true for entries that are steps.
        """
        node = self.net.nodes[number]
        if node.operation != "windows" or node.attributes != values.attributes:
            return False
        ones = self.net.nodes[node.inputs[0]]
        array = self.constant(ones, 0) if ones.operation == "expand" else None
        return array is not None and bool(np.all(array)) and ones.attributes.get("how") is None

    def means(self, number: int) -> Fused | None:
        """Returns the ONNX operator AveragePool that does the same as a node: the sum over windows of steps,
        divided by their size or number. None for any other node, and for one that ONNX does not have, as with
        more zeros than the window is long.
        """
        made = self.node(number, "divide")
        total = self.of(made, "sum")
        values = self.of(total, "windows")
        if made is None or total is None or values is None or total.attributes["axes"] != (-2,):
            return None
        window, counted = self.window(values), self.counted(made, values)
        if len(values.type.shape) != 2 or window is None or counted is None or window.dilation > 1:
            return None
        zeros = max(window.before, window.reach - window.before - window.lost)
        if not window.same and zeros >= window.size:
            return None
        attributes = {**attributes_of(window), "count_include_pad": int(counted)}
        fill = 0 if reads_later(window) else None
        return Fused(values.inputs[0], over_steps("AveragePool", None, attributes, fill))

    def counted(self, mean: Node, values: Node) -> bool | None:
        """Tells how a mean over windows divides: True for the size of the window, so that zeros around the
        sequence count; False for the number of steps in it; None for a quotient that is no such mean, or that
        counts steps in a model with lengths.

        mean: the node that divides. values: the node `windows` whose entries are added up.
        """
        divisor = self.constant(mean, 1)
        if divisor is not None:
            return True if bool(np.all(divisor == values.type.shape[0])) else None
        total = self.of(mean, "sum", 1)
        numbers = self.of(total, "cast")
        if self.lengths or total is None or numbers is None or total.attributes["axes"] != (-2,):
            return None
        return False if self.is_inside(numbers.inputs[0], values) else None

    # ---- all

    def fused(self) -> dict[int, Fused]:
        """Returns the nodes of the net that are a convolution or a pooling, by number."""
        finders = self.convolution, self.transposed, self.maxima, self.means, self.in_place
        found = (
            (number, next(filter(None, (find(number) for find in finders)), None))
            for number in range(len(self.net.nodes))
        )
        return {number: fused for number, fused in found if fused is not None}


def reads_later(window: Window) -> bool:
    """Tells whether a window reads steps behind its own one, where padding must not count."""
    return not window.keeps_lengths or window.after > 0


def attributes_of(window: Window) -> dict[str, Any]:
    """Returns the attributes of ONNX's convolutions and pooling for a window, except for its dilation."""
    own = {"kernel_shape": [window.size], "strides": [window.stride]}
    if window.same:
        return {**own, "auto_pad": f"SAME_{window.same.upper()}"}
    return {**own, "pads": [window.before, window.reach - window.before - window.lost]}


def over_steps(op: str, weight: Array | None, attributes: Mapping[str, Any], padding: float | None) -> Rule:
    """Makes the function that writes a convolution or pooling of a net as the ONNX operator `op`, whose
    operand is [batch, features, time].

    weight: the operator's weight; None for none. attributes: the operator's. padding: the number that the
    steps after a sequence's end are set to before, in a model with lengths; None if no result reads them.
    """

    def rule(call: WrittenOperation) -> OnnxValue:
        """Writes an operator of ONNX over the steps of each sequence, between two Transposes."""
        masks = padding is not None and call.scope.lengths
        x: Any = call.scope.masked(call.x, "steps", padding) if masks else call.x
        weights = [] if weight is None else [np.ascontiguousarray(weight)]
        if call.x.rank != 1:
            x = call.scope.node("Reshape", x, np.array([0, 0, call.x.type.size]))
        by_step = call.scope.node("Transpose", x, perm=[1, 2, 0])
        made = call.scope.node(op, by_step, *weights, **attributes)
        if len(call.type.shape) == 1:
            return call.result("Transpose", made, perm=[2, 0, 1])
        return call.result("Reshape", call.scope.node("Transpose", made, perm=[2, 0, 1]), shape_of(call.type))

    return rule


def shape_of(type_: Type) -> Array:
    """Returns the shape of a value [time, batch, features ...] for a Reshape, which keeps the first two."""
    return np.array([0, 0, *type_.shape])


def by_entry(rule: Rule, size: int) -> Rule:
    """Returns the rule that writes windows, of a rule that writes them with the entries behind the features.

    size: the number of entries of a window.
    """

    def entries_first(call: WrittenOperation) -> OnnxValue:
        """Writes the windows, and moves their entries ahead of the features."""
        rest = call.type.shape[1:]
        last = replace(call.node, types=(replace(call.type, shape=(*rest, size)),))
        made = rule(WrittenOperation(call.scope, last, call.operands))
        order = [0, 1, 2 + len(rest), *range(2, 2 + len(rest))]
        return call.result("Transpose", made, perm=order)

    return entries_first
