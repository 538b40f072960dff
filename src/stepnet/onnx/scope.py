"""The values and nodes of an ONNX graph that is being written: of a model, or of a body in it.

    const        an array           an initializer, once something reads it
    rows         [batch, ...]
    rows/steps   [time, batch, ...]

A body runs on one step, so that its rows are [batch, ...] too.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST, STEPS, Extent, Type
from stepnet.errors import ModelError
from stepnet.files.onnx.drawing import GraphBuilder
from stepnet.files.onnx.tensor import Proto

Array = np.ndarray
TIME, BATCH = 0, 1
"""The axes of the sequences."""


@dataclass(frozen=True)
class OnnxValue:
    """A value of a net in ONNX.

    type: its type in the net.
    name: its name in the graph; "" for a value with an array.
    array: the array of a constant, or of a value that is the same for every sequence or step; else None.
    """

    type: Type
    name: str = ""
    array: Array | None = None

    @classmethod
    def of(cls, array: Any, dtype: str | None = None) -> "OnnxValue":
        """A constant."""
        made = np.asarray(array, dtype)
        return cls(Type(CONST, made.shape, made.dtype.name), array=made)

    @property
    def known(self) -> Array:
        """The array of a constant; raises `ModelError` for any other value."""
        if self.array is None:
            raise ModelError("an operand is computed, and ONNX requires a constant here")
        return self.array

    @property
    def lead(self) -> int:
        """The number of axes before the features."""
        return len(self.type.extent)

    @property
    def rank(self) -> int:
        """The number of axes of the features."""
        return len(self.type.shape)


class Scope:
    """The nodes of a model that is being written. Nodes of a body are collected by `inside`.

    frames: the name of a value [time, batch, ...]. lengths: the name of the sequences' lengths, "" for none.
    """

    def __init__(self, drawing: GraphBuilder) -> None:
        self.drawing = drawing
        self.frames = self.lengths = ""
        self.taken = set[str]()
        self._shared = dict[Any, str]()
        self._main = drawing.nodes

    # ---- nodes

    def fresh(self, name: str) -> str:
        """An unused name."""
        candidate, count = name, 0
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        return candidate

    def node(self, op: str, *inputs: "OnnxValue | str | Array", **attributes: Any) -> str:
        """Adds a node with one output; returns its name. An array among the inputs becomes a constant."""
        names = [self.name(value) for value in inputs]
        return self.drawing.node(op, names, self.fresh(op.lower()), **attributes)

    def apply(self, op: str, type_: Type, *inputs: "OnnxValue | str | Array", **attributes: Any) -> OnnxValue:
        """Adds a node; returns its output as a value of a type."""
        return OnnxValue(type_, self.node(op, *inputs, **attributes))

    def name(self, value: "OnnxValue | str | Array") -> str:
        """The name of a value. A constant becomes an initializer at its first use."""
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
        """The name of a value that is the same for every sequence or step."""
        inner = self.name(value.known)
        sizes = self.sizes(value.type.extent, value.rank)
        return self.shared(("repeated", value.type.extent, inner), "Expand", inner, sizes)

    def kind(self, dtype: str) -> int:
        """ONNX's number of a dtype; raises `ModelError` for dtypes in which ONNX does not compute."""
        return self.drawing.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def declared(self, name: str, type_: Type, axes: Sequence[Any]) -> Proto:
        """The declaration of an input or output with these axes before its features."""
        shape = [*axes, *type_.shape]
        return self.drawing.onnx.helper.make_tensor_value_info(name, self.kind(type_.dtype), shape)

    @contextmanager
    def inside(self) -> Generator[list[Proto]]:
        """A context that collects the nodes of a body, and gives the list."""
        before, self.drawing.nodes = self.drawing.nodes, []
        try:
            yield self.drawing.nodes
        finally:
            self.drawing.nodes = before

    @contextmanager
    def outside(self) -> Generator[None]:
        """A context in which nodes are added to the model itself, also while a body is written."""
        before, self.drawing.nodes = self.drawing.nodes, self._main
        try:
            yield
        finally:
            self.drawing.nodes = before

    # ---- numbers of the batch

    def shared(self, what: Any, op: str, *inputs: "OnnxValue | str | Array", **attributes: Any) -> str:
        """A value of the model with several readers; its node is added once.

        what: the key of the value.
        """
        if what not in self._shared:
            with self.outside():
                self._shared[what] = self.node(op, *inputs, **attributes)
        return self._shared[what]

    def size(self, axis: int) -> str:
        """The number of steps or sequences, [1]."""
        return self.shared(("size", axis), "Shape", self.frames, start=axis, end=axis + 1)

    @property
    def positions(self) -> str:
        """The index of each step, [time, 1]."""
        time = self.shared("time", "Squeeze", self.size(TIME), np.array([0]))
        steps = self.shared("steps", "Range", np.array(0), time, np.array(1))
        return self.shared("positions", "Unsqueeze", steps, np.array([1]))

    @property
    def counts(self) -> str:
        """The length of each sequence as an int64, [batch]; [1] without lengths."""
        if not self.lengths:
            return self.size(TIME)
        return self.shared("counts", "Cast", self.lengths, to=self.kind("int64"))

    @property
    def last(self) -> str:
        """The index of the last step of each sequence, [batch] or [1]."""
        return self.shared("last", "Sub", self.counts, np.array(1))

    def mask(self, what: str, rank: int) -> str:
        """A mask, followed by `rank` axes of length 1 for features.

        what: "steps", the steps that are not padding [time, batch]; "first" or "last", only these steps;
        "rows", the sequences that have a step [batch].
        """
        if what == "rows":
            mask_name = self.shared("has steps", "Greater", self.counts, np.array(0))
        elif what == "steps":
            mask_name = self.shared("is step", "Less", self.positions, self.counts)
        else:
            place = np.array(0) if what == "first" else self.last
            mask_name = self.shared(("is", what), "Equal", self.positions, place)
        lead = 1 if what == "rows" else 2
        return (
            mask_name
            if not rank
            else self.shared(("mask", what, rank), "Unsqueeze", mask_name, lead + np.arange(rank))
        )

    # ---- values

    def masked(self, value: OnnxValue, what: str, other: Any = 0) -> OnnxValue:
        """A value where a mask is true, and a number elsewhere."""
        return self.chosen(self.mask(what, value.rank), value, OnnxValue.of(other, value.type.dtype))

    def chosen(self, condition: "OnnxValue | str", value: OnnxValue, other: OnnxValue) -> OnnxValue:
        """A value where a condition is true, and another one elsewhere. They are of one dtype."""
        dtype = value.type.dtype
        chosen = "int32" if dtype == "bool" else value.type.computed.dtype
        if chosen != dtype:  # onnxruntime has no Where for these dtypes
            numbers = (self.typed(choice, chosen) for choice in (value, other))
            return self.typed(self.chosen(condition, *numbers), dtype)
        return self.apply("Where", value.type, condition, value, other)

    def typed(self, value: OnnxValue, dtype: str) -> OnnxValue:
        """A value in a dtype."""
        type_ = replace(value.type, dtype=dtype)
        if value.type.dtype == dtype:
            return value
        if value.array is not None:
            return OnnxValue(type_, array=value.array.astype(dtype))
        return self.apply("Cast", type_, value, to=self.kind(dtype))

    def with_rank(self, value: OnnxValue, rank: int) -> OnnxValue:
        """A value with leading axes of length 1 added, up to `rank` axes of features. Constants broadcast
        without.
        """
        ones = rank - value.rank
        if not ones or value.type.extent == CONST:
            return value
        type_ = replace(value.type, shape=(1,) * ones + value.type.shape)
        if value.array is not None:
            return OnnxValue(type_, array=value.array.reshape(type_.shape))
        return self.apply("Unsqueeze", type_, value, value.lead + np.arange(ones))

    def shaped(self, value: OnnxValue, shape: tuple[int, ...]) -> OnnxValue:
        """A value with features in another shape."""
        if value.type.shape == shape:
            return value
        type_ = replace(value.type, shape=shape)
        if value.array is not None:
            return OnnxValue(type_, array=value.array.reshape(shape))
        if 0 in shape or 0 in value.type.shape:
            raise ModelError("it has an axis of features of length 0")
        return self.apply("Reshape", type_, value, np.array([0] * value.lead + [*shape], np.int64))

    def expanded(self, value: OnnxValue, extent: Extent) -> OnnxValue:
        """A value repeated for each entry of a deeper extent."""
        type_ = value.type.at(extent)
        if value.array is not None:
            return OnnxValue(type_, array=value.array)
        repeated = self.apply("Unsqueeze", type_, value, np.array([0]))
        return self.apply("Expand", type_, repeated, self.sizes(STEPS[:1], 1 + value.rank, TIME))

    def sizes(self, extent: Extent, ones: int, first: int | None = None) -> str:
        """The sizes of an extent's axes, and then so many ones. first: the axis that the first is."""
        begin = (TIME if extent == STEPS else BATCH) if first is None else first
        axes = [self.size(begin + place) for place in range(len(extent))]
        if len(axes) + ones == 1:
            return axes[0]
        rest = [np.ones(ones, np.int64)] if ones else []
        return self.shared(("sizes", *axes, ones), "Concat", *axes, *rest, axis=0)
