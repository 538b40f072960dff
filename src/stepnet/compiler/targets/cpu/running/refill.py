"""Replacing the parameters of a bound kernel in its memory.

    bind     evaluate the constants, lay out memory, pack        ->   refill   pack

In training, the parameters change at every step and nothing else does. Most constants are views of
parameters, which are packed from where they lie. So it is determined once which constants are views, and of
which parameter. A refill recomputes the few other constants, and packs. The views are kept as long as
parameters lie where they lay.
"""

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.net.interpreter import within
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.constants import Constants, Elements, PackedParameters, Values
from stepnet.compiler.targets.cpu.products.pack import Packing, packings_of, vector_sums

Array = np.ndarray
Key = tuple[bool, int]
ADDED = "float32", "float64"
"""The dtypes of which machine code adds vectors of parameters."""


class ParameterView(NamedTuple):
    """View of a parameter, such as its transpose: its byte offset, shape, dtype and strides.

    parameter: the position of the parameter.
    """

    parameter: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]

    def of(self, buffers: Sequence[Any]) -> Array:
        """Returns the array that this object describes: a view, such as a transpose, of the buffer of one of
        the parameters, which have the shapes of those that it was made for.
        """
        # NumPy checks that the view stays inside the buffer of the parameter.
        return np.ndarray(self.shape, self.dtype, buffers[self.parameter], self.offset, self.strides)

    @property
    def is_dense(self) -> bool:
        """True if the elements of the view follow one another in the parameter."""
        itemsize, shape = self.dtype.itemsize, self.shape
        dense = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
        return all(
            size == 1 or pair[0] == pair[1] for size, *pair in zip(shape, self.strides, dense, strict=True)
        )

    @classmethod
    def of_array(cls, array: Array, parameters: Sequence[Array]) -> "ParameterView | None":
        """Describes an array as a view of one of these parameters; None if it shares memory with none."""
        for place, parameter in enumerate(parameters):
            if array is parameter or np.may_share_memory(array, parameter):
                offset = pointer(array) - pointer(parameter)
                return cls(place, offset, array.shape, array.dtype, array.strides)
        return None


