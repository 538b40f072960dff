"""Values and nodes of an ONNX graph that is being written: of a model, or of a body (of a Scan) in it."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST, STEPS, Extent, Type
from stepnet.compiler.net.windows import Lengths, split
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.layout.files.onnx.drawing import GraphBuilder
from stepnet.layout.files.onnx.tensor import Proto

Array = np.ndarray
BATCH, TIME = STEPS
"""The axes of sequences and of steps, in ONNX's tensors the second and the first."""


@dataclass(frozen=True)
class OnnxValue:
    """Value of a net in an ONNX graph that is being written.

    type: its type in the net.
    name: its name in the graph; "" for a value with an array.
    array: the array of a constant, or of a value that is the same for every sequence or step; else None.
    """

    type: Type
    name: str = ""
    array: Array | None = None

    @classmethod
    def of(cls, array: Any, dtype: str | None = None) -> "OnnxValue":
        """Makes a constant of an ONNX graph from numbers. dtype: None for NumPy's dtype of these."""
        constant = np.asarray(array, dtype)
        return cls(Type(CONST, constant.shape, constant.dtype.name), array=constant)

    @property
    def known(self) -> Array:
        """Array of a constant, for operators that need constants; raises `ModelError` for any other value."""
        if self.array is None:
            raise ModelError("an operand is computed, and ONNX requires a constant here")
        return self.array

    @property
    def lead(self) -> int:
        """Number of axes before the value's features, such as time and batch."""
        return len(self.type.extent)

    @property
    def rank(self) -> int:
        """Number of axes of the value's features, which follow the axes of time and batch."""
        return len(self.type.shape)


