"""Constants that are computed from parameters: on the device, where the parameters lie there.

    transpose, slice, reshape, ...      an element of the parameter that they show
    concatenate                         an element of one of its parts
    add, exp, cast, ...                 an expression of its operands' elements
    sum                                 a sum of its operand's elements, in a launch ahead of what reads it

Else one kernel computes all constants that something else reads. They are computed again whenever parameters
are bound: only by reading the parameters could it be found out whether these have changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.ir import Builder, Net, Node, ancestors
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.device import DeviceArray, DeviceCode, empty, get
from stepnet.compiler.targets.cuda.written import CODE, written
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

THREADS = 256
"""The threads of a block."""
LONGEST = 8192
"""The most terms of a sum that a thread adds up."""
FEW = 2
"""The most blocks of each multiprocessor."""


@dataclass(frozen=True, eq=False)
class CudaConstants:
    """The constants of a net that are computed from its parameters.

    memory: of the device. net: the net. numbers: the nodes of constants, in order.
    read: those that something else reads; others need not be computed on the device.
    """

    memory: CudaMemory
    net: Net
    numbers: tuple[int, ...]
    read: frozenset[int]

    def __call__(self, parameters: Mapping[int, Any]) -> dict[int, Any]:
        """Computes the constants from parameters, by node; returns both.

        Where all parameters are arrays of the host, or a constant is computed in other ways than by moves,
        elementwise operations and sums, it is done by the interpreter, with the same bits on all targets.
        """
        if parameters and not any(isinstance(array, DeviceArray) for array in parameters.values()):
            return evaluated(self.net, parameters, self.numbers)
        if not self.has_elements:
            known = {number: on_host(array) for number, array in parameters.items()}
            return {**evaluated(self.net, known, self.numbers), **parameters}
        found = {number: self.memory.put(array) for number, array in parameters.items()}
        found.update(self.literals)
        for known, numbers, code in self.launches:
            for number in numbers:
                type_ = self.net.type_of(number)
                found[number] = empty(self.memory.device, type_.shape, type_.dtype)
            words = [found[number].address for number in (*known, *numbers)]
            largest = max(self.net.type_of(number).size for number in numbers)
            blocks = min(-(-largest // THREADS), FEW * self.memory.device.facts.multiprocessors)
            self.memory.device.launch(code, blocks, words)
        return found

    @computed_once
    def has_elements(self) -> bool:
        """Tells whether the elements of all constants are expressions of the elements of parameters."""
        nodes = [self.net.nodes[number] for number in self.reached - set(self.sources)]
        simple = ("constant", "concatenate")
        return all(
            node.is_view or node.kind == "pointwise" or node.operation in simple or self.is_short_sum(node)
            for node in nodes
        )

    def is_short_sum(self, node: Node) -> bool:
        """Tells whether a node is a sum of few enough terms for a thread to add up."""
        terms = self.net.type_of(node.inputs[0]).size / max(1, node.type.size) if node.inputs else 0
        return node.operation == "sum" and terms <= LONGEST

    @computed_once
    def reached(self) -> set[int]:
        """The constants that are read, and all constants and parameters that they depend on."""
        return ancestors(self.net.nodes, tuple(self.read)) | self.read

    @computed_once
    def literals(self) -> dict[int, DeviceArray]:
        """The constants that are part of the net and are read, on the device."""
        nodes = self.net.nodes
        return {
            number: self.memory.put(np.asarray(nodes[number].attributes["value"].value))
            for number in sorted(self.read)
            if nodes[number].operation == "constant"
        }

    @computed_once
    def sources(self) -> tuple[int, ...]:
        """The parameters that constants are computed from."""
        return tuple(number for number in self.net.inputs if number in self.reached)

    @computed_once
    def launches(self) -> list["ConstantLaunch"]:
        """The launches that compute the constants: sums first, each behind the sums that it reads."""
        nodes, depths = self.net.nodes, dict[int, int]()
        for number in sorted(self.reached):
            depth = max((depths.get(n, 0) for n in nodes[number].inputs), default=0)
            depths[number] = depth + (nodes[number].operation == "sum")
        found, known = list[ConstantLaunch](), self.sources
        rounds = [
            tuple(n for n in depths if nodes[n].operation == "sum" and depths[n] == depth)
            for depth in range(1, max(depths.values(), default=0) + 1)
        ]
        rounds.append(
            tuple(n for n in sorted(self.read) if nodes[n].operation not in ("constant", "input", "sum"))
        )
        for numbers in filter(None, rounds):
            given = self.net, known, numbers
            code: DeviceCode = written("arrays.constant_code.constants_code", CODE, given, *given)
            found.append(ConstantLaunch(known, numbers, code))
            known = (*known, *numbers)
        return found


class ConstantLaunch(NamedTuple):
    """A launch of a kernel, whose arguments are the arrays of constants that are known, and of others."""

    known: tuple[int, ...]
    numbers: tuple[int, ...]
    code: DeviceCode


def on_host(array: Any) -> np.ndarray:
    """Returns an array of the host as it is, and a copy of one of the device."""
    return get(array) if isinstance(array, DeviceArray) else np.asarray(array)


@lru_cache(maxsize=256)
def constants_of_node(
    memory: CudaMemory, node: Node, types: tuple[tuple[tuple[int, ...], str], ...]
) -> CudaConstants:
    """Returns the launches that compute one node from constants. types: shapes and dtypes of its operands."""
    builder = Builder()
    inputs = [builder.input(Type(CONST, *each), f"operand{place}") for place, each in enumerate(types)]
    number = builder.copy(node, inputs)
    return CudaConstants(memory, builder.net([number]), (number,), frozenset((number,)))


def computed(memory: CudaMemory, node: Node, operands: Sequence[DeviceArray]) -> DeviceArray:
    """Computes a node of constants, such as a sum of gradients, from its operands on the device."""
    types = tuple((array.shape, array.dtype) for array in operands)
    made = constants_of_node(memory, replace(node, inputs=(), source=""), types)
    values = made(dict(zip(made.net.inputs, operands, strict=True)))
    return memory.put(values[made.numbers[0]])
