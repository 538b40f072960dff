"""Loops of a frame while they are made: values that lie in arrays, and elementwise operations gathered into
as few loops as possible.

An elementwise operation joins the earliest loop of its shape in which its operands are known: those that the
same loop computes stay in registers. Arrays get their places when all loops are known (`places.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.targets.frame.program import Instruction
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Shape = tuple[int, ...]


@dataclass(eq=False)
class Root:
    """An array that loops read or write.

    kind: the kind of its buffer. dtype, size: of its elements. name, title: for its buffer; "" for scratch.
    array: the numbers of a constant.
    ready: the index of the last loop that writes it; -1 if it is there from the beginning.
    register: the register of the loop `ready` that has its elements, if an elementwise operation gives it.
    scale: the factor by which its integers become numbers of the model; None for numbers as they are.
    """

    kind: str
    dtype: str
    size: int
    name: str = ""
    title: str = ""
    array: Array | None = None
    ready: int = -1
    register: int | None = None
    scale: float | None = None


@dataclass(frozen=True)
class FrameValue:
    """A value of a net: a view of an array.

    root: the array. offset, strides: the place of its elements there, in elements. shape: its features.
    """

    root: Root
    offset: int
    strides: Shape
    shape: Shape

    @classmethod
    def of(cls, root: Root, shape: Shape) -> "FrameValue":
        """Returns the whole of an array, in C order."""
        return cls(root, 0, strides_of(shape), shape)

    @property
    def dtype(self) -> str:
        """The dtype of the elements."""
        return self.root.dtype

    @property
    def is_whole(self) -> bool:
        """True if the value is the whole of its array, in C order."""
        return self.offset == 0 and prod(self.shape) == self.root.size and self.is_contiguous

    @property
    def is_contiguous(self) -> bool:
        """True if the elements lie one after the other."""
        own = zip(self.shape, self.strides, strides_of(self.shape), strict=True)
        return all(size == 1 or stride == wanted for size, stride, wanted in own)

    @property
    def number(self) -> Any:
        """The number that all elements of a constant are; None if they differ or are not constant."""
        array = self.root.array
        if array is None:
            return None
        first = array.ravel()[0]
        same = array.tobytes() == np.full(array.shape, first, array.dtype).tobytes()
        return first.item() if same else None

    def broadcast(self, shape: Shape) -> "FrameValue":
        """Returns the value repeated to a shape, by NumPy's rules."""
        missing = len(shape) - len(self.shape)
        own = zip(self.shape, self.strides, shape[missing:], strict=True)
        strides = tuple(0 if size == 1 else stride for size, stride, _ in own)
        return FrameValue(self.root, self.offset, (0,) * missing + strides, shape)


def strides_of(shape: Shape) -> Shape:
    """Returns the strides of an array in C order, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass
class PointwiseDraft:
    """An elementwise loop while it is made. Registers below 0 are those that are read: -1 - the place of the
    read.

    shape: the sizes of its axes. reads: the values that it reads. code: its instructions.
    writes: the values that it writes, with their registers.
    about: texts that say what it computes.
    """

    shape: Shape
    reads: list[FrameValue] = field(default_factory=list[FrameValue])
    code: Recorder = field(default_factory=Recorder)
    writes: list[tuple[FrameValue, int]] = field(default_factory=list[tuple[FrameValue, int]])
    about: list[str] = field(default_factory=list[str])

    def register(self, value: FrameValue, loop_index: int) -> FrameRegister:
        """Returns the register of a value's element; reads it if the loop does not compute it."""
        number = value.number
        if number is not None:
            return self.code.constant(value.dtype, number)
        root = value.root
        if root.register is not None and root.ready == loop_index:
            return FrameRegister(root.register, root.dtype)
        if value not in self.reads:
            self.reads.append(value)
        return FrameRegister(-1 - self.reads.index(value), value.dtype)

    def body(self) -> tuple[Instruction, ...]:
        """Returns the instructions with the final numbers of their registers: reads first."""
        return tuple(
            Instruction(each.operation, tuple(map(self.final, each.operands)), each.dtype, each.value)
            for each in self.code.body
        )

    def final(self, register: int) -> int:
        """Returns the final number of a register."""
        return -1 - register if register < 0 else len(self.reads) + register


