"""The work after the loop of a call: reductions over each sequence, and totals over all rows.

    machine code of the loop    writes the values that this work reads to hidden arrays
    tasks                       contracts, sums, means, maxima, in machine code (`contract.py`, `sums.py`)
    rest                        means of whole numbers, maxima over all rows, functions of totals, in NumPy

In a prepared call the tasks follow the loop in one block (`call_block.py`). Rows are always taken sequence by
sequence and step by step. So results do not depend on the layout of the call, its lanes or its threads.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Array, Call
from stepnet.compiler.targets.cpu.lower.needs import Needs
from stepnet.compiler.targets.cpu.machine.memory import JointAllocation, Shape, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.constants import Values
from stepnet.compiler.targets.cpu.products.contract import Contract, contract
from stepnet.compiler.targets.cpu.running.sums import DTYPES, Sums, has_code, reduced

T = TypeVar("T")
Slot = tuple[str, int]
"""An array of a call: its kind, and its position among those of this kind."""
ABREAST = 8
"""The number of rows from which NumPy adds the numbers of a single column in parallel sums."""


@dataclass(frozen=True)
class Finish:
    """Work of a plan after its loop: reductions of sequences, and totals of all rows.

    plan: the plan.
    needs: the arrays that the work reads.
    constants: the constants that it reads, by node of the net.
    processor: the processor to compile for.
    """

    plan: Plan
    needs: Needs
    constants: dict[int, Array]
    processor: Processor

    @classmethod
    def of(cls, plan: Plan, needs: Needs, values: Values, processor: Processor) -> "Finish | None":
        """Describes the work of a plan after its loop; None if there is none: its results are outputs and
        final memories only.

        needs: the arrays that the work reads, such as final memories.
        values: the constants of the plan, computed from the parameters.
        processor: the processor to compile for.
        """
        in_order = [slot.index for slot in needs.finals if slot is not None] == [*range(len(plan.ends.rows))]
        if in_order and needs.are_none and not plan.ends.totals:
            return None
        read = {number for made in plan.total for number in plan.net.nodes[made].inputs}
        read |= set(plan.results(plan.ends.totals))
        constants = {n: values[False, n].copy() for n in read if (False, n) in values}
        return cls(plan, needs, constants, processor)


class FinishCall:
    """Work after the loop (reductions of sequences, totals of rows) for calls of one layout of sequences.

    Its arrays are those of the call and hidden ones. An array is known by its kind ("inputs", "initial",
    "statics", "rows", "totals" or "hidden") and its position there.

    constants: those that this work reads, by node. They may be replaced between calls.
    final, others: the arrays that machine code writes for this work: of the memories that are read, and of
        other values.
    where: the array of each node that has one.
    tasks: the machine code of nodes that have some.
    rest: the nodes that NumPy computes. They read results of tasks, and no task reads theirs.
    copied: the totals that are constants, or equal to others: nodes, and positions among the totals.
    hidden: the hidden arrays, of values that are not returned.
    """

    def __init__(self, finish: Finish, call: Call) -> None:
        """Finds the arrays of the work of a plan after its loop, and prepares its tasks for calls of a shape.
        Arrays of values of all steps and of reductions are hidden.
        """
        self.plan, self.positions = finish.plan, call.positions
        self.constants, self.processor = finish.constants, finish.processor
        self.places, self.offsets = self.positions.all_step_indices, self.positions.offsets
        net, needs, ends = self.plan.net, finish.needs, self.plan.ends
        inputs = {"inputs": ends.sequences, "initial": ends.memories, "statics": ends.statics}
        self.where: dict[int, Slot] = {
            net.inputs[place]: (kind, n) for kind, places in inputs.items() for n, place in enumerate(places)
        }
        self.shapes = list[Shape]()
        self.final = [self.slot(each.number, each.index) for each in needs.finals if each is not None]
        self.others = [self.slot(number) for number in (*needs.kept, *needs.reduced)]
        self.others += [self.slot(each.number, each.index) for each in needs.ended]
        totals = [*enumerate(self.plan.results(ends.totals))]
        for place, number in totals:
            if number in self.plan.total:
                self.where.setdefault(number, ("totals", place))
        self.tasks, self.rest = dict[int, Contract | Sums](), list[int]()
        for number in (*self.plan.reduced, *self.plan.total):
            task = None if self.reads_rest(number) else self.task(net.nodes[number])
            if task is None:
                self.rest.append(number)
            else:
                self.tasks[number] = task
                if number not in self.where:
                    self.slot(number)
        self.copied = [(n, place) for place, n in totals if self.where.get(n) != ("totals", place)]
        self.hidden = JointAllocation(self.shapes)

    def slot(self, number: int, place: int = -1) -> Slot:
        """Assigns an array to the value of a node, and returns its kind and position among those of this
        kind.

        number: the node of the net.
        place: the position of the value among the results per row; -1 for a value that is no such result,
            which gets a new hidden array.
        """
        found = "rows", place
        if place < 0:
            type_, found = self.plan.net.type_of(number), ("hidden", len(self.shapes))
            counts = {STEPS: (self.positions.total,), ROWS: (self.positions.rows,), CONST: ()}
            self.shapes.append(((*counts[type_.extent], *type_.shape), type_.dtype))
        self.where.setdefault(number, found)
        return found

    def reads_rest(self, number: int) -> bool:
        """Tells whether a node reads a value that NumPy computes, or a constant, so that NumPy must compute
        the node too. number: the node of the net.
        """
        return any(n in self.rest or n not in self.where for n in self.plan.net.nodes[number].inputs)

    def task(self, node: Node) -> Contract | Sums | None:
        """Prepares the machine code of a reduction or total; returns None if NumPy computes it, such as a
        mean of whole numbers or a maximum over all rows.
        """
        types, processor = [self.plan.net.type_of(number) for number in node.inputs], self.processor
        (dtype, *others), sizes = {type_.dtype for type_ in types}, [type_.size for type_ in types]
        if others or not all(sizes):
            return None
        rows = self.positions.rows
        places = self.places if types[0].extent == STEPS else np.arange(rows)
        if node.operation == "contract" and dtype in DTYPES:
            (*lead, left), (*_, right) = (type_.shape for type_ in types)
            if lead:
                places = (places[:, None] * prod(lead) + np.arange(prod(lead))).ravel()
            return Contract(left, right, dtype, places, processor, node.attributes.get("weights"))
        how = node.attributes.get("how", "")
        if node.operation != "reduce" or not has_code(how, dtype):
            return None
        if node.type.extent == ROWS:
            return Sums(sizes[0], dtype, places, self.offsets, processor, how)
        if how != "sum":
            return None
        one = sizes[0] == 1 and rows >= ABREAST and dtype in DTYPES
        return Sums(sizes[0], dtype, places, np.array([0, rows]), processor, "pairwise" if one else how)

    def laid(self, kinds: Mapping[str, Sequence[T]]) -> tuple[list[T], list[T], dict[int, T]]:
        """Selects the arrays of the work after the loop, or other data on arrays such as their keys, from
        those of a call.

        kinds: the arrays of the call, by kind: "inputs", "initial", "statics", "rows", "totals" and "hidden".

        Returns the arrays that the machine code of the loop writes for this work (final memories, and then
        others), and all arrays that this work reads or writes, by node of the net.
        """
        final = [kinds[kind][place] for kind, place in self.final]
        others = [kinds[kind][place] for kind, place in self.others]
        return final, others, {number: kinds[kind][place] for number, (kind, place) in self.where.items()}

    def changed(
        self, keys: Mapping[int, Hashable], fixed: Mapping[Hashable, int], order: Mapping[Hashable, int]
    ) -> list[Contract | Sums]:
        """Prepares the machine code tasks of the work after the loop to be run again and again on other
        arrays; returns the tasks.

        keys: for each node of the net, the key of its array.
        fixed: the addresses of the arrays that all runs share, by key.
        order: for each array that changes from run to run, the index of its address among those of a run.
        """
        for number, task in self.tasks.items():
            task.change([keys[n] for n in (*self.plan.net.nodes[number].inputs, number)], fixed, order)
        return [*self.tasks.values()]

    def run(self, numbers: Sequence[int], values: dict[int, Array]) -> None:
        """Computes reductions of sequences or totals, and writes them to the arrays that `values` has for
        them; others are added to `values` in new arrays.

        numbers: the nodes of the net to compute, in order.
        values: the arrays of the call by node, and the constants that the nodes read.
        """
        for number in numbers:
            node, task = self.plan.net.nodes[number], self.tasks.get(number)
            read = [np.ascontiguousarray(values[n]) for n in node.inputs]
            if task is not None:
                task.point(*map(pointer, (*read, values[number])))
                task()
            elif number in self.where:
                values[number][...] = self.by_numpy(node, read)
            else:
                values[number] = self.by_numpy(node, read)

    def by_numpy(self, node: Node, operands: Sequence[Array]) -> Array:
        """Computes the value of a node that has no machine code: a reduction over the steps of each sequence,
        or a total. operands: the values of the node's inputs.
        """
        if node.type.extent == ROWS:
            return reduced(node.attributes["how"], operands[0], self.places, self.offsets, self.processor)
        types = [self.plan.net.type_of(number) for number in node.inputs]
        pairs = zip(types, operands, strict=True)
        packed = [array[self.places] if type_.extent == STEPS else array for type_, array in pairs]
        return total(node, packed, self.processor)

    def copy(self, values: Mapping[int, Array], totals: Sequence[Array]) -> None:
        """Copies the totals that no task writes, as they are constants or equal to others, to their arrays.

        values: the values of the nodes. totals: the arrays of all totals.
        """
        for number, place in self.copied:
            totals[place][...] = values[number]

    def release(self) -> None:
        """Returns the buffers of the tasks that compute gradients of weights to the pool."""
        for task in self.tasks.values():
            if isinstance(task, Contract):
                task.release()


def total(node: Node, operands: Sequence[Array], processor: Processor) -> Array:
    """Computes the value of a node that combines all rows: by machine code for a contract (the gradient of a
    weight), else by NumPy. operands: the values of the node's inputs.
    """
    if node.operation == "contract":
        left, right = operands
        return contract(left, right, processor, **node.attributes)
    return total_of(node, [*operands])