class Scope:
    """Nodes of an ONNX model that is being written, and the names in it. Nodes of a body are collected by
    `inside`.

    frames: the name of a value [time, batch, ...], from which sizes are taken. samples: by derived axis of
    steps, the name of the first value that has it. lengths: the name of the sequences' lengths, "" for none.
    """

    def __init__(self, drawing: GraphBuilder) -> None:
        """Starts an ONNX model without nodes. drawing: collects its nodes and constants; while a body is
        written, the body's nodes.
        """
        self.drawing = drawing
        self.frames = self.lengths = ""
        self.samples = dict[str, str]()
        self.taken = set[str]()
        self._shared = dict[Any, str]()
        self._main = drawing.nodes

    # ---- nodes

    def fresh(self, name: str) -> str:
        """Returns an unused name for a node or a value: `name`, with a number if it is taken."""
        candidate, count = name, 0
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        return candidate

    def node(self, op: str, *inputs: "OnnxValue | str | Array", **attributes: Any) -> str:
        """Adds a node of the operator `op`; returns the name of its one output. Arrays become constants."""
        names = [self.name(value) for value in inputs]
        return self.drawing.node(op, names, self.fresh(op.lower()), **attributes)

    def apply(self, op: str, type_: Type, *inputs: "OnnxValue | str | Array", **attributes: Any) -> OnnxValue:
        """Adds a node of the operator `op`; returns its output as a value of type `type_`."""
        return OnnxValue(type_, self.node(op, *inputs, **attributes))

    def name(self, value: "OnnxValue | str | Array") -> str:
        """Returns the name of a value in the ONNX graph, for a node that reads it; a name is returned as it
        is. Constants are added to the graph at first use, equal ones once.
        """
        if isinstance(value, str):
            return value
        if isinstance(value, OnnxValue) and value.array is None:
            return value.name
        if isinstance(value, OnnxValue) and value.type.extent != CONST:
            return self.repeated(value)
        array = value.known if isinstance(value, OnnxValue) else value
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.drawing.constant(self.fresh("constant"), array)
        return self._shared[key]

    def repeated(self, value: OnnxValue) -> str:
        """Adds a node that repeats a constant for every sequence or step; returns the name of the result."""
        inner = self.name(value.known)
        sizes = self.sizes(value.type.extent, value.rank)
        return self.shared(("repeated", value.type.extent, inner), "Expand", inner, sizes)

    def kind(self, dtype: str) -> int:
        """Returns ONNX's number of a dtype, for declarations and casts."""
        return self.drawing.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def declared(self, name: str, type_: Type, axes: Sequence[Any]) -> Proto:
        """Makes the declaration of a model's input or output; axes: sizes before the features, or names."""
        shape = [*axes, *type_.shape]
        return self.drawing.onnx.helper.make_tensor_value_info(name, self.kind(type_.dtype), shape)

    @contextmanager
    def inside(self) -> Generator[list[Proto]]:
        """Context manager that collects the nodes added in it as the body of a Scan; yields their list."""
        before, self.drawing.nodes = self.drawing.nodes, []
        try:
            yield self.drawing.nodes
        finally:
            self.drawing.nodes = before

    @contextmanager
    def outside(self) -> Generator[None]:
        """Context manager that adds nodes to the model itself, even while a Scan's body is written; values
        that all bodies share are computed there.
        """
        before, self.drawing.nodes = self.drawing.nodes, self._main
        try:
            yield
        finally:
            self.drawing.nodes = before

    # ---- numbers of the batch

    def shared(self, what: Any, op: str, *inputs: "OnnxValue | str | Array", **attributes: Any) -> str:
        """Adds a node of the operator `op` to the model itself, outside all bodies, once for all that ask for
        it by the same key; returns the name of its output.

        what: a key; the node is added only for the first call with this key.
        """
        if what not in self._shared:
            with self.outside():
                self._shared[what] = self.node(op, *inputs, **attributes)
        return self._shared[what]

    def counted(self, op: str, *inputs: "str | int", **attributes: Any) -> str:
        """Adds a node that computes with sizes or lengths (int64), once for equal inputs; returns the name of
        its output. op: the operator, such as "Mul". inputs: names of values, or numbers.
        """
        operands = [value if isinstance(value, str) else np.array(value) for value in inputs]
        return self.shared((op, *inputs, *attributes.items()), op, *operands, **attributes)

    def size(self, axis: str) -> str:
        """Adds nodes for the number of entries of an axis, as `BATCH` or `TIME`, an array [1]; returns the
        name of their result. For steps, this is the length of the longest sequence.
        """
        if axis in STEPS:
            at = STEPS[::-1].index(axis)
            return self.shared(("size", axis), "Shape", self.frames, start=at, end=at + 1)
        if axis in self.samples:
            return self.shared(("size", axis), "Shape", self.samples[axis], start=0, end=1)
        return self.derived(axis, self.size(TIME))

    def sampled(self, value: OnnxValue) -> OnnxValue:
        """Notes that the number of steps along a value's axis can be taken from this value from now on;
        returns the value. Values in a Scan's body, and values without steps, are not noted.
        """
        if value.name and value.lead == len(STEPS) and self.drawing.nodes is self._main:
            self.samples.setdefault(value.type.extent[-1], value.name)
        return value

    def derived(self, axis: str, counts: str) -> str:
        """Adds nodes for the lengths of sequences along a derived axis: one whose number of steps follows
        from that of the inputs, as after a stride. Returns their name.

        axis: the axis, whose name contains the rules by which its lengths follow. counts: the name of the
        lengths of the inputs.
        """
        for own in split(axis)[1]:
            counts = self.following(own, counts)
        return counts

    def following(self, lengths: Lengths, counts: str) -> str:
        """Adds nodes for the lengths along an axis that is derived from another; returns their name.

        lengths: the rule by which they follow, as n - 2 or n / 2. counts: the name of the lengths along the
        other axis.
        """
        more, factor, multiplies = lengths
        made = self.counted("Mul", counts, factor) if multiplies else counts
        made = self.counted("Add", made, more) if more else made
        made = self.counted("Max", made, 0) if more < 0 else made
        if not multiplies and factor > 1:
            made = self.counted("Div", self.counted("Add", made, factor - 1), factor)
        if more <= 0:
            return made
        return self.counted("Where", self.counted("Greater", counts, 0), made, 0)

    def positions(self, axis: str) -> str:
        """Adds nodes for the index of each entry of an axis of steps, [time, 1]; returns its name."""
        steps = self.shared(("range", axis), "Range", np.array(0), self.scalar(axis), np.array(1))
        return self.shared(("positions", axis), "Unsqueeze", steps, np.array([1]))

    def scalar(self, axis: str) -> str:
        """Adds nodes for the number of entries of an axis as a number without axes; returns its name."""
        return self.shared(("scalar", axis), "Squeeze", self.size(axis), np.array([0]))

    def step_counts(self, axis: str) -> str:
        """Adds nodes for the length of each sequence along an axis of steps, [batch], or, in a model without
        lengths, the number of steps of all [1]; returns the name of the result.
        """
        if not self.lengths:
            return self.size(axis)
        return self.derived(axis, self.shared("counts", "Cast", self.lengths, to=self.kind("int64")))

    def sequence_lens(self, axis: str) -> str:
        """Adds nodes for the int32 lengths of recurrent operators; returns the name, "" without lengths."""
        if not self.lengths or axis == TIME:
            return self.lengths
        return self.shared(("lengths", axis), "Cast", self.step_counts(axis), to=self.kind("int32"))

    def last(self, axis: str) -> str:
        """Adds a node for the index of each sequence's last entry along an axis of steps, [batch], or [1] in
        a model without lengths; returns the name of the result.
        """
        return self.shared(("last", axis), "Sub", self.step_counts(axis), np.array(1))

    def mask(self, what: str, rank: int, axis: str) -> str:
        """Adds nodes for a mask of steps or sequences; returns its name.

        what: "steps" is true at steps that are not padding [time, batch]; "first" or "last" only at these
        steps; "rows" for the sequences that have a step [batch]. rank: the number of axes of length 1 to add
        for features. axis: the axis of the steps.
        """
        if what == "rows":
            mask_name = self.shared(("has steps", axis), "Greater", self.step_counts(axis), np.array(0))
        elif what == "steps":
            mask_name = self.shared(("is step", axis), "Less", self.positions(axis), self.step_counts(axis))
        else:
            position = np.array(0) if what == "first" else self.last(axis)
            mask_name = self.shared(("is", what, axis), "Equal", self.positions(axis), position)
        lead = 1 if what == "rows" else 2
        return (
            mask_name
            if not rank
            else self.shared(("mask", what, rank, axis), "Unsqueeze", mask_name, lead + np.arange(rank))
        )

    # ---- values

    def masked(self, value: OnnxValue, what: str, other: Any = 0, axis: str = "") -> OnnxValue:
        """Adds nodes that select a value where a mask is true, else the number `other`. what: the mask:
        "steps" (not padding), "first", "last", or "rows" (sequences that have a step). axis: the axis of the
        steps; "" for the value's own.
        """
        mask = self.mask(what, value.rank, axis or value.type.extent[-1])
        return self.chosen(mask, value, OnnxValue.of(other, value.type.dtype))

    def chosen(self, condition: "OnnxValue | str", value: OnnxValue, other: OnnxValue) -> OnnxValue:
        """Adds nodes that select `value` where a condition is true, else `other`, of equal dtype. For dtypes
        that onnxruntime cannot select, both are cast to another one first.
        """
        dtype = value.type.dtype
        chosen = "int32" if dtype == "bool" else value.type.computed.dtype
        if chosen != dtype:  # onnxruntime has no Where for these dtypes
            numbers = (self.typed(choice, chosen) for choice in (value, other))
            return self.typed(self.chosen(condition, *numbers), dtype)
        return self.apply("Where", value.type, condition, value, other)

    def typed(self, value: OnnxValue, dtype: str) -> OnnxValue:
        """Adds a node that casts a value to a dtype, unless it has it already; returns the result."""
        type_ = replace(value.type, dtype=dtype)
        if value.type.dtype == dtype:
            return value
        if value.array is not None:
            return OnnxValue(type_, array=value.array.astype(dtype))
        return self.apply("Cast", type_, value, to=self.kind(dtype))

    def with_rank(self, value: OnnxValue, rank: int) -> OnnxValue:
        """Adds leading axes of length 1 to a value, up to `rank` axes of features; constants need none."""
        ones = rank - value.rank
        if not ones or value.type.extent == CONST:
            return value
        type_ = replace(value.type, shape=(1,) * ones + value.type.shape)
        if value.array is not None:
            return OnnxValue(type_, array=value.array.reshape(type_.shape))
        return self.apply("Unsqueeze", type_, value, value.lead + np.arange(ones))

    def shaped(self, value: OnnxValue, shape: tuple[int, ...]) -> OnnxValue:
        """Adds a node that reshapes a value's features, unless they have the shape; returns the result."""
        if value.type.shape == shape:
            return value
        type_ = replace(value.type, shape=shape)
        if value.array is not None:
            return OnnxValue(type_, array=value.array.reshape(shape))
        if 0 in shape or 0 in value.type.shape:
            raise ModelError("it has an axis of features of length 0")
        return self.apply("Reshape", type_, value, np.array([0] * value.lead + [*shape], np.int64))

    def expanded(self, value: OnnxValue, extent: Extent) -> OnnxValue:
        """Adds nodes that repeat a value per sequence at each step, along a new first axis of time; returns
        the result. A constant, with an array, needs no nodes: only its type changes. extent: the axes before
        the features that the result has.
        """
        type_ = value.type.at(extent)
        if value.array is not None:
            return OnnxValue(type_, array=value.array)
        repeated = self.apply("Unsqueeze", type_, value, np.array([0]))
        return self.apply("Expand", type_, repeated, self.sizes(extent[-1:], 1 + value.rank))

    def sizes(self, extent: Extent, ones: int) -> str:
        """Adds nodes for the sizes of the axes of an extent (axes before the features), steps before
        sequences, and then `ones` times the size 1, as the shape for an Expand; returns the name of the
        shape.
        """
        axes = [self.size(axis) for axis in extent[::-1]]
        if len(axes) + ones == 1:
            return axes[0]
        rest = [np.ones(ones, np.int64)] if ones else []
        return self.shared(("sizes", *axes, ones), "Concat", *axes, *rest, axis=0)
