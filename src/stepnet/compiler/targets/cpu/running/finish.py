"""The work after the loop of a call: reductions over each sequence, and totals over all rows.

Contracts and sums run in machine code (`contract.py`, `sums.py`), the rest in NumPy. Rows are always taken
sequence by sequence and step by step. So results do not depend on the layout of the call, its lanes or its
threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.reductions import REDUCTIONS, mean_of
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.net.types import STEPS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.lower.needs import Needs
from stepnet.compiler.targets.cpu.machine.memory import JointAllocation, Shape
from stepnet.compiler.targets.cpu.machine.target import Processor
from stepnet.compiler.targets.cpu.products.constants import Values
from stepnet.compiler.targets.cpu.products.contract import Contract, can_be_kept, contract
from stepnet.compiler.targets.cpu.running.sums import DTYPES, Sums, sums

Kinds = Mapping[str, Sequence[Array | None]]


class NodeRows(NamedTuple):
    """Values of a node, as rows of an array.

    array: an array with these values, which may have further rows.
    places: the rows of the array with the values, in order; None for all rows.
    """

    array: Array
    places: Array | None = None

    @property
    def packed(self) -> Array:
        """The values of the node, contiguous and in order: a copy if they are scattered in the array."""
        return self.array if self.places is None else self.array[self.places]


@dataclass(frozen=True)
class Finish:
    """Work of a plan after its loop: reductions of sequences, and totals of all rows.

    plan: the plan.
    needs: the arrays that the work reads.
    constants: the constants that it reads, by node of the net.
    target: the processor to compile for.
    """

    plan: Plan
    needs: Needs
    constants: dict[int, Array]
    target: Processor

    @classmethod
    def of(cls, plan: Plan, needs: Needs, values: Values, target: Processor) -> "Finish | None":
        """Describes the work of a plan after its loop; None if there is none: its results are outputs and
        final memories only. values: the constants of the plan, computed from the parameters.
        """
        in_order = [slot.place for slot in needs.finals if slot is not None] == [*range(len(plan.ends.rows))]
        if in_order and needs.are_none and not plan.ends.totals:
            return None
        read = {number for made in plan.total for number in plan.net.nodes[made].inputs}
        read |= set(plan.results(plan.ends.totals))
        constants = {n: values[False, n].copy() for n in read if (False, n) in values}
        return cls(plan, needs, constants, target)


class FinishCall:
    """Work after the loop (reductions of sequences, totals of rows) for calls of one layout of sequences."""

    def __init__(self, finish: Finish, call: Call) -> None:
        """Finds out which arrays the work of a plan after its loop reads, and their shapes for a call: "kept"
        are values of all steps that only this work reads, "reduced" the reductions of sequences, "ended" what
        machine code computes after these.
        """
        self.finish, self.plan = finish, finish.plan
        positions = call.positions
        self.places, self.offsets = positions.all_step_indices, positions.offsets
        self.contracts: dict[int, Contract] = {}
        self.sums: dict[int, Sums] = {}
        net, needs, batch = self.plan.net, finish.needs, positions.rows
        read = self.plan.read_in_the_end
        numbers = {
            "inputs": [net.inputs[place] for place in self.plan.ends.sequences],
            "initial": [net.inputs[place] for place in self.plan.ends.memories],
            "statics": [net.inputs[place] for place in self.plan.ends.statics],
            "final": [slot.number for slot in needs.finals if slot is not None],
            "kept": needs.kept,
            "reduced": needs.reduced,
            "ended": [slot.number for slot in needs.ended],
        }
        self.reads = [
            (kind, place, number, net.type_of(number).extent == STEPS)
            for kind, members in numbers.items()
            for place, number in enumerate(members)
            if number in read
        ]

        def of_rows(number: int) -> Shape:
            """Returns the shape, with one row per sequence, and the dtype of a node's value."""
            return (batch, *net.type_of(number).shape), net.type_of(number).dtype

        types = [net.type_of(number) for number in needs.kept]
        self.kept = JointAllocation([((positions.total, *type_.shape), type_.dtype) for type_ in types])
        self.finals = [(slot.place, of_rows(slot.number)) for slot in needs.finals if slot is not None]
        self.reduced = [(-1, of_rows(number)) for number in needs.reduced]
        self.ended = [(slot.place, of_rows(slot.number)) for slot in needs.ended]

    def arrays(self, results: Results, memory: Array) -> dict[str, list[Array]]:
        """Returns the arrays that machine code writes for the work after the loop, by kind: those of results,
        and new ones for values that are not returned. memory: the buffer for the values of all steps.
        """

        def made(places: list[tuple[int, Shape]]) -> list[Array]:
            """Returns the final result at each position, and for -1 a new array of the shape."""
            return [results.final[place] if place >= 0 else np.empty(*shape) for place, shape in places]

        return {
            "final": made(self.finals),
            "kept": self.kept.arrays(memory),
            "reduced": made(self.reduced),
            "ended": made(self.ended),
        }

    def values(self, kinds: Kinds) -> dict[int, NodeRows]:
        """Returns the values that the work after the loop reads, by node of the net: constants, and arrays of
        the call. kinds: these arrays, by kind.
        """
        values = {number: NodeRows(array) for number, array in self.finish.constants.items()}
        for kind, place, number, steps in self.reads:
            array = kinds[kind][place]
            if array is not None:
                values[number] = NodeRows(array, self.places if steps else None)
        return values

    def reduce(self, values: dict[int, NodeRows], kinds: Kinds) -> None:
        """Computes the reductions (sum, mean, max) over the steps of each sequence into the arrays "reduced".
        values: the values so far, by node of the net. kinds: the arrays of the call, by kind.
        """
        for number, array in zip(self.finish.needs.reduced, kinds["reduced"], strict=True):
            if array is None:
                continue
            node = self.plan.net.nodes[number]
            how, source = node.attributes["how"], values[node.inputs[0]]
            if how == "sum" and self.can_keep_sums(source, array):
                self.sums_of(number, array)(source.array, array)
            else:
                array[...] = reduced(how, source, self.offsets, self.finish.target)

    def can_keep_sums(self, source: NodeRows, array: Array) -> bool:
        """Tells whether a `Sums`, which is prepared once, can sum these values into this array: both
        contiguous, of the same float dtype, and the values two-dimensional, at the places of the call's
        steps.
        """
        values = source.array
        flat = values.ndim == 2 and values.size and values.flags.c_contiguous and array.flags.c_contiguous
        same = values.dtype == array.dtype and values.dtype.name in DTYPES
        return bool(flat) and same and source.places is self.places

    def sums_of(self, number: int, array: Array) -> Sums:
        """Returns the prepared sum over each sequence for a node, made at the first call. array: the array
        for the sums.
        """
        if number not in self.sums:
            name, target = array.dtype.name, self.finish.target
            self.sums[number] = Sums(array.shape[1], name, self.places, self.offsets, target)
        return self.sums[number]

    def total(self, values: dict[int, NodeRows], results: Results) -> None:
        """Computes the values that combine all rows, and stores those that are results of the net in
        `results`.

        values: the values so far, by node of the net, to which they are added.
        """
        if not self.plan.ends.totals:
            return
        wanted = list(zip(self.plan.results(self.plan.ends.totals), results.totals, strict=True))
        places = dict(wanted)
        for number in self.plan.total:
            node = self.plan.net.nodes[number]
            operands = [values[operand] for operand in node.inputs]
            values[number] = NodeRows(self.made(number, node, operands, places.get(number)))
        for number, array in wanted:
            if values[number].array is not array:
                array[...] = values[number].array

    def made(self, number: int, node: Node, operands: Sequence[NodeRows], out: Array | None) -> Array:
        """Computes a value that combines all rows. The buffers of a contract (the gradient of a weight) are
        kept for the next call. number: the node in the net. out: an array to which a contract may write; None
        for a new one.
        """
        if node.operation != "contract" or any(side.places is not self.places for side in operands):
            return total(node, operands, self.finish.target)
        left, right = (operand.array for operand in operands)
        if number not in self.contracts and can_be_kept(left, right):
            columns = left.shape[1], right.shape[1]
            encoding = node.attributes.get("weights")
            made = Contract(*columns, left.dtype.name, self.places, self.finish.target, encoding)
            self.contracts[number] = made
        known = self.contracts.get(number)
        return total(node, operands, self.finish.target) if known is None else known(left, right, out)

    def release(self) -> None:
        """Returns the buffers kept for contracts (gradients of weights) to the pool."""
        for kept in self.contracts.values():
            kept.release()


def reduced(how: str, values: NodeRows, offsets: Array, target: Processor) -> Array:
    """Reduces the values of a node over the steps of each sequence. how: "sum", "mean" or "max". offsets: the
    start of each sequence among the values, and the end of the last one.
    """
    if how not in ("sum", "mean") or values.places is None:
        return REDUCTIONS[how](values.packed, offsets)
    added = sums(values.array, values.places, offsets, target)
    return added if how == "sum" else mean_of(added, offsets)


def total(node: Node, operands: Sequence[NodeRows], target: Processor) -> Array:
    """Computes the value of a node that combines all rows: by machine code for a contract (the gradient of a
    weight), else by NumPy.
    """
    if node.operation != "contract":
        return total_of(node, [operand.packed for operand in operands])
    left, right = operands
    if left.places is right.places:
        return contract(left.array, right.array, left.places, target, **node.attributes)
    return contract(left.packed, right.packed, None, target, **node.attributes)