class Refill:
    """Function that fills the memory of a bound kernel with other, C-contiguous parameters."""

    def __init__(
        self,
        plan: Plan,
        constants: Constants,
        memory: Array,
        like: Sequence[Array],
        values: Values,
        wanted: Sequence[int],
        processor: Processor,
    ) -> None:
        """Finds out which constants of a kernel (compiled code) are views of parameters, and prepares to pack
        or compute each.

        plan: the operations that the kernel runs, in their order.
        constants: which constants its memory has, and where.
        memory: the memory with the constants, which is overwritten.
        like: parameters of the same shapes, which do not share memory with each other.
        values: the constants for these parameters, by whether they belong to the body (the net of a step),
        and by node.
        wanted: the constants of the net that a call returns, by number.
        """
        self.plan, self.wanted, self.sizes = plan, wanted, [array.nbytes for array in like]
        self.outside = {
            (True, inner): (False, outer)
            for inner, outer in zip(plan.body.inputs, plan.recurrence.inputs, strict=True)
            if plan.body.type_of(inner).extent == CONST
        }
        self.views: dict[Key, ParameterView | None] = {}
        self.fixed: dict[Key, Array] = {}
        for key, value in values.items():
            node = (plan.body if key[0] else plan.net).nodes[key[1]]
            if node.operation == "constant":
                self.fixed[key] = value
            else:
                self.views[key] = ParameterView.of_array(value, like)
        self.packings: list[tuple[Packing, Key]] = []
        in_views = dict[int, list[tuple[Packing, ParameterView]]]()
        sums = dict[str, list[tuple[int, int, list[tuple[int, int]]]]]()
        self.others: list[tuple[Callable[[Sequence[Array]], None], list[Key]]] = []
        for offset, entry in constants.entries:
            if isinstance(entry, np.ndarray):
                continue
            keys = [self.key(source.inside, source.number) for source in entry.sources]
            if all(key in self.fixed for key in keys):
                continue
            if isinstance(entry, PackedParameters):
                made = entry.packings(memory[offset:], [values[key] for key in keys], processor)
                for packing, key in zip(made, keys, strict=True):
                    if (view := self.views.get(key)) is None:
                        self.packings.append((packing, key))
                    elif packing.run is not None:
                        in_views.setdefault(packing.run.address, []).append((packing, view))
            elif isinstance(entry, Elements) and (terms := self.terms(entry, keys[0])):
                numbers = entry.numbers(memory[offset:])
                own = sums.setdefault(str(numbers.dtype), [])
                own.append((pointer(numbers), numbers.nbytes, terms))
            else:
                self.others.append((entry.filler(memory[offset:], processor), keys))
        self.tasks = [
            packings_of(
                [packing for packing, _ in pairs], [(view.parameter, view.offset) for _, view in pairs]
            )
            for pairs in in_views.values()
        ]
        self.tasks += [vector_sums(dtype, own, processor) for dtype, own in sums.items()]
        self.is_code = not (self.packings or self.others or wanted)
        self.addresses: list[int] = []
        self.is_lent = False  # whether prepared calls set the addresses in the words of the tasks, too
        self.buffers: list[Any] = []
        self.known: dict[Key, Array] = {}

    def terms(self, entry: Elements, key: Key) -> list[tuple[int, int]]:
        """Returns the vectors of parameters of which an entry of the constants is the sum, as the biases of
        an LSTM are: the parameter of each, and its offset in bytes. None if it is no such sum.

        key: whether the constant belongs to the body (the net of a step), and its node.
        """
        first = 0 if entry.indices is None or not len(entry.indices) else int(entry.indices[0])
        in_order = entry.indices is None or np.array_equal(
            entry.indices, np.arange(first, first + len(entry.indices))
        )
        views = self.summands(key) if in_order and entry.bytes else []
        return [(view.parameter, view.offset + first * view.dtype.itemsize) for view in views]

    def summands(self, key: Key) -> "list[ParameterView]":
        """Returns the dense views of parameters of which a constant is the sum, from left to right, each of
        its shape; none if it is no such sum. key: as of `terms`.
        """
        if (view := self.views.get(key)) is not None:
            return [view] if view.is_dense and str(view.dtype) in ADDED else []
        node = self.plan.net.nodes[key[1]]
        if key[0] or node.operation != "add":
            return []
        left, right = (self.summands((False, operand)) for operand in node.inputs)
        is_chain = len(left) > 0 and len(right) == 1
        like = node.type.shape, node.type.dtype
        fits = all((view.shape, str(view.dtype)) == like for view in (*left, *right))
        return [*left, *right] if is_chain and fits else []

    def key(self, inside: bool, number: int) -> Key:
        """Returns the key of a constant in the tables of views and fixed values: whether it belongs to the
        body (the net of a step), and its node. An input of the body has the key of the outer net's node that
        it reads. inside: whether `number` is a node of the body.
        """
        return self.outside.get((inside, number), (inside, number))

    def __call__(self, addresses: list[int]) -> dict[int, Array]:
        """Packs new parameters, by their addresses, into the memory of a kernel (compiled code), in place of
        those before; returns the constants of the nodes in `wanted`, by node.
        """
        if self.is_lent or addresses != self.addresses:
            self.point(addresses)
        for task in self.tasks:
            task()
        if self.is_code:
            return {}
        known = self.known.copy()
        with np.errstate(all="ignore"):
            for packing, key in self.packings:
                packing(pointer(self.value(key, known)))
            for fill, keys in self.others:
                fill([self.value(key, known) for key in keys])
            return {n: self.value((False, n), known) for n in self.wanted}

    def lent_tasks(self) -> Sequence[Any] | None:
        """Returns the tasks of machine code for prepared calls, which set addresses; None if there is other
        work.
        """
        self.is_lent = self.is_lent or self.is_code
        return self.tasks if self.is_code else None

    def point(self, addresses: list[int]) -> None:
        """Sets where the parameters lie. Their views do not keep the memory: a later call reads them only if
        it has parameters at the same addresses.
        """
        self.addresses = addresses
        self.buffers = [
            (ctypes.c_char * size).from_address(address)
            for address, size in zip(addresses, self.sizes, strict=True)
        ]
        self.known = {key: view.of(self.buffers) for key, view in self.views.items() if view is not None}
        for task in self.tasks:
            task.read(addresses)

    def value(self, key: Key, known: dict[Key, Array]) -> Array:
        """Returns the value of a constant for these parameters: a value that depends on no parameter, a view
        of a parameter, or a value computed now. It is used to replace the parameters of a kernel (compiled
        code).

        key: whether the constant belongs to the body (the net of a step), and its node.
        known: the values found so far, to which this one is added.
        """
        if key in self.fixed:
            return self.fixed[key]
        if key not in known:
            node = self.plan.net.nodes[key[1]]
            operands = [self.value((False, operand), known) for operand in node.inputs]
            known[key] = np.asarray(within(node, operands))
        return known[key]