@dataclass(frozen=True)
class ProductDraft:
    """A product while it is made; as `ProductLoop`, with values for views."""

    left: FrameValue
    weights: Root
    start: FrameValue | None
    result: FrameValue
    sizes: tuple[int, int, int]
    about: str = ""


@dataclass(frozen=True)
class ReductionDraft:
    """A reduction while it is made; as `ReductionLoop`, with values for views."""

    how: str
    shape: Shape
    inner: Shape
    read: FrameValue
    write: FrameValue
    about: str = ""


@dataclass(frozen=True)
class GatherDraft:
    """Reads of rows of a table while they are made; as `GatherLoop`, with values for views."""

    table: Root
    rows: int
    index: FrameValue
    write: FrameValue
    about: str = ""


Draft = PointwiseDraft | ProductDraft | ReductionDraft | GatherDraft


def values_of(loop: Draft) -> list[tuple[FrameValue, bool]]:
    """Lists the values that a loop reads or writes, with whether it writes them."""
    match loop:
        case PointwiseDraft():
            return [*((each, False) for each in loop.reads), *((each, True) for each, _ in loop.writes)]
        case ProductDraft():
            read = [loop.left, *([] if loop.start is None else [loop.start])]
            return [*((each, False) for each in read), (loop.result, True)]
        case ReductionDraft():
            return [(loop.read, False), (loop.write, True)]
        case GatherDraft():
            return [(loop.index, False), (loop.write, True)]


@dataclass
class Drafts:
    """The loops of a frame so far, in order."""

    loops: list[Draft] = field(default_factory=list[Draft])

    def add(self, draft: Draft, root: Root) -> None:
        """Adds a loop that writes an array as a whole."""
        self.loops.append(draft)
        root.ready = len(self.loops) - 1

    def loop_for(
        self, shape: Shape, operands: Sequence[FrameValue], first: int = 0
    ) -> tuple[int, PointwiseDraft]:
        """Returns the index of an elementwise loop that can read some values, and the loop: the earliest one
        of this shape, or a new one. first: the least index.
        """
        for operand in operands:
            is_element = operand.root.register is not None and operand.is_whole and operand.shape == shape
            first = max(first, operand.root.ready if is_element else operand.root.ready + 1)
        for index in range(first, len(self.loops)):
            loop = self.loops[index]
            if isinstance(loop, PointwiseDraft) and loop.shape == shape:
                return index, loop
        self.loops.append(PointwiseDraft(shape))
        return len(self.loops) - 1, self.loops[-1]  # type: ignore[return-value] # made in the line above

    def pointwise(
        self,
        shape: Shape,
        dtype: str,
        operands: Sequence[FrameValue],
        record: Callable[[Recorder, list[FrameRegister]], FrameRegister],
        about: str = "",
    ) -> FrameValue:
        """Adds an elementwise operation on values that are broadcast to a shape; returns its result.

        record: notes the instructions of the operation.
        """
        given = [operand.broadcast(shape) for operand in operands]
        index, loop = self.loop_for(shape, [each for each in given if each.number is None])
        result = record(loop.code, [loop.register(each, index) for each in given])
        if about and about not in loop.about:
            loop.about.append(about)
        root = Root("scratch", dtype, prod(shape), ready=index, register=result.number)
        value = FrameValue.of(root, shape)
        loop.writes.append((value, result.number))
        return value

    def copy(self, value: FrameValue, target: FrameValue, first: int = 0) -> None:
        """Adds a copy of a value to a part of an array. first: the least index of the loop that copies."""
        index, loop = self.loop_for(value.shape, [value], first)
        loop.writes.append((target, loop.register(value, index).number))
        target.root.ready = max(target.root.ready, index)

    def contiguous(self, value: FrameValue) -> FrameValue:
        """Returns a value whose elements lie one after the other, a copy unless they do so already."""
        if value.is_contiguous:
            return value
        root = Root("scratch", value.dtype, prod(value.shape), scale=value.root.scale)
        self.copy(value, FrameValue.of(root, value.shape))
        return FrameValue.of(root, value.shape)
