"""Frame programs in NumPy, operation by operation: the bits of all other writers."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import (
    BLOCK,
    FrameLoop,
    FrameProgram,
    GatherLoop,
    Instruction,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
    StridedView,
)
from stepnet.compiler.values.records import dataclass
from stepnet.errors import IndexOutsideError

Array = np.ndarray
UNSIGNED = {"int32": np.uint32, "int64": np.uint64}
OF_BITS = {"int32": np.int32, "int64": np.int64, "float32": np.float32, "float64": np.float64}


def unsigned_right_shift(x: Array, count: Array) -> Array:
    """Shifts integers to the right, and fills with zeros."""
    unsigned = UNSIGNED[x.dtype.name]
    return (x.view(unsigned) >> count.astype(unsigned)).view(x.dtype)


def divide(x: Array, y: Array) -> Array:
    """Divides; for integers the quotient is truncated."""
    if x.dtype.kind == "f":
        return np.true_divide(x, y)
    return (x - np.fmod(x, y)) // y


def multiply_high(x: Array, y: Array) -> Array:
    """Multiplies integers of 32 bits, and returns the upper half of each product."""
    return x.astype(np.int64) * y.astype(np.int64) >> 32


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "multiply_high": multiply_high,
    "divide": divide,
    "remainder": np.fmod,
    "negative": np.negative,
    "absolute": np.absolute,
    "copysign": np.copysign,
    "sqrt": np.sqrt,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "unsigned_right_shift": unsigned_right_shift,
    "right_shift": np.right_shift,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "select": np.where,
}
"""The NumPy function of each primitive that has operands of its own dtype."""


@dataclass
class FrameRun:
    """A frame program with a state for each of some sequences, which runs in NumPy.

    program: the program. rows: the number of sequences, of which `step` runs the first one alone.
    buffers: the elements of its buffers by name, [rows, size]; those of constants are [1, size].

    >>> from stepnet.compiler.targets.frame.program import FrameBuffer
    >>> x, y, h = (FrameBuffer(*each) for each in (("x", "float32", 2, "input"),
    ...     ("y", "float32", 2, "output"), ("h", "float32", 2, "memory")))
    >>> views = [StridedView(name, 0, (1,)) for name in "hxy"]
    >>> add = PointwiseLoop((2,), tuple(views[:2]), (Instruction("add", (0, 1), "float32"),),
    ...     ((views[2], 2), (views[0], 2)))
    >>> print(add)
    for 2:
      %0 = h[i]
      %1 = x[i]
      %2 = add %0 %1 : float32
      y[i] = %2
      h[i] = %2
    >>> run = FrameRun(FrameProgram((x, y, h), {}, {}, (), (add,)))
    >>> run.step(np.float32([1, 2])), run.step(np.float32([1, 2]))
    ([array([1., 2.], dtype=float32)], [array([2., 4.], dtype=float32)])
    """

    program: FrameProgram
    rows: int = 1

    def __post_init__(self) -> None:
        """Allocates all buffers, and begins."""
        self.buffers = {
            each.name: np.zeros((1 if each.kind == "constant" else self.rows, each.size), each.dtype)
            for each in self.program.buffers
        }
        for name, values in self.program.constants.items():
            self.buffers[name][:] = values.ravel()
        self.count = self.rows
        self.reset()

    def reset(self) -> None:
        """Sets all memories to their first values."""
        for buffer in self.program.of("memory"):
            begin = self.program.begins.get(buffer.name)
            self.buffers[buffer.name][:] = 0 if begin is None else self.buffers[begin]

    def step(self, *inputs: Array) -> list[Array]:
        """Runs one frame of one sequence; returns the outputs, flat, in the order of the program's buffers.
        Raises `IndexOutsideError` for an index outside of its table.
        """
        return [each[0] for each in self.frames([np.asarray(given)[None] for given in inputs])]

    def frames(self, inputs: Sequence[Array]) -> list[Array]:
        """Runs one frame of the first sequences; returns the outputs [count, size], in the order of the
        program's buffers. inputs: [count, features...]. Raises `IndexOutsideError` as `step` does.
        """
        for buffer, given in zip(self.program.of("input"), inputs, strict=True):
            self.count = len(given)
            self.buffers[buffer.name][: self.count] = given.reshape(self.count, -1)
        with np.errstate(all="ignore"):
            for loop in self.program.loops:
                self.run(loop)
        return [self.buffers[buffer.name][: self.count].copy() for buffer in self.program.of("output")]

    def run(self, loop: FrameLoop) -> None:
        """Runs one loop."""
        match loop:
            case PointwiseLoop():
                self.pointwise(loop)
            case ProductLoop():
                self.product(loop)
            case SparseProductLoop():
                self.sparse_product(loop)
            case ReductionLoop():
                self.reduction(loop)
            case GatherLoop():
                self.gather(loop)

    def pointwise(self, loop: PointwiseLoop) -> list[Any]:
        """Runs an elementwise loop; returns all registers."""
        registers: list[Any] = [self.elements(view, loop.shape).copy() for view in loop.reads]
        registers = self.instructions(loop.body, registers)
        for view, register in loop.writes:
            self.elements(view, loop.shape)[...] = registers[register]
        return registers

    def elements(self, view: StridedView, shape: Sequence[int]) -> Array:
        """Returns the elements of a view over a shape, [count, shape...]."""
        array = self.buffers[view.buffer]
        row = 0 if self.program.by_name[view.buffer].kind == "constant" else array.strides[0]
        strides = [row, *(stride * array.itemsize for stride in view.strides)]
        return np.lib.stride_tricks.as_strided(array[:, view.offset :], (self.count, *shape), strides)

    def instructions(self, body: Sequence[Instruction], registers: list[Any]) -> list[Any]:
        """Runs instructions; returns all registers. registers: the registers that have values before."""
        for each in body:
            operands = [registers[operand] for operand in each.operands]
            registers.append(self.instruction(each, operands))
        return registers

    def instruction(self, instruction: Instruction, operands: list[Any]) -> Any:
        """Runs one instruction; returns its result."""
        match instruction.operation:
            case "constant":
                return np.array(instruction.value, instruction.dtype)
            case "bits":
                return np.ascontiguousarray(operands[0]).view(OF_BITS[instruction.dtype])
            case "convert":
                return operands[0].astype(instruction.dtype)
            case operation if (routine := self.program.routine.get(operation)) is not None:
                return self.instructions(routine.body, operands)[routine.result]
            case "element":
                return self.buffers[str(instruction.value)][0][operands[0]]
            case operation:
                return np.asarray(OPERATIONS[operation](*operands)).astype(instruction.dtype)

    def product(self, loop: ProductLoop) -> None:
        """Runs a product: adds the products of all outputs, one input after the other."""
        result, left, sums = self.given(loop)
        packed = self.buffers[loop.weights][0].astype(result.dtype)
        for first in range(0, loop.outputs, BLOCK):
            width = min(BLOCK, loop.outputs - first)
            block = packed[first * loop.inputs : (first + width) * loop.inputs].reshape(loop.inputs, width)
            for k in range(loop.inputs):
                sums[..., first : first + width] += left[..., k : k + 1] * block[k]
        result[...] = sums

    def sparse_product(self, loop: SparseProductLoop) -> None:
        """Runs a product with blocks: adds the products of the columns of each, one row after the other."""
        result, left, sums = self.given(loop.product)
        blocks, width = self.buffers[loop.product.weights][0].astype(result.dtype), loop.width
        places, at = iter(self.buffers[loop.places][0].tolist()), 0
        for first in range(0, loop.product.outputs, width):
            for k in islice(places, next(places)):
                sums[..., first : first + width] += left[..., k : k + 1] * blocks[at : at + width]
                at += width
        result[...] = sums

    def given(self, loop: ProductLoop) -> tuple[Array, Array, Array]:
        """Returns the view of a product's results, its vectors in their dtype, and what sums begin with."""
        shape = loop.rows, loop.outputs
        result, left = self.elements(loop.result, shape), self.elements(loop.left, (loop.rows, loop.inputs))
        start = loop.start
        sums = np.zeros(result.shape, result.dtype) if start is None else self.elements(start, shape).copy()
        return result, left.astype(result.dtype), sums

    def reduction(self, loop: ReductionLoop) -> None:
        """Runs a reduction, one element after the other."""
        shape, count = loop.shape, prod(loop.inner)
        values = self.elements(loop.read, (*shape, *loop.inner)).reshape(self.count, *shape, count)
        written = self.elements(loop.write, (*shape, *loop.inner) if loop.is_prefix else shape)
        written[...] = REDUCTIONS[loop.how](values, written.dtype).reshape(written.shape)

    def gather(self, loop: GatherLoop) -> None:
        """Copies rows of a table; raises `IndexOutsideError` for an index outside of it."""
        index = self.elements(loop.index, loop.shape)
        if ((index < -loop.rows) | (index >= loop.rows)).any():
            raise IndexOutsideError(OUTSIDE, "")
        table = self.buffers[loop.table][0].reshape(loop.rows, loop.width)
        self.elements(loop.write, (*loop.shape, loop.width))[...] = table[index]


def in_order(function: np.ufunc) -> Callable[[Array, Any], Array]:
    """Makes the function that reduces the last axis by a ufunc, one element after the other."""

    def reduce(values: Array, dtype: Any) -> Array:
        """Reduces the last axis."""
        return function.accumulate(values, axis=-1, dtype=dtype)[..., -1]

    return reduce


def sum_in_order(values: Array, dtype: Any) -> Array:
    """Adds the elements of the last axis to 0, one after the other."""
    return in_order(np.add)(values, dtype) + np.zeros((), dtype)


def scan(function: np.ufunc) -> Callable[[Array, Any], Array]:
    """Makes the function of prefix results along the last axis."""

    def accumulate(values: Array, dtype: Any) -> Array:
        """Computes the result so far of each element."""
        return function.accumulate(values, axis=-1, dtype=dtype)

    return accumulate


REDUCTIONS: Mapping[str, Callable[[Array, Any], Array]] = {
    "sum": sum_in_order,
    "max": in_order(np.maximum),
    "min": in_order(np.minimum),
    "argmax": lambda values, dtype: np.argmax(values, axis=-1).astype(dtype),
    "cumsum": scan(np.add),
    "cumprod": scan(np.multiply),
}
"""Each reduction of the last axis."""
